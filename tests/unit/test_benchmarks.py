"""The page of the benchmarks: targets are judged by what was measured, notes stay, and every listed script starts.

Nothing is measured here: two recorded measurements stand for scripts.
"""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # its scripts import each other by name

from run_all import Script, read_scripts, write_pages  # noqa: E402
from tables import Measurement, Table, read_measurement  # noqa: E402
from targets import Target, judge, read_targets  # noqa: E402

PUSH = Measurement(
    "push",
    "4 hosts, medians of 3 interleaved rounds",
    "2026-11-20 18:22, 2 cores",
    [
        Table(["tool", "wall s"], [["ipexctl sync", 2.6], ["rsync", 2.0], ["scp", "(ended with status 1)"]], "cold"),
        Table(["tool", "wall s"], [["ipexctl sync", 0.5], ["rsync", 0.5]], "unchanged"),
    ],
    (1.25, 3.5),
    "2026-11-20",
)
SYNC = Target("push", "push ÷ rsync", ["ipexctl sync"], "wall s", "issue 21", "cold", ["rsync"], most=1.2, unit="×")


def change(target: Target, **fields: Any) -> Target:
    return dataclasses.replace(target, **fields)


def test_a_ratio_above_its_limit_misses_the_target_and_one_at_it_meets_it() -> None:
    missed, met = judge(SYNC, PUSH), judge(change(SYNC, table="unchanged", most=1.0), PUSH)
    assert (missed.value, missed.word, missed.date) == (2.6 / 2.0, "missed", "2026-11-20")
    assert (met.value, met.word) == (1.0, "met")


def test_a_measurement_is_read_as_it_was_written() -> None:
    table = Table(["tool", "s"], [["a", 1.23456], ["b", math.nan]], digits={"s": 1})
    measurement = Measurement("x", "y", "z", [table], [0.5])
    text = measurement.build_json()
    assert "NaN" not in text
    assert read_measurement(text).build_json() == text
    assert read_measurement(text).build_markdown() == measurement.build_markdown()
    assert "| a | 1.2 |\n| b | – |" in measurement.build_markdown()
    with pytest.raises(ValueError, match="format"):
        read_measurement(text.replace('"format": 1', '"format": 2'))


def test_the_page_has_tables_verdicts_plots_and_notes_and_sections_that_were_not_measured(tmp_path: Path) -> None:
    scripts = [Script("push", "Pushing files", (), ()), Script("launch", "Launching", (), ())]
    results, notes = tmp_path / "results", tmp_path / "notes"
    for folder in (results, notes):
        folder.mkdir()
    (results / "push.json").write_text(PUSH.build_json())
    (notes / "push.md").write_text("A note by hand.\n")
    for _ in range(2):  # a second time from the same files, nothing changes
        write_pages(scripts, tmp_path, notes, [SYNC])
        page = (tmp_path / "RESULTS.md").read_text()
        assert "| push ÷ rsync | ≤ 1.2 × | 1.30 × | **missed** | 2026-11-20 | issue 21 |" in page
        assert "## Pushing files (`push.py`)\n\n![Pushing files" in page
        assert "load before each round: 1.2 3.5." in page
        assert "| ipexctl sync | 2.60 |\n| rsync | 2.00 |\n| scp | (ended with status 1) |" in page
        assert page.count("A note by hand.") == 1
        assert "## Launching (`launch.py`)\n\nNot measured yet." in page
        assert [path.name for path in (tmp_path / "plots").iterdir()] == ["push.svg"]


def test_the_page_in_the_tree_is_made_of_the_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(BENCHMARKS / "results")
    write_pages(read_scripts(), tmp_path)
    assert (tmp_path / "RESULTS.md").read_text("utf-8") == (BENCHMARKS / "RESULTS.md").read_text("utf-8")
    for plot in (tmp_path / "plots").iterdir():
        assert plot.read_text("utf-8") == (BENCHMARKS / "plots" / plot.name).read_text("utf-8")


def test_each_target_names_a_number_that_its_script_has_measured() -> None:
    files = {script.name: BENCHMARKS / "results" / f"{script.name}.json" for script in read_scripts()}
    recorded = {name: read_measurement(file.read_text("utf-8")) for name, file in files.items() if file.exists()}
    targets = [target for target in read_targets() if target.script in recorded]
    assert {target.script for target in read_targets()} <= files.keys()
    assert len(targets) > 10
    assert [target.what for target in targets if judge(target, recorded[target.script]).value is None] == []


@pytest.mark.parametrize("script", [script.name for script in read_scripts()])
def test_each_listed_script_prints_its_help_and_takes_its_arguments(script: str) -> None:
    [entry] = [entry for entry in read_scripts() if entry.name == script]
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    options = {word for word in (*entry.arguments, *entry.quick, "--json", "--rounds") if word.startswith("--")}
    assert [option for option in sorted(options) if option not in text] == []


def paced(pace: float, **settings: str) -> dict[str, Any]:
    """An answer of paced.py."""
    answer = {"samples_per_second": pace, "by_quick_steps": pace, "cpu_ms_per_step": 1.0, "threads": 2, "cores": [0, 1]}
    return answer | {"settings": settings}
