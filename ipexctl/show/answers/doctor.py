"""The screen of ``doctor``: the hosts, the findings, measured speeds."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ipexctl.model.answers.doctor import DoctorAnswer, ExplainAnswer, SpeedCheck
from ipexctl.model.facts import Facts
from ipexctl.model.reports import Finding
from ipexctl.model.text import format_size, group_pairs, pluralize
from ipexctl.show import phrases, typeset
from ipexctl.show.sanitise import escape_lines, one_line
from ipexctl.show.typeset import BAD, GOOD, QUIET, STRONG, WARN, AtWidth, Line, labelled, outcome, sentences, text

_LEVELS = {"error": ("E", BAD), "warning": ("W", WARN), "info": ("i", QUIET)}
_COLUMNS = ("host", "CPU", "cores", "memory", "OS", "Python", "stack")
_NAMED = 4
_HOST_CELLS = 16  # cells for the hosts of a row
_STACK = (("torch", "torch"), ("intel-extension-for-pytorch", "ipex"), ("oneccl-bind-pt", "ccl"), ("impi-rt", "impi"))


def format_answer(answer: DoctorAnswer | ExplainAnswer) -> list[RenderableType]:
    """Equal hosts share a row, the commonest first; what differs from it is marked ``≠``. The gravest finding and what
    fixes it come last: they stay on a small screen."""
    if isinstance(answer, ExplainAnswer):
        return typeset.format_paragraphs(answer.text)
    rows = group_pairs((_format_host_row(entry.facts), entry.host) for entry in answer.hosts if entry.facts)
    unprobed = [entry.host for entry in answer.hosts if not entry.facts]
    items: list[RenderableType] = [AtWidth(_draw_hosts, rows), ""] if rows else []
    findings = sorted(answer.findings, key=lambda finding: (-tuple(_LEVELS).index(finding.level), finding.code))
    explained = {host for finding in findings for host in finding.hosts}
    if unknown := [host for host in unprobed if host not in explained]:
        items += [outcome(False, f"nothing is known of {phrases.format_hosts(unknown)}"), ""]
    if answer.speed:
        items += [*format_speed(answer.speed), ""]
    items += [
        labelled("fixed", (phrases.format_hosts(fix.hosts), STRONG), f"  {fix.action}") for fix in answer.fixed or ()
    ]
    if answer.common_isa:
        level = "below AVX2" if answer.common_isa == "below" else answer.common_isa
        items.append(labelled("common", (level, STRONG), " on every host that answered"))
    items += [labelled("advice", line) for line in answer.advice]
    if findings and (answer.common_isa or answer.advice):
        items.append("")
    items += [line for finding in findings for line in _format_finding(finding, len(answer.hosts))]
    if findings:
        items.append("")
    # What keeps a host from being probed is counted with the hosts, not once more with the errors.
    counts: Counter[str] = Counter(
        finding.level for finding in findings if not finding.hosts or not {*finding.hosts} <= {*unprobed}
    )
    parts = [pluralize(counts[level], level) for level in ("error", "warning") if counts[level]]
    if unprobed:
        parts.append(f"{pluralize(len(unprobed), 'host')} could not be probed")
    words = ", ".join(parts) or "no error, no warning"
    if not rows or counts["error"] or unprobed:
        return [*items, labelled("not fit", (words, BAD))]
    return [*items, labelled("fit", (words, WARN if counts["warning"] else GOOD))]


def _format_host_row(facts: Facts) -> tuple[str, ...]:
    """One row of the table but its host; ``?`` for what is not known."""

    def shown(value: object) -> str:
        return "?" if value is None else str(value)

    cores = "×".join(map(shown, (facts.sockets, facts.cores_per_socket, facts.threads_per_core)))
    memory, numa, installed = facts.mem_total_kb, facts.numa, facts.installed
    packages = installed.packages if installed else {}
    usable = next((python.version for python in facts.pythons if python.usable), None)
    model = facts.uarch or facts.model_name
    return (
        _join_lines(shown(facts.isa_level), _shorten_model(model) if model else ""),
        cores if cores != "?×?×?" else "?",
        f"{'?' if memory is None else format_size(memory * 1024)}\n{'?' if numa is None else len(numa)} NUMA",
        _join_lines(shown(facts.distribution).replace(" GNU/Linux", ""), f"glibc {facts.glibc}" if facts.glibc else ""),
        shown((installed and installed.python) or usable),
        "\n".join(f"{short} {packages[name]}" for name, short in _STACK if name in packages) or "none",
    )


def _join_lines(first: str, second: str) -> str:
    return f"{first}\n{second}" if second else first


def _shorten_model(model: str) -> str:
    for noise in ("(R)", "(TM)", "(tm)", " Processor", " CPU", "Intel ", "AMD "):
        model = model.replace(noise, "")
    return " ".join(model.split("@")[0].split())


def _draw_hosts(width: int, groups: Mapping[tuple[str, ...], list[str]]) -> Iterator[RenderableType]:
    """A row per kind of host: of several kinds, what differs from the commonest one is marked."""
    rows = sorted(groups.items(), key=lambda row: -len(row[1]))
    most = rows[0][0] if len(rows) > 1 and len(rows[0][1]) > len(rows[1][1]) else None
    space = 1 if width < 100 else 2
    if _measure([(_format_group_names(names).plain, *_mark(row, most)) for row, names in rows], space) > width:
        for row, names in rows:
            yield Line(text((phrases.format_hosts(names, most=3), STRONG)), 2)
            cpu, cores, memory, system, python, stack = (" · ".join(cell.split("\n")) for cell in _mark(row, most))
            for facts in (cpu, f"{cores} cores · {memory}", system, f"Python {python}", f"stack: {stack}"):
                yield Line(text(f"  {facts}"), 4)
        return
    table = Table(box=None, padding=(0, space, 0, 0), pad_edge=False, header_style=QUIET)
    for name in _COLUMNS:
        table.add_column(name, overflow="fold", no_wrap=name in ("host", "cores", "memory", "Python"))
    for row, names in rows:
        cells = [Text("\n".join(escape_lines(cell)), STRONG * cell.startswith("≠ ")) for cell in _mark(row, most)]
        table.add_row(_format_group_names(names), *cells)
    yield table


def _measure(rows: Sequence[Sequence[str]], space: int) -> int:
    """The cells of the table with nothing broken."""
    columns = zip(_COLUMNS, *rows, strict=True)
    widths = [max(phrases.count_cells(line) for cell in column for line in cell.split("\n")) for column in columns]
    return sum(widths) + space * (len(widths) - 1)


def _mark(row: Sequence[str], most: Sequence[str] | None) -> list[str]:
    """The cells, those that differ from the commonest row marked."""
    return [cell if most is None or row == most or cell == most[n] else f"≠ {cell}" for n, cell in enumerate(row)]


def _format_group_names(names: list[str]) -> Text:
    """The hosts on one line, so that none stands beside facts that are those of all of them; where they need more room,
    how many there are, and their names as far as there is room."""
    every = phrases.format_hosts(names)
    if phrases.count_cells(every) <= _HOST_CELLS:
        return text((every, STRONG))
    return Text("\n").join([text((pluralize(len(names), "host"), STRONG)), text((_fold_names(names, 15), QUIET))])


def _fold_names(names: Sequence[str], room: int) -> str:
    """``node[01-04,07]``, cut after a whole number."""
    shown = phrases.format_hosts(names, most=3)
    if len(shown) <= room:
        return shown
    cut = max(shown.rfind(mark, 0, room) for mark in ",[ ") + 1
    return shown[: cut or room].rstrip(", ") + ",…" + ("]" if "[" in shown[:cut] else "")


def _format_finding(finding: Finding, count: int) -> list[RenderableType]:
    """Code, hosts and what is wrong; below, the evidence and the fix."""
    mark, style = _LEVELS[finding.level]
    names = finding.hosts
    who = "every host" if len(names) == count > 1 else phrases.format_hosts(names)
    if _NAMED < len(names) < count:
        who = f"{len(names)} of {count} hosts: {_fold_names(names, 32)}"
    code = f"{mark}  {finding.code:<6}  "
    title = text((code, style), *([(f"{who}  ", STRONG)] if names else []), one_line(finding.title))
    evidence, fix = finding.evidence, finding.fix
    if finding.level == "info":  # good to know, in one line: --explain and --json have the details
        evidence, fix = "", fix if finding.action else ""
    hang = len(code)
    items: list[RenderableType] = [Line(title, hang), *(sentences(evidence, hang, QUIET) if evidence else [])]
    first, *more = fix.splitlines() or [""]
    if first:
        items.append(Line(text(" " * hang, "fix: ", one_line(first)), hang, copied=True))
    return [*items, *(Line(text(" " * hang, line), whole=True) for line in more)]


_BARS = 16  # hosts that have a row each; of more, the slowest and the median
_FIGURES = {"fp32": 1.0, "bf16": 1.0, "memory": 1e9, "network": 1e6}  # and their units


def format_speed(check: SpeedCheck) -> list[RenderableType]:
    """What ``--bench`` measured, as bars: the longest is the fastest host's."""
    rows: dict[str, dict[str, float]] = {
        host.host: {"fp32": host.fp32 or 0.0, "bf16": host.bf16 or 0.0, "memory": host.memory or 0.0, "network": 0.0}
        for host in check.hosts
    }
    for pair in check.pairs:
        for name in (pair.first, pair.second):
            if name in rows:
                rows[name]["network"] = max(rows[name]["network"], pair.rate or 0.0)
    best = {key: max((row[key] for row in rows.values()), default=0.0) for key in _FIGURES}
    columns = [key for key in _FIGURES if best[key]]
    if not columns:
        return []
    names = list(rows)
    if len(rows) > _BARS:
        names.sort(key=lambda name: min(rows[name][key] / best[key] for key in columns))
        rows["median"] = {key: median([row[key] for row in rows.values() if row[key]]) for key in columns}
        names = [*names[: _BARS // 2], "median"]
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(1 + len(columns)):
        table.add_column(no_wrap=True)
    units = {key: "Tflop/s" if best[key] >= 1000 else "Gflop/s" for key in columns} | {
        "memory": "GB/s",
        "network": "MB/s",
    }
    table.add_row(text(("speed", QUIET)), *(text((f"{key} {units[key]}", QUIET)) for key in columns))
    for name in names:
        table.add_row(text((name, STRONG)), *(_draw_bar(rows[name][key], best[key], _FIGURES[key]) for key in columns))
    items: list[RenderableType] = [table]
    if len(check.hosts) > _BARS:
        items.append(text((f"the {_BARS // 2} slowest of {len(check.hosts)} hosts", QUIET)))
    measured = [pair for pair in check.pairs if pair.rate]
    delays = [pair.latency for pair in measured if pair.latency]
    if delays:
        items.append(text((f"between hosts: TCP, {median(delays) * 1e6:.0f} µs", QUIET)))
    return items


def _draw_bar(value: float, best: float, unit: float) -> Text:
    if not value:
        return text(("-", QUIET))
    bar = phrases.draw_bar(value, best, 8)
    shown = value / (1000.0 if unit == 1.0 and best >= 1000 else unit)
    decimals = 2 - (shown >= 10) - (shown >= 100)
    return text((bar, WARN if value < 0.85 * best else GOOD), " " * (9 - len(bar)), f"{shown:.{decimals}f}")
