"""Hostile files (cases L1 and L4; L2 is in test_l_relay.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import LIGHT, Desk, Started
from tests.faults.checks import expect

RUN = ("run", "--venv", LIGHT, "--limit", "node[0-2]")
Start = Callable[..., Started]
WHEEL = {
    "name": "torch",
    "version": "2.8.0+cpu",
    "url": "https://host.example/files/torch-2.8.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl",
    "sha256": "0a" * 32,
    "size": 7,
}
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a path in the URL": (
        {"url": "https://host.example/files/%2f..%2f..%2fpwned.whl"},
        "is not the file name of a wheel",
    ),
    "a path for a hash": ({"sha256": "../../x"}, "sha256"),
    "a number for a name": ({"name": 7}, "name"),
    "a text for a size": ({"size": "many"}, "size"),
}


@pytest.mark.fault("L1")
@pytest.mark.parametrize("changes", [*HOSTILE, "another format"])
def test_l1_a_hostile_lock_file_is_refused(controller: Desk, hosts: Cluster, changes: str) -> None:
    change, field = HOSTILE.get(changes, ({}, "ipexctl"))
    lock: dict[str, Any] = {"ipexctl": "lock", "python": "3.11", "inputs": "0f" * 12, "mpi": "", "notes": []}
    lock["wheels"] = [{**WHEEL, **change}]
    if changes == "another format":
        lock["ipexctl"] = "lock 99"
    place = controller.path / "ipexctl.lock"
    place.write_text(json.dumps(lock))
    logs = [hosts.sshd_log(host) for host in hosts.names]
    told = controller("install", "--locked", "--lock", place)
    expect(told, 2, field)
    assert [hosts.sshd_log(host) for host in hosts.names] == logs
    assert not [path for path in (controller.home / ".cache").rglob("*") if path.is_file()]
