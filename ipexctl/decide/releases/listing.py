"""The table for people and programs: rows, what hosts can hold of it, and every decision as a page of the docs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ipexctl.decide.releases.resolve import holds, resolve
from ipexctl.decide.releases.table import Table, family, plain
from ipexctl.model.answers import ListedRelease
from ipexctl.model.errors import UsageError
from ipexctl.model.facts import Facts, Python
from ipexctl.model.stack import StackRelease, StackRequest

PYTHONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
LEVELS = ("below", "AVX2", "AVX512", "AVX512_BF16", "AMX")


def rows(
    table: Table, *, torch: str | None = None, facts: Mapping[str, Facts] | None = None
) -> tuple[ListedRelease, ...]:
    """Rows, oldest first. ``torch`` "2.7" or "2.7.0" keeps its rows; with ``facts`` each says whether those
    hosts can hold it, and why not. Raises `UsageError` for a torch that is not in the table."""
    kept = [row for row in table.rows if torch is None or plain(torch) in {row.torch, family(row.torch)}]
    if not kept:
        raise UsageError(f"torch {torch} is not in the version table", hint="ipexctl stacks")
    return tuple(_listed(row, table, facts) for row in kept)


def _listed(row: StackRelease, table: Table, facts: Mapping[str, Facts] | None) -> ListedRelease:
    reasons = None if facts is None else tuple(str(reason) for reason in holds(row, StackRequest(), facts))
    return ListedRelease(
        torch=row.torch,
        ipex=row.ipex or None,
        oneccl=row.oneccl or None,
        module=row.module if row.oneccl else None,
        track="ipex" if row.ipex else "native",
        pythons=row.pythons,
        isa=row.isa or None,
        mpi=_mpi(row, table),
        glibc=row.glibc or None,
        glibcxx=row.glibcxx or None,
        libraries=row.libraries,
        indexes=tuple(table.indexes[name].url for name in row.indexes),
        unconfirmed=row.unconfirmed,
        yanked=row.yanked or None,
        notes=row.notes,
        source=row.source,
        fits=None if reasons is None else not reasons,
        reasons=reasons,
    )


def _mpi(row: StackRelease, table: Table) -> str:
    if row.oneccl:
        return f"Intel MPI {row.binding_mpi} in oneccl_bind_pt"
    if row.ipex_mpi:
        return f"Intel MPI {row.ipex_mpi} in intel_extension_for_pytorch"
    return f"impi-rt {table.impi['newest']}"


def text(found: Sequence[ListedRelease]) -> str:
    """Columns for a terminal of 80."""
    head = ("torch", "ipex", "oneccl", "Python", "CPU", "MPI", "")
    lines = [head]
    for row in found:
        mark = "?" if row.unconfirmed else ""
        if row.reasons is not None:
            mark += f" no: {row.reasons[0]}" if row.reasons else " fits"
        mpi = row.mpi.removeprefix("Intel MPI ").replace(" in oneccl_bind_pt", " (ccl)")
        lines.append(
            (
                row.torch,
                row.ipex or "–",
                row.oneccl or "–",
                f"{row.pythons[0]}–{row.pythons[-1]}",
                row.isa or "any",
                mpi.replace(" in intel_extension_for_pytorch", " (ipex)"),
                mark.strip(),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    if any(row.unconfirmed for row in found):
        shown += ["", "?  passes the import check, but no source of Intel lists the pair"]
    return "\n".join(shown)


def page(table: Table) -> str:
    """``docs/stacks.md``: a wish for every row on every Python and CPU level, with the decision and the reason."""
    return "\n".join(_page(table)) + "\n"


def _page(table: Table) -> Iterator[str]:
    yield "# What goes together"
    yield ""
    yield "Written from `ipexctl/data/stacks.toml`; a test holds the two equal"
    yield f"(`python -m tests.unit.releases.test_docs` writes it anew). The facts are those of {table.collected}."
    yield ""
    yield "## Rows"
    yield ""
    yield "| torch | intel_extension_for_pytorch | oneccl_bind_pt | Python | CPU | MPI | source |"
    yield "|---|---|---|---|---|---|---|"
    for row in table.rows:
        mark = " (unconfirmed)" if row.unconfirmed else ""
        python = f"{row.pythons[0]}–{row.pythons[-1]}"
        yield (
            f"| {row.torch} | {row.ipex or '–'} | {row.oneccl or '–'}{mark} | {python} | {row.isa or 'any'} "
            f"| {_mpi(row, table)} | {row.source} |"
        )
    yield ""
    yield "## Frameworks on top"
    yield ""
    for bound in table.bounds:
        yield f"- {bound.package} below {bound.below}: {bound.what} ({bound.source})"
    yield ""
    yield "## Decisions"
    yield ""
    yield "What `install` does on hosts that have just this Python and this CPU level (below: no AVX2)."
    for title, wish in _wishes(table):
        yield ""
        yield f"### {title}"
        yield ""
        yield "| Python | CPU | decision |"
        yield "|---|---|---|"
        for pythons, level, decision in _grouped(wish, table):
            yield f"| {pythons} | {level} | {decision} |"


def _wishes(table: Table) -> Iterator[tuple[str, StackRequest]]:
    """A wish for every row, and those that name no version."""
    yield "no version", StackRequest()
    yield "`--backend gloo`, no version", StackRequest(backend="gloo")
    yield "`--track native`, no version", StackRequest(track="native")
    newest = {row.torch: row.ipex for row in table.rows}  # the last of a torch is what its version alone asks for
    for row in table.rows:
        if row.ipex == newest[row.torch]:
            yield f"torch {row.torch}", StackRequest(torch=row.torch)
        else:
            yield f"torch {row.torch} with ipex {row.ipex}", StackRequest(torch=row.torch, ipex=row.ipex)


def _grouped(wish: StackRequest, table: Table) -> Iterator[tuple[str, str, str]]:
    """Pythons and levels with the same decision in one line."""
    decisions: dict[str, dict[str, list[str]]] = {}
    for level in LEVELS:
        for python in PYTHONS:
            words = _decision(wish, python, level, table)
            decisions.setdefault(words, {}).setdefault(level, []).append(python)
    for words, levels in decisions.items():
        merged: dict[tuple[str, ...], list[str]] = {}
        for level, pythons in levels.items():
            merged.setdefault(tuple(pythons), []).append(level)
        for some, names in merged.items():
            yield ", ".join(some), ", ".join(names), words


def _decision(wish: StackRequest, python: str, level: str, table: Table) -> str:
    host = Facts(
        arch="x86_64",
        isa_level=level,
        glibc="2.36",
        glibcxx="3.4.30",
        libraries=("libz.so.1", "libzstd.so.1"),
        pythons=(Python("python3", python),),
    )
    try:
        return resolve(wish, {"": host}, table).name.rpartition(",")[0]
    except UsageError as refusal:
        return "no: " + "; ".join(refusal.reasons)
