"""Figures in printed lines: the forms that training scripts print, lines that hold none, and lines made to be slow."""

import json
import math

import pytest

from ipexctl.decide.run.figures import LIMIT, NAMES, read_figures
from tests.tables import read_table

LINES: dict[str, dict[str, float]] = dict(read_table("figures/lines"))


@pytest.mark.parametrize("line", LINES)
def test_figures_of_a_line(line: str) -> None:
    assert read_figures(line) == pytest.approx(LINES[line])
    assert list(read_figures(line)) == list(read_figures(line + "\n"))


@pytest.mark.parametrize("line", read_table("figures/lines_without_figures"))
def test_lines_without_figures(line: str) -> None:
    assert read_figures(line) == {}


def test_a_loss_may_be_no_number() -> None:
    assert math.isnan(read_figures("step 7 loss: nan")["loss"])
    assert math.isnan(read_figures("{'loss': nan, 'epoch': 1}")["loss"])
    assert read_figures("loss=inf")["loss"] == math.inf
    assert read_figures("loss=-inf")["loss"] == -math.inf


@pytest.mark.parametrize(
    "line",
    [
        *(
            f"::metric name={name} value={value}"
            for name in ("step", "steps", "pace", "epoch")
            for value in ("nan", "inf", "-1")
        ),
        "loss: 1 at 1e-320 s/it",
    ],
)
def test_where_a_run_is_and_how_fast_are_numbers(line: str) -> None:
    """A step that was none ended the command that watched the run."""
    assert {*read_figures(line)} <= {"loss"}
    assert math.isnan(read_figures("::metric name=val/f1 value=nan step=inf")["val/f1"])


def test_keys_are_of_a_fixed_set() -> None:
    assert {key for figures in LINES.values() for key in figures} - NAMES.keys() == {"val/f1", "gflops", "f1"}


@pytest.mark.parametrize(
    "piece",
    [
        "step ", "1", "1,111", "loss=", "[[", "loss" + " " * 39, "1/1 [", "1/2 [00:00<", "it [", "a b ", "1e", ".",
        "-1.", "epoch 0[", "::metric ", "tensor(",
    ],
)  # fmt: skip
def test_hostile_lines_take_no_longer_than_their_length(piece: str) -> None:
    """A pattern that repeats a repetition would take hours here; what is longer than `LIMIT` is not looked at."""
    for line in (piece * 200_000, "loss " + piece * 200_000, "::metric " + piece * 200_000):
        assert isinstance(json.dumps(read_figures(line)), str)
    assert read_figures(" " * LIMIT + "loss 1") == {}
