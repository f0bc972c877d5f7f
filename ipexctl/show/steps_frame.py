"""The frame of verbs that do steps on hosts: doctor, install, sync …"""

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
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
    bar = 20 if width >= 60 and any(host.state == "busy" and host.total > 0 for host in hosts) else 0
    for cells_wide in (1, names, *([bar] if bar else []), max(width - names - bar - 5, 8)):
        grid.add_column(width=cells_wide, no_wrap=True, overflow="ellipsis")
    for host in hosts:
        mark, state = _describe_host(board, host, now)
        cells: list[RenderableType] = [mark, text(host.name or (_HERE, QUIET))]
        if bar:
            has = host.state == "busy" and host.total > 0
            done = min(host.done, host.total)
            cells.append(ProgressBar(total=host.total, completed=done, width=bar) if has else Text(""))
        grid.add_row(*cells, state)
    return grid


def _describe_host(board: Board, host: HostView, now: float) -> tuple[Text, Text]:
    if host.failure is not None:
        return text(("✗", BAD)), text((one_line(host.failure.what), BAD))
    detail = one_line(host.detail)
    if host.state == "busy":
        parts = [host.step]
        if host.total > 0 or host.done:
            parts.append(phrases.format_short_amount(host.done, host.total, host.unit))
        pace = phrases.format_pace(host.done - host.skipped, host.total - host.skipped, host.unit, now - host.moved)
        parts += [word for word in (pace if host.moved else "", detail) if word]
        # Nothing longer than a few seconds goes by without a sign of time.
        if host.total <= 0 and now - host.since >= 3:
            parts.append(phrases.format_duration(now - host.since))
        return Text(_SPIN[int(now * 8) % len(_SPIN)]), text(" · ".join(parts))
    if not host.outcome:
        return Text(" "), text(("waits", QUIET))
    mark = {"failed": ("✗", BAD), "skipped": ("-", QUIET), "changed": ("✓", WARN)}.get(host.outcome, ("✓", GOOD))
    if mark[0] == "✓" and board.phase and board.phase.number != board.phase.of:
        mark = ("·", QUIET)  # it gets another step
    state = " · ".join(word for word in (host.step, host.outcome if host.outcome != "ok" else "", detail) if word)
    return text(mark), text(state)
