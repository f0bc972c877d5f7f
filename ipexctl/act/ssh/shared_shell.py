"""Short commands of ours that share one shell on a host, one after another (`remote/shared_shell.sh`).

sshd starts the user's login shell for each command, and its startup files may cost more than the command (150 ms with
pyenv or conda): a shared shell pays for them once, and saves each further command a round trip to the host."""

from collections.abc import Callable
from dataclasses import dataclass

from ipexctl.act.ssh.command_link import CommandChannel, CommandLog
from ipexctl.act.ssh.quoting import format_shell_line
from ipexctl.model.events import Stream
from ipexctl.model.hosts import Command
from ipexctl.model.text import parse_integer

_LAST_LINE = 64  # bytes of the line behind a command, and more: a longer one has no status


def format_request(command: Command, nonce: bytes) -> bytes:
    """Returns a command as a shared shell takes it. The nonce comes on the shell's input only: other users of the host
    can read arguments."""
    text = b"{ " + format_shell_line(command) + b"\n}"
    return b"%d %d %s\n%s" % (len(text), command.late_input or len(command.stdin), nonce, text)


@dataclass(slots=True)
class EndFinder:
    """Splits one output into that of a command and the line behind it, which begins with the nonce."""

    nonce: bytes
    ended: bool = False
    status: int = 255  # of the command, where the line tells it
    _held: bytes = b""  # what may be the beginning of that line

    def extract_output(self, data: bytes) -> bytes:
        """Returns the part of ``data`` that is known to be the command's output."""
        mark = b"\n" + self.nonce
        data = self._held + data
        start = data.find(mark)
        end = data.find(b"\n", start + len(mark)) if start >= 0 else -1
        if end >= 0 or 0 <= start < len(data) - _LAST_LINE:
            self.ended, self._held = True, b""
            status = parse_integer(data[start + len(mark) : end], 255)
            if status is not None:
                self.status = status
            return data[:start]
        if start < 0:  # only the last line can still become it
            start = data.rfind(b"\n", -len(mark))
            start = start if start >= 0 and mark.startswith(data[start:]) else len(data)
        self._held = data[start:]
        return data[:start]


class SharedShellChannel(CommandChannel):
    """A command in a shared shell: what the shell says until both outputs have their last line; see `Channel`.
    ``release`` is called once, when the channel is closed: with True where the shell can take the next command."""

    def __init__(self, shell: CommandChannel, nonce: bytes, log: CommandLog, release: Callable[[bool], None]) -> None:
        self._shell, self._log, self._release = shell, log, release
        self._ends: dict[Stream, EndFinder] = {"out": EndFinder(nonce), "err": EndFinder(nonce)}
        self._closed = False

    @property
    def pid(self) -> int:
        """That of the shell, whose process group the command belongs to."""
        return self._shell.pid

    @property
    def has_begun(self) -> bool:
        return self._shell.has_begun

    @property
    def _is_complete(self) -> bool:
        return all(end.ended for end in self._ends.values())

    def read(self, timeout: float | None) -> list[tuple[Stream, bytes]] | None:
        """See `Pieces`. Raises `LinkError` when the connection was lost."""
        if self._is_complete:
            return None
        pieces = self._shell.read(timeout)
        if pieces is None:
            return None
        found = [(stream, self._ends[stream].extract_output(data)) for stream, data in pieces]
        return [(stream, data) for stream, data in found if data]

    def has_ended(self) -> bool:
        return self._is_complete or self._shell.has_ended()

    def write(self, data: bytes) -> None:
        """All of the command's input, which the shell expects."""
        self._shell.write(data)

    def end_input(self) -> None:
        """The shell knows where the input ends."""

    def status(self) -> int:
        return self._ends["out"].status if self._is_complete else self._shell.status()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._log.log_end(self._ends["out"].status if self._is_complete else None)
            self._release(self._is_complete)
