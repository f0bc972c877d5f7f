"""Other people's frameworks on two hosts at the first try, unchanged, over Gloo and over impi, with the numbers that
plain torchrun gives on the same hosts; and what is said where their ranks train alone."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.environments import KeptEnvironment
from tests.e2e.workspace import RANKS, Workspace, find_orphans

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

SCRIPT = RANKS / "framework.py"
VENV = "/root/frameworks/env"
KEPT = KeptEnvironment("frameworks", VENV)
TORCH = "2.13.0"  # whose CPU build is a tenth of the default index's
PACKAGES = ("transformers", "accelerate", "lightning", "trl", "datasets")
WAYS = {"gloo": ("--backend", "gloo"), "impi": ("--backend-override",)}


@pytest.fixture(scope="module")
def both(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The frameworks and every backend on node0 and node1, with mpi4py, which Lightning prefers to its own ways."""
    house = os.environ.get("PIP_FIND_LINKS", "")
    if not list(Path(house or os.devnull).glob(f"torch-{TORCH}+cpu-*.whl")):
        pytest.skip("the CPU build of torch is not in a directory that PIP_FIND_LINKS names")
    workspace = Workspace(hosts, tmp_path_factory.mktemp("frameworks"))
    settings = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_"))}
    settings["XDG_CACHE_HOME"] = str(Path.home() / ".cache")
    words = ["install", "--torch", TORCH, "--track", "native", "--backend", "impi", "--venv", VENV, "--json"]
    words += ["--limit", "node0,node1", *(f"--with={name}" for name in PACKAGES), "--wheels-from", "controller"]
    KEPT.put_on_hosts(hosts, ("node0", "node1"))
    with hosts.uplink() as uplink:
        result = workspace(*words, timeout=900, **settings, **uplink.env)
    assert result.code == 0, result
    KEPT.keep(hosts, "node0")
    return hosts


def run(workspace: Workspace, name: str, *words: str) -> dict[int, str]:
    """What each rank came to, of a run that ended well."""
    words = ("run", "--venv", VENV, "--limit", "node0,node1", "--ppn", "1", *words)
    result = workspace(*words, SCRIPT, name, timeout=600)
    assert result.code == 0, result
    assert not find_orphans(workspace.cluster)
    return {rank: read_outcome(workspace.written(rank).decode(), rank) for rank in range(2)}


def read_outcome(text: str, rank: int) -> str:
    actual = re.search(rf"^rank {rank}: (world \d+, \S+)$", text, re.MULTILINE)
    assert actual, text
    return actual[1]


@pytest.fixture(scope="module")
def run_plainly(both: Cluster) -> Callable[[str], dict[int, str]]:
    """Runs a framework by torchrun, once."""
    return cache(partial(start_torchrun, both))


def start_torchrun(cluster: Cluster, name: str) -> dict[int, str]:
    """The same by torchrun on each of the hosts, told of processors as its users do."""
    shell = (
        "export PATH={venv}/bin:/usr/bin:/bin HOME=/root GLOO_SOCKET_IFNAME=eth0 ACCELERATE_USE_CPU=true"
        " OMP_NUM_THREADS=2; exec torchrun --nnodes 2 --nproc-per-node 1 --node-rank {rank} --master-addr {head}"
        " --master-port 29511 /root/framework.py {name}"
    )
    started = []
    for rank, host in enumerate(("node0", "node1")):
        cluster.write(host, "/root/framework.py", SCRIPT.read_bytes())
        line = shell.format(venv=VENV, rank=rank, head=cluster.address("node0"), name=name)
        words = [*cluster.entrance(host), "sh", "-c", line]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    texts = [process.communicate(timeout=600)[0] for process in started]
    return {rank: read_outcome(text, rank) for rank, text in enumerate(texts)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["trainer", "sft", "lightning", "fsdp2"])
def test_a_framework_trains_on_both_hosts_to_what_plain_torchrun_gives(
    workspace: Workspace, run_plainly: Callable[[str], dict[int, str]], name: str, way: str
) -> None:
    outcome = run(workspace, name, *WAYS[way])
    assert {text.partition(",")[0] for text in outcome.values()} == {"world 2"}
    assert outcome == run_plainly(name), "two ranks: the same sums"
    assert separate(workspace) is None


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["shipped", "mpi"])
def test_accelerates_own_tests_and_a_script_of_mpi4py_meet(workspace: Workspace, name: str, way: str) -> None:
    outcome = run(workspace, name, *WAYS[way])
    assert {text.partition(",")[0] for text in outcome.values()} == {"world 2"}
    assert separate(workspace) is None


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize(
    ("name", "words", "cause"),
    [
        ("trainer", ("--env", "ACCELERATE_USE_CPU=false"), "ACCELERATE_USE_CPU"),
        ("alone", (), "num_nodes"),
        ("bare", (), "PartialState"),
    ],
)
def test_ranks_that_train_alone_are_reported_with_the_cause(
    workspace: Workspace, name: str, words: tuple[str, ...], cause: str
) -> None:
    outcome = run(workspace, name, *words)
    assert {text.partition(",")[0] for text in outcome.values()} == {"world 1"}
    actual = separate(workspace)
    assert (actual["code"], actual["worlds"]) == ("never-met", {"1": 2})
    assert cause in actual["causes"][0]


def separate(workspace: Workspace) -> Any:
    return workspace.report()["run"].get("separate")
