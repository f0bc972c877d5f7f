"""Ranks that fail, die, hang, hide or outlast the others (cases F1 to F7 and F12)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, LIGHT, QUICK, RANKS, Desk, Started, residue, wait
from tests.e2e.groups import frozen, memory
from tests.faults.checks import LEDGERS

ON = ("--venv", LIGHT, "--limit", "node[0-2]")
RUN = ("run", *ON)
PLAYER = Path(__file__).parent / "ranks/player.py"
Start = Callable[..., Started]


def outcomes(controller: Desk) -> dict[int, dict[str, Any]]:
    return {row["rank"]: row for row in controller.report()["run"]["ranks"]}


def list_ranks(cluster: Cluster, host: str) -> list[int]:
    """The ranks themselves on a host, as ids on this machine."""
    return [
        process.outer
        for process in cluster.processes(host)
        if "IPEXCTL_RANK" in process.environ and any(word.endswith("actor.py") for word in process.argv)
    ]


@pytest.mark.fault("F1")
def test_f1_one_rank_fails_while_the_others_wait(controller: Desk, mpi: Cluster) -> None:
    told = controller("run", "--venv", LIGHT, "--ppn", "2", "--grace", "2", PLAYER, "fail", "3", "5")
    assert told.code == 5, told
    card = told.out[told.out.index("rank 5 on node2 exited with code 3") :]
    for number in range(10, 30):
        assert f"line {number} of the end" in card
    assert "ended by us: 7 ranks" in card
    assert "0 processes left on 4 hosts" in card
    rows = outcomes(controller)
    assert (rows[5]["status"], rows[5]["state"]) == (3, "failed")
    assert {rows[rank]["state"] for rank in (0, 1, 2, 3, 4, 6, 7)} == {"stopped"}
    assert not residue(mpi)


@pytest.mark.fault("F1")
def test_f1_json_has_every_ranks_own_outcome(controller: Desk) -> None:
    told = controller(*RUN, "--json", PLAYER, "fail", "3", "1")
    assert told.code == 5, told
    assert told.answer["exit"] == 5
    rows = {row["rank"]: row for row in told.answer["ranks"]}
    assert (rows[1]["host"], rows[1]["status"], rows[1]["state"]) == ("node1", 3, "failed")
    assert {rows[0]["state"], rows[2]["state"]} == {"stopped"}


@pytest.mark.fault("F2")
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGABRT"])
def test_f2_a_rank_dies_by_a_signal(controller: Desk, mpi: Cluster, name: str) -> None:
    told = controller(*RUN, ACTOR, "signal", name, "1")
    assert told.code == 5, told
    assert f"rank 1 on node1 was killed by {name}" in told.out
    assert ("memory may have run out" in told.out) == (name == "SIGKILL")
    assert outcomes(controller)[1]["signal"] == getattr(signal, name)
    for host in mpi.names:
        assert not [path for path in mpi.path(host, "/root/ipexctl").rglob("core*") if path.is_file()]
    assert not residue(mpi)


@pytest.mark.fault("F3")
def test_f3_a_rank_runs_out_of_memory(controller: Desk, mpi: Cluster) -> None:
    with memory(mpi, "node1", 256 << 20):
        told = controller(*RUN, RANKS / "eater.py", "1")
    assert told.code == 5, told
    assert "rank 1 on node1 was killed (out of memory: " in told.out
    assert "of 256 MiB of its control group" in told.out
    assert not residue(mpi)


@pytest.mark.fault("F4")
@pytest.mark.parametrize(("codes", "failed"), [((1, 2), {0, 1}), ((64, 128), {0, 1}), ((0, 7), {1})])
def test_f4_ranks_fail_together_with_different_codes(
    controller: Desk, mpi: Cluster, codes: tuple[int, int], failed: set[int]
) -> None:
    left = [mpi.path("node0", f"{LEDGERS}/left{rank}") for rank in (0, 1)]
    for _ in range(5):  # on a busy machine mpirun may have killed the second before it came to its end
        mpi.exec("node0", ["sh", "-c", f"rm -f {LEDGERS}/ready* {LEDGERS}/left*"])
        told = controller(*RUN, "--ppn", "2", "--grace", "2", PLAYER, "pair", *map(str, codes))
        assert told.code == 5, told
        if all(path.exists() for path in left):
            break
    rows = outcomes(controller)
    assert {rank for rank, row in rows.items() if row["state"] == "failed"} == failed
    assert [rows[rank]["status"] for rank in (0, 1)] == list(codes)
    first = min(failed, key=lambda rank: (rows[rank]["at"], rank))
    assert f"rank {first} on node0 exited with code {codes[first]}" in told.out
    if len(failed) == 2:
        assert f"failed too: rank {1 - first} on node0" in told.out
    assert not residue(mpi)


@pytest.mark.fault("F5")
def test_f5_ranks_that_ignore_signals_are_killed_after_the_grace_time_and_counted(start: Start, mpi: Cluster) -> None:
    going = start(*RUN, "--grace", "2", ACTOR, "stubborn")
    going.until("0│stubborn", "1│stubborn", "2│stubborn")
    begun = time.monotonic()
    going.signal(signal.SIGINT)
    told = going.end()
    assert told.code == 130, told
    assert time.monotonic() - begun > 2.0
    assert told.err.count("1 process needed SIGKILL") == 3, told
    assert not residue(mpi)


@pytest.mark.fault("F5")
def test_f5_a_rank_that_cannot_be_killed_is_named_and_waited_for_no_longer(
    start: Start, controller: Desk, mpi: Cluster
) -> None:
    going = start(*RUN, "--grace", "2", ACTOR, "wait")
    going.until("0│waiting", "1│waiting", "2│waiting")
    [pid] = list_ranks(mpi, "node1")
    inner = next(process.pid for process in mpi.processes("node1") if process.outer == pid)
    with frozen(pid):
        going.signal(signal.SIGINT)
        told = going.end(120)
        assert told.code == 8, told
        assert f"process {inner} (state D)" in told.out + told.err
        assert f"left on node1: {inner}" in told.out
        assert "ipexctl stop --orphans" in told.out
        assert not residue(mpi, ["node0", "node2"])
    wait(lambda: not list_ranks(mpi, "node1"), 60.0)
    for directory in mpi.path("node1", "/root/.local/state/ipexctl/runs").glob("*-h1"):
        os.utime(directory, (time.time() - 300,) * 2)  # a younger one may be that of a run that just begins
    told = controller("stop", "--orphans")
    assert told.code == 0, told


@pytest.mark.fault("F6")
def test_f6_a_rank_that_stands_still_is_named_and_may_go_on(controller: Desk, start: Start, mpi: Cluster) -> None:
    going = start(*RUN, "--stall-warn", "4", ACTOR, "count", "120")
    going.until("0│tick 5\n", "1│tick 5\n", "2│tick 5\n")
    [pid] = list_ranks(mpi, "node1")
    os.kill(pid, signal.SIGSTOP)
    told = going.until("rank 1 on node1 stopped by a signal")
    os.kill(pid, signal.SIGCONT)
    told = going.end()
    assert told.code == 0, told
    for rank in range(3):
        assert controller.written(rank) == b"".join(b"tick %d\n" % n for n in range(120))
    assert not residue(mpi)


@pytest.mark.fault("F6")
def test_f6_ranks_that_are_all_silent_are_named_and_ended_where_that_was_asked_for(start: Start, mpi: Cluster) -> None:
    told = start(*RUN, "--stall-warn", "3", "--stall-kill", "--grace", "2", PLAYER, "silent", **QUICK).end()
    assert told.code == 6, told
    assert "ranks 0-2" in told.err, told
    assert not residue(mpi)


def list_sleepers(mpi: Cluster) -> list[str]:
    return [f"{host}: {p.argv}" for host in mpi.names for p in mpi.processes(host) if {"sleep", "quiet"} & {*p.argv}]


@pytest.mark.fault("F7")
def test_f7_descendants_that_hide_are_gone_when_their_ranks_have_ended_well(controller: Desk, mpi: Cluster) -> None:
    told = controller(*RUN, ACTOR, "daemon")
    assert told.code == 0, told
    assert not list_sleepers(mpi)
    assert not residue(mpi)


@pytest.mark.fault("F7")
@pytest.mark.parametrize("marked", [(), ("marked",)], ids=["clean environment", "one variable"])
def test_f7_descendants_that_hide_are_gone_when_their_ranks_were_killed(
    controller: Desk, mpi: Cluster, marked: tuple[str, ...]
) -> None:
    told = controller(*RUN, "--grace", "2", PLAYER, "die", "SIGKILL", *marked)
    assert told.code == 5, told
    assert not list_sleepers(mpi)
    assert not residue(mpi)


@pytest.mark.fault("F12")
def test_f12_ranks_that_outlast_the_others_are_named_and_ended_when_that_was_asked_for(
    start: Start, mpi: Cluster
) -> None:
    told = start(*RUN, "--straggler-warn", "3", "--straggler-kill", RANKS / "uneven.py").end(120)
    assert told.code == 6, told
    assert "2 of 3 ranks done for 3 s, still running: rank 2 on node2" in told.err
    assert not residue(mpi)


@pytest.mark.fault("F12")
def test_f12_ranks_that_outlast_the_others_and_end_by_themselves_are_no_failure(start: Start, mpi: Cluster) -> None:
    going: Started = start(*RUN, "--straggler-warn", "1", PLAYER, "last", **QUICK)
    told = going.until("2 of 3 ranks done for 1 s, still running: rank 2 on node2")
    mpi.write("node2", "/root/ledger/go", b"")
    told = going.end()
    assert told.code == 0, told
    assert not residue(mpi)
