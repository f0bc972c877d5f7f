"""The table of ``bench``: samples a second of a host and of the cluster, how steady they were, bars."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from ipexctl.model.answers.bench import BENCH_MODES, BenchAnswer, BenchResult
from ipexctl.show.phrases import draw_bar
from ipexctl.show.typeset import AtWidth, Line, text, whole

WIDTH = 100  # cells: what a table in a file or a message may have
_NAME, _BAR = 18, 24  # cells of the longest name, of the longest bar
_STEADY = 1.2  # times the fastest host may be faster than the slowest without being named


def format_answer(value: BenchAnswer) -> list[RenderableType]:
    return [AtWidth(_draw_table, value)] if value.title else whole(value.text)


def _draw_table(width: int, value: BenchAnswer) -> Iterator[RenderableType]:
    for line in format_rows(value.rows, value.title, value.notes, min(width, WIDTH)):
        yield Line(text(line), 2)


def format_rows(results: Sequence[BenchResult], title: str, notes: Sequence[str] = (), width: int = WIDTH) -> list[str]:
    """The lines of the table: ``×`` is against stock torch in fp32. Where ``width`` is too narrow, bars give way first,
    then the cluster; notes and reasons are longer than that and may be broken between words."""
    several = any(len(row.hosts) > 1 for row in results)
    cluster = several and width >= 54
    lines = [title]
    for mode in dict.fromkeys(row.mode for row in results):
        mine = [row for row in results if row.mode == mode]
        most = max((row.host or 0.0 for row in mine), default=0.0)
        base = next((row.host for row in mine if (row.engine, row.how, row.dtype) == ("stock", "eager", "fp32")), None)
        cells = ["a host" if several else "samples/s", "±", *(["cluster"] if cluster else []), "× fp32"]
        lines += ["", _join_cells(BENCH_MODES[mode], cells)]
        for row in mine:
            if row.host is None:
                lines.append(f"{row.name:<{_NAME}}  {f'no result: {row.refused}' if row.refused else row.why or ''}")
                continue
            cells = [_format_rate(row.host), _format_spread(row)]
            cells += [("-" if row.cluster is None else _format_rate(row.cluster))] if cluster else []
            line = _join_cells(row.name, [*cells, _format_ratio(row.host / base) if base else "-"])
            bar = draw_bar(row.host, most, _BAR)
            lines.append(f"{line}  {bar}" if len(line) + 2 + _BAR <= width else line)
            if several:
                slow, fast = min(row.hosts, key=row.hosts.__getitem__), max(row.hosts, key=row.hosts.__getitem__)
                if row.hosts[fast] > _STEADY * row.hosts[slow]:
                    low, high = _format_rate(row.hosts[slow]), _format_rate(row.hosts[fast])
                    lines.append(f"  slowest {slow} {low}, fastest {fast} {high}")
    return [*lines, "", *notes] if notes else lines


def _join_cells(name: str, cells: Sequence[str]) -> str:
    widths = (8, 6, 8, 7) if len(cells) == 4 else (8, 5, 6)
    return f"{name:<{_NAME}}" + "".join(f" {cell:>{room}}" for cell, room in zip(cells, widths, strict=True))


def _format_rate(rate: float) -> str:
    return f"{rate:.1f}" if rate < 1000 else f"{rate:.0f}"


def _format_ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.1g}"


def _format_spread(row: BenchResult) -> str:
    """Half of what lies between the quarters of the least steady host, as a share of its median."""
    return f"{50 * max(row.spread.values()):.0f} %" if row.spread else "?"
