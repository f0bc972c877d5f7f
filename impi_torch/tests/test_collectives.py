"""Every collective, dtype, shape and reduce operation, against references calculated locally (ranks/collectives.py)."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Run

SHORT_CUTS: dict[str, Any] = {
    "IMPI_TORCH_PIECE": 4096,
    "IMPI_TORCH_MESSAGE": 5000,
    "IMPI_TORCH_LISTS": 64,
    "IMPI_TORCH_NARROW": 64,
    "IMPI_TORCH_WINDOW": 3,
}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_collectives_are_right_on_one_host(run: Run, ranks: int) -> None:
    run("collectives", ranks=ranks).ok()


def test_collectives_are_right_when_everything_goes_in_small_pieces(run: Run) -> None:
    run("collectives", ranks=3, **SHORT_CUTS).ok()


@pytest.mark.parametrize(("ranks", "per_host"), [(2, 1), (4, 2), (8, 2)])
def test_collectives_are_right_across_hosts(across: Run, ranks: int, per_host: int) -> None:
    across("collectives", ranks=ranks, per_host=per_host).ok()


@pytest.mark.parametrize("ranks", [2, 5])
def test_groups_and_point_to_point_are_right_on_one_host(run: Run, ranks: int) -> None:
    run("groups", ranks=ranks).ok()


def test_point_to_point_is_right_in_many_messages(run: Run) -> None:
    run("groups", ranks=2, **SHORT_CUTS).ok()


def test_groups_and_point_to_point_are_right_across_hosts(across: Run) -> None:
    across("groups", ranks=4, per_host=1).ok()


def test_operations_are_recorded_while_a_profiler_wants_it(run: Run) -> None:
    run("recording", ranks=2).ok()


@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_are_understood_and_seen_as_gloos_are(run: Run, ranks: int) -> None:
    run("calls", ranks=ranks).ok()


def test_compiled_code_calls_collectives(run: Run) -> None:
    run("compiled", ranks=2).ok()
