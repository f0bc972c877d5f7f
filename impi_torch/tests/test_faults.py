"""What happens when a rank is late, hangs, dies, leaves or fails (ranks/faults.py)."""

from __future__ import annotations

import re

import pytest
from conftest import Run


@pytest.mark.parametrize("case", ["late", "late_async", "stopped"])
def test_a_timeout_names_the_rank_that_did_not_come(run: Run, case: str) -> None:
    ended = run("faults", case, ranks=3)
    assert ended.code not in (0, 124)
    assert re.search(r"impi: Timed out waiting 3 s for \w+ #\d: rank 2 did not come; ranks 0, 1 waited", ended.err)


def test_a_timeout_across_hosts_names_the_rank_that_did_not_come(across: Run) -> None:
    ended = across("faults", "late", ranks=3)
    assert ended.code not in (0, 124)
    assert "rank 2 did not come" in ended.err


def test_a_caught_timeout_leaves_a_group_that_refuses_and_a_job_that_fails(run: Run) -> None:
    ended = run("faults", "late_caught", ranks=3)
    assert ended.code == 7
    assert "impi: Timed out waiting 3 s for allreduce #1: rank 2 did not come" in ended.out  # whoever was first
    assert "this group failed before" in ended.out
    assert re.search(r"destroyed on \d after impi: Timed out", ended.out)  # MPI would wait for rank 2


def test_a_wait_that_ends_early_leaves_the_operation_alone(run: Run) -> None:
    ended = run("faults", "late_wait", ranks=3, IMPI_TEST_TIMEOUT=100).ok()
    assert "caught on 0: impi: Timed out waiting 0.5 s for allreduce #1" in ended.out
    assert all(f"done on {rank}" in ended.out for rank in range(3))


def test_a_killed_rank_ends_the_others(run: Run) -> None:
    ended = run("faults", "killed", ranks=3, IMPI_TEST_TIMEOUT=100)
    assert ended.code not in (0, 124)
    assert "RANK 2" in ended.err + ended.out or "rank 2" in ended.err + ended.out


@pytest.mark.parametrize(("case", "ranks", "left"), [("left", 3, 2), ("destroys", 3, 2), ("destroys_store", 2, 0)])
def test_a_rank_that_left_is_named_within_seconds(run: Run, case: str, ranks: int, left: int) -> None:
    ended = run("faults", case, ranks=ranks, IMPI_TEST_TIMEOUT=100)
    assert ended.code not in (0, 124)
    assert f"rank {left} left the group without it" in ended.err


@pytest.mark.parametrize(
    ("case", "status", "words"),
    [
        ("raised", 1, "ValueError: a mistake of the script"),
        ("no_utf8", 1, r"ValueError: caf\udce9.jpg"),
        ("unprintable", 1, "Unprintable: <exception str() failed>"),
        ("hook", 1, "ValueError: a mistake of the script"),
        ("hook_exits", 5, "ValueError: a mistake of the script"),
        ("exits", 3, "exit status 3"),
        ("interrupted", 130, "KeyboardInterrupt"),
    ],
)
def test_a_rank_that_fails_ends_with_its_own_status_after_all_its_output(
    run: Run, case: str, status: int, words: str
) -> None:
    """mpirun ends with the status of the rank that failed, not of those that it killed."""
    ended = run("faults", case, ranks=2, IMPI_TEST_TIMEOUT=100)
    assert ended.code == status, ended
    assert f"impi: rank 1 ended with {words}" in ended.err
    assert ended.out.count("a line of rank 1\n") == 2000
    assert "the last word of rank 1" in ended.out, "what is registered for the end was not called"


def test_a_place_in_a_script_whose_name_is_no_utf_8_can_be_stored() -> None:
    from impi_torch._calls import describe_caller

    assert describe_caller((compile("1", "caf\udce9.py", "exec"), 0)).startswith(r" at caf\udce9.py:")


@pytest.mark.parametrize("hook", ["", "1"])
def test_peers_in_a_backward_pass_learn_who_failed_and_do_not_crash(run: Run, hook: str) -> None:
    ended = run(
        "faults", "backward", ranks=2, mpi=("-disable-auto-cleanup",), IMPI_TEST_TIMEOUT=100, IPEXCTL_RUN="x", HOOK=hook
    )
    assert ended.code not in (0, 124), ended
    assert re.search(r"RuntimeError: .*rank 1 ended with ValueError: a mistake of the script", ended.err), ended
    assert "Segmentation fault" not in ended.err


@pytest.mark.parametrize("case", ["raised", "exits"])
def test_peers_learn_who_failed_and_why_where_ipexctl_watches(run: Run, case: str) -> None:
    """There nobody calls MPI_Abort, and here, without auto-cleanup, nobody kills: each rank ends by itself."""
    ended = run("faults", case, ranks=2, mpi=("-disable-auto-cleanup",), IMPI_TEST_TIMEOUT=100, IPEXCTL_RUN="x")
    assert ended.code not in (0, 124), ended
    assert "Abort(" not in ended.err
    why = {"raised": "ValueError: a mistake of the script", "exits": "exit status 3"}[case]
    assert f"allreduce #1: rank 1 ended with {why}" in ended.err
    assert "the last word of rank 0" in ended.out


@pytest.mark.parametrize(
    "case", ["caught_exit", "thread_fails", "exit_in_atexit", "exit_0", "caught_timeout", "worker"]
)
def test_what_does_not_end_the_script_does_not_end_the_job(run: Run, case: str) -> None:
    ended = run("faults", case, ranks=2, IMPI_TEST_TIMEOUT=100).ok()
    assert ended.out.count("done on") == 2


def test_a_rank_whose_mpi4py_finalises_by_itself_does_not_wait_in_it(run: Run) -> None:
    ended = run("faults", "raised", ranks=2, IMPI_TEST_TIMEOUT=100, IMPI_TEST_MPI4PY=1, IPEXCTL_RUN="x")
    assert ended.code == 1, ended


def test_ranks_that_are_done_wait_for_the_last(run: Run) -> None:
    ended = run("faults", "unequal_ends", ranks=3).ok()
    assert "saved" in ended.out


@pytest.mark.parametrize("case", ["quiet_end", "work_left_behind"])
def test_a_script_that_just_ends_ends_well(run: Run, case: str) -> None:
    run("faults", case, ranks=3).ok()


def test_a_receiver_without_a_sender_is_told_so(run: Run) -> None:
    ended = run("faults", "no_receiver", ranks=2)
    assert "Timed out waiting 3 s for recv from rank 1: rank 1 did not answer" in ended.err


def test_a_message_that_nobody_takes_is_not_sent(run: Run) -> None:
    ended = run("faults", "no_taker", ranks=2, IMPI_TEST_TIMEOUT=100)
    assert (ended.code, "impi: send to rank 1: rank 1 left the group" in ended.err) == (1, True), ended


def test_a_group_that_does_not_come_together_names_who_is_missing(run: Run) -> None:
    ended = run("faults", "missing_member", ranks=3)
    assert "rank 2 did not come to make the group of ranks 0, 1, 2 within 2 s" in ended.err


def test_a_monitored_barrier_without_time_fails_at_once(run: Run) -> None:
    ended = run("faults", "monitored_at_once", ranks=2, IMPI_TEST_TIMEOUT=100)
    assert "Rank 0 timed out in monitoredBarrier within 0.001 s" in ended.err


@pytest.mark.parametrize(("words", "named"), [((), "Rank 1"), (("all",), "Ranks 1, 2")])
def test_a_monitored_barrier_names_who_is_missing(run: Run, words: tuple[str, ...], named: str) -> None:
    ended = run("faults", "monitored", *words, ranks=3, IMPI_TEST_TIMEOUT=100)
    assert f"impi: {named} failed to pass monitoredBarrier within 2 s" in ended.err


@pytest.mark.parametrize("case", ["mismatch", "mismatch_late"])
def test_ranks_in_different_collectives_are_told_so(run: Run, case: str) -> None:
    """MPI goes on for ever, or fails with an error of its own: which, depends on the two collectives."""
    ended = run("faults", case, ranks=3)
    assert ended.code not in (0, 124)
    called = r"(\w+ #\d( of \d+ bytes)? at faults.py:\d+ on ranks? [\d, ]+)"
    assert re.search(rf"the ranks called different collectives: {called}{{2}}", ended.err), ended.err


def test_the_difference_is_reported_where_a_rank_failed_on_what_another_collective_gave_it(run: Run) -> None:
    ended = run("faults", "mixed", ranks=2, mpi=("-disable-auto-cleanup",), IMPI_TEST_TIMEOUT=100, IPEXCTL_RUN="x")
    assert ended.code not in (0, 124)
    calls = r"broadcast #5 of 40 bytes at \S+:\d+ on rank 1, allreduce #5 of 40 bytes at \S+:\d+ on rank 0"
    assert re.search(f"called different collectives: {calls}; rank 1 ended with ValueError: a mistake", ended.err)


def test_a_skipped_collective_is_found_where_ranks_wait_long_before_their_time_limit(run: Run) -> None:
    ended = run("faults", "mismatch_skipped", ranks=2, IMPI_TEST_TIMEOUT=200)
    assert ended.code not in (0, 124)
    calls = "barrier #20 at faults.py:72 on rank 0, allreduce #20 of 16000 bytes at faults.py:70 on rank 1"
    assert f"the ranks called different collectives: {calls}" in ended.err, ended.err


def test_an_extra_collective_is_found_where_the_others_have_left(run: Run) -> None:
    ended = run("faults", "mismatch_extra", ranks=2, IMPI_TEST_TIMEOUT=100)
    assert ended.code not in (0, 124)
    calls = r"allreduce #5 of 20 bytes at faults.py:\d+ on rank 1, barrier #5 at faults.py:\d+ on rank 0"
    how = "left the group without it|ended with ImpiError"  # where it compared a later call in time
    assert re.search(f"called different collectives: {calls}; rank 1 ({how})", ended.err), ended.err


@pytest.mark.parametrize("steps", [5, 40])
def test_different_collectives_that_mpi_takes_for_the_same_are_found(run: Run, steps: int) -> None:
    """At the end of a short run; during a longer one."""
    ended = run("faults", "mismatch_quiet", ranks=2, STEPS=steps)
    assert ended.code
    expected = (
        "impi: the ranks called different collectives: broadcast #5 of 12 bytes at faults.py:80 on rank 0, "
        "allreduce #5 of 12 bytes at faults.py:82 on rank 1"
    )
    assert expected in ended.err, ended.err


@pytest.mark.parametrize("call", ["all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast"])
def test_a_collective_of_other_lengths_is_found(run: Run, call: str) -> None:
    """Which lengths MPI takes for the same depends on the call; one rank would go on with what nobody sent."""
    ended = run("faults", "mismatch_lengths", ranks=2, CALL=call)
    assert ended.code not in (0, 124), ended
    calls = r" #1 of (32|40) bytes at \S+ on rank 0, .* #1 of (?!\1)(32|40) bytes at \S+ on rank 1"
    assert re.search(calls, ended.err), ended.err


@pytest.mark.parametrize(
    ("call", "first", "second"),
    [
        ("root", "broadcast #1 of 16 bytes from rank 0", "broadcast #1 of 16 bytes from rank 1"),
        ("group", "broadcast #1 of 16 bytes from rank 0", "broadcast #1 of 16 bytes from rank 1"),
        ("destroyed", "broadcast #1 of 16 bytes from rank 0", "broadcast #1 of 16 bytes from rank 1"),
        ("dtype", "allreduce #1 of 16 bytes (SUM, float64)", "allreduce #1 of 16 bytes (SUM, int64)"),
        ("op", "allreduce #1 of 16 bytes (SUM, float32)", "allreduce #1 of 16 bytes (MAX, float32)"),
    ],
)
def test_another_root_operation_or_dtype_is_found(run: Run, call: str, first: str, second: str) -> None:
    """Each rank went on with numbers of its own: `dist.broadcast(tensor, src=rank)`."""
    ended = run("faults", "mismatch_detail", ranks=2, CALL=call)
    assert ended.code not in (0, 124), ended
    assert re.search(rf"{re.escape(first)} at \S+ on rank 0, {re.escape(second)} at \S+ on rank 1", ended.err), (
        ended.err
    )


def test_one_group_does_not_make_up_for_another() -> None:
    """Two ranks may mix up two groups of the same members."""
    from impi_torch._calls import Account, Snapshot

    def add_up(*digests: int) -> int:
        places = [("0", 0), ("0", 1), ("1", 0), ("1", 1)]
        return sum(Account(*place, "", 2, Snapshot(1, d, [])).share for place, d in zip(places, digests)) % 2**64

    assert add_up(3, 3, 5, 5) == 0 != add_up(3, 5, 5, 3)


def test_sparse_tensors_of_other_shapes_are_refused(run: Run) -> None:
    """The rank of the smaller one wrote outside of its memory."""
    ended = run("faults", "mismatch_lengths", ranks=2, CALL="sparse")
    assert ended.code == 1, ended
    assert "the sparse tensors of the ranks differ in their shapes or types" in ended.err


def test_lengths_that_may_differ_are_no_fault(run: Run) -> None:
    ended = run("faults", "mismatch_lengths", ranks=2, CALL="uneven")
    assert ended.code == 0, ended
