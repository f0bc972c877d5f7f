"""List the releases of the version table, for people and programs."""

from collections.abc import Sequence
from typing import Any

from ipexctl.decide.releases.mpi_choice import list_mpis
from ipexctl.decide.releases.resolve import check_release
from ipexctl.decide.releases.table import ReleaseTable, get_minor_version, get_public_version
from ipexctl.model.answers.install import ListedRelease
from ipexctl.model.errors import UsageError, advise
from ipexctl.model.facts import HostFacts
from ipexctl.model.json_values import select_attributes
from ipexctl.model.stack import StackRelease, StackRequest
from ipexctl.model.text import format_columns, join_names

_PYTHON_FROM = "uv python install VERSION on the host, or its distribution; install finds both"


def list_releases(
    table: ReleaseTable, *, torch: str | None = None, facts: HostFacts | None = None, most: int | None = None
) -> tuple[ListedRelease, ...]:
    """Returns the releases, oldest first. ``torch`` ("2.7" or "2.7.0") selects releases; with ``facts`` each says
    whether those hosts support it, or why not, with the names of ``most`` hosts (default: all). Raises `UsageError`."""
    wanted = None if torch is None else get_public_version(torch)
    releases = [r for r in table.releases if wanted in {None, r.torch, get_minor_version(r.torch)}]
    if not releases:
        raise UsageError(f"torch {torch} is not in the version table", hint=advise("stacks"))
    return tuple(_list_release(release, table, facts, most) for release in releases)


def _list_release(
    release: StackRelease, table: ReleaseTable, facts: HostFacts | None, most: int | None
) -> ListedRelease:
    notes, _ = check_release(release, StackRequest(), facts or {})
    if facts is None:
        reasons = None
    else:
        reasons = tuple(f"{join_names(note.hosts, most or len(note.hosts))}: {note.text}" for note in notes)
    names = ("ipex", "oneccl", "isa", "glibc", "glibcxx", "yanked")
    optional: Any = {name: getattr(release, name) or None for name in names}
    return ListedRelease(
        **select_attributes(release, "torch", "pythons", "libraries", "unconfirmed", "notes", "source"),
        **optional,
        module=release.module if release.oneccl else None,
        track="ipex" if release.ipex else "native",
        mpi=describe_mpi(release, table),
        mpis=list_mpis(release, table),
        indexes=tuple(table.indexes[name].url for name in release.indexes),
        fits=None if reasons is None else not reasons,
        reasons=reasons,
        python_from=_PYTHON_FROM if any(note.code == "python" for note in notes) else None,
    )


def describe_mpi(release: StackRelease, table: ReleaseTable) -> str:
    """Returns the MPI of the release and the package that holds it, in words."""
    if release.oneccl:
        return f"Intel MPI {release.binding_mpi} in oneccl_bind_pt"
    return f"impi-rt {table.impi['newest']}"


def format_releases(entry: Sequence[ListedRelease], taken: StackRelease | None = None) -> str:
    """Columns for a terminal of 80, the newest release first; ``taken`` is marked."""
    head = ("torch", "ipex", "oneccl", "Python", "CPU", "MPI", "")
    numbers: dict[str, int] = {}  # of the reasons: each is printed once, below
    lines, wanted = [head], (taken.torch, taken.ipex, taken.oneccl) if taken else None
    for release in reversed(entry):
        mark = "?" if release.unconfirmed else ""
        if (release.torch, release.ipex or "", release.oneccl or "") == wanted:
            mark += "*"
        if release.reasons is not None:
            short = [text.replace(f" {release.ipex} needs", " needs") for text in release.reasons]
            why = ",".join(str(numbers.setdefault(text, len(numbers) + 1)) for text in short)
            mark += f" no: {why}" if why else " fits"
        mpi = release.mpi.removeprefix("Intel MPI ").replace(" in oneccl_bind_pt", " (ccl)")
        versions = release.torch, release.ipex or "–", release.oneccl or "–"
        pythons = f"{release.pythons[0]}–{release.pythons[-1]}"
        lines.append((*versions, pythons, release.isa or "any", mpi, mark.strip()))
    shown = format_columns(lines)
    if numbers:
        shown += ["", *(f"{number}  {text}" for text, number in numbers.items())]
    places = {release.python_from for release in entry if release.python_from}
    if places:
        shown += ["", *(f"a Python that is not there comes from: {place}" for place in places)]
    if any(release.unconfirmed for release in entry):
        shown += ["", "?  passes the import check, but no source of Intel lists the pair"]
    if any("*" in line[-1] for line in lines):
        shown += ["", "*  what plain install takes, if its wheels can be had"]
    return "\n".join(shown)
