"""What only ranks on separate hosts prove of their output. Starts, failures and ends: test_road.py, test_drills.py,
tests/faults, tests/integration/test_attempt.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, LIGHT, RANKS, Workspace

RUN = ("run", "--venv", LIGHT)
LEDGER = "/root/ledger"


@pytest.mark.parametrize("engine", ["impi", "mpich", "openmpi"])
def test_a_rank_that_knows_the_runs_nonce_still_speaks_for_itself_alone(
    workspace: Workspace, hosts: Cluster, engine: str
) -> None:
    if engine != "impi" and not shutil.which(f"mpirun.{engine}"):
        pytest.skip(f"mpirun.{engine} is not installed on this machine")
    result = workspace(*RUN, *(("--mpi", engine) if engine != "impi" else ()), "--ppn", "1", ACTOR, "forge", LEDGER)
    assert result.code == 0, result
    for rank, host in enumerate(hosts.names):
        assert workspace.written(rank) == hosts.read(host, f"{LEDGER}/{rank}.out") != b""


def test_a_run_whose_loss_is_no_number_says_so_at_once_and_ends_on_request(workspace: Workspace) -> None:
    result = workspace(*RUN, "--ppn", "1", "--stop-on-nan", RANKS / "loses.py", timeout=60)
    assert result.code == 6, result
    assert "warning: loss is NaN on rank" in result.err
    assert "! loss is NaN on all 3 ranks since step 30 (2.21 at step 29)" in result.out
    assert "the run was stopped" in result.out
    assert "0 processes left on 3 hosts" in result.out
    lost = workspace.report()["run"]["lost_loss"]
    assert (lost["ranks"], lost["step"], lost["last_step"]) == ([0, 1, 2], 30, 29)
    page = (workspace.records[-1] / "report.html").read_text()
    assert "loss is NaN on all 3 ranks since step 30" in page


def test_an_interpreter_error_before_the_script_begins_is_the_ranks_own_failure(
    workspace: Workspace, tmp_path: Path
) -> None:
    script = tmp_path / "job/broken.py"
    script.parent.mkdir()
    script.write_text("def f(:\n")
    result = workspace(*RUN, script)
    assert result.code == 5, result
    assert "SyntaxError" in result.out
