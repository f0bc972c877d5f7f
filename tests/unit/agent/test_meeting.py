"""Whether ranks work together: what their processes tell, folded into worlds."""

from collections.abc import Iterable

import pytest

from ipexctl.protocol.journal import SeparateWorlds
from ipexctl.protocol.rank_records import RankAlone, RankWorld
from ipexctl.remote.agent import guard_messages
from ipexctl.remote.agent.keeper_state import KeeperRun, Moment, Note, RunPhase
from ipexctl.remote.agent.meeting import Meetings, add_record, count_worlds, find_separate_worlds
from tests.stopwatch import Stopwatch
from tests.unit.agent.runs import SPEC

CommandResult = RankWorld | RankAlone


def alone(rank: int, steps: int = 3, *causes: str) -> RankAlone:
    return RankAlone(rank, "h", steps, [(cause, "", "") for cause in causes])


def world(rank: int, size: int, member: int, via: str = "torch", *, used: bool = True) -> RankWorld:
    return RankWorld(rank, "h", via, size, member, used)


def meetings(records: Iterable[CommandResult]) -> Meetings:
    known: Meetings = {}
    for record in records:
        add_record(known, record)
    return known


def each(size: int) -> list[CommandResult]:
    return [world(rank, size, rank) for rank in range(size)]


@pytest.mark.parametrize(
    ("result", "worlds"),
    [
        (each(4), {4: 1}),
        ([alone(rank) for rank in range(4)], {1: 4}),
        ([world(0, 2, 0), world(1, 2, 1), world(2, 2, 0), world(3, 2, 1)], {2: 2}),
        ([world(0, 3, 0), world(1, 3, 1), world(2, 3, 2), alone(3)], {3: 1, 1: 1}),
        # made, and not used: as the Trainer that was not told of processors
        ([record for rank in range(4) for record in (world(rank, 4, rank, used=False), alone(rank))], {1: 4}),
        # MPI's world counts as torch's, and the larger one of two
        ([world(rank, 4, rank, "mpi") for rank in range(4)], {4: 1}),
        ([record for rank in range(4) for record in (world(rank, 4, rank, "mpi"), alone(rank))], {4: 1}),
        ([record for rank in range(4) for record in (world(rank, 4, rank, "mpi"), world(rank, 2, rank % 2))], {4: 1}),
        # each rank's own processes are a world by themselves, which no other rank is in
        ([world(rank, 2, member) for rank in range(4) for member in (0, 1)], {1: 4}),
        # unless it has more: each rank two processes of one world of eight
        ([world(rank, 8, 2 * rank + member) for rank in range(4) for member in (0, 1)], {8: 1}),
        ([world(rank, 4, 2 * (rank % 2) + member) for rank in range(4) for member in (0, 1)], {4: 2}),
        # a helper of a rank that ends without having met anybody says nothing of its rank
        ([*each(4), alone(2, 0)], {4: 1}),
        # trainers in one world; the others collect experience, and exchange nothing by torch
        ([world(0, 2, 0), world(1, 2, 1), alone(2, 0), alone(3, 0)], {2: 1}),
        # who has ended, and never trained
        ([alone(rank, 0) for rank in range(4)], {1: 4}),
        ([record for rank in range(4) for record in (world(rank, 4, rank, used=False), alone(rank, 0))], {}),
        # Accelerate has made a process group, and takes each rank for a single process
        ([record for rank in range(4) for record in (world(rank, 4, rank, used=False), alone(rank, 0, "accelerate"))],
         {1: 4}),
        ([alone(0, 0)], {1: 1}),
        # not all members of a world have told: those that are missing are not alone
        ([world(0, 4, 0), world(1, 4, 1), alone(2), alone(3)], {4: 1}),
        ([world(0, 3, 0), alone(1), alone(2), alone(3)], {3: 1, 1: 1}),
    ],
)  # fmt: skip
def test_worlds_are_counted_at_the_end(result: list[CommandResult], worlds: dict[int, int]) -> None:
    assert count_worlds(meetings(result), ()) == worlds


def test_while_ranks_go_on_nothing_is_reported_before_all_of_them_have_trained() -> None:
    three: list[CommandResult] = [alone(rank) for rank in range(3)]
    assert count_worlds(meetings(three), range(4)) is None
    assert count_worlds(meetings([*three, alone(3, 0)]), range(4)) is None, "a helper of rank 3 has ended"
    assert count_worlds(meetings([*three, alone(3)]), range(4)) == {1: 4}
    assert count_worlds(meetings(three), range(3)) == {1: 3}, "rank 3 has ended"


def test_a_world_of_which_members_have_not_reported_yet_is_waited_for() -> None:
    result: list[CommandResult] = [alone(rank) for rank in range(4)]
    result += [world(0, 4, 0)]
    assert count_worlds(meetings(result), range(4)) is None
    result += each(4)
    assert count_worlds(meetings(result), range(4)) == {4: 1}


def test_the_record_has_the_causes_once_and_what_was_joined() -> None:
    result: list[CommandResult] = [world(rank, 2, rank, used=False) for rank in range(2)]
    result += [alone(0, 3, "unused")]
    assert find_separate_worlds(meetings(result), range(2)) is None
    result += [alone(1, 5, "unused", "mpi")]
    record = find_separate_worlds(meetings(result), range(2))
    assert record == SeparateWorlds({1: 2}, 3, 2, [("unused", "", ""), ("mpi", "", "")])
    assert find_separate_worlds(meetings(each(2)), range(2)) == SeparateWorlds({})


def test_worlds_of_processes_that_ranks_start_are_a_cause_and_no_group_that_was_made_and_not_used() -> None:
    result: list[CommandResult] = [alone(0, 0), alone(1, 0)]
    result += [world(rank, 2, member) for rank in range(2) for member in range(2)]
    result += [world(rank, 2, member, used=False) for rank in range(2) for member in range(2)]
    assert find_separate_worlds(meetings(result), ()) == SeparateWorlds({1: 2}, 0, 0, [("spawn", "", "")])
    result = [alone(rank, 0) for rank in range(2)]
    result += [world(rank, 2, member, "mpi") for rank in range(2) for member in range(2)]
    assert find_separate_worlds(meetings(result), ()) == SeparateWorlds({1: 2}, 0, 0, [("mpirun", "", "")])


def test_records_of_thousands_of_ranks_do_not_hold_the_keeper() -> None:
    """With each one all ranks were looked at: 20 s of the keeper for 5,000, which is deaf meanwhile."""
    watch, count = Stopwatch(), 4_000
    run = KeeperRun(SPEC._replace(size=count), Moment(0.0, 0.0))
    run.state = RunPhase.RUNNING
    for exchanged in (False, True):
        for rank in range(count):
            record = RankWorld(rank, "a", "torch", 2, rank % 2, exchanged)
            guard_messages.HANDLERS[RankWorld](run, "a", record)
    [note] = run.actions
    assert isinstance(note, Note)
    assert note.record == SeparateWorlds({2: count // 2}, 0, 2)
    assert watch.read() < 5.0
