"""Launch lines of mpirun, torchrun, ipexrun, Slurm and ``accelerate launch`` as words of ``ipexctl run``. What each
option becomes is in ``data/launchers.toml``; what is not there is refused, not guessed."""

import re
import shlex
from collections.abc import Mapping

from ipexctl.model.errors import UsageError
from ipexctl.model.json_values import Record
from ipexctl.model.text import printable


class LaunchTable(Record):
    """``data/launchers.toml``; its comment explains the tables."""

    programs: Mapping[str, str]
    options: Mapping[str, Mapping[str, str]]
    variables: Mapping[str, str]


class LaunchLine:
    """A line that is being read: ``words`` are left of it, ``options`` is what it has become. Of an option given twice
    the first counts. Raises `UsageError` for what it does not know, `ValueError` for open quotes."""

    def __init__(self, text: str, table: LaunchTable) -> None:
        self.words, self.table, self.options, self.nodes = shlex.split(text), table, list[tuple[str, ...]](), "1"

    def convert(self) -> tuple[list[str], list[str]]:
        """The options of ``ipexctl run``, and the script with its arguments."""
        script = ""
        while self.words and not script:
            word = self.words.pop(0)
            name = re.sub(r"^python[\d.]*$", "python", word.rpartition("/")[2])
            if re.match(r"[A-Za-z_]\w*=", word):
                self._convert_variable(word)
            elif word.endswith(".py") or name not in self.table.programs:
                script = word
            else:
                script = self._read_options(self.table.programs[name])
        if not script.endswith(".py") and ("--launcher", "module") not in self.options:
            what = f"the launch line starts no Python script that is known here: {printable(script or '(none)')}"
            raise UsageError(what, hint="give the line that starts Python; of a shell file: ipexctl migrate FILE")
        given = {words[0]: words[-1] for words in self.options}
        if self.nodes.isdecimal() and self.nodes != "1" and given.get("--ppn", "").isdecimal():
            self._add_option("-n", str(int(self.nodes) * int(given["--ppn"])))
        return [word for words in self.options for word in words], [script, *self.words]

    def _read_options(self, program: str) -> str:
        """Takes the options of one program; the module that it starts, if it starts one."""
        known = self.table.options[program]
        while self.words and (self.words[0] in known or self.words[0].startswith("-")):
            word = self.words.pop(0)
            name, equals, value = word.partition("=")
            name = name if name in known else name.replace("_", "-")
            if name not in known and name[:2] in known:  # -n4
                name, equals, value = word[:2], "=", word[2:]
            target = known.get(name)
            if target is None or not (equals or self.words or target.endswith("!")):
                wrong = "is not known here" if target is None else "lacks its value"
                raise UsageError(f"{program}'s option {printable(name)} {wrong}", hint="ipexctl run --help")
            if target.endswith("!"):
                self._add_option(*target[:-1].split())
                continue
            value = value if equals else self.words.pop(0)
            if target == "module" and value not in self.table.programs:
                self._add_option("--launcher", "module")
                return value
            self._convert_option(target, value)
        self._add_option(*known.get("", "").split())
        return ""

    def _convert_option(self, target: str, value: str) -> None:
        if target == "module":
            self.words.insert(0, value)
        elif target == "line":
            self.words = shlex.split(value)
        elif target == "nodes":
            self.nodes = value.rpartition(":")[2]  # torchrun's least:most
        elif target == "hosts":
            self._add_option("--hosts", re.sub(r":\d+(?=,|$)", "", value))
        elif target == "variable" or (target == "names" and "=" in value):
            self._convert_variable(value if "=" in value else f"{value}={self.words.pop(0) if self.words else ''}")
        elif target == "names":
            for name in value.split(","):
                self._add_option("--pass-env", name)
        else:
            self._add_option(*(f"{target}={value}".split(" ") if " " in target else (target, value)))

    def _convert_variable(self, assignment: str) -> None:
        name, _, value = assignment.partition("=")
        option = self.table.variables.get(name, "-e")
        self._add_option(option, assignment if option == "-e" else value)

    def _add_option(self, *words: str) -> None:
        taken = {each[0] for each in self.options} - {"-e", "--pass-env"}
        taken |= {"-f", "--hosts"} if taken & {"-f", "--hosts"} else set()
        if words and words[0] and words[0] not in taken:
            self.options.append(words)
