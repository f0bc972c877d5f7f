"""What people read at the end of a verb, as Rich renderables: which screen an answer has, and the small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from ipexctl.show import phrases
from ipexctl.show.answer_state import is_dry
from ipexctl.show.hosts_screen import doctor
from ipexctl.show.run_screen import card, proof, runs
from ipexctl.show.tables import generic
from ipexctl.show.typeset import (
    BAD,
    GOOD,
    QUIET,
    STRONG,
    WARN,
    Line,
    Part,
    labelled,
    paragraphs,
    text,
    whole,
)


def answer(verb: str, value: Mapping[str, Any], plan: str = "") -> list[RenderableType]:
    """The screen of a verb's `Answer`; of a dry run, its plan. The card of a run is made from the report (`ending`)."""
    if is_dry(value):
        return whole(str(value.get("plan") or plan))
    try:
        return _answer(verb, value)
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ):  # of another version, or damaged
        return generic(value)


def _answer(verb: str, value: Mapping[str, Any]) -> list[RenderableType]:
    if "steps" in value and "play" in value:
        return steps(value["steps"])
    if "list" in value:
        return generic({"steps": value["list"]})
    if verb == "doctor" and "findings" in value:
        return doctor(value)
    if verb == "install":
        return install(value)
    if verb == "command" and "hosts" in value:
        return commands(value["hosts"])
    if verb == "doctor" and "text" in value:
        return paragraphs(str(value["text"]))
    if verb == "verify" and "hosts" in value:
        return verified(value)
    if "text" in value:  # the answer for people; its other keys are for programs
        return whole(str(value["text"]))
    if verb == "ps":
        return runs(value)
    if verb in ("sync", "fetch") and "hosts" in value:
        return carried(value["hosts"])
    if verb in ("run", "attach"):
        return []
    if "proved" in value:
        rest = {key: inner for key, inner in value.items() if key not in ("proved", "left", "unproved")}
        return [*generic(rest), *proof({"run": "", **value})]
    return generic(value)


def ending(report: Mapping[str, Any], *, dry: bool = False) -> list[RenderableType]:
    """The screen of `Report.public()`: the run's card, the recap, what is not stored. Failures are told before."""
    items: list[RenderableType] = []
    if report.get("run"):
        items += card(report)
    counted = report.get("verb") in ("play", "demo", "install", "sync", "fetch") and report.get("hosts") and not dry
    if counted and (report.get("verb") in ("play", "demo") or not report.get("refused")):
        items += ["", *recap(report["hosts"])] if items else recap(report["hosts"])
    return [*items, *lost(report.get("lost") or {})]


def saved(report: Mapping[str, Any]) -> list[RenderableType]:
    """Where the run is saved: the key ``saved``, a path, may be added to a report."""
    return [labelled("saved", str(report["saved"]))] if report.get("saved") else []


def lost(what: Mapping[str, Any]) -> list[RenderableType]:
    """What the record could not store."""
    if not what:
        return []
    ranks = what.get("ranks") or {}
    parts = [f"{count} bytes of rank {rank}" for rank, count in list(ranks.items())[:8]]
    parts += [f"{what.get('bytes', 0)} bytes in all"] if len(ranks) > 8 else []
    parts += [f"{what['events']} events"] if what.get("events") else []
    parts += [str(name) for name in what.get("files") or ()]
    return [Line(text(("! ", WARN), f"not stored: {', '.join(parts)} ({what.get('why', '')})"), 2)]


def install(value: Mapping[str, Any]) -> list[RenderableType]:
    """Which stack is where now, and on which hosts that changed. Failures are told apart."""
    stack = value.get("stack") or {}
    names = (("torch", "torch"), ("ipex", "intel_extension_for_pytorch"), ("oneccl", "oneccl_bind_pt"))
    parts = [f"{name} {stack[key]}" for key, name in names if stack.get(key)]
    mpi = stack.get("mpi") or {}
    parts += [f"{mpi['kind']} {mpi.get('version') or ''}".rstrip()] if mpi.get("kind") else []
    parts += [f"Python {stack['python']}"] if stack.get("python") else []
    items: list[RenderableType] = [text((" · ".join(parts), STRONG))] if parts else []
    for key, style in (("changed", GOOD), ("unchanged", QUIET), ("failed", BAD)):
        if value.get(key):
            items.append(labelled(key, (phrases.hosts(value[key]), style)))
    if value.get("venv"):
        items.append(labelled("venv", str(value["venv"])))
    return items


def carried(hosts: Mapping[str, Mapping[str, Any]]) -> list[RenderableType]:
    """What was sent or brought, how much of it and where to; hosts with the same together. Failures are told apart."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for host, did in hosts.items():
        if "failed" not in did:
            into, name = str(did.get("workdir") or did["directory"]), ""
            if "directory" in did and into.endswith(f"/{host}"):  # a directory for each host
                into, name = into.removesuffix(host), "each"
            groups.setdefault((_amount(did), into, name), []).append(str(host))
    items: list[RenderableType] = []
    for (what, into, each), names in groups.items():
        place = into + (phrases.hosts(names) if each else "")
        items.append(Line(text(("✓ ", GOOD), (phrases.hosts(names), STRONG), f"  {what.replace('{}', place)}"), 2))
    return items


def _amount(did: Mapping[str, Any]) -> str:
    """``3 files, 1.2 KiB to {}``, with a place for the directory."""
    said = [f"{phrases.plural(did['files'], 'file')}, {phrases.size(did['bytes'])}"] if did["files"] else []
    if did.get("removed"):
        said.append(f"{did['removed']} removed")
    if said:
        return f"{', '.join(said)} {'into' if 'directory' in did else 'to'} {{}}"
    if did.get("changed"):
        return "directories only, to {}"
    same = f"{phrases.plural(did['same'], 'file')} the same in {{}}" if did.get("same") else ""
    return f"nothing to do, {same or '{} is the same'}" if same or "workdir" in did else "nothing there"


def verified(value: Mapping[str, Any]) -> list[RenderableType]:
    """Which stack each host has, by its name; hosts with the same one together. Failures are told apart."""
    groups: dict[tuple[str, bool], list[str]] = {}
    for host, found in value["hosts"].items():
        stack, failed = (found.get("stack") or {}).get("name"), host in (value.get("failed") or {})
        if stack or not failed:
            groups.setdefault((str(stack or "no name"), failed), []).append(str(host))
    items: list[RenderableType] = []
    for (stack, failed), names in groups.items():
        mark: Part = ("✗ ", BAD) if failed else ("✓ ", GOOD)
        same = f"complete{' and the same' if len(names) > 1 else ''}"
        items.append(Line(text(mark, (phrases.hosts(names), STRONG), f"  {stack}{'' if failed else f': {same}'}"), 2))
    return items


def commands(rows: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """What a command said on each host; hosts where it said the same are told together."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        if "failed" not in row:
            groups.setdefault((row["status"], row["out"], row["err"]), []).append(str(row["host"]))
    items: list[RenderableType] = []
    for (status, *said), names in groups.items():
        mark: Part = ("✗ ", BAD) if status else ("✓ ", GOOD)
        items.append(Line(text(mark, (phrases.hosts(names), STRONG), f" exit {status}" if status else ""), 2))
        items += [line for part in said if part.strip() for line in whole(part, 2)]
    return items


def steps(rows: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """How each step of a play ended."""
    items: list[RenderableType] = []
    for row in rows:
        code = row.get("exit")
        mark: Part = ("- ", QUIET) if code is None else ("✗ ", BAD) if code else ("✓ ", GOOD)
        how = ["not begun" if code is None else f"exit {code}" if code else "", str(row.get("note") or "")]
        if code is None and row.get("note"):
            del how[0]
        said = ", ".join(word for word in how if word)
        name = str(row.get("step") or row.get("action") or "")
        items.append(Line(text(mark, name, (f"  {said}" if said else "", QUIET)), 2))
    return items


def recap(hosts: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """``ok=4 changed=2 unreachable=0 failed=0 skipped=0`` per host, as Ansible's; of many hosts, equal rows are one."""
    rows: dict[tuple[Any, ...], list[str]] = {}
    for index, host in enumerate(hosts):
        counts = tuple(host[key] for key in _COUNTS)
        alone = index if len(hosts) <= 24 else 0
        rows.setdefault((counts, _why(host), alone), []).append(str(host["host"]))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    for _ in _COUNTS:
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    trouble = any(counts[2] or counts[3] for counts, _, _ in rows)
    for (counts, why, _), names in rows.items():
        mark = "✗ " if counts[2] or counts[3] else "  " if trouble else ""
        cells = [
            text((f"{key}={count}", {"changed": WARN, "ok": GOOD}.get(key, BAD) if count else QUIET))
            for key, count in zip(_COUNTS, counts, strict=True)
        ]
        grid.add_row(text((mark + phrases.hosts(names), BAD if mark.strip() else STRONG)), *cells, text(why))
    return [grid]


_COUNTS = ("ok", "changed", "unreachable", "failed", "skipped")


def _why(host: Mapping[str, Any]) -> str:
    step = next((step["step"] for step in host["steps"] if step["outcome"] == "failed"), "")
    what = next((failure["code"] or failure["what"] for failure in host["failures"]), "")
    return " ".join(": ".join(word for word in (step, what) if word).splitlines())
