"""M: other people's code on the backends and launchers that users have: ranks that cannot start MPI, or are signalled
at a good end. How ranks fail and abort (M1, M2) is tests/e2e/test_ends.py and test_engines.py; that they never meet
(M5), test_meeting.py beside them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import RANKS, Workspace
from tests.faults.checks import Checks
from tests.stock import remove_mpichs_files

ENDS = RANKS / "ends.py"


@pytest.fixture(autouse=True)
def _hydras_own(checks: Checks, hosts: Cluster) -> Iterator[None]:
    yield
    remove_mpichs_files(hosts)


@pytest.mark.fault("M3")
def test_m3_why_an_mpi_cannot_start_is_in_the_log(controller: Workspace, stock: str, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    script = tmp_path / "project/sum.py"
    script.write_text("from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(1))\n")
    result = controller("run", "--venv", stock, "--limit", "node0,node1", "--env", "FI_PROVIDER=verbs", script)
    assert result.code == 5, result
    first = controller.report()["run"]["first"]
    assert b"fi_getinfo() failed" in controller.written(first, "err")
    assert controller.report()["run"]["diagnosis"], controller.report()["run"]


@pytest.mark.fault("M4")
def test_m4_a_launcher_that_signals_spoils_no_good_end(controller: Workspace, stock: str, mpich: str) -> None:
    """Hydra sends SIGUSR1 to all ranks where one of them ends without MPI_Finalize."""
    words = ("run", "--venv", stock, "--limit", "node0,node1", "--ppn", "2", "--mpi", mpich, "--backend", "gloo")
    controller.succeed(*words, ENDS, "mpi4py", "well")
    assert [rank["state"] for rank in controller.report()["run"]["ranks"]] == ["ok"] * 4
