"""The options of ``ipexctl run`` that a launch line becomes, and what of the line has no place among them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ipexctl.decide.launch.launch_table import LaunchTable, match_name
from ipexctl.decide.parsing.shell import END, QUOTED, quote_word, remove_marks
from ipexctl.model.errors import Note, UsageError
from ipexctl.model.json_values import Record
from ipexctl.model.secrets import looks_secret
from ipexctl.model.tasks import Flag, Run
from ipexctl.model.text import printable

_WHY_LEFT = {  # code → why words of the line are left out
    "shell": "run stores the output of each rank",
    "input": "ranks of run have no input, but rank 0 with --stdin",
    "command": "run does not start it",
    "prefix": "run starts without it",
    "variable": "run sets it on each host",
    "value": "a shell would have replaced it",
    "option": "run has nothing in its place",
}
_DEFAULTS = {  # a free port, all instances, cores or nodes, the directory of the script: as without
    ("--port", "0"), ("--instance", "-1"), ("--instance", ""), ("--instances", "-1"), ("--instances", "0"),
    ("--cores-per-instance", "-1"), ("--cores-per-instance", "0"), ("--cpus", "all"), ("--numa", "all"),
    ("--numa", "-1"), ("--workdir", "."), ("--workdir", "./"),
}  # fmt: skip
_CPUS = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")
_INTERFACE = re.compile(r"[A-Za-z0-9][\w.:@-]*")


class Translation(Record):
    """The words of ``ipexctl run``: options, and the script with its arguments. What a shell is to replace is still
    marked in them (`decide.parsing.shell`)."""

    options: tuple[str, ...]
    script: tuple[str, ...]
    notes: tuple[Note, ...]

    def format_words(self) -> str:
        """Returns the words for a shell."""
        return " ".join(map(quote_word, (*self.options, *self.script)))


class LaunchWords:
    """Options by their names (variables as ``-e NAME``), in the order of the line. ``exports`` are what the shell file
    exports above the line."""

    def __init__(self, table: LaunchTable) -> None:
        self.table = table
        self.options: dict[str, tuple[str, ...]] = {}
        self.left: dict[str, dict[str, None]] = {}  # by the code of `_WHY_LEFT`
        self.notes: list[Note] = []
        self.exports: Mapping[str, str] = {}

    def leave(self, code: str, word: str) -> None:
        """Notes that a word of the line is left out."""
        self.left.setdefault(code, {})[word] = None

    def list_notes(self) -> tuple[Note, ...]:
        """Returns what is to be known about the translation."""
        left = [Note(code, f"left out: {', '.join(words)} ({_WHY_LEFT[code]})") for code, words in self.left.items()]
        return (*self.notes, *left)

    def adopt(self, other: "LaunchWords", but: Iterable[str] = ()) -> None:
        """Takes what another has read, except these options and those that are already set."""
        for option, words in other.options.items():
            if option not in but:
                self.options.setdefault(option, words)
        self.notes += other.notes
        for code, left in other.left.items():
            for word in left:
                self.leave(code, word)

    def set_option(self, option: str, value: str, spelled: str) -> None:
        """Gives ``run`` an option with the value of ``spelled``; a switch has none. Raises `UsageError` as run does."""
        shown = printable(f"{spelled} {remove_marks(value)}".strip())
        if option == "--iface" and not (_INTERFACE.fullmatch(value) or END in value):
            self.leave("option", shown)
        elif (option, value) in _DEFAULTS:
            return
        elif why := _refuse_value(option, value):
            raise UsageError(f"{shown} does not fit run's {option}, which {why}")
        else:
            kind = list_run_options().get(option, (str, None))[0]
            self.options[option] = (option,) if kind is bool else (option, value)

    def set_variable(self, assignment: str) -> None:
        """Gives the ranks a variable, or ``run`` the option that stands in its place."""
        name, _, value = assignment.partition("=")
        meaning = self._find_meaning(name)
        if meaning == "own":
            self.leave("variable", name)
        elif meaning == "-e":
            self.options[f"-e {name}"] = ("-e", assignment)
        else:
            self.set_option(meaning, value, name)

    def pass_variable(self, name: str) -> None:
        """Gives the ranks a variable with the value that it has where the line starts."""
        if self._find_meaning(name) == "own":
            self.leave("variable", name)
        elif name not in self.exports and f"-e {name}" not in self.options:
            self.options[f"-e {name}"] = ("--pass-env", name)

    def export_variable(self, name: str, value: str, in_place: bool) -> None:
        """Takes a variable that the shell file exports above the line. ``in_place``: the same shell starts ``run``."""
        meaning = self._find_meaning(name)
        if meaning == "own" or (END not in value and not (in_place and looks_secret(name))):
            self.set_variable(f"{name}={value}")
        elif not in_place:
            self.leave("value", f"{name}={remove_marks(value)}")
        elif meaning == "-e":
            self.options[f"-e {name}"] = ("--pass-env", name)
        else:
            self.set_variable(f"{name}={QUOTED}${name}{END}")

    def _find_meaning(self, name: str) -> str:
        return self.table.variables.get(match_name(name, self.table.variables), "-e")


def _is_cpu_list(value: str) -> bool:
    """Returns whether ``run`` takes it. It is not listed: a few letters of a script stand for millions of CPUs."""
    parts = map(_CPUS.fullmatch, value.replace(" ", "").split(","))
    return all(part and int(part[1]) <= int(part[2] or part[1]) for part in parts)


@cache
def list_run_options() -> dict[str, tuple[Any, Flag]]:
    """Type and flag of the options of ``run``."""
    hints = get_type_hints(Run)
    options: dict[str, tuple[Any, Flag]] = {}
    for field in fields(Run):
        kinds = [kind for kind in get_args(hints[field.name]) if kind is not NoneType]
        kind = kinds[0] if NoneType in get_args(hints[field.name]) else hints[field.name]
        options["--" + field.name.replace("_", "-")] = (kind, field.metadata["flag"])
    return options


def _refuse_value(option: str, value: str) -> str:
    """Returns what ``run`` requires of the option where the value is not that; empty if it is, or is not known yet."""
    if option not in list_run_options() or END in value:
        return ""
    kind, flag = list_run_options()[option]
    if option == "--workdir":
        return "" if value.startswith(("/", "~")) else "begins with / or with ~/, the home directory on the hosts"
    if option in {"--cpus", "--numa"}:
        return "" if _is_cpu_list(value) else "takes numbers and ranges such as 0-3,8"
    if get_origin(kind) is Literal:
        return "" if value in get_args(kind) else f"is one of {', '.join(get_args(kind))}"
    if kind is int or kind is float:
        is_number = re.fullmatch(r"\d{1,9}" if kind is int else r"\d{1,9}(\.\d*)?", value)
        if is_number and flag.allows(kind(value)):
            return ""
        least = flag.gt if flag.ge is None else flag.ge
        bounds = [f"from {least:g}" if least is not None else "", f"to {flag.le:g}" if flag.le is not None else ""]
        return " ".join(["is a number", *filter(None, bounds)])
    return "" if kind is not str or flag.allows(value) else f"is {flag.metavar}"
