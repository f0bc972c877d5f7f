"""Checkpoints on other hosts, and runs that go on from them on hosts that never had them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, QUICK, RANKS, Start, Workspace, find_orphans, find_place, light
from tests.stock import over

KEEP = ("run", "--node-lease", "5", "--grace", "3", "--keep", "ckpt")
RUN = (*KEEP, "--restarts", "1", "--min-hosts", "2")
LIGHTLY = ("--venv", LIGHT, RANKS / "counts.py")
SAVES = RANKS / "saves.py"


def read_starts(workspace: Workspace, rank: int) -> list[tuple[str, int]]:
    """What each attempt of a rank went on from."""
    found = re.findall(r"resume (\S+) at (\d+) of", workspace.written(rank).decode())
    return [(where.rpartition("/ckpt/")[2], int(step)) for where, step in found]


def read_checkpoints(hosts: Cluster, host: str) -> set[str]:
    place = hosts.path(host, f"{find_place(RANKS)}/ckpt")
    return {path.name for path in place.iterdir()} if place.is_dir() else set()


@pytest.fixture(autouse=True)
def _without_checkpoints(hosts: Cluster) -> Iterator[None]:
    yield
    hosts.restore()
    for host in hosts.names:
        hosts.exec(host, ["sh", "-c", f"rm -rf {find_place(RANKS)}/ckpt {find_place(RANKS)}/.ipexctl-keep-ckpt"])


def test_all_hosts_go_on_from_the_last_whole_checkpoint_of_one(workspace: Workspace, hosts: Cluster) -> None:
    result = workspace.succeed(*RUN, *LIGHTLY, "8", "2", "1", "6", timeout=200, **QUICK)
    for rank in range(3):  # that of step 6 was half written, and stood still
        assert read_starts(workspace, rank) == [("nothing", 0), ("step_4.pt", 4)], result
    assert read_checkpoints(hosts, "node0") == {"step_2.pt", "step_4.pt", "step_6.pt", "step_8.pt"}
    assert read_checkpoints(hosts, "node1") == read_checkpoints(hosts, "node2") == {"step_4.pt"}
    aside = hosts.path("node0", f"{find_place(RANKS)}/.ipexctl-keep-ckpt/.aside/ckpt")
    assert [path.name for path in aside.iterdir()] == ["step_6.pt"]
    assert "the ranks get ckpt/step_4.pt to go on from, written " in result.out + result.err
    assert not find_orphans(hosts)


def test_a_host_lost_while_it_copies_costs_only_itself(start: Start, workspace: Workspace, hosts: Cluster) -> None:
    command = start(*RUN, *LIGHTLY, "40", "15", "200", "0", **QUICK)
    command.until("0│step 18")  # 200 MiB take 6 s, and the next ones come 12 s later
    hosts.power_off("node1")
    result = command.end(120.0)
    assert result.code == 6, result
    for rank in range(2):
        assert read_starts(workspace, rank) == [("nothing", 0), ("step_15.pt", 15)], result
    assert not find_orphans(hosts, ["node0", "node2"])


def test_a_full_disk_gets_no_copy_and_the_run_goes_on(workspace: Workspace, tmp_path: Path) -> None:
    with Cluster(["node0", "node1"]) as two:
        two.small_home("node1", 64)
        light(two, tmp_path / "light")
        result = Workspace(two, tmp_path / "other")(*KEEP, *LIGHTLY, "12", "4", "40", "0", timeout=200, **QUICK)
        assert result.code == 0, result
        assert "could not get a copy of ckpt/step_4.pt: no space left in /root/" in result.err, result
        assert result.err.count("could not get a copy") == 1, result
        assert not find_orphans(two)


def test_what_an_earlier_run_left_is_gone_on_from_where_that_is_wanted(workspace: Workspace, hosts: Cluster) -> None:
    assert workspace(*KEEP, *LIGHTLY, "2", "2", "1", "0", timeout=200, **QUICK).code == 0
    assert workspace(*KEEP, *LIGHTLY, "1", "2", "1", "0", timeout=200, **QUICK).code == 0
    assert read_starts(workspace, 0) == [("nothing", 0)]
    assert workspace(*KEEP, "--resume", "auto", *LIGHTLY, "3", "9", "1", "0", timeout=200, **QUICK).code == 0
    assert read_starts(workspace, 2) == [("step_2.pt", 2)]


@over()
def test_shards_of_a_lost_host_are_on_another(
    start: Start, workspace: Workspace, hosts: Cluster, group: tuple[str, ...]
) -> None:
    """The steps that are done again give the same losses: weights and optimizer are those of the checkpoint."""
    command = start(*RUN, *group, SAVES, "dcp", "24", "6", "4", "0.5", **QUICK)
    command.until("[node2] has a copy of node1's part of ckpt/step_6", timeout=150)
    hosts.power_off("node1")
    result = command.end(200.0)
    assert result.code == 6, result
    (_, first), (where, step) = read_starts(workspace, 0)
    assert (first, where) == (0, f"step_{step}"), result
    assert step >= 6
    before, after = re.split("resume", workspace.written(0).decode())[1:]
    losses, again = (dict(re.findall(r"step (\d+) loss (\S+)", text)) for text in (before, after))
    assert [*map(int, again)] == [*range(step, 24)]
    twice = losses.keys() & again.keys()
    assert len(twice) > 1, "the checkpoint has to be copied before it counts"
    for number in twice:
        assert float(again[number]) == pytest.approx(float(losses[number]), abs=1e-8)
    assert not find_orphans(hosts, ["node0", "node2"])
