"""Those who watch a run come and go, the run goes on (faults.md G): closed terminals, killed controllers, leases,
and the verbs of those who come later, from another directory with nothing saved."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, GATE, LIGHT, QUICK, Desk, Started, Terminal, open_gates, residue, wait

RUN = ("run", "--venv", LIGHT)
LEDGER = "/root/ledger"
Start = Callable[..., Started]


def ticks(count: int) -> bytes:
    return b"".join(b"tick %d\n" % number for number in range(count))


def runs(desk: Desk) -> list[dict[str, object]]:
    told = desk("ps", "--json")
    assert told.code == 0, told
    return list(told.answer["runs"])


def test_a_detached_run_is_watched_by_another_desk_to_its_end_without_a_missing_byte(
    desk: Desk, hosts: Cluster, tmp_path: Path
) -> None:
    told = desk(*RUN, "--detach", ACTOR, "count", "40", GATE)
    assert told.code == 0, told
    other = Desk(hosts, tmp_path / "other")
    [one] = runs(other)
    assert one["state"] == "running"
    assert one["hosts"] == ["node0", "node1", "node2"]
    assert one["watchers"] == 0
    open_gates(hosts)
    attached = other("attach")
    assert attached.code == 0, attached
    assert "0 processes left on 3 hosts" in attached.out
    for rank in range(3):
        assert other.written(rank) == ticks(40)
    assert runs(other) == []
    assert not residue(hosts)


def test_a_closed_terminal_ends_the_watcher_and_not_the_run(desk: Desk, hosts: Cluster, tmp_path: Path) -> None:
    terminal = Terminal(desk, *RUN, ACTOR, "count", "40", GATE)
    try:
        terminal.until(b"tick 5")
        terminal.close()
        wait(lambda: terminal.process.poll() is not None, 60.0)
        assert terminal.process.returncode == 129
    finally:
        terminal.kill()
    other = Desk(hosts, tmp_path / "other")
    assert [one["state"] for one in runs(other)] == ["running"]
    open_gates(hosts)
    attached = other("attach")
    assert attached.code == 0, attached
    for rank in range(3):
        assert other.written(rank) == ticks(40)
    assert not residue(hosts)


def test_under_nohup_a_closed_terminal_changes_nothing(desk: Desk, hosts: Cluster) -> None:
    said = desk.path / "nohup.out"
    terminal = Terminal(desk, *RUN, ACTOR, "count", "40", GATE, program="nohup")
    try:
        wait(lambda: said.exists() and "tick 5" in said.read_text(), 60.0)
        terminal.close()
        open_gates(hosts)
        assert terminal.process.wait(60) == 0
    finally:
        terminal.kill()
    for rank in range(3):
        assert desk.written(rank) == ticks(40)
    assert not residue(hosts)


def test_a_killed_controller_loses_neither_the_run_nor_a_byte(
    desk: Desk, start: Start, hosts: Cluster, tmp_path: Path
) -> None:
    going = start(*RUN, ACTOR, "count", "40", GATE)
    going.until("0│tick 9\n", "1│tick 9\n", "2│tick 9\n")
    going.signal(signal.SIGKILL)
    going.process.wait()
    other = Desk(hosts, tmp_path / "other")
    wait(lambda: [one["watchers"] for one in runs(other)] == [0], 60.0)
    busy = other(*RUN, ACTOR, "say")
    assert busy.code == 7, busy
    assert "busy with run" in busy.err + busy.out
    open_gates(hosts)
    attached = other("attach")
    assert attached.code == 0, attached
    for rank in range(3):
        assert other.written(rank) == ticks(40)
    assert not residue(hosts)


def test_with_a_lease_a_run_ends_soon_after_its_last_watcher(start: Start, hosts: Cluster) -> None:
    going = start(*RUN, "--lease", "5", ACTOR, "wait")
    going.until("0│waiting", "1│waiting", "2│waiting")
    time.sleep(6.0)  # as long as somebody watches, nothing ends
    assert going.process.poll() is None
    going.signal(signal.SIGKILL)
    going.process.wait()
    begun = time.monotonic()
    wait(lambda: not any("IPEXCTL_RUN" in p.environ for host in hosts.names for p in hosts.processes(host)), 60.0)
    assert time.monotonic() - begun > 3.0
    end = next(hosts.path("node0", "/root/.local/state/ipexctl/runs").glob("*/end.json"))
    assert "watcher lost" in json.loads(end.read_text())["detail"]


def test_a_controller_that_slept_catches_up_without_a_gap(start: Start, desk: Desk, hosts: Cluster) -> None:
    going = start(*RUN, ACTOR, "count", "60", **QUICK)
    going.until("0│tick 9\n")
    going.signal(signal.SIGSTOP)
    with hosts.cut("controller"):
        time.sleep(4.0)  # longer than its watcher waits for it
    going.signal(signal.SIGCONT)
    told = going.end(90)
    assert told.code == 0, told
    for rank in range(3):
        assert desk.written(rank) == ticks(60)
    assert not residue(hosts)


def test_logs_gives_a_ranks_bytes_with_nothing_added(desk: Desk, hosts: Cluster, tmp_path: Path) -> None:
    assert desk(*RUN, "--detach", ACTOR, "bytes", LEDGER).code == 0
    other = Desk(hosts, tmp_path / "other")
    wait(lambda: [one["state"] for one in runs(other)] == ["ended"], 60.0)
    for rank in range(3):
        ledgers = tuple(hosts.read(f"node{rank}", f"{LEDGER}/{rank}.{stream}") for stream in ("out", "err"))
        assert other.raw("logs", "--rank", str(rank)) == ledgers
    followed = other("logs", "--follow")
    assert followed.code == 0
    assert not other.records, "logs saves nothing"
    attached = other("attach")
    assert attached.code == 0, attached
    for rank in range(3):
        for stream in ("out", "err"):
            assert other.written(rank, stream) == hosts.read(f"node{rank}", f"{LEDGER}/{rank}.{stream}")
    assert not residue(hosts)


def test_stop_ends_a_run_from_elsewhere_and_its_output_can_still_be_fetched(
    desk: Desk, start: Start, hosts: Cluster, tmp_path: Path
) -> None:
    going = start(*RUN, ACTOR, "wait")
    going.until("0│waiting", "1│waiting", "2│waiting")
    other = Desk(hosts, tmp_path / "other")
    stopped = other("stop")
    assert stopped.code == 0, stopped
    assert "0 processes left on 3 hosts" in stopped.out
    told = going.end()
    assert told.code == 6, told  # whoever watched it did not get what was asked for
    assert "stopped" in told.out
    assert not [p for host in hosts.names for p in hosts.processes(host) if "IPEXCTL_RUN" in p.environ]


def test_two_watchers_at_once_see_the_same(desk: Desk, start: Start, hosts: Cluster, tmp_path: Path) -> None:
    going = start(*RUN, ACTOR, "count", "40", GATE)
    going.until("0│tick 5\n")
    other = Desk(hosts, tmp_path / "other")
    attached = other.start("attach")
    attached.until("0│tick 5\n")
    open_gates(hosts)
    assert attached.end().code == 0, attached.said
    assert going.end().code == 0
    for rank in range(3):
        assert desk.written(rank) == other.written(rank) == ticks(40)
    assert not residue(hosts)


def test_reap_takes_away_what_a_killed_keeper_left(desk: Desk, start: Start, hosts: Cluster) -> None:
    assert desk(*RUN, "--detach", ACTOR, "wait").code == 0
    for process in hosts.processes("node0"):
        if "IPEXCTL_RUN" in process.environ and "keeper" in process.argv:
            os.kill(process.outer, signal.SIGKILL)
    wait(lambda: not any("IPEXCTL_RUN" in p.environ for host in hosts.names for p in hosts.processes(host)), 60.0)
    told = desk("reap")
    assert told.code == 0, told
    assert not residue(hosts)
    assert runs(desk) == []


def test_reap_of_a_run_that_never_was_says_so(desk: Desk) -> None:
    told = desk("reap", "1120-000000-none")
    assert told.code == 4, told
    assert "no run 1120-000000-none is kept on these hosts" in told.err


def test_attach_to_nothing_says_so(desk: Desk) -> None:
    told = desk("attach")
    assert told.code == 4, told
    assert "no run is kept on these hosts" in told.err


def test_ctrl_c_before_anything_runs_gives_the_prompt_back(start: Start, hosts: Cluster) -> None:
    with hosts.cut("node1"):
        going = start(*RUN, ACTOR, "say")
        going.until("probe: ok")
        going.signal(signal.SIGINT)
        told = going.end()
    assert told.code == 130, told
    assert "Traceback" not in told.err
    assert not residue(hosts)
