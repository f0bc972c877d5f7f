"""Runs that start again after a lost host, and a host that is dark before the start."""

from __future__ import annotations

from collections.abc import Callable

from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, LIGHT, QUICK, RANKS, Started, Workspace, find_orphans
from tests.stock import over

LEASE = 5.0  # seconds; 30 unless told otherwise
RUN = ("run", "--node-lease", str(LEASE), "--grace", "3")
Start = Callable[..., Started]


@over("impi")
def test_a_run_goes_on_without_a_lost_host_if_enough_remain(
    start: Start, workspace: Workspace, hosts: Cluster, group: tuple[str, ...]
) -> None:
    command = start(*RUN, *group, "--restarts", "1", "--min-hosts", "2", RANKS / "again.py", **QUICK)
    command.until("0│start 0", "1│start 0", "2│start 0")
    hosts.power_off("node2")
    result = command.end(LEASE + 60.0)
    assert result.code == 6, result  # all is done, and not by all of them
    assert "going on without node2" in result.out + result.err
    for rank in range(2):
        assert workspace.written(rank).splitlines()[-1] == b"start 1, rank %d of 2" % rank
    assert [(row["host"], row["state"]) for row in workspace.report()["run"]["ranks"]] == [
        ("node0", "ok"),
        ("node1", "ok"),
    ]
    assert not find_orphans(hosts, ["node0", "node1"])


@over("gloo")
def test_a_run_does_not_start_again_if_too_few_hosts_remain(
    start: Start, hosts: Cluster, group: tuple[str, ...]
) -> None:
    command = start(*RUN, *group, "--restarts", "1", "--min-hosts", "3", RANKS / "again.py", **QUICK)
    command.until("0│start 0", "1│start 0", "2│start 0")
    hosts.power_off("node2")
    result = command.end(LEASE + 60.0)
    assert result.code == 6, result
    assert "starting again" not in result.out + result.err
    assert not find_orphans(hosts, ["node0", "node1"])


def test_a_host_that_goes_dark_before_the_start_is_reported_with_the_others_done(
    workspace: Workspace, hosts: Cluster
) -> None:
    with hosts.cut("node1"):
        result = workspace("run", "--venv", LIGHT, "--connect-timeout", "3", ACTOR, "say")
    assert result.code == 3, result
    assert "nothing was started; without node1: --limit '!node1'" in result.err
    assert not find_orphans(hosts)
