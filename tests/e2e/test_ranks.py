"""What only ranks on separate hosts prove of their output. Starts, failures and ends: test_road.py, test_drills.py,
tests/faults, tests/integration/test_attempt.py."""

import re
import shutil
import termios
import time

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, LIGHT, RANKS, Terminal, Workspace

RUN = ("run", "--venv", LIGHT)
LEDGER = "/root/ledger"


@pytest.mark.parametrize("engine", ["impi", "openmpi"])
def test_a_rank_that_knows_the_nonce_speaks_for_itself(workspace: Workspace, hosts: Cluster, engine: str) -> None:
    if engine != "impi" and not shutil.which(f"mpirun.{engine}"):
        pytest.skip(f"mpirun.{engine} is not installed on this machine")
    workspace.succeed(*RUN, *(("--mpi", engine) if engine != "impi" else ()), "--ppn", "1", ACTOR, "forge", LEDGER)
    for rank, host in enumerate(hosts.names):
        assert workspace.written(rank) == hosts.read(host, f"{LEDGER}/{rank}.out") != b""


def test_a_run_that_ends_before_it_can_be_stopped_for_its_loss_has_not_ended_well(workspace: Workspace) -> None:
    result = workspace(*RUN, "--json", "--ppn", "1", "--stop-on-nan", RANKS / "loses.py", "32", timeout=60)
    answer = result.answer
    assert (result.code, answer["exit"], answer["reason"], answer["codes"]) == (6, 6, "done", ["nan"]), result


def test_what_is_typed_while_a_run_ends_leaves_no_dead_frame_on_the_screen(workspace: Workspace) -> None:
    terminal = Terminal(workspace, *RUN, "--ppn", "1", "--stop-on-nan", RANKS / "loses.py", columns=80, lines=24)
    try:
        terminal.until("▌ loss is NaN on ".encode())
        early = False  # the terminal echoes what is typed, and the frame is still there
        while terminal.process.poll() is None:
            echoes = termios.tcgetattr(terminal.master)[3] & termios.ECHO
            early |= bool(echoes) and b"\x1b[?25h" not in terminal.read()
            time.sleep(0.005)
        shown = terminal.look()
        assert terminal.end() == 6
        assert not early
        assert re.search(r"^! loss is NaN on .* since step 30 \(2\.21 at step 29\)", shown, re.MULTILINE), shown
        assert " rank  host" not in shown
        assert shown.count("processes left") == 1
        lost = workspace.report()["run"]["lost_loss"]
        assert (bool(lost["ranks"]), lost["step"], lost["last_step"]) == (True, 30, 29)
        assert lost["text"] in (workspace.records[-1] / "report.html").read_text()
    finally:
        terminal.kill()
