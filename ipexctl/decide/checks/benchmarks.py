"""Findings from the measured speed of hosts: those that the others would wait for."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from ipexctl.decide.checks.cluster import CheckHit
from ipexctl.model.answers.doctor import HostSpeed, SpeedCheck

SLOW_DEFICIT = 0.15  # a deficit of this share is reported: repeated measurements of equal hosts stay within 5 to 10 %
SLOW_LINK = 0.3  # the same between hosts, where measurements vary more
FIGURES = {"fp32": "fp32 matrix products", "bf16": "bf16 matrix products", "memory": "memory bandwidth"}


def merge_best_figures(first: HostSpeed, second: HostSpeed) -> HostSpeed:
    """Of a host that was measured twice: the better of each figure, and the larger spread."""
    both = (first, second)
    rates = {name: [rate for speed in both if (rate := getattr(speed, name)) is not None] for name in FIGURES}
    best: Any = {name: max(measured, default=None) for name, measured in rates.items()}
    spread = {name: max(speed.spread.get(name, 0.0) for speed in both) for name in FIGURES}
    return replace(second, **best, spread=spread)


def judge_speeds(check: SpeedCheck) -> Iterator[CheckHit]:
    """Hosts and links that are slower than the others, and hosts that were not measured."""
    speeds = {speed.host: speed for speed in check.hosts}
    for figure, what in FIGURES.items():
        unit, name = (1e9, "GB/s") if figure == "memory" else (1, "Gflop/s")
        for method in sorted({speed.method for speed in check.hosts}):
            of_method = {host: getattr(speed, figure) for host, speed in speeds.items() if speed.method == method}
            values = {host: value for host, value in of_method.items() if value is not None}
            for host, less, value, usual in _find_slow_hosts(values, SLOW_DEFICIT):
                # A figure that varies between turns means other load: only larger deficits are reported.
                if less >= max(SLOW_DEFICIT, 1.5 * speeds[host].spread.get(figure, 0.0)):
                    evidence = f"{value / unit:.0f} of {usual / unit:.0f} {name}"
                    yield CheckHit("SPD001", host, {"less": _format_deficit(less), "what": what}, evidence)
    best: dict[str, float] = {}
    for line in check.pairs:
        for host in (line.first, line.second) if line.rate is not None else ():
            best[host] = max(best.get(host, 0.0), line.rate or 0.0)
    for host, less, value, usual in _find_slow_hosts(best, SLOW_LINK):
        evidence = f"{value / 1e6:.0f} of {usual / 1e6:.0f} MB/s, its best pair (TCP)"
        yield CheckHit("SPD002", host, {"less": _format_deficit(less)}, evidence)
    for host, why in [(speed.host, speed.why) for speed in check.hosts if speed.why] + [*check.missed.items()]:
        yield CheckHit("SPD003", host, {}, why)


def _format_deficit(share: float) -> str:
    return f"−{100 * share:.0f} %"


def _find_slow_hosts(values: Mapping[str, float], share: float) -> Iterator[tuple[str, float, float, float]]:
    """Host, by how much it is behind, its value and that of the others (the median; of two hosts, the faster one)."""
    if len(values) < 2:
        return
    usual = median(values.values()) if len(values) > 2 else max(values.values())
    for host, value in values.items():
        if usual and value < (1 - share) * usual:
            yield host, 1 - value / usual, value, usual
