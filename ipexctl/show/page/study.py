"""Drawings of a study: its launches as lines over parallel axes, and as bars with their spread."""

from collections.abc import Sequence

from markupsafe import Markup

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.answers.tune import TriedLaunch, TuneAnswer
from ipexctl.model.text import pluralize
from ipexctl.show.page.drawings import make_tag

_HEIGHT, _AXIS, _ROW = 260, 170, 24  # pixels: of the axes, between two of them, of a bar
_AXES_LIMIT = 32  # parts that are varied
_BARS = 220, 320  # pixels: where bars begin, and how long the longest is


def draw_study(value: AnyAnswer) -> list[Markup]:
    """Returns what the page shows of a study; nothing of one that another version wrote."""
    if not isinstance(value, TuneAnswer):
        return []
    return [draw_launches(value), draw_bars("Rates", value.metric, value.launches)]


def draw_launches(value: TuneAnswer) -> Markup:
    """An axis for each part that was varied, and the last one for the rate; a line for each launch, the best marked."""
    rows = [row for row in value.launches if row.ratio is not None]
    names = list(dict.fromkeys(name for row in rows for name in row.values))[:_AXES_LIMIT]
    every = [dict.fromkeys(["default", *(_word(row, name) for row in rows)]) for name in names]
    places = [{word: at / max(len(words) - 1, 1) for at, word in enumerate(words)} for words in every]
    ratios = [row.ratio or 0.0 for row in rows] or [0.0]
    low, size = min(ratios), (max(ratios) - min(ratios)) or 1.0
    scale = {f"{low:.2f}": 0.0, f"{max(ratios):.2f}": 1.0}
    parts = []
    for row in reversed(rows):
        shares = [of_words[_word(row, name)] for name, of_words in zip(names, places, strict=True)]
        shares.append(((row.ratio or 0.0) - low) / size)
        points = " ".join(f"{20 + _AXIS * number},{_height(share)}" for number, share in enumerate(shares))
        kind = "c7" if row.dropped else "c0"
        if row.name == value.best:
            kind = "c1"
        title = make_tag("title", f"{row.name}: {row.ratio:.2f} × the default")
        parts.append(make_tag("polyline", title, points=points, class_=f"launch {kind}"))
    axes = [*zip(names, places, strict=True), ("× the default", scale)]
    for number, (name, choices) in enumerate(axes):
        x = 20 + _AXIS * number
        parts.append(make_tag("line", x1=x, x2=x, y1=_height(1.0), y2=_height(0.0), class_="grid"))
        heights = {name: 14.0}
        heights |= {word: _height(share) + 4 for word, share in choices.items()}
        parts += [make_tag("text", word, x=x + 6, y=y, class_="label") for word, y in heights.items()]
    about = f"{pluralize(len(rows), 'launch')} over {pluralize(len(axes), 'axis')}; the table says the same"
    box = {"width": _AXIS * len(axes), "height": _HEIGHT, "role": "img", "aria_label": about}
    return make_tag("svg", *parts, class_="study", **box)


def draw_bars(title: str, unit: str, launches: Sequence[TriedLaunch]) -> Markup:
    """The rates as a picture of its own, and how far each may be off."""
    left, longest = _BARS
    best = max((row.rate or 0.0 for row in launches), default=0.0) or 1.0
    parts = [make_tag("text", title, x=10, y=20, font_weight="bold")]
    for number, row in enumerate(launches):
        y, rate = 48 + _ROW * number, row.rate or 0.0
        words = f"{rate:.1f} {unit}" if row.rate else row.why
        size = end = longest * (rate / best)
        parts.append(make_tag("text", row.name, x=left - 8, y=y, text_anchor="end"))
        parts.append(make_tag("rect", x=left, y=y - 13, width=f"{size:.1f}", height=16, fill="#2a6f97", class_="c1"))
        if row.low and row.high and row.ratio:
            begin, end = (size * bound / row.ratio for bound in (row.low, row.high))
            x = {"x1": f"{left + begin:.1f}", "x2": f"{left + end:.1f}"}
            parts.append(make_tag("line", **x, y1=y - 5, y2=y - 5, stroke="black", class_="spread"))
        parts.append(make_tag("text", words, x=f"{left + end + 8:.1f}", y=y))
    box = {"width": 820, "height": 40 + _ROW * len(launches), "font_family": "sans-serif", "font_size": 13}
    return make_tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", **box)


def _word(row: TriedLaunch, name: str) -> str:
    value = row.values.get(name, "default")
    return "yes" if value is True else str(value)


def _height(share: float) -> float:
    return round(_HEIGHT - 34 - (_HEIGHT - 68) * share, 1)
