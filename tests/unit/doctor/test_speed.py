"""Who is slow, and who is not; what a program on a host measures; how it looks."""

import json
import subprocess
import sys
from dataclasses import replace

from rich.console import Console, RenderableType

from ipexctl.act.sessions import load_session_program
from ipexctl.decide.checks.benchmarks import judge_speeds, merge_best_figures
from ipexctl.model.answers.doctor import HostSpeed, LinkSpeed, SpeedCheck
from ipexctl.show.answers import doctor

GB = 1e9


def race(*memory: float, **more: object) -> SpeedCheck:
    speeds = [HostSpeed(f"n{n}", 8, "2.8.0", 2000.0, 9000.0, value * GB, "triad") for n, value in enumerate(memory)]
    return SpeedCheck(tuple(speeds), **more)  # type: ignore[arg-type]


def shown(items: list[RenderableType]) -> str:
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        for item in items:
            console.print(item)
    return captured.get()


def hits(one: SpeedCheck) -> list[tuple[str, str, object]]:
    return [(hit.code, hit.host, hit.values.get("less")) for hit in judge_speeds(one)]


def test_a_straggler_is_named_with_how_much_it_is_behind_the_median() -> None:
    (hit,) = judge_speeds(race(200, 198, 205, 156))
    assert (hit.code, hit.host) == ("SPD001", "n3")
    assert hit.values == {"less": "−22 %", "what": "memory bandwidth"}
    assert hit.evidence == "156 of 199 GB/s"


def test_of_two_hosts_the_slower_one_is_named() -> None:
    assert hits(race(200, 100)) == [("SPD001", "n1", "−50 %")]


def test_hosts_that_differ_as_measurements_do_are_not_named() -> None:
    assert hits(race(200, 180, 205, 190)) == []
    assert hits(race(200)) == []


def test_a_figure_that_changed_from_turn_to_turn_blames_nobody_for_as_much() -> None:
    def noisy(spread: float) -> SpeedCheck:
        slow = replace(race(150).hosts[0], host="n9", spread={"memory": spread})
        return SpeedCheck((*race(200, 200, 200).hosts, slow))

    assert hits(noisy(0.02)) == [("SPD001", "n9", "−25 %")]
    assert hits(noisy(0.3)) == []  # 25 % behind, and its own turns differ by 30


def test_of_two_measurements_of_a_host_the_better_figures_count() -> None:
    first = HostSpeed("n0", 8, "2.8.0", 1000.0, None, 90 * GB, "triad", spread={"fp32": 0.3})
    second = HostSpeed("n0", 8, "2.8.0", 900.0, 5000.0, 100 * GB, "triad", spread={"fp32": 0.1, "memory": 0.2})
    best = merge_best_figures(first, second)
    assert (best.fp32, best.bf16, best.memory) == (1000.0, 5000.0, 100 * GB)
    assert best.spread == {"fp32": 0.3, "bf16": 0.0, "memory": 0.2}


def test_only_what_was_measured_in_the_same_way_is_compared() -> None:
    copied = HostSpeed("n9", 8, None, None, None, 20 * GB, "copy", "no environment there: no matrix products")
    mixed = SpeedCheck((*race(200, 200, 200).hosts, copied))
    assert hits(mixed) == [("SPD003", "n9", None)]


def test_a_host_whose_every_pair_is_slow_is_named_and_its_partners_are_not() -> None:
    rates = {("n0", "n1"): 1000, ("n1", "n2"): 300, ("n2", "n3"): 290, ("n3", "n0"): 1000}
    lines = tuple(LinkSpeed(first, second, 1e-5, rate * 1e6) for (first, second), rate in rates.items())
    (hit,) = judge_speeds(race(200, 200, 200, 200, pairs=lines))
    assert (hit.code, hit.host, hit.values["less"]) == ("SPD002", "n2", "−70 %")


def test_the_program_measures_memory_without_torch_and_leaves_nothing() -> None:
    program = load_session_program("bench")
    argv = [sys.executable, "-I", "-S", "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(
            json.dumps({"do": "compute", "seconds": 0.05}) + "\n" + json.dumps({"do": "nonsense"}) + "\n"
        )
        process.stdin.flush()
        ready, answer, refused = (json.loads(process.stdout.readline()) for _ in range(3))
    assert process.returncode == 0
    assert refused["code"] == "internal"
    assert ready == {"kind": "Ready"}
    assert answer["answer"]["method"] == "copy"
    assert answer["answer"]["memory"] > 1e8
    assert answer["answer"]["torch"] is None


def test_the_longest_bar_is_the_fastest_hosts() -> None:
    screen = shown(doctor.format_speed(race(200, 100)))
    first, second = (line for line in screen.splitlines() if line.startswith("n"))
    assert "████████" in first
    assert "████ " in second
    assert "memory GB/s" in screen
    assert "fp32 Tflop/s" in screen


def test_of_many_hosts_the_slowest_and_the_median_are_shown() -> None:
    screen = shown(doctor.format_speed(race(*[200.0] * 60, 120.0)))
    assert "n60" in screen
    assert "median" in screen
    assert len(screen.splitlines()) < 14
