"""Events as JSON objects and back: the words of ``--output json`` and of a saved run's ``events.jsonl``.

``{"at": 1763631120.5, "event": "step-started", "host": "xeon01", "step": "connect"}``: the event's name is its class's
in lower case, its keys are its fields. Bytes are text; if not UTF-8, a key ``<name>_base64`` holds them."""

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from ipexctl.model.answers import AnyAnswer, UnknownAnswer, get_answer_kind, list_answer_types
from ipexctl.model.events import Answer, Event, RunStarted, Stamped, Started
from ipexctl.model.json_values import JsonObject, convert_json, to_json, to_json_items

T = TypeVar("T")
_LATEST = 1e11  # Unix seconds: no clock says more
_CPUS_LIMIT = 1 << 23  # of the lists of one line, which take many times its bytes
_CPU_LISTS, _CPU_SPAN = re.compile(rb'"([\d,-]{3,})"'), re.compile(rb"(\d{1,18})-(\d{1,18})")  # 0-15,32-47
_ESCAPED_DIGIT = re.compile(rb"\\u00[23]")  # or a comma or a minus: no writer of records has a reason to
_DEPTH_LIMIT = 100  # values in each other: whatever walks through them calls itself
_DIGITS_LIMIT = 20  # of an integer
_NAMES_LIMIT = 1 << 16  # hosts of a command, or ranks of a run
# Fields and their keys: ``at`` is the stamp; an event's own ``at`` is a host's clock.
_KEYS = {"at": "host_time", "selection_flags": "place"}


class DamagedRecordError(ValueError):
    """A line of a record that is not an event: one phrase says why."""


_CLASSES: Mapping[str, type] = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower(): cls for cls in Event.__subclasses__()
}
_NAMES: Mapping[type, str] = {cls: name for name, cls in _CLASSES.items()}
_FIELDS: Mapping[type, tuple[str, ...]] = {cls: tuple(f.name for f in fields(cls)) for cls in _CLASSES.values()}
_BYTES = {cls: {name for name, kind in cls.__annotations__.items() if kind is bytes} for cls in _CLASSES.values()}


def encode_event(stamped: Stamped) -> dict[str, object]:
    """The event as a JSON-able object."""
    event = stamped.event
    cls = type(event)
    line: dict[str, object] = {"at": stamped.at, "event": _NAMES[cls]}
    for name in _FIELDS[cls]:
        value = getattr(event, name)
        name = _KEYS.get(name, name)
        if isinstance(value, bytes):
            line[name] = shown = value.decode("utf-8", "replace")
            if shown.encode() != value:
                line[f"{name}_base64"] = base64.b64encode(value).decode()
        else:
            line[name] = to_json(value)
    if isinstance(event, Answer):
        line["kind"] = get_answer_kind(type(event.value))
    return line


def dump_ascii_json(value: Any) -> str:
    """JSON in printable ASCII only: safe on a terminal too, whatever the strings hold."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:  # NaN and infinity are not JSON; a fact may hold one
        text = json.dumps(_replace_non_finite(value), allow_nan=False)
    return text.replace("\x7f", "\\u007f")


def format_document(value: Any, depth: int = 2) -> Iterator[str]:
    """One JSON document, laid out for people down to ``depth``: below that each value is one line, which is what the
    encoder does at full speed, and a document of hundreds of hosts is never whole in memory."""
    value = to_json_items(value) if depth else value
    if not depth or not value or not isinstance(value, Mapping | list | tuple):
        yield dump_ascii_json(to_json(value))
        return
    named = isinstance(value, Mapping)
    pad = "  " * (3 - depth)
    start = "{" if named else "["
    for key in value:
        yield f"{start}\n{pad}"
        if named:
            yield f"{dump_ascii_json(str(key))}: "
        yield from format_document(value[key] if named else key, depth - 1)
        start = ","
    yield f"\n{pad[2:]}{'}' if named else ']'}"


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {key: _replace_non_finite(inner) for key, inner in value.items()}
    return [_replace_non_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_line(data: bytes) -> JsonObject:
    """The object of a line of a record, which may be anybody's; its numbers are finite. Raises `DamagedRecordError`."""
    try:
        text = data.decode("utf-8", "surrogatepass")  # of bytes it would read UTF-16, too
        line = json.loads(text, parse_float=_parse_finite, parse_int=_parse_integer, parse_constant=_parse_finite)
    except (ValueError, RecursionError):  # the latter: it is nested too deeply
        raise DamagedRecordError("it is not JSON") from None
    if not isinstance(line, dict):
        raise DamagedRecordError("it is not an object")
    data = json.dumps(line).encode() if _ESCAPED_DIGIT.search(data) else data
    spans = (span for listed in _CPU_LISTS.findall(data) for span in _CPU_SPAN.findall(listed))
    if sum(max(int(last) - int(first), 0) for first, last in spans) > _CPUS_LIMIT:
        raise DamagedRecordError("it has more CPUs than all hosts")
    _check_depth(line, _DEPTH_LIMIT)
    return line


def _check_depth(value: Any, limit: int) -> None:
    if not limit:
        raise DamagedRecordError("it is nested too deeply")
    if isinstance(value, dict):
        value = value.values()
    for inner in value:
        if isinstance(inner, dict | list):
            _check_depth(inner, limit - 1)


def _parse_finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no number")
    return value


def _parse_integer(text: str) -> int:
    """Nothing of a run has more than 64 bits; a quotient of more than a float holds would be an exception."""
    if len(text) > _DIGITS_LIMIT:
        raise ValueError(f"{text:.40} is no such number")
    return int(text)


def decode_event(record: JsonObject) -> Stamped:
    """The event of one object. Keys that are not known are left aside. Raises `DamagedRecordError`."""
    name = str(record.get("event"))
    cls = _CLASSES.get(name)
    if cls is None:
        raise DamagedRecordError(f"no event is called {name!r}")
    at = record.get("at")
    if isinstance(at, bool) or not isinstance(at, int | float) or not abs(at) < _LATEST:
        raise DamagedRecordError("at is not a time")
    if cls is Answer:
        return Stamped(at, Answer(_decode_answer(record)))
    names = record.get("ranks" if cls is RunStarted else "hosts")
    if cls in {Started, RunStarted} and isinstance(names, list) and len(names) > _NAMES_LIMIT:
        raise DamagedRecordError(f"more than {_NAMES_LIMIT:,} hosts or ranks")
    keys = {name: _KEYS.get(name, name) for name in _FIELDS[cls]}
    values = {name: record[key] for name, key in keys.items() if key in record}
    for name in _BYTES[cls] & values.keys():
        values[name] = _decode_bytes(name, values[name], record.get(f"{keys[name]}_base64"))
    return Stamped(at, _parse_values(cls, values))


def _decode_bytes(name: str, text: object, coded: object) -> object:
    """The bytes of a field, ``coded`` where they are no text; anything else as it is."""
    try:
        if isinstance(coded, str):
            return base64.b64decode(coded, validate=True)
        return text.encode() if isinstance(text, str) else text
    except ValueError:
        raise DamagedRecordError(f"{name} is not base64") from None


def _decode_answer(record: JsonObject) -> AnyAnswer:
    """The answer as its type; that of another version stays as it was written."""
    value = record.get("value")
    if not isinstance(value, dict):
        raise DamagedRecordError("value is not an object")
    kind = list_answer_types().get(str(record.get("kind")))
    return _parse_values(kind, value) if kind else UnknownAnswer(value)


def _parse_values(cls: type[T], values: JsonObject) -> T:
    try:
        return convert_json(cls, values)
    except ValueError as error:
        raise DamagedRecordError(str(error)) from None
