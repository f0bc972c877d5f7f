"""The terminal's bell, at a stall and at the end of a command."""

from ipexctl.model import events as e
from ipexctl.model.events import Stamped
from ipexctl.model.reports import CommandReport
from ipexctl.model.run_state import RunState
from ipexctl.show.pipe import Pipe

_BELL = "\a"


class Bell:
    """A sink that rings on the first of ``pipes`` that is a terminal, and nowhere else."""

    def __init__(self, *pipes: Pipe) -> None:
        self._pipe = next((pipe for pipe in pipes if pipe.isatty()), None)
        self._closed = False

    def handle_event(self, stamped: Stamped, state: RunState) -> None:
        if isinstance(stamped.event, e.Stalled):
            self._ring()

    def close(self, report: CommandReport | None = None) -> None:
        if not self._closed:
            self._closed = True
            self._ring()

    def _ring(self) -> None:
        if self._pipe is not None:
            self._pipe.write(_BELL)
            self._pipe.flush()
