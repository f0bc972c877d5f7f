"""The catalogue of findings, read from the text of ``ipexctl/data/findings.toml``."""

import difflib
from collections.abc import Mapping
from typing import Literal

from ipexctl.model.errors import UsageError
from ipexctl.model.json_values import Record
from ipexctl.model.reports import Level
from ipexctl.model.text import printable
from ipexctl.model.toml import parse_toml


class CatalogueEntry(Record):
    """The catalogue entry of one code. Title, fix and command contain {placeholders} that the check fills."""

    code: str
    level: Level
    title: str
    story: str
    fix: str = ""
    fix_all: str = ""  # instead of ``fix`` where every host that answered has it: none can be left out
    command: str = ""
    upstream: tuple[str, ...] = ()
    safe: Literal["", "root", "install"] = ""  # who may fix it after confirmation: "root", "install", "": nobody
    repairs: bool = False  # the command only where no host has an environment of ipexctl's: else that of most is kept
    do: str = ""  # the shell commands of the fix
    action: bool = True  # False: nothing has to be done
    momentary: bool = False  # a run that started refutes it, or it was true at one moment only


Catalogue = Mapping[str, CatalogueEntry]


def parse_catalogue(text: str) -> Catalogue:
    """Raises `TypeError` for a malformed table (a bug: the table is part of ipexctl; a test checks its types)."""
    items = parse_toml(text).items()
    return {
        code: CatalogueEntry(
            code, **item | {"story": item["story"].strip(), "upstream": tuple(item.get("upstream", ()))}
        )
        for code, item in items
    }


def mark_placeholders(template: str) -> str:
    """Returns a word that a check fills in, as in a manual."""
    return template.replace("{", "‹").replace("}", "›")


def explain_finding(code: str, catalogue: Catalogue) -> str:
    """Returns the explanation of a code as text. Raises `UsageError` for a code that does not exist."""
    entry = catalogue.get(code.upper())
    if entry is None:
        raise UsageError(f"there is no finding {printable(code)}", hint=_suggest_codes(code.upper(), catalogue))
    fix = entry.fix.replace("{remedy}", "depends on the host: doctor names it")
    fixes = {"fix": fix} | ({"where all hosts have it": entry.fix_all} if entry.fix_all else {})
    texts = [f"{name}: " + f"{fix}\n{entry.command}".strip() for name, fix in fixes.items()]
    lines = [f"{entry.code}  {entry.level}: a host {mark_placeholders(entry.title)}", "", entry.story, ""]
    lines += mark_placeholders("\n\n".join(texts)).splitlines()
    if entry.upstream:
        lines += ["", "reported by others:", *(f"  {where}" for where in entry.upstream)]
    return "\n".join(lines)


def _suggest_codes(code: str, catalogue: Catalogue) -> str:
    """Codes of the same kind or with a similar name; else all kinds."""
    kinds = {known: known.rstrip("0123456789") for known in catalogue}
    similar = [known for known, kind in kinds.items() if kind == code.rstrip("0123456789")]
    similar = similar or difflib.get_close_matches(code, catalogue, n=3, cutoff=0.6)
    if len(similar) > 3:
        return f"{similar[0]} to {similar[-1]} are there"
    words = ", ".join(sorted(set(kinds.values())))
    return f"did you mean {' or '.join(similar)}?" if similar else f"codes begin with {words}"
