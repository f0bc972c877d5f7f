"""Bars, last lines and lines without an end (case H8)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import Desk
from tests.faults.checks import expect
from tests.faults.test_h_output import PLAYER, RUN, Start, ledger, measure


@pytest.mark.fault("H8")
def test_h8_a_bar_and_a_last_line_without_an_end(controller: Desk, mpi: Cluster) -> None:
    told = controller(*RUN, PLAYER, "bar")
    expect(told, 0)
    for rank in range(3):
        assert f"{rank}│step 59 of 59\n" in told.out
        assert f"{rank}│no newline at the end\n" in told.out
        assert controller.written(rank) == ledger(mpi, rank)
    assert told.out.count("step ") < 30, "only its latest states"


@pytest.mark.fault("H8")
def test_h8_a_line_of_a_hundred_megabytes(start: Start, controller: Desk, mpi: Cluster) -> None:
    going = start(*RUN, PLAYER, "endless", "100")
    code, memory = measure(going)
    assert code == 0, going.said.err
    assert memory < 500 << 20
    assert controller.written(0) == ledger(mpi, 0)
    with going.files[0].open() as shown:
        pieces = [line for line in shown if line.startswith("0│")]
    assert max(map(len, pieces)) <= (64 << 10) + 10
    assert len(pieces) > 1000
    marked = [one.endswith("…\n") or two.startswith("0│…") for one, two in pairwise(pieces)]
    assert all(marked), [(n, pieces[n][-40:], pieces[n + 1][:40]) for n, one in enumerate(marked) if not one]
