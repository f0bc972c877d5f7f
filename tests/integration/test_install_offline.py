"""The air-gapped install by the program itself: wheels carried there in a directory, hosts that reach nothing but
the controller and each other, and every wheel once over the controller's uplink. Only the wheels are doubles."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ipexctl.act.packages.resolve import find_uv
from tests import wheels
from tests.cluster import Cluster
from tests.e2e.workspace import CommandResult, Workspace

BALLAST = 24 << 20
ROW = ("--track", "native", "--torch", "2.8.0", "--backend", "gloo")
PLACE = ("--venv", "/root/share/env", "--python", "/usr/bin/python3")
NAMES = tuple(f"node{number}" for number in range(4))


@pytest.fixture(scope="module")
def stack() -> list[wheels.Built]:
    return [wheels.torch(ballast=BALLAST), wheels.impi(), wheels.numpy()]


@pytest.fixture(scope="module")
def house(stack: list[wheels.Built], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``ipexctl wheels fetch`` makes where there is an index."""
    return wheels.fill(tmp_path_factory.mktemp("house"), stack)


def make_user(cluster: Cluster, path: Path) -> Workspace:
    workspace = Workspace(cluster, path / "desk")
    workspace.env |= {"PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
    return workspace


def ids(cluster: Cluster) -> list[str]:
    """The active environment of each host, "" for none."""
    actual = []
    for name in cluster.names:
        output = cluster.exec(name, ["cat", "/root/share/env/ipexctl.json"])
        actual.append(json.loads(output.stdout)["id"] if output.returncode == 0 else "")
    return actual


def sent(cluster: Cluster) -> int:
    """Bytes that have left the controller."""
    line = next(line for line in cluster.run(["cat", "/proc/net/dev"]).stdout.splitlines() if "eth0:" in line)
    return int(line.partition(":")[2].split()[8])


def of_uv(cluster: Cluster) -> int:
    """Bytes of the installer itself, which goes the same way where hosts do not see this checkout as their own."""
    program = Path(find_uv().path)
    seen = cluster.exec("node0", ["test", "-e", str(program)]).returncode == 0
    return 0 if seen else program.stat().st_size


def install(workspace: Workspace, *words: str | Path, **env: str) -> CommandResult:
    return workspace("install", *PLACE, "--json", *words, timeout=240, **env)


def test_four_hosts_without_a_way_out_get_every_wheel_once_from_the_controller_and_then_have_nothing_to_do(
    make_cluster: Callable[..., Cluster], tmp_path: Path, house: Path, stack: list[wheels.Built]
) -> None:
    four = make_cluster(*NAMES)
    workspace = make_user(four, tmp_path)
    payload = sum(len(built.data) for built in stack) + of_uv(four)
    before = sent(four)
    result = install(workspace, *ROW, "--wheels", house)
    crossed = sent(four) - before
    assert result.code == 0, result
    assert result.answer["changed"] == list(NAMES)
    assert len(set(ids(four))) == 1
    assert payload < crossed < 1.4 * payload, f"{crossed / payload:.2f} times the wheels"

    before = sent(four)
    again = workspace("install", *PLACE, *ROW, "--wheels", house)
    crossed = sent(four) - before
    assert again.code == 0, again
    assert "unchanged  node[0-3]" in again.out
    assert "4 hosts have" in again.err + again.out
    assert "nothing to do, changed 0" in again.err + again.out
    assert crossed < payload / 4


def test_hosts_whose_ports_are_closed_to_each_other_get_the_wheels_from_the_controller(
    make_cluster: Callable[..., Cluster], tmp_path: Path, house: Path, stack: list[wheels.Built]
) -> None:
    four = make_cluster(*NAMES)
    workspace = make_user(four, tmp_path)
    payload = sum(len(built.data) for built in stack) + of_uv(four)
    giver = four.address("node0")
    for name in four.names[1:]:
        four.exec(name, ["ip", "route", "add", "prohibit", giver], check=True)
    before = sent(four)
    result = install(workspace, *ROW, "--wheels", house)
    crossed = sent(four) - before
    assert result.code == 0, result
    assert len(set(ids(four))) == 1
    assert ids(four)[0]
    assert 2 * payload < crossed < 2.8 * payload, "once to node0, whom nobody reaches, and once for all others"
