"""The hosts of a Slurm allocation, from the variables that ``salloc`` and ``sbatch`` set."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ipexctl.decide.parsing import validators
from ipexctl.decide.parsing.host_entries import Tree, Word
from ipexctl.decide.parsing.host_lines import read_list
from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.decide.parsing.ranges import MAX_HOSTS
from ipexctl.model.errors import Origin, UsageError

_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,4})\))?")


def read_slurm(environ: Mapping[str, str], problems: InputErrors) -> Tree:
    """``SLURM_JOB_NODELIST`` (``node[01-04],gpu7``), with slots from ``SLURM_TASKS_PER_NODE`` (``4(x4),2``) if set."""
    name = next((key for key in ("SLURM_JOB_NODELIST", "SLURM_NODELIST") if environ.get(key)), None)
    if name is None:
        what = "--hosts slurm found no allocation: SLURM_JOB_NODELIST is not set"
        raise UsageError(what, hint="salloc -N 2 ipexctl doctor --hosts slurm")
    tree = read_list(environ[name], name, problems)
    counts = environ.get("SLURM_TASKS_PER_NODE", "")
    if not counts or problems:
        return tree
    origin = Origin("SLURM_TASKS_PER_NODE", 1, 1)
    slots: list[str] = []
    for item in counts.split(","):
        match = _COUNT.fullmatch(item)
        if not match or validators.slots(match[1]) or len(slots) > MAX_HOSTS:
            problems.add(origin, "task counts must look like 4(x3),2", value=counts)
            return tree
        slots += [match[1]] * int(match[2] or 1)
    if len(slots) != len(tree.entries):
        problems.add(origin, f"{len(slots)} task counts for {len(tree.entries)} hosts", value=counts)
        return tree
    for entry, count in zip(tree.entries, slots, strict=True):
        entry.words["slots"] = Word(count, origin)
    return tree
