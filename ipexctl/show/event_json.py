"""Events as JSON objects and back: the words of ``--output json`` and of a saved run's ``events.jsonl``.

``{"at": 1763631120.5, "event": "step-started", "host": "xeon01", "step": "connect"}``: the event's name is its class's
in lower case, its keys are its fields. Bytes are text; where they are not UTF-8, a second key ``<name>_base64`` holds
them exactly.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ipexctl.model.errors import Exit, Failure, Kind
from ipexctl.model.events import Event, Stamped
from ipexctl.model.findings import Finding

_KEYS = {"at": "host_time"}  # ``at`` is the stamp; an event's own ``at`` is a host's clock


class DamagedRecordError(ValueError):
    """A line of a record that is not an event: one phrase says why."""


def _name(cls: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()


_CLASSES: Mapping[str, type] = {_name(cls): cls for cls in get_args(Event)}
_NAMES: Mapping[type, str] = {cls: name for name, cls in _CLASSES.items()}
_FIELDS: Mapping[type, tuple[str, ...]] = {
    cls: tuple(f.name for f in fields(cls)) for cls in (*_CLASSES.values(), Failure, Finding)
}


def name_of(event: Event) -> str:
    """``step-started``, ``output`` …"""
    return _NAMES[type(event)]


_ATOMS = frozenset((str, int, float, bool, type(None)))


def plain(value: Any) -> Any:
    """JSON-able form of anything an event may hold (bytes: see `encode`)."""
    kind = type(value)
    if kind in _ATOMS:  # nearly everything: hundreds of hosts have tens of thousands of facts
        return value
    if kind is dict:
        return {str(key): inner if type(inner) in _ATOMS else plain(inner) for key, inner in value.items()}
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in _FIELDS[type(value)]}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(inner) for inner in value]
    return value


def encode(stamped: Stamped) -> dict[str, Any]:
    """The event as a JSON-able object."""
    event = stamped.event
    cls = type(event)
    line: dict[str, Any] = {"at": stamped.at, "event": _NAMES[cls]}
    for name in _FIELDS[cls]:
        value = getattr(event, name)
        name = _KEYS.get(name, name)
        if isinstance(value, bytes):
            line[name] = value.decode("utf-8", "replace")
            if line[name].encode() != value:
                line[f"{name}_base64"] = base64.b64encode(value).decode()
        else:
            line[name] = plain(value)
    return line


def dumps(line: Any) -> str:
    """JSON in printable ASCII only: safe on a terminal too, whatever the strings hold."""
    try:
        text = json.dumps(line, allow_nan=False)
    except ValueError:  # NaN and infinity are not JSON; a fact may hold one
        text = json.dumps(_finite(line), allow_nan=False)
    return text.replace("\x7f", "\\u007f")


def document(value: Any, depth: int = 2) -> Iterator[str]:
    """One JSON document, laid out for people down to ``depth``: below that each value is one line, which is what the
    encoder does at full speed, and a document of hundreds of hosts is never whole in memory."""
    if not depth or not value or not isinstance(value, Mapping | list | tuple):
        yield dumps(plain(value))
        return
    named = isinstance(value, Mapping)
    pad = "  " * (3 - depth)
    start = "{" if named else "["
    for key in value:
        yield f"{start}\n{pad}"
        if named:
            yield f"{dumps(str(key))}: "
        yield from document(value[key] if named else key, depth - 1)
        start = ","
    yield f"\n{pad[2:]}{'}' if named else ']'}"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def decode(line: Mapping[str, Any]) -> Stamped:
    """The event of one object. Keys that are not known are left aside. Raises `DamagedRecordError`."""
    cls = _CLASSES.get(str(line.get("event")))
    if cls is None:
        raise DamagedRecordError(f"no event is called {str(line.get('event'))!r}")
    at = _number(line.get("at"), "at")
    return Stamped(at, _build(cls, line))


def _build(cls: type, line: Mapping[str, Any]) -> Any:
    hints = _hints(cls)
    values: dict[str, Any] = {}
    for field in fields(cls):
        key = _KEYS.get(field.name, field.name)
        if key not in line:
            if field.default is MISSING and field.default_factory is MISSING:
                raise DamagedRecordError(f"{key} is missing")
            continue
        values[field.name] = _read(key, hints[field.name], line)
    return cls(**values)


@cache
def _hints(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DamagedRecordError(f"{name} is not a number")
    return float(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise DamagedRecordError(f"{name} is not a text")
    return value


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DamagedRecordError(f"{name} is not a whole number")
    return value


def _bytes(name: str, line: Mapping[str, Any]) -> bytes:
    coded = line.get(f"{name}_base64")
    if coded is None:
        return _text(line[name], name).encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(_text(coded, name), validate=True)
    except ValueError:
        raise DamagedRecordError(f"{name}_base64 is not base64") from None


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DamagedRecordError(f"{name} is not an object")
    return value


def _sequence(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise DamagedRecordError(f"{name} is not a list")
    return value


_SIMPLE: Mapping[Any, Callable[[Any, str], Any]] = {
    str: _text,
    int: _whole,
    float: _number,
    tuple[str, ...]: lambda value, name: tuple(_text(word, name) for word in _sequence(value, name)),
    tuple[int, ...]: lambda value, name: tuple(_whole(number, name) for number in _sequence(value, name)),
    Mapping[str, Any]: _mapping,
    Mapping[str, str]: lambda value, name: {k: _text(v, name) for k, v in _mapping(value, name).items()},
    Mapping[str, float]: lambda value, name: {k: _number(v, name) for k, v in _mapping(value, name).items()},
    Mapping[str, tuple[int, ...]]: lambda value, name: {
        key: tuple(_whole(n, name) for n in _sequence(inner, name)) for key, inner in _mapping(value, name).items()
    },
    str | None: lambda value, name: None if value is None else _text(value, name),
    int | None: lambda value, name: None if value is None else _whole(value, name),
}


def _read(name: str, kind: Any, line: Mapping[str, Any]) -> Any:
    value = line[name]
    if kind is bytes:
        return _bytes(name, line)
    if kind is bool:
        return value is True
    if kind in (Failure, Finding):
        return _build(kind, _mapping(value, name))
    if kind in (Exit, Kind):
        try:
            return kind(value)
        except ValueError:
            raise DamagedRecordError(f"{name} is not one of those known") from None
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise DamagedRecordError(f"{name} is not one of {', '.join(get_args(kind))}")
        return value
    return _SIMPLE[kind](value, name)
