"""Section A: hostfiles and playbooks that are wrong, odd or hostile."""

import os
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, LIGHT, Workspace
from tests.faults.checks import expect
from tests.faults.tools import nobody_asked


@pytest.mark.fault("A2")
def test_a2_no_other_file_is_waited_for_or_read_without_an_end(controller: Workspace, hosts: Cluster) -> None:
    pipe = controller.path / "pipe"
    os.mkfifo(pipe, 0o600)
    at = f"address={hosts.address('node1')} user=root"
    place = controller.path / "hosts"
    for endless in (pipe, Path("/dev/zero")):
        place.write_text(f"node1 {at} key={endless} known_hosts={hosts.known_hosts}\n")
        expect(controller("ps", "--hostfile", place, timeout=30.0), 3, "node1")
        place.write_text(f"node1 {at} key={hosts.key} known_hosts={endless}\n")
        expect(controller("ps", "--hostfile", place, timeout=30.0), 3, "unknown host key")
        with nobody_asked(hosts):
            expect(controller("install", "--locked", "--lock", endless, timeout=30.0), 2, "not a regular file")
            expect(controller("play", endless, timeout=30.0), 2, "not a regular file")


@pytest.mark.fault("A5")
def test_a5_a_machine_that_is_listed_twice_gets_no_ranks(controller: Workspace, mpi: Cluster) -> None:
    one = mpi.hostfile.read_text().splitlines()[1]
    more = one.removeprefix("node1 ")
    place = controller.path / "hosts"

    place.write_text(f"{one}\nnode2 {more}\n{one}\n".replace("node2 address=10.77.0.11", "node2 address=10.77.0.12"))
    with nobody_asked(mpi):
        result = controller("doctor", "--hostfile", "hosts")
    expect(result, 2, "node1", "hosts:3", "line 1")

    other = more.partition(" ")[2]
    for name, text in (("address", f"{one}\n10.77.0.11 {other}\n"), ("alias", f"{one}\nlogin1 {more}\n")):
        place.write_text(text)
        second = "10.77.0.11" if name == "address" else "login1"
        result = controller("doctor", "--hostfile", "hosts", "--pairwise", "off")
        expect(result, 4, "node1", second, "same machine")
        result = controller("run", "--hostfile", "hosts", "--venv", LIGHT, ACTOR, "say")
        expect(result, 4, "node1", second, "one machine")
        assert "rank 0 of" not in result.out
        assert not mpi.path("node1", "/root/ipexctl").exists()
    result = controller("run", "--hostfile", "hosts", "--venv", LIGHT, "--allow-duplicates", ACTOR, "say")
    expect(result, 0, "rank 1 of 2")
