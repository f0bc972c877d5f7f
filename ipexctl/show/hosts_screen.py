"""What `doctor` shows: the hosts, the findings, measured speeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from ipexctl.show import phrases
from ipexctl.show.typeset import (
    BAD,
    GOOD,
    QUIET,
    STRONG,
    WARN,
    Line,
    block,
    labelled,
    sentences,
    text,
)

_LEVELS = {"error": ("E", BAD), "warning": ("W", WARN), "info": ("i", QUIET)}
_COLUMNS = ("host", "CPU", "cores", "memory", "OS", "Python", "stack")
_NAMED = 4
_ROOM = 16  # cells for the hosts of a row
_STACK = (
    ("torch", "torch"),
    ("intel-extension-for-pytorch", "ipex"),
    ("oneccl-bind-pt", "ccl"),
    ("impi-rt", "impi"),
)


def doctor(value: Mapping[str, Any]) -> list[RenderableType]:
    """Hosts that are alike share a row, the commonest first; what differs from it is marked ``≠``."""
    rows: dict[tuple[str, ...], list[str]] = {}
    dark: list[str] = []
    for entry in value.get("hosts") or ():
        name = str(entry.get("host", "?"))
        if entry.get("facts"):
            rows.setdefault(_facts(entry["facts"]), []).append(name)
        else:
            dark.append(name)
    items: list[RenderableType] = []
    if rows:
        items += [_HostsTable(rows), ""]
    findings = sorted(
        value.get("findings") or (), key=lambda f: (tuple(_LEVELS).index(f.get("level", "info")), f.get("code", ""))
    )
    explained = {host for finding in findings for host in finding.get("hosts") or ()}
    if unknown := [host for host in dark if host not in explained]:
        items += [Line(text(("✗ ", BAD), f"nothing is known of {phrases.hosts(unknown)}"), 2), ""]
    if findings:
        items += [line for one in findings for line in _finding(one, len(value.get("hosts") or ()))]
        items.append("")
    if value.get("speed"):
        items += [*speed(value["speed"]), ""]
    for done in value.get("fixed") or ():
        items.append(labelled("fixed", (phrases.hosts(done["hosts"]), STRONG), f"  {done['did']}"))
    if value.get("common_isa"):
        items.append(labelled("common", (str(value["common_isa"]), STRONG), " on every host that answered"))
    advice = value.get("advice")
    for line in [advice] if isinstance(advice, str) else advice or ():
        items.append(labelled("advice", str(line)))
    # What keeps a host from being looked at is counted with the hosts, not once more with the errors.
    counts = Counter(f.get("level") for f in findings if not f.get("hosts") or not set(f["hosts"]) <= set(dark))
    said = [phrases.plural(counts[level], level) for level in ("error", "warning") if counts[level]]
    said += [f"{phrases.plural(len(dark), 'host')} could not be looked at"] if dark else []
    fit = bool(rows) and not counts["error"] and not dark
    items.append(
        labelled("fit" if fit else "not fit", (", ".join(said) or "no error, no warning", GOOD if fit else BAD))
    )
    return items


def _facts(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """One row of the table but its host; ``?`` where the host could not tell."""

    def said(value: Any) -> str:
        return "?" if value is None else str(value)

    cores = "×".join(said(facts.get(key)) for key in ("sockets", "cores_per_socket", "threads_per_core"))
    memory, numa = facts.get("mem_total_kb"), facts.get("numa")
    installed = facts.get("installed") or {}
    packages = installed.get("packages") or {}
    python = installed.get("python") or next(
        (p.get("version") for p in facts.get("pythons") or () if p.get("usable", True)), None
    )
    model, glibc = facts.get("uarch") or facts.get("model_name"), facts.get("glibc")
    return (
        _two(said(facts.get("isa_level")), _short(str(model)) if model else ""),
        cores if cores != "?×?×?" else "?",
        _two(
            phrases.size(memory * 1024) if isinstance(memory, int | float) else "?",
            "? NUMA" if numa is None else f"{len(numa)} NUMA",
        ),
        _two(said(facts.get("distribution")).replace(" GNU/Linux", ""), f"glibc {glibc}" if glibc else ""),
        said(python),
        "\n".join(f"{short} {packages[name]}" for name, short in _STACK if name in packages) or "none",
    )


def _two(first: str, second: str) -> str:
    return f"{first}\n{second}" if second else first


def _short(model: str) -> str:
    for noise in ("(R)", "(TM)", "(tm)", " Processor", " CPU", "Intel ", "AMD "):
        model = model.replace(noise, "")
    return " ".join(model.split("@")[0].split())


class _HostsTable:
    """A row per kind of host: of several kinds, what differs from the commonest one is marked."""

    def __init__(self, rows: Mapping[tuple[str, ...], list[str]]) -> None:
        self._rows = sorted(rows.items(), key=lambda row: -len(row[1]))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        rows = self._rows
        most = rows[0][0] if len(rows) > 1 and len(rows[0][1]) > len(rows[1][1]) else None
        space = 1 if options.max_width < 100 else 2
        table = Table(box=None, padding=(0, space, 0, 0), pad_edge=False, header_style=QUIET)
        for name in _COLUMNS:
            table.add_column(name, overflow="fold", no_wrap=name in ("host", "cores", "memory", "Python"))
        for row, names in rows:
            cells = [_names(names)]
            for index, cell in enumerate(row):
                differs = most is not None and row != most and cell != most[index]
                cells.append(block("≠ " + cell, STRONG) if differs else block(cell))
            table.add_row(*cells)
        yield table


def _names(names: list[str]) -> Text:
    """The hosts on one line, so that none stands beside facts that are those of all of them; where they need more room,
    how many there are, and their names as far as there is room."""
    every = phrases.hosts(names)
    if phrases.cells(every) <= _ROOM:
        return text((every, STRONG))
    return Text("\n").join([text((f"{len(names)} hosts", STRONG)), text((_folded(names, 15), QUIET))])


def _folded(names: Sequence[str], room: int) -> str:
    """``node[01-04,07]``, cut after a whole number."""
    said = phrases.hosts(names, most=3)
    if len(said) <= room:
        return said
    cut = max(said.rfind(mark, 0, room) for mark in ",[ ") + 1
    return said[: cut or room].rstrip(", ") + ",…" + ("]" if "[" in said[:cut] else "")


def _finding(finding: Mapping[str, Any], count: int) -> list[RenderableType]:
    """Code, hosts and what is wrong; below, what shows it and what helps."""
    mark, style = _LEVELS.get(finding.get("level", "info"), ("i", QUIET))
    named = [str(host) for host in finding.get("hosts") or ()]
    if len(named) == count > 1:
        who = "every host"
    elif len(named) > _NAMED:
        who = f"{len(named)} of {count} hosts: {_folded(named, 32)}"
    else:
        who = phrases.hosts(named)
    code = f"{mark}  {finding.get('code', '')!s:<6}  "
    title = text((code, style), *([(f"{who}  ", STRONG)] if named else []), *_first_line(finding.get("title", "")))
    evidence, fix = str(finding.get("evidence") or ""), str(finding.get("fix") or "")
    if finding.get("level") == "info":  # good to know, in one line: --explain and --json tell the rest
        evidence, fix = "", fix if finding.get("action", True) else ""
    hang = len(code)
    items: list[RenderableType] = [Line(title, hang)]
    items += sentences(evidence, hang, QUIET) if evidence else []
    if fix:
        items.append(Line(text(" " * hang, "fix: ", *_first_line(fix)), hang, copied=True))
    return items


_BARS = 16  # hosts that have a row each; of more, the slowest and the median
_FIGURES = (("fp32", "fp32", 1.0), ("bf16", "bf16", 1.0), ("memory", "memory", 1e9), ("network", "network", 1e6))


def speed(value: Mapping[str, Any]) -> list[RenderableType]:
    """What ``--bench`` measured, as bars: the longest is the fastest host's."""
    rows = {str(host["host"]): dict(host) for host in value.get("hosts") or ()}
    pairs = [pair for pair in value.get("pairs") or () if pair.get("rate")]
    for pair in pairs:
        for name in (pair["first"], pair["second"]):
            if name in rows:
                rows[name]["network"] = max(rows[name].get("network") or 0.0, pair["rate"])
    best = {key: max((row.get(key) or 0.0 for row in rows.values()), default=0.0) for key, *_ in _FIGURES}
    columns = [(key, title, unit) for key, title, unit in _FIGURES if best[key]]
    if not columns:
        return []
    names = list(rows)
    if len(rows) > _BARS:
        names.sort(key=lambda name: min((rows[name].get(key) or 0.0) / best[key] for key, *_ in columns))
        rows["median"] = {key: median([row[key] for row in rows.values() if row.get(key)]) for key, *_ in columns}
        names = [*names[: _BARS // 2], "median"]
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(len(columns) + 1):
        grid.add_column(no_wrap=True)
    grid.add_row(text(("speed", QUIET)), *(text((_headed(key, title, best[key]), QUIET)) for key, title, _ in columns))
    for name in names:
        cells = [_bar(rows[name].get(key), best[key], unit) for key, _, unit in columns]
        grid.add_row(text((name, STRONG)), *cells)
    items: list[RenderableType] = [grid]
    if len(value.get("hosts") or ()) > _BARS:
        items.append(text((f"the {_BARS // 2} slowest of {len(value['hosts'])} hosts", QUIET)))
    delays = [pair["latency"] for pair in pairs if pair.get("latency")]
    if delays:
        items.append(text((f"between hosts: {pairs[0]['tool']}, {median(delays) * 1e6:.0f} µs", QUIET)))
    return items


def _headed(key: str, title: str, best: float) -> str:
    units = {"memory": "GB/s", "network": "MB/s"}
    return f"{title} {units.get(key) or ('Tflop/s' if best >= 1000 else 'Gflop/s')}"


def _bar(value: float | None, best: float, unit: float) -> Text:
    if not value:
        return text(("-", QUIET))
    eighths = max(1, round(64 * value / best))
    bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    shown = value / (1000.0 if unit == 1.0 and best >= 1000 else unit)
    number = f"{shown:.2f}" if shown < 10 else f"{shown:.1f}" if shown < 100 else f"{shown:.0f}"
    slow = value < 0.85 * best
    return text((bar, WARN if slow else GOOD), " " * (9 - len(bar)), number)


def _first_line(value: Any) -> list[str]:
    return [" ".join(str(value).splitlines())]
