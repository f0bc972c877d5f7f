"""Section C: hosts that talk, lack tools, hang, lie, or differ."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests import wheels
from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, LIGHT, CommandResult, Workspace
from tests.faults.checks import expect
from tests.faults.tools import serving

LOOK = ("doctor", "--json", "--pairwise", "off")
STABLE = (
    "arch", "isa_level", "sockets", "physical_cores", "logical_online", "user", "home", "glibc", "distribution",
    "kernel",
)  # fmt: skip


def facts(result: CommandResult) -> dict[str, dict[str, Any]]:
    """What stays the same between two looks. A hypervisor's balloon changes how much memory there is."""
    found = {entry["host"]: entry["facts"] for entry in result.answer["hosts"]}
    return {
        host: {name: each[name] for name in STABLE}
        | {"memory": each["mem_total_kb"] > 0, "numa": [node["cpus"] for node in each["numa"]]}
        for host, each in found.items()
    }


@contextmanager
def planted(hosts: Cluster, host: str, files: Mapping[str, bytes], mode: int = 0o755) -> Iterator[None]:
    """Meanwhile these files are on the host; those that were there are theirs again afterwards."""
    before = {place: hosts.read(host, place) if hosts.path(host, place).exists() else None for place in files}
    for place, data in files.items():
        hosts.write(host, place, data, mode)
    try:
        yield
    finally:
        for place, old in before.items():
            if old is None:
                hosts.path(host, place).unlink()
            else:
                hosts.write(host, place, old)


@contextmanager
def instead(hosts: Cluster, host: str, place: str, data: bytes) -> Iterator[None]:
    """Meanwhile a file of the kernel has this content on the host."""
    hosts.write(host, "/run/instead", data)
    hosts.exec(host, ["mount", "--bind", "/run/instead", place], check=True)
    try:
        yield
    finally:
        hosts.exec(host, ["umount", place], check=True)


def shim(text: str) -> bytes:
    return f"#!/bin/sh\n{text}\n".encode()


NOISE = b"""\
printf '\\033[31mWelcome to the cluster\\033[0m\\n'; echo "a fortune: begin command date"; stty -a; echo "{" >&2
cd /tmp; set -e; false || true; unset PS1; echo "stty: 'standard input': Inappropriate ioctl for device"; echo done
"""


@pytest.mark.fault("C1")
def test_c1_login_scripts_that_talk_change_no_answer(controller: Workspace, hosts: Cluster) -> None:
    quiet = controller(*LOOK)
    banner = "".join(f"line {n} of the banner \x1b[5m\n" for n in range(200)).encode()
    loud = {"/root/.bashrc": NOISE, "/root/.profile": NOISE, "/run/banner": banner}
    with planted(hosts, "node1", loud), serving(hosts, "node1", "Banner /run/banner"):
        result = controller(*LOOK)
        plain = controller("doctor", "--pairwise", "off")
    assert result.code == quiet.code, result
    assert facts(result) == facts(quiet)
    assert "Welcome" not in result.err + plain.out + plain.err
    assert "of the banner" not in result.err + plain.out + plain.err


@pytest.mark.fault("C5")
def test_c5_the_odd_one_out_is_named_and_nothing_is_changed(controller: Workspace, mpi: Cluster) -> None:
    cpuinfo = mpi.exec("node3", ["cat", "/proc/cpuinfo"]).stdout
    old = re.sub(r" (avx512|avx2|amx|avx_vnni|vaes|fma)\w*", "", cpuinfo).encode()
    shims = {
        "/usr/local/bin/python3": shim('[ "$1" = -V ] && echo Python 3.8.18 || exec /usr/bin/python3 "$@"'),
        "/usr/local/bin/mpirun": shim("echo 'mpirun (Open MPI) 2.0.1'"),
    }
    with planted(mpi, "node3", shims), instead(mpi, "node3", "/proc/cpuinfo", old):
        result = controller("doctor", "--pairwise", "off")
        assert result.code in (0, 4), result
        assert "node3" in result.out
        differing = [line for line in result.out.splitlines() if "node3" in line and "node0" not in line]
        assert len(differing) >= 2, result
        with mpi.inside(), wheels.serving(wheels.Index(wheels.stack()), "10.77.0.1") as index:
            stack = ("--torch", "2.8.0", "--backend", "gloo", "--index-url", index.url)
            refused = controller("install", *stack)
        expect(refused, 4, "node3", "AVX2")
        for host in mpi.names:
            assert not mpi.path(host, "/root/.local/share/ipexctl").exists()
    marker = json.loads(mpi.read("node3", f"{LIGHT}/ipexctl.json")) | {"id": "another", "python": "3.9"}
    with planted(mpi, "node3", {f"{LIGHT}/ipexctl.json": json.dumps(marker).encode()}, 0o644):
        result = controller("run", "--venv", LIGHT, ACTOR, "say")
    expect(result, 4, "node3")
    assert "rank 0 of" not in result.out
