"""Values, and how they become JSON: the one place that says what a type's JSON looks like."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

if sys.version_info >= (3, 11):
    from typing import dataclass_transform
else:
    from typing_extensions import dataclass_transform  # pragma: no cover

JsonObject = Mapping[str, object]  # JSON that somebody else wrote, passed on as it is
T = TypeVar("T")
UNWRITTEN = "unwritten"  # in `Annotated`: a field that JSON does not have
_ATOMS = frozenset((str, int, float, bool, type(None)))


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record:
    """Base of values: each class below it is a frozen dataclass.

    `dataclass` compiles six methods for each class, and a command has two hundred of them to make before it begins.
    Here they are methods of this class, and ``__init__`` is compiled with the first value of a class."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, **options: bool) -> None:
        cls.__doc__ = cls.__doc__ or cls.__name__  # else `dataclass` makes one of the signature
        dataclass(init=False, eq=False, repr=False, **options)(cls)

        def initialise(self: Any, *args: Any, **values: Any) -> None:
            initialise_now = cls.__init__ = _compile_init(cls)  # type: ignore[method-assign]
            initialise_now(self, *args, **values)

        cls.__init__ = initialise  # type: ignore[method-assign]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        get = _make_compared_getter(type(self))  # type: ignore[arg-type]  # types are hashable
        return get(self) == get(other)

    def __hash__(self) -> int:
        return hash(_make_compared_getter(type(self))(self))  # type: ignore[arg-type]  # as above

    if not TYPE_CHECKING:  # a type checker refuses it by itself

        def __setattr__(self, name: str, value: object) -> None:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name: str) -> None:
            raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        names = _list_shown_fields(type(self))  # type: ignore[arg-type]  # as above
        values = [f"{name}={getattr(self, name)!r}" for name in names]
        return f"{type(self).__qualname__}({', '.join(values)})"


@cache
def _list_shown_fields(kind: type[Record]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind) if each.repr)


@cache
def _make_compared_getter(kind: type[Record]) -> Callable[[Any], object]:
    """Of a record: its type, and the fields that are compared."""
    return attrgetter("__class__", *(each.name for each in fields(kind) if each.compare))


def _compile_init(kind: type[Record]) -> Callable[..., None]:
    """``__init__`` of a record, as `dataclass` compiles it for a frozen class, with the same meaning of each field."""
    parameters: list[str] = []
    lines: list[str] = []
    scope: dict[str, object] = {"MISSING": MISSING, "set_field": object.__setattr__}  # `Record` refuses with its own
    for each in sorted(fields(kind), key=lambda each: each.kw_only is True):
        name, default, value = each.name, f"default_{each.name}", each.name
        if each.kw_only and "*" not in parameters:
            parameters.append("*")
        if each.default is not MISSING:
            scope[default] = each.default
            parameters.append(f"{name}={default}")
        elif each.default_factory is not MISSING:
            scope[default] = each.default_factory
            parameters.append(f"{name}=MISSING")
            value = f"{default}() if {name} is MISSING else {name}"
        else:
            parameters.append(name)
        lines.append(f"    set_field(__record, '{name}', {value})\n")
    if hasattr(kind, "__post_init__"):
        lines.append("    __record.__post_init__()\n")
    exec(f"def __init__({', '.join(['__record', '/', *parameters])}):\n" + "".join(lines or ["    pass"]), scope)
    initialise = cast(Callable[..., None], scope["__init__"])
    initialise.__qualname__ = f"{kind.__qualname__}.__init__"  # for the messages of `TypeError`
    return initialise


class JsonRecord(Record):
    """Base of values that are written as JSON objects and read back.

    A field's key is its name without a trailing underscore. A field whose default is None is left out while it is None;
    every other field is always there."""

    # Without an annotation: pydantic 2.6 reads those in the module of each class below this one.
    __pydantic_config__ = {"alias_generator": lambda name: name.rstrip("_"), "populate_by_name": True}  # noqa: RUF012


R = TypeVar("R", bound=JsonRecord)


class TextForm(NamedTuple):
    """Marks in ``Annotated`` a type whose JSON is one text; in a mapping each value is one. pydantic reads it so."""

    write: Callable[[Any], str]
    parse: Callable[[str], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(
            lambda value: self.parse(value) if isinstance(value, str) else value, handler(source)
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, str]:
        return {"type": "string"}


@cache
def _make_type_adapter(kind: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def parse_json(kind: type[T], text: str | bytes, *, strict: bool = False) -> T:
    """A dataclass from the text that `to_json` makes of it. Raises `ValueError` with one line about the first fault."""
    from pydantic import ValidationError

    try:
        return cast(T, _make_type_adapter(kind).validate_json(text, strict=strict))  # type: ignore[arg-type]  # types are hashable
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise ValueError(message if first["type"] == "value_error" else f"{place or 'it'}: {message}") from None


def read_record(kind: type[R], text: str) -> R:
    """As `parse_json`, without pydantic, whose import costs `run` more than all else that it reads: for records of
    texts, numbers, lists, mappings and other such records. Takes JSON's own types only, no text for a number.

    Raises `ValueError` for anything else."""
    try:
        return cast(R, _read_value(kind, json.loads(text)))
    except (TypeError, OverflowError, RecursionError) as error:  # a key is missing; no such float; "[[[[…"
        raise ValueError(str(error)) from None


def _read_value(hint: Any, value: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:  # with None is the only one in use
        return None if value is None else _read_value(inner[0], value)
    if origin is Literal and isinstance(value, str) and value in inner:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_read_value(inner[0], item) for item in value)
    if origin is Mapping and isinstance(value, dict):
        return {key: _read_value(inner[1], item) for key, item in value.items()}
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, dict):
        hints = get_type_hints(hint)
        read = ((name, key) for name, key, _, _ in _list_json_fields(hint) if key in value)
        return hint(**{name: _read_value(hints[name], value[key]) for name, key in read})
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if origin is None and type(value) is hint:
        return value
    raise ValueError(f"{value!r:.80} is not of type {hint}")


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
    if hasattr(kind, "public") or is_dataclass(kind):
        return lambda value: to_json(to_json_items(value))
    if issubclass(kind, tuple | list | set | frozenset):
        return lambda value: [inner if type(inner) in _ATOMS else to_json(inner) for inner in value]
    return lambda value: value


def select_attributes(value: object, *names: str) -> Any:
    """These attributes of a value by their names: keywords for another type that has the same ones."""
    return {name: getattr(value, name) for name in names}


def to_json_items(value: Any) -> Any:
    """A dataclass as a dict of its keys, with values that are not JSON yet; anything else as it is."""
    kind = type(value)
    if hasattr(kind, "public"):
        return value.public()
    if not is_dataclass(kind):
        return value
    items = {}
    for name, key, optional, form in _list_json_fields(kind):
        inner = getattr(value, name)
        if inner is not None or not optional:
            items[key] = _format_as_text(form, inner) if form else inner
    return items


def _format_as_text(form: TextForm, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: form.write(inner) for key, inner in value.items()}
    return None if value is None else form.write(value)


@cache
def _list_json_fields(kind: type) -> tuple[tuple[str, str, bool, TextForm | None], ...]:
    """Of a dataclass: each field, its key, whether it is left out while it is None, and its form if that is a text."""
    record, hints = issubclass(kind, JsonRecord), get_type_hints(kind, include_extras=True)
    keys = []
    for each in fields(kind):
        marks = [*_find_annotations(hints[each.name])]
        if UNWRITTEN not in marks:
            form = next((mark for mark in marks if isinstance(mark, TextForm)), None)
            key = each.name.rstrip("_") if record else each.name
            keys.append((each.name, key, record and each.default is None, form))
    return tuple(keys)


def _find_annotations(hint: Any) -> list[object]:
    """The marks of a type that is ``Annotated``, or whose parts are."""
    inner = [mark for part in get_args(hint) for mark in _find_annotations(part)]
    return [*getattr(hint, "__metadata__", ()), *inner]
