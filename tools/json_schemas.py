"""Writes docs/json/*.schema.json: what ``--json`` of each verb answers, and the report. A test holds the files to it.

.venv/bin/python tools/json_schemas.py
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.json import schema_components

from ipexctl.model.answers import list_answer_types
from ipexctl.model.json_values import JsonForm
from ipexctl.model.reports import CommandReport

DIRECTORY = Path(__file__).parents[1] / "docs/json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WORDS = {"type": "array", "items": {"type": "string"}}
# What each document of --json has beside its answer.
_ENDS: dict[str, Any] = {
    "next": {"type": "array", "items": _WORDS, "description": "Commands that are advised, as words."},
    "codes": {**_WORDS, "description": "Of what went wrong: failures, findings, known errors."},
    "exit": {"type": "integer", "description": "The exit code."},
}
_PLACE = "#/$defs/{name}"
_TYPES = {bool: "boolean", str: "string", int: "integer"}


def schemas() -> dict[str, str]:
    """The name of each file, and its text."""
    classes = {**list_answer_types(), "report": CommandReport}
    return {f"{name}.schema.json": _text(name, cls) for name, cls in sorted(classes.items())}


def _text(name: str, cls: type) -> str:
    forms: set[JsonForm] = set()

    def describe(kind: type) -> dict[str, Any]:
        """The schema of a form; the records that it may be are described after it."""
        if not isinstance(kind, JsonForm):
            raise NotImplementedError
        if kind.write is not None:
            return {"type": "string"}
        forms.add(kind)
        return {"anyOf": [{"$ref": _PLACE.format(name=each.__name__)} for each in kind.kinds]}

    (_, *_), definitions = schema_components([cls], schema_hook=describe, ref_template=_PLACE)
    for form in forms:
        definitions |= schema_components(form.kinds, schema_hook=describe, ref_template=_PLACE)[1]
    for definition in definitions.values():
        _tidy(definition)
    definitions.pop("Core", None)  # of facts, which JSON does not have
    schema = definitions.pop(cls.__name__)
    schema |= {"$defs": definitions} if definitions else {}
    if name != "report":
        schema["properties"] |= _ENDS
    return json.dumps({"$schema": _DIALECT, "title": f"ipexctl {name}", **schema}, indent=1, sort_keys=True) + "\n"


def _tidy(schema: dict[str, Any]) -> None:
    """No titles (they repeat the names), the docstring on one line, a type beside choices, nothing that JSON does not
    have."""
    schema.pop("title", None)
    if text := schema.get("description"):
        schema["description"] = " ".join(inspect.cleandoc(text).replace("``", "`").split())
    for name, inner in [*schema.get("properties", {}).items()]:
        if inner.get("unwritten"):
            del schema["properties"][name]
    for part in _walk(schema):
        if isinstance(values := part.get("enum"), list) and len(kinds := {*map(type, values)}) == 1:
            part["type"] = _TYPES[kinds.pop()]
        if part.get("type") == "string" and part.get("default") in ([], ()):  # a list whose JSON is a text
            part["default"] = ""
        if "anyOf" in part:  # in the order of every release
            part["anyOf"].sort(key=lambda choice: choice.get("type") == "null")
        if part.get("required") == []:
            del part["required"]


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
