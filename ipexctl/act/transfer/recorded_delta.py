"""What rsync sends to one host, recorded for the other hosts that have the same old files.

For each host rsync reads the new files here and the old ones on the host, to find what has changed. The hosts of a
cluster mostly have the same old files: one of them is sent the changes by rsync, which records them (rsync(1), BATCH
MODE), and the others apply the record. It holds a checksum of each new file, by which rsync verifies what it has
rebuilt: on a host whose old files differ after all it leaves the file out."""

import threading
from contextlib import AbstractContextManager
from pathlib import Path

_WORTH = 4  # a record is applied if it is smaller than the new files by this factor: a host holds both for a moment
_SLOWEST = 50e6  # bytes a second that a recording is waited for at most, and
_STARTING = 10.0  # seconds before the first of them


class RecordedDelta:
    """The record of a transfer of new files of ``size`` bytes, at ``path`` once there is one."""

    def __init__(self, path: Path, size: int, *, patience: float | None = None) -> None:
        """``patience``: seconds that a recording is waited for; without it by the size."""
        self.path = path
        self.most = size // _WORTH  # bytes of a record that is of use
        self._patience = _STARTING + size / _SLOWEST if patience is None else patience
        self._turn = threading.Lock()
        self._usable: bool | None = None  # None until a recording has ended

    def take_turn(self) -> "Recording | Path | None":
        """For the first caller a `Recording`, while the others wait; for them then the record, or None if it is of no
        use or takes too long. The next caller gets another `Recording` if the first one was given up."""
        if not self._turn.acquire(timeout=self._patience):
            return None
        if self._usable is None:
            return Recording(self)
        self._turn.release()
        return self.path if self._usable else None

    def end_turn(self, *, complete: bool | None) -> None:
        """For `Recording` only."""
        try:
            self._usable = complete and self.path.stat().st_size <= self.most
        except OSError:  # removed meanwhile
            self._usable = False
        finally:
            self._turn.release()


class Recording(AbstractContextManager["Recording"]):
    """The right to record one transfer. It is given up when this is closed before `end`."""

    def __init__(self, delta: RecordedDelta) -> None:
        self.path = delta.path
        self._delta: RecordedDelta | None = delta
        self._size, self._most = 0, delta.most
        self._complete = False
        self._lock = threading.Lock()  # bytes are counted by another thread

    def add_bytes(self, size: int) -> None:
        """Counts what is recorded: once it is too much to be of use, the others wait no longer."""
        self._size += size
        if self._size > self._most:
            self.end(complete=False)

    def end(self, *, complete: bool) -> None:
        """The others go on: with the record if it is complete, by themselves if this host or machine cannot record."""
        self._complete = complete and self._delta is not None
        self._end(complete)

    def __exit__(self, *_: object) -> None:
        if not self._complete:
            self.path.unlink(missing_ok=True)
        self._end(None)

    def _end(self, complete: bool | None) -> None:
        with self._lock:
            delta, self._delta = self._delta, None
        if delta is not None:
            delta.end_turn(complete=complete)
