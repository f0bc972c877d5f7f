"""How values of ours become JSON: the one place that says what a type's JSON looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, ClassVar

from typing_extensions import dataclass_transform

JsonObject = Mapping[str, object]  # JSON that somebody else wrote, passed on as it is
_ATOMS = frozenset((str, int, float, bool, type(None)))


@dataclass_transform(frozen_default=True)
class JsonRecord:
    """Base of values that are written as JSON objects and read back: each class below it is a frozen dataclass.

    A field's key is its name without a trailing underscore. A field whose default is None is left out while it is None;
    every other field is always there.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __pydantic_config__: ClassVar = {"alias_generator": lambda name: name.rstrip("_"), "populate_by_name": True}

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class CpuList:
    """Marks a tuple of CPU numbers whose JSON is the kernel's list form: ``0-2,8``. For pydantic, which reads it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(_parse_cpu_list, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, str]:
        return {"type": "string"}


class WordSet(CpuList):
    """Marks a set of words whose JSON is one text: ``avx2 avx512f``."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(
            lambda value: frozenset(value.split()) if isinstance(value, str) else value, handler(source)
        )


def _parse_cpu_list(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    spans = [part.partition("-") for part in value.split(",") if part]
    return tuple(cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1))


def to_json(value: Any) -> Any:
    """The JSON form of anything an event or an answer may hold. Bytes stay: `event_json` writes them."""
    kind = type(value)
    if kind in _ATOMS:  # nearly everything: hundreds of hosts have tens of thousands of facts
        return value
    if kind is dict:
        return {str(key): inner if type(inner) in _ATOMS else to_json(inner) for key, inner in value.items()}
    if isinstance(value, Enum):
        return value.value
    items = json_items(value)
    if items is not value:
        return to_json(items)
    if isinstance(value, Mapping):
        return {str(key): to_json(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [to_json(inner) for inner in value]
    return value


def json_items(value: Any) -> Any:
    """A dataclass as a dict of its keys, with values that are not JSON yet; anything else as it is."""
    kind = type(value)
    if hasattr(kind, "public"):
        return value.public()
    if not is_dataclass(kind):
        return value
    shown = ((key, optional, getattr(value, name)) for name, key, optional in _keys(kind))
    return {key: inner for key, optional, inner in shown if inner is not None or not optional}


@cache
def _keys(kind: type) -> tuple[tuple[str, str, bool], ...]:
    """Of a dataclass: each field, its key, and whether it is left out while it is None."""
    record = issubclass(kind, JsonRecord)

    def entry(field: Field[Any]) -> tuple[str, str, bool]:
        return field.name, field.name.rstrip("_") if record else field.name, record and field.default is None

    return tuple(entry(field) for field in fields(kind))
