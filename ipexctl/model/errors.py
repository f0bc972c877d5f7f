"""Errors and failures with their hints, reasons, and the exit codes, which are the contract of the command line.

An error is raised and ends something; all of ours are `IpexctlError`. A `Failure` is a value: what happened to one
host, beside the results of the others. Any other exception is a fault of ipexctl itself and ends with `Exit.INTERNAL`.
What helps is words, and at most one command of ipexctl: it is made and completed here alone."""

import shlex
from collections.abc import Iterable, Sequence
from enum import Enum, IntEnum
from itertools import chain, pairwise
from typing import TypeVar

from ipexctl.model.json_values import JsonObject, Record

Text = TypeVar("Text", bound=str | None)

# Commands that take --hostfile, --hosts and --limit, and those that take --venv. A test holds both to the command line.
WITH_VENV = frozenset(("bench", "doctor", "install", "run", "tune", "uninstall"))
ON_HOSTS = WITH_VENV | {"attach", "du", "exec", "fetch", "logs", "ps", "stop", "sync", "watch"}
_SCRIPTS = frozenset(("exec", "run", "tune"))  # commands whose last words are a script's
_KINDS = frozenset(("-m", "--module", "--program"))  # options that say what WHAT is
_LIMITS = frozenset(("--limit", "-l"))
_HOST_OPTIONS = _LIMITS | {"-f", "--hostfile", "--hosts"}


class Hint(str):
    """A text whose last line is the command of ipexctl that is advised; ``words`` are its words, without ``ipexctl``.
    Wherever a text is shown or saved it is one; `complete_hint` is for the few places that know the user's options."""

    words: tuple[str, ...]
    advice: str  # the text before the command

    def __new__(cls, words: Sequence[str], advice: str = "") -> "Hint":
        command = shlex.join(["ipexctl", *words])
        hint = super().__new__(cls, f"{advice}\n{command}" if advice else command)
        hint.words, hint.advice = tuple(words), advice
        return hint

    def fill(self, **values: str) -> "Hint":
        """With these values for the ``{names}`` in its words."""
        return Hint([_fill_word(word, values) for word in self.words], self.advice)

    def keep_installed(self, host: str) -> "Hint":
        """Where it advises an install: with all else as it is on this host, which has an environment."""
        if self.words[0] != "install" or {"--like", "--with"} & {*self.words}:
            return self
        return Hint([*self.words, "--like", host], self.advice)

    def repeat(self, words: Sequence[str]) -> "Hint":
        """Of a command that is to be given again: its ``words``, with the options of this hint in place of theirs."""
        options = {word for word in self.words if word.startswith("-")}
        rest = [
            word for before, word in pairwise(["", *words])
            if before not in options and word.partition("=")[0] not in options
        ]  # fmt: skip
        return Hint([*rest, *self.words[1:]], self.advice)


def _fill_word(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def advise(*words: str, text: str = "") -> Hint:
    """Returns the hint to type ``ipexctl`` and these words, after a text that ends with a colon."""
    return Hint(words, text)


def repeat_command(text: Text, words: Sequence[str]) -> Text:
    """Returns a hint that advises the same command again with the options of these words, which end before WHAT, so
    that what the user asked for stays. Any other text stays as it is."""
    if not isinstance(text, Hint) or not words or text.words[0] != words[0]:
        return text
    return text.repeat([word for word in words if word not in _KINDS])  # type: ignore[return-value]  # a Hint is a text


def complete_hint(text: Text, place: Sequence[str]) -> Text:
    """Returns a hint whose command has these options (names and values in turn), if it takes them and does not have
    them yet. A command that names its hosts gets no others; one with ``--limit`` gets where they are written. Any other
    text stays as it is."""
    if not isinstance(text, Hint):
        return text
    verb, *arguments = text.words
    given = {word.partition("=")[0] for word in arguments}
    named = given & _HOST_OPTIONS
    taken = {"--venv"} if verb in WITH_VENV else set[str]()
    if verb in ON_HOSTS and named <= _LIMITS:
        whole = bool(named) or verb == "stop"  # a run that is ended may have hosts beyond those of this command
        taken |= _HOST_OPTIONS - (_LIMITS if whole else frozenset())
    options = (pair for pair in zip(place[::2], place[1::2], strict=False) if pair[0] in taken - given)
    words = [verb, *chain(*options), *arguments] if verb in _SCRIPTS else [verb, *arguments, *chain(*options)]
    return Hint(words, text.advice)  # type: ignore[return-value]  # a Hint is a text


class Note(Record):
    """A remark or a reason: a stable ``code``, a sentence, and the hosts it is about (none: all of them). ``str(note)``
    is the sentence behind the names of its hosts: ``n1, n2: glibc 2.17, the wheels need 2.28``."""

    code: str
    text: str
    hosts: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = ", ".join(self.hosts)
        return f"{names}: {self.text}" if names else self.text


def complete_notes(notes: Sequence[Note], place: Sequence[str]) -> tuple[Note, ...]:
    """Returns notes whose advised commands have these options, as by `complete_hint`."""
    return tuple(Note(note.code, complete_hint(note.text, place), note.hosts) for note in notes)


class Exit(IntEnum):
    """How a command ends. With several causes the order is 8, 70, signal, 6, 5, 4, 3, 7, 9 (`choose_exit`)."""

    OK = 0
    INPUT = 2
    UNREACHABLE = 3
    STEP = 4
    RANK = 5
    LOST = 6
    BUSY = 7
    RESIDUE = 8
    RECORD = 9
    INTERNAL = 70
    HUP = 129
    INT = 130
    TERM = 143


_ORDER = (Exit.RESIDUE, Exit.INTERNAL, Exit.HUP, Exit.INT, Exit.TERM, Exit.LOST, Exit.RANK, Exit.STEP, Exit.UNREACHABLE,
          Exit.BUSY, Exit.RECORD, Exit.INPUT)  # fmt: skip


def choose_exit(causes: Iterable["Exit | Failure"]) -> Exit:
    """Returns the one exit code that stands for several causes."""
    codes = {cause.kind.exit if isinstance(cause, Failure) else cause for cause in causes}
    return next((code for code in _ORDER if code in codes), Exit.OK)


class Origin(Record):
    """Where something was written: ``hosts:3:7``. Lines and columns count from 1; 0 means not known."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return ":".join([self.file, *(str(n) for n in (self.line, self.column) if n)])


class IpexctlError(Exception):
    """What ipexctl raises itself. ``code`` is a stable word for programs; the text is for people."""

    code: str = "error"


class UsageError(IpexctlError):
    """Input that is wrong or cannot be satisfied: one sentence, reasons one per line, at most one hint. Raised before
    anything is contacted unless ``exit`` says otherwise. Callers that decide by it read ``code``. ``meant`` is a word
    of the command line and the one that it may stand for: the hint is the same command with that."""

    def __init__(
        self,
        sentence: str,
        *,
        reasons: Sequence[str] = (),
        hint: str | None = None,
        exit: Exit = Exit.INPUT,
        code: str = "usage",
        meant: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.reasons = tuple(reasons)
        self.hint = hint
        self.exit = exit
        self.code = code
        self.meant = meant

    def __str__(self) -> str:
        lines = [self.sentence, *(f"  {reason}" for reason in self.reasons)]
        return "\n".join([*lines, f"hint: {self.hint}"] if self.hint else lines)


class ConnectError(IpexctlError):
    """A hop (a host, or a jump host before it) could not be reached or trusted. Raised while connecting; becomes the
    `Failure` of every host behind it."""

    def __init__(self, code: str, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.code, self.what, self.hint = code, what, hint


class RemoteError(IpexctlError):
    """A program of ours on a host could not do what it was asked to. Raised by `Session.ask`; ``code`` is the
    program's word for it, ``more`` its details."""

    def __init__(self, code: str, what: str, more: JsonObject) -> None:
        super().__init__(what)
        self.code, self.what, self.more = code, what, more


class LinkError(IpexctlError):
    """A link could not be opened, was lost, or a command outlived its timeout. Raised by links and channels;
    ``failure`` says what happened to which host."""

    def __init__(self, failure: "Failure") -> None:
        super().__init__(f"{failure.host}: {failure.what}")
        self.code, self.failure = failure.code, failure


class UnwatchedRunError(IpexctlError):
    """A fault of ipexctl (``__cause__``) ended the watching of a run that was started: it may still be running."""

    code = "unwatched"

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run} may still be running")
        self.hint = advise("attach", run, text=f"{self}; this watches it, and Ctrl-C there ends it:")


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


class Failure(Record):
    """One cause on one host (``host`` is empty for a cause of the whole command)."""

    host: str
    kind: Kind
    what: str  # one line, subject first, without the host's name: "connection refused (10.1.0.3:22)"
    hint: str | None = None
    code: str = ""  # stable word for programs: "refused", "timeout", "host-key-changed", "no-space" …
