"""Runs that start again after a failed rank or a lost host, and a host that is dark before the start."""

from __future__ import annotations

from collections.abc import Callable

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, LIGHT, QUICK, RANKS, Desk, Started, residue

LEASE = 5.0  # seconds; 30 unless told otherwise
RUN = ("run", "--venv", LIGHT, "--node-lease", str(LEASE), "--grace", "3")
Start = Callable[..., Started]


def test_a_failed_run_starts_again_and_its_script_is_told_how_often(desk: Desk, hosts: Cluster) -> None:
    told = desk(*RUN, "--restarts", "2", RANKS / "again.py", "fail")
    assert told.code == 0, told
    assert "starting again (1 of 2)" in told.out + told.err
    for rank in range(3):  # the first start may have ended between a line and its end
        assert desk.written(rank).endswith(b"start 1, rank %d of 3\n" % rank)
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


def test_a_host_that_goes_dark_before_the_start_is_reported_with_the_others_done(desk: Desk, hosts: Cluster) -> None:
    with hosts.cut("node1"):
        told = desk("run", "--venv", LIGHT, "--connect-timeout", "3", ACTOR, "say")
    assert told.code == 3, told
    assert "nothing was started; without node1: --limit '!node1'" in told.err
    assert not residue(hosts)
