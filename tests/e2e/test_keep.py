"""Checkpoints on other hosts, and runs that go on from them on hosts that never had them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import QUICK, RANKS, Started, Workspace, find_orphans
from tests.stock import VENV, over

RUN = ("run", "--node-lease", "5", "--grace", "3", "--restarts", "1", "--min-hosts", "2", "--keep", "ckpt")
SAVES = RANKS / "saves.py"
Start = Callable[..., Started]


def read_losses(workspace: Workspace) -> tuple[dict[int, float], list[tuple[str, int]]]:
    """Step → its loss, of all attempts, where a step that was done twice has the same twice; and where each began."""
    losses: dict[int, float] = {}
    text = workspace.written(0).decode()
    for step, loss in re.findall(r"step (\d+) loss (\S+)", text):
        assert abs(losses.get(int(step), float(loss)) - float(loss)) < 1e-8, text
        losses[int(step)] = float(loss)
    return losses, [(where, int(at)) for where, at in re.findall(r"resume (\S+) at (\d+) of", text)]


def train_undisturbed(hosts: Cluster, steps: int) -> dict[int, float]:
    """The same on one host, without ipexctl."""
    hosts.write("node0", "/root/saves.py", SAVES.read_bytes())
    env = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
        "IPEXCTL_BACKEND": "gloo",
    }
    words = ["env", *(f"{name}={value}" for name, value in env.items()), f"{VENV}/bin/python", "/root/saves.py"]
    done = hosts.exec("node0", [*words, "dcp", str(steps), "1000", "0", "0"], timeout=200)
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", done.stdout)}


@over("impi", "gloo")
def test_shards_of_a_lost_host_are_on_another(
    start: Start, workspace: Workspace, hosts: Cluster, group: tuple[str, ...]
) -> None:
    command = start(*RUN, *group, SAVES, "dcp", "24", "6", "4", "0.5", **QUICK)
    command.until("[node2] has a copy of node1's part of ckpt/step_6", timeout=150)
    hosts.power_off("node1")
    result = command.end(200.0)
    assert result.code == 6, result
    losses, began = read_losses(workspace)
    assert len(losses) == 24, result
    assert losses == pytest.approx(train_undisturbed(hosts, 24), abs=1e-8)
    (_, first), (where, step) = began
    assert first == 0
    assert step >= 6
    assert where.endswith(f"ckpt/step_{step}")
    assert not find_orphans(hosts, ["node0", "node2"])
