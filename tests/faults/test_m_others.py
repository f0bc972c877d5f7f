"""M: other people's code on the backends and launchers that users have: ranks that fail, abort, cannot start MPI, are
signalled at a good end, or never meet. The whole table of ends is tests/e2e/test_ends.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.test_ends import check_end
from tests.e2e.workspace import RANKS, Workspace
from tests.faults.checks import Checks
from tests.stock import put_mpich_on_hosts, put_stock_on_hosts

ENDS = RANKS / "ends.py"


@pytest.fixture(scope="package")
def stock(hosts: Cluster) -> str:
    """Plain PyTorch with impi, Gloo and mpi4py on the hosts."""
    return put_stock_on_hosts(hosts)


@pytest.fixture(scope="package")
def mpich(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """MPICH 5 on the hosts: what ``--mpi`` is given."""
    return put_mpich_on_hosts(hosts, tmp_path_factory.mktemp("mpi"))


@pytest.fixture(autouse=True)
def _hydras_own(checks: Checks, hosts: Cluster) -> Iterator[None]:
    """Hydra 5.0.2 leaves its description of a host's cores in /tmp now and then, also after a good end without us."""
    yield
    for host in hosts.names:
        hosts.exec(host, ["sh", "-c", "rm -f /tmp/hydra_hwloc_xmlfile_*"])


@pytest.fixture(params=["impi", "gloo", "mpich"])
def run(request: pytest.FixtureRequest, stock: str) -> tuple[str, ...]:
    """``ipexctl run`` of two ranks on each of two hosts over a backend, or over impi with MPICH 5."""
    words = ("run", "--venv", stock, "--limit", "node0,node1", "--ppn", "2")
    if request.param == "mpich":
        return (*words, "--backend", "impi", "--mpi", request.getfixturevalue("mpich"))
    return (*words, "--backend", request.param)


def get_backend(run: tuple[str, ...]) -> str:
    return run[run.index("--backend") + 1]


@pytest.mark.fault("M1")
def test_m1_an_exception_is_the_cause_with_its_rank_host_line_and_output(
    controller: Workspace, run: tuple[str, ...]
) -> None:
    result = controller(*run, ENDS, get_backend(run), "one")
    assert result.code == 5, result
    check_end(controller, "one")
    assert "rank 1 on node0" in result.out
    assert "KeyError: 'record 1'" in result.out
    assert 'ends.py", line' in result.out


@pytest.mark.fault("M2")
@pytest.mark.parametrize("module", [False, True])
def test_m2_who_called_mpi_abort_is_named_with_the_code(controller: Workspace, stock: str, module: bool) -> None:
    words = ("run", "--venv", stock, "--limit", "node0,node1", "--ppn", "2")
    result = controller(*words, ENDS, "mpi4py", "one" if module else "abort")
    assert result.code == 5, result
    check_end(controller, "one" if module else "abort")
    assert module or "rank 1 on node0 called MPI_Abort(7)" in result.out


@pytest.mark.fault("M3")
def test_m3_an_mpi_that_cannot_start_says_why_in_the_ranks_log(
    controller: Workspace, stock: str, tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    script = tmp_path / "project/sum.py"
    script.write_text("from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(1))\n")
    result = controller("run", "--venv", stock, "--limit", "node0,node1", "--env", "FI_PROVIDER=verbs", script)
    assert result.code == 5, result
    first = controller.report()["run"]["first"]
    assert b"fi_getinfo() failed" in controller.written(first, "err")
    assert controller.report()["run"]["diagnosis"], controller.report()["run"]


@pytest.mark.fault("M4")
def test_m4_a_launcher_that_signals_its_children_spoils_no_good_end(
    controller: Workspace, stock: str, mpich: str
) -> None:
    """Hydra sends SIGUSR1 to all ranks where one of them ends without MPI_Finalize."""
    words = ("run", "--venv", stock, "--limit", "node0,node1", "--ppn", "2", "--mpi", mpich, "--backend", "gloo")
    result = controller(*words, ENDS, "mpi4py", "well")
    assert result.code == 0, result
    assert [rank["state"] for rank in controller.report()["run"]["ranks"]] == ["ok"] * 4


@pytest.mark.fault("M5")
def test_m5_ranks_that_never_met_are_reported_first(controller: Workspace, stock: str, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    script = tmp_path / "project/alone.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 1)\nadam = torch.optim.Adam(model.parameters())\n"
        "for step in range(5):\n    model(torch.ones(2, 4)).sum().backward()\n    adam.step()\n"
    )
    words = ("run", "--venv", stock, "--limit", "node0,node1", "--ppn", "1")
    result = controller(*words, "--env", "TORCHINDUCTOR_CACHE_DIR=/root/.cache/inductor", script)
    assert result.code == 0, result
    separate = controller.report()["run"]["separate"]
    assert (separate["code"], separate["worlds"]) == ("never-met", {"1": 2})
    assert result.out.index(separate["text"]) < result.out.index("✓")
