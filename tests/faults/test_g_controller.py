"""Signals, terminals and controllers that are stopped, closed, killed or asleep (cases G1 to G6)."""

from __future__ import annotations

import os
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, GATE, LIGHT, QUICK, Desk, Started, Terminal, open_gates, residue, wait

ON = ("--venv", LIGHT, "--limit", "node[0-2]")
RUN = ("run", *ON)
Start = Callable[..., Started]


def ticks(count: int) -> bytes:
    return b"".join(b"tick %d\n" % number for number in range(count))


def runs(controller: Desk) -> list[dict[str, object]]:
    told = controller("ps", "--json")
    assert told.code == 0, told
    return list(told.answer["runs"])


def attach_from_elsewhere(mpi: Cluster, path: Path, count: int) -> None:
    """Another user's desk, with nothing saved, follows the run to its end and has every byte of it."""
    other = Desk(mpi, path)
    open_gates(mpi)
    told = other("attach")
    assert told.code == 0, told
    for rank in range(3):
        assert other.written(rank) == ticks(count)
    assert not residue(mpi)


@pytest.mark.fault("G1")
@pytest.mark.parametrize("act", ["wait", "stubborn"])
def test_g1_one_ctrl_c(start: Start, mpi: Cluster, act: str) -> None:
    word = {"wait": "waiting", "stubborn": "stubborn"}[act]
    going = start(*RUN, "--ppn", "2", "--grace", "2", ACTOR, act)
    going.until(*(f"{rank}│{word}" for rank in range(6)))
    going.signal(signal.SIGINT)
    told = going.end()
    assert told.code == 130, told
    assert "stopping (again to kill)" in told.err
    assert ("needed SIGKILL" in told.out + told.err) == (act == "stubborn")
    assert "0 processes left on 3 hosts" in told.out
    assert not residue(mpi)


@pytest.mark.fault("G1")
def test_g1_a_second_ctrl_c_waits_for_no_grace(start: Start, mpi: Cluster) -> None:
    going = start(*RUN, "--grace", "600", ACTOR, "stubborn")
    going.until("0│stubborn", "1│stubborn", "2│stubborn")
    going.signal(signal.SIGINT)
    going.until("stopping (again to kill)")
    going.signal(signal.SIGINT)
    told = going.end()
    assert told.code == 130, told
    assert "0 processes left on 3 hosts" in told.out
    assert not residue(mpi)


@pytest.mark.fault("G2")
def test_g2_sigterm_to_the_controller_ends_the_run_as_ctrl_c_does(start: Start, mpi: Cluster) -> None:
    going = start(*RUN, ACTOR, "wait")
    going.until("0│waiting", "1│waiting", "2│waiting")
    going.signal(signal.SIGTERM)
    told = going.end()
    assert told.code == 143, told
    assert "0 processes left on 3 hosts" in told.out
    assert not residue(mpi)


@pytest.mark.fault("G3")
def test_g3_a_closed_terminal_ends_the_watcher_and_not_the_run(controller: Desk, mpi: Cluster, tmp_path: Path) -> None:
    terminal = Terminal(controller, *RUN, ACTOR, "count", "40", GATE)
    try:
        terminal.until(b"tick 5")
        terminal.close()
        wait(lambda: terminal.process.poll() is not None, 60.0)
        assert terminal.process.returncode == 129
    finally:
        terminal.kill()
    other = Desk(mpi, tmp_path / "ps")
    assert [one["state"] for one in runs(other)] == ["running"]
    attach_from_elsewhere(mpi, tmp_path / "other", 40)


@pytest.mark.fault("G3")
def test_g3_with_a_lease_the_run_ends_after_its_terminal(controller: Desk, mpi: Cluster) -> None:
    terminal = Terminal(controller, *RUN, "--lease", "3", ACTOR, "wait")
    try:
        terminal.until(b"waiting")
        terminal.close()
        wait(lambda: terminal.process.poll() is not None, 60.0)
    finally:
        terminal.kill()
    wait_until_empty(mpi)
    told = controller("attach")
    assert told.code == 6, told
    assert "watcher lost" in told.out + told.err


@pytest.mark.fault("G3")
def test_g3_under_nohup_a_closed_terminal_changes_nothing(controller: Desk, mpi: Cluster) -> None:
    said = controller.path / "nohup.out"
    terminal = Terminal(controller, *RUN, ACTOR, "count", "40", GATE, program="nohup")
    try:
        wait(lambda: said.exists() and "tick 5" in said.read_text(), 60.0)
        terminal.close()
        open_gates(mpi)
        assert terminal.process.wait(60) == 0
    finally:
        terminal.kill()
    for rank in range(3):
        assert controller.written(rank) == ticks(40)
    assert not residue(mpi)


@pytest.mark.fault("G4")
def test_g4_a_killed_controller_loses_neither_the_run_nor_a_byte(
    controller: Desk, start: Start, mpi: Cluster, tmp_path: Path
) -> None:
    going = start(*RUN, ACTOR, "count", "40", GATE)
    going.until("0│tick 9\n", "1│tick 9\n", "2│tick 9\n")
    going.signal(signal.SIGKILL)
    going.process.wait()
    other = Desk(mpi, tmp_path / "ps")
    wait(lambda: [one["watchers"] for one in runs(other)] == [0], 60.0)
    busy = other(*RUN, ACTOR, "say")
    assert busy.code == 7, busy
    assert "busy with run" in busy.err + busy.out
    attach_from_elsewhere(mpi, tmp_path / "other", 40)


def wait_until_empty(mpi: Cluster) -> None:
    wait(lambda: not any("IPEXCTL_RUN" in p.environ for host in mpi.names for p in mpi.processes(host)), 60.0)


@pytest.mark.fault("G4")
def test_g4_with_a_lease_a_run_ends_soon_after_its_controller(
    start: Start, new_controller: Callable[..., Desk], mpi: Cluster
) -> None:
    going = start(*RUN, "--lease", "5", ACTOR, "wait")
    going.until("0│waiting", "1│waiting", "2│waiting")
    time.sleep(6.0)  # as long as somebody watches, nothing ends
    assert going.process.poll() is None
    going.signal(signal.SIGKILL)
    going.process.wait()
    begun = time.monotonic()
    wait_until_empty(mpi)
    assert time.monotonic() - begun > 3.0
    told = new_controller("later")("attach")
    assert told.code == 6, told
    assert "watcher lost" in told.out + told.err


@pytest.mark.fault("G5")
def test_g5_a_controller_that_slept_catches_up_without_a_gap(start: Start, controller: Desk, mpi: Cluster) -> None:
    going = start(*RUN, ACTOR, "count", "60", **QUICK)
    going.until("0│tick 9\n")
    going.signal(signal.SIGSTOP)
    with mpi.cut("controller"):
        time.sleep(4.0)  # longer than its watcher waits for it
    going.signal(signal.SIGCONT)
    told = going.end(90)
    assert told.code == 0, told
    for rank in range(3):
        assert controller.written(rank) == ticks(60)
    assert not residue(mpi)


@pytest.mark.fault("G5")
def test_g5_with_a_lease_a_controller_that_slept_finds_its_run_ended(start: Start, mpi: Cluster) -> None:
    going = start(*RUN, "--lease", "3", ACTOR, "wait", **QUICK)
    going.until("0│waiting", "1│waiting", "2│waiting")
    going.signal(signal.SIGSTOP)
    with mpi.cut("controller"):
        wait_until_empty(mpi)
    going.signal(signal.SIGCONT)
    told = going.end(90)
    assert told.code == 6, told
    assert "watcher lost" in told.out + told.err
    assert not residue(mpi)


@pytest.mark.fault("G5")
def test_g5_a_controller_that_is_cut_off_goes_on_at_the_exact_byte(
    start: Start, controller: Desk, mpi: Cluster
) -> None:
    """It notices within the time that holds if nobody says otherwise: 30 s."""
    going = start("run", *ON, ACTOR, "count", "400")
    going.until("0│tick 5\n", "1│tick 5\n", "2│tick 5\n")
    with mpi.cut("controller"):
        going.until("connection lost", timeout=60)
    told = going.end(90)
    assert told.code == 0, told
    assert "reconnected" in told.out + told.err
    for rank in range(3):
        assert controller.written(rank) == ticks(400)
    assert not residue(mpi)


@pytest.mark.fault("G6")
def test_g6_ctrl_c_while_connecting_to_a_dark_host(start: Start, mpi: Cluster) -> None:
    with mpi.cut("node1"):
        going = start(*RUN, ACTOR, "say")
        going.until("probe: ok")
        going.signal(signal.SIGINT)
        told = going.end()
    assert told.code == 130, told
    assert "Traceback" not in told.err
    assert not residue(mpi)


@pytest.fixture
def slow_tar(mpi: Cluster) -> Iterator[None]:
    """Unpacking begins late on node2."""
    mpi.write("node2", "/usr/local/bin/tar", b'#!/bin/sh\nsleep 4\nexec /usr/bin/tar "$@"\n', 0o755)
    yield
    mpi.exec("node2", ["rm", "-f", "/usr/local/bin/tar"])


@pytest.mark.fault("G6")
def test_g6_ctrl_c_while_syncing(controller: Desk, start: Start, mpi: Cluster, slow_tar: None) -> None:
    (controller.path / "proj").mkdir()
    (controller.path / "proj/train.py").write_bytes(os.urandom(1 << 20))
    going = start("sync", "proj")
    wait(lambda: any("/usr/local/bin/tar" in p.argv for p in mpi.processes("node2")), 60.0, lambda: str(going.said))
    going.signal(signal.SIGINT)
    told = going.end()
    assert told.code == 130, told
    assert "Traceback" not in told.err
    assert not mpi.path("node2", "/root/ipexctl/proj/train.py").exists()
    wait(lambda: not any(word.endswith("/tar") for p in mpi.processes("node2") for word in p.argv), 30.0)


@pytest.mark.fault("G6")
def test_g6_ctrl_c_while_asking_for_a_passphrase(
    new_controller: Callable[..., Desk], mpi: Cluster, tmp_path: Path
) -> None:
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "words", "-f", str(key)], check=True)
    hostfile = tmp_path / "hostfile"
    hostfile.write_text(mpi.hostfile.read_text().replace(str(mpi.key), str(key)))
    terminal = Terminal(new_controller("asked", hostfile=hostfile), "doctor", "--ask-pass")
    try:
        terminal.until(b"assphrase")
        terminal.type(b"\x03")
        assert terminal.end() == 130
        assert b"Traceback" not in terminal.read()
        assert termios.tcgetattr(terminal.master)[3] & termios.ECHO
    finally:
        terminal.kill()
