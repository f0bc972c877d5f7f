"""The frame of verbs that do steps on hosts: doctor, install, sync …"""

from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ipexctl.model.run_state import HostState, RunState
from ipexctl.model.text import group_pairs, pluralize
from ipexctl.show import phrases
from ipexctl.show.frame_lines import justify_ends, make_row
from ipexctl.show.sanitise import escape, one_line
from ipexctl.show.typeset import BAD, GOOD, QUIET, WARN, text

_HERE = "here"  # the row of what this machine does itself
_SPIN = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def draw_steps(state: RunState, width: int, height: int, now: float) -> RenderableType:
    """At most ``height`` lines: a row per host with its step; of many hosts those that failed or are at work."""
    hosts = list(state.working.values())
    bad, busy, done = ([host for host in hosts if host.state == state] for state in ("failed", "busy", "done"))
    room = max(height - 3, 1)
    took = phrases.format_duration(now - state.begun)
    part = f"{phrases.format_phase(state.phase)} · " if state.phase and not state.answered else ""
    lines: list[RenderableType] = [justify_ends(width, one_line(part + state.heading), took)]
    if len(hosts) <= room:
        lines.append(_draw_host_rows(state, hosts, width, now))
    else:
        # What went wrong and what goes on are seen; what is done is one line.
        rows = [*bad[: max(room - 2, 1)], *busy]
        folded = len(rows) + 2 - room
        lines.append(_draw_host_rows(state, rows[: room - 2], width, now))
        if folded > 0:
            lines.append(text((f"… and {folded} more at work", QUIET)))
        if done:
            lines.append(make_row(("✓ ", GOOD), phrases.format_hosts((host.name or _HERE for host in done), 3)))
    if sum(bool(host.name) for host in hosts) > 1:
        lines.append(make_row((_count_hosts(state, hosts), QUIET)))
    return Group(*lines)


def _count_hosts(state: RunState, hosts: list[HostState]) -> str:
    """How many hosts are how far. None is done before the verb is: it may get another step."""
    named = group_pairs((host.state, host) for host in hosts if host.name)
    many = pluralize(sum(map(len, named.values())), "host")
    counts = [many]
    if done := named.get("done"):
        steps = {one_line(host.at.step) for host in done}
        counts = [f"{len(done)} of {many} {'done' if state.answered else 'between steps'}"]
        if len(steps) == 1 and not state.answered:
            counts = [f"{steps.pop()}: done on {len(done)} of {many}"]
    words = {"busy": "at work", "waiting": "waiting", "failed": "failed"}
    counts += [f"{len(named[state])} {word}" for state, word in words.items() if state in named]
    return " · ".join(counts)


def _draw_host_rows(state: RunState, hosts: list[HostState], width: int, now: float) -> RenderableType:
    grid = Table.grid(padding=(0, 1, 0, 0))
    names = min(max((cell_len(escape(host.name or _HERE)) for host in hosts), default=0), 24)
    room = max(width - names - 4, 8)
    words = {host.name: _describe_work(host, now) for host in hosts if host.state == "busy"}
    bar = _choose_bar(words.values(), room) if width >= 60 and any(host.at.total > 0 for host in hosts) else 0
    room -= bar + 1 if bar else 0
    for cells_wide in (1, names, *([bar] if bar else []), room):
        grid.add_column(width=cells_wide, no_wrap=True, overflow="ellipsis")
    for host in hosts:
        if host.state == "busy":
            every = words[host.name]
            fitting = next((words for words in every if cell_len(words) <= room), every[-1])  # no figure is cut
            mark, shown = Text(_SPIN[int(now * 8) % len(_SPIN)]), text(fitting)
        else:
            mark, shown = _describe_host(state, host)
        cells: list[RenderableType] = [mark, text(host.name or (_HERE, QUIET))]
        if bar:
            cells.append(_draw_bar(host, bar) if host.state == "busy" and host.at.total > 0 else Text(""))
        grid.add_row(*cells, shown)
    return grid


_BARS = (20, 12)  # cells of a bar


def _choose_bar(every: Iterable[list[str]], room: int) -> int:
    """The longest bar beside which the words of all hosts have room; else the shortest."""
    most = max((cell_len(words[0]) for words in every), default=0)
    return next((bar for bar in _BARS if most + bar + 1 <= room), _BARS[-1])


def _draw_bar(host: HostState, cells: int) -> Text:
    """What is done in heavy cells, what is left in light ones: they differ without colours, and in ASCII."""
    heavy = cells * max(min(host.at.done, host.at.total), 0) // host.at.total
    return text("━" * heavy, ("─" * (cells - heavy), QUIET))


def _describe_work(host: HostState, now: float) -> list[str]:
    """What a host is at, in all words, then in fewer and fewer."""
    step = host.at
    detail = one_line(step.detail)
    parts = [one_line(step.step)]
    if step.total > 0 or step.done:
        parts.append(phrases.format_short_amount(step.done, step.total, step.unit))
    parts += phrases.format_pace(step, now)
    # Nothing longer than a few seconds goes by without a sign of time.
    if step.total <= 0 and now - step.since >= 3:
        parts += [phrases.format_duration(now - step.since)]
    shares = [f"{parts[0]} · {phrases.format_share(step.done, step.total)}"] if step.total > 0 else []
    whole = [" · ".join([*parts, detail])] if detail else []
    return [*whole, *(" · ".join(parts[:count]) for count in range(len(parts), 1, -1)), *shares, parts[0]]


def _describe_host(state: RunState, host: HostState) -> tuple[Text, Text]:
    if host.failure is not None:
        return text(("✗", BAD)), text((one_line(host.failure.what), BAD))
    step, detail = host.at, one_line(host.at.detail)
    if not step.outcome:
        return Text(" "), text(("waits", QUIET))
    mark = {"failed": ("✗", BAD), "skipped": ("-", QUIET), "changed": ("✓", WARN)}.get(step.outcome, ("✓", GOOD))
    if mark[0] == "✓" and state.phase and state.phase.number != state.phase.of:
        mark = ("·", QUIET)  # it gets another step
    shown = " · ".join(word for word in (step.step, step.outcome if step.outcome != "ok" else "", detail) if word)
    return text(mark), text(shown)
