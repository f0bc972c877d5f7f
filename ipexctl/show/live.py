"""The live screen on a terminal: the state of `Board`, drawn ten times a second by a thread of its own.

`handle_event` only notes what happened, so that a slow or stopped terminal never slows a run; what happened too fast
to be seen is counted as skipped. Rich is given `Text` of harmless strings and nothing else that came from outside."""

import atexit
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ipexctl.model import events as e
from ipexctl.model.answers import AnyAnswer, is_dry
from ipexctl.model.events import Stamped
from ipexctl.model.facts import format_cpus
from ipexctl.model.grouping import group_pairs
from ipexctl.model.reports import CommandReport
from ipexctl.model.text import pluralize
from ipexctl.show import phrases, screens, typeset
from ipexctl.show.board import Board, HostView, RankView
from ipexctl.show.keys import Keys
from ipexctl.show.pending_failures import PendingFailures
from ipexctl.show.pipe import Pipe
from ipexctl.show.sanitise import escape, one_line
from ipexctl.show.typeset import BAD, GOOD, QUIET, STRONG, WARN, Line, Part, text

_SILENT = 30.0  # seconds without a sign after which a rank's silence is shown
_HERE = "here"  # the row of what this machine does itself
_SPIN = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_STEP = re.compile(r"\bstep[ =:]*(\d+)", re.IGNORECASE)
_BAR = re.compile(r"(.*?)(\d+%)\|[^|]*\|(.*)")  # of tqdm: words, how far, the bar itself, numbers
_PACE = re.compile(r"\b\d+(?:\.\d+)?\s?(?:it/s|s/it|samples/s|steps/s|tokens/s)")


@dataclass
class View:
    """How the board is looked at: rank followed, filter, pause. Draws frames; knows no terminal."""

    board: Board
    keys: bool = False
    can_detach: bool = False
    rank: int = 0
    filter: str = ""
    paused: bool = False
    asking: str = ""  # "rank" or "filter" while something is typed
    typed: str = ""
    answer: str = ""  # to what was typed, until the next key
    skipped: int = 0
    _seen: int = 0

    def press(self, key: str) -> str:
        """One key. Returns "detach" when that is what it asks for."""
        self.answer = ""
        if self.asking:
            self._type(key)
        elif key == " ":
            self.paused = not self.paused
        elif key == "d" and self.can_detach:
            return "detach"
        elif key in ("r", "/"):
            self.asking, self.typed = ("rank" if key == "r" else "filter"), ""
        return ""

    def _type(self, key: str) -> None:
        if key in ("\r", "\n"):
            if self.asking == "filter":
                self.filter = self.typed
            elif self.typed.isascii() and self.typed.isdigit() and int(self.typed) < len(self.board.ranks):
                self.rank, self._seen = int(self.typed), self.board.ranks[int(self.typed)].lines
            elif self.typed:
                self.answer = f"there is no rank {self.typed}   "
            self.asking = ""
        elif key == "\x1b":
            self.asking = ""
        elif key in ("\x7f", "\b"):
            self.typed = self.typed[:-1]
        elif key.isprintable() and len(self.typed) < 60:
            self.typed += key

    def frame(self, width: int, height: int, now: float) -> RenderableType:
        """At most ``height`` lines of ``width`` cells; ``now`` on the clock of the stamps."""
        return (self._steps if self.board.run is None else self._run)(width, height, now)

    # steps of hosts: doctor, install, sync …

    def _steps(self, width: int, height: int, now: float) -> RenderableType:
        board = self.board
        hosts = list(board.hosts.values())
        bad, busy, done = ([host for host in hosts if host.state == state] for state in ("failed", "busy", "done"))
        room = max(height - 3, 1)
        took = phrases.format_duration(now - board.started)
        part = f"{phrases.format_phase(board.phase)} · " if board.phase and not board.ended else ""
        lines: list[RenderableType] = [_justify_ends(width, one_line(part + (board.title or board.verb)), took)]
        if len(hosts) <= room:
            lines.append(self._host_rows(hosts, width, now))
        else:
            # What went wrong and what goes on are seen; what is done is one line.
            rows = [*bad[: max(room - 2, 1)], *busy]
            folded = len(rows) + 2 - room
            lines.append(self._host_rows(rows[: room - 2], width, now))
            if folded > 0:
                lines.append(text((f"… and {folded} more at work", QUIET)))
            if done:
                lines.append(_make_row(("✓ ", GOOD), phrases.format_hosts((host.name or _HERE for host in done), 3)))
        if sum(bool(host.name) for host in hosts) > 1:
            lines.append(_make_row((self._counts(hosts), QUIET)))
        return Group(*lines)

    def _counts(self, hosts: list[HostView]) -> str:
        """How many hosts are how far. None is done before the verb is: it may get another step."""
        named = group_pairs((host.state, host) for host in hosts if host.name)
        many = pluralize(sum(map(len, named.values())), "host")
        counts = [many]
        if done := named.get("done"):
            steps = {one_line(host.step) for host in done}
            how = f"past {steps.pop()}" if len(steps) == 1 else "between steps"
            counts = [f"{len(done)} of {many} {'done' if self.board.ended else how}"]
        words = {"busy": "at work", "waiting": "waiting", "failed": "failed"}
        counts += [f"{len(named[state])} {word}" for state, word in words.items() if state in named]
        return " · ".join(counts)

    def _host_rows(self, hosts: list[HostView], width: int, now: float) -> RenderableType:
        grid = Table.grid(padding=(0, 1, 0, 0))
        names = min(max((cell_len(escape(host.name or _HERE)) for host in hosts), default=0), 24)
        bar = 20 if width >= 60 and any(host.state == "busy" and host.total > 0 for host in hosts) else 0
        for cells_wide in (1, names, *([bar] if bar else []), max(width - names - bar - 5, 8)):
            grid.add_column(width=cells_wide, no_wrap=True, overflow="ellipsis")
        for host in hosts:
            mark, state = self._host_state(host, now)
            cells: list[RenderableType] = [mark, text(host.name or (_HERE, QUIET))]
            if bar:
                has = host.state == "busy" and host.total > 0
                done = min(host.done, host.total)
                cells.append(ProgressBar(total=host.total, completed=done, width=bar) if has else Text(""))
            grid.add_row(*cells, state)
        return grid

    def _host_state(self, host: HostView, now: float) -> tuple[Text, Text]:
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
        if mark[0] == "✓" and self.board.phase and self.board.phase.number != self.board.phase.of:
            mark = ("·", QUIET)  # it gets another step
        state = " · ".join(word for word in (host.step, host.outcome if host.outcome != "ok" else "", detail) if word)
        return text(mark), text(state)

    # a run

    def _run(self, width: int, height: int, now: float) -> RenderableType:
        board = self.board
        footer = self._footer(width)
        odd = self._odd_lines(min(max(height // 5, 2), 10))
        stall = [part for line in board.stall for part in phrases.fold_line(line, width - 2, 4)]
        verdict = [_make_row(("▌ ", BAD), part) for part in stall[: max(height // 3, 1)]]
        room = height - 2 - len(verdict) - (len(odd) + 1 if odd else 0)
        grid = self._grid(width, min(max(room // 2, 3), max(len(board.ranks), 1)), now)
        pane = self._pane(width, max(room - len(grid) - 1, 1))
        lines = [
            self._header(width, now),
            *verdict,
            *grid,
            *pane,
            *([_draw_rule("unusual", width), *odd] if odd else []),
        ]
        return Group(*lines[: height - 1], footer)

    def _header(self, width: int, now: float) -> Text:
        board = self.board
        assert board.run is not None
        right = [f"run {board.run.run}", phrases.format_clock(now - board.started)]
        if board.ranks:
            recent = " ".join(reversed(board.ranks[min(self.rank, len(board.ranks) - 1)].last_lines(8)))
            if step := _STEP.search(recent):
                right.append(f"step {step.group(1)}")
            if pace := _PACE.search(recent):
                right.append(pace.group())
        while len(right) > 2 and sum(map(len, right)) + 24 > width:
            right.pop()
        if sum(map(len, right)) + 13 > width:  # the clock before the id
            del right[0]
        return _justify_ends(width, one_line(board.title or board.verb), "   ".join(right))

    def _grid(self, width: int, rows: int, now: float) -> list[Text]:
        """A row per rank, or per host, or per group of hosts in the same state: the finest that fits."""
        ranks, suspects = self.board.ranks, self.board.suspects
        groups: list[list[RankView]] = [[rank] for rank in ranks]
        if len(groups) > rows:
            groups = list(group_pairs((rank.host, rank) for rank in ranks).values())
        if len(groups) > rows:
            # The odd ones out first: those that the others wait for, a few ranks that are not where the others are.
            states = group_pairs(((rank.rank in suspects, self._rank_state(rank, now)), rank) for rank in ranks)
            groups = [group for _, group in sorted(states.items(), key=lambda state: (not state[0][0], len(state[1])))]
        left = groups[rows - 1 :] if len(groups) > rows else []
        shown = groups[: rows - 1] if left else groups
        listed = [
            (_summarise_numbers(group), phrases.format_hosts((rank.host for rank in group), 2), group)
            for group in shown
        ]
        many = min(max((cell_len(numbers) for numbers, _, _ in listed), default=1), 12)
        names = min(max((cell_len(hosts) for _, hosts, _ in listed), default=1), max(width // 4, 12))
        lines = []
        for numbers, hosts, group in listed:
            state, style = self._state(group, now)
            state = f"{state:<12}  "
            mark: Part = ("◀ ", BAD) if any(rank.rank in suspects for rank in group) else "  "
            last = min(group, key=lambda rank: rank.rank).last
            last = _fit_bar(last, width - many - names - cell_len(state) - 4)
            first, second = (set_cell_size(numbers, many), STRONG), f"{set_cell_size(hosts, names)}  "
            lines.append(_make_row(first, mark, second, (state, style), last))
        if left:
            lines.append(text((f"… and {sum(map(len, left))} ranks in {len(left)} other states", QUIET)))
        return lines

    def _state(self, group: list[RankView], now: float) -> tuple[str, str]:
        """What the ranks of a row are doing; of those that differ from most, which ones."""
        states = group_pairs((self._rank_state(rank, now), rank) for rank in group)
        styles = [style for _, style in states]
        style = BAD if BAD in styles else next(filter(None, styles), "")
        if len(states) == 1:
            word = next(iter(states))[0]
            step = _STEP.search(group[0].last) if len(group) == 1 and word == "running" else None
            return (f"step {step.group(1)}" if step else word), style
        *few, most = sorted(states.items(), key=lambda state: len(state[1]))
        odd = [f"{_summarise_numbers(ranks)} {word}" for (word, _), ranks in few]
        return ", ".join([*odd, f"others {most[0][0]}"]), style

    def _rank_state(self, rank: RankView, now: float) -> tuple[str, str]:
        end = rank.ended
        if end is not None:
            if end.cause:
                return end.cause, QUIET if end.cause == "stopped" else BAD
            if end.signal:
                return phrases.format_signal(end.signal), BAD
            return ("done", GOOD) if end.status == 0 else (f"exit {end.status}", BAD)
        if self.board.stopping:
            return self.board.stopping, WARN
        stage = one_line(rank.stage) or "starts"
        silent = now - rank.at
        if rank.at and silent >= _SILENT:
            return f"{stage}, silent {phrases.format_duration(silent // 10 * 10).replace('.0', '')}", WARN
        return stage, ""

    def _pane(self, width: int, rows: int) -> list[Text]:
        if not self.board.ranks:
            return [Text("")] * rows
        rank = self.board.ranks[min(self.rank, len(self.board.ranks) - 1)]
        self.skipped += max(rank.lines - self._seen - rows, 0)
        self._seen = rank.lines
        lines = rank.last_lines(200 if self.filter else rows)
        if self.filter:
            lines = [line for line in lines if self.filter in line]
        name = f"rank {rank.rank}" + (f" · only «{self.filter}»" if self.filter else "")
        name += f" · {self.skipped:,} lines went by unseen, the log has them" if self.skipped else ""
        shown = [_make_row(_fit_bar(line, width)) for line in lines[-rows:]]
        return [_draw_rule(name, width), *shown, *[Text("")] * (rows - len(shown))]

    def _odd_lines(self, most: int) -> list[Text]:
        # Lines that few ranks printed say more than those of all, and new ones more than old ones.
        odd = [(format_cpus(line.ranks), line.text, line.count) for line in self.board.odd.values()][-most:]
        odd += [("mpirun", line, 1) for line in list(self.board.launcher)[-2:]]
        label = min(max((len(who) for who, _, _ in odd), default=0), 16)
        lines = [
            _make_row((set_cell_size(who, label), STRONG), " │ ", line, f" (× {count})" if count > 1 else "")
            for who, line, count in odd
        ]
        return lines[-most:]

    def _footer(self, width: int) -> Text:
        if self.asking:
            return _make_row((f"{self.asking}: ", STRONG), self.typed, "▏  (Enter, Esc)")
        stop = {"": "[Ctrl-C] stop", "stopping": "stopping  [Ctrl-C] again to kill"}.get(self.board.stopping, "killing")
        keys = ["[r] rank", "[/] filter", "[space] go on" if self.paused else "[space] pause"] if self.keys else []
        keys += ["[d] detach"] if self.keys and self.can_detach else []
        paused = "PAUSED   " if self.paused else ""
        while keys and cell_len(self.answer + paused + "  ".join([*keys, stop])) > width:
            keys.pop()
        return _make_row((self.answer, WARN), (paused, STRONG), ("  ".join([*keys, stop]), QUIET))


def _summarise_numbers(group: list[RankView]) -> str:
    return format_cpus(rank.rank for rank in group)


def _make_row(*parts: Part) -> Text:
    """One line, however narrow the screen is."""
    line = text(*parts)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _fit_bar(line: str, room: int) -> str:
    """A line as it is, but of tqdm's that has not enough room the numbers: words and the bar itself give way."""
    bar = _BAR.fullmatch(line) if cell_len(line) > room else None
    if bar is None:
        return line
    shorter = ("".join(bar.groups()[first:]).lstrip() for first in range(3))
    return next((words for words in shorter if cell_len(words) <= room), bar[3].lstrip())


def _justify_ends(width: int, left: str, right: str) -> Text:
    """One line with something at both ends."""
    room = max(width - cell_len(right) - 2, 8)
    left = left if cell_len(left) <= room else set_cell_size(left, room - 1) + "…"
    return _make_row((left, STRONG), " " * max(width - cell_len(left) - cell_len(right), 2), (right, QUIET))


def _draw_rule(name: str, width: int) -> Text:
    name = escape(name)
    return _make_row((f"─ {name} " + "─" * max(width - cell_len(name) - 3, 0), QUIET))


class Live:
    """The sink for a terminal, with keys where standard input is one. ``on_detach`` is called once, from the drawing
    thread, when the user asks to let go of a run; without it there is no such key. Our own talk also goes to ``err``
    where that is not a terminal.

    What stays after the end (warnings, failures, answers, the run's card) is printed above the live part."""

    RATE = 0.1  # seconds between frames

    def __init__(
        self,
        out: Pipe,
        err: Pipe | None = None,
        *,
        on_detach: Callable[[], None] | None = None,
        console: Console | None = None,
        speed: float = 1.0,
    ) -> None:
        self._out = out
        self._talk = err if err is not None and not err.isatty() else None
        self._console = console if console is not None else typeset.make_console(out)
        self._keys = Keys()
        self._on_detach = on_detach
        self._speed = speed  # of the stamps' clock, against ours: a replay may be faster
        self.error: Exception | None = None  # why drawing stopped, if it did
        self._board = Board()
        self._answer: AnyAnswer | None = None
        self._view = View(self._board, can_detach=on_detach is not None)
        self._above: list[RenderableType] = []
        self._failures = PendingFailures()
        self._last = (0.0, 0.0)  # stamp of the last event, and our clock then
        self._lock = threading.Lock()
        self._stop, self._leave, self._left = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._still = False
        self._headed = True

    def handle_event(self, stamped: Stamped) -> None:
        event = stamped.event
        with self._lock:
            if self.error is not None:
                raise self.error
            self._last = (stamped.at, time.monotonic())
            self._board.handle_event(stamped)
            self._failures.add_event(event, self._last[1])
            match event:
                case e.Message(text=message, level=level, host=host):
                    mark: tuple[str, str] = ("! ", WARN) if level == "warning" else ("", "")
                    of = f"{host}: " if host else ""
                    self._show(typeset.format_message(of + message.replace("\n", f"\n{of}"), mark))
                case e.Started():
                    self._headed = False
                case e.Answer() | e.Ended():
                    if not self._headed and self._board.title:  # it stays above what a verb leaves on the screen
                        took = phrases.format_duration(self._board.took)
                        self._above.append(_justify_ends(self._console.width, one_line(self._board.title), took))
                    self._headed = True
                    self._show_failures()
                    if isinstance(event, e.Answer):
                        self._answer = event.value
                        self._above += screens.format_answer(event.value)
        if self._thread is None and not self._stop.is_set():
            atexit.register(self.close)  # the cursor comes back whatever happens
            if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTSTP) == 0:
                signal.signal(signal.SIGTSTP, self._suspend)
            self._thread = threading.Thread(target=self._draw_all, name="screen", daemon=True)
            self._thread.start()

    @property
    def paused(self) -> bool:
        """Whether the user holds the view."""
        return self._view.paused

    def close(self, report: CommandReport | None = None) -> None:
        """Erases the live part and prints what stays. The terminal is as it was before."""
        if self._stop.is_set():
            return
        atexit.unregister(self.close)
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if signal.getsignal(signal.SIGTSTP) == self._suspend:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        self._keys.close()
        with self._lock:
            self._show_failures()
            if report:
                self._above += [
                    *screens.format_ending(report, dry=self._answer is not None and is_dry(self._answer)),
                    *screens.format_saved_path(report),
                ]
            hints = self._failures.pop_hints()
            self._above += screens.format_next_steps(report, self._answer, hints)
            if self._talk is not None:
                lines = [line for hint in hints for line in phrases.format_hint_lines(hint)]
                self._talk.write("".join(f"{line}\n" for line in lines))
                self._talk.flush()
        typeset.print_items(self._console, self._out, self._above)
        self._out.flush()

    def _show_failures(self) -> None:
        if failures := self._failures.pop_failures():
            self._show(typeset.format_failures(failures))

    def _show(self, lines: list[Line]) -> None:
        """Messages of ipexctl: above the live part, and where standard error goes if that is not this terminal."""
        self._above += lines
        if self._talk is not None:
            self._talk.write("".join(f"{line.plain}\n" for line in lines))
            self._talk.flush()

    def _suspend(self, number: int, _frame: object) -> None:
        """Ctrl-Z. The drawing thread gives the terminal back and sends the signal again; then it stops us as ever."""
        if not self._left.is_set():
            return self._leave.set()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # returns when we go on, or at once where no shell could let us go on
        signal.signal(number, self._suspend)
        self._left.clear()
        return self._leave.clear()

    def _draw_all(self) -> None:
        plain: Any = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}
        try:
            while not self._stop.is_set():
                with RichLive(console=self._console, transient=True, vertical_overflow="crop", **plain) as screen:
                    while not (self._leave.is_set() or self._stop.wait(self.RATE)):
                        self._press()
                        self._draw(screen)
                if self._leave.is_set():
                    self._keys.close()
                    self._left.set()
                    os.kill(os.getpid(), signal.SIGTSTP)
                while self._leave.is_set() and not self._stop.wait(self.RATE):
                    pass
        except Exception as error:
            self.error = error  # raised by `handle_event`

    def _press(self) -> None:
        self._view.keys = self._keys.open().active
        for key in self._keys.poll():
            with self._lock:
                asked = self._view.press(key) if self._board.run is not None else ""
            if asked == "detach" and self._on_detach is not None:
                detach, self._on_detach = self._on_detach, None
                detach()

    def _draw(self, screen: RichLive) -> None:
        width, height = self._console.size
        with self._lock:
            if self._failures.is_due(time.monotonic()):
                self._show_failures()
            above, self._above = self._above, []
            stamp, then = self._last
            # While paused, after one frame that says so, nothing is drawn: what is selected stays selected.
            still = self._view.paused and self._still and not above and not self._view.asking
            self._still = self._view.paused
            frame = (
                None
                if still
                else self._view.frame(width, max(height - 1, 4), stamp + (time.monotonic() - then) * self._speed)
            )
        # Writing may wait for the terminal: the lock is not held here.
        for item in above:
            self._console.print(item, crop=False)
        if frame is not None:
            screen.update(frame, refresh=True)
