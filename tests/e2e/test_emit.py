"""What ``--emit`` writes, started without ipexctl on three separate hosts: the same ranks, with the same words."""

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, RANKS, ROOT, Workspace, find_place, trusted
from tests.mpi import SYSTEM

ODD = ("two words", "$(touch pwned)", "it's", "")
WORDS = RANKS / "words.py"
EXAMPLE = ROOT / "examples/train_ddp.py"
SRUN = """\
#!/bin/sh
# What the script asks Slurm for, here: one process a line of the hostfile, told its number, all on this host.
while [ "${1#--}" != "$1" ]; do shift; done
n=0
while read -r host; do
    SLURM_PROCID=$n SLURM_NODENAME=$host "$@" &
    n=$((n + 1))
done <"$SLURM_HOSTFILE"
wait
"""


@pytest.fixture
def trusting(hosts: Cluster) -> Iterator[Cluster]:
    with trusted(hosts):
        yield hosts


def emitted(workspace: Workspace, form: str, *words: str | Path) -> bytes:
    result = workspace.succeed("run", "--emit", form, *words)
    return result.out.encode()


def carried(workspace: Workspace, script: Path) -> None:
    workspace.succeed("sync", script)


def started(cluster: Cluster, host: str, text: bytes, *words: str, timeout: float = 120.0) -> str:
    cluster.write(host, "/root/launch.sh", text)
    done = cluster.exec(host, ["sh", "/root/launch.sh", *words], timeout=timeout)
    assert done.returncode == 0, done
    return str(done.stdout)


def all_spoke(output: str, size: int) -> None:
    for rank in range(size):
        assert f"rank {rank} of {size} argv {list(ODD)}" in output, output


@pytest.mark.parametrize("mpi", ["auto", "openmpi"])
def test_sh_starts_the_ranks_with_mpirun_from_the_first_host(workspace: Workspace, trusting: Cluster, mpi: str) -> None:
    if mpi in SYSTEM and not shutil.which(SYSTEM[mpi]):
        pytest.skip(f"{SYSTEM[mpi]} is not installed on this machine")
    carried(workspace, WORDS)
    text = emitted(workspace, "sh", "--venv", LIGHT, "--mpi", mpi, "--ppn", "2", WORDS, *ODD)
    all_spoke(started(trusting, "node0", text), 6)
    assert not [host for host in trusting.names if trusting.path(host, f"{find_place(WORDS)}/pwned").exists()]


def test_sbatch_is_a_script_whose_ranks_srun_numbers(workspace: Workspace, hosts: Cluster) -> None:
    carried(workspace, WORDS)
    text = emitted(workspace, "sbatch", "--venv", LIGHT, "--ppn", "2", WORDS, *ODD)
    assert re.findall(rb"^#SBATCH --(nodes|ntasks|nodelist)=(.*)$", text, re.M) == [
        (b"nodes", b"3"),
        (b"ntasks", b"6"),
        (b"nodelist", b"node0,node1,node2"),
    ]
    hosts.write("node0", "/usr/local/bin/srun", SRUN.encode(), 0o755)
    try:
        all_spoke(started(hosts, "node0", text), 6)
    finally:
        hosts.path("node0", "/usr/local/bin/srun").unlink()


@pytest.mark.stack
@pytest.mark.timeout(1200)
def test_torchrun_on_every_host_trains_together(recipes: str, hosts: Cluster, workspace: Workspace) -> None:
    carried(workspace, EXAMPLE)
    text = emitted(
        workspace,
        "torchrun",
        "--limit",
        "node[0-1]",
        "--venv",
        recipes,
        "--ppn",
        "1",
        "--port",
        "29511",
        EXAMPLE,
        "--steps",
        "10",
    )

    def begin(number: int) -> str:
        return started(hosts, f"node{number}", text, str(number), timeout=300)

    with ThreadPoolExecutor(2) as pool:
        output = list(pool.map(begin, range(2)))
    for rank in range(2):
        assert f"rank {rank} of 2 on node{rank}: torch 2.8.0" in output[rank]
