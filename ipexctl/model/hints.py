"""What helps after an error: words, and at most one command of ipexctl, which is made and completed here alone."""

import shlex
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import TypeVar

# Commands that take --hostfile, --hosts and --limit, and those that take --venv. A test holds both to the command line.
WITH_VENV = frozenset(("bench", "doctor", "install", "run", "tune", "uninstall"))
ON_HOSTS = WITH_VENV | {"attach", "du", "exec", "fetch", "logs", "ps", "stop", "sync", "watch"}
_SCRIPTS = frozenset(("exec", "run", "tune"))  # commands whose last words are a script's
_KINDS = frozenset(("-m", "--module", "--program"))  # options that say what WHAT is
_LIMITS = frozenset(("--limit", "-l"))
_HOST_OPTIONS = _LIMITS | {"-f", "--hostfile", "--hosts"}

Text = TypeVar("Text", bound=str | None)


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
        taken |= _HOST_OPTIONS - (_LIMITS if named else frozenset())
    options = (pair for pair in zip(place[::2], place[1::2], strict=True) if pair[0] in taken - given)
    words = [verb, *chain(*options), *arguments] if verb in _SCRIPTS else [verb, *arguments, *chain(*options)]
    return Hint(words, text.advice)  # type: ignore[return-value]  # a Hint is a text
