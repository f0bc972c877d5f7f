"""Ranks that fail, hang, hide or flood, on three separate hosts (faults.md F1 to F7): what the user sees, the exit
code, and what is left."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, GATE, LIGHT, RANKS, Desk, Started, open_gates, residue, running, wait
from tests.e2e.groups import frozen, memory

RUN = ("run", "--venv", LIGHT)
LEDGER = "/root/ledger"
Start = Callable[..., Started]


def ranks(desk: Desk) -> dict[int, dict[str, object]]:
    return {row["rank"]: row for row in desk.report()["run"]["ranks"]}


def scripts(cluster: Cluster, host: str) -> list[int]:
    """The ranks themselves on a host, as ids on this machine."""
    return [
        process.outer
        for process in cluster.processes(host)
        if "IPEXCTL_RANK" in process.environ and any(word.endswith("actor.py") for word in process.argv)
    ]


def test_a_run_ends_well_and_says_that_nothing_is_left(desk: Desk, hosts: Cluster) -> None:
    told = desk(*RUN, "--ppn", "2", ACTOR, "say", "two words", "$(touch pwned)", "")
    assert told.code == 0, told
    for rank in range(6):
        assert f"rank {rank} of 6 argv ['two words', '$(touch pwned)', '']" in told.out
    assert "0 processes left on 3 hosts" in told.out
    assert [ranks(desk)[rank]["host"] for rank in range(6)] == [f"node{rank // 2}" for rank in range(6)]
    assert not residue(hosts)


def test_json_is_one_document_with_every_ranks_own_outcome(desk: Desk) -> None:
    told = desk(*RUN, "--json", ACTOR, "exit", "3", "1")
    assert told.code == 5, told
    assert told.answer["exit"] == 5
    rows = {row["rank"]: row for row in told.answer["ranks"]}
    assert (rows[1]["host"], rows[1]["status"], rows[1]["state"]) == ("node1", 3, "failed")
    assert {rows[0]["state"], rows[2]["state"]} == {"stopped"}


def test_a_rank_that_is_killed_is_reported_with_the_signals_name_and_what_may_have_done_it(
    desk: Desk, hosts: Cluster
) -> None:
    told = desk(*RUN, ACTOR, "signal", "SIGKILL", "2")
    assert told.code == 5, told
    assert "SIGKILL" in told.out
    assert "node2" in told.out
    assert ranks(desk)[2]["signal"] == signal.SIGKILL
    assert "memory" in told.out
    assert not residue(hosts)


def test_two_ranks_that_fail_at_once_give_the_same_exit_code_whatever_their_own(desk: Desk) -> None:
    for code in ("1", "64", "255"):
        assert desk(*RUN, ACTOR, "exit", code, "0").code == 5


def test_a_rank_that_runs_out_of_memory_is_said_to_have(desk: Desk, hosts: Cluster) -> None:
    with memory(hosts, "node1", 256 << 20):
        told = desk(*RUN, RANKS / "eater.py", "1")
    assert told.code == 5, told
    assert "rank 1 on node1 was killed (out of memory: " in told.out
    assert f"of {256 << 20} bytes" in told.out
    assert not residue(hosts)


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace_time_and_counted(start: Start, hosts: Cluster) -> None:
    going = start(*RUN, "--grace", "2", ACTOR, "stubborn")
    going.until("0│stubborn", "1│stubborn", "2│stubborn")
    begun = time.monotonic()
    going.signal(signal.SIGINT)
    told = going.end()
    assert told.code == 130, told
    assert time.monotonic() - begun > 2.0
    assert "stopping (again to kill)" in told.err
    assert "needed SIGKILL" in told.out + told.err
    assert not residue(hosts)


def test_a_rank_that_cannot_be_killed_is_named_and_waited_for_no_longer(start: Start, hosts: Cluster) -> None:
    going = start(*RUN, "--grace", "2", ACTOR, "wait")
    going.until("0│waiting", "1│waiting", "2│waiting")
    [pid] = scripts(hosts, "node1")
    with frozen(pid):
        going.signal(signal.SIGINT)
        told = going.end(120)
        assert told.code == 8, told
        assert "node1" in told.out
        assert "left on node1" in told.out
        assert not residue(hosts, ["node0", "node2"])
    wait(lambda: not scripts(hosts, "node1"), 60.0)


def test_a_second_ctrl_c_waits_for_no_grace(start: Start, hosts: Cluster) -> None:
    going = start(*RUN, "--grace", "600", ACTOR, "stubborn")
    going.until("0│stubborn", "1│stubborn", "2│stubborn")
    going.signal(signal.SIGINT)
    going.until("stopping (again to kill)")
    going.signal(signal.SIGINT)
    assert going.end().code == 130
    assert not residue(hosts)


def test_sigterm_to_the_controller_ends_the_run_as_ctrl_c_does(start: Start, hosts: Cluster) -> None:
    going = start(*RUN, ACTOR, "wait")
    going.until("0│waiting", "1│waiting", "2│waiting")
    going.signal(signal.SIGTERM)
    told = going.end()
    assert told.code == 143, told
    assert "0 processes left on 3 hosts" in told.out
    assert not residue(hosts)


def test_daemons_of_ranks_are_gone_when_the_run_is(desk: Desk, hosts: Cluster) -> None:
    told = desk(*RUN, ACTOR, "daemon")
    assert told.code == 0, told
    assert not residue(hosts)
    for host in hosts.names:
        assert not [process for process in hosts.processes(host) if process.argv[0] == "sleep"]


def test_four_ranks_print_200_000_lines_each_and_none_is_missing_or_torn(desk: Desk, hosts: Cluster) -> None:
    told = desk(*RUN, "--output", "json", "-n", "4", ACTOR, "lines", LEDGER, "200000", timeout=240)
    assert told.code == 0, told.err[-2000:]
    for row in desk.report()["run"]["ranks"]:
        ledger = hosts.read(row["host"], f"{LEDGER}/{row['rank']}.out")
        assert ledger.count(b"\n") == 200_000
        assert desk.written(row["rank"]) == ledger
        assert row["out_bytes"] == len(ledger)


def test_binary_output_is_kept_byte_for_byte_and_harmless_on_the_screen(desk: Desk, hosts: Cluster) -> None:
    told = desk(*RUN, "--ppn", "1", ACTOR, "bytes", LEDGER)
    assert told.code == 0, told
    assert not {char for char in told.out if ord(char) < 32} - {"\n", "\t"}
    for rank in range(3):
        for stream in ("out", "err"):
            assert desk.written(rank, stream) == hosts.read(f"node{rank}", f"{LEDGER}/{rank}.{stream}")


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


def test_two_runs_on_the_same_hosts(desk: Desk, start: Start, hosts: Cluster, tmp_path: Path) -> None:
    """The second is refused and told whose run it is; with --share it runs; the first notices neither."""
    first = start(*RUN, ACTOR, "count", "40", GATE)
    first.until("0│tick 1\n", "1│tick 1\n", "2│tick 1\n")
    other = Desk(hosts, tmp_path / "other")
    refused = other(*RUN, ACTOR, "say")
    assert refused.code == 7, refused
    assert "busy with run" in refused.out + refused.err
    shared = other(*RUN, "--share", ACTOR, "say")
    assert shared.code == 0, shared
    open_gates(hosts)
    told = first.end()
    assert told.code == 0, told
    for rank in range(3):
        assert desk.written(rank) == b"".join(b"tick %d\n" % n for n in range(40))
    assert not residue(hosts)


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


def test_a_rank_that_stands_still_is_named_and_may_go_on(desk: Desk, start: Start, hosts: Cluster) -> None:
    going = start(*RUN, "--stall-warn", "4", ACTOR, "count", "120")
    going.until("0│tick 5\n", "1│tick 5\n", "2│tick 5\n")
    [pid] = scripts(hosts, "node1")
    os.kill(pid, signal.SIGSTOP)
    going.until("rank 1 on node1")
    os.kill(pid, signal.SIGCONT)
    told = going.end()
    assert told.code == 0, told
    for rank in range(3):
        assert desk.written(rank) == b"".join(b"tick %d\n" % n for n in range(120))


def test_ranks_that_outlast_the_others_are_named_and_ended_when_that_was_asked_for(
    start: Start, hosts: Cluster
) -> None:
    told = start(*RUN, "--straggler-warn", "3", "--straggler-kill", RANKS / "uneven.py").end(120)
    assert told.code == 6, told
    assert "2 of 3 ranks done for 3 s, still running: rank 2 on node2" in told.err
    assert not residue(hosts)


def test_a_time_limit_ends_the_run(desk: Desk, hosts: Cluster) -> None:
    told = desk(*RUN, "--time-limit", "3", ACTOR, "wait")
    assert told.code == 6, told
    assert "time limit of 3 s" in told.out
    assert not residue(hosts)


def test_a_port_that_is_taken_is_no_accident(desk: Desk, hosts: Cluster) -> None:
    """Two runs that ask for the same port: each rank still gets an address where somebody listens, or is told."""
    told = desk(*RUN, "--port", "29555", ACTOR, "say")
    assert told.code == 0, told


def test_an_interpreter_error_before_the_script_begins_is_the_ranks_own_failure(desk: Desk, tmp_path: Path) -> None:
    script = tmp_path / "job/broken.py"
    script.parent.mkdir()
    script.write_text("def f(:\n")
    told = desk(*RUN, script)
    assert told.code == 5, told
    assert "SyntaxError" in told.out
