"""What controller and hosts say to each other: written, read back, and read when damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.act import agent
from ipexctl.decide.runlog import RunLog
from ipexctl.model.events import Message, RankEnded, RunEnded
from ipexctl.model.launch import Running
from ipexctl.model.reports import OutOfMemory
from ipexctl.protocol import codec, frames, journal, messages, run_spec
from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.frames import WatchFrame
from ipexctl.protocol.timings import Timings
from tests.unit.agent.runs import SPEC

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
    assert codec.decode(run_spec.RunSpec, codec.load_object(run_spec.write(spec))) == spec
    with pytest.raises(codec.DamagedError, match="timings: grace"):
        codec.decode(run_spec.RunSpec, codec.load_object(run_spec.write(spec._replace(timings=Timings(grace="soon")))))  # type: ignore[arg-type]


def test_frames_are_cut_out_of_any_pieces() -> None:
    sent = [
        WatchFrame(frames.JOURNAL, 0, b"{}\n"),
        WatchFrame(frames.ALIVE),
        WatchFrame(frames.OUT, 1 << 40, b"x" * 100),
    ]
    stream = b"".join(frames.pack(frame) for frame in sent)
    received, held = [], b""
    for at in range(0, len(stream), 7):
        frame, held = frames.unpack(held + stream[at : at + 7])
        while frame is not None:
            received.append(frame)
            frame, held = frames.unpack(held)
    assert (received, held) == (sent, b"")


def test_a_damaged_journal_is_told_once_and_the_rest_of_it_is_read() -> None:
    log = RunLog("n0nce", RUNNING)
    lines = [
        b'{"what": "rank"}\n',
        b"\xff rubbish\n",
        journal.write(journal.RankEnded(1, "b", 3, at=2.0)),
        b'{"kind": "RankEnded", "rank": "one"}\n',
        journal.write(journal.RunEnd("r1", "rank", "rank 1 on b failed", at=3.0)),
    ]
    events = [event for line in lines for event in log.read(frames.JOURNAL, line)] + list(log.end())
    assert [event.level for event in events if isinstance(event, Message)] == ["warning", "warning"]
    assert [event.text for event in events if isinstance(event, Message)][1].startswith("3 records of")
    assert [event for event in events if isinstance(event, RankEnded)] == [RankEnded(1, "b", 3, at=2.0)]
    assert log.over == RunEnded("r1", "rank", "rank 1 on b failed", 3.0)


def test_a_rank_killed_for_lack_of_memory_says_so_as_a_type_and_in_words() -> None:
    log = RunLog("n0nce", RUNNING)
    record = journal.RankEnded(1, "b", None, 9, oom=journal.Memory(1, 3, 4))
    (ended,) = log.read(frames.JOURNAL, journal.write(record))
    assert isinstance(ended, RankEnded)
    assert ended.oom == OutOfMemory(3, 4)
    assert ended.error == "killed by the kernel: out of memory: 3 of 4 bytes of its control group"


def test_a_part_of_the_agent_runs_as_a_text() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-", "prove", "0101-none"],
        input=agent.build_program("remote.agent.procs").encode(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=30,
    )
    assert messages.KINDS.read(done.stdout) == messages.ProcessesLeft([])
