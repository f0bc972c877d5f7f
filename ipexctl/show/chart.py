"""Horizontal bars as an SVG picture, from rows of numbers; ``data/chart.j2`` is how it looks."""

from collections.abc import Mapping, Sequence

Bars = Sequence[tuple[str, float | None, str]]  # label, value or None, what stands there instead


def draw_chart(template: str, title: str, groups: Mapping[str, Bars], unit: str) -> str:
    """The picture's text. Groups stand below each other, each with a scale of its own."""
    import jinja2

    def shown(value: object) -> object:
        return "".join(c if c.isprintable() else "\ufffd" for c in value) if type(value) is str else value

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, finalize=shown)
    return environment.from_string(template).render(title=title, groups=groups, unit=unit)
