"""The version table, read from the text of ``ipexctl/data/stacks.toml``."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from packaging.version import Version

from ipexctl.model.json_values import Record
from ipexctl.model.stack import Index, StackRelease
from ipexctl.model.toml import parse_toml


class KnownMismatch(Record):
    """A pair of versions that does not work: which oneCCL binding to install instead, and why."""

    torch: str
    oneccl: str
    instead: str
    why: str


class ReleaseTable(Record):
    """The version table: all releases, oldest first, and its other parts."""

    releases: tuple[StackRelease, ...]
    indexes: Mapping[str, Index]
    wrong: tuple[KnownMismatch, ...]
    impi: Mapping[str, str]
    mpis: Mapping[str, Mapping[str, str]]  # other wheels with an MPI


@lru_cache(4096)
def parse_version(version: str) -> Version:
    """Returns a version for comparison, without its local part; less than any other for a text that is no version."""
    try:
        return Version(get_public_version(version))
    except ValueError:
        return Version("0.dev0")


def get_public_version(version: str) -> str:
    """The version without its local part: ``2.8.0+cpu`` is ``2.8.0``. PyPI's and Intel's files differ only there."""
    try:
        return Version(version).public
    except ValueError:
        return version.partition("+")[0]


def get_minor_version(version: str) -> str:
    """Returns the first two parts of a version: ``2.8`` of ``2.8.0+cpu``. A text that is no version stays as it is."""
    try:
        return ".".join(map(str, Version(version).release[:2]))
    except ValueError:
        return version


def parse_table(text: str) -> ReleaseTable:
    """Parse the table. Raises `KeyError`/`ValueError` for a table that is not well-formed (a fault of ours, tested)."""
    data = parse_toml(text)
    kinds = data["index"].items()
    indexes = {name: Index(name, item["url"], item["kind"], tuple(item["packages"])) for name, item in kinds}
    patches = {(item["package"], item["version"]): item for item in data.get("release", ())}
    pairs = [item for item in data["wrong"] if "oneccl" in item]
    wrong = tuple(KnownMismatch(item["torch"], item["oneccl"], item["instead"], item["why"]) for item in pairs)
    releases = tuple(
        _parse_release(item, data["family"][get_minor_version(item["torch"])], patches) for item in data["row"]
    )
    return ReleaseTable(releases, indexes, wrong, data["impi"], data["mpi"])


def _parse_release(
    item: dict[str, Any], shared: dict[str, Any], patches: Mapping[tuple[str, str], Any]
) -> StackRelease:
    ipex, oneccl = item.get("ipex", ""), item.get("oneccl", "")
    patch = patches.get(("ipex", ipex), {})
    notes = [*shared.get("notes", ()), *([patch["why"]] if patch else [])]
    of_ipex = shared | patch if ipex else {}
    return StackRelease(
        torch=item["torch"],
        ipex=ipex,
        oneccl=oneccl,
        **{key: of_ipex.get(key, "") for key in ("module", "isa", "glibcxx", "ipex_mpi", "yanked")},
        pythons=tuple(of_ipex.get("python") or shared["torch_python"]),
        torch_pythons=tuple(shared["torch_python"]),
        aarch64_pythons=tuple(shared.get("aarch64", ())),
        glibc=shared.get("glibc", ""),
        libraries=tuple(of_ipex.get("libraries", ())),
        requires=tuple(shared.get("requires", ())),
        binding_mpi=shared.get("binding_mpi", "") if oneccl else "",
        indexes=("torch-cpu", *of_ipex.get("index", ())),
        unconfirmed=tuple(item.get("unconfirmed", ())),
        avoid=patch["why"] if patch.get("avoid") else "",
        notes=tuple(f"IPEX {ipex} {note}" for note in notes) if ipex else (),
        source=item["source"],
    )
