"""Reading the trace of one rank: Chrome's trace event format, as torch.profiler writes it with Kineto.

Format: "Trace Event Format" of the Chromium project; times in microseconds, ``baseTimeNanoseconds`` (Unix) is added to
them. Each text comes from a host and may be anything: it is refused with a reason, never half read."""

import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from ipexctl.model.json_values import JsonObject, Record

LARGEST = 272 << 20  # bytes of a trace, unpacked; ranks write a little less
MOST_EVENTS = 3_000_000
_MOST_NAME = 500  # letters of a name; the rest is cut off
_TIME_LIMIT = 1 << 62  # microseconds and nanoseconds beyond this are no time
# Work of a backend, from the call to its completion: ``gloo:all_reduce`` (torch's Work with a profiling title),
# ``oneccl_bindings_for_pytorch::allreduce`` and ``torch_ccl::…``.
_OF_BACKEND = re.compile(r"(gloo|mpi|ucc|ccl|xccl|impi|torch_ccl|oneccl_bindings_for_pytorch)::?(\w+)")
_OF_C10D = re.compile(r"c10d::_?(\w+?)_?")  # the call alone: backends without such a title
# Ranks leave these only when the last has entered.
_SYNCHRONOUS = (
    "all_reduce",
    "allreduce",
    "barrier",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "all_to_all",
    "alltoall",
)
_ARGUMENTS = ("Input Dims", "Input type")  # of an operator, which stay in the merged trace


class TraceError(ValueError):
    """A trace that cannot be used; the text is the reason."""


class Slice(NamedTuple):
    """Something with a beginning and an end, microseconds since the trace's `RankTrace.origin`."""

    name: str
    start: float
    end: float
    thread: int
    kind: str
    arguments: JsonObject | None


class Arrow(NamedTuple):
    """From an operator to its backward one: ``phase`` "s" or "f"."""

    phase: str
    number: int
    at: float
    thread: int


class RankTrace(Record):
    """The trace of one rank; ``origin`` is Unix nanoseconds of its host's clock."""

    rank: int
    host: str
    origin: int
    slices: Sequence[Slice]
    arrows: Sequence[Arrow]


class Collective(NamedTuple):
    """One call of one rank. ``finished``: the end is that of the work, not of the call alone."""

    name: str
    start: float
    end: float
    finished: bool


def unpack_trace(data: bytes) -> bytes:
    """Returns the text of a file that gzip made. Raises `TraceError`."""
    unpacker = zlib.decompressobj(31)
    try:
        text = unpacker.decompress(data, LARGEST + 1)
    except zlib.error:
        raise TraceError("the trace is damaged: it is not what gzip writes") from None
    if len(text) > LARGEST:
        raise TraceError(f"the trace has more than {LARGEST >> 20} MiB")
    if not unpacker.eof:
        raise TraceError("the trace is cut off")
    return text


def parse_trace(data: bytes, rank: int, host: str) -> RankTrace:
    """Returns the trace of a rank from the bytes of its file. Raises `TraceError`."""
    try:
        value = json.loads(unpack_trace(data).decode("utf-8"), parse_constant=_refuse_constant)
    except TraceError:
        raise
    except RecursionError:
        raise TraceError("the trace is nested too deeply") from None
    except ValueError:
        raise TraceError("the trace is not JSON") from None
    events = value.get("traceEvents") if isinstance(value, Mapping) else None
    if not isinstance(events, list):
        raise TraceError("the trace has no list of events")
    if len(events) > MOST_EVENTS:
        raise TraceError(f"the trace has {len(events):,} events; at most {MOST_EVENTS:,} are read")
    base = value.get("baseTimeNanoseconds", 0)
    if type(base) is not int or not 0 <= base < _TIME_LIMIT:
        raise TraceError("the trace has no base time that is one")
    threads: dict[object, int] = {}
    timed: list[tuple[float, Mapping[str, object]]] = []
    arrows: list[Arrow] = []
    for event in events:
        if not isinstance(event, dict):
            raise TraceError("an event of the trace is no object")
        phase, kind = event.get("ph"), event.get("cat")
        if phase == "X" and kind != "Trace":
            timed.append((_read_time(event, "ts"), event))
        elif phase in ("s", "f") and kind == "fwdbwd":
            number = event.get("id")
            if type(number) is not int or not 0 <= number < 1 << 53:
                raise TraceError("an arrow of the trace has no number")
            arrows.append(Arrow(phase, number, _read_time(event, "ts"), _number_thread(event, threads)))
    if not timed:
        raise TraceError("the trace is empty")
    first = math.floor(min(start for start, _ in timed))
    slices = [_read_slice(event, start - first, threads) for start, event in timed]
    arrows = [each._replace(at=each.at - first) for each in arrows if each.at >= first]
    return RankTrace(rank, host, base + first * 1000, slices, arrows)


def _read_slice(event: Mapping[str, object], start: float, threads: dict[object, int]) -> Slice:
    name, kind = event.get("name"), event.get("cat")
    if not isinstance(name, str):
        raise TraceError("an event of the trace has no name")
    kind = kind[:40] if isinstance(kind, str) else ""
    end = start + _read_time(event, "dur")
    return Slice(name[:_MOST_NAME], start, end, _number_thread(event, threads), kind, _select_arguments(event))


def _refuse_constant(word: str) -> NoReturn:
    raise TraceError(f"the trace has a time that is {word}")


def _read_time(event: Mapping[str, object], key: str) -> float:
    value = event.get(key)
    if type(value) not in (int, float) or not 0 <= value < _TIME_LIMIT:  # type: ignore[operator]  # a number by then
        raise TraceError(f"an event of the trace has no {key} that is a time")
    return float(value)  # type: ignore[arg-type]


def _number_thread(event: Mapping[str, object], threads: dict[object, int]) -> int:
    """Threads get small numbers in the order in which they appear: a trace may call them anything."""
    name = event.get("tid")
    return threads.setdefault(name if isinstance(name, int | str) else None, len(threads) + 1)


def _select_arguments(event: Mapping[str, object]) -> JsonObject | None:
    values = event.get("args")
    if isinstance(values, Mapping):
        return {key: values[key] for key in _ARGUMENTS if values.get(key)} or None
    return None


def find_collectives(slices: Iterable[Slice]) -> list[Collective]:
    """The collectives of one rank in the order of their starts: those of a backend, or else the calls of c10d."""
    works: list[Collective] = []
    calls: list[Collective] = []
    for each in slices:
        if match := _OF_BACKEND.fullmatch(each.name):
            works.append(Collective(f"{match[1]}:{match[2]}", each.start, each.end, True))
        elif match := _OF_C10D.fullmatch(each.name):
            calls.append(Collective(f"c10d:{match[1]}", each.start, each.end, False))
    return sorted(works or calls, key=lambda each: each.start)


def is_collective(name: str) -> bool:
    """Returns whether a slice is the work of a backend, which overlaps what its thread does."""
    return _OF_BACKEND.fullmatch(name) is not None


def is_synchronous(collective: Collective) -> bool:
    """Returns whether no rank can leave it before the last has entered, and its end is known."""
    return collective.finished and collective.name.partition(":")[2].lstrip("_").startswith(_SYNCHRONOUS)


class Sum(NamedTuple):
    """Of an operator: calls, and seconds without and with the operators that it called."""

    calls: int = 0
    own: float = 0.0
    total: float = 0.0


def sum_operators(slices: Iterable[Slice]) -> dict[str, Sum]:
    """Name → what an operator took in one rank. A slice inside another of its thread was called by it."""
    sums: dict[str, Sum] = {}
    threads: dict[int, list[Slice]] = {}
    for each in slices:
        if not is_collective(each.name):
            threads.setdefault(each.thread, []).append(each)
    for own in threads.values():
        own.sort(key=lambda each: (each.start, -each.end))
        _sum_thread(own, sums)
    return sums


def _sum_thread(slices: Iterable[Slice], sums: dict[str, Sum]) -> None:
    """``slices`` in the order of their starts, an outer one before those in it."""
    stack: list[tuple[Slice, float]] = []  # those that are open, with the time of what they called
    names: Counter[str] = Counter()  # of these

    def close(until: float) -> None:
        while stack and stack[-1][0].end <= until:
            done, inner = stack.pop()
            names[done.name] -= 1
            length = done.end - done.start
            before = sums.get(done.name, Sum())
            total = 0.0 if names[done.name] else length / 1e6  # a recursive call is part of the outer one's
            own = max(0.0, length - inner) / 1e6
            sums[done.name] = Sum(before.calls + 1, before.own + own, before.total + total)
            if stack:
                outer, called = stack[-1]
                stack[-1] = (outer, called + length)

    for each in slices:
        close(each.start)
        stack.append((each, 0.0))
        names[each.name] += 1
    close(math.inf)
