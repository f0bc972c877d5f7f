"""Ranks on one clock: collectives are matched, stragglers are measured, one trace shows all."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.decide.profile.merge import ClockOffset, Merging, build_profile, format_trace, merge_ranks, summarise_rank
from ipexctl.decide.profile.steps import RecordedSteps
from ipexctl.decide.profile.traces import KernelReport, RankTrace, parse_trace
from tests.unit.profile.trace_format import find_format_errors
from tests.unit.profile.written import BASE, op, pack, work

NONE = KernelReport({})


def trace_of(rank: int, host: str, *events: dict[str, Any], ahead: float = 0.0) -> RankTrace:
    """``ahead``: seconds by which the host's clock is."""
    return parse_trace(pack(*events, base=BASE + round(ahead * 1e9)), rank, host)


def merged(*traces: RankTrace, clocks: dict[str, ClockOffset] | None = None) -> Merging:
    steps = RecordedSteps(3, 4, (BASE, BASE + 50_000_000, BASE + 100_000_000), True)
    return merge_ranks([summarise_rank(trace, steps, NONE) for trace in traces], clocks or {})


def late(rank: int, host: str, start: float, *, ahead: float = 0.0) -> RankTrace:
    """A rank that enters two collectives, each ``start`` ms after 0; both end at 40 and 90 ms for all."""
    ends = [40_000, 90_000]
    works = [work("gloo:all_reduce", start * 1000 + 50_000 * n, end - start * 1000 - 50_000 * n)
             for n, end in enumerate(ends)]  # fmt: skip
    return trace_of(rank, host, op("aten::mm", 0, 5000), *works, ahead=ahead)


def test_the_clocks_of_hosts_are_set_by_the_ends_of_collectives() -> None:
    """node1's clock is 2 s ahead; its rank is the one that comes late."""
    merging = merged(late(0, "node0", 10), late(1, "node1", 35, ahead=2.0))
    assert merging.clock == "collectives"
    assert merging.offsets == {"node0": 0, "node1": pytest.approx(2.0)}
    assert merging.shifts[0] == pytest.approx(merging.shifts[1], abs=0.01)
    profile = build_profile("run", merging, (), 3, 4)
    first, second = profile.ranks
    assert first.waiting == pytest.approx(0.050)
    assert first.awaited == 0.0
    assert second.waiting == pytest.approx(0.0, abs=1e-6)
    assert second.awaited == pytest.approx(0.050)
    assert [(wait.rank, wait.late, wait.name) for wait in profile.waits] == [(0, 1, "gloo:all_reduce")] * 2
    assert [wait.seconds for wait in profile.waits] == [pytest.approx(0.025)] * 2
    assert [wait.at - BASE / 1e9 for wait in profile.waits] == [pytest.approx(each, abs=1e-5) for each in (0.01, 0.06)]
    (collective,) = profile.collectives
    assert (collective.calls, collective.matched) == (4, 2)
    assert collective.longest_wait == pytest.approx(0.025)


def test_a_clock_that_the_run_measured_well_is_taken() -> None:
    clocks = {"node0": ClockOffset(0.0, 0.0001), "node1": ClockOffset(2.0, 0.0004)}
    merging = merged(late(0, "node0", 10), late(1, "node1", 35, ahead=2.0), clocks=clocks)
    assert (merging.clock, merging.clock_error) == ("run", 0.0004)
    assert merging.shifts[0] == pytest.approx(merging.shifts[1], abs=0.01)


def test_a_clock_that_the_run_measured_badly_is_not() -> None:
    clocks = {"node0": ClockOffset(0.0, 0.0001), "node1": ClockOffset(1.5, 0.8)}
    merging = merged(late(0, "node0", 10), late(1, "node1", 35, ahead=2.0), clocks=clocks)
    assert merging.clock == "collectives"
    alone = [trace_of(rank, f"node{rank}", op("aten::mm", 0, 1)) for rank in range(2)]
    assert merged(*alone, clocks=clocks).clock == "run"  # it is all there is
    assert merged(*alone).clock == "hosts"


def test_a_clock_that_the_run_measured_better_than_collectives_agree_is_taken() -> None:
    """A busy host leaves its collectives late by now more and now less."""
    ends = [[40_000, 90_000, 140_000], [41_000, 97_000, 160_000]]
    traces = [
        trace_of(
            rank, f"node{rank}", *(work("gloo:all_reduce", end - 30_000, 30_000) for end in ends[rank]), ahead=rank
        )
        for rank in range(2)
    ]
    assert merged(*traces).clock == "collectives"
    assert merged(*traces).clock_error == pytest.approx(0.013)
    clocks = {"node0": ClockOffset(0.0, 0.0015), "node1": ClockOffset(1.0, 0.002)}
    assert (merged(*traces, clocks=clocks).clock, merged(*traces, clocks=clocks).clock_error) == ("run", 0.002)
    clocks["node1"] = ClockOffset(1.0, 0.02)
    assert merged(*traces, clocks=clocks).clock == "collectives"


def test_ranks_of_one_host_have_one_clock() -> None:
    merging = merged(late(0, "node0", 10), late(1, "node0", 35))
    assert merging.clock == "same"
    assert build_profile("run", merging, (), 3, 4).ranks[1].awaited == pytest.approx(0.050)


def test_collectives_that_not_all_ranks_made_as_often_are_not_compared() -> None:
    extra = trace_of(
        1, "node0", work("gloo:all_reduce", 0, 5), work("gloo:broadcast", 7, 1), work("gloo:broadcast", 9, 1)
    )
    merging = merged(trace_of(0, "node0", work("gloo:all_reduce", 0, 5), work("gloo:broadcast", 7, 1)), extra)
    assert [match.name for match in merging.matches] == ["gloo:all_reduce"]
    assert merging.notes == ("gloo:broadcast was called 1 to 2 times by different ranks: not compared",)


def test_waits_are_bounded_to_the_longest_and_are_on_one_clock_or_not_at_all() -> None:
    early = trace_of(0, "node0", *(work("gloo:all_reduce", 100 * n, 90) for n in range(900)))
    other = trace_of(
        1, "node1", *(work("gloo:all_reduce", 100 * n + n / 20, 90 - n / 20) for n in range(900)), ahead=5.0
    )
    waits = build_profile("run", merged(early, other), (), 3, 4).waits
    assert [(wait.rank, wait.late) for wait in waits] == [(0, 1)] * 250
    assert min(wait.seconds for wait in waits) == pytest.approx(650 / 20 / 1e6, abs=1e-9)
    assert [wait.at for wait in waits] == sorted(wait.at for wait in waits)
    assert waits[-1].at == pytest.approx(BASE / 1e9 + 0.0899, abs=1e-5)
    cast = [trace_of(rank, f"node{rank}", work("gloo:broadcast", 50 * rank, 100)) for rank in range(2)]
    assert merged(*cast).clock == "hosts"
    assert build_profile("run", merged(*cast), (), 3, 4).waits == ()


def test_a_broadcast_sets_no_clock() -> None:
    """Its source may leave before the others enter."""
    traces = [trace_of(rank, f"node{rank}", work("gloo:broadcast", 0, 5)) for rank in range(2)]
    assert merged(*traces).clock == "hosts"


def test_no_time_is_before_the_first() -> None:
    """A step may have begun before the first operator that its trace shows: viewers take no negative times."""
    trace = parse_trace(pack(op("aten::mm", 700, 5)), 0, "node0")
    events = json.loads("".join(format_trace(merged(trace), [trace])))["traceEvents"]
    assert min(event["ts"] for event in events if "ts" in event) == 0


def test_collectives_of_impi_come_from_its_own_record() -> None:
    """torch's profiler sees none of them."""
    trace = trace_of(0, "node0", op("aten::mm", 5, 1), op("c10d::allreduce_", 6, 1))
    works = (("barrier", BASE + 50_000, BASE + 60_000), ("allreduce", BASE + 10_000, BASE + 40_000))
    steps = RecordedSteps(3, 4, (BASE, BASE + 100_000), True, "", works)
    merging = merge_ranks([summarise_rank(trace, steps, NONE)], {})
    seconds = {row.name: row.seconds for row in build_profile("run", merging, (), 3, 4).collectives}
    assert list(seconds) == ["impi:allreduce", "impi:barrier"], "most time first"
    assert seconds == pytest.approx({"impi:allreduce": 30e-6, "impi:barrier": 10e-6})
    events = json.loads("".join(format_trace(merging, [trace])))["traceEvents"]
    shown = [(event["name"], event["dur"]) for event in events if event.get("cat") == "collective"]
    assert shown == [("impi:allreduce", 30), ("impi:barrier", 10)]


def test_one_rank_alone_waits_for_nobody() -> None:
    profile = build_profile("run", merged(late(0, "node0", 10)), (), 3, 4)
    assert (profile.ranks[0].waiting, profile.ranks[0].awaited) == (0, 0)
    assert profile.ranks[0].seconds == pytest.approx(0.1)


def test_overlapping_collectives_count_once_in_a_ranks_time() -> None:
    trace = trace_of(0, "node0", work("gloo:all_reduce", 0, 100), work("gloo:all_reduce", 50, 100, tid=10))
    assert build_profile("run", merged(trace), (), 3, 4).ranks[0].collectives == pytest.approx(150e-6)


def events_of(*traces: RankTrace) -> list[dict[str, Any]]:
    text = "".join(format_trace(merged(*traces), traces))
    events = json.loads(text)["traceEvents"]
    assert isinstance(events, list)
    return events


def test_each_rank_has_a_row_with_its_host_and_its_steps() -> None:
    events = events_of(late(0, "node0", 10), late(3, "node1", 35, ahead=2.0))
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "rank 0 · node0", 3: "rank 3 · node1"}
    steps = [event["name"] for event in events if event.get("cat") == "step" and event["pid"] == 0]
    assert steps == ["step 3", "step 4"]


def test_a_trace_of_many_pieces_is_one_document_with_every_event() -> None:
    trace = trace_of(0, "node0", *(op("aten::mm", 10 * number, 5) for number in range(4100)))
    events = events_of(trace)
    assert sum(event["name"] == "aten::mm" for event in events) == 4100


def test_calls_whose_end_is_not_that_of_the_work_have_no_arrow() -> None:
    calls = [trace_of(rank, f"node{rank}", op("c10d::allreduce_", 5 + rank, 2)) for rank in range(2)]
    assert merged(*calls).matches
    assert not [event for event in events_of(*calls) if event["ph"] in ("s", "f")]


def test_an_arrow_goes_from_the_rank_that_came_last_to_each_that_waited() -> None:
    traces = [late(0, "node0", 10), late(1, "node0", 20), late(2, "node1", 35, ahead=2.0)]
    events = events_of(*traces)
    arrows = [event for event in events if event.get("cat") == "collective" and event["ph"] != "X"]
    assert len(arrows) == 2 * 2 * 2  # two collectives, two that waited, two ends
    slices = [event for event in events if event.get("cat") == "collective" and event["ph"] == "X"]
    by_id: dict[int, list[dict[str, Any]]] = {}
    for arrow in arrows:
        by_id.setdefault(arrow["id"], []).append(arrow)
        assert any(  # in a slice, or the viewer would drop it
            (each["pid"], each["tid"]) == (arrow["pid"], arrow["tid"])
            and each["ts"] <= arrow["ts"] <= each["ts"] + each["dur"]
            for each in slices
        )
    for start, end in by_id.values():
        assert (start["ph"], end["ph"], start["pid"]) == ("s", "f", 2)
        assert start["ts"] < end["ts"]


DAMAGES: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("no dur", lambda event: event["ph"] == "X" and event.pop("dur"), "has no {'dur'}"),
    ("no thread name", lambda event: event["name"] == "thread_name" and event.update(tid=77), "has no name"),
    ("no process name", lambda event: event["name"] == "process_name" and event.update(pid=77), "has no name"),
    ("unknown metadata", lambda event: event["name"] == "thread_name" and event.update(name="x_name"), "no metadata"),
    ("one end", lambda event: event["ph"] == "s" and event.update(id=10**6), "is no arrow"),
    ("loose end", lambda event: event["ph"] == "s" and event.update(ts=event["ts"] + 4e6), "in no slice"),
    ("negative", lambda event: event["ph"] == "X" and event.update(ts=-1.0), "a time that is none"),
    ("overlap", lambda event: event["name"] == "aten::mm" and event.update(dur=60_000.0), "after the slice around"),
]


@pytest.mark.parametrize(("damage", "error"), [case[1:] for case in DAMAGES], ids=[case[0] for case in DAMAGES])
def test_a_merged_trace_follows_chromes_format(damage: Callable[[dict[str, Any]], object], error: str) -> None:
    traces = [
        trace_of(rank, host, op("aten::linear", 0, 5000), op("aten::mm", 0, 4000.0004),
                 op("aten::mm", 4000.0004, 999.9996),
                 work("gloo:all_reduce", 10_000 * (1 + rank), 40_000 - 10_000 * (1 + rank)))
        for rank, host in enumerate(("node0", "node0", "node1"))
    ]  # fmt: skip
    trace = json.loads("".join(format_trace(merged(*traces), traces)))
    assert find_format_errors(trace) == []
    assert sum(event["ph"] == "s" for event in trace["traceEvents"]) == 2
    done = next(event for event in trace["traceEvents"] if damage(event) is not False)
    assert any(error in each for each in find_format_errors(trace)), done


@st.composite
def nested_slices(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Calls of some threads, as deep and as short as they come, in no order."""
    slices: list[dict[str, Any]] = []

    def call(tid: int, begin: float, end: float, depth: int) -> None:
        slices.append(op(f"aten::op{depth}", begin, end - begin, tid=tid))
        cuts = sorted(draw(st.lists(st.floats(begin, end), max_size=4))) if depth < 4 else []
        for first, last in zip(cuts[::2], cuts[1::2], strict=False):
            call(tid, first, last, depth + 1)

    for tid in range(draw(st.integers(1, 3))):
        call(tid, draw(st.floats(0, 10)), draw(st.floats(10, 5000)), 0)
    return draw(st.permutations(slices))


@given(nested_slices(), nested_slices(), st.floats(-3, 3))
def test_calls_stay_within_those_that_made_them_wherever_they_are_cut(
    first: list[dict[str, Any]], second: list[dict[str, Any]], ahead: float
) -> None:
    reduce = work("gloo:all_reduce", 0, 5000)
    traces = [trace_of(0, "node0", *first, reduce), trace_of(1, "node1", *second, reduce, ahead=ahead)]
    assert find_format_errors(json.loads("".join(format_trace(merged(*traces), traces)))) == []


def test_collectives_that_overlap_stand_in_different_rows() -> None:
    """A viewer shows slices of one row only if each is inside of the other or after it."""
    works = [work("gloo:all_reduce", 10 * n, 25) for n in range(6)]
    rows: dict[int, list[tuple[float, float]]] = {}
    for event in events_of(trace_of(0, "node0", *works)):
        if event.get("cat") == "collective":
            rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, rows.values())) == 6
    assert all(end <= start for row in rows.values() for (_, end), (start, _) in pairwise(row))
