"""Writes docs/json/*.schema.json: what ``--json`` of each verb answers, and the report. A test holds the files to it.

.venv/bin/python tools/json_schemas.py
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from ipexctl.model.answers import list_answer_types
from ipexctl.model.json_values import UNWRITTEN
from ipexctl.model.reports import CommandReport

DIRECTORY = Path(__file__).parents[1] / "docs/json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {bool: "boolean", str: "string", int: "integer"}


def schemas() -> dict[str, str]:
    """The name of each file, and its text."""
    classes = {**list_answer_types(), "report": CommandReport}
    return {f"{name}.schema.json": _text(name, cls) for name, cls in sorted(classes.items())}


def _text(name: str, cls: type) -> str:
    schema = TypeAdapter(cls).json_schema(mode="validation")
    _tidy(schema, cls)
    named = _find_records()
    for definition, inner in schema.get("$defs", {}).items():
        _tidy(inner, named.get(definition))
    schema.get("$defs", {}).pop("Core", None)
    return json.dumps({"$schema": _DIALECT, "title": f"ipexctl {name}", **schema}, indent=1, sort_keys=True) + "\n"


def _find_records() -> dict[str, type]:
    """All dataclasses and enumerations of the model, by name."""
    modules = [module for name, module in sys.modules.items() if name.startswith("ipexctl.model.")]
    classes = [value for module in modules for value in vars(module).values() if inspect.isclass(value)]
    return {cls.__name__: cls for cls in classes if dataclasses.is_dataclass(cls) or issubclass(cls, Enum)}


def _tidy(schema: dict[str, Any], cls: type | None) -> None:
    """The same text from every release of pydantic: no titles (they repeat the names), the docstring as description on
    one line, a type beside each constant, nothing that is the default."""
    schema.pop("title", None)
    schema.pop("description", None)
    doc = inspect.getdoc(cls) if cls else None
    if cls and doc and not doc.startswith(f"{cls.__name__}("):  # what dataclass itself writes
        schema["description"] = " ".join(doc.replace("``", "`").split())
    for name in _list_unwritten(cls) if cls else ():
        schema.get("properties", {}).pop(name, None)
    for inner in schema.get("properties", {}).values():
        inner.pop("title", None)
    for part in _walk(schema):
        if type(constant := part.get("const")) in _TYPES:
            part.setdefault("type", _TYPES[type(constant)])
        if part.get("type") == "string" and part.get("default") == []:  # a list whose JSON is a text
            part["default"] = ""
        if part.get("additionalProperties") is True:  # as if it were not there
            del part["additionalProperties"]


def _list_unwritten(cls: type) -> list[str]:
    """The fields of a record that its JSON does not have."""
    if not dataclasses.is_dataclass(cls):
        return []
    hints = get_type_hints(cls, include_extras=True)
    return [each.name for each in dataclasses.fields(cls) if UNWRITTEN in getattr(hints[each.name], "__metadata__", ())]


def _walk(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all schemas in it."""
    if isinstance(schema, dict):
        yield schema
        for inner in [*schema.values()]:
            yield from _walk(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _walk(inner)


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for stale in DIRECTORY.glob("*.schema.json"):
        stale.unlink()
    for name, text in schemas().items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
