"""Whether all ranks of a group call the same collectives. MPI does not look: a broadcast that meets an all-reduce of as
many bytes ends well, and training goes on with wrong numbers.

Each rank folds what it calls into one number. Rank 0 of the group publishes its own after 1, 2, 4 … calls, later after
each `MOST`, and the others compare theirs when they come so far; so do ranks that wait for long, and all at the end of
the script.
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch

SHOWN = 64  # of the last calls, among which the first that differs is looked for
MOST = 4096  # calls between two comparisons


class Snapshot(NamedTuple):
    """What a rank has called so far: how often, the number of it all, and the last calls with their bytes."""

    number: int
    digest: int
    calls: Sequence[tuple[str, int]]


def count_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor.layout is torch.strided)


class Calls:
    """The collectives of a group, in the order in which they begin."""

    def __init__(self) -> None:
        self.due: list[Snapshot] = []  # to be compared
        self._number = self._digest = 0
        self._calls: deque[tuple[str, int]] = deque(maxlen=SHOWN)
        self._next = 1

    def note(self, name: str, size: int) -> None:
        """One more begins, with so many bytes; 0 where ranks may give different ones."""
        self._number += 1
        self._digest = _fold(self._digest, name, size)
        self._calls.append((name, size))
        if self._number == self._next:
            self._next += min(self._next, MOST)
            self.due.append(self.look())

    def look(self, waiting: Sequence[tuple[str, int]] = ()) -> Snapshot:
        """What was called so far, with those that wait for their turn."""
        digest = self._digest
        for name, size in waiting:
            digest = _fold(digest, name, size)
        return Snapshot(self._number + len(waiting), digest, [*self._calls, *waiting][-SHOWN:])


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
        calls = {rank: _get_call(each, number) for rank, each in snapshots.items()}
        if len(set(calls.values())) > 1:
            words = ", ".join(f"{call} on {rank}" for rank, call in calls.items())
            return f"the ranks called different collectives: {words}"
    return f"the ranks called different collectives before #{first}" if ended else ""


def _get_call(snapshot: Snapshot, number: int) -> str:
    index = number - snapshot.number + len(snapshot.calls) - 1
    if index >= len(snapshot.calls):
        return f"no #{number}"
    name, size = snapshot.calls[index]
    return f"{name} #{number} of {size} bytes" if size else f"{name} #{number}"
