"""Reading what the profiled steps of one rank left: its trace, and what oneDNN reported of the primitives it executed.

A trace is in Chrome's trace event format, as torch.profiler writes it with Kineto: "Trace Event Format" of the Chromium
project; times in microseconds. Each text comes from a host and may be
anything: it is refused with a reason, never half read.

oneDNN's format is in its developer guide, "Verbose Mode", and in the line ``…,info,template:`` that the library writes:
``onednn_verbose[,v1][,timestamp][,primitive],exec,engine,primitive,implementation,prop_kind,memory_descriptors,
attributes,auxiliary,problem_desc,exec_time``; the time is in milliseconds. Old libraries begin with dnnl_verbose."""

import io
import math
import re
import sys
import zlib
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from ipexctl.model.json_values import Record, field, parse_json
from ipexctl.model.text import group_pairs
from ipexctl.protocol import hooks

Key = TypeVar("Key", bound=Hashable)
TRACE_LIMIT = 272 << 20  # bytes of a trace, unpacked; ranks write a little less
EVENT_LIMIT = 3_000_000
OPERATOR_KINDS, COLLECTIVE_LIMIT = 2_000, 100_000  # of one rank: those of all ranks are in memory at once
_OTHERS = "(others)"  # operators beyond these
_NAME_LIMIT = 500  # letters of a name; the rest is cut off
_TIME_LIMIT = 1 << 62  # microseconds beyond this are no time
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


class TraceError(ValueError):
    """A trace that cannot be used; the text is the reason."""


class Slice(NamedTuple):
    """Something with a beginning and an end, microseconds on the clock of its rank."""

    name: str
    start: float
    end: float
    thread: int


class Collective(NamedTuple):
    """One call of one rank, microseconds; of a name with ``c10d:`` the end is that of the call, not of the work."""

    name: str
    start: float
    end: float


def unpack_trace(data: bytes) -> bytes:
    """Returns the text of a file that gzip made. Raises `TraceError`."""
    unpacker = zlib.decompressobj(31)
    try:
        text = unpacker.decompress(data, TRACE_LIMIT + 1)
    except zlib.error:
        raise TraceError("the trace is damaged: it is not what gzip writes") from None
    if len(text) > TRACE_LIMIT:
        raise TraceError(f"the trace has more than {TRACE_LIMIT >> 20} MiB")
    if not unpacker.eof:
        raise TraceError("the trace is cut off")
    return text


class _Event(Record):
    """What is read of an event. All else is passed over and takes no memory."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    tid: int | float | str | None = None


class _TraceFile(Record):
    events: list[_Event] = field(name="traceEvents")


def parse_trace(data: bytes) -> list[Slice]:
    """Returns the trace of a rank from the bytes of its file. Raises `TraceError`."""
    text = unpack_trace(data)
    if text.count(b"{") > 2 * EVENT_LIMIT + 100:  # an event has one or two: it is refused before it takes memory
        raise TraceError(f"the trace has more than {EVENT_LIMIT:,} events")
    try:
        file = parse_json(_TraceFile, text)
    except ValueError as error:
        raise TraceError(f"the trace is not what torch.profiler writes: {error}") from None
    if len(file.events) > EVENT_LIMIT:
        raise TraceError(f"the trace has {len(file.events):,} events; at most {EVENT_LIMIT:,} are read")
    threads: dict[object, int] = {}
    slices = [_read_slice(event, threads) for event in file.events if event.ph == "X" and event.cat != "Trace"]
    if not slices:
        raise TraceError("the trace is empty")
    return slices


def _read_slice(event: _Event, threads: dict[object, int]) -> Slice:
    if event.name is None:
        raise TraceError("an event of the trace has no name")
    start = _check_time(event.ts, "ts")
    end = start + _check_time(event.dur, "dur")
    # Threads get small numbers in the order in which they appear: a trace may call them anything.
    return Slice(event.name[:_NAME_LIMIT], start, end, threads.setdefault(event.tid, len(threads) + 1))


def _check_time(value: float | None, key: str) -> float:
    if value is None or not 0 <= value < _TIME_LIMIT:
        raise TraceError(f"an event of the trace has no {key} that is a time")
    return float(value)


def find_collectives(slices: Iterable[Slice]) -> list[Collective]:
    """The collectives of one rank in the order of their starts: those of a backend, or else the calls of c10d."""
    works: list[Collective] = []
    calls: list[Collective] = []
    for each in slices:
        if match := _OF_BACKEND.fullmatch(each.name):
            works.append(Collective(sys.intern(f"{match[1]}:{match[2]}"), each.start, each.end))
        elif match := _OF_C10D.fullmatch(each.name):
            calls.append(Collective(sys.intern(f"c10d:{match[1]}"), each.start, each.end))
    return sorted(works or calls, key=lambda each: each.start)


def is_synchronous(name: str) -> bool:
    """Returns whether no rank can leave it before the last has entered, and its end is that of the work."""
    backend, _, call = name.partition(":")
    return backend != "c10d" and call.lstrip("_").startswith(_SYNCHRONOUS)


class Sum(NamedTuple):
    """Calls of an operator or a kernel, and their seconds, of an operator without what it called."""

    calls: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Sum") -> "Sum":  # type: ignore[override]
        return Sum(self.calls + other.calls, self.seconds + other.seconds)


def sum_operators(slices: Iterable[Slice]) -> dict[str, Sum]:
    """Name → what an operator took in one rank. A slice inside another of its thread was called by it."""
    sums: dict[str, Sum] = {}
    # The work of a backend overlaps what its thread does.
    threads = group_pairs((each.thread, each) for each in slices if not _OF_BACKEND.fullmatch(each.name))
    for own in threads.values():
        own.sort(key=lambda each: (each.start, -each.end))
        _sum_thread(own, sums)
    return sums


def _sum_thread(slices: Iterable[Slice], sums: dict[str, Sum]) -> None:
    """``slices`` in the order of their starts, an outer one before those in it."""
    stack: list[tuple[Slice, float]] = []  # those that are open, with the time of what they called

    def close(until: float) -> None:
        while stack and stack[-1][0].end <= until:
            done, inner = stack.pop()
            length = done.end - done.start
            name = done.name if done.name in sums or len(sums) < OPERATOR_KINDS else _OTHERS
            sums[name] = sums.get(name, Sum()) + Sum(1, max(0.0, length - inner) / 1e6)
            if stack:
                outer, called = stack[-1]
                stack[-1] = (outer, called + length)

    for each in slices:
        close(each.start)
        stack.append((each, 0.0))
    close(math.inf)


KIND_LIMIT = 2000  # of kernels of their own; oneDNN has a few hundred implementations
# The instruction sets in the names of implementations (oneDNN: src/cpu/x64/cpu_isa_traits.hpp, and aarch64's).
_ISA = re.compile(
    r"avx10_\d+(?:_\d+)?(?:_amx(?:_\d|_fp16)?)?|avx512_core(?:_amx_fp16|_amx|_fp16|_bf16_ymm|_bf16|_vnni)?"
    r"|avx2_vnni_2|avx2_vnni|avx2|avx|sse41|sve_\d+|asimd"
)
_TYPE = re.compile(r"(?:^| )(src|wei|dst)\w*?[:_](bf16|f16|f32|f64|s8|u8|s32|s4|u4|f[84]_\w{1,10}|tf32)(?=:)")


class Kernel(NamedTuple):
    """What two calls must have in common to be added up."""

    primitive: str
    implementation: str
    dtype: str


def parse_kernels(text: bytes) -> dict[Kernel, Sum]:
    """Returns what one rank wrote, whatever it is: lines of another form are left out."""
    sums: dict[Kernel, Sum] = {}
    for line in io.BytesIO(text):
        if not line.startswith(hooks.VERBOSE) or len(line) > 10_000:
            continue
        fields = line.decode("utf-8", "replace").rstrip("\r\n").split(",")
        if "exec" not in fields[1:5]:
            continue
        at = fields.index("exec", 1)
        time = _parse_milliseconds(fields[-1])
        if len(fields) < at + 7 or "graph" in fields[1:at] or time is None:
            continue
        kernel = Kernel(fields[at + 2][:60], fields[at + 3][:100], _format_types(fields[at + 5]))
        if kernel in sums or len(sums) < KIND_LIMIT:
            sums[kernel] = sums.get(kernel, Sum()) + Sum(1, time / 1e3)
    return sums


def _parse_milliseconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value < 1e9 else None


def _format_types(descriptors: str) -> str:
    types: dict[str, str] = dict(_TYPE.findall(descriptors))
    if len(set(types.values())) <= 1:
        return next(iter(types.values()), "")
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def find_isa(implementation: str) -> str:
    """``avx512_core_amx`` of ``brg_matmul:avx512_core_amx``; empty where the name has none (``ref:any``)."""
    match = _ISA.search(implementation)
    return match[0] if match else ""


def add_sums(ranks: Iterable[Mapping[Key, Sum]]) -> list[tuple[Key, Sum]]:
    """Returns the sums of all ranks, the costliest first."""
    sums: dict[Key, Sum] = {}
    for rank in ranks:
        for key, each in rank.items():
            sums[key] = sums.get(key, Sum()) + each
    return sorted(sums.items(), key=lambda item: -item[1].seconds)
