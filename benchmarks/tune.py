"""How well `ipexctl tune` finds the best launch: studies of a script whose pace is a known function of the launch.

The clock is simulated, all else is the product's own: the study proposes, drops, measures the default in turn and
confirms, with as much time as a share of trying every launch once. The machine's speed drifts by a wave of ±10 % and a
slope of −10 %, and the figures are ±10 % off: each step by itself, or (harder) the launch as a whole.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ground import arguments, conditions, read_load
from tables import Cell, Measurement, Table, publish

from ipexctl.decide.tune.study import Study
from ipexctl.model.events import CandidateTried, Event, StudyStarted, Value, Values

# What each value makes of the pace. The first one is the default's.
EFFECTS: Mapping[str, Mapping[Value | None, float]] = {
    "ppn": {None: 1.0, 1: 0.78, 4: 1.13, 8: 0.95},
    "threads": {None: 1.0, 14: 0.85},
    "allocator": {None: 1.0, "jemalloc": 1.05, "default": 0.86},
    "omp": {None: 1.0, "gnu": 0.93},
    "membind": {None: 1.0, True: 1.07},
    "hugepages": {None: 1.0, True: 1.04},
    "backend": {None: 1.0, "gloo": 0.90},
    "compile": {None: 1.0, True: 1.22},
}
TOGETHER = (  # what two values make of it beside their own effects
    (("ppn", 8), ("membind", True), 0.90),
    (("ppn", 4), ("hugepages", True), 1.03),
    (("compile", True), ("allocator", "jemalloc"), 0.95),
)
PACE, START, STEPS = (
    2.0,
    8.0,
    20,
)  # steps a second of the default, seconds before the first step, steps of a measurement
NOISE, WAVE, SLOPE, PERIOD = 0.10, 0.10, 0.10, 900.0
CLOSE = 0.97  # of the best launch's pace


def compute_pace(values: Values) -> float:
    """Steps a second of a launch on a machine that does not change."""
    pace = PACE
    for name, effects in EFFECTS.items():
        pace *= effects[values.get(name)]
    for (one, value), (other, second), factor in TOGETHER:
        pace *= factor if values.get(one) == value and values.get(other) == second else 1.0
    return pace


def list_launches() -> list[Values]:
    names = list(EFFECTS)
    made = itertools.product(*(EFFECTS[name] for name in names))
    return [{name: value for name, value in zip(names, each, strict=True) if value is not None} for each in made]


@dataclass
class Machine:
    """A simulated cluster: its clock, and figures that are not exact."""

    seed: int
    budget: float
    whole: bool  # noise is of the launch, not of each step
    now: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.phase = self.random.uniform(0, 2 * math.pi)

    def measure(self, values: Values) -> Iterator[tuple[int, float]]:
        """Steps of a launch, and the pace so far, as the clock goes on."""
        self.now += START
        whole, begun = self.random.uniform(1 - NOISE, 1 + NOISE), self.now
        for step in range(1, STEPS + 1):
            noise = whole if self.whole else self.random.uniform(1 - NOISE, 1 + NOISE)
            wave = WAVE * math.sin(self.phase + 2 * math.pi * self.now / PERIOD)
            self.now += 1 / (compute_pace(values) * noise * (1 + wave - SLOPE * self.now / self.budget))
            yield step, step / (self.now - begun)


class SimulatedStudy(Study):
    """A study with as much time as ``budget``."""

    def __init__(self, seed: int, budget: float, whole: bool) -> None:
        self.machine = Machine(seed, budget, whole)
        knobs = {name: tuple(value for value in effects if value is not None) for name, effects in EFFECTS.items()}
        started = StudyStarted(knobs, {}, "", False, budget, seed, STEPS)
        super().__init__(started)

    def identify(self, values: Values) -> str:
        return repr(sorted(values.items()))

    def watch(self) -> float:
        return self.machine.now

    def measure(self, values: Values) -> Generator[Event, None, CandidateTried]:
        machine, begun, step, pace = self.machine, self.machine.now, 0, 0.0
        outcome: Literal["measured", "dropped"] = "measured"
        for step, pace in machine.measure(values):
            if step % (STEPS // 4) == 0 and self.is_out(values, {"pace": pace}, machine.now, step):
                outcome = "dropped"
                break
        yield from ()
        at, seconds = (begun + machine.now) / 2, machine.now - begun
        return CandidateTried(values, outcome, at, seconds, {"pace": pace})


def run_study(seed: int, budget: float, whole: bool) -> tuple[Study, float]:
    """A study to its end, and the seconds of the simulated clock that it took."""
    study = SimulatedStudy(seed, budget, whole)
    for _ in study.run():
        pass
    return study, study.machine.now


def find_best(study: Study) -> Values:
    return study.best.values if study.best else {}


def main() -> None:
    parser = arguments(__doc__ or "", hosts=0)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1000, help="the limits were not chosen on these seeds")
    parser.add_argument("--share", type=float, default=0.15, help="of the time for every launch once")
    given = parser.parse_args()
    machine, load = conditions(), read_load()
    launches = list_launches()
    best = max(map(compute_pace, launches))
    exhaustive = sum(START + STEPS / compute_pace(values) for values in launches)
    rows: list[list[Cell]] = []
    for name, whole in (("each step ±10 %", False), ("each launch ±10 %", True)):
        seeds = range(given.first, given.first + given.seeds)
        studies = [run_study(seed, given.share * exhaustive, whole) for seed in seeds]
        found = [compute_pace(find_best(study)) / best for study, _ in studies]
        close = sum(pace >= CLOSE for pace in found)
        slower = sum(study.judge().recommended and compute_pace(find_best(study)) <= PACE for study, _ in studies)
        times = max(seconds for _, seconds in studies) / exhaustive
        tried = statistics.median(len({repr(each.values) for each in study.tried}) for study, _ in studies)
        told = sum(study.judge().recommended for study, _ in studies)
        rows.append([name, close, min(found), statistics.median(found), told, slower, 100 * times, tried])
    heads = ["noise", "within 3 % of the best", "worst ÷ best", "median ÷ best", "recommended", "slower than default"]
    heads += ["most time, % of exhaustive", "launches tried"]
    digits = {"worst ÷ best": 3, "median ÷ best": 3, "launches tried": 0, "recommended": 0, "slower than default": 0}
    hours = f"{exhaustive / 3600:.1f} h for each once"
    subject = f"{len(launches)} launches, the best {best / PACE:.2f} times the default, {hours}"
    table = Table(heads, rows, "", {"within 3 % of the best": 0, **digits})
    publish(
        Measurement("tune", f"{subject}; {given.seeds} seeds from {given.first} on", machine, [table], [load]), given
    )


if __name__ == "__main__":
    main()
