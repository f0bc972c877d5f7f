"""Instances on separate hosts: processes that do not know of each other, each on its own core, watched as ranks are."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import LIGHT, RANKS, Desk, residue

pytestmark = [pytest.mark.hosts]

RUN = ("run", "--venv", LIGHT, "--limit", "node0,node1")
SCRIPT = RANKS / "instance.py"


def said(desk: Desk, rank: int) -> dict[str, Any]:
    value = json.loads(desk.written(rank).decode().splitlines()[0])
    assert isinstance(value, dict)
    return value


def test_every_instance_has_its_core_and_nothing_to_find_the_others_by(desk: Desk, hosts: Cluster) -> None:
    cores = sorted(os.sched_getaffinity(0))
    told = desk(*RUN, "--instances", "per-core", SCRIPT, "0")
    assert told.code == 0, told
    found = [said(desk, rank) for rank in range(2 * len(cores))]
    assert [(one["host"], one["cpus"]) for one in found] == [(f"node{h}", [c]) for h in (0, 1) for c in cores]
    assert [one["instance"] for one in found] == list(range(len(found)))
    assert all(one["others"] == [] and one["threads"] == "1" for one in found)
    assert not residue(hosts)


def test_an_instance_that_fails_does_not_end_the_others_and_is_told(desk: Desk, hosts: Cluster) -> None:
    told = desk(*RUN, "--instances", "1", SCRIPT, "6", "--fail")
    assert told.code == 5, told
    ranks = desk.report()["run"]["ranks"]
    assert [(rank["state"], rank["status"]) for rank in ranks] == [("failed", 3), ("ok", 0)]
    assert b"to the end" in desk.written(1)
    assert "0 processes left" in told.out
    assert not residue(hosts)


def test_with_fail_fast_it_ends_them(desk: Desk, hosts: Cluster) -> None:
    told = desk(*RUN, "--instances", "1", "--fail-fast", SCRIPT, "60", "--fail")
    assert told.code == 5, told
    ranks = desk.report()["run"]["ranks"]
    assert [rank["state"] for rank in ranks] == ["failed", "stopped"]
    assert not residue(hosts)


def test_what_a_host_has_no_cores_for_is_refused_before_anything_starts(desk: Desk, hosts: Cluster) -> None:
    told = desk(*RUN, "--instances", "4096", SCRIPT, "0")
    assert told.code == 4, told
    assert "4096 instances do not fit" in told.err
    assert "node0: " in told.err
    assert "node1: " in told.err
