"""What ``--emit`` writes, started without ipexctl on three separate hosts: the same ranks, with the same words."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.cluster import Cluster
from tests.e2e.desk import LIGHT, RANKS, ROOT, Desk
from tests.e2e.test_engines import SYSTEM

ODD = ("two words", "$(touch pwned)", "it's", "")
WORDS = RANKS / "words.py"
ACCELERATED = RANKS / "accelerated.py"
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
    """node0 may log in to all hosts by their addresses, itself too: what these launches need and ipexctl does not."""
    lines = [f"{hosts.address(host)} {hosts.host_key(host)}\n" for host in hosts.names]
    files = {"id_ed25519": hosts.key.read_bytes(), "known_hosts": "".join(lines).encode()}
    for name, data in files.items():
        hosts.write("node0", f"/root/.ssh/{name}", data, 0o600)
    yield hosts
    for name in files:
        hosts.path("node0", f"/root/.ssh/{name}").unlink()


def emitted(desk: Desk, form: str, *words: str | Path) -> bytes:
    told = desk("run", "--emit", form, *words)
    assert told.code == 0, told
    return told.out.encode()


def carried(desk: Desk, script: Path) -> None:
    told = desk("sync", script)
    assert told.code == 0, told


def started(cluster: Cluster, host: str, text: bytes, *words: str, timeout: float = 120.0) -> str:
    cluster.write(host, "/root/launch.sh", text)
    done = cluster.exec(host, ["sh", "/root/launch.sh", *words], timeout=timeout)
    assert done.returncode == 0, done
    return str(done.stdout)


def all_spoke(said: str, size: int) -> None:
    for rank in range(size):
        assert f"rank {rank} of {size} argv {list(ODD)}" in said, said


@pytest.mark.parametrize("mpi", ["auto", *SYSTEM])
def test_sh_starts_the_ranks_with_mpirun_from_the_first_host(desk: Desk, trusting: Cluster, mpi: str) -> None:
    if mpi in SYSTEM and not shutil.which(SYSTEM[mpi]):
        pytest.skip(f"{SYSTEM[mpi]} is not installed on this machine")
    carried(desk, WORDS)
    text = emitted(desk, "sh", "--venv", LIGHT, "--mpi", mpi, "--ppn", "2", WORDS, *ODD)
    all_spoke(started(trusting, "node0", text), 6)
    assert not [host for host in trusting.names if trusting.path(host, "/root/ipexctl/ranks/pwned").exists()]


def test_sbatch_is_a_script_whose_ranks_srun_numbers(desk: Desk, hosts: Cluster) -> None:
    carried(desk, WORDS)
    text = emitted(desk, "sbatch", "--venv", LIGHT, "--ppn", "2", WORDS, *ODD)
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
def test_torchrun_is_started_on_every_host_and_they_train_together(recipes: str, hosts: Cluster, desk: Desk) -> None:
    carried(desk, EXAMPLE)
    text = emitted(desk, "torchrun", "--venv", recipes, "--ppn", "1", "--port", "29511", EXAMPLE, "--steps", "10")

    def begin(number: int) -> str:
        return started(hosts, f"node{number}", text, str(number), timeout=300)

    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(begin, range(3)))
    for rank in range(3):
        assert f"rank {rank} of 3 on node{rank}: torch 2.8.0" in said[rank]


@pytest.fixture
def pods(hosts: Cluster) -> Iterator[None]:
    """Names that pods find each other by, as the services of a cluster give them: here in /etc/hosts."""
    before = {host: hosts.path(host, "/etc/hosts").read_bytes() for host in hosts.names}
    known = "".join(f"{hosts.address(f'node{n}')} node{n} train-ddp-worker-{n}\n" for n in range(3)).encode()
    for host in hosts.names:
        hosts.write(host, "/etc/hosts", known)
    yield
    for host, text in before.items():
        hosts.write(host, "/etc/hosts", text)


@pytest.mark.stack
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("pods")
def test_a_job_for_kubernetes_trains_with_the_variables_that_its_operator_sets(
    recipes: str, hosts: Cluster, desk: Desk
) -> None:
    """Kubernetes itself is not here: each host is a pod, and gets what the training operator gives one."""
    carried(desk, EXAMPLE)
    job = yaml.safe_load(emitted(desk, "pytorchjob", "--venv", recipes, "--ppn", "1", EXAMPLE, "--steps", "10"))
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    assert worker["replicas"] == 3
    env = {one["name"]: one["value"].replace("$$(", "$(") for one in container["env"]}
    elastic = job["spec"]["elasticPolicy"]
    env |= {  # pkg/controller.v1/pytorch/elastic.go
        "PATH": f"{recipes}/bin:/usr/bin:/bin",
        "PET_RDZV_ENDPOINT": f"{job['metadata']['name']}-worker-0:{container['ports'][0]['containerPort']}",
        "PET_RDZV_BACKEND": elastic["rdzvBackend"],
        "PET_NNODES": f"{elastic['minReplicas']}:{elastic['maxReplicas']}",
        "PET_MAX_RESTARTS": str(elastic["maxRestarts"]),
    }
    words = [word.replace("$$(", "$(") for word in container["command"]]

    def pod(number: int) -> str:
        inside = ["sh", "-c", 'cd /root/ipexctl/examples && exec "$@"', "pod", "env"]
        inside += [f"{name}={value}" for name, value in env.items()]
        done = hosts.exec(f"node{number}", [*inside, *words], timeout=300)
        assert done.returncode == 0, done
        return str(done.stdout)

    with ThreadPoolExecutor(3) as pool:
        said = "".join(pool.map(pod, range(3)))
    assert len(set(re.findall(r"rank (\d) of 3 on node\d: torch 2.8.0", said))) == 3, said


@pytest.mark.stack
@pytest.mark.timeout(1200)
def test_accelerate_starts_mpirun_by_itself_and_the_script_of_accelerate_finds_its_rank(
    recipes: str, trusting: Cluster, desk: Desk
) -> None:
    carried(desk, ACCELERATED)
    text = emitted(desk, "accelerate", "--venv", recipes, "--ppn", "1", "--port", "29512", ACCELERATED)
    said = started(trusting, "node0", text, timeout=300)
    for rank in range(3):
        assert f"rank {rank} of 3 on node{rank}: sum 3" in said


def test_ansible_plays_what_was_written(desk: Desk, trusting: Cluster, tmp_path: Path) -> None:
    """With the real ansible-playbook."""
    play = Path(sys.executable).with_name("ansible-playbook")
    carried(desk, WORDS)
    book, inventory = tmp_path / "launch.yaml", tmp_path / "inventory.ini"
    book.write_bytes(emitted(desk, "ansible", "--venv", LIGHT, "--ppn", "2", WORDS, *ODD))
    inventory.write_text("".join(f"{host} ansible_python_interpreter=/usr/bin/python3\n" for host in trusting.names))
    done = subprocess.run(
        [*trusting.controller, play, "-vv", "-i", inventory, "--ssh-common-args", f"-F {trusting.ssh_config}", book],
        env={**desk.env, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_SSH_ARGS": "-o ControlMaster=no", "ANSIBLE_PIPELINING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(6):
        assert f"rank {rank} of 6 argv" in done.stdout
