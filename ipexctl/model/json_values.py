"""Values, and how they become JSON: the one place that says what a type's JSON looks like.

Records are structs of msgspec; docs/decisions/0025-msgspec.md says what it reads, and what pydantic does."""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import field as field
from typing_extensions import dataclass_transform

JsonObject = Mapping[str, object]  # JSON that somebody else wrote, passed on as it is
T = TypeVar("T")
UNWRITTEN = msgspec.Meta(extra_json_schema={"unwritten": True})  # in `Annotated`: a field that JSON does not have
_MAKING = threading.RLock()
_DECODERS: dict[Any, "msgspec.json.Decoder[Any]"] = {}  # complete ones
_ATOMS = frozenset((str, int, float, bool, type(None)))


class _DataclassFields:
    """The fields of a record, for `dataclasses.fields` and `dataclasses.replace`."""

    def __get__(self, record: object, kind: Any) -> Mapping[str, "dataclasses.Field[Any]"]:
        return _list_fields(kind)


if TYPE_CHECKING:  # mypy knows no struct whose base says that it is frozen

    @dataclass_transform(frozen_default=True, field_specifiers=(field,))
    class Record:
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

        def __init_subclass__(cls, rename: Callable[[str], str] | None = None) -> None: ...

else:

    class Record(msgspec.Struct, frozen=True):
        """Base of values: each class below it is frozen, with the fields that its annotations name."""

        __dataclass_fields__ = _DataclassFields()


@cache
def _list_fields(kind: Any) -> Mapping[str, "dataclasses.Field[Any]"]:
    made: Any = dataclasses.make_dataclass(kind.__name__, [(name, "Any") for name in kind.__struct_fields__])
    fields: dict[str, dataclasses.Field[Any]] = made.__dataclass_fields__
    for each in msgspec.structs.fields(kind):
        fields[each.name].type = each.type
        if each.default is not msgspec.NODEFAULT:
            fields[each.name].default = each.default
    return fields


class JsonRecord(Record, rename=lambda name: name.rstrip("_")):
    """Base of values that are written as JSON objects and read back.

    A field's key is its name without a trailing underscore. A field whose default is None is left out while it is None;
    every other field is always there."""


class JsonForm(type):
    """A type for annotations, whose values are of ``kinds``. ``parse`` makes one of JSON, or raises `ValueError`;
    ``write`` makes its text, where its JSON is one."""

    kinds: tuple[type, ...]
    parse: Callable[[Any], Any]
    write: Callable[[Any], str] | None

    def __new__(mcs, name: str, *_: Any) -> "JsonForm":
        return super().__new__(mcs, name, (), {})

    def __init__(cls, name: str, kinds: tuple[type, ...], parse: Any = None, write: Any = None) -> None:
        cls.kinds, cls.write = kinds, write
        cls.parse = parse or cls._parse_first_kind

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.kinds)

    def _parse_first_kind(cls, value: Any) -> Any:
        for kind in cls.kinds:
            try:
                return convert_json(kind, value)
            except ValueError:
                continue
        raise ValueError(f"{value!r:.80} is none of {', '.join(kind.__name__ for kind in cls.kinds)}")


def _make_decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    """What reads a type, and all types in it. One thread at a time: msgspec 0.22 shows other threads what it knows of a
    struct before that is complete, and they then read a null pointer."""
    with _MAKING:
        return _DECODERS.setdefault(kind, msgspec.json.Decoder(kind, dec_hook=_parse_form))


def _parse_form(kind: Any, value: Any) -> Any:
    return kind.parse(value) if kind.write is None or isinstance(value, str) else value


def parse_json(kind: type[T], text: str | bytes) -> T:
    """A record from the text that `to_json` makes of it. JSON's own types only: no text counts as a number.

    Raises `ValueError` with one line about the first fault."""
    decoder: msgspec.json.Decoder[T] = _DECODERS.get(kind) or _make_decoder(kind)
    return _read(lambda: decoder.decode(text))


def convert_json(kind: type[T], value: Any) -> T:
    """The same from JSON that was read. Bytes stay bytes. Raises `ValueError`."""
    if kind not in _DECODERS:
        _make_decoder(kind)
    return _read(lambda: msgspec.convert(value, kind, dec_hook=_parse_form, builtin_types=(bytes,), str_keys=True))


def _read(read: Callable[[], T]) -> T:
    try:
        return read()
    except msgspec.DecodeError as error:  # a ValidationError, too
        if isinstance(cause := error.__cause__, ValueError):  # of a record that checks itself
            raise ValueError(str(cause)) from None
        raise ValueError(str(error).replace("$.", "")) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def to_json(value: Any) -> Any:
    """The JSON form of anything an event or an answer may hold. Bytes stay: `event_json` writes them."""
    kind = type(value)
    if kind in _ATOMS:  # nearly everything: hundreds of hosts have tens of thousands of facts
        return value
    return _choose_writer(kind)(value)  # type: ignore[arg-type]  # types are hashable


@cache
def _choose_writer(kind: type) -> Callable[[Any], Any]:
    """What makes JSON of values of a type: asked once for each type, not for each of a cluster's facts."""
    if issubclass(kind, Mapping):
        return lambda value: {str(key): each if type(each) in _ATOMS else to_json(each) for key, each in value.items()}
    if issubclass(kind, Enum):
        return attrgetter("value")
    if hasattr(kind, "public") or dataclasses.is_dataclass(kind):
        return lambda value: to_json(to_json_items(value))
    if issubclass(kind, tuple | list | set | frozenset):
        return lambda value: [inner if type(inner) in _ATOMS else to_json(inner) for inner in value]
    return lambda value: value


def select_attributes(value: object, *names: str) -> Any:
    """These attributes of a value by their names: keywords for another type that has the same ones."""
    return {name: getattr(value, name) for name in names}


def to_json_items(value: Any) -> Any:
    """A record as a dict of its keys, with values that are not JSON yet; anything else as it is."""
    kind = type(value)
    if hasattr(kind, "public"):
        return value.public()
    if not dataclasses.is_dataclass(kind):
        return value
    items = {}
    for name, key, optional, write in _list_json_fields(kind):
        inner = getattr(value, name)
        if inner is not None or not optional:
            items[key] = _format_as_text(write, inner) if write else inner
    return items


def _format_as_text(write: Callable[[Any], str], value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: write(inner) for key, inner in value.items()}
    return None if value is None else write(value)


@cache
def _list_json_fields(kind: type) -> tuple[tuple[str, str, bool, Callable[[Any], str] | None], ...]:
    """Of a dataclass or record: each field, its key, whether it is left out while it is None, and what makes a text."""
    record, hints = issubclass(kind, JsonRecord), get_type_hints(kind, include_extras=True)
    keys = []
    for each in dataclasses.fields(kind):
        hint = hints[each.name]
        if UNWRITTEN not in getattr(hint, "__metadata__", ()):
            key = each.name.rstrip("_") if record else each.name
            keys.append((each.name, key, record and each.default is None, _find_writer(hint)))
    return tuple(keys)


def _find_writer(hint: Any) -> Callable[[Any], str] | None:
    """What makes a text of values of a type, or of a part of it."""
    if isinstance(hint, JsonForm):
        return hint.write
    return next(filter(None, map(_find_writer, get_args(hint))), None)
