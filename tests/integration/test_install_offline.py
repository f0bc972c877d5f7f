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
from tests.integration.test_sync_relay import count_sent

BALLAST = 24 << 20
ROW = ("--track", "native", "--torch", "2.8.0", "--backend", "gloo")
PLACE = ("--venv", "/root/share/env", "--python", "/usr/bin/python3")
NAMES = tuple(f"node{number}" for number in range(3))


@pytest.fixture(scope="module")
def stack() -> list[wheels.Built]:
    return [wheels.torch(ballast=BALLAST), wheels.impi(), wheels.numpy()]


@pytest.fixture(scope="module")
def house(stack: list[wheels.Built], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``ipexctl wheels fetch`` makes where there is an index."""
    return wheels.fill(tmp_path_factory.mktemp("house"), stack)


@pytest.fixture
def workspace(make_cluster: Callable[..., Cluster], tmp_path: Path) -> Workspace:
    """A user with three hosts."""
    made = Workspace(make_cluster(*NAMES), tmp_path / "desk")
    made.env |= {"PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
    return made


def ids(cluster: Cluster) -> list[str]:
    """The active environment of each host, "" for none."""
    actual = []
    for name in cluster.names:
        output = cluster.exec(name, ["cat", "/root/share/env/ipexctl.json"])
        actual.append(json.loads(output.stdout)["id"] if output.returncode == 0 else "")
    return actual


def of_uv(cluster: Cluster) -> int:
    """Bytes of the installer itself, which goes the same way where hosts do not see this checkout as their own."""
    program = Path(find_uv().path)
    seen = cluster.exec("node0", ["test", "-e", str(program)]).returncode == 0
    return 0 if seen else program.stat().st_size


def install(workspace: Workspace, house: Path, *words: str) -> tuple[CommandResult, int]:
    """Installs from the wheelhouse, and counts the bytes that leave the controller meanwhile."""
    before = count_sent(workspace.cluster)
    result = workspace.succeed("install", *PLACE, *ROW, "--wheels", house, *words, timeout=240)
    return result, count_sent(workspace.cluster) - before


def test_hosts_without_a_way_out_get_every_wheel_once_from_the_controller_and_then_have_nothing_to_do(
    workspace: Workspace, house: Path, stack: list[wheels.Built]
) -> None:
    payload = sum(len(built.data) for built in stack) + of_uv(workspace.cluster)
    result, crossed = install(workspace, house, "--json")
    assert result.answer["changed"] == list(NAMES)
    assert len(set(ids(workspace.cluster))) == 1
    assert payload < crossed < 1.4 * payload, f"{crossed / payload:.2f} times the wheels"

    again, crossed = install(workspace, house)
    assert "unchanged  node[0-2]" in again.out
    assert "3 hosts have" in again.err + again.out
    assert "nothing to do, changed 0" in again.err + again.out
    assert crossed < payload / 4


def test_hosts_whose_ports_are_closed_to_each_other_get_the_wheels_from_the_controller(
    workspace: Workspace, house: Path, stack: list[wheels.Built]
) -> None:
    hosts = workspace.cluster
    payload = sum(len(built.data) for built in stack) + of_uv(hosts)
    for name in hosts.names[1:]:
        hosts.exec(name, ["ip", "route", "add", "prohibit", hosts.address("node0")], check=True)
    _, crossed = install(workspace, house)
    (active,) = set(ids(hosts))
    assert active
    assert 2 * payload < crossed < 2.8 * payload, "once to node0, whom nobody reaches, and once for all others"
