"""Ranks that do not meet: what is said of separate worlds, and of scripts that look for the others elsewhere."""

from collections.abc import Collection, Mapping, Sequence

from ipexctl.decide.checks.network import means_itself
from ipexctl.decide.diagnosis.stack_traces import find_path_in_library
from ipexctl.model.facts import NETWORK_FILE_SYSTEMS
from ipexctl.model.reports import SeparateWorlds
from ipexctl.model.text import format_ranks, group_pairs, join_names, pluralize, printable
from ipexctl.protocol import hooks, journal
from ipexctl.protocol.rank_records import RankRendezvous

CODE = "never-met"

# Kind of cause (`RankAlone.causes`) → what to say of it, with the line of the script and a value.
_CAUSES: Mapping[str, str] = {
    hooks.ACCELERATE: "Accelerate, and with it the Trainer, takes ranks without an accelerator for single processes "
    "unless it is asked for processors: leave ACCELERATE_USE_CPU to ipexctl, give the Trainer --use_cpu, and "
    "PartialState, which reads no variable, cpu=True",
    "lightning": "Lightning does not know of the others: give the Trainer num_nodes, devices and strategy; a script "
    "with Fabric() needs --engine lightning, or these arguments and launch()",
    "launcher": "{line} takes --launcher, which nobody gives: put --launcher pytorch behind the script",
    "local-rank": "{line} waits for --local_rank, which nobody gives: read the variable LOCAL_RANK there",
    "address": "{line} sets the rendezvous address to {value}: leave MASTER_ADDR to ipexctl, and init_method out",
    "torchrun": "a torchrun in the run makes a world of its own: start the script itself, or --engine torchrun SCRIPT",
    "mpirun": "each rank starts an mpirun of its own, whose processes work with each other alone: leave it out, often "
    "by an option of the script (--cpu 1, --num-procs 1); the ranks are processes of one mpirun already",
    "spawn": "the processes that a rank starts, as by torch.multiprocessing.spawn, work with each other alone: leave "
    "out the spawn, and read RANK, LOCAL_RANK and WORLD_SIZE; or --per-host, where MASTER_ADDR and MASTER_PORT stay as "
    "they are given, and the processes of all hosts are numbered on from NODE_RANK",
    "unused": "a process group was made, and the model does not use it: wrap it, as with DistributedDataParallel",
    "torch": "a process group of one process was made: the script gives a world_size of 1, or changes WORLD_SIZE",
    "mpi": "MPI finds one process alone: mpi4py loads another MPI than the one that started the ranks",
    "horovod": "Horovod finds one process alone: it was built for another launcher than mpirun",
}
_NO_GROUP = (
    "no process group was made: torch.distributed.init_process_group() makes one of all ranks, as do "
    "Accelerator(cpu=True) and the Trainer with --use_cpu"
)
_USUAL = (
    "a script that sets MASTER_ADDR or WORLD_SIZE itself, one that waits for --local_rank, a torchrun in the run; "
    "independent processes are started by --instances"
)


def describe_worlds(record: journal.SeparateWorlds) -> SeparateWorlds | None:
    """Returns what the report says of it; None where the ranks work together after all."""
    if not record.worlds:
        return None
    sizes = sorted(record.worlds.items(), reverse=True)
    listed = ", ".join(f"{pluralize(count, 'world')} of {pluralize(size, 'rank')}" for size, count in sizes)
    text = f"the ranks have not met: they {'train' if record.steps else 'work'} in {listed}"
    if record.joined and record.worlds.keys() == {1}:
        text += f"; a process group of {record.joined} was made and not used"
    if record.steps:
        text += f" (seen after {pluralize(record.steps, 'optimizer step')})"
    known = [
        _CAUSES[kind].format(line=_shorten(line) or "a library", value=printable(value, 100))
        for kind, line, value in record.causes
        if kind in _CAUSES
    ]
    counts = {str(size): count for size, count in sizes}
    first = "the Trainer without --use_cpu" if record.steps else "a script that ends where it finds no GPU"
    causes = known or ([] if record.joined else [_NO_GROUP]) + [f"usual causes: {first}, {_USUAL}"]
    return SeparateWorlds(CODE, counts, text, tuple(dict.fromkeys(causes)))


def find_hopeless_rendezvous(records: Sequence[RankRendezvous], hosts: Sequence[str]) -> str:
    """What to say at once of ranks with the same rendezvous, where the ranks of other hosts cannot come; "" where they
    may be there."""
    record = next((each for each in records if each.fault), records[0])
    if record.address == record.planned:
        return _describe_numbers(records, hosts) or _describe_size(record, len(hosts))
    here, why = hosts.count(record.host), ""
    missing = max(record.size - here, 0)
    rest = f", where {missing} of {pluralize(record.size, 'rank')} cannot be met"
    if record.address.startswith("file:"):
        own = {each.fault for each in records if each.fault and not each.fault.startswith(NETWORK_FILE_SYSTEMS)}
        if missing and not record.inner and len({each.host for each in records}) == len(own) > 1:
            why = f"that is another file on each host ({printable(record.fault.partition(' ')[0], 30)}){rest}"
    elif means_itself(record.address):
        if record.inner and here < len(hosts):
            why = "that is each host itself, whose processes then work with each other alone"
        elif missing and here < len(hosts):
            why = f"that is each host itself{rest}"
    elif record.fault:
        why = f"{record.host} has no address for this name ({printable(record.fault, 100)})"
    remedy = "leave MASTER_ADDR to ipexctl, and init_method out"
    if record.fault == hooks.STORE:
        remedy = "give the TCPStore the address in MASTER_ADDR"
    return f"{_describe_change(records)}: {why}; {remedy}" if why else ""


def describe_rendezvous(
    records: Mapping[int, RankRendezvous], waiting: Collection[int], hosts: Sequence[str]
) -> list[str]:
    """Returns lines about those of the ``waiting`` ranks that look for the others elsewhere than was planned."""
    groups = group_rendezvous(records, waiting)
    texts = (find_hopeless_rendezvous(group, hosts) or _describe_change(group) for group in groups)
    return [*filter(None, texts)]


def group_rendezvous(
    records: Mapping[int, RankRendezvous], waiting: Collection[int]
) -> Collection[Sequence[RankRendezvous]]:
    """Returns the ``waiting`` ranks by where they look for the others."""
    changes = [record for rank, record in sorted(records.items()) if rank in waiting]
    return group_pairs(((record.line, record.address), record) for record in changes).values()


def _describe_numbers(records: Sequence[RankRendezvous], hosts: Sequence[str]) -> str:
    """What is wrong where several ranks take the same number, and others wait for one that nobody has; else ""."""
    claimed = {each.rank: each.number for each in records if each.number >= 0 and not each.inner}
    absent = sorted({*range(len(hosts))} - {claimed.get(rank, rank) for rank in range(len(hosts))})
    if not absent:
        return ""
    rank, number = next(iter(claimed.items()))
    return (
        f"{_name_line(records[0])} gives rank={number} in rank {rank}, so that nobody comes as {format_ranks(absent)}: "
        "give RANK in place of LOCAL_RANK, or leave rank and world_size out"
    )


def _describe_size(record: RankRendezvous, count: int) -> str:
    """What is wrong where a rank waits for another number of ranks than the run has; else ""."""
    if record.inner or record.size in {0, count}:
        return ""
    return (
        f"{_name_line(record)} gives world_size={record.size}, and the run has {pluralize(count, 'rank')}: "
        "give WORLD_SIZE, or leave rank and world_size out"
    )


def _describe_change(records: Sequence[RankRendezvous]) -> str:
    """``train.py:4 sets the rendezvous address to localhost (ranks 0-3)``; its port, where only that differs."""
    first, ranks = records[0], [record.rank for record in records]
    if first.number >= 0 and first.address == first.planned:
        return ""
    ports = dict.fromkeys(printable(record.port) for record in records)
    what = f"address to {printable(first.address)}"
    if first.address == first.planned:
        what = f"port to {join_names(list(ports), 4)}"
        if len(ports) > 1:
            what += ", another one in each rank"
    return f"{_name_line(first)} sets the rendezvous {what} ({format_ranks(ranks)})"


def _name_line(record: RankRendezvous) -> str:
    return _shorten(record.line) or "the script or a library"


def _shorten(line: str) -> str:
    """``train.py:4`` of a path and a line; of a library, its name in it."""
    file, _, number = line.rpartition(":")
    if not file or not number.isdecimal():
        return ""
    return printable(f"{find_path_in_library(file) or file.rpartition('/')[2]}:{number}", 200)
