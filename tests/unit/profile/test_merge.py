"""A profile of all ranks: collectives are matched and stragglers measured, whatever the clocks of hosts are."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.decide.profile.merge import RankSummary, build_profile, summarise_rank
from ipexctl.decide.profile.steps import RecordedSteps
from ipexctl.decide.profile.traces import Kernel, Sum, TraceError, parse_trace
from ipexctl.model.profile import Profile
from ipexctl.protocol.hooks import STEPS as STEPS_FILE
from ipexctl.verbs.run.profile import RankFiles
from tests.unit.profile.written import op, pack, work

MS = 1_000_000  # nanoseconds
STEPS = RecordedSteps(3, 4, (0, 50 * MS, 100 * MS), True)


def summarise(rank: int, *events: dict[str, Any], steps: RecordedSteps = STEPS) -> RankSummary:
    return summarise_rank(rank, f"node{rank}", parse_trace(pack(*events)), steps, {})


def profile(*ranks: RankSummary) -> Profile:
    return build_profile("run", ranks, (), 3, 4)


def late(rank: int, start: float, *, ahead: float = 0.0) -> RankSummary:
    """A rank that enters two collectives, each ``start`` ms after 0; both end at 40 and 90 ms for all."""
    works = [work("gloo:all_reduce", (ahead + start + 50 * n) * 1000, (40 - start) * 1000) for n in range(2)]
    return summarise(rank, op("aten::mm", ahead * 1000, 5000), *works)


def test_a_rank_waits_for_the_one_that_comes_last_though_its_clock_is_hours_ahead() -> None:
    result = profile(late(0, 10), late(1, 35, ahead=7_200_000.0), late(2, 15))
    assert [rank.waiting for rank in result.ranks] == pytest.approx([0.050, 0.0, 0.040])
    assert [rank.awaited for rank in result.ranks] == pytest.approx([0.0, 0.040, 0.0])
    assert [rank.seconds for rank in result.ranks] == pytest.approx([0.1] * 3)
    (collective,) = result.collectives
    assert (collective.calls, collective.matched) == (6, 2)
    assert (collective.waiting, collective.longest_wait) == pytest.approx((0.090, 0.025))


def test_collectives_that_not_all_ranks_made_as_often_are_not_compared() -> None:
    reduce, barrier = work("gloo:all_reduce", 0, 5), work("gloo:barrier", 7, 1)
    result = profile(summarise(0, reduce, barrier), summarise(1, reduce, barrier, work("gloo:barrier", 9, 1)))
    assert {row.name: row.matched for row in result.collectives} == {"gloo:all_reduce": 1, "gloo:barrier": 0}
    assert result.notes == ("gloo:barrier was called 1 to 2 times by different ranks: not compared",)


@pytest.mark.parametrize("name", ["gloo:broadcast", "c10d::allreduce_"])
def test_what_ranks_do_not_leave_together_is_not_compared(name: str) -> None:
    """The source of a broadcast may leave before the others enter; a call alone ends before its work."""
    result = profile(summarise(0, work(name, 0, 50)), summarise(1, work(name, 0, 5)))
    assert [(row.calls, row.matched, row.waiting) for row in result.collectives] == [(2, 0, 0.0)]
    assert [rank.waiting for rank in result.ranks] == [0.0, 0.0]
    assert result.notes == ()


def test_collectives_of_impi_come_from_its_own_record() -> None:
    """torch's profiler sees none of them."""
    works = (("barrier", 50_000, 60_000), ("allreduce", 10_000, 40_000))
    steps = RecordedSteps(3, 4, (0, 100_000), True, "", works)
    result = profile(summarise(0, op("aten::mm", 5, 1), op("c10d::allreduce_", 6, 1), steps=steps))
    seconds = {row.name: row.seconds for row in result.collectives}
    assert list(seconds) == ["impi:allreduce", "impi:barrier"], "most time first"
    assert seconds == pytest.approx({"impi:allreduce": 30e-6, "impi:barrier": 10e-6})


def test_one_rank_alone_waits_for_nobody() -> None:
    (rank,) = profile(late(0, 10)).ranks
    assert (rank.waiting, rank.awaited) == (0, 0)


def test_a_rank_that_ended_within_its_first_step_has_the_time_of_its_trace() -> None:
    (rank,) = profile(summarise(0, op("aten::mm", 7000, 5000), steps=RecordedSteps(3, 2, (MS,), True))).ranks
    assert rank.steps == 0
    assert rank.seconds == pytest.approx(0.005)


def test_operators_of_all_ranks_are_added_up_the_costliest_first() -> None:
    result = profile(summarise(0, op("aten::mm", 0, 5), op("aten::add", 5, 1)), summarise(1, op("aten::mm", 0, 7)))
    assert [(row.name, row.calls) for row in result.operators] == [("aten::mm", 2), ("aten::add", 1)]
    assert result.operators[0].own == pytest.approx(12e-6)


def test_overlapping_collectives_count_once_in_a_ranks_time() -> None:
    (rank,) = profile(summarise(0, work("gloo:barrier", 0, 100), work("gloo:barrier", 50, 100, tid=10))).ranks
    assert rank.collectives == pytest.approx(150e-6)


def test_no_rank_at_all_makes_an_empty_profile() -> None:
    assert profile() == Profile("run", 3, 4, ())


def test_names_without_an_end_make_no_table_without_an_end() -> None:
    """A megabyte of a host was 360,000 lines on the screen, and tables too large to be read again."""
    with pytest.raises(TraceError, match="more than 200 kinds of collectives"):
        summarise(0, *[work(f"gloo:all_reduce{number}", number, 1) for number in range(201)])
    ranks = [summarise(n, *[work(f"gloo:barrier{n}{at:03}", at, 1) for at in range(200)]) for n in range(2)]
    kernels = [{Kernel(f"{n}.{at}", "", ""): Sum(1, 1.0) for at in range(2000)} for n in range(2)]
    result = profile(*[replace(rank, kernels=own) for rank, own in zip(ranks, kernels, strict=True)])
    assert (len(result.collectives), len(result.notes), len(result.kernels)) == (100, 100, 2000)


@pytest.mark.parametrize("works", [False, True])
def test_collectives_without_an_end_are_refused(monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    """Those of impi's record, too: 4 MiB of it were 70 of memory for each rank."""
    monkeypatch.setattr("ipexctl.decide.profile.traces.COLLECTIVE_LIMIT", 2)
    steps = RecordedSteps(3, 4, (0, 9), True, "", (("barrier", 0, 1),) * 3 if works else ())
    with pytest.raises(TraceError, match="more than 2 collectives"):
        summarise(0, *[work("gloo:barrier", at, 1) for at in range(3)], steps=steps)


def test_the_reason_of_a_rank_without_a_trace_is_short(tmp_path: Path) -> None:
    """Sixteen ranks of a host were 50 MB on the screen."""
    files = RankFiles(tmp_path, 0, "n0")
    files.base.mkdir(parents=True)
    (files.base / f"0.1{STEPS_FILE}").write_text(json.dumps({"why": "x" * (4 << 20)}))
    with pytest.raises(TraceError) as error:
        files.summarise()
    assert len(str(error.value)) == 300
