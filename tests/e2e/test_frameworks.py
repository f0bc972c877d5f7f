"""Other people's frameworks on two and three hosts at the first try, unchanged, over Gloo and over impi, with the
numbers that plain torchrun or mpirun gives on the same hosts; and what is said where their ranks train alone."""

import hashlib
import re
import subprocess
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.conftest import FRAMEWORKS as VENV
from tests.e2e.workspace import RANKS, Workspace, find_orphans, trusted
from tests.hub import Hub

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

SCRIPT = RANKS / "framework.py"
LONGER = pytest.mark.beyond_core
WAYS = {"gloo": ("--backend", "gloo"), "impi": ("--backend-override",)}


def run(workspace: Workspace, size: int, name: str, *words: str) -> list[str]:
    """What each rank came to, of a run that ended well with a rank on each of so many hosts."""
    words = ("run", "--venv", VENV, "--limit", f"node[0-{size - 1}]", "--ppn", "1", *words)
    workspace.succeed(*words, SCRIPT, name, timeout=600)
    assert not find_orphans(workspace.cluster)
    return [read_outcome(workspace.written(rank).decode(), rank) for rank in range(size)]


def read_outcome(text: str, rank: int) -> str:
    actual = re.search(rf"rank {rank}: (world \d+, [\d.]+)", text)  # plain mpirun joins lines
    assert actual, text
    return actual[1]


@pytest.fixture(scope="module")
def run_plainly(frameworks: Cluster) -> Callable[[int, str], list[str]]:
    """Runs a script without us, once."""
    return cache(partial(start_plainly, frameworks))


def start_plainly(cluster: Cluster, size: int, name: str) -> list[str]:
    """The same by torchrun on each host, told of processors as its users do; mpi4py's by mpirun on the first one."""
    hosts = cluster.names[:size]
    given = "GLOO_SOCKET_IFNAME=eth0 ACCELERATE_USE_CPU=true OMP_NUM_THREADS=2"
    lines = [
        f"torchrun --nnodes {size} --nproc-per-node 1 --node-rank {rank} --master-addr {cluster.address('node0')}"
        f" --master-port 29511 /root/framework.py {name}"
        for rank in range(size)
    ]
    if name == "mpi":
        addresses = ",".join(map(cluster.address, hosts))
        lines = [f"mpiexec.hydra -hosts {addresses} -ppn 1 -n {size} python /root/framework.py mpi"]
    for host in hosts:
        cluster.write(host, "/root/framework.py", SCRIPT.read_bytes())
    started = []
    with trusted(cluster):
        for host, line in zip(hosts, lines, strict=False):
            shell = f"export PATH={VENV}/bin:/usr/bin:/bin HOME=/root {given}; exec {line}"
            words = [*cluster.entrance(host), "sh", "-c", shell]
            started.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        text = "".join(process.communicate(timeout=600)[0] for process in started)
    return [read_outcome(text, rank) for rank in range(size)]


@pytest.mark.parametrize(
    ("size", "way"),
    [(2, "impi"), *(pytest.param(*each, marks=LONGER) for each in ((2, "gloo"), (3, "gloo"), (3, "impi")))],
)
@pytest.mark.parametrize(
    "name",
    [
        *("trainer", "sft", "lightning", "fsdp2", "parallel", "mpi", "shipped"),
        *(pytest.param(name, marks=LONGER) for name in ("lora", "embed")),  # test_sft.py has these
    ],
)
def test_a_framework_trains_on_all_hosts_to_what_it_gives_without_us(
    workspace: Workspace, run_plainly: Callable[[int, str], list[str]], name: str, size: int, way: str
) -> None:
    outcome, plain = run(workspace, size, name, *WAYS[way]), run_plainly(size, name)
    assert {text.partition(",")[0] for text in outcome} == {f"world {size}"}
    assert separate(workspace) is None
    if size == 2:
        assert outcome == plain, "two ranks: the same sums"
    for ours, theirs in zip(outcome, plain, strict=True):  # MPI and Gloo add three in another order
        assert float(ours.split()[-1]) == pytest.approx(float(theirs.split()[-1]), rel=1e-4)


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("way", [pytest.param("gloo", marks=LONGER), "impi"])
@pytest.mark.parametrize(
    ("name", "words", "cause"),
    [
        pytest.param("trainer", ("--env", "ACCELERATE_USE_CPU=false"), "ACCELERATE_USE_CPU", marks=LONGER),
        ("alone", (), "num_nodes"),
        pytest.param("bare", (), "PartialState", marks=LONGER),
    ],
)
def test_ranks_that_train_alone_are_reported_with_the_cause(
    workspace: Workspace, name: str, words: tuple[str, ...], cause: str, way: str
) -> None:
    outcome = run(workspace, 2, name, *WAYS[way], *words)
    assert {text.partition(",")[0] for text in outcome} == {"world 1"}
    actual = separate(workspace)
    assert (actual["code"], actual["worlds"]) == ("never-met", {"1": 2})
    assert cause in actual["causes"][0]


def separate(workspace: Workspace) -> Any:
    return workspace.report()["run"].get("separate")


def test_a_model_of_a_hub_is_loaded_where_no_rank_reaches_it(frameworks: Cluster, workspace: Workspace) -> None:
    script, words = RANKS / "hub.py", ("run", "--venv", VENV, "--ppn", "1", "--limit")
    assert workspace(*words, "node0", script, "make", "/root/tiny").code == 0
    made = frameworks.path("node0", "/root/tiny")
    files = {path.name: path.read_bytes() for path in made.iterdir()}
    hub = Hub("org/tiny", {"c" * 40: files}, {"main": "c" * 40})
    with hub.serve(frameworks.inside()):
        for source in ("hf:org/tiny@main", "hf:datasets/org/tiny"):
            workspace.succeed("sync", source, "--limit", "node[0-1]", HF_ENDPOINT=hub.url)
    workspace.succeed(*words, "node[0-1]", script, "load", "org/tiny")
    outcomes = [workspace.written(rank).decode().partition(": ")[2] for rank in range(2)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].split()[1] == hashlib.sha256(files["config.json"]).hexdigest()[:8]
