"""Where ranks are put and what they are told, on hosts of different shapes; and what is refused before anything."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import Cluster, Spec
from tests.e2e.workspace import ACTOR, LIGHT, RANKS, CommandResult, Workspace, find_orphans, find_place, light

RUN = ("run", "--venv", LIGHT)


def places(workspace: Workspace, result: CommandResult) -> list[dict[str, Any]]:
    """What ranks/place.py said, by rank."""
    assert result.code == 0, result
    count = len(workspace.report()["run"]["ranks"])
    return [json.loads(workspace.written(rank)) for rank in range(count)]


def test_a_project_behind_a_link_is_at_the_same_place_for_sync_and_for_run(workspace: Workspace) -> None:
    """The plan, and a run without a sync, name the directory as sync did: by the link, not by what it leads to."""
    (workspace.path / "proj-v2").mkdir()
    (workspace.path / "proj-v2" / "say.py").write_text("import os; print('in', os.getcwd(), 'as', os.environ['PWD'])\n")
    (workspace.path / "proj").symlink_to("proj-v2")
    assert workspace("sync", "proj/say.py").code == 0
    place = find_place(workspace.path / "proj")
    result = workspace.succeed(*RUN, "--no-sync", "--ppn", "1", "proj/say.py")
    assert f"in {place} as {place}\n" in result.out
    assert f"in {place}," in workspace(*RUN, "--dry-run", "proj/say.py").out


def test_interfaces_are_chosen_per_host(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """The first interface is docker0, then one of another network; node1's has another name than the head's."""
    cluster = make_cluster(
        Spec("node0", networks=("aux", "lan"), docker=True),
        Spec("node1", networks=("lan",), docker=True),
        Spec("node2", networks=("aux", "lan")),
    )
    light(cluster, tmp_path)
    with renamed(cluster, "node1", "ens5"):
        workspace = Workspace(cluster, tmp_path / "desk")
        result = workspace.succeed(*RUN, "--ppn", "1", RANKS / "allreduce.py")
        assert "rank 0 of 3 on node0 by eth0: sum 6" in result.out
        assert "rank 1 of 3 on node1 by ens5: sum 6" in result.out
        ranks = places(workspace, workspace(*RUN, RANKS / "place.py"))
        if shutil.which("mpiexec.mpich"):  # its UCX would take docker0 as well
            result = workspace.succeed(
                *RUN, "--mpi", "mpich", "--ppn", "1", ACTOR.with_name("sum.py"), "libmpich.so.12"
            )
            assert "rank 1 of 3: sum 6" in result.out
    assert [rank["GLOO_SOCKET_IFNAME"] for rank in ranks] == ["eth0", "ens5", "eth0"]
    assert {rank["MASTER_ADDR"] for rank in ranks} == {cluster.address("node0")}
    assert not find_orphans(cluster)


def test_hosts_without_an_ipv4_address(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """Intel MPI's launcher uses IPv6 where it is asked to, and MPICH's never does."""
    cluster = make_cluster("node0", "node1")
    light(cluster, tmp_path)
    add = "ip -6 address add fd77::{} dev eth0 nodad".format
    cluster.run(add("1/64").split(), check=True)
    entries, known = [], []
    for number, host in enumerate(cluster.names, 10):
        cluster.exec(host, add(f"{number}/64").split(), check=True)
        cluster.exec(host, ["ip", "-4", "address", "flush", "dev", "eth0"], check=True)
        entries.append(f"{host} address=fd77::{number} user=root key={cluster.key} known_hosts={tmp_path / 'known'}")
        known.append(f"fd77::{number} {cluster.host_key(host)}")
    for path, lines in ((tmp_path / "hosts", entries), (tmp_path / "known", known)):
        path.write_text("\n".join(lines) + "\n")
    workspace = Workspace(cluster, tmp_path / "desk", hostfile=tmp_path / "hosts")
    result = workspace.succeed(*RUN, "--ppn", "1", RANKS / "allreduce.py")
    assert "rank 1 of 2 on node1 by eth0: sum 3" in result.out
    assert "rank 0 of 2" in result.out
    if shutil.which("mpiexec.mpich"):
        refused = workspace(*RUN, "--mpi", "mpich", "--ppn", "1", RANKS / "allreduce.py")
        assert refused.code == 4
        assert "error: MPICH needs an IPv4 address, and node0 has fd77::10 alone on eth0\n" in refused.err
        assert "hint: ipexctl install --mpi impi" in refused.err
    assert not find_orphans(cluster)


def test_a_dry_run_says_all_and_does_nothing(workspace: Workspace, hosts: Cluster) -> None:
    before = [files(hosts, host) for host in hosts.names]
    refused = workspace(*RUN, "--dry-run", "--workdir", "/data/../etc", ACTOR)  # as by the run itself
    assert (refused.code, "'/data/../etc' has '..' in it" in refused.err) == (2, True)
    result = workspace.succeed(*RUN, "--dry-run", "--ppn", "1", "--env", "A=b c", ACTOR, "say", "it's")
    for word in (
        "3 ranks on 3 hosts",
        f"{LIGHT}/bin/mpiexec.hydra",
        "-host h1.ipexctl",
        "actor.py say 'it'\"'\"'s'",
        "A=b c",
        "GLOO_SOCKET_IFNAME=eth0",
        "MASTER_ADDR=10.77.0.10",
        "OMP_NUM_THREADS",
    ):
        assert word in result.out, result
    assert [files(hosts, host) for host in hosts.names] == before
    assert not find_orphans(hosts)


def files(cluster: Cluster, host: str) -> str:
    """Everything in root's home, with times."""
    return cluster.exec(host, ["find", "/root", "-printf", "%p %s %T@\n"]).stdout


@contextmanager
def renamed(cluster: Cluster, host: str, name: str) -> Iterator[None]:
    """The host's eth0 has this name for a while."""

    def rename(old: str, new: str) -> None:
        for words in (f"link set {old} down", f"link set {old} name {new}", f"link set {new} up"):
            cluster.exec(host, ["ip", *words.split()], check=True)
        cluster.exec(host, ["ip", "route", "add", "default", "via", "10.77.255.254"], check=True)

    rename("eth0", name)
    try:
        yield
    finally:
        rename(name, "eth0")
