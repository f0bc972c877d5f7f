"""What ``bench`` makes of the lines that its ranks wrote: rows, and which of them are no result."""

from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType

from ipexctl.decide.launch.placement import find_usable_cores
from ipexctl.model.answers.bench import BenchResult
from ipexctl.model.facts import Facts
from ipexctl.model.json_values import JsonObject, Record
from ipexctl.model.text import pluralize

NO_IPEX = "not measured: no IPEX in this environment"
LEAST_STEPS = 5  # fewer have no middle half
MOST_APART = 5.0  # times that hosts of equal processors may differ: clock, memory, temperature, some other work
MOST_GAIN = 1.5  # times that hosts together may be faster than each alone: the model is the same, they only communicate


class PeakTable(Record):
    """``data/peaks.toml``: instruction set level → operations of one core in a clock cycle, at most."""

    source: str
    fp32: Mapping[str, float]
    bf16: Mapping[str, float]


def build_rows(
    modes: Sequence[str],
    ways: Sequence[tuple[str, str]],
    alone: Sequence[tuple[str, JsonObject]],
    together: Sequence[tuple[str, JsonObject]],
    missing: Mapping[str, str],
    peaks: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> tuple[BenchResult, ...]:
    """Returns a row for each form of ``ways`` (engine, how), measured or not. ``alone`` and ``together`` are (host,
    line); ``missing`` says of an engine why it was not measured. The inference of a cluster is the sum of its hosts'.
    ``peaks`` are those of `compute_peaks`: hosts that are further apart than these allow are no result."""
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
        why = missing.get(engine, "" if hosts else "not measured")
        if reasons and engine not in missing:
            why = f"not measured: {reasons[0]}"
        spread = {host: wide for host, line in mine if host in hosts and (wide := _read_spread(line)) is not None}
        steps = min((_read_steps(line) for host, line in mine if host in hosts), default=0)
        refused = _find_refusal(hosts, whole, steps, peaks.get(dtype, {})) if hosts else None
        made.append(BenchResult(mode, engine, how, dtype, hosts, whole, why or None, spread, steps, refused))
    return tuple(made)


def _find_refusal(
    hosts: Mapping[str, float], cluster: float | None, repetitions: int, peaks: Mapping[str, float]
) -> str | None:
    if repetitions < LEAST_STEPS:
        return f"{pluralize(repetitions, 'step')} measured, {LEAST_STEPS} are the least"
    slow, fast = min(hosts, key=hosts.__getitem__), max(hosts, key=hosts.__getitem__)
    times, most = hosts[fast] / hosts[slow], MOST_APART
    if slow in peaks and fast in peaks:
        most *= max(peaks[fast] / peaks[slow], 1.0)
    if times > most:
        apart = f"{slow} {hosts[slow]:.3g} and {fast} {hosts[fast]:.3g} are {times:,.0f} times apart"
        return f"{apart}, by their processors {most:,.0f} at most: other work ran on {slow}, or it was stopped"
    alone = sum(hosts.values())
    if cluster is not None and cluster > MOST_GAIN * alone:
        return f"all hosts together {cluster:.3g}, the sum of each alone {alone:.3g}: they were disturbed alone"
    return None


def compute_peaks(facts: Mapping[str, Facts], table: PeakTable) -> dict[str, dict[str, float]]:
    """Per dtype, operations that a host can do in a clock cycle at most: its cores times those of one (``peaks.toml``).
    Hosts whose level or cores are not known are left out."""
    return {
        dtype: {
            host: cores * levels[level]
            for host, fact in facts.items()
            if (level := fact.isa_level or "") in levels and (cores := len(find_usable_cores(fact).cpus))
        }
        for dtype, levels in (("fp32", table.fp32), ("bf16", table.bf16))
    }


def _get_row_key(line: JsonObject) -> tuple[object, ...]:
    return line.get("mode"), line.get("engine"), line.get("how"), line.get("dtype")


def _read_rate(line: JsonObject) -> float | None:
    rate = line.get("samples_per_s")
    if isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0:
        return float(rate)
    return None


def _read_spread(line: JsonObject) -> float | None:
    """Returns how far apart the middle half of the steps is, as a share of their median."""
    median, quartiles = line.get("median_s"), line.get("quartiles_s")
    if not isinstance(median, int | float) or not isinstance(quartiles, list) or len(quartiles) != 2 or median <= 0:
        return None
    low, high = quartiles
    known = isinstance(low, int | float) and isinstance(high, int | float)
    return max(high - low, 0.0) / median if known else None


def _read_steps(line: JsonObject) -> int:
    steps = line.get("measured")
    return steps if isinstance(steps, int) else 0
