"""How many ranks a launch line starts, and how many of them on each host."""

from collections.abc import Sequence

from ipexctl.decide.launch.launch_table import Program
from ipexctl.decide.parsing.shell import remove_marks
from ipexctl.model.errors import UsageError
from ipexctl.model.json_values import Record
from ipexctl.model.text import pluralize

Hosts = Sequence[tuple[str, str]]  # names and slots, which may be empty

_ONE_A_HOST = "the line does not say how many ranks it starts: run starts one on each host"
_ONE_A_NODE = "the line does not say how many ranks it starts: run starts one for each NUMA node of its hosts"
_NO_COUNT_PER_HOST = "the line does not say how many ranks a host gets: run gives all hosts as many"
_CONFIGURED = "the number of ranks is that of Accelerate's own configuration: give -n, or --accelerate-config"
_SBATCH_STARTS_ONE = "sbatch starts one process, on the first host: srun in the job starts more"
_HINT = "name the ranks of each host: --hosts a:4,b:2"


class Level:
    """What one program of a line says: numbers as they were written, a shell's variables too, or empty."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ranks = self.ppn = self.nodes = ""
        self.least = ""  # of nodes, with which it goes on
        self.by_node = False  # ranks are dealt out to the hosts in turn
        self.is_open = False  # as many as a host has processors
        self.given: dict[str, str] = {}  # values of its options, by their names and by their meanings

    def fill(self, other: "Level") -> None:
        """Takes from another what this one does not say."""
        self.ranks, self.ppn = self.ranks or other.ranks, self.ppn or other.ppn
        self.nodes, self.by_node = self.nodes or other.nodes, self.by_node or other.by_node
        self.given = {**other.given, **self.given}


class Counts(Record):
    """The world size and the ranks of each host; empty where the line leaves it to its hosts. ``note``: what the line
    does not say."""

    ranks: str = ""
    ppn: str = ""
    note: str = ""


def count_ranks(levels: Sequence[Level], hosts: Hosts | None) -> Counts:
    """Returns the ranks of a line whose programs are ``levels``, from the outside in. ``hosts`` are those it names,
    None if they are not known. Raises `UsageError` for numbers that ``--ppn`` cannot express."""
    job = next((level for level in levels if level.program.kind == "job"), None)
    outer = [level for level in levels if level.program.kind in {"mpi", "slurm"}]
    agents = [level for level in levels if level.program.kind == "agent"]
    if len(outer) > 1 or len(agents) > 1:
        names = " in ".join(level.program.name for level in reversed(outer if len(outer) > 1 else agents))
        raise UsageError(f"the launch line starts {names}: what that starts is not known here")
    if any(level.is_open for level in levels):
        return Counts()
    if not outer and not agents:
        return Counts("1", "", _SBATCH_STARTS_ONE if job else "")
    if not outer:
        return _count_processes(agents[0], hosts)
    counts = (_count_mpi if outer[0].program.kind == "mpi" else _count_slurm)(outer[0], job, hosts)
    return _multiply(counts, outer[0], agents[0], hosts) if agents else counts


def _count_processes(agent: Level, hosts: Hosts | None) -> Counts:
    """Of a program that is started on each of its hosts."""
    ppn, has_file = agent.ppn or agent.program.ppn, "hostfile" in agent.given
    nodes = agent.nodes or ("" if has_file or "config-file" in agent.given else agent.program.nodes)
    nodes = nodes or ("1" if "distributed" in agent.given else "")  # of early IPEX: a rank for each of its sockets
    if agent.ranks:
        is_known = agent.ranks.isdecimal() and nodes.isdecimal()
        return Counts(agent.ranks, _divide(int(agent.ranks), int(nodes), agent) if is_known else "")
    if not ppn and not nodes:
        return Counts("" if has_file or "config-file" in agent.given else "1")
    if ppn:
        return Counts(_times(ppn, nodes), ppn)
    if hosts and "include" in agent.given and all(number for _, number in hosts):
        return Counts()
    if not has_file or not agent.nodes.isdecimal():
        return Counts(note=_CONFIGURED if agent.program.means else _ONE_A_NODE)
    slots, count = [number for _, number in hosts or ()], int(agent.nodes)  # of the first hosts in the file
    if len(slots) == count:
        return Counts()
    if not slots or not all(map(str.isdecimal, slots[:count])):
        what = f"{agent.program.name} takes {pluralize(count, 'host')} of its hostfile, whose slots are not known"
        raise UsageError(what, hint=_HINT)
    return Counts(str(sum(map(int, slots[:count]))))


def _count_mpi(level: Level, job: Level | None, hosts: Hosts | None) -> Counts:
    ranks, ppn, slots = level.ranks, level.ppn, [number for _, number in hosts or ()]
    count = len(slots)
    if job:
        ranks = ranks or job.ranks or _times(ppn or job.ppn, job.nodes)
        count = count or (int(job.nodes) if job.nodes.isdecimal() else 0)
        ppn = ppn or ("" if hosts or level.by_node else job.ppn)
    if level.by_node and ranks:
        if not count or not ranks.isdecimal():
            what = f"{level.program.name} deals out its ranks to the hosts in turn, whose number is not known here"
            raise UsageError(what, hint="give --ppn, and the line without that option")
        return Counts(ranks, _divide(int(ranks), count, level))
    if hosts and not ppn and not any(slots):
        if not ranks:
            return Counts("", "1", _ONE_A_HOST)
        return Counts(ranks, "", _NO_COUNT_PER_HOST if count > 1 else "")
    room = int(ppn) * count if ppn.isdecimal() else 0
    if not ppn and all(map(str.isdecimal, slots)):
        room = sum(map(int, slots))
    if not room or not ranks.isdecimal() or int(ranks) <= room:
        return Counts(ranks, ppn)
    if count > 1 and (int(ranks) % room or not (ppn or len(set(slots)) == 1)):  # it begins again with the first host
        what = f"{level.program.name} starts {ranks} ranks where its hosts have room for {room}"
        raise UsageError(what, hint=_HINT)
    return Counts(ranks, str(int(ranks) // count))


def _count_slurm(level: Level, job: Level | None, hosts: Hosts | None) -> Counts:
    ranks, ppn, nodes, note = level.ranks, level.ppn, level.nodes, ""
    if job:
        ranks = ranks or ("" if ppn else job.ranks)
        ppn, nodes = ppn or job.ppn, nodes or job.nodes
        of_job = job.ranks or _times(job.ppn, job.nodes)
        if not ranks and of_job not in {"", _times(ppn, nodes)}:
            note = f"of a job with --ntasks={remove_marks(of_job)} Slurm 22.05 starts so many, whatever its step says"
    nodes = nodes or (str(len(hosts)) if hosts else "")
    if ranks.isdecimal() and nodes.isdecimal():
        return Counts(ranks, _divide(int(ranks), int(nodes), level))
    ppn = ppn or ("1" if nodes and not ranks else "")
    return Counts(ranks or _times(ppn, nodes), ppn, note)


def _multiply(outer: Counts, level: Level, agent: Level, hosts: Hosts | None) -> Counts:
    each = outer.ppn
    if hosts and not each and outer.ranks.isdecimal():
        each = _divide(int(outer.ranks), len(hosts), level)
    is_known = agent.nodes.isdecimal() and outer.ranks.isdecimal()
    if agent.ranks:  # Accelerate: the world size, of which each of its machines starts an equal part
        if agent.ranks in {"1", outer.ranks} or "cpu" in agent.given:
            return outer
        if not agent.nodes or (is_known and agent.nodes != outer.ranks):
            what = f"{level.program.name} starts {remove_marks(outer.ranks or '?')} processes, and in each of them"
            raise UsageError(f"{what} {agent.program.name} starts {remove_marks(agent.ranks)}")
        agent.nodes = agent.nodes if agent.nodes.isdecimal() else outer.ranks
        processes = _count_processes(agent, None)
        return Counts(processes.ranks, _times(each or "1", processes.ppn))
    ppn, nodes = agent.ppn or agent.program.ppn, agent.nodes or agent.program.nodes
    if not ppn:
        return outer
    if nodes.isdecimal() and outer.ranks.isdecimal() and nodes != outer.ranks:
        what = f"{level.program.name} and {agent.program.name} do not fit: {outer.ranks} times {agent.program.name}"
        raise UsageError(f"{what}, each for {nodes}", hint=f"give {agent.program.name} the number of hosts")
    return Counts(_times(outer.ranks, ppn), _times(each or "1", ppn))


def _divide(ranks: int, hosts: int, level: Level) -> str:
    """Ranks of each host where the first hosts have at most one more than the last. ``--ppn`` fills host after host,
    which is the same if all have as many, or only the last host has one less, or none has more than one."""
    most, more = -(-ranks // hosts), ranks % hosts
    if more and hosts - more > 1 and most > 1:
        what = f"{level.program.name} deals out {ranks} ranks to {hosts} hosts, which --ppn cannot do"
        raise UsageError(what, hint=_HINT)
    return str(most)


def _times(first: str, second: str) -> str:
    """Returns the product; one of both if the other is 1; empty if it is not known."""
    if first.isdecimal() and second.isdecimal():
        return str(int(first) * int(second))
    if first == "1":
        return second
    return first if second == "1" else ""
