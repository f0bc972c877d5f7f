"""Runs on three separate hosts: what the user sees, the exit code, and what is left. Faults: tests/faults."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, LIGHT, Desk, Started, residue, running

RUN = ("run", "--venv", LIGHT)
LEDGER = "/root/ledger"
Start = Callable[..., Started]


def ranks(desk: Desk) -> dict[int, dict[str, object]]:
    return {row["rank"]: row for row in desk.report()["run"]["ranks"]}


def test_a_run_ends_well_and_says_that_nothing_is_left(desk: Desk, hosts: Cluster) -> None:
    told = desk(*RUN, "--ppn", "2", ACTOR, "say", "two words", "$(touch pwned)", "")
    assert told.code == 0, told
    for rank in range(6):
        assert f"rank {rank} of 6 argv ['two words', '$(touch pwned)', '']" in told.out
    assert "0 processes left on 3 hosts" in told.out
    assert [ranks(desk)[rank]["host"] for rank in range(6)] == [f"node{rank // 2}" for rank in range(6)]
    assert not residue(hosts)


@pytest.mark.parametrize("engine", ["impi", "mpich", "openmpi"])
def test_a_rank_that_knows_the_runs_nonce_still_speaks_for_itself_alone(
    desk: Desk, hosts: Cluster, engine: str
) -> None:
    if engine != "impi" and not shutil.which(f"mpirun.{engine}"):
        pytest.skip(f"mpirun.{engine} is not installed on this machine")
    told = desk(*RUN, *(("--mpi", engine) if engine != "impi" else ()), "--ppn", "1", ACTOR, "forge", LEDGER)
    assert told.code == 0, told
    for rank, host in enumerate(hosts.names):
        assert desk.written(rank) == hosts.read(host, f"{LEDGER}/{rank}.out") != b""


@pytest.mark.parametrize(
    ("host", "word"), [("node0", "keeper"), ("node2", "guard")]
)  # all others: tests/integration/test_attempt.py; at any moment: test_drills.py
def test_if_the_head_or_the_guard_of_a_host_is_killed_the_run_ends_and_nothing_is_left(
    start: Start, hosts: Cluster, host: str, word: str
) -> None:
    going = start(*RUN, ACTOR, "wait")
    going.until("0│waiting", "1│waiting", "2│waiting")
    os.kill(running(hosts, host, word)[0], signal.SIGKILL)
    told = going.end(120)
    assert told.code == 6, told
    assert "0 processes left on 3 hosts" in told.out
    assert not residue(hosts)


def test_a_time_limit_ends_the_run(desk: Desk, hosts: Cluster) -> None:
    told = desk(*RUN, "--time-limit", "3", ACTOR, "wait")
    assert told.code == 6, told
    assert "time limit of 3 s" in told.out
    assert not residue(hosts)


def test_an_interpreter_error_before_the_script_begins_is_the_ranks_own_failure(desk: Desk, tmp_path: Path) -> None:
    script = tmp_path / "job/broken.py"
    script.parent.mkdir()
    script.write_text("def f(:\n")
    told = desk(*RUN, script)
    assert told.code == 5, told
    assert "SyntaxError" in told.out
