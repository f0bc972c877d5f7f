"""The rules of Chrome's trace event format, as far as Perfetto and chrome://tracing need them to show a trace whole.

"Trace Event Format" (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU) and what Perfetto's
importer says of JSON: slices of a thread must nest, an arrow that no slice encloses is dropped."""

from collections.abc import Iterable
from typing import Any

_ARGUMENTS = {"process_name": str, "thread_name": str, "process_sort_index": int, "thread_sort_index": int}


def find_format_errors(trace: Any) -> list[str]:
    """What a viewer would drop, or show wrong; at most some of each kind."""
    if trace.keys() != {"displayTimeUnit", "traceEvents"} or trace["displayTimeUnit"] not in ("ms", "ns"):
        return ["the trace is no object of its events"]
    events = trace["traceEvents"]
    errors = [error for event in events for error in _check_event(event)]
    if not errors:
        slices: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
        for event in (event for event in events if event["ph"] == "X"):
            begin = _read_nanoseconds(event["ts"])
            row = slices.setdefault((event["pid"], event["tid"]), [])
            row.append((begin, begin + _read_nanoseconds(event["dur"]), event["name"]))
        errors += _check_names(events, slices)
        errors += [error for row, each in slices.items() for error in _check_nesting(row, each)]
        errors += _check_arrows([event for event in events if event["ph"] in "sf"], slices)
    return errors[:20]


def _read_nanoseconds(microseconds: float) -> int:
    """As viewers read them."""
    return round(microseconds * 1000)


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e15  # type: ignore[operator]


def _check_event(event: Any) -> Iterable[str]:
    keys = {"M": {"args"}, "X": {"cat", "ts", "dur"}, "s": {"cat", "id", "ts"}, "f": {"cat", "id", "ts", "bp"}}
    missing = {"name", "pid", "tid", *keys.get(event.get("ph"), {"a known ph"})} - event.keys()
    if missing:
        yield f"{event} has no {missing}"
        return
    if not all(type(event[key]) is int and 0 <= event[key] < 1 << 31 for key in ("pid", "tid")):
        yield f"{event}: viewers take 32 bits of pid and tid"
    if not all(isinstance(event[key], str) and event[key] for key in ("name", "cat") if key in event):
        yield f"{event} has a name or cat that is none"
    if not all(_is_time(event[key]) for key in ("ts", "dur") if key in event):
        yield f"{event} has a time that is none"
    if not isinstance(event.get("args", {}), dict) or event.get("bp", "e") != "e":
        yield f"{event} has args or bp that are none"
    if event["ph"] == "M":
        key = "name" if event["name"].endswith("_name") else "sort_index"
        if not isinstance(event["args"].get(key), _ARGUMENTS.get(event["name"], ())):
            yield f"{event} is no metadata that viewers know"


def _check_names(events: Iterable[Any], rows: Iterable[tuple[int, int]]) -> Iterable[str]:
    named = [(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"]
    if len(named) != len({*named}):
        yield "something is named twice"
    for pid, tid in rows:
        if ("thread_name", pid, tid) not in named:
            yield f"thread {tid} of {pid} has no name"
        if ("process_name", pid, 0) not in named:
            yield f"process {pid} has no name"


def _check_nesting(row: tuple[int, int], slices: Iterable[tuple[int, int, str]]) -> Iterable[str]:
    """In the order of the file: later ones begin no earlier, and each is within those that are open, or after them."""
    last, ends = 0, list[int]()
    for begin, end, name in slices:
        if begin < last:
            yield f"{row}: {name} begins at {begin}, after one that begins at {last}"
        while ends and ends[-1] <= begin:
            ends.pop()
        if ends and end > ends[-1]:
            yield f"{row}: {name} begins at {begin} and ends {end - ends[-1]} ns after the slice around it"
        last = begin
        ends.append(end)


def _check_arrows(arrows: Iterable[Any], slices: dict[tuple[int, int], list[tuple[int, int, str]]]) -> Iterable[str]:
    pairs: dict[int, list[Any]] = {}
    for arrow in arrows:
        pairs.setdefault(arrow["id"], []).append(arrow)
        at, row = _read_nanoseconds(arrow["ts"]), slices.get((arrow["pid"], arrow["tid"]), ())
        if not any(begin <= at <= end for begin, end, _ in row):
            yield f"{arrow} is in no slice"
    for ends in pairs.values():
        if sorted(arrow["ph"] for arrow in ends) != ["f", "s"]:
            yield f"{ends} is no arrow"
        elif len({(arrow["cat"], arrow["name"]) for arrow in ends}) != 1:
            yield f"the ends of {ends} have different names"
        elif min(ends, key=lambda arrow: (arrow["ts"], arrow["ph"] == "f"))["ph"] == "f":
            yield f"{ends} goes back in time"
