"""``data/launchers.toml``: programs of launch lines, and what each of their options is to ``ipexctl run``."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ipexctl.decide.parsing.shell import EXPANSION
from ipexctl.model.json_values import Record
from ipexctl.model.toml import parse_toml

_NAMED_PROGRAM = re.compile(
    r"(?:\$\(|`) *(?:which|command -v|type -[pP]) +([\w./+-]+) *[)`]|\$\{\w+:?-([\w./+-]+)\}|\$\{?([A-Z][A-Z0-9]+)\}?"
)

ProgramKind = Literal["mpi", "slurm", "agent", "job", "prefix", "refused"]


class Program(Record):
    """A program of a launch line; the comment of the table explains the fields. ``options`` are meanings by name."""

    name: str
    kind: ProgramKind
    options: Mapping[str, str]
    means: str = ""
    ppn: str = ""
    nodes: str = ""
    rest: str = ""
    prefix: str = ""
    gives: str = ""
    unless: str = ""
    local: frozenset[str] = frozenset()
    silent: bool = False

    def find_option(self, word: str) -> str | None:
        """Returns the name of the option that a word spells, without its value: with one dash or two, ``-`` or ``_``,
        or so much of a long one that it is the only one."""
        name = word.lstrip("-").replace("_", "-")
        if name in self.options:
            return name
        alike = [each for each in self.options if each.startswith(name)] if len(name) > 2 else []
        if len({self.options[each] for each in alike}) == 1:
            return alike[0]
        return match_name(name, [each for each in self.options if each.endswith("*")]) or None


class LaunchTable(Record):
    """``programs`` by the names that lines have for them; ``variables`` and ``mca`` are meanings by name."""

    programs: Mapping[str, Program]
    variables: Mapping[str, str]
    mca: Mapping[str, str]
    allocations: Mapping[str, str]
    directives: Mapping[str, str]  # schedulers by what they read in batch files
    mentions: frozenset[str]
    modules: Mapping[str, str]  # of each rank, by two words that start ranks themselves

    def find_owner(self, word: str) -> Program | None:
        """Returns the first program that has an option, best one that does more than leave it out; None: none has."""
        name = word.lstrip("-").replace("_", "-")
        owners = [each for each in self.programs.values() if name in each.options]
        telling = (each for each in owners if not each.options[name].startswith(("own", "left")))
        return next(telling, next(iter(owners), None))

    def find_program(self, words: Sequence[str]) -> tuple[Program, int] | None:
        """Returns the program at the beginning of a command, and the number of words of its name."""
        name = normalise_program(find_named_program(words[0])) if words else ""
        if len(words) > 1 and (program := self.programs.get(f"{name} {words[1]}")):
            return program, 2
        return (self.programs[name], 1) if name in self.programs else None

    def find_module(self, words: Sequence[str]) -> str:
        """Returns the module that each rank starts in the place of the two words at the beginning of a command."""
        return self.modules.get(" ".join([normalise_program(word) for word in words[:2]]), "")


def find_named_program(word: str) -> str:
    """Returns the program that a shell would look for (``$(which python)``, ``${PYTHON:-python}``), or that a variable
    has its name from (``$MPIRUN``); else the word."""
    match = EXPANSION.fullmatch(word)
    named = match and _NAMED_PROGRAM.fullmatch(match[1])
    return (named[1] or named[2] or named[3].lower()) if named else word


def normalise_program(word: str) -> str:
    """Returns the name of a program without its directory, and of Python without its version."""
    return re.sub(r"^(python|pypy)[\d.]*$", r"\1", word.rpartition("/")[2])


def match_name(name: str, patterns: Iterable[str]) -> str:
    """The pattern that a name fits: itself, or its beginning and ``*``; of several the longest. Empty if none does."""
    fitting = [each for each in patterns if name == each or (each[-1:] == "*" and name.startswith(each[:-1]))]
    return max(fitting, key=len, default="")


def parse_launch_table(text: str) -> LaunchTable:
    document = parse_toml(text)
    made: dict[str, Program] = {}
    programs: dict[str, Program] = {}
    for name, entry in document["programs"].items():
        names, parent = entry.pop("names"), made.get(entry.pop("like", ""))
        options = {**(parent.options if parent else {}), **_invert(entry.pop("options", {}))}
        entry |= {"name": name, "options": options, "local": frozenset(entry.pop("local", "").split())}
        made[name] = replace(parent, **entry) if parent else Program(**entry)
        programs |= dict.fromkeys(names, made[name])
    allocations, directives = _invert(document["allocations"]), _invert(document["directives"])
    mentions, mca = frozenset(document["mentions"]["names"].split()), _invert(document["mca"])
    return LaunchTable(
        programs, _invert(document["variables"]), mca, allocations, directives, mentions, document["modules"]
    )


def _invert(meanings: Mapping[str, str]) -> dict[str, str]:
    return {name: meaning for meaning, names in meanings.items() for name in names.split()}
