"""What people read at the end of a verb, as Rich renderables. Every word from outside goes through `text`.

Rich is imported here: import this module only when a result is to be shown. 80 columns do; nothing depends on colour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from ipexctl.model.errors import Failure
from ipexctl.show import words
from ipexctl.show.pipe import Pipe
from ipexctl.show.sanitise import visible, visible_lines
from ipexctl.show.told import is_dry

Part = str | tuple[str, str]  # words, perhaps with a Rich style

GOOD, BAD, WARN, QUIET, STRONG = "green", "bold red", "yellow", "dim", "bold"


def text(*parts: Part) -> Text:
    """Words in a row, harmless whatever they hold."""
    line = Text()
    for part in parts:
        if isinstance(part, str):
            line.append(visible(part))
        else:
            line.append(visible(part[0]), style=part[1])
    return line


def block(words_: str, style: str = "") -> Text:
    """Several lines, harmless."""
    return Text("\n".join(visible_lines(words_)), style=style)


class Line:
    """A line broken between words (`words.spans`): what is longer than the screen is left to the terminal's own
    wrapping, which a copy does not contain. A ``whole`` one is never broken: a command, a host's line, an output.
    """

    def __init__(
        self, line: Text, hang: int = 0, *, copied: bool = False, whole: bool = False, most: int = 1 << 16
    ) -> None:
        self._line, self._hang, self._copied, self._whole, self._most = line, hang, copied, whole, most

    @property
    def plain(self) -> str:
        return self._line.plain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = 0 if self._whole else min(options.max_width, self._most)
        for index, span in enumerate(words.spans(self._line.plain, width, self._hang, copied=self._copied)):
            part = self._line[slice(*span)]
            part.pad_left(self._hang if index else 0)
            part.no_wrap, part.overflow = not console.record, "fold" if console.record else "ignore"
            yield part


def whole(words_: str, indent: int = 0, style: str = "") -> list[RenderableType]:
    """Lines as they are, for what is copied from the screen."""
    return [Line(text(" " * indent, (line, style)), whole=True) for line in _lines(words_)]


def sentences(words_: str, indent: int = 0, style: str = "") -> list[RenderableType]:
    """Lines broken between words."""
    return [Line(text(" " * indent, (line, style)), indent) for line in _lines(words_)]


def paragraphs(words_: str) -> list[RenderableType]:
    """Prose whose lines were broken elsewhere: a blank line ends a paragraph, an indented line stays one."""
    joined: list[str] = []
    for line in _lines(words_):
        if joined and joined[-1] and line and not line.startswith(" "):
            joined[-1] += f" {line}"
        else:
            joined.append(line)
    return [Line(text(line), copied=line.startswith("fix: "), most=_READABLE) for line in joined]


_READABLE = 100  # cells: longer lines of prose are hard to read


def said(words_: str, *mark: Part) -> list[Line]:
    """Our own talk: a sentence, or several lines that are laid out already."""
    lines = visible_lines(words_)
    return [Line(text(*mark, line), 2, whole=len(lines) > 1) for line in lines]


def failures(every: Iterable[Failure]) -> list[Line]:
    """Failures with the same cause are one."""
    lines: list[Line] = []
    for sentence, more, hint in words.failures(every):
        lines.append(Line(text(("✗ ", BAD), sentence), 4))
        lines += [Line(text(f"  {line}"), 4) for line in more]
        lines += [Line(text(line), 8, copied=True) for line in words.hint_lines(hint)] if hint else []
    return lines


def _lines(words_: str) -> list[str]:
    return visible_lines(words_.rstrip("\n"))


def console(pipe: Pipe, width: int | None = None) -> Console:
    """Rich without markup, emoji and highlighting. A pipe is taken as wide as it needs to be: nothing is wrapped."""
    return Console(
        file=pipe,  # type: ignore[arg-type]  # all that Rich asks of a file
        width=width if width or pipe.isatty() else 1000,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


def put(screen: Console, pipe: Pipe, items: Iterable[RenderableType]) -> None:
    """Prints, without blanks at the ends of lines."""
    with screen.capture() as captured:
        for item in items:
            screen.print(item, crop=False)
    pipe.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
    pipe.flush()


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
        return [*generic(rest), *_proof({"run": "", **value})]
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
    return [_row("saved", str(report["saved"]))] if report.get("saved") else []


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


def _row(label: str, *value: Part, copied: bool = False, room: int = 10) -> RenderableType:
    """A named line; its further lines are below the first."""
    said = text(*value)
    one = " " not in said.plain  # a path stays beside its name
    return Line(text((label.ljust(room), QUIET), " ") + said, room + 1, copied=copied, whole=one)


# doctor -----------------------------------------------------------------------------------------------------------

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
        items += [Line(text(("✗ ", BAD), f"nothing is known of {words.hosts(unknown)}"), 2), ""]
    if findings:
        items += [line for one in findings for line in _finding(one, len(value.get("hosts") or ()))]
        items.append("")
    if value.get("speed"):
        items += [*speed(value["speed"]), ""]
    for done in value.get("fixed") or ():
        items.append(_row("fixed", (words.hosts(done["hosts"]), STRONG), f"  {done['did']}"))
    if value.get("common_isa"):
        items.append(_row("common", (str(value["common_isa"]), STRONG), " on every host that answered"))
    advice = value.get("advice")
    for line in [advice] if isinstance(advice, str) else advice or ():
        items.append(_row("advice", str(line)))
    # What keeps a host from being looked at is counted with the hosts, not once more with the errors.
    counts = Counter(f.get("level") for f in findings if not f.get("hosts") or not set(f["hosts"]) <= set(dark))
    said = [words.plural(counts[level], level) for level in ("error", "warning") if counts[level]]
    said += [f"{words.plural(len(dark), 'host')} could not be looked at"] if dark else []
    fit = bool(rows) and not counts["error"] and not dark
    items.append(_row("fit" if fit else "not fit", (", ".join(said) or "no error, no warning", GOOD if fit else BAD)))
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
            words.size(memory * 1024) if isinstance(memory, int | float) else "?",
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
    every = words.hosts(names)
    if words.cells(every) <= _ROOM:
        return text((every, STRONG))
    return Text("\n").join([text((f"{len(names)} hosts", STRONG)), text((_folded(names, 15), QUIET))])


def _folded(names: Sequence[str], room: int) -> str:
    """``node[01-04,07]``, cut after a whole number."""
    said = words.hosts(names, most=3)
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
        who = words.hosts(named)
    code = f"{mark}  {finding.get('code', '')!s:<6}  "
    title = text((code, style), *([(f"{who}  ", STRONG)] if named else []), *_first_line(finding.get("title", "")))
    evidence, fix = str(finding.get("evidence") or ""), str(finding.get("fix") or "")
    if finding.get("level") == "info":  # good to know, in one line: --explain and --json tell the rest
        evidence, fix = "", "" if fix.startswith("nothing to do") else fix
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


# run --------------------------------------------------------------------------------------------------------------


def card(report: Mapping[str, Any]) -> list[RenderableType]:
    """How a run ended: on success a line per rank or per host, else who failed first, why, and what followed."""
    run = report["run"]
    ranks: list[Mapping[str, Any]] = run["ranks"]
    took = words.duration(run["ended"] - run["started"])
    by = {rank["rank"]: rank for rank in ranks}
    hosts = list(dict.fromkeys(rank["host"] for rank in ranks))
    many = f"{words.plural(len(ranks), 'rank')} on {words.plural(len(hosts), 'host')}"
    items: list[RenderableType] = []
    if run["first"] is not None:
        items += _first_failure(by[run["first"]], run)
        items += _diagnosis(run)
        if run["followers"]:
            items.append(_row("  then", f"failed too: {_ranks_and_hosts(run['followers'], by)}"))
        if run["stopped"]:
            items.append(_row("  then", f"ended by us: {words.plural(len(run['stopped']), 'rank')}"))
    elif run["reason"] == "done" and all(rank["state"] == "ok" for rank in ranks):
        items.append(text(("✓ ", GOOD), f"{many} ended well after {took}"))
        items.append(_summary(ranks))
    elif not run["reason"]:
        items.append(text(f"run {run['run']} goes on: {many} (ipexctl attach {run['run']})"))
    else:
        items.append(text(("✗ ", BAD), f"{_REASONS[run['reason']]} after {took}"))
        items += sentences(run["detail"], 2) if run["detail"] else []
        if run["stopped"]:
            items.append(_row("  ended", f"by us: {words.ranks(run['stopped'])}"))
    if run["first"] is None and run["reason"] not in ("", "done"):
        items += _diagnosis(run)
    gone = [rank["rank"] for rank in ranks if rank["state"] == "lost" or (run["reason"] and rank["state"] == "running")]
    if gone:
        items.append(Line(text(("  ! ", WARN), f"nobody saw the end of {_ranks_and_hosts(gone, by)}"), 4))
    return [*items, *_proof(run)]


_REASONS = {
    "done": "the run ended, not all of it well,",
    "rank": "the run ended because a rank failed,",
    "stopped": "the run was stopped",
    "lost": "the run lost a part of it",
    "limit": "the run reached its limit",
    "launch": "the launch failed",
}


def _first_failure(rank: Mapping[str, Any], run: Mapping[str, Any]) -> list[RenderableType]:
    after = words.duration(rank["at"] - run["started"])
    first = f" (first of {len(run['followers']) + 1} that failed)" if run["followers"] else ""
    items: list[RenderableType] = [
        Line(
            text(("✗ ", BAD), (f"rank {rank['rank']} on {rank['host']} {how(rank)}", STRONG), f" after {after}{first}"),
            2,
        )
    ]
    said = (rank["traceback"] or rank["tail"]).strip("\n") or rank["error"]
    lines = visible_lines(said, "drop")[-_LAST_WORDS:]
    if lines and lines != [""]:
        items += whole("\n".join(lines), 2)
    if rank["error"] and rank["error"] not in said:
        items.append(Line(text(f"  {rank['error']}"), 2))
    if rank.get("kernel"):
        items.append(Line(text(f"  kernel: {rank['kernel']}"), 10))
    if not run.get("diagnosis") and (hint := _hint(rank)):
        items.append(_row("  hint", hint, copied=True))
    return items


_LAST_WORDS = 30


def _diagnosis(run: Mapping[str, Any]) -> list[RenderableType]:
    """What the failure is known as, and what helps."""
    found = run.get("diagnosis")
    if not found:
        return []
    items: list[RenderableType] = [_row("  known", (found["title"], STRONG))]
    items += [_row("", found["why"])] if found["why"] else []
    return [*items, _row("  hint", found["fix"], copied=True)]


def how(rank: Mapping[str, Any]) -> str:
    """``exited with code 3``, ``was killed by SIGSEGV (signal 11)``."""
    if rank["signal"]:
        number = rank["signal"]
        if "out of memory" in rank["error"]:
            return f"was killed ({rank['error'][rank['error'].index('out of memory') :]})"
        name = words.signal_name(number)
        return f"was killed by {name} (signal {number})" if name != f"signal {number}" else f"was killed by {name}"
    return f"exited with code {rank['status']}"


def _hint(rank: Mapping[str, Any]) -> str:
    """Only what the way a rank ended tells by itself."""
    if rank["signal"] == 9 or "out of memory" in rank["error"]:
        return "memory may have run out: fewer ranks there (slots=), or a smaller batch"
    if rank["signal"] == 4:
        return "an instruction this CPU does not have: ipexctl doctor"
    if rank["status"] == 127:
        return "a command or a library was not found: ipexctl doctor"
    return ""


def _ranks_and_hosts(numbers: Sequence[int], by: Mapping[int, Mapping[str, Any]]) -> str:
    where = words.hosts(by[number]["host"] for number in numbers if number in by)
    return f"{words.ranks(numbers)} on {where}"


def _summary(ranks: Sequence[Mapping[str, Any]]) -> RenderableType:
    """A line per rank with its last words; of many, a line per host."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="ellipsis", no_wrap=True)
    by_host: dict[str, list[Mapping[str, Any]]] = {}
    for rank in ranks:
        by_host.setdefault(rank["host"], []).append(rank)
    if len(ranks) <= 16:
        for rank in ranks:
            grid.add_row(f"  rank {rank['rank']}", text(rank["host"]), "exit 0", text((_last(rank), QUIET)))
    else:
        for host, members in list(by_host.items())[:16]:
            numbers = words.ranks([rank["rank"] for rank in members])
            grid.add_row(f"  {numbers}", text(host), "exit 0", text((_last(members[0]), QUIET)))
        if len(by_host) > 16:
            grid.add_row("  …", f"and {len(by_host) - 16} more", "exit 0", "")
    return grid


def _last(rank: Mapping[str, Any]) -> str:
    lines = [line for line in rank["tail"].replace("\r", "\n").split("\n") if line.strip()]
    return visible(lines[-1], "drop") if lines else ""


def _proof(run: Mapping[str, Any]) -> list[RenderableType]:
    items: list[RenderableType] = []
    for host, pids in run["left"].items():
        left = f"{words.plural(len(pids), 'process')} left on {host}: "
        items.append(Line(text(("✗ ", BAD), (left, STRONG), " ".join(map(str, pids))), 2))
    if run["left"]:
        items.append(_row("  hint", f"ipexctl reap {run['run']}", copied=True))
    elif run["proved"]:
        items.append(text(f"0 processes left on {words.plural(len(run['proved']), 'host')}"))
    if run["unproved"]:
        items.append(Line(text(("! ", WARN), f"could not look: {words.hosts(run['unproved'])}"), 2))
    return items


# install, command, play, and everything else ------------------------------------------------------------------------


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
            items.append(_row(key, (words.hosts(value[key]), style)))
    if value.get("venv"):
        items.append(_row("venv", str(value["venv"])))
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
        place = into + (words.hosts(names) if each else "")
        items.append(Line(text(("✓ ", GOOD), (words.hosts(names), STRONG), f"  {what.replace('{}', place)}"), 2))
    return items


def _amount(did: Mapping[str, Any]) -> str:
    """``3 files, 1.2 KiB to {}``, with a place for the directory."""
    said = [f"{words.plural(did['files'], 'file')}, {words.size(did['bytes'])}"] if did["files"] else []
    if did.get("removed"):
        said.append(f"{did['removed']} removed")
    if said:
        return f"{', '.join(said)} {'into' if 'directory' in did else 'to'} {{}}"
    if did.get("changed"):
        return "directories only, to {}"
    same = f"{words.plural(did['same'], 'file')} the same in {{}}" if did.get("same") else ""
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
        items.append(Line(text(mark, (words.hosts(names), STRONG), f"  {stack}{'' if failed else f': {same}'}"), 2))
    return items


def runs(value: Mapping[str, Any]) -> list[RenderableType]:
    """The runs kept on hosts, and directories that nobody looks after."""
    named, silent = list(value.get("hosts") or ()), list(value.get("unreachable") or ())
    answered = [host for host in named if host not in silent]
    items: list[RenderableType] = [_Runs(value["runs"])] if value["runs"] else []
    if not items and answered:
        which = f"on the {words.plural(len(answered), 'host')} that answered" if silent else f"on {_these(len(named))}"
        items.append(text(f"no runs {which}"))
    if value.get("stray"):
        items += ["", _Rows(value["stray"])] if items else [_Rows(value["stray"])]
    return items


def _these(count: int) -> str:
    return "this host" if count == 1 else f"these {count} hosts"


class _Runs:
    """A line per run. What matters least gives way on a narrow screen; id, state and time are never broken."""

    LEAST = ("watchers", "owner", "head", "ranks", "title", "hosts")  # the first gives way first
    TITLE = 20  # its last words may be missing

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = [self._shown(row) for row in rows]

    @staticmethod
    def _shown(row: Mapping[str, Any]) -> dict[str, str]:
        state = f"{row['state']} ({row['reason']})" if row.get("reason") else str(row["state"])
        hosts, few = (words.hosts(map(str, row["hosts"]), most) for most in (3, 1))
        cells = {"run": row["run"], "state": state, "ranks": row["ranks"], "hosts": hosts, "started": row["started"]}
        cells |= {"head": row["head"], "owner": row["owner"], "watchers": row["watchers"], "title": row["title"]}
        cells |= {"few": few}
        return {name: _one_line(cell) for name, cell in cells.items()}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        rows, names = self._rows, [name for name in self._rows[0] if name != "few"]
        if self._room(rows, names) > options.max_width:  # the year, the seconds and hosts after the first are the first
            rows = [row | {"started": row["started"][5:16], "hosts": row["few"]} for row in rows]
        for name in self.LEAST:
            if self._room(rows, names) > options.max_width:
                names.remove(name)
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
        for name in names:
            table.add_column(name, no_wrap=True)
        left = options.max_width - self._room(rows, names) + self.TITLE
        for row in rows:
            cells = [text((row[name], STRONG if name == "run" else "")) for name in names]
            if names[-1] == "title":
                cells[-1].truncate(max(left, self.TITLE), overflow="ellipsis")
            table.add_row(*cells)
        yield table

    def _room(self, rows: list[dict[str, str]], names: list[str]) -> int:
        widths = {name: max(words.cells(cell) for cell in (name, *(row[name] for row in rows))) for name in names}
        return sum((widths | {"title": self.TITLE} if "title" in names else widths).values()) + 2 * len(widths) - 2


def _one_line(value: Any) -> str:
    return " ".join(str(value).splitlines())


def commands(rows: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """What a command said on each host; hosts where it said the same are told together."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        if "failed" not in row:
            groups.setdefault((row["status"], row["out"], row["err"]), []).append(str(row["host"]))
    items: list[RenderableType] = []
    for (status, *said), names in groups.items():
        mark: Part = ("✗ ", BAD) if status else ("✓ ", GOOD)
        items.append(Line(text(mark, (words.hosts(names), STRONG), f" exit {status}" if status else ""), 2))
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
        grid.add_row(text((mark + words.hosts(names), BAD if mark.strip() else STRONG)), *cells, text(why))
    return [grid]


_COUNTS = ("ok", "changed", "unreachable", "failed", "skipped")


def _why(host: Mapping[str, Any]) -> str:
    step = next((step["step"] for step in host["steps"] if step["outcome"] == "failed"), "")
    what = next((failure["code"] or failure["what"] for failure in host["failures"]), "")
    return " ".join(": ".join(word for word in (step, what) if word).splitlines())


def generic(value: Mapping[str, Any]) -> list[RenderableType]:
    """Any answer: its single values as rows, its lists of objects as tables."""
    items: list[RenderableType] = []
    single: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner and all(isinstance(row, Mapping) for row in inner.values()):
            inner = [{key.removesuffix("s"): name, **row} for name, row in inner.items()]
        if isinstance(inner, list | tuple) and inner and all(isinstance(row, Mapping) for row in inner):
            items.append(_Rows(inner))
        elif inner not in (None, "", [], {}, ()):
            single[visible(key.replace("_", " "))] = _flat(inner)
    room = max(map(words.cells, single), default=0) + 1
    named = [
        (name if not index else "", line) for name, said in single.items() for index, line in enumerate(_lines(said))
    ]
    return [*(_row(name, line, room=room) for name, line in named), *items]


class _Rows:
    """Objects as a table, whose last column may be longer than the screen. Where the others leave too little room for
    it, the words of each object are one below the other: nothing is broken.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        shown = [{visible(str(n)): " ".join(_flat(v).splitlines()) for n, v in row.items()} for row in rows]
        self._rows = [{name.replace("_", " "): visible(cell) for name, cell in row.items()} for row in shown]
        every = dict.fromkeys(name for row in self._rows for name in row)
        self._names = [name for name in every if any(row.get(name) for row in self._rows)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if not self._names:
            return
        *widths, last = (max(words.cells(name), *(words.cells(row.get(name, "")) for row in self._rows)) + 2
                         for name in self._names)  # fmt: skip
        before = sum(widths)
        if before + last - 2 <= options.max_width or before <= options.max_width * 0.6:
            yield from self._table(widths, before)
            return
        room = max(map(words.cells, self._names))
        for index, row in enumerate(self._rows):
            yield from [Text("")] if index else []
            yield from (_row(name, row[name], room=room + 1) for name in self._names if row.get(name))

    def _table(self, widths: Sequence[int], before: int) -> Iterator[RenderableType]:
        for style, row in [(QUIET, {name: name for name in self._names}), *(("", row) for row in self._rows)]:
            *cells, last = (row.get(name, "") for name in self._names)
            line = "".join(cell + " " * (width - words.cells(cell)) for cell, width in zip(cells, widths, strict=True))
            yield Line(text((line + last, style)), before, whole=" " not in last)


def _flat(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_flat(inner)}" for key, inner in value.items() if _flat(inner))
    if isinstance(value, list | tuple):
        return ", ".join(_flat(inner) for inner in value)
    return str(value)
