"""The real rows, one after the other: installed on two separate hosts, checked, and trained a few steps with Intel MPI,
in bf16 wherever the row can on this machine's CPU.

About 7 GB a row and host, and the network. Wheels stay in `SHARED_CACHE`, but where room is short only those that other
tests need too; all else goes with the hosts: an environment that was kept would prove nothing of the install.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.environments import SHARED_CACHE, room_is_short
from tests.e2e.trained import IPEX_IN_BF16
from tests.e2e.workspace import ROOT, Workspace

pytestmark = [pytest.mark.stack, pytest.mark.timeout(3600), pytest.mark.usefixtures("unpacks")]

EXAMPLE = ROOT / "examples/train_ddp.py"
ROWS = {  # what is asked for, and whose Intel MPI then starts the ranks
    "2.8.0": (("--torch", "2.8.0", "--backend", "gloo"), "ipex 2.8.0", "impi-rt"),
    "2.7.0": (("--torch", "2.7.0", "--backend", "gloo"), "ipex 2.7.0", "ipex"),
    "2.6.0": (("--torch", "2.6.0", "--backend", "gloo"), "ipex 2.6.0", "ipex"),
    "2.13.0": (("--torch", "2.13.0", "--track", "native"), "ipex none", "impi-rt"),
    "2.13.0 mpich": (("--torch", "2.13.0", "--track", "native", "--mpi", "mpich"), "ipex none", "mpich"),
    # Without Intel MPI: the hosts' own Open MPI, with Intel's OpenMP out of its wheel.
    "2.13.0 own": (
        ("--torch", "2.13.0", "--track", "native", "--mpi", "/usr/bin/mpirun.openmpi", "--omp", "intel"),
        "ipex none",
        "system",
    ),
}

# The oldest row with IPEX, the newest one, and one with an MPI of the hosts; test_plain_words.py installs 2.8.0.
CORE = ("2.6.0", "2.13.0", "2.13.0 own")


@pytest.fixture
def cache(row: str) -> Iterator[str]:
    """XDG_CACHE_HOME of the row's install."""
    torch = ROWS[row][0][1]
    if torch == "2.8.0":
        yield SHARED_CACHE
        return
    path = f"{SHARED_CACHE}/{torch}"
    yield path
    if room_is_short():
        shutil.rmtree(path, ignore_errors=True)  # of a row that was skipped there is none


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=[] if row in CORE else pytest.mark.beyond_core) for row in ROWS]
)
def test_a_row_is_installed_for_real_and_trains_on_two_hosts(
    row: str, cache: str, make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    words, ipex, mpi = ROWS[row]
    torch = words[1]
    if mpi == "system" and not shutil.which("mpirun.openmpi"):
        pytest.skip("Open MPI is not installed on this machine")
    cluster = make_cluster("node0", "node1")
    workspace = Workspace(cluster, tmp_path / "desk")
    settings = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_"))}
    workspace.env |= {**settings, "XDG_CACHE_HOME": cache}
    with cluster.uplink() as uplink:
        # Wheels are fetched once, here; in the cache they stay for the next time.
        result = workspace("install", *words, "--wheels-from", "controller", "--json", timeout=3000, **uplink.env)
    assert result.code == 0, result
    assert result.answer["changed"] == ["node0", "node1"]
    dtype = "bfloat16" if ipex == "ipex none" or IPEX_IN_BF16 else "float32"
    for host in result.answer["hosts"]:
        assert (host["problems"], host["dtype"]) == ([], dtype)
    marker = json.loads(cluster.exec("node1", ["cat", f"{result.answer['venv']}/ipexctl.json"]).stdout)
    assert marker["layout"]["mpi"] == mpi
    script = (EXAMPLE, "--dtype", "bf16" if dtype == "bfloat16" else "fp32", "--steps", "5")
    workspace.succeed("run", "--ppn", "1", *script, timeout=900)
    if mpi == "system":
        assert "Open MPI" in marker["stack"]["name"]
        assert "impi-rt" not in marker["packages"]
        plan = workspace("run", "--dry-run", "--ppn", "1", EXAMPLE).out
        assert "libiomp5.so" in plan
        assert marker["stack"]["mpi"]["program"] in plan
    for rank in range(2):
        output = workspace.written(rank).decode()
        assert f"rank {rank} of 2 on node{rank}: torch {torch}, {ipex}" in output
        assert f", {dtype}, " in output
    workspace.succeed("uninstall", "--json", timeout=300)
