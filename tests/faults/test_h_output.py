"""What ranks write, where it is shown and where it is kept (cases H1 to H7)."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, Start, Started, Workspace
from tests.stock import over
from tests.waiting import wait

PLAYER = Path(__file__).parent / "ranks/player.py"
RUN = ("run", "--venv", LIGHT, "--limit", "node[0-2]")
LEDGER = "/root/ledger"


def ledger(mpi: Cluster, rank: int, stream: str = "out") -> bytes:
    """What the rank, alone on its host, was about to write."""
    place = mpi.path(f"node{rank}", f"{LEDGER}/{rank}.{stream}")
    return place.read_bytes() if place.exists() else b""


def wait_for_done(mpi: Cluster, hosts: tuple[str, ...]) -> None:
    """Until a rank on each of these hosts has written all it had."""
    wait(lambda: all(mpi.path(host, f"{LEDGER}/done").exists() for host in hosts), 120.0)


def measure(command: Started, timeout: float = 200.0) -> tuple[int, int]:
    """How a command ended, and the most memory it had, in bytes."""
    peak = 0  # not of getrusage: that begins with what the forked tests had before the command's own program

    def look() -> bool:
        nonlocal peak
        status = Path(f"/proc/{command.process.pid}/status").read_text()
        peak = max([peak, *(int(kib) << 10 for kib in re.findall(r"VmHWM:\s+(\d+)", status))])
        return command.process.poll() is not None

    wait(look, timeout, lambda: str(command.output))
    return command.process.returncode, peak


@pytest.mark.fault("H1")
@over("none")
def test_h1_ranks_print_as_fast_as_they_can(
    start: Start, controller: Workspace, mpi: Cluster, group: tuple[str, ...]
) -> None:
    """``IPEXCTL_FAULTS_LINES=1000000`` prints the whole million of each rank."""
    lines = int(os.environ.get("IPEXCTL_FAULTS_LINES", "20000"))
    code, memory = measure(start("run", *group, "--ppn", "2", PLAYER, "flood", str(lines)), 280.0)
    assert code == 0
    assert memory < 500 << 20
    for rank in range(8):
        for stream in ("out", "err"):
            assert controller.written(rank, stream) == mpi.read(f"node{rank // 2}", f"{LEDGER}/{rank}.{stream}")
    rows = controller.report()["run"]["ranks"]
    assert sum(controller.written(rank, stream).count(b"\n") for rank in range(8) for stream in ("out", "err")) == (
        8 * lines
    )
    assert all(row["state"] == "ok" for row in rows)


@pytest.mark.fault("H2")
def test_h2_a_pipe_that_nobody_reads_for_a_while(controller: Workspace, mpi: Cluster) -> None:
    process = subprocess.Popen(
        controller.words(*RUN, PLAYER, "flood", "40000"), env=controller.env, cwd=controller.path,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_done(mpi, ("node0", "node1", "node2"))  # while nothing is read
        assert process.poll() is None
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
    finally:
        process.kill()
    assert b"0 processes left on 3 hosts" in out
    for rank in range(3):
        assert controller.written(rank) == ledger(mpi, rank)


@pytest.mark.fault("H3")
@pytest.mark.parametrize("lines", [5, 2000])
def test_h3_a_reader_that_goes_away(controller: Workspace, mpi: Cluster, lines: int) -> None:
    process = subprocess.Popen(
        controller.words(*RUN, PLAYER, "flood", "20000"), env=controller.env, cwd=controller.path,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(120) == 0, err
        assert b"Traceback" not in err
        process.stderr.close()
    finally:
        process.kill()
    for rank in range(3):
        assert controller.written(rank) == ledger(mpi, rank)
