"""A bench that measures nothing: its hosts are busy, or its environment cannot run it."""

import re
from collections.abc import Callable
from typing import Any

from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, LIGHT, Workspace, find_orphans

BENCH = ("bench", "bert", "--limit", "node0", "--venv", LIGHT, "--size", "tiny")


def test_a_bench_on_busy_hosts_names_the_run(workspace: Workspace, hosts: Cluster, start: Callable[..., Any]) -> None:
    running_command = start("run", "--venv", LIGHT, "--limit", "node0", ACTOR, "count", "3000")
    running_command.until("0│")
    result = workspace(*BENCH)
    assert result.code == 7, result
    advice = r"wait for it, or end it \(ipexctl (stop .*)\); who has the hosts:"
    ending = re.findall(advice, result.out + result.err)[-1]
    assert "--limit" not in ending, result  # the run may have other hosts
    assert workspace(*ending.split()).code == 0
    running_command.end(60.0)  # it takes the output along, and then the directory
    assert not find_orphans(hosts)


def test_a_bench_without_a_figure_shows_why_and_no_table(workspace: Workspace) -> None:
    result = workspace(*BENCH)
    assert result.code == 5, result
    assert "the default launch has no rate: rank 0 on node0 exited with code 1" in result.err, result
    assert "No module named 'torch'" in result.out + result.err
    assert "samples" not in result.out, result
