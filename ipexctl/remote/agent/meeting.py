"""Whether the ranks of a run work together: records of the processes of each, folded into worlds."""

from collections import Counter
from typing import Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Set, Tuple, Union

from ipexctl.protocol import hooks
from ipexctl.protocol.journal import SeparateWorlds
from ipexctl.protocol.rank_records import RankAlone, RankWorld

CAUSE_LIMIT = 8  # causes that are named
UNEVEN = (
    "it took part in %d collectives, rank %d in %d: after a step that one rank leaves out, as by an exception that its "
    "script catches, the ranks average values of different steps"
)


class RankMeeting(NamedTuple):
    """What is known of one rank: the worlds of its processes; and its steps (None: nothing told) and causes, if one of
    them has worked alone."""

    worlds: "FrozenSet[Tuple[str, int, int, bool]]" = frozenset()  # via, size, member, exchanged
    steps: "Optional[int]" = None
    causes: "Tuple[Tuple[str, str, str], ...]" = ()
    collectives: "Optional[int]" = None  # `RankWorld.collectives`

    @property
    def exchanged(self) -> bool:
        return any(exchanged for _, _, _, exchanged in self.worlds)

    @property
    def works(self) -> bool:
        """One of its processes has exchanged something, or trained alone."""
        return self.exchanged or bool(self.steps)

    @property
    def ended_alone(self) -> bool:
        """One of its processes has, and that was no helper of one that has a process group."""
        known_alone = any(kind == hooks.ACCELERATE for kind, _, _ in self.causes)
        return self.steps == 0 and (known_alone or not self.worlds)

    @property
    def outer(self) -> "Tuple[int, FrozenSet[Tuple[str, int]]]":
        """The size of the largest world that was used together with another rank, and this rank's members of such ones
        (via, member). A world with all its members in this rank (`torch.multiprocessing.spawn`) is no such one."""
        size = max([size for _, size, is_own in self._list_used() if not is_own] or [1])
        return size, frozenset((via, member) for via, of, member, exchanged in self.worlds if exchanged and of == size)

    @property
    def own_worlds(self) -> "Set[str]":
        """Via what processes of this rank have met each other alone."""
        return {via for via, _, is_own in self._list_used() if is_own}

    def _list_used(self) -> "List[Tuple[str, int, bool]]":
        """Via and sizes of the worlds that were used, and whether all their members are processes of this rank."""
        members = Counter((via, size) for via, size, _, exchanged in self.worlds if exchanged)
        return [(via, size, own >= size) for (via, size), own in members.items()]


Meetings = Dict[int, RankMeeting]  # by rank


def add_record(meetings: "Meetings", record: "Union[RankWorld, RankAlone]") -> None:
    """Adds what a process has reported."""
    known = meetings.get(record.rank, RankMeeting())
    if isinstance(record, RankWorld):
        known = known._replace(worlds=known.worlds | {(record.via, record.size, record.member, record.exchanged)})
        if record.collectives is not None:
            known = known._replace(collectives=record.collectives)
    else:
        known = known._replace(steps=max(record.steps, known.steps or 0), causes=(*known.causes, *record.causes))
    meetings[record.rank] = known


def count_worlds(meetings: "Meetings", awaited: "Iterable[int]") -> "Optional[Dict[int, int]]":
    """Size → how many worlds of that size work; None as long as the ranks ``awaited``, or the members of a world, have
    not told. Where no rank works (with torch: trains), those count that ended alone."""
    working = {rank for rank, known in meetings.items() if known.works}
    if not set(awaited) <= working:
        return None
    ended_alone = {rank for rank, known in meetings.items() if known.ended_alone}
    alone, missing = 0, 0
    members: Dict[int, List[Tuple[str, int]]] = {}  # by size
    for rank in working or ended_alone:
        size, own = meetings[rank].outer
        if size == 1:
            alone += 1
        else:
            members.setdefault(size, []).extend(own)
    worlds: Dict[int, int] = {}
    for size, told in members.items():
        worlds[size] = max(Counter(told).values())
        missing += worlds[size] * size - max(Counter(via for via, _ in told).values())
    if missing > 0 and list(awaited):
        return None
    if alone - missing > 0:
        worlds[1] = alone - max(missing, 0)
    return worlds


def find_separate_worlds(meetings: "Meetings", awaited: "Iterable[int]") -> "Optional[SeparateWorlds]":
    """The record for the journal: without worlds if there are less than two; None where that is not known yet."""
    worlds = count_worlds(meetings, awaited)
    if worlds is None:
        return None
    if sum(worlds.values()) < 2:
        return SeparateWorlds({})
    causes = dict.fromkeys(cause for known in meetings.values() for cause in known.causes)
    outer = [known for known in meetings.values() if not known.own_worlds]
    own = {via for known in meetings.values() for via in known.own_worlds}
    if own:
        causes = {("mpirun" if own == {"mpi"} else "spawn", "", ""): None, **causes}
    joined = max([size for known in outer for _, size, _, _ in known.worlds] or [0])
    steps = min([known.steps for known in meetings.values() if known.steps] or [0])
    return SeparateWorlds(worlds, steps, joined, list(causes)[:CAUSE_LIMIT])


def find_uneven_collectives(meetings: "Meetings", ranks: "Iterable[int]") -> "Optional[Tuple[int, str]]":
    """Returns the rank that took part in the fewest collectives of all ranks, and what to say of it; None where these
    ranks took part in equally many, or one has not counted."""
    counts = [(meetings.get(rank, RankMeeting()).collectives, rank) for rank in ranks]
    known = [(count, rank) for count, rank in counts if count is not None]
    if not known or len(known) < len(counts) or min(known)[0] == max(known)[0]:
        return None
    (fewest, rank), (most, other) = min(known), max(known)
    return rank, UNEVEN % (fewest, other, most)
