"""Measuring, importing and fixing on separate hosts: what doctor does there only when it is asked to."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act import agent
from ipexctl.protocol import run_spec
from ipexctl.protocol.paths import AGENT, ROLE
from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, light
from tests.integration.test_doctor import do, doctor
from tests.unit.agent.runs import SPEC

pytestmark = pytest.mark.hosts
BROKEN = (
    b'raise ImportError("libtorch_python.so: undefined symbol: _ZN3c106detail23torchInternalAssertFailEPKcS2_jS2_")\n'
)


@pytest.fixture(scope="module")
def equipped(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Hosts with Intel MPI; on node1 with a torch that was exchanged under its IPEX."""
    light(cluster, tmp_path_factory.mktemp("light"))
    site = next(cluster.path("node1", f"{LIGHT}/lib").glob("python3.*")).name
    place = f"{LIGHT}/lib/{site}/site-packages"
    cluster.write("node1", f"{place}/torch/__init__.py", BROKEN)
    for name in ("torch-2.13.0", "intel_extension_for_pytorch-2.8.0"):
        cluster.write("node1", f"{place}/{name}.dist-info/METADATA", b"")
    yield cluster
    for host in cluster.names:
        do(cluster, host, f"rm -rf {LIGHT}")


@pytest.fixture(scope="module")
def measured(equipped: Cluster) -> dict[str, Any]:
    done = doctor(equipped, equipped.hostfile, "--json", "--bench", "--venv", LIGHT)
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_every_host_is_measured_also_without_torch(measured: dict[str, Any]) -> None:
    hosts = {host["host"]: host for host in measured["speed"]["hosts"]}
    assert list(hosts) == ["node0", "node1", "node2"]
    assert all(host["memory"] > 1e8 for host in hosts.values())
    assert {host["method"] for host in hosts.values()} == {"copy"}
    assert "undefined symbol" in hosts["node1"]["why"]


def test_pairs_of_hosts_are_measured(measured: dict[str, Any]) -> None:
    pairs = measured["speed"]["pairs"]
    assert {pair["first"] for pair in pairs} == {"node0", "node1", "node2"}, pairs
    assert all(0 < pair["latency"] < 5 and pair["rate"] > 1e4 for pair in pairs), pairs


def test_an_import_error_of_a_stack_that_does_not_fit_is_explained(measured: dict[str, Any]) -> None:
    finding = next(finding for finding in measured["findings"] if finding["code"] == "STK007")
    assert finding["hosts"] == ["node1"]
    output = "torch 2.13.0 under intel_extension_for_pytorch 2.8.0, which was built for torch 2.8"
    assert finding["title"] == f"cannot import its stack: {output}"
    assert "undefined symbol" in finding["evidence"]


def test_nothing_of_the_measurement_stays(equipped: Cluster, measured: dict[str, Any]) -> None:
    for host in equipped.names:
        words = [" ".join(process.argv) for process in equipped.processes(host)]
        assert not [output for output in words if "ipexctl" in output and "/tests/cluster/" not in output], host


def test_what_a_run_left_is_removed_after_a_yes(equipped: Cluster) -> None:
    spec = SPEC._replace(run="1120-000000-dead", head=None, label="node1")
    directory = "/root/.local/state/ipexctl/runs/1120-000000-dead-h1"
    equipped.write("node1", f"{directory}/spec.json", run_spec.encode_spec(spec), 0o600)
    equipped.write("node1", f"{directory}/{AGENT}", agent.build_archive())
    role = f'#!/bin/sh\nexec /usr/bin/python3 -E -s -S {directory}/{AGENT} "$@"\n'
    equipped.write("node1", f"{directory}/{ROLE}", role.encode(), 0o700)
    do(equipped, "node1", "chmod 700 /root/.local/state/ipexctl /root/.local/state/ipexctl/runs " + directory)
    do(equipped, "node1", f"touch -d '1 hour ago' {directory}")  # a new one may be that of a run which begins
    done = doctor(equipped, equipped.hostfile, "--json", "--fix", "--pairwise", "off", "--venv", LIGHT)
    assert done.returncode == 2
    assert "which needs a terminal" in done.stderr
    assert equipped.path("node1", directory).exists()
    from_fix = json.loads(
        doctor(
            equipped, only_fixable(equipped), "--json", "--fix", "--yes", "--pairwise", "off", "--venv", LIGHT
        ).stdout
    )
    assert {"code": "", "hosts": ["node1"], "action": "ipexctl stop --orphans 1120-000000-dead"} in from_fix["fixed"]
    assert not equipped.path("node1", directory).exists()


def only_fixable(cluster: Cluster) -> Path:
    """Hosts with a whole environment, so that no install is tried."""
    lines = [line for line in cluster.hostfile.read_text().splitlines() if line.startswith("node1")]
    path = cluster.files / "fixable"
    path.write_text("\n".join(lines) + "\n")
    return path
