"""Drawings of a page as inline SVG. Each takes values and returns markup; `make_tag` escapes every text in it.

Widths are percentages: a drawing fits a telephone and a wide screen; curves lie in an inner SVG that stretches."""

from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from math import ceil, floor, log10

from markupsafe import Markup

from ipexctl.model.answers.doctor import LinkSpeed
from ipexctl.model.facts import Facts
from ipexctl.model.launch import PlannedLaunch, RankPlacement
from ipexctl.model.page import Curve, Figure, Mark, RankRow, Span
from ipexctl.model.run_state import Points
from ipexctl.model.text import format_clock, format_cpus, format_size, pluralize
from ipexctl.show.phrases import format_duration
from ipexctl.show.sanitise import escape

ROW = 20  # pixels of a rank on the time axis
_LAYERED = ("wait", "odd", "stall", "straggles")  # spans that are drawn over those of stages
GLYPHS = {"ended": "✓", "failed": "✗", "stopped": "■", "lost": "✗", "restart": "↻", "figure": "!"}
_HEIGHT = 120
_GREATEST = 1e300  # of a scale; differences that are smaller than its reciprocal are none
_HUES = 8  # classes c0 to c7 of page.css


def make_tag(name: str, *content: str, **attributes: object) -> Markup:
    """An element with its content and attributes, escaped and harmless: ``make_tag("text", "a < b", class_="label")``.
    In the names of attributes ``_`` stands for ``-``."""
    words = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), escape(str(value)))
        for key, value in attributes.items()
    )
    texts = (each if isinstance(each, Markup) else escape(each) for each in content)
    return Markup("<{0}{1}>{2}</{0}>").format(name, words, Markup("").join(texts))


def _percent(part: float, whole: float) -> str:
    return f"{100 * min(max(part / whole, 0.0), 1.0):.6f}".rstrip("0").rstrip(".") + "%"


def draw_timeline(rows: Sequence[RankRow], length: float) -> Markup:
    """The rows of all ranks: stages as bars, stalls and waits over them, ends and losses as marks."""
    size = max(ROW * len(rows), 1)
    parts = [make_tag("g", class_="ticks")]  # which the script draws, and the axis below
    for number, row in enumerate(rows):
        bars = [_draw_span(span, row.rank, number * ROW, length) for span in row.spans]
        bars += [_draw_mark(mark, row.rank, number * ROW, length) for mark in row.marks]
        parts.append(make_tag("g", *bars, data_rank=row.rank))
    about = f"stages of {pluralize(len(rows), 'rank')} over time; the table below says the same"
    return make_tag("svg", *parts, class_="rows", width="100%", height=size, role="img", aria_label=about)


def _draw_span(span: Span, rank: int, top: int, length: float) -> Markup:
    inset = 7 if span.kind in _LAYERED else 3
    about = f"rank {rank}: {span.text}, {format_clock(span.begin)} to {format_clock(span.end)}"
    seconds = span.end - span.begin
    about += f" ({format_duration(seconds) if seconds >= 1 else f'{1000 * seconds:.3g} ms'})"
    return make_tag(
        "rect", make_tag("title", about), x=_percent(span.begin, length), y=top + inset,
        width=_percent(span.end - span.begin, length), height=ROW - inset - 3, class_=f"s-{span.kind}",
    )  # fmt: skip


def _draw_mark(mark: Mark, rank: int, top: int, length: float) -> Markup:
    """Beside the bar, not on it: an end stands to the right of its moment, a restart to the left."""
    title = make_tag("title", f"rank {rank}, {format_clock(mark.at)}: {mark.text}")
    place = {"x": _percent(mark.at, length), "y": top + 15, "dx": -2 if mark.kind == "restart" else 2}
    return make_tag("text", GLYPHS[mark.kind], title, **place, class_=f"m-{mark.kind}")


def choose_scale(values: Iterable[float], *, zero: bool = False) -> tuple[float, float]:
    """The least and greatest value of a vertical axis: round numbers around all of them, 0 where that is near, or
    wanted."""
    every = [max(min(value, _GREATEST), -_GREATEST) for value in values]
    low, high = min(every, default=0.0), max(every, default=0.0)
    if low >= 0 and (zero or low < 0.7 * high):
        low = 0.0
    if high - low < 1 / _GREATEST:
        half = max(abs(low), abs(high)) / 2
        half = half if half > 1 / _GREATEST else 0.5
        low, high = low - half, high + half
    step = 10 ** floor(log10(high - low)) / 2
    return floor(low / step) * step, -floor(-high / step) * step


def format_value(value: float) -> str:
    """A figure with three or four digits: ``0.341``, ``12.5``, ``1.2e-05``."""
    return f"{value:.4g}" if abs(value) < 10000 else f"{value:,.0f}"


_FEW_CURVES = 4  # curves of ranks of which each is drawn
_BAND = 200  # columns of a band
_EDGE = 3  # pixels above and below the scale, for the half of a line on its end


def choose_curves(figure: Figure) -> tuple[Sequence[Curve], Sequence[Curve]]:
    """The curves that are drawn, and those that are one band: of many that are alike the first one is drawn, beside at
    most so many odd ones that each has a colour of its own."""
    odd = [curve for curve in figure.curves if curve.marked][: _HUES - 1]
    alike = [curve for curve in figure.curves if curve not in odd]
    if figure.by == "run" or len(alike) <= _FEW_CURVES:
        return figure.curves, ()
    return [alike[0], *odd], alike


def _list_band(curves: Iterable[Points], length: float, breaks: Sequence[float]) -> list[tuple[float, float, float]]:
    """The least and the greatest of many curves at each column of time, none over a break."""
    columns: dict[int, list[float]] = {}
    size = length / _BAND
    for points in curves:
        for at, value in points:
            columns.setdefault(round(at / size), []).append(value)
        for (begin, first), (end, last) in pairwise(points):
            for column in range(max(ceil(begin / size), 0), min(floor(end / size), _BAND) + 1):
                if end > begin and bisect(breaks, begin) == bisect(breaks, end):
                    share = (column * size - begin) / (end - begin)
                    columns.setdefault(column, []).append(first + share * (last - first))
    return [(column * size, min(values), max(values)) for column, values in sorted(columns.items())]


def draw_chart(figure: Figure, length: float, breaks: Sequence[float] = (), broken: Iterable[float] = ()) -> Markup:
    """The curves of one figure, each in parts at ``breaks``, and the band of those that are alike. A line at each
    moment of ``broken``: a value was no number. The script reads values back by the scale in ``data-`` attributes."""
    low, high = choose_scale((value for curve in figure.curves for _, value in curve.points), zero=figure.zero)

    def place(points: Iterable[tuple[float, float]]) -> str:
        shares = ((at / length, (high - max(min(value, high), low)) / (high - low)) for at, value in points)
        return " ".join(f"{1000 * max(min(x, 1), 0):.1f},{_HEIGHT * y:.1f}" for x, y in shares)

    lines = []
    shown, alike = choose_curves(figure)
    band = _list_band((curve.points for curve in alike), length, breaks)
    for _, part in groupby(band, lambda column: bisect(breaks, column[0])):
        edges = [*part]
        around = [(at, most) for at, _, most in edges] + [(at, least) for at, least, _ in reversed(edges)]
        lines.append(make_tag("polygon", points=place(around), class_="band"))
    for at in broken:
        x = f"{1000 * at / length:.1f}"
        lines.append(make_tag("line", x1=x, x2=x, y1=0, y2=_HEIGHT, class_="nan"))
    for number, curve in enumerate(shown):
        kind = f"c{number % _HUES}{' marked' if curve.marked else ''}"
        for _, points in groupby(curve.points, lambda point: bisect(breaks, point[0])):
            lines.append(make_tag("polyline", points=place(points), class_=kind, data_name=curve.name))
    heights = [_HEIGHT * part // 4 for part in (0, 2, 4)]
    grid = [make_tag("line", x1=0, x2="100%", y1=at, y2=at, class_="grid") for at in heights]
    box, height = f"0 {-_EDGE} 1000 {_HEIGHT + 2 * _EDGE}", _HEIGHT + 2 * _EDGE
    inner = make_tag("svg", *lines, viewBox=box, preserveAspectRatio="none", y=-_EDGE, width="100%", height=height)
    about = f"{figure.title} of {len(figure.curves)} {figure.by}s"
    return make_tag(
        "svg", *grid, inner, class_="plot", width="100%", height=_HEIGHT, tabindex=0, role="img",
        aria_label=f"{about}, {format_value(low)} to {format_value(high)}",
        data_low=f"{low:.6g}", data_high=f"{high:.6g}",
    )  # fmt: skip


def list_scale(figure: Figure) -> tuple[str, str]:
    """The names of the greatest and the least value of a chart's axis."""
    low, high = choose_scale((value for curve in figure.curves for _, value in curve.points), zero=figure.zero)
    return format_value(high), format_value(low)


_DRAWN_CPUS = 2048  # of a host
_CELL, _GAP, _ACROSS = 11, 2, 28  # pixels of a logical CPU and between two; how many of them stand in a line


def draw_topology(host: str, facts: Facts | None, launch: PlannedLaunch | None) -> Markup:
    """A host: its sockets as far as they are known, its NUMA nodes with their logical CPUs, each in the colour of the
    rank that is pinned to it."""
    owners: dict[int, tuple[RankPlacement, bool]] = {}
    for placement in launch.ranks if launch else ():
        if placement.host == host:
            owners |= dict.fromkeys(placement.cpus, (placement, False))
            owners |= dict.fromkeys(placement.workers, (placement, True))
    nodes = [(f"NUMA {node.id}", node.cpus, node.mem_total_kb) for node in (facts and facts.numa) or () if node.cpus]
    if not nodes and (cpus := (facts.cpus_online if facts else None) or tuple(sorted(owners))):
        nodes = [("CPUs", cpus, None)]
    sockets = {cpu: socket for socket, cpus in _find_sockets(facts).items() for cpu in cpus}
    y, width = 0, _ACROSS * (_CELL + _GAP) + 9
    parts: list[Markup] = []
    room = _DRAWN_CPUS
    for name, cpus, memory in nodes:
        [socket, *others] = {sockets.get(cpu) for cpu in cpus}
        words = [f"socket {socket}" if socket is not None and not others else "", name, f"CPUs {format_cpus(cpus)}"]
        words.append(format_size(memory * 1024) if memory else "")
        cpus = cpus[:room]
        room -= len(cpus)
        if not cpus:
            break
        height = 24 + -(-len(cpus) // _ACROSS) * (_CELL + _GAP)
        parts.append(make_tag("rect", x=0.5, y=y + 0.5, width=width - 2, height=height - 1, class_="node"))
        parts.append(make_tag("text", " · ".join(filter(None, words)), x=6, y=y + 14, class_="label"))
        for number, cpu in enumerate(cpus):
            row, column = divmod(number, _ACROSS)
            place = {"x": 5 + column * (_CELL + _GAP), "y": y + 20 + row * (_CELL + _GAP)}
            parts.append(_draw_cpu(cpu, owners.get(cpu), place))
        y += height + 6
    return _make_drawing("topology", width, y, f"processors of {host}", parts)


def _draw_cpu(cpu: int, owner: tuple[RankPlacement, bool] | None, place: dict[str, int]) -> Markup:
    use, whose = "free", "no rank"
    if owner is not None:
        placement, worker = owner
        use = f"c{placement.local % _HUES}{' worker' if worker else ''}"
        whose = f"rank {placement.rank}{', its collectives' if worker else ''}"
    title = make_tag("title", f"CPU {cpu}: {whose}")
    return make_tag("rect", title, **place, width=_CELL, height=_CELL, class_=f"cpu {use}")


def _find_sockets(facts: Facts | None) -> dict[str, tuple[int, ...]]:
    if facts is None:
        return {}
    if facts.socket_cpus:
        return dict(facts.socket_cpus)
    return {"0": facts.cpus_online} if facts.sockets == 1 and facts.cpus_online else {}


def _make_drawing(kind: str, width: float, height: float, about: str, parts: Sequence[Markup]) -> Markup:
    """A drawing of a fixed size that shrinks where there is less room; nothing where it has no parts."""
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    return make_tag("svg", *parts, class_=kind, **size, role="img", aria_label=about) if parts else Markup("")


_SQUARED = 256  # hosts in a heat map
_NAMED, _WRITTEN = 40, 10  # hosts up to which a heat map has their names, and values in its squares
_SHADES = 5  # classes h0 to h4 of page.css


def draw_heat_map(hosts: Sequence[str], links: Sequence[LinkSpeed], figure: str) -> Markup:
    """A square per pair of hosts: ``latency`` or ``rate``, its value in it while they are few. Darker is worse."""
    values: dict[tuple[str, str], float] = {}
    for link in links:
        if value := link.latency if figure == "latency" else link.rate:
            values[link.first, link.second] = values[link.second, link.first] = value
    if not values:
        return Markup("")
    least, most = min(values.values()), max(values.values())
    hosts = hosts[:_SQUARED]
    count = len(hosts)
    cell, left = (18, 84) if count <= _NAMED else (8, 4)
    if count <= _WRITTEN:
        cell = 46
    top = left if count > _WRITTEN else 18
    parts: list[Markup] = []
    for row, first in enumerate(hosts):
        middle = row * cell + cell / 2 + 4
        if count <= _NAMED:
            parts.append(make_tag("text", escape(first)[-12:], x=left - 4, y=top + middle, class_="label end"))
        if count <= _WRITTEN:
            parts.append(make_tag("text", escape(first)[-7:], x=left + middle - 4, y=top - 5, class_="label middle"))
        elif count <= _NAMED:
            turn = f"rotate(-90 {left + middle:g} {top - 4})"
            x, y = left + middle, top - 4
            parts.append(make_tag("text", escape(first)[-12:], x=x, y=y, class_="label", transform=turn))
        for column, second in enumerate(hosts):
            x, y = left + column * cell, top + row * cell
            value = values.get((first, second))
            size = {"x": x, "y": y, "width": cell - 1, "height": cell - 1}
            if value is None:
                parts.append(make_tag("rect", **size, class_="none"))
                continue
            share = 0.0
            if most > least:
                share = (value - least if figure == "latency" else most - value) / (most - least)
            shade = min(int(share * _SHADES), _SHADES - 1)
            number, unit = (value * 1e6, "µs") if figure == "latency" else (value * 8 / 1e9, "Gbit/s")
            text = f"{format_value(float(f'{number:.3g}'))} {unit}"
            title = make_tag("title", f"{first} and {second}: {text}")
            parts.append(make_tag("rect", title, **size, class_=f"h{shade}"))
            if count <= _WRITTEN:
                place = {"x": x + cell / 2, "y": y + cell / 2 + 4}
                parts.append(make_tag("text", text.partition(" ")[0], **place, class_=f"on-h{shade} middle"))
    about = f"{'latency' if figure == 'latency' else 'bandwidth'} between {pluralize(count, 'host')}"
    return _make_drawing("heat", left + cell * count + 2, top + cell * count + 2, about, parts)
