"""What controller and hosts say to each other: written, read back, and read when damaged."""

import io
import json
import subprocess
import sys
import tracemalloc
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.act import agent
from ipexctl.decide.run.journal_events import JournalReader
from ipexctl.model.errors import Exit
from ipexctl.model.events import Ended, Event, HostFailed, Message, RankEnded, RunEnded, Stamped
from ipexctl.model.launch import Running
from ipexctl.protocol import codec, frames, journal, messages, rank_records, run_spec, session
from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.frames import WatchFrame
from ipexctl.protocol.timings import Timings
from ipexctl.show.live import Live
from ipexctl.show.pipe import Pipe
from ipexctl.show.sinks import Plain
from tests.unit.agent.runs import SPEC
from tests.unit.show.streams import feed, fold

RUNNING = Running("r1", "a", ("a", "b"), {}, "python train.py", "train.py")
PLAIN: dict[Any, Any] = {int: 7, float: 0.5, str: "text", bool: True}


def example(kind: Any) -> Any:
    """A value of a type that the protocol uses, with something in every field."""
    if kind in PLAIN:
        return PLAIN[kind]
    if hasattr(kind, "_fields"):
        return kind(**{name: example(hint) for name, hint in get_type_hints(kind).items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict:
        return {example(arguments[0]): example(arguments[1])}
    values = [example(argument) for argument in arguments if argument is not type(None)]
    return {list: values, tuple: tuple(values)}.get(origin, values[0])


KINDS = [(kinds, kind) for kinds in (journal.KINDS, messages.KINDS) for kind in kinds.types.values()]


@pytest.mark.parametrize(("kinds", "kind"), KINDS, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_written_is_read(kinds: codec.Kinds[Any], kind: Any) -> None:
    value = example(kind)
    assert kinds.read(kinds.write(value)) == value
    assert kinds.read(json.dumps({**kinds.to_object(value), "more": 1}).encode()) == value, "a later version's key"


@pytest.mark.parametrize(("kinds", "kind"), KINDS, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_damaged_is_a_case(kinds: codec.Kinds[Any], kind: Any) -> None:
    whole = kinds.to_object(example(kind))
    for name in kind._fields:
        assert isinstance(kinds.from_object({**whole, name: [[None]]}), Unreadable), name
        if name not in kind._field_defaults:
            assert isinstance(kinds.from_object({key: whole[key] for key in whole if key != name}), Unreadable), name


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["kind", "rank", "x"]), inner),
    ).map(lambda value: json.dumps(value).encode())
)
def test_no_line_raises(line: bytes) -> None:
    assert isinstance(journal.KINDS.read(line), Unreadable)
    assert isinstance(messages.KINDS.read(line), Unreadable | messages.Message)


def test_a_specification_is_read_as_it_was_written() -> None:
    spec = SPEC._replace(timings=Timings(*(seconds * 0.01 for seconds in Timings())))
    assert codec.decode(run_spec.RunSpec, codec.load_object(run_spec.encode_spec(spec))) == spec
    damaged = spec._replace(timings=Timings(grace="soon"))  # type: ignore[arg-type]
    with pytest.raises(codec.DamagedError, match="timings: grace"):
        codec.decode(run_spec.RunSpec, codec.load_object(run_spec.encode_spec(damaged)))


@pytest.mark.parametrize("key", ["x", "", "-1", "\u00b2", "9" * 5000])
def test_a_key_that_is_no_number_is_damage_and_no_other_error(key: str) -> None:
    assert codec.decode(dict[int, str], {"10": "a"}) == {10: "a"}
    with pytest.raises(codec.DamagedError, match="is not a number"):
        codec.decode(dict[int, str], {key: "a"})


def test_only_the_heads_specification_knows_the_other_hosts() -> None:
    assert SPEC.head_spec.address == "127.0.0.1"
    with pytest.raises(ValueError, match="a is not the head of run"):
        _ = SPEC._replace(head=None).head_spec


def test_requests_and_refusals_of_a_session_keep_what_they_say() -> None:
    line = session.encode_request("unpack", {"path": "/e\n", "size": 3})
    assert line.count(b"\n") == 1
    assert session.decode_request(line) == ("unpack", {"path": "/e\n", "size": 3})
    error = session.SessionError("busy", "another install", holder="u@c")
    assert (str(error), error.code, error.details) == ("another install", "busy", {"holder": "u@c"})


def test_a_frame_of_the_longest_kind_is_read_and_a_longer_one_is_damaged() -> None:
    longest = WatchFrame(frames.OUT, 0, bytes(codec.MESSAGE_LIMIT))
    packed = frames.pack_frame(longest)
    assert frames.unpack_frame(packed) == (longest, len(packed))
    with pytest.raises(codec.DamagedError):
        frames.unpack_frame(frames.pack_frame(WatchFrame(frames.OUT, 0, bytes(codec.MESSAGE_LIMIT + 1))))


def test_frames_are_cut_out_of_any_pieces() -> None:
    sent = [
        WatchFrame(frames.JOURNAL, 0, b"{}\n"),
        WatchFrame(frames.ALIVE),
        WatchFrame(frames.OUT, 1 << 40, b"x" * 100),
    ]
    stream = b"".join(frames.pack_frame(frame) for frame in sent)
    received, held = [], b""
    for at in range(0, len(stream), 7):
        held += stream[at : at + 7]
        frame, end = frames.unpack_frame(held)
        while frame is not None:
            received.append(frame)
            frame, end = frames.unpack_frame(held, end)
        held = held[end:]
    assert (received, held) == (sent, b"")


def test_a_part_of_the_agent_runs_as_a_text() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-", "prove", "0101-none"],
        input=agent.build_program("remote.agent.procs").encode(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=30,
    )
    assert messages.KINDS.read(done.stdout) == messages.ProcessesLeft([])


def read_journal(data: bytes, piece: int = 1 << 20) -> tuple[JournalReader, list[Event]]:
    log = JournalReader("n0nce", RUNNING)
    events: list[Event] = []
    for at in range(0, len(data), piece):
        events += log.read(frames.JOURNAL, data[at : at + piece])
    return log, [*events, *log.end()]


@pytest.mark.fault("L3")
@pytest.mark.parametrize(
    "line",
    [
        b'{"kind": "RankEnded", "rank": 0',
        b"\x00\x00\x00",
        b"\xff\xfe\x80",
        b'{"what": "rank"}',
        b'{"kind": "OfAnotherVersion", "at": 1.0}',
        b'{"kind": "RankEnded", "rank": 99, "host": "a", "status": 0, "at": 1.0}',
        b'{"kind": "RankEnded", "rank": 0, "host": "a", "status": 0, "at": NaN}',
        b'{"kind": "RankEnded", "rank": 0, "host": "a", "status": 0, "at": 1e999}',
        b"x" * (codec.MESSAGE_LIMIT + 10),
    ],
    ids=lambda line: repr(line[:30]),
)
def test_a_line_that_is_no_record_is_reported_and_counted_and_the_rest_is_read(line: bytes) -> None:
    good = journal.encode_record(rank_records.RankEnded(1, "b", status=0, at=2.0))
    over = journal.encode_record(journal.RunEnd("r1", "rank", "rank 1 on b failed", at=3.0))
    log, events = read_journal(good + line + b"\n" + good + line + b"\n" + over, piece=1 << 16)
    assert log.over == RunEnded("r1", "rank", "rank 1 on b failed", 3.0)
    assert list(log.end()) == [], "once"
    assert [type(event) for event in events] == [RankEnded, Message, RankEnded, HostFailed], "at once, and once"
    [warning] = [event for event in events if isinstance(event, Message)]
    assert (warning.level, warning.host, warning.code) == ("warning", "a", "journal")
    (failure,) = [event.failure for event in events if isinstance(event, HostFailed)]
    assert (failure.kind.exit, failure.what) == (Exit.RECORD, "2 records of the run's journal cannot be read")


@pytest.mark.fault("L3")
def test_a_journal_without_a_line_end_takes_no_more_memory_than_a_record() -> None:
    tracemalloc.start()
    try:
        read_journal(b"x" * (20 << 20), piece=1 << 14)
        assert tracemalloc.get_traced_memory()[1] < (20 << 20) + 4 * codec.MESSAGE_LIMIT
    finally:
        tracemalloc.stop()


def test_a_frame_that_claims_more_than_a_frame_may_is_refused_before_it_has_come() -> None:
    whole = frames.pack_frame(WatchFrame(frames.OUT, 7, b"x"))
    with pytest.raises(codec.DamagedError, match="a frame of 4294967295 bytes"):
        frames.unpack_frame(whole[:9] + b"\xff\xff\xff\xff" + whole[13:])


odd_numbers = st.one_of(st.integers(-2, 3), st.integers())
odd_values: dict[Any, st.SearchStrategy[Any]] = {
    int: odd_numbers,
    float: st.floats(allow_nan=True),
    str: st.text(max_size=9),
    bool: st.booleans(),
}


def odd(kind: Any) -> st.SearchStrategy[Any]:
    """Values of the right shape and any contents."""
    if kind in odd_values:
        return odd_values[kind]
    if hasattr(kind, "_fields"):
        return st.builds(kind, **{name: odd(hint) for name, hint in get_type_hints(kind).items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict:
        return st.dictionaries(*map(odd, arguments), max_size=3)
    if origin is tuple:
        return st.tuples(*map(odd, arguments))
    if origin is list:
        return st.lists(odd(arguments[0]), max_size=3)
    return st.none() | odd(arguments[0])


@given(st.lists(st.one_of([odd(kind) for kind in journal.KINDS.types.values()]), max_size=6))
def test_no_record_of_a_host_ends_the_watching(records: list[journal.Record]) -> None:
    _, events = read_journal(b"".join(map(journal.encode_record, records)))
    stream = [Stamped(1.0 + number, event) for number, event in enumerate([*events, Ended("run", Exit.OK)])]
    for sink in (Plain(Pipe(io.BytesIO()), Pipe(io.BytesIO())), Live(Pipe(io.BytesIO()), Pipe(io.BytesIO()))):
        feed(sink, stream)
        sink.close(fold(stream))
