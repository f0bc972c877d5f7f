"""A bench that measures nothing: its hosts are busy, or its environment cannot run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, LIGHT, Desk, residue

BENCH = ("bench", "bert", "--limit", "node0", "--venv", LIGHT, "--size", "tiny")


def test_on_busy_hosts_a_bench_names_the_run_and_the_one_command_that_ends_it(
    desk: Desk, hosts: Cluster, start: Callable[..., Any]
) -> None:
    going = start("run", "--venv", LIGHT, "--limit", "node0", ACTOR, "count", "3000")
    going.until("0│")
    told = desk(*BENCH)
    assert told.code == 7, told
    *_, advice, command = told.err.splitlines()
    assert advice.endswith("wait for it, or stop it:"), told
    program, verb, *words = command.split()
    assert (program, verb, words[-2:]) == ("ipexctl", "stop", ["--limit", "node0"]), told
    assert desk(verb, *words).code == 0
    assert not residue(hosts)


def test_a_bench_without_a_figure_shows_why_and_no_table(desk: Desk) -> None:
    told = desk(*BENCH)
    assert told.code == 5, told
    assert "No module named 'torch'" in told.out + told.err
    assert "samples" not in told.out, told
