"""docs/stacks.md, made from the version table: the rows, and what `install` decides for each Python and CPU level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ipexctl.decide.releases.listing import describe_mpi
from ipexctl.decide.releases.resolve import resolve_stack
from ipexctl.decide.releases.table import ReleaseTable, parse_table
from ipexctl.model.errors import UsageError
from ipexctl.model.facts import Facts, Python
from ipexctl.model.stack import StackRequest
from ipexctl.model.toml import parse_toml

PYTHONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
LEVELS = ("below", "AVX2", "AVX512", "AVX512_BF16", "AMX")


def render_releases_page(text: str) -> str:
    """``docs/stacks.md`` from the text of the table: the decision for every release on every Python and CPU level, with
    its reason."""
    return "\n".join(_page_lines(parse_table(text), parse_toml(text))) + "\n"


def _page_lines(table: ReleaseTable, data: Mapping[str, Any]) -> Iterator[str]:
    yield "# What goes together"
    yield ""
    yield "Written from `ipexctl/data/stacks.toml`; a test holds the two equal"
    yield f"(`python -m tests.unit.releases.test_docs` writes it anew). The facts are those of {data['collected']}."
    yield ""
    yield "## Rows"
    yield ""
    yield "| torch | intel_extension_for_pytorch | oneccl_bind_pt | Python | CPU | MPI | source |"
    yield "|---|---|---|---|---|---|---|"
    for release in table.releases:
        mark = " (unconfirmed)" if release.unconfirmed else ""
        python = f"{release.pythons[0]}–{release.pythons[-1]}"
        cells = [release.torch, release.ipex or "–", f"{release.oneccl or '–'}{mark}", python, release.isa or "any"]
        yield f"| {' | '.join(cells)} | {describe_mpi(release, table)} | {release.source} |"
    yield ""
    yield "## Frameworks on top"
    yield ""
    for bound in data["bound"]:
        yield f"- {bound['package']} below {bound['below']}: {bound['what']} ({bound['source']})"
    yield ""
    yield "## Decisions"
    yield ""
    yield "What `install` does on hosts that have just this Python and this CPU level (below: no AVX2)."
    for title, request in _example_requests(table):
        yield ""
        yield f"### {title}"
        yield ""
        yield "| Python | CPU | decision |"
        yield "|---|---|---|"
        for pythons, level, decision in _group_decisions(request, table):
            yield f"| {pythons} | {level} | {decision} |"


def _example_requests(table: ReleaseTable) -> Iterator[tuple[str, StackRequest]]:
    """A request for every release, and those that name no version."""
    yield "no version", StackRequest()
    yield "`--backend gloo`, no version", StackRequest(backend="gloo")
    yield "`--track native`, no version", StackRequest(track="native")
    newest = {
        release.torch: release.ipex for release in table.releases
    }  # the last of a torch is what its version alone asks for
    for release in table.releases:
        if release.ipex == newest[release.torch]:
            yield f"torch {release.torch}", StackRequest(torch=release.torch)
        else:
            yield (
                f"torch {release.torch} with ipex {release.ipex}",
                StackRequest(torch=release.torch, ipex=release.ipex),
            )


def _group_decisions(request: StackRequest, table: ReleaseTable) -> Iterator[tuple[str, str, str]]:
    """Pythons and levels with the same decision in one line."""
    decisions: dict[str, dict[str, list[str]]] = {}
    for level in LEVELS:
        for python in PYTHONS:
            words = _decide(request, python, level, table)
            decisions.setdefault(words, {}).setdefault(level, []).append(python)
    for words, levels in decisions.items():
        merged: dict[tuple[str, ...], list[str]] = {}
        for level, pythons in levels.items():
            merged.setdefault(tuple(pythons), []).append(level)
        for some, names in merged.items():
            yield ", ".join(some), ", ".join(names), words


def _decide(request: StackRequest, python: str, level: str, table: ReleaseTable) -> str:
    host = Facts(
        arch="x86_64",
        isa_level=level,
        glibc="2.36",
        glibcxx="3.4.30",
        libraries=("libz.so.1", "libzstd.so.1"),
        pythons=(Python("python3", python),),
    )
    try:
        return resolve_stack(request, {"": host}, table).name.rpartition(",")[0]
    except UsageError as refusal:
        return "no: " + "; ".join(refusal.reasons)
