"""Section C: hosts that talk, lack tools, hang, lie, or differ."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests import wheels
from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, LIGHT, Desk, Told
from tests.faults.checks import expect
from tests.faults.tools import serving

LOOK = ("doctor", "--json", "--pairwise", "off")
STABLE = (
    "arch", "isa_level", "sockets", "physical_cores", "logical_online", "mem_total_kb", "user", "home", "glibc",
    "distribution", "kernel", "numa",
)  # fmt: skip


def facts(told: Told) -> dict[str, dict[str, Any]]:
    return {entry["host"]: {name: entry["facts"][name] for name in STABLE} for entry in told.answer["hosts"]}


def grave(told: Told, host: str) -> set[str]:
    """The codes of errors that doctor found on this host."""
    return {f["code"] for f in told.answer["findings"] if f["level"] == "error" and host in f["hosts"]}


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
def test_c1_login_scripts_that_talk_change_no_answer(controller: Desk, hosts: Cluster) -> None:
    quiet = controller(*LOOK)
    banner = "".join(f"line {n} of the banner \x1b[5m\n" for n in range(200)).encode()
    loud = {"/root/.bashrc": NOISE, "/root/.profile": NOISE, "/run/banner": banner}
    with planted(hosts, "node1", loud), serving(hosts, "node1", "Banner /run/banner"):
        told = controller(*LOOK)
        plain = controller("doctor", "--pairwise", "off")
    assert told.code == quiet.code, told
    assert facts(told) == facts(quiet)
    assert "Welcome" not in told.err + plain.out + plain.err
    assert "of the banner" not in told.err + plain.out + plain.err


@contextmanager
def shell(hosts: Cluster, host: str, program: str) -> Iterator[None]:
    hosts.exec(host, ["usermod", "--shell", program, "root"], check=True)
    try:
        yield
    finally:
        hosts.exec(host, ["usermod", "--shell", "/bin/bash", "root"], check=True)


@contextmanager
def without(hosts: Cluster, host: str, *programs: str) -> Iterator[None]:
    """Meanwhile the host does not have these programs."""
    found = [place for place in programs if hosts.path(host, place).exists()]
    for place in found:
        hosts.exec(host, ["mv", place, f"{place}.away"], check=True)
    try:
        yield
    finally:
        for place in found:
            hosts.exec(host, ["mv", f"{place}.away", place], check=True)


BUSYBOX = ("df", "ip", "ps", "grep", "head", "dd", "sleep", "sed", "date", "find", "ls", "cat", "id", "tr", "awk")


@pytest.mark.fault("C2")
def test_c2_shells_tools_and_languages_change_no_fact(controller: Desk, hosts: Cluster) -> None:
    before = controller(*LOOK)
    links = f"for t in {' '.join(BUSYBOX)}; do ln -sf $(command -v busybox) /run/bb/$t; done"
    hosts.exec("node3", ["sh", "-c", f"mkdir -p /run/bb; {links}"], check=True)
    german = "SetEnv LANG=de_DE.UTF-8 LC_NUMERIC=de_DE.UTF-8 LC_ALL=de_DE.UTF-8 PATH=/run/bb:/usr/bin:/bin"
    with (
        without(hosts, "node0", "/usr/bin/lscpu", "/usr/bin/numactl", "/usr/bin/free", "/usr/bin/ps"),
        shell(hosts, "node0", "/bin/dash"),
        shell(hosts, "node1", "/bin/tcsh"),
        shell(hosts, "node2", "/usr/bin/fish"),
        serving(hosts, "node3", german),
    ):
        told = controller(*LOOK)
    assert told.code == before.code, told
    assert facts(told) == facts(before)
    for host in hosts.names:
        assert grave(told, host) == grave(before, host)


@pytest.mark.fault("C3")
def test_c3_a_question_that_hangs_costs_only_its_answer(controller: Desk, hosts: Cluster) -> None:
    stuck = shim("exec sleep 4711")
    with (
        planted(hosts, "node1", {"/usr/local/bin/df": stuck}),
        planted(hosts, "node2", {"/usr/local/bin/python3": stuck}),
    ):
        told = controller(*LOOK)
        expect(told, 4)
        evidence = {h: f["evidence"] for f in told.answer["findings"] if f["code"] == "DOC001" for h in f["hosts"]}
        assert evidence.keys() == {"node1", "node2"}
        assert all("timed out after 10 s" in text for text in evidence.values()), evidence
        assert len({str(of) for of in facts(told).values()}) == 1, "all else is complete"
        for host in hosts.names:
            assert not [p.argv for p in hosts.processes(host) if "4711" in p.argv]


# To the kernel a process has had the memory of the one that started it, until it became another program.
MEASURE = """
import os, resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def measured(desk: Desk, *words: str) -> tuple[Told, int]:
    """A command, and the most memory it had, in KiB."""
    most = desk.path / "most"
    line = [sys.executable, "-c", MEASURE, str(most), *desk.words(*words)]
    done = subprocess.run(line, env=desk.env, cwd=desk.path, stdin=subprocess.DEVNULL, capture_output=True)
    told = Told(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
    return told, int(most.read_text())


@pytest.mark.fault("C4")
def test_c4_garbage_and_endless_answers_are_cut_and_called_malformed(controller: Desk, hosts: Cluster) -> None:
    one = hosts.exec("node3", ["sed", "/^$/q", "/proc/cpuinfo"]).stdout
    many = "".join(re.sub(r"processor\s*: 0", f"processor\t: {n}", one) for n in range(10_000))
    odd = "Filesystem 1024-blocks Used Available Capacity Mounted on\\nx 1e999 -5 NaN 3% /\\n"
    with (
        planted(hosts, "node0", {"/usr/local/bin/df": shim("yes 0123456789abcde | head -c 200000000")}),
        planted(hosts, "node1", {"/usr/local/bin/python3": shim(r"printf 'Python \000\377\376\033[2J'; echo")}),
        planted(hosts, "node2", {"/usr/local/bin/df": shim(f"printf '{odd}'")}),
        planted(hosts, "node2", {"/usr/local/bin/ip": shim('printf \'{"half": ["a docu\'')}),
        instead(hosts, "node3", "/proc/cpuinfo", many.encode()),
    ):
        told, most = measured(controller, *LOOK)
        plain = controller("doctor", "--pairwise", "off")
    expect(told, 4)
    expect(plain, 4)
    assert most < 200 << 10, f"{most} KiB"
    evidence = {h: f["evidence"] for f in told.answer["findings"] if f["code"] == "DOC001" for h in f["hosts"]}
    assert "malformed" in evidence["node0"], told.answer["findings"]
    assert "\x1b" not in plain.out + plain.err
    assert "\0" not in plain.out + plain.err
    for entry in told.answer["hosts"]:
        numbers = {name: value for name, value in entry["facts"].items() if type(value) is int}
        assert all(0 <= number < 1 << 50 for number in numbers.values()), numbers


@pytest.mark.fault("C5")
def test_c5_the_odd_one_out_is_named_and_nothing_is_changed(controller: Desk, mpi: Cluster) -> None:
    cpuinfo = mpi.exec("node3", ["cat", "/proc/cpuinfo"]).stdout
    old = re.sub(r" (avx512|avx2|amx|avx_vnni|vaes|fma)\w*", "", cpuinfo).encode()
    shims = {
        "/usr/local/bin/python3": shim('[ "$1" = -V ] && echo Python 3.8.18 || exec /usr/bin/python3 "$@"'),
        "/usr/local/bin/mpirun": shim("echo 'mpirun (Open MPI) 2.0.1'"),
    }
    with planted(mpi, "node3", shims), instead(mpi, "node3", "/proc/cpuinfo", old):
        told = controller("doctor", "--pairwise", "off")
        assert told.code in (0, 4), told
        assert "node3" in told.out
        differing = [line for line in told.out.splitlines() if "node3" in line and "node0" not in line]
        assert len(differing) >= 2, told
        with mpi.inside(), wheels.serving(wheels.Index(wheels.stack()), "10.77.0.1") as index:
            stack = ("--torch", "2.8.0", "--backend", "gloo", "--index-url", index.url)
            refused = controller("install", *stack)
        expect(refused, 4, "node3", "AVX2")
        for host in mpi.names:
            assert not mpi.path(host, "/root/.local/share/ipexctl").exists()
    marker = json.loads(mpi.read("node3", f"{LIGHT}/ipexctl.json")) | {"id": "another", "python": "3.9"}
    with planted(mpi, "node3", {f"{LIGHT}/ipexctl.json": json.dumps(marker).encode()}, 0o644):
        told = controller("run", "--venv", LIGHT, ACTOR, "say")
    expect(told, 4, "node3")
    assert "rank 0 of" not in told.out
