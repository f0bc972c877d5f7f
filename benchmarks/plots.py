"""A plot of targets as SVG: a bar for each, as long as its value is parts of its limit, and a line at the limit."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from targets import Verdict

WIDTH, LABEL, BAR, ROW, TOP = 860, 400, 300, 24, 26  # pixels
LONGEST = 3.0  # times the limit; a longer bar is cut
COLOURS = {"met": "#2e7d32", "missed": "#c62828"}
STYLE = (
    "text{font:13px sans-serif;fill:#24292f}@media (prefers-color-scheme:dark){text{fill:#e6edf3}line{stroke:#e6edf3}}"
)


def draw_verdicts(title: str, verdicts: Sequence[Verdict]) -> str:
    """The plot of what was measured; the empty text where nothing was."""
    measured = [verdict for verdict in verdicts if verdict.value is not None]
    if not measured:
        return ""
    height = TOP + ROW * len(measured) + 8
    limit = LABEL + BAR / LONGEST
    box = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label={quoteattr(title)}'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f"<style>{STYLE}</style>",
        f'<text x="{limit:.0f}" y="16" text-anchor="middle">target</text>',
    ]
    for number, verdict in enumerate(measured):
        parts += _draw_bar(verdict, TOP + ROW * number)
    parts.append(f'<line x1="{limit:.1f}" y1="{TOP - 4}" x2="{limit:.1f}" y2="{height - 6}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw_bar(verdict: Verdict, y: int) -> list[str]:
    assert verdict.value is not None
    share = min(verdict.value / verdict.target.limit, LONGEST)
    length, middle = BAR * share / LONGEST, y + ROW // 2 + 4
    text = f"{verdict.target.format_value(verdict.value)} ({verdict.target.format_limit()})"
    return [
        f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end">{escape(verdict.target.what)}</text>',
        f'<rect x="{LABEL}" y="{y + 4}" width="{length:.1f}" height="{ROW - 8}" fill="{COLOURS[verdict.word]}"/>',
        f'<text x="{LABEL + max(length, BAR / LONGEST) + 8:.0f}" y="{middle}">{escape(text)}</text>',
    ]
