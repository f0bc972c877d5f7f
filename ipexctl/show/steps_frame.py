"""The frame of verbs that do steps on hosts: doctor, install, sync …"""

from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ipexctl.model.grouping import group_pairs
from ipexctl.model.text import pluralize
from ipexctl.show import phrases
from ipexctl.show.board import Board, HostView
from ipexctl.show.frame_lines import justify_ends, make_row
from ipexctl.show.sanitise import escape, one_line
from ipexctl.show.typeset import BAD, GOOD, QUIET, WARN, text

_HERE = "here"  # the row of what this machine does itself
_SPIN = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def draw_steps(board: Board, width: int, height: int, now: float) -> RenderableType:
    """At most ``height`` lines: a row per host with its step; of many hosts those that failed or are at work."""
    hosts = list(board.hosts.values())
    bad, busy, done = ([host for host in hosts if host.state == state] for state in ("failed", "busy", "done"))
    room = max(height - 3, 1)
    took = phrases.format_duration(now - board.started)
    part = f"{phrases.format_phase(board.phase)} · " if board.phase and not board.ended else ""
    lines: list[RenderableType] = [justify_ends(width, one_line(part + (board.title or board.verb)), took)]
    if len(hosts) <= room:
        lines.append(_draw_host_rows(board, hosts, width, now))
    else:
        # What went wrong and what goes on are seen; what is done is one line.
        rows = [*bad[: max(room - 2, 1)], *busy]
        folded = len(rows) + 2 - room
        lines.append(_draw_host_rows(board, rows[: room - 2], width, now))
        if folded > 0:
            lines.append(text((f"… and {folded} more at work", QUIET)))
        if done:
            lines.append(make_row(("✓ ", GOOD), phrases.format_hosts((host.name or _HERE for host in done), 3)))
    if sum(bool(host.name) for host in hosts) > 1:
        lines.append(make_row((_count_hosts(board, hosts), QUIET)))
    return Group(*lines)


def _count_hosts(board: Board, hosts: list[HostView]) -> str:
    """How many hosts are how far. None is done before the verb is: it may get another step."""
    named = group_pairs((host.state, host) for host in hosts if host.name)
    many = pluralize(sum(map(len, named.values())), "host")
    counts = [many]
    if done := named.get("done"):
        steps = {one_line(host.step) for host in done}
        how = f"past {steps.pop()}" if len(steps) == 1 else "between steps"
        counts = [f"{len(done)} of {many} {'done' if board.ended else how}"]
    words = {"busy": "at work", "waiting": "waiting", "failed": "failed"}
    counts += [f"{len(named[state])} {word}" for state, word in words.items() if state in named]
    return " · ".join(counts)


def _draw_host_rows(board: Board, hosts: list[HostView], width: int, now: float) -> RenderableType:
    grid = Table.grid(padding=(0, 1, 0, 0))
    names = min(max((cell_len(escape(host.name or _HERE)) for host in hosts), default=0), 24)
    room = max(width - names - 4, 8)
    words = {host.name: _describe_work(host, now) for host in hosts if host.state == "busy"}
    bar = _choose_bar(words.values(), room) if width >= 60 and any(host.total > 0 for host in hosts) else 0
    room -= bar + 1 if bar else 0
    for cells_wide in (1, names, *([bar] if bar else []), room):
        grid.add_column(width=cells_wide, no_wrap=True, overflow="ellipsis")
    for host in hosts:
        if host.state == "busy":
            mark, state = Text(_SPIN[int(now * 8) % len(_SPIN)]), text(_fit_words(words[host.name], room))
        else:
            mark, state = _describe_host(board, host)
        cells: list[RenderableType] = [mark, text(host.name or (_HERE, QUIET))]
        if bar:
            cells.append(_draw_bar(host, bar) if host.state == "busy" and host.total > 0 else Text(""))
        grid.add_row(*cells, state)
    return grid


_BARS = (20, 12)  # cells of a bar


def _choose_bar(every: Iterable[list[str]], room: int) -> int:
    """The longest bar beside which the words of all hosts have room; else the shortest."""
    most = max((cell_len(words[0]) for words in every), default=0)
    return next((bar for bar in _BARS if most + bar + 1 <= room), _BARS[-1])


def _draw_bar(host: HostView, cells: int) -> Text:
    """What is done in heavy cells, what is left in light ones: they differ without colours, and in ASCII."""
    heavy = cells * min(host.done, host.total) // host.total
    return text("━" * heavy, ("─" * (cells - heavy), QUIET))


def _fit_words(every: list[str], room: int) -> str:
    """The first of these that has room; no figure is cut."""
    return next((words for words in every if cell_len(words) <= room), every[-1])


def _describe_work(host: HostView, now: float) -> list[str]:
    """What a host is at, in all words, then in fewer and fewer."""
    detail = one_line(host.detail)
    pace = phrases.format_pace(host.done - host.skipped, host.total - host.skipped, host.unit, now - host.moved)
    parts = [one_line(host.step)]
    if host.total > 0 or host.done:
        parts.append(phrases.format_short_amount(host.done, host.total, host.unit))
    parts += pace if host.moved else []
    # Nothing longer than a few seconds goes by without a sign of time.
    if host.total <= 0 and now - host.since >= 3:
        parts += [phrases.format_duration(now - host.since)]
    shares = [f"{parts[0]} · {phrases.format_share(host.done, host.total)}"] if host.total > 0 else []
    whole = [" · ".join([*parts, detail])] if detail else []
    return [*whole, *(" · ".join(parts[:count]) for count in range(len(parts), 1, -1)), *shares, parts[0]]


def _describe_host(board: Board, host: HostView) -> tuple[Text, Text]:
    if host.failure is not None:
        return text(("✗", BAD)), text((one_line(host.failure.what), BAD))
    detail = one_line(host.detail)
    if not host.outcome:
        return Text(" "), text(("waits", QUIET))
    mark = {"failed": ("✗", BAD), "skipped": ("-", QUIET), "changed": ("✓", WARN)}.get(host.outcome, ("✓", GOOD))
    if mark[0] == "✓" and board.phase and board.phase.number != board.phase.of:
        mark = ("·", QUIET)  # it gets another step
    state = " · ".join(word for word in (host.step, host.outcome if host.outcome != "ok" else "", detail) if word)
    return text(mark), text(state)
