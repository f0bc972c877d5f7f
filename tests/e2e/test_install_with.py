"""A package that is added to the real stack on two installed hosts: its wheel is all that moves."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.conftest import RECIPES, Installed
from tests.e2e.workspace import Workspace

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]

STORE = ".local/share/ipexctl/env.d"
UNCHANGED = ("torch", "torch-*.dist-info", "intel_extension_for_pytorch", "nvidia", "transformers")
FEW = 64 << 20  # bytes: our scripts, uv where a host has none, the wheel (39 KiB); torch and what it needs are 3.9 GiB


def inodes(cluster: Cluster, host: str) -> dict[str, int]:
    """The files of the stack in the one environment of a host, and which each is on the disk."""
    (env,) = (path.parent for path in (cluster.home(host) / STORE).glob("*/ipexctl.json"))
    (packages,) = env.glob("lib/python3*/site-packages")
    tops = [top for pattern in UNCHANGED for top in packages.glob(pattern)]
    files = [Path(folder, name) for top in tops for folder, _, names in os.walk(top) for name in names]
    return {str(path.relative_to(env)): path.lstat().st_ino for path in files if path.suffix != ".pyc"}


def received(cluster: Cluster, host: str) -> int:
    """Bytes that came to a host over its network so far."""
    lines = cluster.exec(host, ["cat", "/proc/net/dev"], check=True).stdout.splitlines()[2:]
    return sum(int(line.split(":")[1].split()[0]) for line in lines if not line.strip().startswith("lo:"))


def test_a_package_is_added_to_the_real_stack_on_two_hosts_and_no_byte_of_torch_moves(
    installed: Installed, make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    assert installed.result.code == 0, installed.result
    cluster = make_cluster("node0", "node1")
    assert RECIPES.put_on_hosts(cluster, cluster.names)
    workspace = Workspace(cluster, tmp_path / "desk")  # a controller that has neither a lock nor a wheel of it
    settings = {name: value for name, value in installed.env.items() if name != "XDG_CACHE_HOME"}
    before = {host: inodes(cluster, host) for host in cluster.names}
    bytes_before = {host: received(cluster, host) for host in cluster.names}
    with cluster.uplink() as uplink:
        result = workspace("install", "--with", "tabulate", "--json", timeout=300, **settings, **uplink.env)
    assert result.code == 0, result
    assert result.answer["changed"] == ["node0", "node1"]
    fetched = sorted(path.name.partition("-")[0] for path in (workspace.home / ".cache/ipexctl/wheels").rglob("*.whl"))
    assert fetched == ["tabulate"]
    plan = (workspace.records[-1] / "plan.txt").read_text()
    assert " in 1 file; " in plan
    assert "node0-node1  build: instead of " in plan or "node[0-1]  build: instead of " in plan
    for host in cluster.names:
        assert len(before[host]) > 10_000
        assert inodes(cluster, host) == before[host]
        assert received(cluster, host) - bytes_before[host] < FEW
        [report] = [each for each in result.answer["hosts"] if each["host"] == host]
        assert report["problems"] == []
        assert list(report["versions"]) == ["tabulate"], "the rest is the very files that were checked before"
        assert report["same"] > 10_000
        python = f"{result.answer['venv']}/bin/python"
        assert cluster.exec(host, [python, "-c", "import tabulate"]).returncode == 0
