"""Writes docs/json/*.schema.json: what ``--json`` of each verb answers, and the report. A test holds the files to it.

.venv/bin/python tools/json_schemas.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ipexctl.model.answers import ANSWERS
from ipexctl.model.reports import CommandReport

DIRECTORY = Path(__file__).parents[1] / "docs/json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, str]:
    """The name of each file, and its text."""
    classes = {**ANSWERS, "report": CommandReport}
    return {f"{name}.schema.json": _text(name, cls) for name, cls in sorted(classes.items())}


def _text(name: str, cls: type) -> str:
    schema = TypeAdapter(cls).json_schema(mode="validation")
    for definition in (schema, *schema.get("$defs", {}).values()):
        _tidy(definition)
    schema.get("$defs", {}).get("Facts", {}).get("properties", {}).pop("cores", None)  # `Facts.public` leaves them out
    schema.get("$defs", {}).pop("Core", None)
    return json.dumps({"$schema": _DIALECT, "title": f"ipexctl {name}", **schema}, indent=1, sort_keys=True) + "\n"


def _tidy(schema: dict[str, Any]) -> None:
    """A description on one line; no titles, which repeat the names."""
    schema.pop("title", None)
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].replace("``", "`").split())
    for inner in schema.get("properties", {}).values():
        inner.pop("title", None)


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for stale in DIRECTORY.glob("*.schema.json"):
        stale.unlink()
    for name, text in schemas().items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
