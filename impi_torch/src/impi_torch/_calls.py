"""Whether all ranks of a group call the same collectives. MPI does not look: a broadcast that meets an all-reduce of as
many bytes ends well, and training goes on with wrong numbers.

Each rank folds what it calls into one number. Rank 0 of the group publishes its own after 1, 2, 4 … calls, later after
each `MOST`, and the others compare theirs when they come so far; so do ranks that wait for long, and all groups at the
end of the script.
"""

from __future__ import annotations

import dis
import functools
import json
import os
import sys
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import torch

SHOWN = 64  # of the last calls, among which the first that differs is looked for
MOST = 4096  # calls between two comparisons
NEAR = 12  # frames in which the caller is looked for: each takes a tenth of a microsecond
# Frames between the caller and us, but those of libraries: Python's own files, ours, ipexctl's hooks, compiled code.
BETWEEN = (str(Path(os.__file__).parent), str(Path(__file__).parent), "<")
WITHIN = ("-packages/", "/sitecustomize.py", "/_ipexctl_", "/torchinductor_")
Caller = tuple[CodeType, int]  # a place in the user's code; its line is found once somebody asks, which takes longer


class Snapshot(NamedTuple):
    """What a rank has called so far: how often, the number of it all, and the last calls with bytes and place."""

    number: int
    digest: int
    calls: Sequence[tuple[str, int, str]]


class Account(NamedTuple):
    """What a rank has called in one group, for the comparison at the end of the script."""

    key: str  # the group's: the same on its members, and another than those of all other groups
    rank: int  # in the group
    label: str  # this rank in words
    size: int  # members of the group
    snapshot: Snapshot

    @property
    def share(self) -> int:
        """This rank's part of a sum that is 0 (modulo 2**64) where the members called the same. Each group has a factor
        of its own, else one would make up for another: ranks may mix up two groups."""
        parts = self.size - 1 if self.rank == 0 else -1
        return parts * self.snapshot.digest * (2 * zlib.crc32(self.key.encode()) + 1)


def count_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor.layout is torch.strided)


@functools.cache
def is_users(file: str) -> bool:
    return not file.startswith(BETWEEN) and not any(part in file for part in WITHIN)


def find_caller() -> Caller | None:
    """Where in the user's code the collective is called that is being begun; None where that is far away."""
    frame = sys._getframe(3)
    for _ in range(NEAR):
        if is_users(frame.f_code.co_filename):
            return frame.f_code, frame.f_lasti
        if (below := frame.f_back) is None:
            break
        frame = below
    return None


def printable(text: str) -> str:
    """A text as torch's store and every terminal take it: bytes of a file's name that are no UTF-8 are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


@functools.lru_cache(maxsize=256)
def describe_caller(caller: Caller | None) -> str:
    """` at train.py:41`."""
    if caller is None:
        return ""
    code, last = caller
    line = max((start, line) for start, line in dis.findlinestarts(code) if start <= last)[1]
    return f" at {printable(Path(code.co_filename).name)}:{line}"


class Calls:
    """The collectives of a group, in the order in which they begin."""

    def __init__(self) -> None:
        self.due: list[Snapshot] = []  # to be compared
        self._number = self._digest = 0
        self._calls: deque[tuple[str, int, Caller | None]] = deque(maxlen=SHOWN)
        self._next = 1

    def note(self, name: str, size: int, caller: Caller | None) -> None:
        """One more begins, with so many bytes; 0 where ranks may give different ones. ``name`` may have a detail behind
        it, from the first space: the root, or the operation and its dtype."""
        self._number += 1
        self._digest = _fold(self._digest, name, size)
        self._calls.append((name, size, caller))
        if self._number == self._next:
            self._next += min(self._next, MOST)
            self.due.append(self.look())

    def look(self, waiting: Sequence[tuple[str, int, Caller | None]] = ()) -> Snapshot:
        """What was called so far, with those that wait for their turn."""
        digest = self._digest
        for name, size, _ in waiting:
            digest = _fold(digest, name, size)
        calls = [(name, size, describe_caller(caller)) for name, size, caller in [*self._calls, *waiting][-SHOWN:]]
        return Snapshot(self._number + len(waiting), digest, calls)


def _fold(digest: int, name: str, size: int) -> int:
    return zlib.crc32(b"%d %b" % (size, name.encode()), digest)


def write_snapshot(snapshot: Snapshot) -> str:
    return json.dumps(snapshot)


def read_snapshot(text: bytes) -> Snapshot:
    return Snapshot(*json.loads(text))


def describe_difference(snapshots: dict[str, Snapshot], *, ended: bool = True) -> str:
    """The first call that two ranks do not share; "" where they have called the same. Unless both have ``ended``, or
    have come as far, only what both have called counts."""
    (_, one), (_, other) = snapshots.items()
    if one[:2] == other[:2]:
        return ""
    first = max(each.number - len(each.calls) for each in (one, other)) + 1
    last = max(one.number, other.number) if ended else min(one.number, other.number)
    for number in range(first, last + 1):
        for detail in (False, True):  # where they differ without it, it does not matter
            calls = {rank: _get_call(snapshot, number, detail=detail) for rank, snapshot in snapshots.items()}
            if len({call for call, _ in calls.values()}) > 1:
                words = ", ".join(f"{call}{place} on {rank}" for rank, (call, place) in calls.items())
                return f"the ranks called different collectives: {words}"
    return f"the ranks called different collectives before #{first}" if ended else ""


def compare_accounts(accounts: Sequence[Account], gather: Callable[[Any], list[Any]]) -> str:
    """How this rank's calls in one of its groups differ from those of the group's first rank, where they do. All ranks
    of the job must call it; ``gather`` gives each what every one has. Ranks that fail in a group, or know not what
    callbacks may still call there, have no account of it."""
    digests = gather({each.key: each.snapshot[:2] for each in accounts})
    unlike = {key for key in set().union(*digests) if len({each[key] for each in digests if key in each}) > 1}
    firsts = gather({each.key: each for each in accounts if each.rank == 0 and each.key in unlike})
    for own in accounts:
        for first in [each[own.key] for each in firsts if own.key in each and own.rank != 0]:
            if different := describe_difference({first.label: first.snapshot, own.label: own.snapshot}):
                return different
    return ""


def _get_call(snapshot: Snapshot, number: int, *, detail: bool) -> tuple[str, str]:
    """The words and the place of one call, with its root, operation and dtype if `detail`."""
    index = number - snapshot.number + len(snapshot.calls) - 1
    if index >= len(snapshot.calls):
        return f"no #{number}", ""
    name, size, place = snapshot.calls[index]
    name, _, more = name.partition(" ")
    call = f"{name} #{number}"
    if size:
        call += f" of {size} bytes"
    if detail and more:
        call += f" {more}"
    return call, place
