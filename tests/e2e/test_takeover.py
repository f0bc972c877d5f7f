"""Runs that go on when the host with their keeper is lost, and hosts that stand by."""

import json
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, QUICK, RANKS, Start, Workspace, find_orphans, find_place
from tests.stock import over
from tests.waiting import wait

LEASE = 5.0  # seconds; 30 unless told otherwise
RUN = ("run", "--node-lease", str(LEASE), "--grace", "2", "--restarts", "3")


def read_output(hosts: Cluster, host: str) -> bytes:
    """What the ranks wrote that this host led."""
    place = hosts.path(host, "/root/.local/state/ipexctl/runs")
    return b"".join(path.read_bytes() for path in sorted(place.glob("*/out.bin.*")))


def await_output(hosts: Cluster, host: str, text: bytes, seconds: float = 120.0) -> None:
    wait(lambda: text in read_output(hosts, host), seconds, lambda: f"no {text!r}: {read_output(hosts, host)!r}", 0.2)


def read_notices(hosts: Cluster, host: str) -> list[dict[str, Any]]:
    """What --host-notify was given on this host."""
    return [json.loads(line) for line in hosts.path(host, "/root/notices").read_text().splitlines()]


def list_ranks(hosts: Cluster, host: str) -> list[int]:
    return [process.pid for process in hosts.processes(host) if "survive.py" in " ".join(process.argv)]


@pytest.fixture(autouse=True)
def _nothing_is_left(hosts: Cluster) -> Iterator[None]:
    yield
    hosts.restore()
    for host in hosts.names:
        place = find_place(RANKS)
        hosts.exec(
            host,
            ["rm", "-rf", "/root/done", "/root/fail", "/root/notices", f"{place}/ckpt", f"{place}/.ipexctl-keep-ckpt"],
        )


@over("none")
def test_a_detached_run_goes_on_without_node0_which_is_cut_off_and_never_are_two_at_work(
    start: Start, workspace: Workspace, hosts: Cluster, group: tuple[str, ...]
) -> None:
    """Nobody watches, and node0 lives: its ranks end before others begin, and when it is back it does not disturb.
    Whichever host leads reports it."""
    notify = ("--host-notify", "sh -c 'cat >> /root/notices'")
    words = (*group, *notify, "--detach", "--min-hosts", "2")
    detached = start(*RUN, *words, RANKS / "survive.py", **QUICK).end(60.0)
    assert detached.code == 0, detached
    await_output(hosts, "node0", b"start 0, rank 0 of 3")
    with hosts.cut("node0"):
        until = time.monotonic() + 90.0
        while b"start 1, rank 0 of 2" not in read_output(hosts, "node1"):
            assert time.monotonic() < until
            if list_ranks(hosts, "node0"):
                assert not list_ranks(hosts, "node1") or not read_output(hosts, "node1"), "two worlds"
            time.sleep(0.2)
        assert not list_ranks(hosts, "node0")
    [listed] = workspace("ps", "--json").answer["runs"]
    assert (listed["state"], listed["head"], listed["restart"], len(listed["hosts"])) == ("running", "node1", 1, 2)
    end_ranks(hosts, "node1", "node2")
    result = workspace("attach", timeout=60.0)
    assert "start 1, rank 0 of 2, before 3" in result.out, result
    assert "node0 lost: starting again (1 of 3)" in result.out + result.err
    assert workspace("stop", listed["run"]).code in (0, 4)
    assert not find_orphans(hosts)
    first, *_ = read_notices(hosts, "node0")
    assert (first["event"], first["host"], first["ranks"], first["run"]) == ("start", "node0", [0, 1, 2], listed["run"])
    notices = read_notices(hosts, "node1")
    assert [notice["event"] for notice in notices] == ["failure", "start", "end"]
    assert [notice["hosts"] for notice in notices] == [["node0"], ["node1", "node2"], []]
    assert "started again (restart 1)" in notices[1]["text"]
    assert notices[2]["result"] == "ok"


def end_ranks(hosts: Cluster, *names: str) -> None:
    """Lets the ranks of these hosts end."""
    for host in names:
        hosts.write(host, "/root/done", b"")


@over("none")
def test_a_keeper_that_dies_is_replaced_and_its_host_takes_part(
    start: Start, workspace: Workspace, hosts: Cluster, group: tuple[str, ...]
) -> None:
    command = start(*RUN, *group, "--min-hosts", "2", RANKS / "survive.py", **QUICK)
    command.until("0│start 0", "1│start 0", "2│start 0")
    [keeper] = [process.pid for process in hosts.processes("node0") if "keeper" in process.argv]
    hosts.exec("node0", ["kill", f"-{signal.SIGKILL:d}", str(keeper)])
    command.until("start 1, rank 0 of 3, before None")
    end_ranks(hosts, *hosts.names)
    result = command.end(60.0)
    assert "leads the run in place of node0" in result.out + result.err, result
    assert {row["state"] for row in workspace.report()["run"]["ranks"]} == {"ok"}
    assert result.code == 0, result
    assert not find_orphans(hosts)


@over("none")
def test_a_spare_host_takes_the_place_of_a_lost_one(
    start: Start, workspace: Workspace, hosts: Cluster, group: tuple[str, ...]
) -> None:
    command = start(*RUN, *group, "--spares", "1", RANKS / "survive.py", **QUICK)
    command.until("0│start 0, rank 0 of 2, before None", "1│start 0")
    assert not list_ranks(hosts, "node2")
    hosts.power_off("node1")
    command.until("[node1] no sign of life for", "node1: lost (")
    command.until("start 1, rank 0 of 2, before None", "1│start 1")
    assert list_ranks(hosts, "node2")
    end_ranks(hosts, "node0", "node2")
    result = command.end(60.0)
    assert result.code == 6, result
    assert [row["host"] for row in workspace.report()["run"]["ranks"]] == ["node0", "node2"]
    assert not find_orphans(hosts, ["node0", "node2"])


@over()
def test_a_spare_host_takes_the_place_of_node0_within_60_s(
    start: Start, workspace: Workspace, hosts: Cluster, group: tuple[str, ...]
) -> None:
    """By default, as docs/survive.md says."""
    command = start("run", "--restarts", "3", *group, "--spares", "1", RANKS / "survive.py")
    command.until("0│start 0, rank 0 of 2, before None", "1│start 0")
    lost = time.monotonic()
    hosts.power_off("node0")
    command.until("start 1, rank 0 of 2, before None", "1│start 1")
    assert time.monotonic() - lost < 60.0
    hosts.exec("node1", ["touch", "/root/done"])
    result = command.end(60.0)
    assert result.code == 6, result
    assert [row["host"] for row in workspace.report()["run"]["ranks"]] == ["node1", "node2"]
    assert not find_orphans(hosts, ["node1", "node2"])


def test_the_checkpoints_of_node0_outlive_it(start: Start, workspace: Workspace, hosts: Cluster) -> None:
    words = ("--keep", "ckpt", "--min-hosts", "2", "--venv", LIGHT, RANKS / "counts.py", "24", "4", "1", "0")
    command = start(*RUN, *words, **QUICK)
    command.until("0│step 10", "[node1] has a copy of node0's part of ckpt/step_8.pt")
    hosts.power_off("node0")
    result = command.end(120.0)
    assert result.code == 6, result  # all is done, and not by all of them
    assert "[node1] leads the run in place of node0" in result.out + result.err
    assert [row["host"] for row in workspace.report()["run"]["ranks"]] == ["node1", "node2"]
    for rank in range(2):
        starts = re.findall(r"resume (\S+) at (\d+) of (\d)", workspace.written(rank).decode())
        assert [(name.rpartition("/")[2], int(size)) for name, _, size in starts[:1]] == [("nothing", 3)]
        assert starts[1][0].endswith(f"/ckpt/step_{starts[1][1]}.pt"), result
        assert int(starts[1][1]) >= 8, "a checkpoint's interval is lost at most"
        assert workspace.written(rank).splitlines()[-1].endswith(b"step 24")


@over("none")
def test_a_run_without_a_host_that_leads_can_be_stopped(
    start: Start, workspace: Workspace, hosts: Cluster, group: tuple[str, ...]
) -> None:
    """Its parts wait for another host to lead, which begins the ranks again: nobody is let down by "no such run".
    node1 has left node0, and waits for the guard of node2, which stands still."""
    detached = start(*RUN, *group, "--detach", "--min-hosts", "2", RANKS / "survive.py", **QUICK).end(60.0)
    assert detached.code == 0, detached
    await_output(hosts, "node0", b"start 0, rank 0 of 3")
    hosts.power_off("node0")
    [guard] = [process.pid for process in hosts.processes("node2") if "guard" in process.argv]
    hosts.exec("node2", ["kill", f"-{signal.SIGSTOP:d}", str(guard)])
    wait(lambda: not list_ranks(hosts, "node1"), 30.0, lambda: "node1 goes on")
    others = ("--limit", "!node0")  # to node0 a connection would take longer than the gap
    [listed] = workspace("ps", "--json", *others).answer["runs"]
    assert (listed["state"], listed["command"]) == ("leaderless", "survive.py")
    refused = workspace("attach", *others)
    assert refused.code == 3, refused
    assert "no host that leads run" in refused.err
    stopped = workspace.succeed("stop", *others)
    assert "0 processes left on 2 hosts" in stopped.out
    time.sleep(LEASE + 4.0)  # in which another would have begun to lead
    assert not find_orphans(hosts, ["node1", "node2"])
    assert workspace("ps", "--json", *others).answer["runs"] == []


SPLIT = ("--limit", "node0,node1", "--min-hosts", "1", "--on-split", "wait")


@over("none")
def test_of_two_hosts_the_one_still_reached_goes_on(start: Start, hosts: Cluster, group: tuple[str, ...]) -> None:
    """By its only vote: node0, which is cut off and lives, has ended its rank before, and is a spare afterwards."""
    timings = {"IPEXCTL_TIMINGS": json.dumps({**json.loads(QUICK["IPEXCTL_TIMINGS"]), "rejoin": 5.0})}
    command = start(*RUN, *group, *SPLIT, RANKS / "survive.py", **timings)
    command.until("0│start 0, rank 0 of 2, before None", "1│start 0")
    with hosts.cut("node0"):
        command.until("[node1] gets the vote of this command", "start 1, rank 0 of 1, before 2")
        assert not list_ranks(hosts, "node0")
    command.until("[node0] is back, and can take part in the next restart")
    hosts.exec("node1", ["touch", "/root/fail"])
    command.until("start 2, rank 0 of 2, before None")
    end_ranks(hosts, *hosts.names)
    result = command.end(60.0)
    assert result.code == 0, result
    assert not find_orphans(hosts)


@over()
def test_the_halves_of_a_detached_run_wait_for_each_other(
    start: Start, workspace: Workspace, hosts: Cluster, group: tuple[str, ...]
) -> None:
    detached = start(*RUN, *group, *SPLIT, "--detach", RANKS / "survive.py", **QUICK).end(60.0)
    assert detached.code == 0, detached
    await_output(hosts, "node0", b"start 0, rank 0 of 2")
    with hosts.cut("node1"):
        wait(lambda: not list_ranks(hosts, "node0") and not list_ranks(hosts, "node1"), 30.0)
        time.sleep(LEASE + 4.0)  # in which one of them would have gone on
        assert not list_ranks(hosts, "node0") + list_ranks(hosts, "node1")
    await_output(hosts, "node0", b"start 1, rank 0 of 2, before None")
    hosts.exec("node0", ["touch", "/root/done"])
    result = workspace.succeed("attach", timeout=60.0)
    assert "restart 1 of 3 waits for " in result.out + result.err
    assert not find_orphans(hosts)
