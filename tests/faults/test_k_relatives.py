"""Relatives of the other cases: shed connections, a killed launcher, odd input, impatience, logs that go away."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, GATE, LIGHT, Desk, Started, Told, open_gates, running
from tests.faults.checks import expect

PLAYER = Path(__file__).parent / "ranks/player.py"
ON = ("--venv", LIGHT, "--limit", "node[0-2]")
RUN = ("run", *ON)
Start = Callable[..., Started]
NewController = Callable[..., Desk]
TICKS = b"".join(b"tick %d\n" % n for n in range(40))


@pytest.mark.fault("K1")
def test_k1_an_sshd_that_sheds_connections_is_asked_again(odd_sshd: Callable[..., Desk]) -> None:
    desk = odd_sshd(8, "MaxStartups 2:100:3")
    told = desk("doctor", "--forks", "32", "--pairwise", "off", "--json", timeout=180)
    assert "Traceback" not in told.err
    limited = "connection limit" in told.out + told.err
    assert (told.code in (0, 4) and len(told.answer["hosts"]) == 32) or (told.code == 3 and limited), told


@pytest.mark.fault("K5")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_k5_mpirun_is_killed(start: Start, mpi: Cluster, number: signal.Signals) -> None:
    going = start(*RUN, "--grace", "2", ACTOR, "wait")
    going.until("0│waiting", "1│waiting", "2│waiting")
    os.kill(running(mpi, "node0", "mpiexec.hydra")[0], number)
    told = going.end()
    expect(told, 6, f"mpirun on node0 was killed by {number.name}", "0 processes left on 3 hosts")


@pytest.mark.fault("K7")
@pytest.mark.parametrize("how", ["closed", "full", "endless"])
def test_k7_ranks_read_nothing_whatever_the_controllers_input_is(controller: Desk, mpi: Cluster, how: str) -> None:
    words = controller.words(*RUN, PLAYER, "read")
    prefix = {"closed": 'exec "$@" <&-', "full": 'head -c 50000000 /dev/zero | "$@"', "endless": 'exec "$@" </dev/zero'}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", prefix[how], "sh", *words], env=controller.env, cwd=controller.path,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
    )  # fmt: skip
    told = Told(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert told.code == (141 if how == "full" else 0), told  # who fills the pipe that nobody reads ends by SIGPIPE
    assert "Traceback" not in told.err
    for rank in range(3):
        assert f"{rank}│read b''" in told.out


@pytest.mark.fault("K7")
def test_k7_the_first_rank_reads_what_it_is_given(controller: Desk, mpi: Cluster) -> None:
    (controller.path / "input").write_bytes(b"two\nlines")
    told = controller(*RUN, "--stdin", "input", PLAYER, "read")
    expect(told, 0, r"0│read b'two\nlines'", "1│read b''", "2│read b''")


@pytest.mark.fault("K9")
@pytest.mark.parametrize("how", ["deleted", "renamed", "truncated", "a link", "read-only"])
def test_k9_a_log_is_pulled_away(start: Start, controller: Desk, mpi: Cluster, how: str) -> None:
    going = start(*RUN, ACTOR, "count", "40", GATE)
    going.until("0│tick 8\n", "1│tick 8\n", "2│tick 8\n")
    folder = controller.records[-1] / "ranks"
    log = folder / "0.out"
    victim = controller.path / "victim"
    victim.mkdir()
    (victim / "0.out").write_bytes(b"mine")
    if how == "deleted":
        log.unlink()
    elif how == "renamed":
        log.rename(folder / "0.old")
    elif how == "truncated":
        os.truncate(log, 0)
    elif how == "a link":
        folder.rename(folder.with_name("ranks.old"))
        folder.symlink_to(victim)
    else:
        log.chmod(0o400)
        subprocess.run(["chattr", "+i", log], check=False)  # for root a mode is no hindrance
    open_gates(mpi)
    told = going.end()
    subprocess.run(["chattr", "-i", log], check=False, stderr=subprocess.DEVNULL)
    assert told.code in (0, 9), told
    assert "Traceback" not in told.err
    assert (victim / "0.out").read_bytes() == b"mine"
    kept = log.read_bytes() if how != "a link" else (folder.with_name("ranks.old") / "0.out").read_bytes()
    if (folder / "0.old").exists():
        kept = (folder / "0.old").read_bytes() + kept
    if told.code == 0:
        assert TICKS in kept or all(f"tick {n}\n".encode() in kept for n in range(40)), kept
    else:
        assert controller.report()["lost"]["ranks"]["0"] > 0
    for rank in (1, 2) if how != "a link" else ():
        assert controller.written(rank) == TICKS
