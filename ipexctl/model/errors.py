"""How things go wrong, as values.

``UsageError`` is raised before anything is touched; ``Failure`` is a value beside the other hosts' results.
The exit codes are the contract of the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum


class Exit(IntEnum):
    """How a command ends. With several causes the order is 8, signal, 6, 5, 4, 3, 7, 9 (`worst`)."""

    OK = 0
    INPUT = 2
    UNREACHABLE = 3
    STEP = 4
    RANK = 5
    LOST = 6
    BUSY = 7
    RESIDUE = 8
    RECORD = 9
    HUP = 129
    INT = 130
    TERM = 143


_ORDER = (
    Exit.RESIDUE,
    Exit.HUP,
    Exit.INT,
    Exit.TERM,
    Exit.LOST,
    Exit.RANK,
    Exit.STEP,
    Exit.UNREACHABLE,
    Exit.BUSY,
    Exit.RECORD,
    Exit.INPUT,
)


def worst(codes: Sequence[Exit]) -> Exit:
    """The one exit code that stands for several causes."""
    return next((code for code in _ORDER if code in codes), Exit.OK)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where something was written: ``hosts:3:7``. Lines and columns count from 1; 0 means not known."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return ":".join([self.file, *(str(n) for n in (self.line, self.column) if n)])


class UsageError(Exception):
    """Bad input or a request that cannot be met: one sentence, reasons one per line, at most one hint.

    Raised before any host is contacted unless `exit` says otherwise. ``code`` is for callers that decide by the cause.
    """

    def __init__(
        self,
        sentence: str,
        *,
        reasons: Sequence[str] = (),
        hint: str | None = None,
        exit: Exit = Exit.INPUT,
        code: str = "",
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.reasons = tuple(reasons)
        self.hint = hint
        self.exit = exit
        self.code = code

    def __str__(self) -> str:
        lines = [self.sentence, *(f"  {reason}" for reason in self.reasons)]
        return "\n".join([*lines, f"hint: {self.hint}"] if self.hint else lines)


class Interrupted(KeyboardInterrupt):
    """SIGINT, SIGTERM or SIGHUP reached the controller. Raised at one place, thrown into the verb that is going on."""

    def __init__(self, number: int = 2) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit(self) -> Exit:
        return Exit(128 + self.number)


class Kind(str, Enum):
    """What kind of failure a host met; decides the exit code."""

    UNREACHABLE = "unreachable"  # connection, authentication, host key
    STEP = "step"  # a step failed on a host that could be reached
    RANK = "rank"
    LOST = "lost"  # node, launcher or link lost; a limit reached
    BUSY = "busy"
    RESIDUE = "residue"  # something may still be running or could not be removed
    RECORD = "record"  # some output or record could not be stored

    @property
    def exit(self) -> Exit:
        return Exit[self.name]


@dataclass(frozen=True, slots=True)
class Failure:
    """One cause on one host (``host`` is empty for a cause of the whole command)."""

    host: str
    kind: Kind
    what: str  # one line, subject first, without the host's name: "connection refused (10.1.0.3:22)"
    hint: str | None = None
    code: str = ""  # stable word for programs: "refused", "timeout", "host-key-changed", "no-space" …
