"""The command line of a run as it may be typed again: with another option, or without some hosts."""

import posixpath
from collections.abc import Sequence

from ipexctl.model import events as e
from ipexctl.model.errors import Hint, complete_hint
from ipexctl.model.run_state import RunState

_NO_COMMAND = e.Started("", "", ())


def make_command_with(state: RunState, option: str, *value: str, needs: str = "") -> Hint | None:
    """Returns the same command line with an option, if it is one of `run` that has the option that this ``needs``.
    Without such a need, the option itself is to be new."""
    (own, script), options = _split(state), list_options(state)
    if own[:1] != ("run",) or (needs not in options if needs else option in options):
        return None
    words = Hint(["run", option, *value]).repeat(own).words if option in options else ["run", option, *value, *own[1:]]
    return complete_hint(Hint([*words, *script]), state.selection_flags)


def make_command_without(state: RunState, *hosts: str) -> Hint | None:
    """Returns the same command line without these hosts; None where it was no `run`."""
    words = list(state.command.words) if state.command else []
    if words[:1] != ["run"]:
        return None
    script, without = _find_script_word(state.title, words), [f"!{host}" for host in hosts]
    for at, word in enumerate(words[:script]):
        name, equals, value = word.partition("=")
        if name in ("--limit", "-l") and (equals or at + 1 < script):
            limit = value if equals else words[at + 1]
            names = limit.split(",")
            if state.command and {*names} <= {*state.command.hosts}:  # no patterns: those that are left
                limit = ",".join(name for name in names if name not in hosts)
            else:
                limit = ":".join([limit, *without])
            words[at : at + (1 if equals else 2)] = ["--limit", limit]
            break
    else:
        words[1:1] = ["--limit", ",".join(without)]
    return complete_hint(Hint(words), state.selection_flags)


def make_command_of_module(state: RunState) -> Hint | None:
    """Returns the same command line with the script as a module; None where it has no path below this directory."""
    own, script = _split(state)
    parts = posixpath.normpath(find_script(state)).removesuffix(".py").split("/")
    if own[:1] != ("run",) or len(parts) < 2 or not all(part.isidentifier() for part in parts):
        return None
    return complete_hint(Hint([*own, "-m", ".".join(parts), *script[1:]]), state.selection_flags)


def find_script(state: RunState) -> str:
    """Returns the script of the run as it was typed, else its name."""
    return [*_split(state)[1], state.run.title][0]


def list_options(state: RunState) -> set[str]:
    """The options of ipexctl in the command line of the run."""
    return {word.partition("=")[0] for word in _split(state)[0]}


def _split(state: RunState) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words of the run's command line before its script, and from the script on."""
    asked = state.run.asked or state.command or _NO_COMMAND
    at = _find_script_word(asked.title, asked.words)
    return asked.words[:at], asked.words[at:]


def _find_script_word(title: str, words: Sequence[str]) -> int:
    """Returns where the script of this name stands among the words of `run`: options of ipexctl stand before it."""
    return next((at for at, word in enumerate(words) if word.rpartition("/")[2] == title), len(words))
