"""What happens when a rank is late, hangs, dies, leaves or fails (ranks/faults.py)."""

from __future__ import annotations

import pytest
from conftest import Run


@pytest.mark.parametrize("case", ["late", "late_async", "stopped"])
def test_a_timeout_names_the_rank_that_did_not_come(run: Run, case: str) -> None:
    ended = run("faults", case, ranks=3)
    assert ended.code not in (0, 124)
    assert "was not done within 3 s: rank 2 did not come; ranks 0, 1 waited" in ended.err


def test_a_timeout_across_hosts_names_the_rank_that_did_not_come(across: Run) -> None:
    ended = across("faults", "late", ranks=3)
    assert ended.code not in (0, 124)
    assert "rank 2 did not come" in ended.err


def test_a_caught_timeout_leaves_a_group_that_refuses_and_a_job_that_fails(run: Run) -> None:
    ended = run("faults", "late_caught", ranks=3)
    assert ended.code not in (0, 124)
    assert "impi: allreduce #1 was not done within 3 s: rank 2 did not come" in ended.out  # whoever was first
    assert "this group failed before" in ended.out


def test_a_wait_that_ends_early_leaves_the_operation_alone(run: Run) -> None:
    ended = run("faults", "late_wait", ranks=3, IMPI_TEST_TIMEOUT=100).ok()
    assert "caught on 0: impi: allreduce #1 was not done within 0.5 s" in ended.out
    assert all(f"done on {rank}" in ended.out for rank in range(3))


def test_a_killed_rank_ends_the_others(run: Run) -> None:
    ended = run("faults", "killed", ranks=3, IMPI_TEST_TIMEOUT=100)
    assert ended.code not in (0, 124)
    assert "RANK 2" in ended.err + ended.out or "rank 2" in ended.err + ended.out


def test_a_failed_rank_is_named_and_ends_the_others(run: Run) -> None:
    ended = run("faults", "raised", ranks=3, IMPI_TEST_TIMEOUT=100)
    assert ended.code not in (0, 124)
    assert "ValueError: a mistake of the script" in ended.err
    assert "impi: rank 2 ended with ValueError" in ended.err


def test_a_rank_that_left_is_named_within_seconds(run: Run) -> None:
    ended = run("faults", "left", ranks=3, IMPI_TEST_TIMEOUT=100)
    assert ended.code not in (0, 124)
    assert "rank 2 ended its script without it" in ended.err


def test_ranks_that_are_done_wait_for_the_last(run: Run) -> None:
    ended = run("faults", "unequal_ends", ranks=3).ok()
    assert "saved" in ended.out


@pytest.mark.parametrize("case", ["quiet_end", "work_left_behind"])
def test_a_script_that_just_ends_ends_well(run: Run, case: str) -> None:
    run("faults", case, ranks=3).ok()


def test_a_receiver_without_a_sender_is_told_so(run: Run) -> None:
    ended = run("faults", "no_receiver", ranks=2)
    assert "recv from rank 1 was not done within 3 s: rank 1 did not answer" in ended.err


def test_a_group_that_does_not_come_together_names_who_is_missing(run: Run) -> None:
    ended = run("faults", "missing_member", ranks=3)
    assert "rank 2 did not come to make the group of ranks 0, 1, 2 within 2 s" in ended.err


@pytest.mark.parametrize(("words", "named"), [((), "rank 1 did"), (("all",), "ranks 1, 2 did")])
def test_a_monitored_barrier_names_who_is_missing(run: Run, words: tuple[str, ...], named: str) -> None:
    ended = run("faults", "monitored", *words, ranks=3, IMPI_TEST_TIMEOUT=100)
    assert f"monitored_barrier: {named} not come within 2 s" in ended.err
