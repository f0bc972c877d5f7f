"""Hosts that exist only in a test: scripted links that pass the same contract tests as the real ones.

opener = FakeOpener({"uname -m": b"x86_64\\n"})
opener = FakeOpener(lambda host, command: Completed(0, b"…"))       # the same on every host
opener = FakeOpener(…, down={"node2": Failure("node2", Kind.UNREACHABLE, "connection refused", code="refused")})
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import Stream
from ipexctl.model.hosts import NO_COMMAND_IO, Command, CommandIO, Completed, Host, LinkError

Answer = Callable[[Host, Command], Completed]
Script = Answer | Mapping[str, Completed | bytes]


def answering(script: Script) -> Answer:
    """A dict maps ``str(command)``, or any words in it, to a `Completed` or to the bytes of its stdout.

    The longest matching key wins; a command no key matches fails the test by status 127.
    """
    if callable(script):
        return script

    def answer(host: Host, command: Command) -> Completed:
        words = str(command)
        keys = sorted((key for key in script if key in words), key=len, reverse=True)
        if not keys:
            return Completed(127, b"", f"fake: no answer for: {words}\n".encode())
        result = script[keys[0]]
        return result if isinstance(result, Completed) else Completed(0, result)

    return answer


class FakeChannel:
    """Plays a `Completed`: stdout, then stderr, then the status. Records what was written."""

    def __init__(self, completed: Completed) -> None:
        self._completed = completed
        self.written = bytearray()
        self._input_ended = False
        self._closed = threading.Event()
        both: tuple[tuple[Stream, bytes], ...] = (("out", completed.out), ("err", completed.err))
        self._pieces = [(stream, data) for stream, data in both if data]

    def __iter__(self) -> Iterator[tuple[Stream, bytes]]:
        while (pieces := self.read(None)) is not None:
            yield from pieces

    def read(self, timeout: float | None) -> list[tuple[Stream, bytes]] | None:
        return [self._pieces.pop(0)] if self._pieces and not self._closed.is_set() else None

    def write(self, data: bytes) -> None:
        if self._closed.is_set() or self._input_ended:
            raise BrokenPipeError("the command's input has ended")
        self.written += data

    def end_input(self) -> None:
        self._input_ended = True

    def status(self) -> int:
        return self._completed.status

    def close(self) -> None:
        self._closed.set()

    def __enter__(self) -> FakeChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SingleByteChannel(FakeChannel):
    """Gives its standard output byte by byte."""

    def __init__(self, output: bytes) -> None:
        super().__init__(Completed(0, b""))
        self._bytes = (output[at : at + 1] for at in range(len(output)))

    def read(self, timeout: float | None) -> list[tuple[Stream, bytes]] | None:
        byte = None if self._closed.is_set() else next(self._bytes, None)
        return None if byte is None else [("out", byte)]


class FakeLink:
    """Answers commands from a script and keeps them in ``commands``."""

    def __init__(self, host: Host, script: Script) -> None:
        self._host = host
        self._answer = answering(script)
        self._lock = threading.Lock()
        self.commands: list[Command] = []
        self.channels: list[FakeChannel] = []
        self.closed = False

    @property
    def host(self) -> Host:
        return self._host

    def notes(self) -> tuple[str, ...]:
        return ()

    def _completed(self, command: Command) -> Completed:
        if self.closed:
            raise LinkError(Failure(self._host.name, Kind.UNREACHABLE, "the link was closed", code="lost"))
        if any("\0" in word for word in command.argv):
            raise ValueError("an argument has a NUL byte in it")
        with self._lock:
            self.commands.append(command)
        return self._answer(self._host, command)

    def run(self, command: Command, command_io: CommandIO = NO_COMMAND_IO) -> Completed:
        output = self._completed(replace(command, stdin=command_io.get_input()) if command_io.get_input else command)
        if command_io.on_output is not None:
            command_io.on_output(output.out)
        cut = len(output.out) > command.cap or len(output.err) > command.cap
        return Completed(output.status, output.out[: command.cap], output.err[: command.cap], output.truncated or cut)

    def stream(self, command: Command) -> FakeChannel:
        channel = FakeChannel(self._completed(command))
        channel.write(command.stdin)
        self.channels.append(channel)
        return channel

    def close(self) -> None:
        self.closed = True


class FakeOpener:
    """Opens fake links. ``script`` answers on every host, ``down`` names hosts that cannot be reached and why."""

    def __init__(self, script: Script, *, down: Mapping[str, Failure] | None = None) -> None:
        self._script = script
        self._down = down or {}
        self._lock = threading.Lock()
        self.links: dict[str, FakeLink] = {}
        self.closed = False

    def open(self, host: Host) -> FakeLink:
        if host.name in self._down:
            raise LinkError(self._down[host.name])
        with self._lock:
            if host.name not in self.links or self.links[host.name].closed:
                self.links[host.name] = FakeLink(host, self._script)
            return self.links[host.name]

    def close(self) -> None:
        with self._lock:
            self.closed = True
            for link in self.links.values():
                link.close()
