"""An install that fails at its last step on one host of four (case K3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import wheels
from tests.cluster import Cluster
from tests.e2e.desk import Desk
from tests.faults.checks import expect
from tests.faults.test_d_install import CONTROLLER, SHARE, Site
from tests.wheels import Index


@pytest.fixture
def site(controller: Desk, hosts: Cluster) -> Iterator[Site]:
    """The check of 2.9.0 takes a few seconds."""
    slow = wheels.torch("2.9.0", note="\nimport time\n\ntime.sleep(4)")
    index = Index([wheels.torch("2.8.0"), slow, wheels.impi(), wheels.numpy()])
    with hosts.inside(), wheels.serving(index, CONTROLLER):
        yield Site(controller, hosts, index)


@pytest.mark.fault("K3")
def test_k3_the_switch_fails_on_the_last_host(site: Site) -> None:
    names = site.hosts.names
    expect(site("2.8.0"), 0)
    old = {host: site.active(host) for host in names}
    going = site.start("2.9.0")
    going.until("step 5 of 7: check")
    site.hosts.exec("node3", ["chattr", "+i", SHARE], check=True)
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
