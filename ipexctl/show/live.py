"""The live screen on a terminal: a `RunState`, drawn by a thread of its own.

`handle_event` only notes what happened, so that a slow or stopped terminal never slows a run; what happened too fast
to be seen is counted as skipped. Rich is given `Text` of harmless strings and nothing else that came from outside."""

import atexit
import math
import os
import signal
import threading
import time
from collections.abc import Callable

from rich.console import Console, RenderableType

from ipexctl.model import events as e
from ipexctl.model.answers import AnyAnswer, is_dry
from ipexctl.model.events import Stamped
from ipexctl.model.reports import CommandReport
from ipexctl.model.run_state import RunState
from ipexctl.show import phrases, screens, typeset
from ipexctl.show.frame_lines import justify_ends
from ipexctl.show.keys import PressedKeys
from ipexctl.show.painter import Painter
from ipexctl.show.pending_failures import PendingFailures
from ipexctl.show.pipe import Pipe
from ipexctl.show.rank_log import RankLogs
from ipexctl.show.run_frame import draw_run
from ipexctl.show.sanitise import one_line
from ipexctl.show.steps_frame import draw_steps
from ipexctl.show.typeset import WARN, Line
from ipexctl.show.view import View

_WITH_KEYS = ("run", "attach", "logs")  # verbs


class Live:
    """The sink for a terminal, with keys where standard input is one. ``on_detach`` is called once, from the drawing
    thread, when the user detaches from a run; without it that key does nothing. Without ``keys`` no key is read,
    as for a saved run. Our own talk also goes to ``err`` where that is not a terminal. ``lock`` is held by whoever
    changes the state, and by the drawing thread while it reads it. While ``held`` is set nothing is drawn.

    What stays after the end (warnings, failures, answers, the run's card) is printed above the live part."""

    RATE = 0.1  # seconds between two polls of the keys and of Ctrl-C
    FRAME = 0.2  # between frames where ranks print
    IDLE = 0.5  # between frames where only time goes by

    def __init__(
        self,
        out: Pipe,
        err: Pipe | None = None,
        *,
        on_detach: Callable[[], None] | None = None,
        console: Console | None = None,
        speed: float = 1.0,
        keys: bool = True,
        lock: "threading.Lock | None" = None,
        held: "threading.Event | None" = None,
    ) -> None:
        self._out = out
        self._talk = err if err is not None and not err.isatty() else None
        self._console = console if console is not None else typeset.make_console(out)
        self._keys = PressedKeys()
        self._wants_keys = keys
        self._on_detach = on_detach
        self._speed = speed  # of the stamps' clock, against ours: a replay may be faster
        self.error: Exception | None = None  # why drawing stopped, if it did
        self._logs = RankLogs()
        self._view = View(RunState(), self._logs, can_detach=on_detach is not None)
        self._answer: AnyAnswer | None = None
        self._above: list[RenderableType] = []
        self._failures = PendingFailures()
        self._last = (0.0, 0.0)  # stamp of the last event, and our clock then
        self._lock, self._held = lock or threading.Lock(), held or threading.Event()
        self._stop, self._leave, self._left = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._painter = Painter(self._console, out)
        self._changed = self._asked = True  # since the last frame, by an event; by a key or a message
        self._drawn = 0.0  # our clock at the last frame
        self._still = False
        self._headed = True

    def handle_event(self, stamped: Stamped, state: RunState) -> None:
        event = stamped.event
        with self._lock:
            if self.error is not None:
                raise self.error
            self._last = (stamped.at, time.monotonic())
            self._changed = True
            self._view.state = state
            self._logs.add_lines(state)
            self._failures.update(state, self._last[1])
            match event:
                case e.Message(code="silent"):
                    pass  # it stands in the row of the host, and counts
                case e.Message(text=message, level=level, host=host):
                    if level == "warning" and self._failures.is_due(math.inf):  # it may say what follows from them
                        self._show_failures()
                    mark: tuple[str, str] = ("! ", WARN) if level == "warning" else ("", "")
                    of = f"{host}: " if host else ""
                    self._show(typeset.format_message(of + message, mark))
                case e.Started():
                    self._headed = state.study is not None
                case e.Answer() | e.Ended():
                    if not self._headed and state.title:  # it stays above what a verb leaves on the screen
                        took = phrases.format_duration(state.took)
                        self._above.append(justify_ends(self._console.width, one_line(state.title), took))
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
        try:
            while not self._stop.is_set():
                while not (self._leave.is_set() or self._stop.wait(self.RATE)):
                    if self._held.is_set():
                        self._keys.close()
                        self._painter.erase()
                        continue
                    self._press()
                    self._draw()
                self._painter.erase()
                if self._leave.is_set():
                    self._keys.close()
                    self._left.set()
                    os.kill(os.getpid(), signal.SIGTSTP)
                while self._leave.is_set() and not self._stop.wait(self.RATE):
                    pass
        except Exception as error:
            self.error = error  # raised by `handle_event`
            self._painter.erase()

    def _press(self) -> None:
        """Keys are ours while a run goes on; at other times what is typed is left to the shell."""
        verb, attempt = self._view.state.verb, self._view.state.attempt
        goes_on = verb is not None and verb.verb in _WITH_KEYS and attempt is not None and not attempt.is_final
        if not (self._wants_keys and goes_on):
            self._view.keys = False  # what is typed now is neither read nor echoed, which would move the frame
            if self._wants_keys:
                self._keys.open()
            return
        pressed = self._keys.open().poll()
        self._view.keys = self._keys.active and not self._keys.pasted
        if self._keys.pasted:
            self._view.answer = "what was pasted goes to the shell   "
        for key in pressed:
            self._asked = True
            with self._lock:
                action = self._view.press(key)
            if action == "detach" and self._on_detach is not None:
                detach, self._on_detach = self._on_detach, None
                detach()

    def _make_frame(self, width: int, height: int, now: float) -> RenderableType:
        if self._view.state.study is not None:
            from ipexctl.show.answers.tune import draw_study

            return draw_study(self._view.state, width, height, now)
        if self._view.state.attempt is None:
            return draw_steps(self._view.state, width, height, now)
        return draw_run(self._view, width, height, now)

    def _draw(self) -> None:
        width, height = self._console.size
        with self._lock:
            if self._failures.is_due(time.monotonic()):
                self._show_failures()
            now = time.monotonic()
            due = self.FRAME if self._changed else self.IDLE
            if not (self._asked or self._above or now - self._drawn >= due):
                return
            asked = self._asked
            self._changed = self._asked = False
            self._drawn = now
            above, self._above = self._above, []
            stamp, then = self._last
            # While paused, after one frame that says so, only keys draw: what is selected stays selected.
            still = self._view.paused and self._still and not above and not asked
            self._still = self._view.paused
            stamp_now = stamp + (now - then) * self._speed
            frame = None if still else self._make_frame(width, max(height - 1, 4), stamp_now)
        # Writing may wait for the terminal: the lock is not held here.
        if frame is not None:
            self._painter.paint(frame, above)
