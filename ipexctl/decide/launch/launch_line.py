"""Launch lines of mpirun, torchrun, ipexrun, Slurm and ``accelerate launch`` as words of ``ipexctl run``. What each
option becomes is in ``data/launchers.toml``; what is not there is refused, not guessed."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping

from ipexctl.model.errors import UsageError
from ipexctl.model.hints import advise
from ipexctl.model.json_values import Record
from ipexctl.model.text import pluralize, printable

_LAUNCH = re.compile(
    r"^[ \t]*((?:\w+=\S+[ ]+)*(?:(?:mpirun|mpiexec[.\w]*|torchrun|ipexrun|srun|sbatch|accelerate[ ]launch)[ ]"
    r"|python[\d.]*[ ]-m[ ](?:torch\.distributed|intel_extension_for_pytorch\.cpu)\.\w+)(?:[^\\\n]|\\\n)*)",
    re.MULTILINE,
)


class LaunchTable(Record):
    """``data/launchers.toml``; its comment explains the tables."""

    programs: Mapping[str, str]
    options: Mapping[str, Mapping[str, str]]
    variables: Mapping[str, str]


def find_launch_lines(text: str) -> Iterator[tuple[int, str, str]]:
    """The launch lines of a shell file: line number, the line, and the line with what a batch file says of its job."""
    job = " ".join(["sbatch", *re.findall(r"^#SBATCH[ \t]+(.*)", text, re.MULTILINE)])
    for match in _LAUNCH.finditer(text):
        line = match[1].replace("\\\n", " ")
        yield text.count("\n", 0, match.start(1)) + 1, line, line if job == "sbatch" else f"{job} {line}"


class LaunchLine:
    """A line that is being read: ``words`` are left of it, ``options`` is what it has become. Of an option given twice
    the first counts. ``read_file`` gives the text of a batch file by its name. Raises `UsageError` for what it does not
    know, `ValueError` for open quotes."""

    def __init__(self, text: str, table: LaunchTable, read_file: Callable[[str], str]) -> None:
        self.words, self.table, self.options, self.nodes = shlex.split(text), table, list[tuple[str, ...]](), ""
        self.read_file = read_file

    def convert(self) -> tuple[list[str], list[str]]:
        """The options of ``ipexctl run``, and the script with its arguments."""
        script, is_batch = "", False
        while self.words and not script:
            word = self.words.pop(0)
            name = re.sub(r"^python[\d.]*$", "python", word.rpartition("/")[2])
            if re.match(r"[A-Za-z_]\w*=", word):
                self._convert_variable(word)
            elif name in self.table.programs:
                script, is_batch = self._read_options(self.table.programs[name]), name == "sbatch"
            elif is_batch and not word.endswith(".py"):
                self._read_batch_file(word)
            else:
                script = word
        if not script.endswith(".py") and ("--launcher", "module") not in self.options:
            what = f"the launch line starts no Python script that is known here: {printable(script or '(none)')}"
            raise UsageError(what, hint="give the line that starts Python; migrate reads a shell file")
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
                raise UsageError(f"{program}'s option {printable(name)} {wrong}", hint=advise("run", "--help-all"))
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

    def _read_batch_file(self, file: str) -> None:
        """Takes what a batch file says of its job, and the line that it starts; options already taken win."""
        lines = [line for _, own, line in find_launch_lines(self.read_file(file)) if not own.startswith("sbatch")]
        if len(lines) != 1 or self.words:
            what = "is given arguments" if self.words else f"has {pluralize(len(lines), 'launch line')}"
            raise UsageError(f"the batch file {printable(file)} {what}", hint=advise("migrate", file))
        self.words = shlex.split(lines[0])

    def _convert_option(self, target: str, value: str) -> None:
        if target == "module":
            self.words.insert(0, value)
        elif target == "line":
            self.words = shlex.split(value)
        elif target == "nodes":
            self.nodes = self.nodes or value.rpartition(":")[2]  # torchrun's least:most
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
