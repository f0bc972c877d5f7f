"""Section A: hostfiles and playbooks that are wrong, odd or hostile."""

from __future__ import annotations

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import ACTOR, Desk
from tests.faults.checks import expect


@pytest.mark.fault("A1")
@pytest.mark.parametrize("words", [("doctor",), ("install",), ("sync", "."), ("run", ACTOR)], ids=lambda w: w[0])
def test_a1_a_hostfile_that_is_not_there_is_refused_and_nobody_is_contacted(
    controller: Desk, hosts: Cluster, words: tuple[str, ...]
) -> None:
    before = [hosts.sshd_log(host) for host in hosts.names]
    told = controller(words[0], "--hostfile", "hosts.tyop", *words[1:])
    expect(told, 2, "hosts.tyop", "does not exist")
    assert len(told.err.strip().splitlines()) <= 3, told
    assert [hosts.sshd_log(host) for host in hosts.names] == before
    assert not controller.records
