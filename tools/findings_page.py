"""docs/findings.md, made from the catalogue of findings."""

from __future__ import annotations

from ipexctl.decide.checks.catalogue import Catalogue, CatalogueEntry, mark_placeholders


def render_findings_page(catalogue: Catalogue) -> str:
    """The whole catalogue as Markdown: docs/findings.md."""
    levels = {"error": "E", "warning": "W", "info": "i"}
    parts = [
        "# Findings of doctor",
        "Written from `ipexctl/data/findings.toml`; a test holds the two equal"
        " (`python -m tests.unit.doctor.test_docs` writes it anew). `ipexctl doctor --explain CODE` shows one of them.",
        "| code | level | what |\n| --- | --- | --- |\n"
        + "\n".join(
            f"| [{entry.code}](#{entry.code.lower()}) | {levels[entry.level]} | {mark_placeholders(entry.title)} |"
            for entry in catalogue.values()
        ),
    ]
    for entry in catalogue.values():
        parts += [
            f"## {entry.code}",
            f"**{entry.level}**: a host {mark_placeholders(entry.title)}",
            entry.story,
            _format_fix(entry),
        ]
        if entry.upstream:
            parts.append(f"Reported by others: {', '.join(entry.upstream)}")
    return "\n\n".join(parts) + "\n"


def _format_fix(entry: CatalogueEntry) -> str:
    """The fix in words, and its command; that for all hosts, where it is another one, in a paragraph of its own."""
    fixes = {"Fix": entry.fix} | ({"Where all hosts have it": entry.fix_all} if entry.fix_all else {})
    return "\n\n".join(
        f"{name}: {' '.join(f'`{mark_placeholders(text)}`' for text in (fix, entry.command) if text)}"
        for name, fix in fixes.items()
    )
