"""A rank that hangs while the others wait for it in a collective, over each backend."""

import re

from tests.cluster import Cluster
from tests.e2e.workspace import RANKS, Workspace, find_orphans
from tests.stock import over


@over("impi")
def test_a_rank_that_hangs_is_the_odd_one_named(workspace: Workspace, hosts: Cluster, group: tuple[str, ...]) -> None:
    words = ("run", *group, "--ppn", "1", "--stall-warn", "15", "--stall-kill")
    result = workspace(*words, RANKS / "waits.py", "1")
    assert result.code == 6, result
    output = result.out + result.err
    assert "2 of 3 ranks wait in all_reduce, rank 1 on node1 does not" in output
    assert re.search(r"rank 1 .*waits.py:\d+ read_batch", output), output
    last = r"last collectives: all_reduce #5 of 32 B on ranks 0,2, all_reduce #4( of 32 B)? on rank 1 \(ended\)"
    assert re.search(last, output), output
    stacks = sorted(path.name.split("-")[1] for path in workspace.records[-1].glob("stacks-*.txt"))
    assert stacks == ["0", "1", "2"]
    assert "0 processes left on 3 hosts" in result.out
    assert not find_orphans(hosts)


@over()
def test_ranks_in_different_collectives_are_named(workspace: Workspace, hosts: Cluster, group: tuple[str, ...]) -> None:
    """Before --stall-warn: they can never meet."""
    words = ("run", *group, "--ppn", "1", "--time-limit", "45")
    result = workspace(*words, RANKS / "mismatch.py", "1")
    output = " ".join((result.out + result.err).split())
    if "gloo" in group:
        assert result.code == 6, result
        where = "all_reduce #5 of 4.0 MiB on ranks 0,2, broadcast #5 of 32 B on rank 1"
        assert f"the ranks are in different collectives: {where}" in output
    else:  # MPI may wait for ever, or fail
        assert result.code in (5, 6), result
        assert re.search(r"different collectives: \w+ #5 .*on ranks? [\d, ]+, \w+ #5 ", output), output
    assert not find_orphans(hosts)
