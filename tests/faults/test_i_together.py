"""Several runs on the same hosts, what is in their way, and what they leave behind (cases I1 to I5)."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import (
    ACTOR,
    GATE,
    LIGHT,
    QUICK,
    Group,
    NewController,
    Start,
    Workspace,
    find_place,
    kill,
    open_gates,
    running,
)
from tests.faults.checks import expect, remove_kept_output
from tests.stock import over
from tests.waiting import wait

PLAYER = Path(__file__).parent / "ranks/player.py"
RUN = ("run", "--venv", LIGHT, "--limit", "node[0-2]")


def is_empty(mpi: Cluster) -> bool:
    return not any("IPEXCTL_RUN" in p.environ for host in mpi.names for p in mpi.processes(host))


LISTEN = (
    "import socket,sys,time; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
    "s.bind(('', int(sys.argv[1]))); s.listen(); print('on', flush=True); time.sleep(600)"
)


@pytest.fixture
def taken(mpi: Cluster) -> Iterator[int]:
    """A port of node0 where somebody listens."""
    words = [*mpi.entrance("node0"), "python3", "-c", LISTEN, "29611"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "on\n"
        yield 29611
        os.killpg(listener.pid, signal.SIGKILL)


@pytest.mark.fault("I2")
def test_i2_a_port_in_use_is_named_before_ranks_start(controller: Workspace, mpi: Cluster, taken: int) -> None:
    result = controller(*RUN, "--port", str(taken), PLAYER, "meet")
    expect(result, 4, str(taken), "node0")
    assert "0│" not in result.out


@pytest.mark.fault("I2")
def test_i2_a_free_port_is_chosen_where_none_is_asked_for(controller: Workspace, mpi: Cluster, taken: int) -> None:
    for _ in range(2):
        result = controller(*RUN, PLAYER, "meet")
        expect(result, 0, "0│met 2", "1│met 2", "2│met 2")


@pytest.mark.fault("I3")
@over("gloo")
def test_i3_locks_of_the_dead_are_taken_over(
    start: Start, new_controller: NewController, mpi: Cluster, group: Group
) -> None:
    command = start(*RUN, *group, "--node-lease", "5", "--grace", "2", ACTOR, "wait", **QUICK)
    command.until("0│waiting", "1│waiting", "2│waiting")
    command.signal(signal.SIGKILL)
    command.process.wait()
    for host in ("node0", "node2"):
        for pid in running(mpi, host, "keeper") + running(mpi, host, "guard"):
            kill(pid)
    mpi.power_off("node1")
    mpi.power_on("node1")
    wait(lambda: is_empty(mpi), 60.0)
    other = new_controller("second")
    expect(other(*RUN, ACTOR, "say"), 0)
    reap_old(other, mpi)


def reap_old(controller: Workspace, mpi: Cluster) -> None:
    """A minute later: the next run takes away what a power cut left of a removal, a clean-up the rest."""
    for host in mpi.names:
        for directory in mpi.path(host, "/root/.local/state/ipexctl/runs").glob("*-h*"):
            os.utime(directory, (time.time() - 300,) * 2)  # a younger one may be that of a run that just begins
    expect(controller(*RUN, ACTOR, "say"), 0)
    expect(controller("stop", "--orphans"), 0)


@pytest.mark.fault("I3")
@over("impi")
def test_i3_ranks_whose_guard_and_launcher_were_killed_end_by_themselves(
    start: Start, new_controller: NewController, mpi: Cluster, group: Group
) -> None:
    command = start(*RUN, *group, "--node-lease", "5", ACTOR, "wait", **QUICK)
    command.until("0│waiting", "1│waiting", "2│waiting")
    command.signal(signal.SIGKILL)
    command.process.wait()
    parts = [process for process in mpi.processes("node2") if "IPEXCTL_RUN" in process.environ]
    ranks = [process for process in parts if {"rank", "actor.py"} & set(process.argv)]
    assert len(ranks) == 2, parts
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none of them sees another's end, and takes the ranks along
        for process in parts:
            if process not in ranks:
                kill(process.outer, number)
    wait(lambda: not any("IPEXCTL_RUN" in process.environ for process in mpi.processes("node2")), 60.0)
    wait(lambda: is_empty(mpi), 60.0)
    second = new_controller("second")
    expect(second("stop"), 0)
    remove_kept_output(second)
    reap_old(new_controller("third"), mpi)


@pytest.mark.fault("I3")
def test_i3_the_lock_of_a_stopped_owner_is_kept(start: Start, new_controller: NewController, mpi: Cluster) -> None:
    command = start(*RUN, "--node-lease", "60", ACTOR, "count", "40", GATE)
    command.until("0│tick 1\n", "1│tick 1\n", "2│tick 1\n")
    [guard] = running(mpi, "node1", "guard")
    os.kill(guard, signal.SIGSTOP)
    try:
        result = new_controller("second")("run", "--venv", LIGHT, "--limit", "node1", ACTOR, "say")
        expect(result, 7, "node1", "busy with run")
    finally:
        os.kill(guard, signal.SIGCONT)
    open_gates(mpi)
    expect(command.end(), 0)


@pytest.fixture
def foreign(mpi: Cluster) -> Iterator[Callable[[], list[str]]]:
    """What else the user has on the hosts: its names while it lives."""
    actor = f"{find_place(ACTOR)}/actor.py"
    started = {
        "a process with the same script": ("node1", ["env", "RANK=0", "WORLD_SIZE=1", "python3", actor, "wait"]),
        "an editor": ("node1", ["bash", "-c", "exec -a 'vi actor.py' sleep 600"]),
        "a job of mpirun": ("node0", [f"{LIGHT}/bin/mpiexec.hydra", "-n", "2", "sleep", "600"]),
        "a shell": ("node2", ["sh", "-c", "sleep 600; exit"]),
    }
    processes = {}
    for name, (host, words) in started.items():
        mpi.write(host, actor, ACTOR.read_bytes())
        processes[name] = subprocess.Popen(
            [*mpi.entrance(host), *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            env={"PATH": f"{LIGHT}/bin:/usr/bin:/bin", "HOME": "/root"}, start_new_session=True,
        )  # fmt: skip
    yield lambda: [name for name, process in processes.items() if process.poll() is None]
    for process in processes.values():
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
    for host in mpi.names:
        for p in mpi.processes(host):
            if p.argv[-1:] == ("600",):
                kill(p.outer)


@pytest.mark.fault("I5")
def test_i5_a_clean_up_takes_only_what_is_its_own(
    start: Start, controller: Workspace, mpi: Cluster, foreign: Callable[[], list[str]]
) -> None:
    alive = foreign()
    assert len(alive) == 4
    expect(controller(*RUN, "--grace", "2", ACTOR, "exit", "3", "1"), 5)
    assert foreign() == alive
    command = start(*RUN, "--grace", "2", ACTOR, "stubborn")
    command.until("0│stubborn", "1│stubborn", "2│stubborn")
    command.signal(signal.SIGINT)
    expect(command.end(), 130)
    assert foreign() == alive
    assert controller(*RUN, "--detach", ACTOR, "wait").code == 0
    expect(controller("stop"), 0)
    assert foreign() == alive
    expect(controller("stop", "--orphans"), 0)
    assert foreign() == alive
    remove_kept_output(controller)
    assert foreign() == alive
