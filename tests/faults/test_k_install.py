"""Places that can hold no environment (case K2); an install that fails at its last step on one host of four (K3)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests import wheels
from tests.cluster import Cluster
from tests.e2e.desk import Desk
from tests.faults.checks import expect
from tests.faults.test_d_install import CONTROLLER, SHARE, Site
from tests.wheels import Index

HOLD = "/run/hold"


@pytest.fixture
def site(controller: Desk, hosts: Cluster) -> Iterator[Site]:
    """The check of 2.9.0 goes on as long as its host has the file `HOLD`."""
    held = wheels.torch("2.9.0", note=f"\nimport os, time\n\nwhile os.path.exists({HOLD!r}):\n    time.sleep(0.1)")
    index = Index([wheels.torch("2.8.0"), held, wheels.impi(), wheels.numpy()])
    with hosts.inside(), wheels.serving(index, CONTROLLER):
        yield Site(controller, hosts, index)


@contextmanager
def odd_places(hosts: Cluster) -> Iterator[None]:
    """Meanwhile: node0's home is mounted noexec, node1's read-only, node2's has room for few files; node3's is whole,
    but no program can be started in its temporary directory."""
    for host, option in {"node0": "noexec", "node1": "ro", "node2": "nr_inodes=2000"}.items():
        hosts.small_home(host, 64)
        hosts.exec(host, ["mount", "-o", f"remount,{option}", "/root"]).check_returncode()
    hosts.exec("node3", ["mount", "-o", "remount,bind,noexec", "/tmp"]).check_returncode()
    try:
        yield
    finally:
        hosts.exec("node3", ["mount", "-o", "remount,bind,exec", "/tmp"]).check_returncode()
        for host in ("node0", "node1", "node2"):
            hosts.exec(host, ["umount", "--lazy", "/root"]).check_returncode()


def list_home(hosts: Cluster, host: str) -> dict[str, int]:
    """Everything in root's home, with the time of its last change in ns."""
    top = hosts.path(host, "/root")
    return {str(place.relative_to(top)): place.lstat().st_mtime_ns for place in top.rglob("*")}


@pytest.mark.fault("K2")
def test_k2_no_exec_no_write_and_no_inodes_are_told_before_anything_is_made(site: Site) -> None:
    odd = ("node0", "node1", "node2")
    with odd_places(site.hosts):
        before = {host: list_home(site.hosts, host) for host in odd}
        for more, works in (((), False), (("--partial",), True)):
            told = site("2.8.0", *more)
            expect(told, 4, "/root is mounted noexec", "/root is mounted read-only", "no room for 12,250 files: 1,9")
            said = {failure["host"]: failure["what"] for failure in site.controller.report()["failures"]}
            assert {host: what.partition(":")[0] for host, what in said.items() if host in odd} == {
                "node0": "no environment can be in /root",
                "node1": "no environment can be in /root",
                "node2": "no room for 12,250 files",
            }
            assert {host: list_home(site.hosts, host) for host in odd} == before
            assert (site.works("node3") == "2.8.0") is works, told
        expect(site("2.8.0", "--limit", "node3"), 0)
    expect(site("2.8.0"), 0)
    assert {site.works(host) for host in site.hosts.names} == {"2.8.0"}


@pytest.mark.fault("K3")
def test_k3_the_switch_fails_on_the_last_host(site: Site) -> None:
    names = site.hosts.names
    expect(site("2.8.0"), 0)
    old = {host: site.active(host) for host in names}
    site.hosts.write("node3", HOLD, b"")
    going = site.start("2.9.0")
    going.until("step 5 of 7: check")
    site.hosts.exec("node3", ["chattr", "+i", SHARE], check=True)
    site.hosts.path("node3", HOLD).unlink()
    try:
        told = going.end(120)
        expect(told, 4, "unchanged  node[0-2]\nfailed     node3\n", *(f"[node{n}] go back: ok" for n in range(3)))
        for host in names:
            assert site.works(host) == "2.8.0", (host, told)
            assert site.active(host) == old[host]
    finally:
        site.hosts.exec("node3", ["chattr", "-i", SHARE], check=True)
    expect(site("2.9.0", "--limit", "@failed"), 0, "node3")
    expect(site("2.9.0"), 0)
    assert {site.works(host) for host in names} == {"2.9.0"}
