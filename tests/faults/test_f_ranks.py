"""Ranks that fail, die or outlast the others (cases F3, F4 and F12)."""

from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.groups import memory
from tests.e2e.workspace import LIGHT, QUICK, RANKS, Start, Started, Workspace
from tests.faults.checks import LEDGERS
from tests.stock import over

ON = ("--limit", "node[0-2]")
PLAYER = Path(__file__).parent / "ranks/player.py"


def outcomes(controller: Workspace) -> dict[int, dict[str, Any]]:
    return {row["rank"]: row for row in controller.report()["run"]["ranks"]}


@pytest.mark.fault("F3")
@over("impi")
def test_f3_a_rank_runs_out_of_memory(controller: Workspace, mpi: Cluster, group: tuple[str, ...]) -> None:
    with memory(mpi, "node1", 1 << 30):
        result = controller("run", *group, *ON, RANKS / "eater.py", "1")
    assert result.code == 5, result
    assert "rank 1 on node1 was killed (out of memory: " in result.out
    assert "of 1.0 GiB of its control group" in result.out


@pytest.mark.fault("F4")
@pytest.mark.parametrize(("codes", "failed"), [((1, 2), {0, 1}), ((64, 128), {0, 1}), ((0, 7), {1})])
@over("gloo")
def test_f4_ranks_fail_together_with_different_codes(
    controller: Workspace, mpi: Cluster, group: tuple[str, ...], codes: tuple[int, int], failed: set[int]
) -> None:
    for _ in range(10):  # on a busy machine the second is asked to end before it is gone: torch's memory is freed first
        mpi.exec("node0", ["sh", "-c", f"rm -f {LEDGERS}/ready*"])
        result = controller("run", *group, *ON, "--ppn", "2", "--grace", "2", PLAYER, "pair", *map(str, codes))
        assert result.code == 5, result
        rows = outcomes(controller)
        if {rank for rank, row in rows.items() if row["state"] == "failed"} == failed:
            break
    assert {rank for rank, row in rows.items() if row["state"] == "failed"} == failed, rows
    assert [rows[rank]["status"] for rank in (0, 1)] == list(codes)
    first = min(failed, key=lambda rank: (rows[rank]["at"], rank))
    assert f"rank {first} on node0 exited with code {codes[first]}" in result.out
    if len(failed) == 2:
        assert f"failed too: rank {1 - first} on node0" in result.out


@pytest.mark.fault("F12")
def test_f12_ranks_that_outlast_the_others_and_end_by_themselves_are_no_failure(start: Start, mpi: Cluster) -> None:
    """Without a group: those of MPI wait for each other in MPI_Finalize."""
    command: Started = start("run", "--venv", LIGHT, *ON, "--straggler-warn", "1", PLAYER, "last", **QUICK)
    result = command.until("2 of 3 ranks done for 1 s, still running: rank 2 on node2")
    mpi.write("node2", "/root/ledger/go", b"")
    result = command.end()
    assert result.code == 0, result
