"""Runs that wait for hosts that others use."""

import signal
from pathlib import Path

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, QUICK, RANKS, Start, Workspace, find_orphans
from tests.waiting import wait

ON = ("--venv", LIGHT, "--limit", "node0,node1", RANKS / "counts.py")
LONG = ("run", *ON, "900", "1000", "0", "0")
SHORT = (*ON, "1", "1000", "0", "0")
WAIT = ("run", "--wait", *SHORT)


def list_states(workspace: Workspace) -> list[str]:
    return sorted(run["state"] for run in workspace("ps", "--json").answer["runs"])


def test_runs_wait_in_their_order_also_without_a_watcher(
    start: Start, workspace: Workspace, hosts: Cluster, tmp_path: Path
) -> None:
    first = start(*LONG, **QUICK)
    first.until("0│step 1")
    other = Workspace(hosts, tmp_path / "other")
    second = other.start(*WAIT, **QUICK)
    try:
        second.until("waiting for run ", " on node0, node1")
        workspace.succeed("run", "--wait", "--detach", *SHORT, timeout=120.0, **QUICK)
        assert list_states(workspace) == ["running", "waiting", "waiting"]
        refused = workspace("run", *SHORT, "--exclude", "nothing")
        assert refused.code == 7
        assert "compare" not in refused.err, "nothing is sent to hosts on which ranks may read it yet"
        first.signal(signal.SIGINT)
        assert first.end(60).code == 130
        result = second.end(120)
        assert result.code == 0, result
        assert "the hosts are free" in result.out + result.err, result
        assert "the project on these hosts is in use by run " in result.err, result
        wait(lambda: list_states(workspace) == ["ended"], 120, pause=1.0)
        assert workspace("attach", timeout=60.0).code == 0
    finally:
        second.close()
    assert not find_orphans(hosts)


def test_who_waits_can_be_stopped(start: Start, hosts: Cluster) -> None:
    first = start(*LONG, **QUICK)
    first.until("0│step 1")
    second = start(*WAIT, **QUICK)
    second.until("waiting for run ")
    second.signal(signal.SIGINT)
    result = second.end(60)
    assert result.code == 130, result
    assert "0 processes left on 2 hosts" in result.out, result
    first.signal(signal.SIGINT)
    assert first.end(60).code == 130
    assert not find_orphans(hosts)
