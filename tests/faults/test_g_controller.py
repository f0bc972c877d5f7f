"""Signals, terminals and controllers that are stopped, closed, killed or asleep (cases G1 to G6)."""

import os
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, GATE, LIGHT, Group, Start, Terminal, Workspace, find_place, open_gates
from tests.stock import over
from tests.waiting import wait

RUN = ("run", "--limit", "node[0-2]")


def ticks(count: int) -> bytes:
    return b"".join(b"tick %d\n" % number for number in range(count))


@pytest.mark.fault("G2")
@over("gloo")
def test_g2_sigterm_to_the_controller_ends_the_run_as_ctrl_c_does(start: Start, mpi: Cluster, group: Group) -> None:
    command = start(*RUN, *group, ACTOR, "wait")
    command.until("0│waiting", "1│waiting", "2│waiting")
    command.signal(signal.SIGTERM)
    result = command.end()
    assert result.code == 143, result
    assert "0 processes left on 3 hosts" in result.out


@pytest.mark.fault("G3")
@over("none")
def test_g3_a_closed_terminal_ends_the_watcher_and_not_the_run(
    controller: Workspace, mpi: Cluster, group: Group, tmp_path: Path
) -> None:
    terminal = Terminal(controller, *RUN, *group, ACTOR, "count", "40", GATE)
    try:
        terminal.until(b"tick 5")
        terminal.close()
        wait(lambda: terminal.process.poll() is not None, 60.0)
        assert terminal.process.returncode == 129
    finally:
        terminal.kill()
    other = Workspace(mpi, tmp_path / "other")  # with nothing saved, it follows the run and has every byte of it
    assert [run["state"] for run in other.succeed("ps", "--json").answer["runs"]] == ["running"]
    open_gates(mpi)
    other.succeed("attach")
    for rank in range(3):
        assert other.written(rank) == ticks(40)


@pytest.mark.fault("G3")
def test_g3_under_nohup_a_closed_terminal_changes_nothing(controller: Workspace, mpi: Cluster) -> None:
    output = controller.path / "nohup.out"
    terminal = Terminal(controller, *RUN, "--venv", LIGHT, ACTOR, "count", "40", GATE, program="nohup")
    try:
        wait(lambda: output.exists() and "tick 5" in output.read_text(), 60.0)
        terminal.close()
        open_gates(mpi)
        assert terminal.process.wait(60) == 0
    finally:
        terminal.kill()
    for rank in range(3):
        assert controller.written(rank) == ticks(40)


@pytest.mark.fault("G5")
@over("impi")
def test_g5_a_controller_goes_on_at_the_byte(start: Start, controller: Workspace, mpi: Cluster, group: Group) -> None:
    """It notices within the time that holds if nobody says otherwise: 30 s."""
    command = start(*RUN, *group, ACTOR, "count", "400")
    command.until("0│tick 5\n", "1│tick 5\n", "2│tick 5\n")
    with mpi.cut("controller"):
        command.until("connection lost", timeout=60)
    result = command.end(90)
    assert result.code == 0, result
    assert "reconnected" in result.out + result.err
    for rank in range(3):
        assert controller.written(rank) == ticks(400)


@pytest.mark.fault("G6")
def test_g6_ctrl_c_while_connecting_to_a_dark_host(start: Start, mpi: Cluster) -> None:
    def count_servers() -> int:
        return sum("sshd" in process.argv[0] for process in mpi.processes("node0") if process.argv)

    idle = count_servers()
    with mpi.cut("node1"):
        command = start(*RUN, "--venv", LIGHT, ACTOR, "say")
        wait(lambda: count_servers() > idle, otherwise=lambda: str(command.output))
        command.signal(signal.SIGINT)
        result = command.end()
    assert result.code == 130, result
    assert "Traceback" not in result.err


@pytest.fixture
def slow_tar(mpi: Cluster) -> Iterator[None]:
    """Unpacking begins late on node2."""
    mpi.write("node2", "/usr/local/bin/tar", b'#!/bin/sh\nsleep 4\nexec /usr/bin/tar "$@"\n', 0o755)
    yield
    mpi.exec("node2", ["rm", "-f", "/usr/local/bin/tar"])


@pytest.mark.fault("G6")
def test_g6_ctrl_c_while_syncing(controller: Workspace, start: Start, mpi: Cluster, slow_tar: None) -> None:
    (controller.path / "proj").mkdir()
    (controller.path / "proj/train.py").write_bytes(os.urandom(1 << 20))
    command = start("sync", "proj")
    wait(lambda: any("/usr/local/bin/tar" in p.argv for p in mpi.processes("node2")), 60.0, lambda: str(command.output))
    command.signal(signal.SIGINT)
    result = command.end()
    assert result.code == 130, result
    assert "Traceback" not in result.err
    assert not mpi.path("node2", f"{find_place(controller.path / 'proj')}/train.py").exists()
    wait(lambda: not any(word.endswith("/tar") for p in mpi.processes("node2") for word in p.argv), 30.0)


@pytest.mark.fault("G6")
def test_g6_ctrl_c_while_asking_for_a_passphrase(
    new_controller: Callable[..., Workspace], mpi: Cluster, tmp_path: Path
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
