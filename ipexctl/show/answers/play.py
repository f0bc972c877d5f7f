"""The screens of ``play``, and of the step ``command``; what each host did; what no command could store."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

from rich.console import RenderableType

from ipexctl.model.answers import play as answers
from ipexctl.model.json_values import to_json
from ipexctl.model.reports import HostOutcome, LostOutput
from ipexctl.model.text import group_pairs, pluralize
from ipexctl.show import phrases
from ipexctl.show.tables import format_any_answer
from ipexctl.show.typeset import BAD, GOOD, QUIET, STRONG, WARN, AtWidth, Line, Part, outcome, text, whole

_COUNTS = ("ok", "changed", "unreachable", "failed", "skipped")


def format_answer(value: answers.PlayAnswer | answers.PlayListAnswer | answers.CommandAnswer) -> list[RenderableType]:
    """How each step of a play ended (in a dry run nothing was done), its list, or what a command wrote on each host."""
    items: list[RenderableType] = []
    if isinstance(value, answers.PlayListAnswer):
        return format_any_answer({"steps": to_json(value.list_)})
    if isinstance(value, answers.PlayAnswer):
        for step in value.steps:
            items.append(_format_step(step, value.dry))
        return items
    rows = [row for row in value.hosts if isinstance(row, answers.CommandOutput)]
    outputs = group_pairs(((row.status, row.out, row.err), row) for row in rows)  # the same share an entry
    for (status, *output), group in outputs.items():
        names = phrases.format_hosts(row.host for row in group)
        if len(group) > 1:
            names += f" ({len(group)})"
        items.append(outcome(not status, (names, STRONG), f" exit {status}" if status else ""))
        items += [line for part in output if str(part).strip() for line in whole(str(part), 2)]
    return items


def _format_step(step: answers.PlayedStep, dry: bool | None) -> Line:
    if step.exit:
        mark, words = ("✗ ", BAD), [f"exit {step.exit}"]
    else:
        done = step.exit is not None and not dry
        mark, words = ("✓ ", GOOD) if done else ("- ", QUIET), []
    if step.note:
        words.append(step.note)
    elif step.exit is None:
        words.append("not begun")
    return Line(text(mark, step.step, (f"  {', '.join(words)}" if words else "", QUIET)), 2)


def format_recap(hosts: Sequence[HostOutcome]) -> list[RenderableType]:
    """``ok=4 changed=2 unreachable=0 failed=0 skipped=0`` per host, as Ansible's; of many hosts, equal rows are one."""
    alone = {host.host: index for index, host in enumerate(hosts) if len(hosts) <= 24}
    get_counts = attrgetter(*_COUNTS)
    groups = group_pairs(((get_counts(host), _explain_host(host), alone.get(host.host)), host) for host in hosts)
    rows = [
        (phrases.format_hosts(host.host for host in group), counts, why, group[0].good)
        for (counts, why, _), group in groups.items()
    ]
    return [AtWidth(_draw_recap, rows)]


def _draw_recap(width: int, rows: Sequence[tuple[str, tuple[int, ...], str, bool]]) -> Iterator[RenderableType]:
    """A line per host. Where it has no room, why a host failed is below it, then what is 0 is left out."""
    blank = "" if all(good for *_, good in rows) else "  "
    names = max((phrases.count_cells(name) for name, *_ in rows), default=0)
    widths = [max(len(f"{key}={row[1][index]}") for row in rows) for index, key in enumerate(_COUNTS)]
    room = width - len(blank) - names - sum(widths) - 2 * len(widths)
    beside = all(phrases.count_cells(why) + 2 <= room for _, _, why, _ in rows)
    for name, counts, why, good in rows:
        cells = [(f"{key}={count}", count) for key, count in zip(_COUNTS, counts, strict=True)]
        if room >= 0:
            cells = [(f"{cell:<{size}}", count) for (cell, count), size in zip(cells, widths, strict=True)]
        else:
            cells = [cell for cell in cells if cell[1]] or cells[:1]
        styles = {"changed": WARN, "ok": GOOD}
        parts: list[Part] = [(f"{blank}{name:<{names}}", STRONG) if good else (f"✗ {name:<{names}}", BAD)]
        for cell, count in cells:
            parts += ["  ", (cell, styles.get(cell.split("=")[0], BAD) if count else QUIET)]
        line = text(*parts, *(["  ", why] if why and beside else []))
        line.rstrip()
        yield Line(line, 4)
        if why and not beside:
            yield Line(text("    ", why), 4)


def _explain_host(host: HostOutcome) -> str:
    step = next((step.step for step in host.steps if step.outcome == "failed"), "")
    what = next((failure.code or failure.what for failure in host.failures), "")
    return " ".join(": ".join(word for word in (step, what) if word).splitlines())


def format_lost_output(output: LostOutput) -> list[RenderableType]:
    """What the record could not store."""
    parts = [f"{pluralize(count, 'byte')} of rank {rank}" for rank, count in list(output.ranks.items())[:8]]
    if len(output.ranks) > 8:
        parts.append(f"{pluralize(output.bytes, 'byte')} in all")
    if output.events:
        parts.append(pluralize(output.events, "event"))
    return [Line(text(("! ", WARN), f"not stored: {', '.join([*parts, *output.files])} ({output.why})"), 2)]
