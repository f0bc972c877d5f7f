"""The hosts of a batch job, from what its scheduler (Slurm, PBS, LSF) tells the job."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ipexctl.decide.parsing import validators
from ipexctl.decide.parsing.host_entries import HostTree, Word
from ipexctl.decide.parsing.host_lines import read_host_line, read_host_list
from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.decide.parsing.ranges import MAX_HOSTS
from ipexctl.model.errors import Origin, UsageError
from ipexctl.model.text import pluralize

_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,4})\))?")
_HINTS = {
    "slurm": "salloc -N 2 ipexctl doctor --hosts slurm",
    "pbs": "qsub -I -l select=2, and in the job: ipexctl doctor --hosts pbs",
    "lsf": "bsub -I -n 2 ipexctl doctor --hosts lsf",
}
SCHEDULERS = tuple(_HINTS)
"""Whose allocations ``--hosts`` can name."""


def find_variable(scheduler: str, environ: Mapping[str, str], *names: str) -> str:
    """Returns the first of these variables that the scheduler has set. Raises `UsageError` outside of an allocation."""
    if name := next((name for name in names if environ.get(name)), None):
        return name
    raise UsageError(f"--hosts {scheduler} found no allocation: {names[0]} is not set", hint=_HINTS[scheduler])


def find_node_file(scheduler: str, environ: Mapping[str, str]) -> str:
    """Returns the file with a line for each slot of the job; empty where variables list its hosts."""
    if scheduler == "lsf" and not (environ.get("LSB_MCPU_HOSTS") or environ.get("LSB_HOSTS")):
        return environ.get("LSB_DJOB_HOSTFILE", "")
    return environ.get("PBS_NODEFILE", "") if scheduler == "pbs" else ""


def read_slurm(environ: Mapping[str, str], problems: InputErrors) -> HostTree:
    """``SLURM_JOB_NODELIST`` (``node[01-04],gpu7``), with slots from ``SLURM_TASKS_PER_NODE`` (``4(x4),2``) if set."""
    name = find_variable("slurm", environ, "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    tree = read_host_list(environ[name], name, problems)
    text, origin = environ.get("SLURM_TASKS_PER_NODE", ""), Origin("SLURM_TASKS_PER_NODE", 1, 1)
    counts: list[str] = []
    for item in text.split(",") if text else ():
        match = _COUNT.fullmatch(item)
        if not match or len(counts) > MAX_HOSTS:
            problems.add(origin, "task counts must look like 4(x3),2", value=text)
            return tree
        counts += [match[1]] * int(match[2] or 1)
    return _set_slots(tree, counts, origin, text) if text else tree


def read_lsf(environ: Mapping[str, str], problems: InputErrors) -> HostTree:
    """``LSB_MCPU_HOSTS`` (``a 4 b 2``: hosts and their slots), or ``LSB_HOSTS`` (``a a b``: a host for each slot)."""
    name = find_variable("lsf", environ, "LSB_MCPU_HOSTS", "LSB_HOSTS")
    words = environ[name].split()
    hosts, counts = (words[::2], words[1::2]) if name == "LSB_MCPU_HOSTS" else _count_repeats(words)
    return _set_slots(read_host_list(",".join(hosts), name, problems), counts, Origin(name), environ[name])


def read_node_file(text: str, source: str, problems: InputErrors) -> HostTree:
    """Returns the hosts of a file of PBS or LSF: a line for each slot."""
    tree, lines = HostTree(problems), text.split()
    hosts, counts = _count_repeats(lines)
    for host in hosts:
        read_host_line(tree, host, Origin(source, lines.index(host) + 1, 1))
    return _set_slots(tree, counts, Origin(source), text)


def _count_repeats(words: Sequence[str]) -> tuple[list[str], list[str]]:
    counts = Counter(words)
    return list(counts), list(map(str, counts.values()))


def _set_slots(tree: HostTree, counts: Sequence[str], origin: Origin, text: str) -> HostTree:
    if tree.problems:
        return tree
    if any(map(validators.slots, counts)):
        tree.problems.add(origin, f"slots must be numbers from 1 to {validators.MAX_SLOTS}", value=text)
    elif len(counts) != len(tree.entries):
        what = f"{pluralize(len(counts), 'task count')} for {pluralize(len(tree.entries), 'host')}"
        tree.problems.add(origin, what, value=text)
    else:
        for entry, count in zip(tree.entries, counts, strict=True):
            entry.words["slots"] = Word(count, origin)
    return tree
