"""The trace of one rank: what is read of it, and that a damaged or hostile one is refused with a reason."""

import contextlib
import gzip
import tracemalloc

import pytest

from ipexctl.decide.profile import traces
from ipexctl.decide.profile.traces import TraceError, find_collectives, is_synchronous, parse_trace, sum_operators
from tests.tables import read_table
from tests.unit.profile.written import op, pack, work


def test_slices_have_their_times_and_threads_small_numbers() -> None:
    assert parse_trace(pack(op("aten::mm", 5000.5, 3), op("aten::add", 5001, 1, tid=8))) == [
        ("aten::mm", 5000.5, 5003.5, 1),
        ("aten::add", 5001, 5002, 2),
    ]


def test_own_time_is_without_what_an_operator_calls() -> None:
    events = [
        op("aten::linear", 0, 100),
        op("aten::addmm", 10, 60),
        op("aten::copy_", 20, 10),
        op("aten::copy_", 70, 10),
        op("aten::linear", 200, 50),
        op("aten::addmm", 5, 30, tid=8),  # of another thread: no part of the first
    ]
    sums = sum_operators(parse_trace(pack(*events)))
    expected = {"aten::linear": (2, 80e-6), "aten::addmm": (2, 80e-6), "aten::copy_": (2, 20e-6)}
    assert sums.keys() == expected.keys()
    for name, values in expected.items():
        assert sums[name] == pytest.approx(values), name


def test_collectives_are_the_work_of_a_backend_in_the_order_of_their_starts() -> None:
    events = [work("gloo:barrier", 50, 5), op("c10d::allreduce_", 0, 2), work("gloo:all_reduce", 1, 30, tid=10)]
    collectives = find_collectives(parse_trace(pack(*events)))
    assert [(each.name, each.start) for each in collectives] == [("gloo:all_reduce", 1), ("gloo:barrier", 50)]
    ccl = parse_trace(pack(op("oneccl_bindings_for_pytorch::allreduce", 0, 2)))
    assert [each.name for each in find_collectives(ccl)] == ["oneccl_bindings_for_pytorch:allreduce"]


def test_a_backend_without_titles_has_its_calls_whose_end_is_not_that_of_the_work() -> None:
    collectives = find_collectives(parse_trace(pack(op("c10d::allreduce_", 0, 2))))
    assert [each.name for each in collectives] == ["c10d:allreduce"]
    assert not is_synchronous("c10d:allreduce")


GOOD = op("aten::mm", 1, 1)
DEEP = b'{"x":' + b"[" * 200_000
BAD = {
    "empty file": (b"", "cut off"),
    "no gzip": (b"{}", "not what gzip writes"),
    "cut off": (pack(GOOD)[:-9], "cut off"),
    "no JSON": (gzip.compress(b"\x1b]0;x\x07"), "malformed"),
    "half of it": (gzip.compress(b'{"traceEvents": [{"ph": "X"'), "truncated"),
    "no text": (gzip.compress(b'{"traceEvents": ["\xff"]}'), "traceEvents"),
    "too deep": (gzip.compress(DEEP), "nested too deeply"),
    "no object": (gzip.compress(b"[]"), "Expected `object`"),
    "no list": (gzip.compress(b'{"traceEvents": {}}'), "Expected `array`"),
    "no event": (pack(), "empty"),
    "event of text": (pack("x"), "Expected `object`, got `str`"),
    "name of a number": (pack({**GOOD, "name": 3}), "Expected `str | null`"),
    "no name": (pack({key: GOOD[key] for key in GOOD if key != "name"}), "no name"),
    "no time": (pack({key: GOOD[key] for key in GOOD if key != "ts"}), "no ts that is a time"),
    "time of text": (pack({**GOOD, "ts": "1"}), r"ts`"),
    "true for a time": (pack({**GOOD, "ts": True}), r"ts`"),
    "time before all": (pack({**GOOD, "dur": -1}), "no dur that is a time"),
    "far away": (pack({**GOOD, "dur": 10**300}), "no dur that is a time"),
    "not a number": (pack({**GOOD, "dur": float("nan")}), "malformed"),
    "number without an end": (gzip.compress(b'{"traceEvents": [{"ts": ' + b"9" * 5000 + b"}]}"), "out of range"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_trace_that_cannot_be_used_is_refused_with_a_reason(case: str) -> None:
    data, why = BAD[case]
    with pytest.raises(TraceError, match=why):
        parse_trace(data)


def test_a_trace_that_unpacks_to_more_than_is_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "TRACE_LIMIT", 1000)
    with pytest.raises(TraceError, match="more than"):
        parse_trace(gzip.compress(b" " * 5000))


def test_a_trace_of_more_events_than_are_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "EVENT_LIMIT", 10)
    with pytest.raises(TraceError, match="11 events; at most 10 are read"):
        parse_trace(pack(*[GOOD] * 11))


@pytest.mark.parametrize(("begin", "piece", "end"), read_table("traces/packed_traces"))
def test_a_trace_that_was_packed_well_takes_little_more_than_its_text(begin: str, piece: str, end: str) -> None:
    """30 KB of a host's were gigabytes here, by what JSON becomes in Python, before the events were counted."""
    count = 21_000_000 // len(piece)
    data = gzip.compress(f'{{"traceEvents":{begin}{piece * count}{end}}}'.encode())
    assert len(data) < 50_000
    tracemalloc.start()
    try:
        with contextlib.suppress(TraceError):
            assert parse_trace(data)
        assert tracemalloc.get_traced_memory()[1] < 5 * 21_000_000
    finally:
        tracemalloc.stop()


def test_deep_nesting_of_slices_costs_no_more_than_their_number() -> None:
    """Operators that are all inside of each other: quadratic work would not end."""
    count = 100_000
    sums = sum_operators(parse_trace(pack(*(op("f", n, 2 * count - 2 * n) for n in range(count)))))
    assert sums["f"].calls == count


def test_names_of_any_length_and_threads_of_any_kind_are_read() -> None:
    trace = parse_trace(pack(op("x" * 9000, 0, 1, tid=None), op("y", 0, 1, tid="Spans")))  # type: ignore[arg-type]
    assert [len(each.name) for each in trace] == [500, 1]


def test_operators_without_an_end_are_added_up_as_others() -> None:
    """Those of all ranks are in memory at once: four megabytes of a rank were 270 here, again for each of its ranks."""
    slices = [traces.Slice(f"op{number}", number, number + 1, 1) for number in range(3 * traces.OPERATOR_KINDS)]
    sums = sum_operators(slices)
    assert len(sums) == traces.OPERATOR_KINDS + 1
    assert sum(each.calls for each in sums.values()) == len(slices)


def test_collectives_of_one_name_share_it() -> None:
    """Names of 500 letters, 100,000 times: a megabyte of a host was 215 of memory for each of its ranks."""
    long = "gloo:" + "\U00020000" * 400
    first, second = find_collectives(parse_trace(pack(op(long, 0, 1), op(long, 2, 1))))
    assert first.name is second.name
