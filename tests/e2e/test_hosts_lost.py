"""Runs that start again after a lost host, and a host that is dark before the start."""

import shlex

from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, LIGHT, QUICK, RANKS, Start, Workspace, find_orphans
from tests.stock import over
from tests.waiting import wait

LEASE = 5.0  # seconds; 30 unless told otherwise
RUN = ("run", "--node-lease", str(LEASE), "--grace", "3")


def await_text(hosts: Cluster, text: bytes, files: str = "out.bin.*", seconds: float = 120.0) -> None:
    """Waits until these files of the run on node0 hold a text."""
    place = hosts.path("node0", "/root/.local/state/ipexctl/runs")
    wait(lambda: text in b"".join(path.read_bytes() for path in place.glob(f"*/{files}")), seconds, pause=0.2)


@over("none")
def test_a_detached_run_goes_on_without_a_host_that_was_cut_and_takes_it_back(
    start: Start, workspace: Workspace, hosts: Cluster, group: tuple[str, ...]
) -> None:
    """Nobody watches: node2's cable is cut, the run goes on on the others; node2 is back, a rank fails, and it is
    again one of three."""
    words = (*group, "--detach", "--restarts", "3", "--min-hosts", "2")
    detached = start(*RUN, *words, RANKS / "survive.py", **QUICK).end(60.0)
    assert detached.code == 0, detached
    await_text(hosts, b"start 0, rank 0 of 3")
    with hosts.cut("node2"):
        await_text(hosts, b"start 1, rank 0 of 2, before 3")
        ranks = [process for process in hosts.processes("node2") if "survive.py" in " ".join(process.argv)]
        assert not ranks, "its part had ended before"
    await_text(hosts, b'"HostBack"', "journal.jsonl")
    hosts.exec("node0", ["touch", "/root/fail"])
    await_text(hosts, b"start 2, rank 0 of 3")
    listed = workspace("ps", "--json").answer["runs"]
    assert [(row["state"], row["restart"], row["restarts"], len(row["hosts"])) for row in listed] == [
        ("running", 2, 3, 3)
    ]
    for host in hosts.names:
        hosts.write(host, "/root/done", b"")
    result = workspace("attach", timeout=LEASE + 60.0)
    for host in hosts.names:
        hosts.path(host, "/root/done").unlink()
    assert result.code == 0, result
    for said in ("node2 lost", "going on without node2", "starting again (2 of 3)", "is back"):
        assert said in result.out + result.err, result
    lines = workspace.written(2).splitlines()
    assert [line for line in lines if line.startswith(b"start")] == [
        b"start 0, rank 2 of 3, before None",
        b"start 2, rank 2 of 3, before None",
    ]
    assert not find_orphans(hosts)


def test_a_host_that_is_dark_before_the_start_is_reported(workspace: Workspace, hosts: Cluster) -> None:
    with hosts.cut("node1"):
        words = ("--json", "--venv", LIGHT, "--connect-timeout", "3", ACTOR, "say")
        result = workspace("run", *words)
        [without, (_, doctor, *_)] = result.answer["next"]
        assert (doctor, result.answer["failures"][0]["host"]) == ("doctor", "node1")
        done = workspace(*without[1:])
        shown = workspace("run", *words[1:])
    assert (result.code, done.code) == (3, 0), (result, done)
    assert shown.out.endswith(f"{shlex.join([word for word in without if word != '--json'])}\n"), shown
    assert {rank["host"] for rank in done.answer["ranks"]} == {"node0", "node2"}
    assert "nothing was started" in result.err
    assert not find_orphans(hosts)
