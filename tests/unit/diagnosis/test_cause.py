"""Which of the failed ranks is the cause."""

from dataclasses import replace
from typing import Any

import pytest

from ipexctl.decide.diagnosis.cause import find_cause
from ipexctl.decide.diagnosis.known_errors import make_diagnosis
from ipexctl.model.reports import Diagnosis, RankOutcome
from ipexctl.verbs.common.known_errors import read_known_errors

PEER = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:40321"
DISK = "OSError: [Errno 28] No space left on device"
ERRORS = read_known_errors()


def failed(rank: int, at: float, error: str = "") -> RankOutcome:
    return RankOutcome(rank, f"n{rank}", "failed", status=1, at=at, error=error)


def ended(rank: int, at: float) -> RankOutcome:
    return RankOutcome(rank, f"n{rank}", "ok", status=0, at=at)


def judge(*ranks: RankOutcome, output: str = "") -> tuple[list[int], str | None]:
    cause = find_cause(ERRORS, ranks, output)
    return [rank.rank for rank in cause.failed], cause.match.known.code if cause.match else None


def diagnose(*ranks: RankOutcome) -> Diagnosis:
    cause = find_cause(ERRORS, ranks, "")
    assert cause.match is not None
    return make_diagnosis(cause.match)


def test_a_rank_that_failed_by_itself_comes_before_those_that_only_missed_it() -> None:
    assert judge(failed(0, 5.0, PEER), failed(2, 5.1, PEER), failed(1, 5.2, "KeyError: 'loss'")) == ([1, 0, 2], None)
    assert judge(failed(0, 5.0, PEER), failed(1, 5.2, DISK)) == ([1, 0], "disk")
    error = f"impi_torch._launch.ImpiError: impi: allreduce #4: rank 1 ended with {DISK}"
    assert judge(failed(0, 5.0, error), failed(1, 5.2, DISK)) == ([1, 0], "disk")
    killed = replace(failed(1, 5.2), status=None, signal=9)
    assert judge(failed(0, 5.0, PEER), killed) == ([1, 0], "sigkill")
    aborted = replace(failed(1, 5.2), abort=7)
    assert judge(failed(0, 5.0, PEER), aborted) == ([1, 0], None)


@pytest.mark.parametrize("later", ["KeyError: 'loss'", DISK, ""])
def test_a_rank_that_failed_as_it_handled_that_another_was_gone_comes_after_that_one(later: str) -> None:
    """As in a ``finally`` that closes what was never opened; the others' own reason was not shown."""
    handling = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    trace = 'Traceback (most recent call last):\n  File "/w/a.py", line 6, in <module>\n'
    error = "AttributeError: 'NoneType' object has no attribute 'close'"
    closing = replace(failed(0, 5.0, error), traceback=f"{trace}{PEER}{handling}{trace}{error}\n")
    assert judge(closing, failed(1, 5.2, later))[0] == [1, 0]
    own = replace(closing, traceback=closing.traceback.replace(PEER, "ValueError: corrupt shard"))
    assert judge(own, failed(1, 5.2, later))[0] == [0, 1]
    own = replace(failed(1, 5.2, error), traceback=own.traceback)
    assert judge(closing, own)[0] == [1, 0], "in the same finally"


def test_a_rank_that_waited_too_long_tells_more_than_one_whose_connection_it_closed() -> None:
    late = "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation"
    assert judge(failed(0, 5.0, PEER), failed(1, 5.2, late), failed(3, 5.3, late)) == ([1, 0, 3], "late")
    named = "impi_torch._launch.ImpiError: impi: allreduce #4: rank 1 ended with ImpiTimeout"
    assert judge(failed(1, 5.0, late), failed(0, 5.2, named)) == ([1, 0], "late")
    absent = "impi_torch._engine.ImpiTimeout: impi: Timed out waiting 5 s for allreduce #4: rank 0 did not come"
    for error, code in ((late, "late"), (absent, "late-rank")):
        assert judge(failed(1, 5.2, error), failed(0, 5.0, named)) == ([1, 0], code), "the one named, whatever it shows"
    left = "impi_torch._launch.ImpiError: impi: barrier #1: rank 1 left the group without it"
    assert judge(failed(0, 5.0, left), failed(1, 5.2, "KeyError: 1")) == ([1, 0], None)


def test_the_one_rank_that_did_not_come_in_time_is_named() -> None:
    late = "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation"
    asleep = replace(failed(2, 6.0), state="stopped")
    for error in (
        late,
        "impi_torch._engine.ImpiTimeout: impi: Timed out waiting 6 s for allreduce #3: rank 2 did not come",
    ):
        diagnosis = diagnose(failed(0, 5.0, error), failed(1, 5.1, PEER), asleep)
        assert diagnosis.title.startswith("rank 2 on n2 did not come to the same call")
    assert judge(failed(0, 5.0, late), asleep, replace(asleep, rank=3)) == ([0], "late"), "either of them"


def test_ranks_that_did_not_come_to_the_rendezvous_are_named() -> None:
    waited = failed(0, 5.0, "torch.distributed.DistStoreError: Timed out after 11 seconds waiting for clients.")
    torn = failed(2, 5.0, "torch.distributed.DistNetworkError: The client socket has timed out after 11000ms while")
    asleep = replace(failed(1, 9.0), state="stopped", stage="torch", line="train.py:9")
    inside = failed(0, 5.0, "DistStoreError: wait timeout after 10000ms, keys: /default_pg/0//cpu//0/0")
    for first in (waited, torn, replace(inside, stage="rendezvous")):
        diagnosis = diagnose(first, asleep, replace(asleep, rank=2, stage="rendezvous"))
        assert diagnosis.title.startswith("rank 1 on n1 (at train.py:9) did not come to init_process_group")
    there = replace(asleep, stage="rendezvous")
    diagnosis = diagnose(waited, there)
    assert diagnosis.title.startswith("another rank did not come")
    assert judge(torn, there) == ([2], "rendezvous"), "its host may not reach the head"


@pytest.mark.parametrize(("after", "first"), [(0.01, 1), (3.0, 0)])
def test_a_killed_rank_comes_before_one_that_says_in_unknown_words_that_its_peer_is_gone(
    after: float, first: int
) -> None:
    killed = replace(failed(1, 5.0 + after), status=None, signal=9)
    assert judge(failed(0, 5.0, "lib.TransportError: partner lost"), killed)[0][0] == first
    assert judge(failed(0, 5.0, "xgboost.core.XGBoostError: [2] /src/collective/result.cc:83: "), killed)[0][0] == 1


def test_a_rank_that_is_named_is_named_with_its_host() -> None:
    left = failed(0, 5.0, "impi_torch._launch.ImpiError: impi: allreduce #4: rank 3 left the group without it")
    diagnosis = diagnose(left, replace(failed(3, 9.0), state="stopped"))
    assert diagnosis.title.startswith("rank 3 on n3 had finished with the group")


@pytest.mark.parametrize("end", [{"status": 3}, {"status": None, "signal": 15}, {"status": None, "signal": 10}])
def test_a_rank_that_ended_by_itself_comes_before_those_that_only_missed_it(end: dict[str, Any]) -> None:
    assert judge(failed(0, 5.0, PEER), replace(failed(1, 5.2), **end)) == ([1, 0], None)
    assert judge(failed(0, 5.0, PEER), replace(failed(1, 9.0), **end)) == ([0, 1], "peer"), "it came of it"


@pytest.mark.parametrize(
    "other", [failed(1, 5.3, "ValueError: my batch"), replace(failed(1, 5.3), status=None, signal=9)]
)
def test_a_rank_that_failed_comes_before_one_whose_socket_was_closed_by_it(other: RankOutcome) -> None:
    """As of LightGBM, of a parameter server, of sockets of the script."""
    reset = "ConnectionResetError: [Errno 104] Connection reset by peer"
    assert judge(failed(0, 5.0, reset), other)[0] == [1, 0]
    assert judge(failed(0, 5.0, reset), failed(2, 5.1, PEER), other)[0] == [1, 0, 2]
    assert judge(failed(2, 5.0, PEER), failed(0, 5.1, reset)) == ([0, 2], "peer-closed"), (
        "it is of a process of its own"
    )
    assert judge(failed(0, 5.0, reset), replace(other, at=9.0))[0] == [0, 1]


def test_a_rank_whose_own_hook_wrote_its_exception_comes_before_those_that_only_missed_it() -> None:
    hooked = replace(failed(1, 6.7), tail="step 9 loss 0.3\ncustom hook: sorry")
    assert judge(failed(0, 5.0, PEER), hooked, failed(2, 5.1, PEER)) == ([1, 0, 2], None)
    aborted = replace(hooked, status=143)
    lost = "Abort(606269327) on node 0 (rank 0 in comm 496): Fatal error in internal_Test: Other MPI error\n"
    assert judge(replace(failed(0, 5.0, PEER), tail=lost), aborted)[0] == [0, 1]
    error = "impi_torch._launch.ImpiError: impi: allreduce #4: rank 2 ended"
    assert judge(failed(0, 5.0, error), hooked)[0] == [0, 1]


@pytest.mark.parametrize(("later", "cause"), [(0.1, 1), (0.3, 0)])
def test_a_crash_comes_before_what_ended_without_a_word_at_the_same_moment(later: float, cause: int) -> None:
    crashed = replace(failed(1, 5.0 + later), status=None, signal=11)
    ranks, _ = judge(replace(failed(0, 5.0), status=14), crashed, replace(failed(2, 5.05), status=14))
    assert ranks[0] == cause


def test_ranks_that_mpi_ended_at_an_error_of_another_one_are_not_the_cause() -> None:
    """Intel MPI gives all ranks the lowest eight bits of the code."""
    error = "Abort(606269327) on node 0 (rank 0 in comm 496): Fatal error in internal_Test: Other MPI error"
    lost = "MPIDI_OFI_handle_cq_error(1141): OFI poll failed (ofi_events.c:1141:Transport endpoint is not connected)"
    aborted = replace(failed(0, 5.1), status=143, tail=f"{error}\n{lost}\n")
    assert judge(replace(failed(1, 5.0), status=143), aborted) == ([0, 1], "ofi-transfer")
    assert judge(replace(failed(1, 5.0), status=3), aborted) == ([1, 0], None)


def test_a_rank_that_another_one_names_is_the_cause_though_that_one_called_abort() -> None:
    """A rank that ended itself after an exception in a thread, and a rank that waited for it over impi."""
    named = "impi_torch._launch.ImpiError: impi: allreduce #4: rank 2 ended with exit status 1"
    abort = "Abort(1) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 1\n"
    waited = replace(failed(1, 5.2, named), tail=f"{named}\n{abort}[cli_1]: readline failed\n")
    assert judge(replace(failed(2, 5.0), tail="impi: rank 2 ended with exit status 1"), waited) == ([2, 1], None)


def test_mpi_abort_of_a_rank_is_not_explained_by_what_others_met_then() -> None:
    called = replace(failed(3, 5.0), abort=11)
    assert judge(
        called, replace(failed(0, 5.1), tail="Abort(8): Fatal error in internal_Finalize: Other MPI error")
    ) == ([3, 0], None)


def test_the_first_in_time_is_the_cause_else() -> None:
    assert judge(failed(1, 5.2, "KeyError: 1"), failed(0, 5.1, "KeyError: 2")) == ([0, 1], None)
    assert judge(failed(1, 5.1, "KeyError: 1"), failed(0, 5.1, PEER)) == ([1, 0], None)
    assert judge(failed(0, 5.0, PEER), failed(1, 5.1, PEER)) == ([0, 1], "peer")


def test_what_others_failed_of_is_not_reported_of_a_rank_that_raised_something_unknown() -> None:
    output = "OMP: Error #15: Initializing libiomp5.so, but found libomp.so already initialized."
    assert judge(failed(0, 5.0, "KeyError: 1"), failed(1, 5.1, DISK), output=output) == ([0, 1], None)


def test_a_rank_that_failed_on_what_another_collective_gave_it_is_explained_by_the_one_that_knows() -> None:
    calls = "allreduce #14 of 108 bytes at a.py:8 on rank 0, allgather #14 at a.py:11 on rank 1"
    knows = f"ImpiError: impi: allreduce #14: the ranks called different collectives: {calls}; rank 1 ended"
    garbage = failed(1, 5.0, "RuntimeError: Storage size calculation overflowed with sizes=[4426542110440776076]")
    assert judge(failed(0, 6.0, knows), garbage) == ([1, 0], "impi-calls")
    assert diagnose(failed(0, 6.0, knows), garbage).title.endswith(calls)
    stack = '  File "/e/torch/distributed/distributed_c10d.py", line 3, in _tensor_to_object\n    load()\n'
    no_object = failed(1, 5.0, f"{stack}EOFError: Ran out of input")
    assert judge(failed(0, 6.0, knows), no_object) == ([1, 0], "impi-calls")
    assert judge(failed(0, 6.0, PEER), no_object) == ([1, 0], "object-mixed")
    assert judge(failed(0, 6.0, knows), failed(1, 5.0, DISK)) == ([1, 0], "disk")


def test_for_a_rank_that_says_nothing_the_others_speak_and_then_the_launcher() -> None:
    assert judge(failed(0, 5.0), failed(1, 5.1, PEER), failed(2, 5.2, DISK)) == ([0, 1, 2], "disk")
    assert judge(failed(0, 5.0), output="There are not enough slots available in the system") == ([0], "openmpi-slots")
    left = "impi_torch._launch.ImpiError: impi: allreduce #2: rank 0 left the group without it"
    for error in (PEER, left):
        assert judge(failed(0, 5.0), failed(1, 5.1, error)) == ([0, 1], None), "a consequence explains nothing"
    assert judge(output="unable to run proxy on n1") == ([], "bstrap")
    assert judge() == ([], None)


@pytest.mark.parametrize("at", [1.0, 5.9])
def test_a_rank_that_ended_well_while_others_waited_for_it_is_named(at: float) -> None:
    diagnosis = diagnose(failed(0, 5.0, PEER), ended(1, at))
    assert diagnosis.code == "ended-early"
    assert diagnosis.title.startswith("rank 1 on n1 had finished with the group while others still waited")
    assert "drop_last" in diagnosis.fix
    assert diagnosis.evidence == PEER


@pytest.mark.parametrize(
    "message", [PEER, "impi_torch._launch.ImpiError: impi: allreduce #31: rank 1 ended its script without it"]
)
def test_the_line_of_an_exit_that_others_did_not_expect_is_named(message: str) -> None:
    left = replace(ended(1, 1.0), exit_line="brk.py:49")
    diagnosis = diagnose(failed(0, 5.0, message), left)
    assert diagnosis.title.startswith("rank 1 on n1 (sys.exit at brk.py:49) had finished with the group while")


def test_ranks_that_ended_well_are_not_named_where_another_rank_is_the_cause() -> None:
    assert judge(failed(0, 5.0, PEER), failed(2, 5.1, "KeyError: 1"), ended(1, 1.0)) == ([2, 0], None)
    assert judge(failed(0, 5.0, PEER), ended(1, 60.0)) == ([0], "peer")


def test_impi_names_the_rank_that_left_the_group_by_itself() -> None:
    impi = "impi_torch._launch.ImpiError: impi: allreduce #31: rank 1 ended its script without it"
    diagnosis = diagnose(failed(0, 5.0, impi))
    assert diagnosis.title.startswith("rank 1 had finished with the group while others still waited")
