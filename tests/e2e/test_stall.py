"""A rank that hangs while the others wait for it in a collective, over each backend."""

from __future__ import annotations

import re

from tests.cluster import Cluster
from tests.e2e.workspace import RANKS, Workspace, find_orphans
from tests.stock import over


@over("impi", "gloo")
def test_a_rank_that_hangs_while_others_wait_in_a_collective_is_the_odd_one_named(
    workspace: Workspace, hosts: Cluster, group: tuple[str, ...]
) -> None:
    words = ("run", *group, "--ppn", "1", "--stall-warn", "15", "--stall-kill")
    result = workspace(*words, RANKS / "waits.py", "1")
    assert result.code == 6, result
    output = result.out + result.err
    assert "2 of 3 ranks wait in all_reduce, rank 1 on node1 does not" in output
    assert re.search(r"rank 1 .*waits.py:\d+ read_batch", output), output
    stacks = sorted(path.name.split("-")[1] for path in workspace.records[-1].glob("stacks-*.txt"))
    assert stacks == ["0", "1", "2"]
    assert "0 processes left on 3 hosts" in result.out
    assert not find_orphans(hosts)
