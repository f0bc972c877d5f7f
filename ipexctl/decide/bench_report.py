"""What ``bench`` makes of the lines that its ranks wrote: rows, a table with bars, and how they compare."""

from collections.abc import Mapping, Sequence
from itertools import product

from ipexctl.model.answers import BenchResult
from ipexctl.model.json_values import JsonObject

MODES: Mapping[str, str] = {"train": "training", "infer": "inference"}
NO_IPEX = "not measured: no IPEX in this environment"
_BAR = 24  # cells of the longest bar


def build_rows(
    modes: Sequence[str],
    ways: Sequence[tuple[str, str]],
    alone: Sequence[tuple[str, JsonObject]],
    together: Sequence[tuple[str, JsonObject]],
    missing: Mapping[str, str],
) -> tuple[BenchResult, ...]:
    """A row for each form of ``ways`` (engine, how), measured or not. ``alone`` and ``together`` are (host, line);
    ``missing`` says of an engine why it was not measured. The inference of a cluster is the sum of its hosts'."""
    made: list[BenchResult] = []
    for mode, (engine, how), dtype in product(modes, ways, ("fp32", "bf16")):
        key = (mode, engine, how, dtype)
        mine = [(host, line) for host, line in alone if _get_row_key(line) == key]
        all_of = [line for _, line in together if _get_row_key(line) == key]
        hosts = {host: rate for host, line in mine if (rate := _read_rate(line)) is not None}
        whole = next((rate for line in all_of if (rate := _read_rate(line)) is not None), None)
        if mode == "infer" and len(hosts) > 1:
            whole = sum(hosts.values())
        reasons = [str(line["why"]) for line in [*(line for _, line in mine), *all_of] if line.get("why")]
        why = missing.get(engine) or (f"not measured: {reasons[0]}" if reasons else "" if hosts else "not measured")
        made.append(BenchResult(mode, engine, how, dtype, hosts, whole, why or None))
    return tuple(made)


def format_rows(results: Sequence[BenchResult], title: str, notes: Sequence[str] = ()) -> str:
    """The table for people: samples a second of a host and of the cluster, against stock torch in fp32."""
    several = any(len(row.hosts) > 1 for row in results)
    lines = [title]
    for mode in dict.fromkeys(row.mode for row in results):
        mine = [row for row in results if row.mode == mode]
        most = max((row.host or 0.0 for row in mine), default=0.0)
        base = next((row.host for row in mine if (row.engine, row.how, row.dtype) == ("stock", "eager", "fp32")), None)
        first, second = ("a host", "cluster") if several else ("samples/s", "")
        head = f"{MODES[mode]:<20}{first:>10}{second:>10}{'× fp32':>8}"
        lines += ["", head.rstrip()]
        for row in mine:
            if row.host is None:
                lines.append(f"{row.name:<20}{row.why or '':>10}")
                continue
            cluster = ("-" if row.cluster is None else f"{row.cluster:.1f}") if several else ""
            times = f"{row.host / base:.2f}" if base else "-"
            lines.append(f"{row.name:<20}{row.host:>10.1f}{cluster:>10}{times:>8}  {_draw_bar(row.host, most)}")
            if several:
                slow, fast = min(row.hosts, key=row.hosts.__getitem__), max(row.hosts, key=row.hosts.__getitem__)
                if row.hosts[fast] > 1.2 * row.hosts[slow]:
                    lines.append(
                        f"{'':<20}  slowest {slow} {row.hosts[slow]:.1f}, fastest {fast} {row.hosts[fast]:.1f}"
                    )
    return "\n".join([*lines, "", *notes]).rstrip()


def _draw_bar(value: float, most: float) -> str:
    eighths = round(8 * _BAR * value / most) if most else 0
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _get_row_key(line: JsonObject) -> tuple[object, ...]:
    return line.get("mode"), line.get("engine"), line.get("how"), line.get("dtype")


def _read_rate(line: JsonObject) -> float | None:
    rate = line.get("samples_per_s")
    return float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0 else None
