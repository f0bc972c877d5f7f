"""From nothing to recipe 2 on one's own hosts: the commands of the README, with the real torch, IPEX and Accelerate."""

import os
import re
import shutil

import pytest

from tests.cluster import Cluster
from tests.e2e.conftest import TRAINERS, TWO
from tests.e2e.trained import LAYERS, PRECISION
from tests.e2e.workspace import ROOT, Workspace

pytestmark = [pytest.mark.hosts, pytest.mark.stack, pytest.mark.timeout(1200)]

ON = ("--limit", "node0,node1")


def test_init_and_play_train_with_accelerate_and_ipex(recipes: str, workspace: Workspace, hosts: Cluster) -> None:
    shutil.copytree(ROOT / "examples", workspace.path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    result = workspace.succeed(
        "init", *ON, "--backend", "gloo", "--yes", "examples/nlp_example.py", "--epochs", "1", "--pairs", "256"
    )
    assert f"with: [{', '.join(TRAINERS)}]" in (workspace.path / "playbook.yaml").read_text()
    # A lent environment was not made by install, which would rightly leave it alone.
    prepared = ("--skip-tags", "prepare") if os.environ.get("IPEXCTL_TEST_ENV") else ()
    with hosts.uplink() as uplink:
        result = workspace("play", "playbook.yaml", *ON, *prepared, timeout=1100, **uplink.env)
    assert result.code == 0, result
    assert [rank["host"] for rank in workspace.report()["run"]["ranks"]] == [*TWO]
    # init asks for bf16 where the hosts compute it
    for number, name in enumerate(TWO):
        actual = f"rank {number} of 2 on {name}: MULTI_CPU, backend gloo, "
        assert re.search(
            re.escape(actual) + f"{PRECISION}, {LAYERS} layers of IPEX", workspace.written(number).decode()
        )
    assert "epoch 1: loss " in workspace.written(0).decode()
    if not prepared:
        again = workspace.succeed("play", "playbook.yaml", *ON, "--tags", "prepare", timeout=300)
        assert "nothing was changed" in again.err
