"""A run over a wire that is slow and loses packets: what ended well on all ranks is not called lost."""

import os
import time
from contextlib import nullcontext

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, RANKS, Workspace, find_orphans

TRIES = int(os.environ.get("IPEXCTL_DRILLS", "1"))


def test_the_wire_is_slow(hosts: Cluster) -> None:
    greet = f"import socket; socket.create_connection(('{hosts.address('node1')}', 22)).recv(1)"
    spent = []
    for slow in (nullcontext(), hosts.slow_down("node2", 0.1, 0.0)):
        with slow:
            began = time.monotonic()
            hosts.exec("node2", ["python3", "-c", greet], check=True)
            spent.append(time.monotonic() - began)
    assert spent[1] > 0.4, spent  # two ways there and back: a handshake, and a line


@pytest.mark.parametrize("host", ["node0", "controller"])
def test_a_run_over_a_slow_and_lossy_wire_ends_well(workspace: Workspace, hosts: Cluster, host: str) -> None:
    """A tenth of a second each way, and one packet of thirty."""
    with hosts.slow_down(host, 0.1, 0.03):
        for number in range(TRIES):
            tag = f"slow{number}"
            workspace.succeed("run", "--venv", LIGHT, RANKS / "drill.py", tag, timeout=300)
            wrong = [
                rank
                for rank in range(3)
                if workspace.written(rank).decode() != "".join(f"{tag} tick {tick}\n" for tick in range(20 + 10 * rank))
            ]
            assert not wrong, (number, wrong)
    assert not find_orphans(hosts)
