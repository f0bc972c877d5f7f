"""Options with one dash, and those of other launchers before the script of ``run``: what they are here
(`data/launchers.toml`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ipexctl.decide.launch.launch_table import LaunchTable, Program

_WITH_VALUES = {"ranks", "ppn", "hosts", "hostfile", "variable", "names"}  # otherwise than the command has them
# Words that scripts have for options of their own, too: those of a script stand behind it.
_OF_SCRIPTS = {"config-file", "debug", "log-dir", "log-level", "log-path", "mixed-precision", "rank", "timeout"}
_OF_LAUNCHERS = {"oversubscribe", "cpu", "gpus"}  # of those that have no counterpart
_WORD = re.compile(r"-[A-Za-z][A-Za-z_-]+")  # an option with one dash and several letters, as Hydra and Open MPI have


class ForeignOptions(NamedTuple):
    """Options of other launchers, what to know about them, and the command line with ours in their place: None where
    one of them has none."""

    names: Sequence[str]
    reasons: Sequence[str]
    words: list[str] | None


def find_long_option(words: Sequence[str], own: Mapping[str, bool], *, before_what: bool) -> str | None:
    """Returns the first option with one dash that belongs to another launcher, or is one of the command with two; a
    parser reads it as several letters. ``before_what``: what stands behind the first argument is not the command's."""
    if not any(_WORD.fullmatch(word.partition("=")[0]) for word in words):
        return None
    foreign = filter(_WORD.fullmatch, translate_options(words, own).names if "--ppn" in own else ())
    return next(foreign, None) or next(_find_own_options(words, own, before_what=before_what), None)


def _find_own_options(words: Sequence[str], own: Mapping[str, bool], *, before_what: bool) -> Iterator[str]:
    """Yields options of the command that stand with one dash: ``-fix``."""
    rest = [*words]
    while rest and rest[0] != "--" and (rest[0].startswith("-") or not before_what):
        word = rest.pop(0)
        name = word.partition("=")[0]
        if _WORD.fullmatch(name) and f"-{name}" in own:
            yield name
        del rest[: _count_values(word, rest, own)]


def translate_options(words: Sequence[str], own: Mapping[str, bool]) -> ForeignOptions:
    """Replaces options of other launchers before the script. ``own`` are the command's, and whether they have a value.
    What the command does itself, or has not, is left out."""
    from ipexctl.verbs.migrate import LaunchLines

    table = LaunchLines().table
    rest, kept, names, left, unknown = [*words], list[str](), list[str](), list[str](), False
    reasons: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        name = word.partition("=")[0]
        program = None if name in own else table.find_owner(name)
        meaning = program.options[name.lstrip("-").replace("_", "-")] if program else ""
        is_own = f"-{name}" in own and meaning not in _WITH_VALUES  # with one dash too few
        if program is None or is_own or not _is_of_launcher(name, meaning):
            count = _count_values(word, rest, own)
            kept += [word, *rest[:count]]
            del rest[:count]
            continue
        names.append(name)
        options, count = _read_option(table, program, [word, *rest])
        unknown |= options is None or any(option not in own for option in options[:1])
        if options == [] and meaning.startswith("nodes"):
            reasons = ["the hosts are all of the hostfile, or those of --hosts or --limit"]
        elif options == []:
            left.append(name)
        kept += options or []
        del rest[: count - 1]
    if left:
        reasons.append(f"left out: {', '.join(left)} (run does it itself, or has nothing in its place)")
    return ForeignOptions(names, reasons, None if unknown else [*kept, *rest])


def _count_values(word: str, rest: Sequence[str], own: Mapping[str, bool]) -> int:
    """How many of the words behind an option that stays are its value; of a script's option that is a guess."""
    name, equal, _ = word.partition("=")
    if equal or not rest:
        return 0
    if name in own:
        return int(own[name])
    glued = not word.startswith("--") and own.get(word[:2], False)  # -n4
    return int(not glued and not rest[0].startswith("-") and not rest[0].endswith(".py"))


def _is_of_launcher(name: str, meaning: str) -> bool:
    """Whether an option that a launcher has is none of the script's, which stands in the wrong place."""
    plain = name.lstrip("-").replace("_", "-")
    if _WORD.fullmatch(name) or plain in _OF_LAUNCHERS:
        return True
    if plain in _OF_SCRIPTS or meaning.startswith(("refused", "module", "line", "export", "include", "exclude", "-e")):
        return False
    return not meaning.startswith(("own", "left")) or "-" in plain


def _read_option(table: LaunchTable, program: Program, words: Sequence[str]) -> tuple[list[str] | None, int]:
    """Returns the options of ``run`` for the one of a program that the words begin with (none: it is left out; None: it
    has no counterpart), and how many of the words it takes."""
    from ipexctl.decide.launch.launch_counts import Level
    from ipexctl.decide.launch.launch_options import LaunchOptions
    from ipexctl.model.errors import UsageError

    reader, level = LaunchOptions(table), Level(program)
    reader.words = [*words[1:]]
    try:
        reader.read_option(level, words[0])
    except UsageError:
        return None, len(words) - len(reader.words)
    hosts = ",".join(f"{name}:{slots}" if slots else name for name, slots in reader.hosts)
    pairs = [("-n", level.ranks), ("--ppn", level.ppn), ("--hosts", hosts), *reader.options.values()]
    return [word for pair in pairs if pair[-1] for word in pair], len(words) - len(reader.words)
