"""The options of the programs in a launch line, by the meanings that ``data/launchers.toml`` gives them."""

import re

from ipexctl.decide.facts.numbers import parse_cpu_mask
from ipexctl.decide.launch.launch_counts import Level
from ipexctl.decide.launch.launch_table import LaunchTable
from ipexctl.decide.launch.launch_words import LaunchWords
from ipexctl.decide.parsing.shell import END, remove_marks, split_marked_commands
from ipexctl.model.errors import Note, UsageError, advise
from ipexctl.model.text import format_cpus, printable, read_seconds

_STEPS = re.compile(r"\b([0-9]{1,4})-([0-9]{1,4}):([1-9][0-9]{0,3})\b")  # of taskset
_STEPS_LIMIT = 4  # of these in a list
_STEPPED_LIMIT = 512  # numbers that each stands for: a line may have a thousand such lists
_MASK_LIMIT = 4096  # letters of a mask: 16,384 CPUs
_NAME = re.compile(r"(?:\[[^\[\]]*\]|[^,\[\]]|[\[\]])+")  # between commas outside of brackets


class LaunchOptions(LaunchWords):
    """``words`` are left of the line. A meaning that is no option of ``run`` is a method ``_take_…`` of the value, how
    the option is spelled, and what its program said so far."""

    def __init__(self, table: LaunchTable) -> None:
        super().__init__(table)
        self.words: list[str] = []
        self.hosts: list[tuple[str, str]] = []  # names and slots
        self.local: dict[str, tuple[str, ...]] = {}  # options of one segment of mpirun's line
        self.is_module = False

    def read_options(self, level: Level) -> None:
        """Reads the options of one program. Raises `UsageError` for one that is not known or not translated."""
        program = level.program
        while self.words and self.words[0].startswith("-") and self.words[0] != "-":
            word = self.words.pop(0)
            if word == "--":
                level.given[word] = ""
                break
            self.read_option(level, word)
            if "module" in level.given and program.kind == "prefix":  # Python's: the rest is the module's
                break
        for name, meaning in program.options.items() if program.prefix else ():
            variable = program.prefix + name.replace("-", "_").upper()
            if (words := self.options.pop(f"-e {variable}", ())) and name not in level.given:
                self.apply_meaning(level, meaning.rstrip("!"), words[-1].partition("=")[2], variable)

    def read_option(self, level: Level, word: str) -> None:
        """Reads an option, and its values among the words behind it. Raises `UsageError` as `read_options`."""
        program = level.program
        spelled, equals, value = word.partition("=")
        name = program.find_option(spelled)
        if name is None and program.kind != "mpi" and word[1:2] in program.options:  # -n4, -lu
            name, spelled = word[1], word[:2]
            if program.options[name].endswith("!"):
                self.words.insert(0, f"-{word[2:]}")
            else:
                equals, value = "=", word[2:]
        if name is None:
            what = f"{program.name}'s option {show(spelled)} is not known here"
            raise UsageError(what, hint=advise("run", "--help-all"))
        meaning = program.options[name]
        if meaning.endswith("!"):
            value = ""
        elif not equals:
            value = self.pop_value(level, spelled)
        level.given |= {name: value, meaning.rstrip("!"): value}
        before = dict(self.options) if name in program.local else {}
        self.apply_meaning(level, meaning.rstrip("!"), value, spelled)
        if name in program.local:
            self.local |= {key: words for key, words in self.options.items() if before.get(key) != words}

    def pop_value(self, level: Level, spelled: str) -> str:
        """Returns the word that is the value of an option. Raises `UsageError` at the end of the line."""
        if not self.words:
            raise UsageError(f"{level.program.name}'s option {show(spelled)} lacks its value")
        return self.words.pop(0)

    def apply_meaning(self, level: Level, meaning: str, value: str, spelled: str) -> None:
        """Takes an option, or the first word behind the options of a program."""
        name, _, fixed = meaning.partition(" ")
        if name == "-e":
            self.set_variable(fixed if "=" in fixed else f"{fixed}={value}")
        elif name.startswith("--"):
            self.set_option(name, fixed or value, f"{level.program.name}'s {spelled}")
        else:
            getattr(self, "_take_" + name.replace("-", "_"))(fixed or value, spelled, level)

    def _take_own(self, value: str, spelled: str, level: Level) -> None:
        pass

    def _take_left(self, value: str, spelled: str, level: Level) -> None:
        self.leave("option", show(f"{spelled} {value}"))

    def _take_pair(self, value: str, spelled: str, level: Level) -> None:
        self._take_left(f"{value} {self.pop_value(level, spelled)}", spelled, level)

    def _take_refused(self, value: str, spelled: str, level: Level) -> None:
        what = f"{level.program.name}'s option {show(f'{spelled} {value}')} is not translated"
        raise UsageError(what, hint=advise("run", "--help-all"))

    def _take_no_dynamo(self, value: str, spelled: str, level: Level) -> None:
        if value.lower() != "no":
            self._take_refused(value, spelled, level)

    def _take_ranks(self, value: str, spelled: str, level: Level) -> None:
        level.ranks = self._check_count(value, spelled, level)

    def _take_ppn(self, value: str, spelled: str, level: Level) -> None:
        if value.lower() in {"auto", "cpu", "gpu", "xpu"}:
            text = f"{spelled} {value}: run starts as many as a host has slots, else one for each NUMA node"
            self.notes.append(Note("ppn", text))
            level.is_open = True
        else:
            level.ppn = self._check_count(value, spelled, level)

    def _take_nodes(self, value: str, spelled: str, level: Level) -> None:
        most = value
        if level.program.kind == "agent" and END not in value:
            least, _, most = value.rpartition(":")  # torchrun's least:most
            level.least = least if least != most else ""
        if re.fullmatch(r"\d+-\d+", most):
            self._take_left(value, spelled, level)
        else:
            level.nodes = self._check_count(most, spelled, level)

    def _check_count(self, value: str, spelled: str, level: Level) -> str:
        if END not in value and not re.fullmatch(r"0*[1-9]\d{0,8}", value):
            raise UsageError(f"{level.program.name}'s {show(f'{spelled} {value}')} is not a number of 1 or more")
        return value if END in value else str(int(value))

    def _take_hosts(self, value: str, spelled: str, level: Level) -> None:
        is_file = level.program.kind in {"slurm", "job"} and "/" in value
        if is_file or remove_marks(value) in self.table.allocations:
            self._take_hostfile(value, spelled, level)
            return
        entries = [value] if END in value else map(str.strip, _split_names(value))
        for entry in entries:
            match = re.fullmatch(r"([^:]+|\[[^\]]+\])(?::([1-9]\d*))?", entry)
            if match is None and END not in value:
                self._take_refused(value, spelled, level)
            self.hosts.append((match[1], match[2] or "") if match else (entry, ""))

    def _take_hostfile(self, value: str, spelled: str, level: Level) -> None:
        scheduler = self.table.allocations.get(remove_marks(value))
        option = "--hosts" if scheduler else "-f"
        self.options[option] = (option, scheduler or value)

    def _take_exclude(self, value: str, spelled: str, level: Level) -> None:
        if ":" in value:  # DeepSpeed's slots of a host
            self._take_refused(value, spelled, level)
        names = _split_names(value.replace("@", ","))
        self.options["--limit"] = ("--limit", ",".join(f"!{name}" for name in names))

    def _take_include(self, value: str, spelled: str, level: Level) -> None:
        """DeepSpeed's hosts: NAME@NAME of the hostfile, or NAME:SLOT,SLOT@NAME:SLOT."""
        entries = [entry.partition(":") for entry in value.split("@")]
        if all(colon for _, colon, _ in entries):
            self.hosts += [(name, str(len(slots.split(",")))) for name, _, slots in entries]
        elif any(colon for _, colon, _ in entries):
            self._take_refused(value, spelled, level)
        else:
            self.options["--limit"] = ("--limit", ",".join(name for name, _, _ in entries))

    def _take_map_by(self, value: str, spelled: str, level: Level) -> None:
        """Mapping: that of ranks to hosts counts, that to sockets and cores does not."""
        policy, *modifiers = value.lower().split(":")
        if policy == "ppr" and modifiers[1:2] == ["node"]:
            self._take_ppn(modifiers[0], spelled, level)
        elif policy in {"ppr", "seq", "rankfile", "dist"} or END in value:
            self._take_refused(value, spelled, level)
        level.by_node = level.by_node or policy == "node" or "span" in modifiers

    def _take_variable(self, value: str, spelled: str, level: Level) -> None:
        self.set_variable(value if "=" in value else f"{value}={self.pop_value(level, spelled)}")

    def _take_names(self, value: str, spelled: str, level: Level) -> None:
        if "=" in value:
            self.set_variable(value)
            return
        for name in value.split(","):
            self.pass_variable(name)

    def _take_export(self, value: str, spelled: str, level: Level) -> None:
        for item in value.split(","):
            if item not in {"ALL", "NONE", "NIL"}:
                self._take_names(item, spelled, level)

    def _take_mca(self, name: str, spelled: str, level: Level) -> None:
        value = self.pop_value(level, spelled)
        meaning = self.table.mca.get(name, "-e")
        if meaning == "refused":
            self._take_refused(f"{name} {value}", spelled, level)
        elif meaning == "-e":
            self.set_variable(f"OMPI_MCA_{name}={value}")
        elif meaning != "own":
            self.set_option(meaning, value, f"{spelled} {name}")

    def _take_mpirun(self, value: str, spelled: str, level: Level) -> None:
        words, self.words = self.words, [word for each in split_marked_commands(value) for word in each.words]
        inner = Level(self.table.programs["mpirun"])
        self.read_options(inner)
        if self.words:
            self._take_refused(value, spelled, level)
        level.fill(inner)
        self.words = words

    def _take_module(self, value: str, spelled: str, level: Level) -> None:
        """The module of Python: a program that is known, or what is to start."""
        self.words[:0] = [value] if value else []
        if value and self.table.find_program(self.words):
            return
        self.is_module = True
        self.options["-m"] = ("-m",)

    def _take_warnings(self, value: str, spelled: str, level: Level) -> None:
        before = self.options.get("-e PYTHONWARNINGS", ("", ""))[1].partition("=")[2]
        self.set_variable("PYTHONWARNINGS=" + ",".join(filter(None, (before, value))))

    def _take_omp(self, value: str, spelled: str, level: Level) -> None:
        """That of ipexrun, whose default is PyTorch's own."""
        self.set_option("--omp", "gnu" if value == "default" else value, f"{level.program.name}'s {spelled}")

    def _take_cpu_list(self, value: str, spelled: str, level: Level) -> None:
        """That of taskset, whose ranges may have steps."""
        listed = value if END in value else _STEPS.sub(_list_steps, value, _STEPS_LIMIT)
        self.set_option("--cpus", listed, f"{level.program.name}'s {spelled}")

    def _take_mask(self, value: str, spelled: str, level: Level) -> None:
        """The mask of taskset, unless its list of CPUs was there."""
        if "cpu-list" in level.given:
            self.words.insert(0, value)
        elif len(value) <= _MASK_LIMIT and (cpus := parse_cpu_mask(value.lower().removeprefix("0x"))):
            self.set_option("--cpus", format_cpus(cpus), spelled)
        else:
            self._take_refused(value, "MASK", level)

    def _take_seconds(self, value: str, spelled: str, level: Level) -> None:
        try:
            seconds = f"{float(read_seconds(value)):.15g}"
        except ValueError:
            seconds = value
        if seconds != "0":  # for timeout and mpirun: no limit
            self.set_option("--time-limit", seconds, f"{level.program.name}'s {spelled}")


def _list_steps(match: re.Match[str]) -> str:
    first, last, step = map(int, match.groups())
    if step == 1:
        return f"{first}-{last}"
    numbers = range(first, last + 1, step)
    return match[0] if len(numbers) > _STEPPED_LIMIT else ",".join(map(str, numbers))


def _split_names(text: str) -> list[str]:
    return _NAME.findall(text) if "[" in text else text.split(",")


def show(text: str) -> str:
    """Returns words of the line for a message."""
    return printable(remove_marks(text).strip())
