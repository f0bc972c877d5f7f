"""Hosts that lose power, are cut off, lose their sshd or cannot start their part (cases F8 to F11)."""

import json
import os
import re
import time
from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, LIGHT, QUICK, Group, Start, Workspace, find_orphans
from tests.stock import over
from tests.waiting import wait

LEASE = 5.0  # seconds; 30 unless told otherwise
ON = ("--venv", LIGHT, "--limit", "node[0-2]")
RUN = ("run", "--limit", "node[0-2]", "--node-lease", str(LEASE), "--grace", "3")


def wait_until_empty(cluster: Cluster, host: str, timeout: float) -> None:
    """Until no process of a run is on this host, which may be cut off."""
    wait(lambda: not [p for p in cluster.processes(host) if "IPEXCTL_RUN" in p.environ], timeout)


def lose_node2(start: Start, controller: Workspace, mpi: Cluster, group: Group, how: str) -> None:
    """Loses it in the middle of a run, which ends on the others, with all that was said until then."""
    command = start(*RUN, *group, ACTOR, "count", "3000", **QUICK)
    command.until("0│tick 5\n", "1│tick 5\n", "2│tick 5\n")
    getattr(mpi, how)("node2")
    command.until("lost")
    result = command.end(LEASE + 45.0)
    assert result.code == 6, result
    assert re.search(r"node2 lost \(no sign of life for \d+ s\)", result.out + result.err), result
    assert not find_orphans(mpi, ["node0", "node1"])
    for rank in range(3):
        lines = controller.written(rank).splitlines()
        assert lines == [b"tick %d" % n for n in range(len(lines))]
        assert len(lines) > 5
    report = controller.report()["run"]
    assert {row["rank"]: row["state"] for row in report["ranks"]}[2] in {"lost", "running"}
    assert "end not observed: rank 2 on node2" in result.out
    assert "node2" in report["unchecked"]


def run_again(controller: Workspace, mpi: Cluster) -> None:
    """Nothing of the lost run is in the way of the next."""
    assert not [process for process in mpi.processes("node2") if "IPEXCTL_RUN" in process.environ]
    controller.succeed("run", *ON, ACTOR, "say")


def reap_old(controller: Workspace, mpi: Cluster) -> None:
    """A directory whose guard died is taken away once it is old enough not to be that of a run that just begins."""
    for directory in mpi.path("node2", "/root/.local/state/ipexctl/runs").glob("*-h2"):
        os.utime(directory, (time.time() - 300,) * 2)
    controller.succeed("stop", "--orphans")


@pytest.mark.fault("F8")
@over("none")
def test_f8_a_host_loses_power(start: Start, controller: Workspace, mpi: Cluster, group: Group) -> None:
    lose_node2(start, controller, mpi, group, "power_off")
    mpi.power_on("node2")
    run_again(controller, mpi)
    reap_old(controller, mpi)


@pytest.mark.fault("F8")
@over("none")
def test_f8_the_head_loses_power(start: Start, mpi: Cluster, group: Group) -> None:
    command = start(*RUN, *group, ACTOR, "wait", **QUICK)
    command.until("0│waiting", "1│waiting", "2│waiting")
    mpi.power_off("node0")
    for host in ("node1", "node2"):
        wait_until_empty(mpi, host, LEASE + 60.0)
    command.until("connection lost")
    mpi.power_on("node0")
    result = command.end(90)
    assert result.code in {6, 4}, result
    assert not find_orphans(mpi, ["node1", "node2"])


@pytest.mark.fault("F8")
@over()
def test_f8_a_host_freezes(start: Start, controller: Workspace, mpi: Cluster, group: Group) -> None:
    lose_node2(start, controller, mpi, group, "freeze")
    mpi.thaw("node2")
    wait_until_empty(mpi, "node2", 60.0)
    run_again(controller, mpi)


@pytest.mark.fault("F9")
@over("none")
def test_f9_a_cut_beyond_the_lease_ends_a_run(start: Start, controller: Workspace, mpi: Cluster, group: Group) -> None:
    lose_node2(start, controller, mpi, group, "cut")
    wait_until_empty(mpi, "node2", 60.0)  # by itself, before anybody can reach it
    mpi.heal("node2")
    run_again(controller, mpi)


@pytest.mark.fault("F9")
@over("gloo")
def test_f9_a_cut_that_heals_loses_nothing(start: Start, controller: Workspace, mpi: Cluster, group: Group) -> None:
    """By the lease that a run has if nobody says otherwise."""
    command = start("run", "--limit", "node[0-2]", *group, ACTOR, "count", "100")
    command.until("0│tick 5\n", "1│tick 5\n", "2│tick 5\n")
    with mpi.cut("node1"):
        time.sleep(8.0)
    result = command.end(90)
    assert result.code == 0, result
    for rank in range(3):
        assert controller.written(rank) == b"".join(b"tick %d\n" % n for n in range(100))


@pytest.mark.fault("F11")
def test_f11_a_host_has_lost_its_launchers_proxy(controller: Workspace, mpi: Cluster) -> None:
    proxy = mpi.path("node2", f"{LIGHT}/bin/hydra_pmi_proxy")
    hidden = proxy.with_name("hidden")
    proxy.rename(hidden)
    try:
        result = controller("run", *ON, ACTOR, "say", timeout=90)
    finally:
        hidden.rename(proxy)
    assert result.code == 4, result
    assert re.search(r"node2.*hydra_pmi_proxy", result.out + result.err), result


@pytest.mark.fault("F11")
def test_f11_a_host_has_another_version_of_the_launcher(controller: Workspace, mpi: Cluster) -> None:
    path = f"{LIGHT}/ipexctl.json"
    before = mpi.read("node2", path)
    marker = json.loads(before)
    marker["layout"]["version"] = "2021.11.0"
    marker["id"] = "older"
    mpi.write("node2", path, json.dumps(marker).encode())
    try:
        result = controller("run", *ON, ACTOR, "say", timeout=90)
    finally:
        mpi.write("node2", path, before)
    assert result.code == 4, result
    assert "node2" in result.out + result.err


@pytest.mark.fault("F11")
def test_f11_a_port_between_hosts_is_blocked(controller: Workspace, mpi: Cluster) -> None:
    """node1 cannot call back to the head: a route that leads nowhere, as a firewall would."""
    mpi.exec("node1", ["ip", "route", "add", "prohibit", f"{mpi.address('node0')}/32"], check=True)
    try:
        result = controller("run", *ON, ACTOR, "say", timeout=90)
    finally:
        mpi.exec("node1", ["ip", "route", "del", "prohibit", f"{mpi.address('node0')}/32"])
    assert result.code == 3, result
    assert re.search(r"node1.*cannot reach the head", result.out + result.err), result


@pytest.mark.fault("F11")
def test_f11_hosts_that_may_not_log_in_to_each_other_need_not(controller: Workspace, mpi: Cluster) -> None:
    """No host has a key: the launcher's programs are started by the guards."""
    address = mpi.address("node2")
    mpi.write("node0", "/root/known", f"{address} {mpi.host_key('node2')}\n".encode())
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "UserKnownHostsFile=/root/known"]
    done = mpi.exec("node0", ["ssh", *options, address, "true"])
    assert done.returncode == 255
    assert "Permission denied" in done.stderr
    controller.succeed("run", *ON, ACTOR, "say")
    mpi.exec("node0", ["rm", "-f", "/root/known"])


@pytest.fixture
def full_home(mpi: Cluster) -> Iterator[str]:
    """node2, whose home has not a byte left."""
    mpi.small_home("node2", 4)
    mpi.exec("node2", ["sh", "-c", "cat /dev/zero >/root/filler"])
    yield "node2"
    mpi.power_off("node2")  # the memory file system goes with it
    mpi.power_on("node2")


@pytest.mark.fault("F11")
def test_f11_a_disk_has_no_room_for_a_run(controller: Workspace, mpi: Cluster) -> None:
    runs = "/root/.local/state/ipexctl/runs"
    mpi.exec("node0", ["mkdir", "-p", "-m", "700", runs], check=True)
    mpi.exec("node0", ["mount", "-t", "tmpfs", "-o", "size=900k,mode=700", "tmpfs", runs], check=True)
    try:
        result = controller("run", *ON, ACTOR, "say", timeout=90)
    finally:
        mpi.exec("node0", ["umount", runs], check=True)
    assert result.code == 4, result
    assert f"node0: no space left: a run needs 4.0 MiB in {runs}, 900 KiB free" in result.out + result.err, result
    assert not find_orphans(mpi)


@pytest.mark.fault("F11")
def test_f11_a_disk_is_full_before_the_start(controller: Workspace, mpi: Cluster, full_home: str) -> None:
    result = controller("run", *ON, ACTOR, "say", timeout=90)
    assert result.code == 4, result
    assert re.search(r"node2.*no space left", result.out + result.err, re.IGNORECASE), result
    assert not find_orphans(mpi, ["node0", "node1"])
    assert not [process for process in mpi.processes("node2") if "IPEXCTL_RUN" in process.environ]
