"""Short commands of ours that share one shell on a host, one after another (`remote/shared_shell.sh`).

sshd starts the user's login shell for each command, and its startup files may cost more than the command (150 ms with
pyenv or conda): a shared shell pays for them once, and saves each further command a round trip to the host."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources

from ipexctl.act.ssh.command_link import CommandChannel, CommandLink, CommandLog
from ipexctl.act.ssh.quoting import format_shell_line, make_nonce
from ipexctl.model.commands import Command
from ipexctl.model.events import Stream
from ipexctl.model.hosts import Host
from ipexctl.model.links import LinkError

ENDING = 2.0  # seconds that a session may take to end
_LONGEST_LINE = 1024  # bytes: a shell reads lines byte by byte, longer ones for longer than a program takes to start


def make_shell_command() -> Command:
    """What starts a shared shell."""
    return Command(("/bin/sh", "-c", resources.files("ipexctl.remote").joinpath("shared_shell.sh").read_text("utf-8")))


@dataclass(slots=True)
class EndFinder:
    """Splits one output into that of a command and the line behind it, which begins with the nonce."""

    nonce: bytes
    ended: bool = False
    status: int = 255  # of the command, where the line tells it
    _held: bytes = b""  # what may be the beginning of that line

    def extract_output(self, data: bytes) -> bytes:
        """The part of ``data`` that is known to be the command's output."""
        mark = b"\n" + self.nonce
        data = self._held + data
        start = data.find(mark)
        end = data.find(b"\n", start + len(mark)) if start >= 0 else -1
        if end >= 0:
            self.ended, self._held = True, b""
            self.status = int(data[start + len(mark) : end] or self.status)
            return data[:start]
        if start < 0:  # only the last line can still become it
            start = data.rfind(b"\n", -len(mark))
            start = start if start >= 0 and mark.startswith(data[start:]) else len(data)
        self._held = data[start:]
        return data[:start]


class SharedShellChannel(CommandChannel):
    """A command in a shared shell: what the shell says until both outputs have their last line; see `Channel`.

    ``release`` is called once, when the channel is closed: with True where the shell can take the next command, with
    False where this one did not end."""

    def __init__(
        self, shell: CommandChannel, command: Command, log: CommandLog, release: Callable[[bool], None]
    ) -> None:
        nonce = make_nonce()
        self._shell, self._log, self._release = shell, log, release
        self._ends: dict[Stream, EndFinder] = {"out": EndFinder(nonce), "err": EndFinder(nonce)}
        self._closed = False
        text, size = format_shell_line(command), command.late_input or len(command.stdin)
        if len(text) > _LONGEST_LINE or b"\n" in text:
            text = b"{ " + text + b"\n}"
            shell.write(b"%d %d %s\n" % (len(text), size, nonce) + text)
        else:
            shell.write(b"0 %d %s %s\n" % (size, nonce, text))

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


class SharedShellLink(CommandLink[CommandChannel]):
    """A link whose brief commands share a shell on its host."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._shell: CommandChannel | None = None  # while no command uses it

    def _start_brief_command(self, command: Command, patience: float) -> CommandChannel:
        shell = self._take_shell() or self._start_command(make_shell_command(), patience)

        def release(usable: bool) -> None:
            with self._lock:
                keep = usable and self._shell is None and not self._closed
                if keep:
                    self._shell = shell
            if not keep:
                shell.close()

        try:
            return SharedShellChannel(shell, command, CommandLog(self._host.name, command), release)
        except BrokenPipeError:  # it was ended on the host since its last command
            shell.close()
            return self._start_command(command, patience)
        except BaseException:
            shell.close()
            raise

    def _take_shell(self) -> CommandChannel | None:
        with self._lock:
            shell, self._shell = self._shell, None
        if shell is not None and shell.has_ended():
            shell.close()
            return None
        return shell

    def _end_idle_shell(self) -> bool:
        """Whether there was one. Waits for its end."""
        shell = self._take_shell()
        if shell is None:
            return False
        with suppress(LinkError), shell:
            shell.end_input()
            while shell.read(ENDING):
                pass
        return True
