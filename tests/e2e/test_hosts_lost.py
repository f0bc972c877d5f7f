"""Hosts that are cut off, freeze or lose power during a run, and other faults between hosts (faults.md F8 to F11)."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, LIGHT, QUICK, RANKS, Desk, Started, residue, wait

LEASE = 5.0  # seconds; 30 unless told otherwise
RUN = ("run", "--venv", LIGHT, "--node-lease", str(LEASE), "--grace", "3")
Start = Callable[..., Started]


def wait_until_empty(cluster: Cluster, host: str, timeout: float) -> None:
    """Until no process of a run is on this host, which may be cut off."""
    wait(lambda: not [p for p in cluster.processes(host) if "IPEXCTL_RUN" in p.environ], timeout)


@pytest.mark.parametrize("how", ["cut", "freeze", "power_off"])
def test_a_host_that_is_lost_is_named_and_the_run_ends_everywhere(
    start: Start, desk: Desk, hosts: Cluster, how: str
) -> None:
    going = start(*RUN, ACTOR, "count", "3000", **QUICK)
    going.until("0│tick 5\n", "1│tick 5\n", "2│tick 5\n")
    getattr(hosts, how)("node2")
    told = going.until("lost")
    told = going.end(LEASE + 45.0)
    assert told.code == 6, told
    assert re.search(r"node2.*lost", told.out + told.err), told
    assert not residue(hosts, ["node0", "node1"])
    for rank, host in ((0, "node0"), (1, "node1")):
        lines = desk.written(rank).splitlines()
        assert lines == [b"tick %d" % n for n in range(len(lines))], host
        assert len(lines) > 5
    report = desk.report()["run"]
    assert {row["rank"]: row["state"] for row in report["ranks"]}[2] in {"lost", "running"}
    assert "node2" in report["unchecked"]
    if how == "cut":  # it has ended its part by itself, before anybody can reach it
        wait_until_empty(hosts, "node2", 30.0)
        hosts.heal("node2")
    elif how == "freeze":
        hosts.thaw("node2")
        wait_until_empty(hosts, "node2", 60.0)
    else:
        hosts.power_on("node2")
    assert not [process for process in hosts.processes("node2") if "IPEXCTL_RUN" in process.environ]
    again = desk(*RUN, ACTOR, "say")
    assert again.code == 0, again


def test_a_failed_run_starts_again_and_its_script_is_told_how_often(desk: Desk, hosts: Cluster) -> None:
    told = desk(*RUN, "--restarts", "2", RANKS / "again.py", "fail")
    assert told.code == 0, told
    assert "starting again (1 of 2)" in told.out + told.err
    for rank in range(3):
        assert desk.written(rank).splitlines()[-1] == b"start 1, rank %d of 3" % rank
    assert [row["state"] for row in desk.report()["run"]["ranks"]] == ["ok"] * 3
    assert not residue(hosts)


def test_a_run_goes_on_without_a_lost_host_if_enough_remain(start: Start, desk: Desk, hosts: Cluster) -> None:
    going = start(*RUN, "--restarts", "1", "--min-hosts", "2", RANKS / "again.py", "wait", **QUICK)
    going.until("0│start 0", "1│start 0", "2│start 0")
    hosts.power_off("node2")
    told = going.end(LEASE + 60.0)
    assert told.code == 6, told  # all is done, and not by all of them
    assert "going on without node2" in told.out + told.err
    for rank in range(2):
        assert desk.written(rank).splitlines()[-1] == b"start 1, rank %d of 2" % rank
    assert [(row["host"], row["state"]) for row in desk.report()["run"]["ranks"]] == [("node0", "ok"), ("node1", "ok")]
    assert not residue(hosts, ["node0", "node1"])


def test_a_run_does_not_start_again_if_too_few_hosts_remain(start: Start, hosts: Cluster) -> None:
    going = start(*RUN, "--restarts", "1", "--min-hosts", "3", RANKS / "again.py", "wait", **QUICK)
    going.until("0│start 0", "1│start 0", "2│start 0")
    hosts.power_off("node2")
    told = going.end(LEASE + 60.0)
    assert told.code == 6, told
    assert "starting again" not in told.out + told.err
    assert not residue(hosts, ["node0", "node1"])


def test_the_heads_loss_ends_the_run_on_the_others(start: Start, hosts: Cluster) -> None:
    going = start(*RUN, ACTOR, "wait", **QUICK)
    going.until("0│waiting", "1│waiting", "2│waiting")
    hosts.power_off("node0")
    for host in ("node1", "node2"):
        wait_until_empty(hosts, host, LEASE + 60.0)
    going.until("connection lost")
    hosts.power_on("node0")
    told = going.end(90)
    assert told.code in {6, 4}, told
    assert not residue(hosts, ["node1", "node2"])


def test_a_cut_that_heals_in_time_loses_and_doubles_nothing(start: Start, desk: Desk, hosts: Cluster) -> None:
    """By the lease that a run has if nobody says otherwise."""
    going = start("run", "--venv", LIGHT, ACTOR, "count", "100")
    going.until("0│tick 5\n", "1│tick 5\n", "2│tick 5\n")
    with hosts.cut("node1"):
        time.sleep(8.0)
    told = going.end(90)
    assert told.code == 0, told
    for rank in range(3):
        assert desk.written(rank) == b"".join(b"tick %d\n" % n for n in range(100))
    assert not residue(hosts)


def test_a_controller_that_is_cut_off_goes_on_at_the_exact_byte(start: Start, desk: Desk, hosts: Cluster) -> None:
    """It notices within the time that holds if nobody says otherwise: 30 s."""
    going = start("run", "--venv", LIGHT, ACTOR, "count", "400")
    going.until("0│tick 5\n", "1│tick 5\n", "2│tick 5\n")
    with hosts.cut("controller"):
        going.until("connection lost", timeout=60)
    told = going.end(90)
    assert told.code == 0, told
    assert "reconnected" in told.out + told.err
    for rank in range(3):
        assert desk.written(rank) == b"".join(b"tick %d\n" % n for n in range(400))
    assert not residue(hosts)


def test_an_sshd_that_dies_with_all_its_sessions_does_not_disturb_the_run(
    start: Start, desk: Desk, hosts: Cluster
) -> None:
    """Its host lives: the run goes on to its end, and only the proof on that host must wait."""
    going = start("run", "--venv", LIGHT, ACTOR, "count", "60")
    going.until("0│tick 5\n", "1│tick 5\n", "2│tick 5\n")
    for process in hosts.processes("node2"):
        if "sshd" in process.argv[0]:
            os.kill(process.outer, signal.SIGKILL)
    told = going.end(90)
    assert told.code == 6, told
    assert "node2" in told.out
    report = desk.report()["run"]
    assert report["reason"] == "done"
    assert report["unchecked"] == ["node2"]
    assert [row["state"] for row in report["ranks"]] == ["ok"] * 3
    for rank in range(3):
        assert desk.written(rank) == b"".join(b"tick %d\n" % n for n in range(60))
    assert not residue(hosts, ["node0", "node1"])
    assert not [process for process in hosts.processes("node2") if "IPEXCTL_RUN" in process.environ]
    hosts.power_off("node2")  # a new sshd, at the end of the test


def test_a_host_that_goes_dark_before_the_start_is_reported_with_the_others_done(desk: Desk, hosts: Cluster) -> None:
    with hosts.cut("node1"):
        told = desk("run", "--venv", LIGHT, "--connect-timeout", "3", ACTOR, "say")
    assert told.code == 3, told
    assert "nothing was started; without node1: --limit '!node1'" in told.err
    assert not residue(hosts)


def test_a_host_whose_environment_lost_its_proxy_is_named(desk: Desk, hosts: Cluster) -> None:
    proxy = hosts.path("node2", f"{LIGHT}/bin/hydra_pmi_proxy")
    hidden = proxy.with_name("hidden")
    proxy.rename(hidden)
    try:
        told = desk("run", "--venv", LIGHT, ACTOR, "say", timeout=90)
    finally:
        hidden.rename(proxy)
    assert told.code == 4, told
    assert "node2" in told.out + told.err
    assert not residue(hosts)


def test_a_port_between_hosts_that_is_blocked_is_said_before_anything_starts(desk: Desk, hosts: Cluster) -> None:
    """node1 cannot call back to the head: a route that leads nowhere, as a firewall would."""
    hosts.exec("node1", ["ip", "route", "add", "prohibit", f"{hosts.address('node0')}/32"], check=True)
    try:
        told = desk("run", "--venv", LIGHT, ACTOR, "say", timeout=90)
    finally:
        hosts.exec("node1", ["ip", "route", "del", "prohibit", f"{hosts.address('node0')}/32"])
    assert told.code == 4, told
    assert "cannot reach the head" in told.out + told.err
    assert "node1" in told.out + told.err
    assert not residue(hosts)
