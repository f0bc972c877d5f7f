"""Hosts as the user wrote them, the commands for them, and the links that carry these.

A command is words until the last moment: argv, never a string. SSH, local and fake links pass one contract test."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from ipexctl.model.errors import LinkError as LinkError
from ipexctl.model.errors import Origin
from ipexctl.model.json_values import Record, field

Stream = Literal["out", "err"]
TAIL_LIMIT = 4096  # bytes at the end of an output that are read for a message
_PLAIN = re.compile(r"[A-Za-z0-9 _.,:;/=@%+~#&|<>(){}\[\]*?^-]*")


class Host(Record):
    """A machine that can be reached over SSH. ``name`` is what the user calls it and is unique in an inventory;
    ``address`` is what is connected to (a name, an IPv4 or an IPv6 address without brackets). ``None``: not given, SSH
    configuration decides."""

    name: str
    address: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None  # room for ranks
    key: str | None = None  # path of an identity file
    groups: tuple[str, ...] = ()
    vars: Mapping[str, str] = field(default_factory=dict)  # venv, workdir, python, iface, local … as written
    origin: Origin | None = None
    hint: str | None = None  # what helps if it cannot be reached as written

    @property
    def is_local(self) -> bool:
        """Reached without SSH: with ``local=yes``, or written ``localhost`` without ``local=no``, user, port or key."""
        if "local" in self.vars:
            return self.vars["local"] in {"yes", "true", "1"}
        return self.address == "localhost" and self.user is None and self.port is None and self.key is None


class Inventory(Record):
    """Hosts in the order of the file; the first is the head (node0), where mpirun starts."""

    hosts: tuple[Host, ...]
    source: str = ""  # the file, or "--hosts"
    limit: str = ""  # --limit, as it chose these from the source
    warnings: tuple[str, ...] = ()  # of reading it; a verb says them first
    left_out: tuple[Host, ...] = ()  # by --limit
    empty_groups: tuple[str, ...] = ()  # of the file: without hosts

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __len__(self) -> int:
        return len(self.hosts)

    @property
    def head(self) -> Host:
        return self.hosts[0]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)

    def __getitem__(self, name: str) -> Host:
        return {host.name: host for host in self.hosts}[name]


class Command(Record):
    """What is to be executed on one host, in a POSIX shell without startup files. ``script`` is POSIX sh with ``argv``
    as its name and parameters: a program of its own. ``late_input`` bytes of input are not known
    yet: `Link.run` gets them while the command runs, in place of ``stdin``. ``env`` ends up in the argument list of the
    remote shell: never a secret (those travel through ``stdin``). ``timeout`` in seconds bounds the whole command;
    ``cap`` in bytes bounds each of its two outputs. ``brief``: short, and nothing that it leaves behind writes to its
    outputs; such commands share a shell and save a login each."""

    argv: tuple[str, ...]
    script: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    stdin: bytes = b""
    late_input: int = 0
    timeout: float = 10.0
    cap: int = 1 << 20
    brief: bool = False

    def format_line(self) -> str:
        """Returns the line that a POSIX shell turns back into exactly these words."""
        words = _join(("/bin/sh", "-c", self.script, *self.argv) if self.script else self.argv)
        if self.env:
            words = f"env {_join([f'{key}={value}' for key, value in self.env.items()])} {words}"
        return f"cd {_quote(self.cwd)} && exec {words}" if self.cwd else f"exec {words}"

    def __str__(self) -> str:
        """For people, who need not read a script: it has a name."""
        return shlex.join(self.argv) if self.script else self.format_line().removeprefix("exec ")


def _join(words: Sequence[str]) -> str:
    return " ".join(map(_quote, words))


def _quote(word: str) -> str:
    """In double quotes where nothing in the word is special there: the line may then stand in single ones as it is."""
    return f'"{word}"' if _PLAIN.fullmatch(word) and shlex.quote(word) != word else shlex.quote(word)


class Completed(Record):
    """How a command ended: exit status (128 + n for signal n), and its output up to the cap."""

    status: int
    out: bytes = b""
    err: bytes = b""
    truncated: bool = False

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "replace")

    def get_tail(self, lines: int = 3) -> str:
        """Returns the last lines of its output (stderr, else stdout), for a message. Untrusted: show it escaped."""
        output = (self.err if self.err.strip() else self.out)[-TAIL_LIMIT:].decode("utf-8", "replace").strip()
        return "\n".join(output.splitlines()[-lines:])


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
