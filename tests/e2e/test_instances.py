"""Instances on separate hosts: processes that do not know of each other, each on its own core, watched as ranks are."""

import json
import os
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, RANKS, Workspace, find_orphans

pytestmark = [pytest.mark.hosts]

RUN = ("run", "--venv", LIGHT, "--limit", "node0,node1")
SCRIPT = RANKS / "instance.py"


def output(workspace: Workspace, rank: int) -> dict[str, Any]:
    value = json.loads(workspace.written(rank).decode().splitlines()[0])
    assert isinstance(value, dict)
    return value


def test_every_instance_has_its_core_and_nothing_to_find_the_others_by(workspace: Workspace, hosts: Cluster) -> None:
    cores = sorted(os.sched_getaffinity(0))
    workspace.succeed(*RUN, "--instances", "per-core", SCRIPT, "0")
    actual = [output(workspace, rank) for rank in range(2 * len(cores))]
    assert [(one["host"], one["cpus"]) for one in actual] == [(f"node{h}", [c]) for h in (0, 1) for c in cores]
    assert [one["instance"] for one in actual] == list(range(len(actual)))
    assert all(one["others"] == [] and one["threads"] == "1" for one in actual)
    assert not find_orphans(hosts)


def test_an_instance_that_fails_does_not_end_the_others_and_is_reported(workspace: Workspace, hosts: Cluster) -> None:
    result = workspace(*RUN, "--instances", "1", SCRIPT, "6", "--fail")
    assert result.code == 5, result
    ranks = workspace.report()["run"]["ranks"]
    assert [(rank["state"], rank["status"]) for rank in ranks] == [("failed", 3), ("ok", 0)]
    assert b"to the end" in workspace.written(1)
    assert "0 processes left" in result.out
    assert not find_orphans(hosts)


def test_with_fail_fast_it_ends_them(workspace: Workspace, hosts: Cluster) -> None:
    result = workspace(*RUN, "--instances", "1", "--fail-fast", SCRIPT, "60", "--fail")
    assert result.code == 5, result
    ranks = workspace.report()["run"]["ranks"]
    assert [rank["state"] for rank in ranks] == ["failed", "stopped"]
    assert not find_orphans(hosts)
