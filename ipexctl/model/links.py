"""What a link to a host can do. SSH, local and fake links pass one contract test suite."""

from collections.abc import Callable, Iterator
from typing import Protocol

from ipexctl.model.commands import Command, Completed
from ipexctl.model.errors import LinkError as LinkError
from ipexctl.model.events import Stream
from ipexctl.model.hosts import Host
from ipexctl.model.json_values import Record


class Channel(Protocol):
    """A running remote command. Iterating yields (stream, bytes) as they arrive, whatever the pieces, until the end.
    ``read`` gives what has come, [] when nothing came within ``timeout`` seconds, None when both outputs have ended.
    ``write`` blocks until the bytes are taken; ``close`` ends our side (it does not end the remote process)."""

    def __iter__(self) -> Iterator[tuple[Stream, bytes]]: ...
    def read(self, timeout: float | None) -> list[tuple[Stream, bytes]] | None: ...
    def write(self, data: bytes) -> None: ...
    def end_input(self) -> None: ...
    def status(self) -> int: ...  # waits for the end; 128 + n for signal n
    def close(self) -> None: ...
    def __enter__(self) -> "Channel": ...
    def __exit__(self, *_: object) -> None: ...


class CommandIO(Record):
    """``on_output`` gets each piece of a command's standard output as it comes; ``get_input`` is called once the
    command is being started, and returns its `Command.late_input` bytes when they are known."""

    on_output: Callable[[bytes], None] | None = None
    get_input: Callable[[], bytes] | None = None


NO_COMMAND_IO = CommandIO()


class Link(Protocol):
    """An open connection to one host. Methods may be used from several threads at once."""

    @property
    def host(self) -> Host: ...

    def notes(self) -> tuple[str, ...]:
        """Messages to the user on how the host was reached ("new host key recorded"), each shown once."""

    def run(self, command: Command, command_io: CommandIO = NO_COMMAND_IO) -> Completed:
        """Executes and waits. A non-zero status is a value. Raises `LinkError` (lost link, timeout); after a timeout
        the remote process is stopped, or the failure names it. ``command_io`` is used while the command runs."""

    def stream(self, command: Command) -> "Channel":
        """Starts and returns at once; ``command.stdin`` is written first and the input stays open."""

    def close(self) -> None: ...


class Opener(Protocol):
    """Opens links: one connection a host, kept for the whole command."""

    def open(self, host: Host) -> Link:
        """Returns the host's link, connecting on first use. Raises `LinkError` within the connect timeout."""

    def close(self) -> None:
        """Closes every link. Safe to call twice, and from another thread, to break waits."""
