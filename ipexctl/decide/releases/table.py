"""The version table, read from the text of ``ipexctl/data/stacks.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ipexctl.model.stack import Index, StackRelease
from ipexctl.model.toml import parse_toml


@dataclass(frozen=True, slots=True)
class Wrong:
    """A pair that looks right and is not: what to take instead of ``version`` of ``package``, and why."""

    package: str
    version: str
    torch: str  # the torch it fails with; empty: with any
    instead: str
    why: str


@dataclass(frozen=True, slots=True)
class Bound:
    """``package`` below this version still does ``what``."""

    package: str
    below: str
    what: str
    source: str


@dataclass(frozen=True, slots=True)
class Table:
    """All rows, oldest first, and what goes with them."""

    rows: tuple[StackRelease, ...]
    indexes: Mapping[str, Index]
    wrong: tuple[Wrong, ...]
    bounds: tuple[Bound, ...]
    impi: Mapping[str, str]
    collected: str


@lru_cache(4096)
def number(version: str) -> tuple[int, ...]:
    """A version for comparing: ``2.10.0+cpu`` is (2, 10, 0). Words that are no numbers count as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in plain(version).split("."))


def plain(version: str) -> str:
    """The version without its local part: ``2.8.0+cpu`` is ``2.8.0``. PyPI's and Intel's files differ only there."""
    return version.partition("+")[0]


def family(version: str) -> str:
    """``2.8.0`` belongs to ``2.8``."""
    return ".".join(plain(version).split(".")[:2])


def parse(text: str) -> Table:
    """The table. Raises `KeyError`/`ValueError` for a table that is not well-formed (a fault of ours, tested)."""
    data = parse_toml(text)
    indexes = {
        name: Index(name, item["url"], item["kind"], tuple(item["packages"]), item["why"])
        for name, item in data["index"].items()
    }
    releases = {(item["package"], item["version"]): item for item in data.get("release", ())}
    wrong = tuple(
        Wrong(
            item.get("package", "oneccl" if "oneccl" in item else "ipex"),
            item.get("version") or item.get("oneccl") or item["ipex"],
            item.get("torch", ""),
            item["instead"],
            item["why"],
        )
        for item in data["wrong"]
    )
    bounds = tuple(Bound(item["package"], item["below"], item["what"], item["source"]) for item in data["bound"])
    rows = tuple(_row(item, data["family"][family(item["torch"])], releases) for item in data["row"])
    return Table(rows, indexes, wrong, bounds, data["impi"], data["collected"])


def _row(item: Mapping[str, Any], shared: Mapping[str, Any], releases: Mapping[tuple[str, str], Any]) -> StackRelease:
    ipex, oneccl = item.get("ipex", ""), item.get("oneccl", "")
    release = releases.get(("ipex", ipex), {})
    notes = [*shared.get("notes", ()), *([release["why"]] if release else [])]
    return StackRelease(
        torch=item["torch"],
        ipex=ipex,
        oneccl=oneccl,
        module=shared.get("module", "") if ipex else "",
        pythons=tuple(shared["python"] if ipex else shared["torch_python"]),
        torch_pythons=tuple(shared["torch_python"]),
        isa=(release.get("isa") or shared["isa"]) if ipex else "",
        glibc=shared.get("glibc", ""),
        glibcxx=shared.get("glibcxx", "") if ipex else "",
        libraries=tuple(shared.get("libraries", ())) if ipex else (),
        requires=tuple(shared.get("requires", ())),
        ipex_mpi=shared.get("ipex_mpi", "") if ipex else "",
        ipex_layout=shared.get("ipex_layout", "") if ipex else "",
        binding_mpi=shared.get("binding_mpi", "") if oneccl else "",
        binding_layout=shared.get("binding_layout", "") if oneccl else "",
        indexes=("torch-cpu", *(shared.get("index", ()) if ipex else ())),
        unconfirmed=tuple(item.get("unconfirmed", ())),
        yanked=(release.get("yanked") or shared.get("yanked", "")) if ipex else "",
        avoid=release["why"] if release.get("avoid") else "",
        notes=tuple(f"IPEX {ipex} {note}" for note in notes) if ipex else (),
        source=item["source"],
    )
