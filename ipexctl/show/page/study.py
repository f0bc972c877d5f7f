"""The part of a page about a study: its launches as lines over parallel axes, and as bars with their spread."""

from itertools import pairwise

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
    keys.append(("spread", "least to greatest of its runs"))
    return {"axes": draw_launches(value), "keys": keys, "bars": [(row, draw_bar(row, best)) for row in value.launches]}


def draw_launches(value: TuneAnswer) -> Markup:
    """An axis for each part that was varied, and the last one for the rate; a line for each launch, the best marked."""
    rows = [row for row in value.launches if row.ratio is not None]
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    if not names:
        return Markup("")
    axes = {name: [*dict.fromkeys(["default", *(_word(row, name) for row in rows)])] for name in names}
    low, high = (edge(row.ratio or 0.0 for row in rows) for edge in (min, max))
    parts: list[Markup] = []
    labels: list[Markup] = []  # over the lines
    for number, name in enumerate([*names, f"× the default, {value.metric}"]):
        x = _place(number, len(names))
        ticks = axes.get(name, [])
        marks = [(word, _height(at, len(ticks) - 1)) for at, word in enumerate(ticks)]
        marks = marks or [(f"{high:.2f}", _height(1, 1)), (f"{low:.2f}", _height(0, 1))]
        parts.append(make_tag("line", x1=x, x2=x, y1=_MARGIN, y2=_HEIGHT - _MARGIN, class_="grid"))
        side = "middle" if 0 < number < len(names) else "end" if number else "first"
        labels.append(
            make_tag("text", clean(name), x=x if side == "middle" else f"{100 * (number > 0)}%", y=14, class_=side)
        )
        beside = {"dx": -6, "class_": "label end"} if side == "end" else {"dx": 6, "class_": "label"}
        labels += [make_tag("text", clean(word), x=x, y=f"{y + 4:.0f}", **beside) for word, y in marks]
    for row in reversed(rows):
        heights = [_height(axes[name].index(_word(row, name)), len(axes[name]) - 1) for name in names]
        heights.append(_height((row.ratio or 0.0) - low, high - low))
        kind = "c1" if row.name == value.best else "c7" if row.dropped else "c0"
        for number, (begin, end) in enumerate(pairwise(heights)):
            ends = {"x1": _place(number, len(names)), "x2": _place(number + 1, len(names))}
            title = make_tag("title", f"{clean(row.name)}: {row.ratio:.2f} × the default")
            parts.append(make_tag("line", title, **ends, y1=f"{begin:.1f}", y2=f"{end:.1f}", class_=f"launch {kind}"))
    about = f"{pluralize(len(rows), 'launch')} over {pluralize(len(names), 'axis')}; the table says the same"
    return make_tag("svg", *parts, *labels, class_="study", width="100%", height=_HEIGHT, role="img", aria_label=about)


def draw_bar(row: TriedLaunch, best: float) -> Markup:
    """The rate of a launch against the default, and between which values its runs were."""
    if row.ratio is None:
        return Markup("")
    parts = [make_tag("rect", x=0, y=4, width=_share(row.ratio, best), height=_ROW - 8, class_="c1")]
    if row.low is not None and row.high is not None:
        ends = {"x1": _share(row.low, best), "x2": _share(row.high, best)}
        parts.append(make_tag("line", **ends, y1=_ROW // 2, y2=_ROW // 2, class_="spread"))
    return make_tag("svg", *parts, width="100%", height=_ROW, aria_hidden="true")


def _word(row: TriedLaunch, name: str) -> str:
    value = row.values.get(name, "default")
    return "yes" if value is True else str(value)


def _place(number: int, last: int) -> str:
    return f"{6 + 84 * number / last:.2f}%"


def _height(part: float, whole: float) -> float:
    return _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (part / whole if whole else 0.5)


def _share(value: float, most: float) -> str:
    return f"{100 * value / most:.2f}%"
