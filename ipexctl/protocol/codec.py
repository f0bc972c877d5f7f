"""JSON to the protocol's types (named tuples) and back. What is read is checked against the type's annotations."""

import json
import typing
from functools import lru_cache
from typing import Any, Dict, Generic, List, NamedTuple, Tuple, Type, TypeVar, Union

T = TypeVar("T")
MESSAGE_LIMIT = 4 << 20  # bytes of one message, record or frame, whoever sends it
_EXACT_FLOAT_LIMIT = 1 << 53  # from here on a float is no longer the number it was, and no clock has it
_INTEGER_LIMIT = 1 << 63  # no size, time or count has more; a float of it may be none, and C has no such number
KIND = "kind"  # the key of each object that names its type: the class's name
_resolve_hints = lru_cache(maxsize=None)(typing.get_type_hints)


class DamagedError(ValueError):
    """A value does not have the shape its type requires."""


def encode(value: "Any") -> "Any":
    """Returns the JSON form: named tuples become objects, keys become strings."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: encode(getattr(value, name)) for name in value._fields}
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    return [encode(item) for item in value] if isinstance(value, (list, tuple)) else value


def decode(kind: "Type[T]", value: "Any") -> "T":
    """Returns a value of ``kind`` from its JSON form. Unknown keys are ignored, missing ones take the type's defaults.
    Raises `DamagedError` where a value has another shape."""
    return typing.cast(T, _decode_value(kind, value))


def load_object(data: bytes) -> "Dict[str, Any]":
    """Returns a JSON object. Raises `DamagedError` for anything else."""
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError):  # the latter for "[[[[…"
        raise DamagedError("not JSON") from None
    if not isinstance(value, dict):
        raise DamagedError("not an object")
    return value


# What stands for a value that cannot be read: damaged, or of a kind this version does not know.
Unreadable = NamedTuple("Unreadable", [("kind", str), ("why", str)])


class Kinds(Generic[T]):
    """The named tuples of a ``Union``, or a single one, each written with its class's name."""

    def __init__(self, union: "Any") -> None:
        self.types: "Dict[str, Any]" = {kind.__name__: kind for kind in getattr(union, "__args__", (union,))}

    def write(self, value: "T") -> bytes:
        """JSON without a line's end."""
        return json.dumps(self.to_object(value)).encode()

    def to_object(self, value: "T") -> "Dict[str, Any]":
        return dict(encode(value), **{KIND: type(value).__name__})

    def read(self, data: bytes) -> "Union[T, Unreadable]":
        """Returns a value of one of the types, whatever the bytes are."""
        try:
            return self.from_object(load_object(data))
        except DamagedError as error:
            return Unreadable("", str(error))

    def from_object(self, value: "Dict[str, Any]") -> "Union[T, Unreadable]":
        name = value.get(KIND)
        kind = self.types.get(name) if isinstance(name, str) else None
        try:
            if kind is None:
                raise DamagedError("unknown kind")
            return typing.cast(T, _decode_value(kind, value))
        except DamagedError as error:
            return Unreadable("%.80s" % name, str(error))


def _decode_value(kind: "Any", value: "Any") -> "Any":
    # Before Python 3.7 the origin of List[int] is List, since then list.
    origin: Any = getattr(kind, "__origin__", None)
    arguments: Any = getattr(kind, "__args__", ())
    if kind is Any:
        return value
    if origin is Union:  # Optional is the only one in use
        return None if value is None else _decode_value(arguments[0], value)
    if origin in (list, List) and isinstance(value, list):
        return [_decode_value(arguments[0], item) for item in value]
    if origin in (dict, Dict) and isinstance(value, dict):
        return {_decode_key(arguments[0], key): _decode_value(arguments[1], item) for key, item in value.items()}
    if origin in (tuple, Tuple) and isinstance(value, (list, tuple)) and len(value) == len(arguments):
        return tuple(_decode_value(argument, item) for argument, item in zip(arguments, value))
    if hasattr(kind, "_fields") and isinstance(value, dict):
        return _decode_named_tuple(kind, value)
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if abs(value) < _EXACT_FLOAT_LIMIT:  # false for a value that is not a number
            return float(value)
        raise DamagedError("%.80r is no such number" % value)
    if kind is int and isinstance(value, int) and abs(value) >= _INTEGER_LIMIT:
        raise DamagedError("an integer of more than 64 bits")
    if origin is None and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise DamagedError("%.80r is not of type %s" % (value, getattr(kind, "__name__", kind)))


def _decode_key(kind: "Any", key: str) -> "Any":
    if kind is str:
        return key
    if not key.isdecimal() or len(key) > 18:  # int() refuses other digits, and thousands of them
        raise DamagedError("%.80r is not a number" % key)
    return int(key)


def _decode_named_tuple(kind: "Any", value: "Dict[str, Any]") -> "Any":
    hints = _resolve_hints(kind)
    missing = [name for name in kind._fields if name not in value and name not in kind._field_defaults]
    if missing:
        raise DamagedError("%s without %s" % (kind.__name__, ", ".join(missing)))
    fields = {}
    for name in kind._fields:
        if name in value:
            try:
                fields[name] = _decode_value(hints[name], value[name])
            except DamagedError as error:
                raise DamagedError("%s: %s" % (name, error)) from None
    return kind(**fields)
