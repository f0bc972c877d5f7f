"""`ipexctl install && ipexctl run --ppn 1 examples/train_ddp.py` on fresh hosts, with no flag and neither Intel's index
nor PyTorch's in reach: the real wheels are those of the default index. About 7 GB a host, and the network."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ipexctl.verbs.common.probe import load_releases
from tests.cluster import Cluster
from tests.e2e.environments import SHARED_CACHE
from tests.e2e.trained import loss_fell
from tests.e2e.workspace import ROOT, Workspace, find_orphans

pytestmark = [pytest.mark.stack, pytest.mark.timeout(3600), pytest.mark.usefixtures("unpacks")]

OF_USER = ("UV_", "PIP_", "SSL_")
NEVER = ("INDEX", "FIND_LINKS")  # of this machine: the user has named no source of wheels


def prepare(cluster: Cluster, path: Path) -> Workspace:
    """A user who has the examples and has set nothing but certificates and time limits."""
    workspace = Workspace(cluster, path / "desk")
    shutil.copytree(ROOT / "examples", workspace.path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    settings = {name: value for name, value in os.environ.items() if name.startswith(OF_USER)}
    workspace.env |= {name: value for name, value in settings.items() if not name.endswith(NEVER)}
    workspace.env["XDG_CACHE_HOME"] = SHARED_CACHE  # wheels that were fetched once
    return workspace


def test_install_and_run_train_without_a_flag(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster("node0", "node1")
    workspace = prepare(cluster, tmp_path)
    closed = {urlsplit(index.url).hostname or "" for index in load_releases().indexes.values()}
    with cluster.uplink(refused=closed) as uplink:
        result = workspace.succeed("install", timeout=3000, **uplink.env)
        ran = workspace("run", "--ppn", "1", "examples/train_ddp.py", timeout=900, **uplink.env)
    output = " ".join((result.out + result.err).split())
    # It says what it chose, what it passed over, and why.
    assert re.search(r"oneccl [\d.]+: its index does not answer: \S+; taking torch [\d.]+", output), result
    marker = json.loads(cluster.exec("node1", ["cat", "/root/.local/share/ipexctl/env/ipexctl.json"]).stdout)
    stack = marker["stack"]
    assert (stack.get("oneccl"), stack["backend"]) == (None, "impi")
    assert f"taking torch {stack['torch']} + ipex {stack['ipex']}" in output
    assert "the CPU build's index does not answer" in output
    assert ran.code == 0, ran
    assert "0 processes left on 2 hosts" in ran.out
    for rank in range(2):
        shown = workspace.written(rank).decode()
        assert f"rank {rank} of 2 on node{rank}: torch {stack['torch']}, ipex {stack['ipex']}" in shown
        assert loss_fell(shown), shown
    assert not find_orphans(cluster)
