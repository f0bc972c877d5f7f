"""The impi backend on three separate hosts, with real torch and Intel MPI: installed and used by one option each."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.environments import KeptEnvironment
from tests.e2e.workspace import ROOT, CommandResult, Workspace, find_orphans

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

EXAMPLE = ROOT / "examples/train_ddp.py"
VENV = "/root/impi/env"
KEPT = KeptEnvironment("impi", VENV)
TORCH = "2.13.0"  # whose CPU build is a tenth of the default index's


@pytest.fixture(scope="module")
def impi(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> CommandResult:
    """Stock torch with impi on each host, by ``ipexctl install --backend impi``, once."""
    house = os.environ.get("PIP_FIND_LINKS", "")
    if not list(Path(house or os.devnull).glob(f"torch-{TORCH}+cpu-*.whl")):
        pytest.skip("the CPU build of torch is not in a directory that PIP_FIND_LINKS names")
    workspace = Workspace(hosts, tmp_path_factory.mktemp("impi"))
    settings = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_"))}
    settings["XDG_CACHE_HOME"] = str(Path.home() / ".cache")
    words = ("install", "--torch", TORCH, "--track", "native", "--backend", "impi", "--venv", VENV, "--json")
    KEPT.put_on_hosts(hosts, hosts.names)
    with hosts.uplink() as uplink:
        result = workspace(*words, "--wheels-from", "controller", timeout=600, **settings, **uplink.env)
    if result.code == 0:
        KEPT.keep(hosts, "node0")
    return result


def train(workspace: Workspace, *words: str, backend: tuple[str, ...] = ()) -> list[float]:
    """The losses that the ranks of the example tell, in rank order."""
    result = workspace.succeed(
        "run", "--venv", VENV, "--ppn", "1", *words, EXAMPLE, *backend, "--dtype", "fp32", timeout=300
    )
    assert "0 processes left on 3 hosts" in result.out
    written = [workspace.written(rank).decode() for rank in range(3)]
    assert all(f"rank {rank} of 3 on node{rank}: torch {TORCH}" in text for rank, text in enumerate(written))
    losses = [float(loss) for text in written for loss in re.findall(r"step \d+ loss ([\d.]+)", text)]
    assert len(losses) == 3 * 7, written
    return losses


def test_install_puts_impi_on_every_host_and_says_so(impi: CommandResult, hosts: Cluster) -> None:
    assert impi.code == 0, impi
    assert impi.answer["stack"]["backend"] == "impi"
    assert "backend impi" in impi.answer["plan"]
    for host in hosts.names:
        marker = json.loads(hosts.exec(host, ["cat", f"{VENV}/ipexctl.json"]).stdout)
        assert marker["packages"]["impi-torch"]


def test_the_example_trains_over_impi_as_over_gloo(impi: CommandResult, workspace: Workspace) -> None:
    assert impi.code == 0, impi
    gloo = train(workspace, "--backend", "gloo")
    ours = train(workspace, "--backend", "impi")
    assert "float32, 2 threads, impi" in workspace.written(0).decode()
    # Three ranks: MPI and Gloo add in another order, so the last of four digits may differ.
    assert ours == pytest.approx(gloo, abs=2e-3)
    assert ours[6] < 0.6 * ours[0]
    assert not find_orphans(workspace.cluster)
