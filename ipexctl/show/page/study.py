"""Drawings of a study: its launches as lines over parallel axes, and as bars with their spread."""

from collections.abc import Sequence

from markupsafe import Markup

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.answers.tune import TriedLaunch, TuneAnswer
from ipexctl.model.text import pluralize
from ipexctl.show.page.drawings import clean, make_tag

_HEIGHT, _MARGIN, _ROW = 260, 34, 20  # pixels: of the axes, above and below them, of a bar


def draw_study(value: AnyAnswer) -> dict[str, object]:
    """Returns what the template shows of a study; nothing of one that another version wrote."""
    if not isinstance(value, TuneAnswer):
        return {}
    best = max([1.0, *(row.high or row.ratio or 0.0 for row in value.launches)])
    keys = [("c1", "best, and in the table how many times it is as fast as the default"), ("c0", "other launches")]
    keys += [("c7", "dropped")] if any(row.dropped for row in value.launches) else []
    keys.append(("spread", "as far as its measurements may be off"))
    return {"axes": draw_launches(value), "keys": keys, "bars": [(row, draw_bar(row, best)) for row in value.launches]}


def draw_launches(value: TuneAnswer) -> Markup:
    """An axis for each part that was varied, and the last one for the rate; a line for each launch, the best marked."""
    rows = [row for row in value.launches if row.ratio is not None]
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    if not names:
        return Markup("")
    words = {name: list(dict.fromkeys(["default", *(_word(row, name) for row in rows)])) for name in names}
    low, high = min(row.ratio or 0.0 for row in rows), max(row.ratio or 0.0 for row in rows)
    words[f"× the default, {value.metric}"] = [f"{low:.2f}", f"{high:.2f}"]
    places = {name: 20 + 960 * number / len(names) for number, name in enumerate(words)}  # thousandths
    axes: list[Markup] = []
    labels: list[Markup] = []  # over the lines, beside their axes
    for name, x in places.items():
        beside = {"x": f"{x / 10:.2f}%", "dx": 6, "class_": "label"}
        if x == 980:
            beside |= {"dx": -6, "class_": "label end"}
        axes.append(make_tag("line", x1=beside["x"], x2=beside["x"], y1=_MARGIN, y2=_HEIGHT - _MARGIN, class_="grid"))
        labels.append(make_tag("text", clean(name), y=14, **beside))
        for number, word in enumerate(words[name]):
            labels.append(make_tag("text", clean(word), y=_height(number, len(words[name]) - 1) + 4, **beside))
    lines = []
    for row in reversed(rows):
        heights = [_height(words[name].index(_word(row, name)), len(words[name]) - 1) for name in names]
        heights.append(_height((row.ratio or 0.0) - low, high - low))
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(places.values(), heights, strict=True))
        title = make_tag("title", f"{clean(row.name)}: {row.ratio:.2f} × the default")
        kind = "c1" if row.name == value.best else "c7" if row.dropped else "c0"
        lines.append(make_tag("polyline", title, points=points, class_=f"launch {kind}"))
    box = {"viewBox": f"0 0 1000 {_HEIGHT}", "preserveAspectRatio": "none", "width": "100%", "height": _HEIGHT}
    about = f"{pluralize(len(rows), 'launch')} over {pluralize(len(names), 'axis')}; the table says the same"
    parts = [*axes, make_tag("svg", *lines, **box), *labels]
    return make_tag("svg", *parts, class_="study", width="100%", height=_HEIGHT, role="img", aria_label=about)


def draw_bar(row: TriedLaunch, best: float) -> Markup:
    """The rate of a launch against the default, and how far it may be off."""
    if row.ratio is None:
        return Markup("")
    parts = [make_tag("rect", x=0, y=4, width=f"{100 * row.ratio / best:.2f}%", height=_ROW - 8, class_="c1")]
    if row.low is not None and row.high is not None:
        low, high = (f"{100 * value / best:.2f}%" for value in (row.low, row.high))
        parts.append(make_tag("line", x1=low, x2=high, y1=_ROW // 2, y2=_ROW // 2, class_="spread"))
    return make_tag("svg", *parts, width="100%", height=_ROW, aria_hidden="true")


def draw_plot(title: str, unit: str, launches: Sequence[TriedLaunch]) -> Markup:
    """The rates as a picture of its own."""
    best, size = max([row.rate or 0.0 for row in launches] or [0.0]) or 1.0, 40 + 24 * len(launches)
    parts = [make_tag("text", clean(title), x=10, y=20, font_weight="bold")]
    for number, row in enumerate(launches):
        y, wide = 48 + 24 * number, 480 * (row.rate or 0.0) / best
        words = clean(row.why) if row.rate is None else f"{row.rate:.1f} {unit}"
        parts.append(make_tag("text", clean(row.name), x=162, y=y, text_anchor="end"))
        if row.rate is not None:
            parts.append(make_tag("rect", x=170, y=y - 13, width=f"{max(wide, 1):.1f}", height=16, fill="#2a6f97"))
        parts.append(make_tag("text", words, x=f"{176 + wide:.1f}", y=y))
    style = {"font_family": "sans-serif", "font_size": 13, "width": 820, "height": size}
    return make_tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 820 {size}", **style)


def _word(row: TriedLaunch, name: str) -> str:
    value = row.values.get(name, "default")
    return "yes" if value is True else str(value)


def _height(part: float, whole: float) -> float:
    share = part / whole if whole else 0.5
    return round(_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * share, 1)
