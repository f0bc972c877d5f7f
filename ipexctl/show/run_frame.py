"""The frame of a run: header, verdict of a stall, a row per rank or host, a rank's log, unusual lines, keys."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from ipexctl.model.errors import advise, complete_hint
from ipexctl.model.harmless import find_harmless, read_harmless
from ipexctl.model.run_state import RankState, RunState
from ipexctl.model.text import format_clock, format_cpus, format_ranks, format_size, group_pairs, join_names, pluralize
from ipexctl.show import phrases
from ipexctl.show.frame_lines import draw_rule, draw_sparkline, fill_cells, fit_bar, justify_ends, make_row
from ipexctl.show.rank_log import format_line
from ipexctl.show.sanitise import escape, one_line
from ipexctl.show.typeset import BAD, GOOD, QUIET, STRONG, WARN, Part
from ipexctl.show.view import View

_SILENCE_SECONDS = 30.0  # seconds without a sign after which a rank's silence is shown
_SLOW, _FAST = 0.8, 1.25  # shares of the median pace beyond which a rank's own share is shown
_STALE_SECONDS = 10.0  # seconds without a step after which a pace is 0; five steps where those take longer
_SPARK, _WIDE_SPARK = 12, 24  # cells of a sparkline
_LAST = 30  # cells that a last line needs to be worth its place beside figures
_HIDDEN = 50  # lines of a rank beyond those shown that are searched for harmless ones

_KEYS = (  # keys, what they do, the same for a narrow screen
    ("↑ ↓ j k", "the rank, or the host, above and below", "another rank or host"),
    ("tab", "the next rank that others wait for or that failed", "next stalled or failed"),
    ("r", "a rank by its number", "a rank by its number"),
    ("Enter", "a host's ranks; a rank's log on the whole screen", "its ranks; its log"),
    ("PgUp PgDn g G", "leaf through the log; G follows it again", "the log; G follows it"),
    ("/ n N", "search the log: upwards, on, downwards", "search up, on, down"),
    ("w", "known harmless lines: how many, and why", "harmless lines"),
    ("space", "pause the screen; the run goes on", "pause the screen"),
    ("d", "detach: the run goes on without this screen", "detach; the run goes on"),
    ("Esc", "back", "back"),
    ("Ctrl-C", "stop the run; once more: kill it", "stop; once more: kill"),
    ("Ctrl-Z", "suspend this screen; the run goes on", "suspend this screen"),
)
_KEY_CELLS = 15


def draw_run(view: View, width: int, height: int, now: float) -> RenderableType:
    """At most ``height`` lines of ``width`` cells; ``now`` on the clock of the stamps."""
    state = view.state
    alone = view.full_screen or view.panel == "keys"
    unusual = [] if alone else _draw_unusual(state, width, min(max(height // 5, 2), 10))
    restart = [part for line in phrases.format_restart(state, now) for part in phrases.fold_line(line, width - 2, 2)]
    verdict = _make_verdict_rows([one_line(line) for line in restart], QUIET) + _draw_silence(state, width, now)
    verdict += _draw_verdict(state, width, max(height // 2, 1), now)
    verdict += [] if alone else _draw_warnings(state, width, max(height // 10, 1))
    room = height - 2 - len(verdict) - len(unusual)
    rows = min(max(room // 2, 3), max(len(state.ranks), 1))
    grid = [] if alone else _draw_ranks(view, width, rows, now, headed=height >= 14)
    pane = _draw_pane(view, width, max(room - len(grid) - 1, 1))
    lines = [_draw_header(state, width, now), *verdict, *grid, *pane, *unusual]
    return Group(*lines[: height - 1], _draw_footer(view, width))


def _draw_header(state: RunState, width: int, now: float) -> Text:
    assert state.attempt is not None
    run = state.attempt.started
    clock = format_clock(now - state.begun)
    title = one_line(state.heading)
    hosts = dict.fromkeys(rank.host for rank in state.ranks)
    isas = {isa for host in hosts if (isa := run.isas.get(host))}
    parts = [f"{pluralize(len(state.ranks), 'rank')} on {pluralize(len(hosts), 'host')}" if hosts else ""]
    spares = {*(state.run.launch.spares if state.run.launch else ())}.difference(hosts)
    if hosts and spares:
        parts[0] += f" + {pluralize(len(spares), 'spare')}"
    isa = "mixed ISA" if len(isas) > 1 else "".join(isas)
    parts += [phrases.format_backend(state.attempt.backend, run.backend), run.precision, isa]
    parts = [one_line(part) for part in parts if part]
    right = f"{one_line(run.run)}  {clock}"
    if cell_len(title + right) + 2 > width:  # the clock before the id
        right = clock
    while parts and cell_len(title + right) + len(" · ".join(parts)) + 5 > width:
        parts.pop()
    return justify_ends(width, title, right, f"   {' · '.join(parts)}" if parts else "")


def _draw_silence(state: RunState, width: int, now: float) -> list[Text]:
    """That this machine hears nothing of the run: what the rows show is of before."""
    attempt = state.attempt
    if attempt is None or attempt.unheard_since is None:
        return []
    silent = _format_age(now - attempt.unheard_since)
    text = one_line(f"no connection to {attempt.started.head} for {silent}: the rows show the run as it was then")
    return _make_verdict_rows(phrases.fold_line(text, width - 2), WARN)


def _draw_verdict(state: RunState, width: int, most: int, now: float) -> list[Text]:
    """Why ranks stall, work apart or compute nothing, and how to end the run, from here and from elsewhere."""
    attempt = state.attempt
    if attempt is None:
        return []
    lost = (attempt.lost_loss.text,) if attempt.lost_loss else ()
    separate = (*lost, *((attempt.separate.text, *attempt.separate.causes) if attempt.separate else ()))
    stall = attempt.stall.list_lines(now) if attempt.stall and not attempt.lost else ()
    if stall and attempt.silent and attempt.unheard_since is None:  # what is known of its ranks is of before
        silent = _format_age(now - min(attempt.silent.values()))
        stall = (f"no sign of life from {join_names([*attempt.silent], 3)} for {silent}: the others may wait for it",)
    end = "end it: Ctrl-C"
    if attempt.stall and attempt.stall.event.limit:
        left = max(attempt.stall.event.limit - attempt.stall.measure_silence(now), 0.0)
        end = f"the run ends in {left:.0f} s; at once: Ctrl-C"
    slow = attempt.slowdown.verdict if attempt.slowdown else None
    reasons = [escape(line) for line in stall or (*separate, *(slow.lines if slow else ()))]
    run, room = attempt.started.run, width - 2
    lines = [part for line in reasons for part in _fold_reason(line, room)]
    stacks = f"stacks: {complete_hint(advise('logs', run, '--stacks'), state.selection_flags)}"
    stop = f"{end} here, or {complete_hint(advise('stop', run), state.selection_flags)}"
    if not stall:
        if lost and cell_len(stop) <= room:
            lines.append(one_line(stop))
        return _make_verdict_rows(lines[:most], WARN)
    steps = [one_line(words) for words in (stacks, stop) if cell_len(words) <= room]
    steps = steps if len(steps) > 1 else [*steps, end]
    least = max(most - len(steps), 1)
    if len(lines) > least:  # the ranks that others wait for come last: what is behind the first line gives way
        tail = lines[-(least - 1) :] if least > 1 else []
        lines = [lines[0], *tail]
    return _make_verdict_rows([*lines, *steps][:most], BAD)


# Codes of warnings that the frame has in other rows, or that pass.
_ELSEWHERE = {"stalled", "never-met", "lost-loss", "slow-host", "restart", "hosts-left-out", "disconnected",
              "keeper-silent", "stop", "kill"}  # fmt: skip


def _draw_warnings(state: RunState, width: int, most: int) -> list[Text]:
    """The newest warning, and how many there are: what is printed above the frame scrolls away as it grows."""
    texts = [text for text, code in state.warnings.items() if code not in _ELSEWHERE]
    if not texts:
        return []
    count = f"{len(texts)} warnings: " if len(texts) > 1 else ""
    lines = phrases.fold_line(count + one_line(texts[-1]), width - 2)
    last = [fill_cells(" ".join(lines[most - 1 :]), width - 2)] if len(lines) > most else lines[most - 1 :]
    rows = [*lines[: most - 1], *last]
    return [make_row(("! " if number == 0 else "  ", WARN), line) for number, line in enumerate(rows)]


_COMMAND = re.compile(r" *(?:ipexctl|sudo) ")
_WORD = re.compile(r"(?:'[^']*'|\"[^\"]*\"|\S){1,100000}")  # of a shell
_GOES_ON = " \\"  # ends a line of a command; the next one stands without a mark


def _fold_reason(line: str, room: int) -> list[str]:
    """The lines of a reason. No terminal wraps a frame: a command ends its lines but the last in a backslash, so that a
    copy of them is one command."""
    lines: list[str] = []
    for part in phrases.fold_line(line, room, 4):
        start = _COMMAND.match(part)
        if not start or cell_len(part) <= room:
            lines.append(part)
            continue
        first, *words = [word.group() for word in _WORD.finditer(part)]
        lines.append(part[: len(part) - len(part.lstrip())] + first)
        for word in words:
            if cell_len(lines[-1] + word) + 3 <= room:
                lines[-1] += " " + word
            else:
                lines[-1] += _GOES_ON
                lines.append(f"      {word}")
    return lines


def _make_verdict_rows(lines: list[str], style: str) -> list[Text]:
    before = ["", *lines]
    marks = [() if each.endswith(_GOES_ON) else (("▌ ", style),) for each in before]
    return [make_row(*mark, line) for mark, line in zip(marks, lines, strict=False)]


# rows


def _draw_ranks(view: View, width: int, rows: int, now: float, *, headed: bool) -> list[Text]:
    """A row per rank, or per host, or per group of hosts in the same state: the finest that fits."""
    unheard = view.state.attempt.unheard_since if view.state.attempt else None
    now = now if unheard is None else min(now, unheard)
    shown, folded = _group_ranks(view, rows, now)
    columns = _make_columns(view, shown, now)
    gap = "  " if width >= _CRAMPED_WIDTH else " "
    widths = _choose_columns(columns, width, len(gap))
    lines = []
    if headed and shown:
        cells = [_align_cell(name, " rank" if name == "rank" else name, size) for name, size in widths.items()]
        lines.append(make_row((gap.join(cells).rstrip(), QUIET)))
    for index in range(len(shown)):
        parts: list[Part] = []
        for name, size in widths.items():
            words, style = columns[name][index]
            words = fit_bar(words, size) if name == "last line" else words
            parts += [(_align_cell(name, words, size), style), gap]
        lines.append(make_row(*parts[:-1]))
        lines[-1].rstrip()
        if unheard is not None:
            lines[-1].stylize(QUIET)
    if folded:
        hosts = {rank.host for group in folded for rank in group}
        where = "on %s" if len(hosts) == len(folded) else "in %s"
        others = pluralize(len(folded), "other host" if len(hosts) == len(folded) else "other state")
        lines.append(make_row((f" … and {pluralize(sum(map(len, folded)), 'rank')} {where % others}", QUIET)))
    return lines


_RIGHT = ("step", "loss", "it/s", "×", "cpu", "memory")


def _align_cell(name: str, words: str, size: int) -> str:
    """A cell, cut or filled to its width; numbers end at its right edge, and of a pace the latest counts."""
    if name == "pace":
        return fill_cells(words[-size:], size)
    missing = size - cell_len(words)
    return " " * missing + words if missing > 0 and name in _RIGHT else fill_cells(words, size)


def _group_ranks(view: View, rows: int, now: float) -> tuple[list[list[RankState]], list[list[RankState]]]:
    """The ranks of each row, and those for which there is no row."""
    state = view.state
    ranks = [rank for rank in state.ranks if not view.host or rank.host == view.host]
    groups = [[rank] for rank in ranks]
    if len(groups) > rows or view.by_host:
        by_host = list(group_pairs((rank.host, rank) for rank in ranks).values())
        # The odd ones out keep a row of their own where there is room for it.
        groups = by_host if len(by_host) > 1 or view.by_host else groups
    if len(groups) > rows:
        suspects = view.suspects
        states = group_pairs(((rank.rank in suspects, _describe_rank(state, rank, now)[:2]), rank) for rank in ranks)
        if len(states) > 1:
            # Those that the others wait for, and a few ranks that are not where the others are, come first.
            ordered = sorted(states.items(), key=lambda state: (not state[0][0], len(state[1])))
            groups = [group for _, group in ordered]
    if len(groups) <= rows:
        return groups, []
    followed = view.followed
    first = next((n for n, group in enumerate(groups) if followed in group), 0) if view.keys else 0
    first = max(0, min(first - rows // 2, len(groups) - (rows - 1)))
    shown = groups[first : first + rows - 1]
    return shown, [*groups[:first], *groups[first + rows - 1 :]]


Cells = dict[str, list[tuple[str, str]]]  # by column, a cell per row with its style


def _make_columns(view: View, groups: Sequence[Sequence[RankState]], now: float) -> Cells:
    state = view.state
    running = [rank for rank in state.ranks if rank.ended is None]
    paces = [pace for rank in running if (pace := find_pace(rank, now)) is not None]
    usual = median(paces) if len(paces) > 2 else 0.0
    top = max((pace for rank in state.ranks for pace in (rank.best, *(pace for _, pace in rank.paces))), default=0.0)
    followed = view.followed if view.keys else None
    suspects = view.suspects
    columns: Cells = {}

    def add(name: str, make: Callable[[Sequence[RankState]], tuple[str, str]]) -> None:
        cells = [make(group) for group in groups]
        if any(words for words, _ in cells):
            columns[name] = cells

    def number(group: Sequence[RankState]) -> tuple[str, str]:
        suspect = any(rank.rank in suspects for rank in group)
        chosen = "›" if followed in group else " "
        return f"{chosen}{_summarise_numbers(group)}{' ◀' if suspect else ''}", BAD if suspect else STRONG

    def list_group_paces(group: Sequence[RankState]) -> list[float | None]:
        return [find_pace(rank, now) for rank in group if rank.ended is None]

    def share(group: Sequence[RankState]) -> tuple[str, str]:
        words = _format_known(list_group_paces(group), median, partial(_format_share, usual=usual)) if usual else ""
        return words, WARN if words.startswith("×0") else ""

    def isa(group: Sequence[RankState]) -> tuple[str, str]:
        return one_line(state.attempt.started.isas.get(group[0].host, "")) if state.attempt else "", ""

    def script_line(group: Sequence[RankState]) -> tuple[str, str]:
        guilty = (rank for rank in group if rank.rank in suspects or (rank.ended and not rank.ended.cause))
        return one_line(next((rank.line for rank in guilty), "")), BAD

    def last(group: Sequence[RankState]) -> tuple[str, str]:
        line, style = script_line(group)
        return (line, style) if line else (_find_last_line(state, min(group, key=lambda rank: rank.rank)), "")

    add("rank", number)
    add("host", lambda group: (phrases.format_hosts((rank.host for rank in group), 2), ""))
    add("isa", isa)
    add("stage", lambda group: _describe_group(state, group, now))
    add("step", lambda group: (_format_steps(group), ""))
    losses = "{:.4g}".format
    add("loss", lambda group: (_format_known((rank.figures.get("loss") for rank in group), median, losses), ""))
    add("it/s", lambda group: (_format_known(list_group_paces(group), median, _format_pace), ""))
    add("×", share)
    if top > 0:
        by_pace = partial(min, key=lambda rank: rank.pace if rank.pace is not None else float("inf"))
        add("pace", lambda group: (draw_sparkline(list_paces(by_pace(group), now), top, _WIDE_SPARK), ""))
    add(
        "cpu",
        lambda group: (_format_known((rank.cpu for rank in group), sum, lambda cores: f"{100 * cores:.0f} %"), ""),
    )
    add("memory", lambda group: (_format_known((rank.rss for rank in group), sum, format_size), ""))
    add("line", script_line)
    add("last line", last)
    return columns


# What is shown first where not all fits; with how many cells at most.
_PRIORITY = {"rank": 14, "stage": 24, "host": 24, "step": 13, "loss": 10, "it/s": 7, "×": 5, "line": 24, "pace": _SPARK,
             "cpu": 8, "memory": 9, "isa": 14}  # fmt: skip
_CRAMPED_WIDTH = 60  # cells of a screen below which columns are narrower
_NARROW_WIDTHS = {"rank": 9, "stage": 15, "host": 10}
_MIN_WIDTHS = {"rank": 5, "stage": 12, "step": 5, "loss": 6, "it/s": 5}  # so that columns stay where they are


def _choose_columns(columns: Cells, width: int, gap: int) -> dict[str, int]:
    """The widths of the columns that fit, in their order on the screen; ``gap`` cells are between two of them."""
    sizes: dict[str, int] = {}
    left = width
    figures = "step" in columns or "loss" in columns
    for name, most in _PRIORITY.items():
        if name not in columns or (name in ("cpu", "memory", "isa") and width < 100):
            continue
        most = min(most, _NARROW_WIDTHS.get(name, most)) if width < _CRAMPED_WIDTH else most
        size = min(max(_MIN_WIDTHS.get(name, cell_len(name)), *(cell_len(words) for words, _ in columns[name])), most)
        size = most if name == "pace" else size
        needs = size + (gap if sizes else 0)
        if needs > left:
            break
        sizes[name], left = size, left - needs
    if "pace" in sizes and left >= _LAST + gap + _WIDE_SPARK:
        left -= _WIDE_SPARK - sizes["pace"]
        sizes["pace"] = _WIDE_SPARK
    if "line" in sizes:  # the last lines hold it too
        left += sizes["line"] + gap
    if "last line" in columns and left - gap >= (_LAST if figures else 8):
        sizes.pop("line", None)
        sizes["last line"] = left - gap
    return {name: sizes[name] for name in columns if name in sizes}


def _describe_group(state: RunState, group: Sequence[RankState], now: float) -> tuple[str, str]:
    """What the ranks of a row are doing; of those that differ from most, which ones."""
    described = [(_describe_rank(state, rank, now), rank) for rank in group]
    states = group_pairs((state[:2], rank) for state, rank in described)
    styles = [style for _, style in states]
    style = BAD if BAD in styles else next(filter(None, styles), "")
    if len(states) == 1:
        word, _, age = described[0][0]
        return f"{word} {age}".rstrip(), style
    *few, most = sorted(states.items(), key=lambda state: len(state[1]))
    odd = [f"{_summarise_numbers(ranks)} {word}" for (word, _), ranks in few]
    return ", ".join([*odd, f"others {most[0][0]}"]), style


def _describe_rank(state: RunState, rank: RankState, now: float) -> tuple[str, str, str]:
    """What a rank is doing, the style of that, and for how long."""
    end = rank.ended
    if end is not None:
        if end.cause:
            return one_line(end.cause), QUIET if end.cause == "stopped" else BAD, ""
        if end.signal or end.abort is not None:
            return phrases.format_signal(end.signal) if end.abort is None else f"abort {end.abort}", BAD, ""
        return (("done", GOOD) if end.status == 0 else (f"exit {end.status}", BAD)) + ("",)
    if state.stopping:
        return state.stopping, WARN, ""
    if state.attempt and state.attempt.unheard_since is None and rank.host in state.attempt.silent:
        return "no sign of life", BAD, f"for {_format_age(now - state.attempt.silent[rank.host])}"
    silent = now - rank.at
    if rank.stage == "ready":
        return "ready", GOOD, _format_age(now - rank.staged)
    if rank.call:
        return one_line(rank.call), "", _format_age(silent)
    if rank.at and silent >= _SILENCE_SECONDS:
        return f"silent {phrases.format_duration(silent // 10 * 10).replace('.0', '')}", WARN, ""
    stage = {"program": "no stages: not Python"}.get(rank.stage, one_line(rank.stage))
    return stage or "starts", "", _format_age(now - rank.staged) if rank.staged else ""


def _format_age(seconds: float) -> str:
    """Seconds in a stage, in few cells: ``61 s``, ``12 m``, ``3 h``."""
    whole = max(int(seconds), 0)
    if whole < 100:
        return f"{whole} s"
    return f"{whole // 60} m" if whole < 6000 else f"{whole // 3600} h"


def _summarise_numbers(group: Sequence[RankState]) -> str:
    return format_cpus(rank.rank for rank in group)


def _format_known(
    values: Iterable[float | None], combine: Callable[[list[float]], float], form: Callable[[float], str]
) -> str:
    """One figure of several ranks; empty where none is known."""
    known = [value for value in values if value is not None]
    return form(combine(known)) if known else ""


def _find_overdue(rank: RankState) -> float:
    """When its next step is so late that a rank makes none."""
    return rank.moved + max(_STALE_SECONDS, 5 / rank.pace) if rank.pace else float("inf")


def find_pace(rank: RankState, now: float) -> float | None:
    return 0.0 if now > _find_overdue(rank) else rank.pace


def list_paces(rank: RankState, now: float) -> list[float]:
    """The pace of a rank in each of the last seconds, the present one last."""
    paces, overdue, seconds = [*rank.paces], _find_overdue(rank), list[float]()
    for ago in range(min(int(now - paces[0][0]) + 1, _WIDE_SPARK) if paces else 0):
        while len(paces) > 1 and paces[-1][0] > now - ago:
            paces.pop()
        seconds.append(0.0 if now - ago > overdue else paces[-1][1])
    return seconds[::-1]


def list_open_lines(state: RunState, rank: RankState) -> list[str]:
    """What a rank draws at this moment: lines without an end."""
    return [
        text for key, line in state.open.items() if key[0] == rank.rank and (text := format_line(line.data)).strip()
    ]


def _find_last_line(state: RunState, rank: RankState) -> str:
    """One line: its bar if it draws one, else the last that has a word and is not known to be harmless."""
    whole = (format_line(line) for line in reversed(rank.tail.split(b"\n")))
    telling = (line for line in whole if any(map(str.isalnum, line)) and find_harmless(line) is None)
    return next(iter(list_open_lines(state, rank)[::-1]), "") or next(telling, "")


def _format_steps(group: Sequence[RankState]) -> str:
    steps = [rank.figures["step"] for rank in group if "step" in rank.figures]
    if not steps:
        return ""
    low, high, total = min(steps), max(steps), group[0].figures.get("steps")
    if low != high:
        return f"{low:.0f}-{high:.0f}"
    return f"{low:.0f}/{total:.0f}" if total and total >= low else f"{low:.0f}"


def _format_pace(pace: float) -> str:
    decimals = 2 - (pace >= 100) - (pace >= 1000)
    return f"{pace:.{decimals}f}"


def _format_share(pace: float, usual: float) -> str:
    """A pace that is far from the usual one: ``×0.5``."""
    share = pace / usual
    if _SLOW <= share <= _FAST:
        return ""
    return f"×{share:.1f}" if share >= 0.05 else "×0"


# the log of a rank, and what takes its place


def _draw_pane(view: View, width: int, rows: int) -> list[Text]:
    view.page = rows
    if view.panel == "keys":
        return _pad_rows(draw_rule("keys", width, "Esc back"), _draw_keys(view, width), rows)
    if view.panel == "harmless":
        return _pad_rows(draw_rule("known harmless lines", width, "Esc back"), _draw_harmless(view.state, width), rows)
    rank = view.followed
    if rank is None:
        return [Text("")] * rows
    name = f"rank {rank.rank}"
    if view.bottom is not None:
        name += f" · line {view.bottom:,} of {view.log.count:,}" + (f" · «{view.pattern}»" if view.pattern else "")
        return _pad_rows(draw_rule(name, width, "G follows"), _draw_older_lines(view, width, rows), rows)
    log = view.log
    view.skipped += max(log.count - view.drawn_count - rows, 0)
    view.drawn_count = log.count
    if view.skipped:
        name += f" · {pluralize(view.skipped, 'line', ',')} went by unseen, the log has them"
    lines = log.read_lines(log.count - rows - _HIDDEN + 1, log.count) + list_open_lines(view.state, rank)
    lines = [line for line in lines if find_harmless(line) is None][-rows:]
    return _pad_rows(draw_rule(name, width), [make_row(fit_bar(line, width)) for line in lines], rows)


def _pad_rows(rule: Text, lines: Sequence[Text], rows: int) -> list[Text]:
    return [rule, *lines[:rows], *[Text("")] * (rows - len(lines))]


def _draw_older_lines(view: View, width: int, rows: int) -> list[Text]:
    """Lines up to the one that is the last to be shown; the one that was searched for is marked."""
    bottom = max(view.bottom or 0, view.log.first)
    first = max(bottom - rows + 1, view.log.first)
    lines = []
    for number, held in enumerate(view.log.read_lines(first, bottom), first):
        line = make_row(("▌ " if number == view.match else "", STRONG), held)
        if view.pattern:
            flags = re.IGNORECASE if view.pattern.islower() else 0
            line.highlight_regex(re.compile(re.escape(view.pattern), flags), "reverse")
        lines.append(line)
    return lines


def _draw_keys(view: View, width: int) -> list[Text]:
    keys = [each for each in _KEYS if each[0] != "d" or view.can_detach]
    narrow = max(cell_len(what) for _, what, _ in keys) + _KEY_CELLS > width
    return [make_row((f"{key:<{_KEY_CELLS}}", STRONG), short if narrow else what) for key, what, short in keys]


def _draw_harmless(state: RunState, width: int) -> list[Text]:
    """How many lines of which message, of which ranks, and why they are harmless."""
    catalogue = read_harmless()
    lines = []
    for code, entry in sorted(state.harmless.items(), key=lambda item: -item[1].count):
        head = f"{entry.count:>4}  {code}  {format_ranks(sorted(entry.ranks))}"
        why = catalogue[code].why
        if cell_len(head + why) + 2 <= width:
            lines.append(make_row((head, STRONG), f"  {why}"))
        else:
            lines += [
                make_row((head, STRONG)),
                *(make_row(f"      {part}") for part in phrases.fold_line(why, width - 6)),
            ]
    return lines or [make_row(("none so far", QUIET))]


def _draw_unusual(state: RunState, width: int, most: int) -> list[Text]:
    """A rule and the newest unusual lines; what is known to be harmless is a number in the rule."""
    entries = [(format_cpus(entry.ranks), entry) for entry in state.unusual.values()][-most:]
    rows = [
        (who, escape(entry.text), (f" (+ {pluralize(entry.more, 'line')})" if entry.more else "")
         + (f" (× {entry.count})" if entry.count > 1 else ""))
        for who, entry in entries
    ]  # fmt: skip
    launcher = state.attempt.launcher.splitlines() if state.attempt else []
    rows += [("mpirun", format_line(line), "") for line in launcher[-2:]]
    rows = rows[-most:]
    count = sum(lines.count for lines in state.harmless.values())
    hidden = f"{pluralize(count, 'known harmless line')} hidden [w]" if count else ""
    hidden = f"{count} harmless [w]" if count and len(hidden) + 14 > width else hidden
    if not rows:
        return [draw_rule("", width, hidden)] if hidden else []
    label = min(max((len(who) for who, _, _ in rows), default=0), 16)
    lines = []
    for who, words, more in rows:
        room = max(width - label - 3 - cell_len(more), 8)  # how often never gives way to the line
        words = words if cell_len(words) <= room else set_cell_size(words, room - 1) + "…"
        lines.append(make_row((set_cell_size(who, label), STRONG), " │ ", words, more))
    return [draw_rule("unusual", width, hidden), *lines]


def _draw_footer(view: View, width: int) -> Text:
    if view.prompt:
        return make_row((f"{view.prompt}: ", STRONG), view.typed, "▏  (Enter, Esc)")
    stop = {"": "[Ctrl-C] stop", "stopping": "stopping  [Ctrl-C] again to kill"}.get(view.state.stopping, "killing")
    keys: list[str] = []
    if view.keys:
        pause = "[space] go on" if view.paused else "[space] pause"
        back = ["[Esc] back"] if view.full_screen else []
        detach = ["[d] detach"] if view.can_detach else []
        keys = [*back, "[↑↓] rank", "[/] find", pause, *detach, "[?] keys"]
    paused = "PAUSED   " if view.paused else ""
    answer = view.answer if cell_len(view.answer + paused + stop) <= width else ""
    while keys and cell_len(answer + paused + "  ".join([*keys, stop])) > width:
        keys.pop()
    return make_row((answer, WARN), (paused, STRONG), ("  ".join([*keys, stop]), QUIET))
