"""Commands are words until the last moment: argv, never a string."""

import shlex
from collections.abc import Mapping
from dataclasses import field

from ipexctl.model.json_values import Record


class Command(Record):
    """What is to be executed on one host, in a POSIX shell without startup files.

    ``late_input`` bytes of input are not known yet: `Link.run` gets them while the command runs, in place of ``stdin``.
    ``env`` ends up in the argument list of the remote shell: never a secret (those travel through ``stdin``).
    ``timeout`` in seconds bounds the whole command; ``cap`` in bytes bounds each of its two outputs. ``brief``: short,
    and nothing that it leaves behind writes to its outputs; such commands share a shell and save a login each."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    stdin: bytes = b""
    late_input: int = 0
    timeout: float = 10.0
    cap: int = 1 << 20
    brief: bool = False

    def format_line(self) -> str:
        """The one line that a POSIX shell turns back into exactly these words."""
        words = shlex.join(self.argv)
        if self.env:
            words = f"env {shlex.join(f'{key}={value}' for key, value in self.env.items())} {words}"
        return f"cd {shlex.quote(self.cwd)} && exec {words}" if self.cwd else f"exec {words}"

    def __str__(self) -> str:
        return self.format_line().removeprefix("exec ")


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
        """The last lines of its output (stderr, else stdout), for a message. Untrusted: show it escaped."""
        output = (self.err if self.err.strip() else self.out).decode("utf-8", "replace").strip()
        return "\n".join(output.splitlines()[-lines:])
