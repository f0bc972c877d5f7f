"""Commands are words until the last moment: argv, never a string."""

import re
import shlex
from collections.abc import Mapping, Sequence

from ipexctl.model.json_values import Record, field

_PLAIN = re.compile(r"[A-Za-z0-9 _.,:;/=@%+~#&|<>(){}\[\]*?^-]*")


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
        output = (self.err if self.err.strip() else self.out).decode("utf-8", "replace").strip()
        return "\n".join(output.splitlines()[-lines:])
