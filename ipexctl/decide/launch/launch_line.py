"""Launch lines of mpirun, torchrun, ipexrun, Slurm, Accelerate, DeepSpeed and Horovod as words of ``ipexctl run``.

What each program and option is, is in ``data/launchers.toml``; what is not there is refused, not guessed."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from ipexctl.decide.launch import launch_script
from ipexctl.decide.launch.launch_counts import Counts, Hosts, Level, count_ranks
from ipexctl.decide.launch.launch_options import LaunchOptions, show
from ipexctl.decide.launch.launch_table import LaunchTable, Program
from ipexctl.decide.launch.launch_words import Translation
from ipexctl.decide.launch.programs import is_program_name
from ipexctl.decide.parsing import limit_inventory, parse_inventory, parse_list, shell
from ipexctl.decide.parsing.ranges import MAX_HOSTS
from ipexctl.decide.parsing.shell_variables import name_parameters
from ipexctl.model.errors import Note, UsageError

ReadFile = Callable[[str], str]
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_SILENT = re.compile(r"(?:export|declare|readonly|set|echo|printf)\b|[A-Za-z_]\w*=\S*$")
_REDIRECTION = re.compile(r"\d*&?[<>]")
_NO_SHELL = {"yaml", "yml", "json", "toml", "cfg", "ini", "md", "rst", "txt"}
_LEADING_OPTIONS = ("-f", "--hosts", "--limit", "-n", "--ppn")  # options of run, in the order in which they are written
_WORDS_LIMIT = 10_000  # of a line; each is taken from the front
_EXPORTS_LIMIT = 1000  # variables that are exported above a line
_OF_LAUNCHER = {  # options of accelerate launch that trl and its like take, which their scripts do not have
    "num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "mixed_precision",
    "accelerate_config", "config_file", "launcher",
}  # fmt: skip
_INSTANCES = {"--instances", "--cores-per-instance"}


def translate_line(text: str, table: LaunchTable, read_file: ReadFile) -> Translation:
    """Returns the translation of a line alone, without the shell that would have read it. ``read_file`` gives the text
    of a batch file or hostfile. Raises `UsageError` for what cannot be translated, `ValueError` for open quotes."""
    launch = _choose_command(shell.split_commands(text), table, "the line", {})
    return LaunchLineReader(table, read_file, alone=True).translate(launch)


def translate_found(launch: launch_script.FoundLaunch, table: LaunchTable, read_file: ReadFile) -> Translation:
    """Returns the translation of a launch line of a shell file, to stand in its place. Raises as `translate_line`."""
    return LaunchLineReader(table, read_file, alone=False).translate(launch)


def find_launches_of_file(text: str, file: str, table: LaunchTable) -> list[launch_script.FoundLaunch]:
    """Returns the launch lines of a file: a shell file, which may be a batch file, or any other text."""
    if file.rpartition(".")[2].lower() in _NO_SHELL and not text.startswith("#!"):
        return list(launch_script.find_launches(text, table, {}, is_shell=False))
    job = LaunchLineReader(table, str, alone=False)
    try:
        job.read_job(launch_script.find_job_words(text))
    except (UsageError, ValueError):
        return list(launch_script.find_launches(text, table, {}))  # each line is refused with the same error
    return list(launch_script.find_launches(text, table, list_job_variables(job.levels)))


def _choose_command(
    commands: Sequence[shell.SimpleCommand], table: LaunchTable, what: str, given: Mapping[str, str]
) -> launch_script.FoundLaunch:
    """Returns the launch line among these commands; else the one that starts Python; else the only one. ``given`` are
    variables that are known."""
    if len(commands) > launch_script.LAUNCH_LIMIT:
        raise UsageError(f"{what} has {len(commands)} commands, not one")
    found = list(launch_script.find_in_commands(commands, table, given))
    if not found:
        found = [launch_script.describe_command(commands, at) for at in range(len(commands))]
    return launch_script.choose_launch(found, what)


class LaunchLineReader(LaunchOptions):
    """A line that is being read. ``alone``: no shell is there any more that would replace ``$NAME``."""

    def __init__(self, table: LaunchTable, read_file: ReadFile, *, alone: bool) -> None:
        super().__init__(table)
        self.read_file, self.alone = read_file, alone
        self.levels: list[Level] = []
        self.has_python = False
        self.shell: list[str] = []  # that starts a script of its own
        self.scheduler = ""  # in whose batch job the line starts
        self.batch = ""  # file of that job
        self.elsewhere: dict[str, str] = {}  # what another shell would replace, and which
        self.depth = 0  # of the text that is read, in others

    def translate(self, launch: launch_script.FoundLaunch) -> Translation:
        """Returns the translation of a launch line. Raises `UsageError`."""
        self._take_surroundings(launch, in_place=not self.alone)
        script = self._read_chain()
        if self._hides_words(script):
            what = f"the launch line has {show(script)} before its script, which a shell would have replaced"
            raise UsageError(what, hint="write its value")
        self._set_start(script)
        host_ranks = [level.given.get(name, "") for level in self.levels for name in ("node-rank", "machine-rank")]
        if launch.loop and shell.END in "".join(host_ranks):
            what = f"a loop ({launch.loop}) starts {launch.name} for each host: run starts all hosts at once"
            raise UsageError(what, hint=launch_script.HINT_TO_RUN)
        self._remove_idle_options()
        self._set_hosts(self._set_counts(self._find_hosts()))
        self._take_input(launch.input)
        self._note_local_rank()
        names = [
            *(name for name in _LEADING_OPTIONS if name in self.options),
            *(name for name in self.options if name not in _LEADING_OPTIONS),
        ]
        options, args = [word for name in names for word in self.options[name]], [*self.shell, script, *self.words]
        self._refuse_expansions([*options, *args])
        return Translation(tuple(options), tuple(args), self.list_notes())

    def _hides_words(self, script: str) -> bool:
        """Returns whether it is a variable that is not known, and the script, or options of mpirun or srun, follow."""
        if not shell.EXPANSION.fullmatch(script) or ".py" in script:
            return False
        word = (*self.words, "")[0].partition("=")[0]
        launchers = [each.program for each in self.levels[-1:] if each.program.kind in {"mpi", "slurm"}]
        is_option = word.startswith("-") and any(each.find_option(word) for each in launchers)
        return is_option or launch_script.starts_python(self.words)

    def _set_start(self, script: str) -> None:
        """Sets what run needs to know of what it starts, which mpirun and srun take for a program of any kind. Raises
        `UsageError`."""
        is_python = self.has_python or self.is_module or shell.remove_marks(script).endswith(".py")
        by_mpi = any(level.program.kind in {"mpi", "slurm"} for level in self.levels)
        is_program = by_mpi and (bool(self.shell) or is_program_name(script))
        is_file = by_mpi and re.fullmatch(r"[\w./+-]*/[\w.+-]+", script) is not None
        if not script or script.startswith("-") or not (is_python or is_program or is_file):
            what = f"the launch line starts no script or program that is known here: {show(script) or '(none)'}"
            raise UsageError(what, hint="give the line that starts Python; migrate reads a shell file")
        if is_python:
            self.shell = []
        elif is_program:
            self.options["--program"] = ("--program",)
        if "--launcher" in self.options and (self.is_module or "no-python" in self.levels[-1].given):
            if "--accelerate-config" in self.options:
                raise UsageError("a configuration of Accelerate for what is no Python file is not translated")
            del self.options["--launcher"]

    def _refuse_expansions(self, words: Sequence[str]) -> None:
        expansions = shell.list_expansions(words)
        where = next((self.elsewhere[each] for each in expansions if each in self.elsewhere), "a shell")
        refused = [each for each in expansions if self.alone or each in self.elsewhere]
        if refused:
            what = f"the launch line has {show(refused[0])}, which {where} would have replaced"
            raise UsageError(what, hint="write its value, or let your own shell replace it")

    def _take_surroundings(self, launch: launch_script.FoundLaunch, *, in_place: bool) -> None:
        """Takes the words of a launch line, and what stands around it; ``in_place``: the commands beside it stay.
        Raises `UsageError`."""
        if len(launch.words) > _WORDS_LIMIT or len(launch.exports) > _EXPORTS_LIMIT:
            raise UsageError(f"the launch line has more than {_WORDS_LIMIT:,} words, or {_EXPORTS_LIMIT:,} variables")
        self.words, self.scheduler = list(launch.words), launch.scheduler or self.scheduler
        self.read_job(launch.job)
        self.exports = {**self.exports, **launch.exports, **launch.prefixes}
        for name, value in launch.exports.items():
            self.export_variable(name, value, in_place)
        if around := [*launch.redirections, *launch.after]:
            self.leave("shell", " ".join(around))
        for command in () if in_place else launch.others:
            if not _SILENT.match(command):
                self.leave("shell" if _REDIRECTION.match(command) else "command", command)

    def _read_chain(self) -> str:
        """Reads programs and their options; the script that the last of them starts."""
        while self.words and not self.is_module:
            if _ASSIGNMENT.fullmatch(self.words[0]):
                self.set_variable(self.words.pop(0))
            elif found := self.table.find_program(self.words):
                self._read_program(*found)
            elif module := self.table.find_module(self.words):
                self.words[:2] = ["accelerate", "launch", *self._pull_launch_options(), "-m", module]
            else:
                break
        return self.words.pop(0) if self.words else ""

    def _pull_launch_options(self) -> list[str]:
        """Takes the launcher's options out of the words of a program that passes them on."""
        pulled: list[str] = []
        kept: list[str] = []
        words = iter(self.words)
        for word in words:
            name, equals, _ = word.partition("=")
            if name.startswith("--") and name[2:].replace("-", "_") in _OF_LAUNCHER:
                pulled.append(word.replace("--accelerate_config", "--config_file"))
                pulled += [] if equals else [next(words, "")]
            else:
                kept.append(word)
        self.words = kept
        return pulled

    def _read_program(self, program: Program, length: int) -> None:
        if program.kind == "refused":
            what = f"the launch line starts {show(' '.join(self.words[:length]))}, which is not translated"
            raise UsageError(what, hint=launch_script.HINT_TO_RUN)
        before, level = list(self.words), Level(program)
        del self.words[:length]
        if program.kind != "prefix":
            self.levels.append(level)
        if program.kind == "mpi" and ":" in self.words:
            self._read_segments(level)
        else:
            self.read_options(level)
        if program.kind == "agent" and "--" not in level.given and self.words[1:2] == ["--"]:
            del self.words[1]  # argparse takes away the first
        if program.name == "bash" and "line" not in level.given:
            self.shell = before[:1]
        if program.means:
            self.options["--launcher"] = ("--launcher", program.means)
        self.has_python = self.has_python or program.name == "python" or program.kind == "agent"
        if program.rest and self.words and "line" not in level.given:
            self.apply_meaning(level, program.rest, self.words.pop(0), program.name)
        elif program.kind == "prefix" and not program.silent:
            self.leave("prefix", " ".join(map(shell.remove_marks, before[: len(before) - len(self.words)])))

    def _read_segments(self, level: Level) -> None:
        """Reads a line of programs between ``:``, which must all be the same one. Raises `UsageError`."""
        several = f"{level.program.name} starts several programs (:)"
        lines: list[LaunchOptions] = []
        places: list[bool] = []  # whether a segment names its own host
        ends = [at for at, word in enumerate(self.words) if word == ":"]
        for start, end in zip([-1, *ends], [*ends, len(self.words)], strict=True):
            line, own = LaunchOptions(self.table), Level(level.program)
            line.words = self.words[start + 1 : end]
            line.read_options(own)
            if not own.ranks.isdecimal():
                raise UsageError(f"{several}, and not each of them has its -n")
            places.append(bool({"host", "H"} & {*own.given}))
            is_one = len(line.hosts) == 1 if places[-1] else not (line.hosts and lines)
            if not is_one or places[-1] != places[0]:
                raise UsageError(f"{several}, and not each of them names one host")
            self.hosts += [(name, own.ranks if places[-1] else slots) for name, slots in line.hosts]
            level.ranks = str(int(level.ranks or "0") + int(own.ranks))
            level.fill(own)
            lines.append(line)
            self.adopt(line)
        if any((line.words, line.local) != (lines[0].words, lines[0].local) for line in lines):
            raise UsageError(f"{several}, and run starts one")
        self.words = lines[0].words

    def read_job(self, words: Sequence[str]) -> None:
        """Takes what a batch file says to sbatch; what the line itself says wins."""
        if not words:
            return
        job, level = LaunchOptions(self.table), Level(self.table.programs["sbatch"])
        job.words = list(words)
        job.read_options(level)
        if job.words:
            raise UsageError(f"#SBATCH {show(job.words[0])} is no option of sbatch")
        has_hosts = bool(self.hosts or {"-f", "--hosts"} & {*self.options})
        self.hosts = self.hosts if has_hosts else job.hosts
        self.adopt(job, {"-f", "--hosts"} if has_hosts else ())
        given = next((each for each in self.levels if each.program.kind == "job"), None)
        if given:
            given.fill(level)
        else:
            self.levels.insert(0, level)

    def _take_line(self, value: str, spelled: str, level: Level) -> None:
        """A command line in a word, as of ``sh -c``, or in all words, which eval joins."""
        self.depth += 1
        if self.depth > launch_script.NESTING_LIMIT:
            raise UsageError(f"the launch line has commands in commands, more than {launch_script.NESTING_LIMIT} deep")
        if level.program.rest:
            value, self.words = " ".join([value, *self.words]), []
        commands, what = shell.split_marked_commands(value), f"{level.program.name}'s command"
        launch = _choose_command(commands, self.table, what, self.exports)
        if any(each.program.kind in {"mpi", "slurm"} for each in self.levels):
            self._note_elsewhere(launch, [value, *self.exports.values()], "a shell on each host")
        self._take_surroundings(launch, in_place=False)
        self._take_input(launch.input)

    def _take_batch(self, file: str, spelled: str, level: Level) -> None:
        """A batch file: what it says of its job, and the line that it starts."""
        if self.batch:
            raise UsageError(f"the batch file {show(self.batch)} starts another one, which is not translated")
        arguments, text = self.words, self.read_file(shell.remove_marks(file))
        self.words, self.batch = [], file
        self.read_job(launch_script.find_job_words(text))
        given = {**name_parameters(arguments), **list_job_variables(self.levels)}
        found = [
            each
            for each in launch_script.find_launches(text, self.table, given)
            if each.name not in {"sbatch", "salloc"}
        ]
        launch = launch_script.choose_launch(found, f"the batch file {show(file)}")
        self._note_elsewhere(launch, arguments, f"the shell of {show(file)}")
        self._take_surroundings(launch, in_place=False)

    def _note_elsewhere(self, launch: launch_script.FoundLaunch, own: Sequence[str], where: str) -> None:
        """Notes what another shell than that of the line (``own``) would replace in the words of a launch line."""
        for expansion in {*shell.list_expansions(launch.words)} - {*shell.list_expansions(own)}:
            self.elsewhere[expansion] = where

    def _remove_idle_options(self) -> None:
        """Removes what ipexrun passes over beside its other options; ``run`` refuses it there."""
        idle = ["--logical-cores"] if "--cpus" in self.options else []
        for mode in ("--instances per-node", "--instances latency"):
            if any(mode in level.given for level in self.levels):
                self.options["--instances"] = tuple(mode.split())
                idle.append("--cores-per-instance")
        idle += ["--port"] if _INSTANCES & {*self.options} else ["--instance", "--within-node"]
        self.options = {name: words for name, words in self.options.items() if name not in idle}

    def _set_counts(self, hosts: Hosts | None) -> bool:
        """Sets ``-n`` and ``--ppn``; whether the hosts keep their slots."""
        counts = count_ranks(self.levels, hosts)
        if _INSTANCES & {*self.options}:
            counts = Counts(note="run starts these instances on each host")
        elif self.levels and shell.END in self.levels[-1].nodes and not counts.ranks:
            self.notes.append(Note("nodes", f"{show(self.levels[-1].nodes)} hosts: run takes all that it is given"))
        if counts.note:
            self.notes.append(Note("counts", counts.note))
        for least in filter(None, (level.least for level in self.levels)):
            if self.options.get("--restarts", ("", "0"))[1] == "0":
                text = f"at least {least} hosts: with --restarts 1 --min-hosts {least} run goes on without lost ones"
                self.notes.append(Note("least", text))
            else:
                self.options["--min-hosts"] = ("--min-hosts", least)
        self.options |= {
            name: (name, value) for name, value in {"-n": counts.ranks, "--ppn": counts.ppn}.items() if value
        }
        return not counts.ppn

    def _set_hosts(self, keep_slots: bool) -> None:
        kinds = {level.program.kind for level in self.levels}
        if self.hosts:
            entries = [f"{name}:{slots}" if slots and keep_slots else name for name, slots in self.hosts]
            self.options["--hosts"] = ("--hosts", ",".join(entries))
        elif "-f" not in self.options and (kinds & {"slurm", "job"} or (self.scheduler and "mpi" in kinds)):
            self.options.setdefault("--hosts", ("--hosts", self.scheduler or "slurm"))

    def _find_hosts(self) -> Hosts | None:
        """The hosts of the line: those that it names, each once, or those of its hostfile where that can be read."""
        counted = any(number for _, number in self.hosts) or len(dict(self.hosts)) < len(self.hosts)
        slots: dict[str, str] = {}
        for name, number in self.hosts:
            slots[name] = str(int(slots.get(name, "0")) + int(number or "1")) if counted else ""
        self.hosts = list(slots.items())
        file = self.options.get("-f", ("", ""))[1]
        mpi = next((level for level in self.levels if level.program.kind == "mpi"), None)
        if mpi and self.hosts and file:  # hosts of the file, with as many ranks as the list says
            counts = {number or "1" for number in slots.values()}
            if len(counts) > 1:
                raise UsageError("the launch line names hosts with different slots beside a hostfile: give one of them")
            mpi.ppn = mpi.ppn or counts.pop()
            self.options["--limit"] = ("--limit", ",".join(slots))
            self.options.pop("--hosts", None)
            self.hosts = []
        elif self.hosts:
            self.options.pop("-f", None)
            if any(shell.END in name for name in slots):
                return None
            named = ((host.name, number) for name, number in slots.items() for host in parse_list(name))
            if len(hosts := [*islice(named, MAX_HOSTS + 1)]) > MAX_HOSTS:
                raise UsageError(f"the launch line names more than {MAX_HOSTS} hosts")
            return hosts
        if not file or shell.END in file:
            return None
        try:
            inventory = parse_inventory(self.read_file(file), file)
            if "--limit" in self.options:
                inventory = limit_inventory(inventory, self.options["--limit"][1])
        except UsageError:
            return None  # run itself says what is wrong with it
        return [(host.name, str(host.slots or "")) for host in inventory]

    def _take_input(self, source: str) -> None:
        if not source:
            return
        is_of_rank0 = not self.levels or self.levels[-1].program.kind == "mpi"
        if source not in {"|", "<<"}:
            if is_of_rank0:
                self.options["--stdin"] = ("--stdin", source)
            else:
                self.leave("input", f"< {source}")
        elif self.alone or not is_of_rank0:
            what = "a pipe (|)" if source == "|" else "a here-document (<<)"
            raise UsageError(f"the launch line reads its input from {what}", hint="put it into a file: --stdin FILE")
        else:
            self.options["--stdin"] = ("--stdin", "-")

    def _note_local_rank(self) -> None:
        for program in (level.program for level in self.levels if level.program.unless not in level.given):
            if program.gives:
                what = f"{program.name} gives each process {program.gives}=N, run does not"
                self.notes.append(Note("local-rank", f"{what}: the script must read LOCAL_RANK"))


def list_job_variables(levels: Sequence[Level]) -> Mapping[str, str]:
    """Returns the variables of Slurm that are known from the options of sbatch."""
    job = next((level for level in levels if level.program.kind == "job"), None)
    if job is None:
        return {}
    values = dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), job.nodes)
    ranks = str(int(job.nodes) * int(job.ppn)) if job.nodes.isdecimal() and job.ppn.isdecimal() else ""
    values |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), job.ranks or ranks)
    values["SLURM_NTASKS_PER_NODE"] = job.ppn
    values["SLURM_CPUS_PER_TASK"] = job.given.get("c") or job.given.get("cpus-per-task", "")
    return {name: value for name, value in values.items() if value}
