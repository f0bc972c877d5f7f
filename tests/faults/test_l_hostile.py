"""Hostile files (cases L1 and L4; L2 is in test_l_relay.py)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
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


@pytest.mark.fault("L4")
@pytest.mark.parametrize("how", ["the file itself", "a file it includes", "a file of another user"])
def test_l4_ssh_settings_that_others_can_write_are_not_obeyed(controller: Desk, hosts: Cluster, how: str) -> None:
    folder = controller.home / ".ssh"
    folder.mkdir(mode=0o700)
    proxy = f"Host *\n  ProxyCommand touch {controller.path}/pwned\n"
    config, more = folder / "config", folder / "more.conf"
    config.write_text(proxy if how != "a file it includes" else f"Include {folder}/*.conf\n")
    config.chmod(0o600)
    if how == "a file it includes":
        more.write_text(proxy)
        more.chmod(0o666)
    elif how == "the file itself":
        config.chmod(0o666)
    else:
        os.chown(config, 65534, -1)
    told = controller("doctor")
    expect(told, 3, str(more if how == "a file it includes" else config))
    assert not (controller.path / "pwned").exists()


@pytest.mark.fault("L4")
def test_l4_known_hosts_that_others_can_write_are_not_believed(
    new_controller: Callable[..., Desk], hosts: Cluster, tmp_path: Path
) -> None:
    known = tmp_path / "known"
    known.write_bytes(hosts.known_hosts.read_bytes())
    known.chmod(0o666)
    hostfile = tmp_path / "hostfile"
    hostfile.write_text(hosts.hostfile.read_text().replace(str(hosts.known_hosts), str(known)))
    told = new_controller("open", hostfile=hostfile)("doctor")
    expect(told, 3, str(known), "0666")
