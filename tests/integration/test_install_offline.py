"""The air-gapped install by the program itself: a wheelhouse carried there as one file, hosts that reach nothing but
the controller and each other, and every wheel once over the controller's uplink. Only the wheels are doubles."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipexctl.act.packages.resolve import find_uv
from tests import wheels
from tests.cluster import Cluster
from tests.e2e.desk import Desk, Told
from tests.wheels import Index, serving

BALLAST = 24 << 20
ROW = ("--track", "native", "--torch", "2.8.0", "--backend", "gloo")
PLACE = ("--venv", "/root/share/env", "--python", "/usr/bin/python3")
NAMES = tuple(f"node{number}" for number in range(8))


@pytest.fixture(scope="module")
def stack() -> list[wheels.Built]:
    return [wheels.torch(ballast=BALLAST), wheels.impi(), wheels.numpy()]


@pytest.fixture(scope="module")
def house(stack: list[wheels.Built], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``ipexctl wheels fetch`` makes where there is an index, in one file."""
    path = tmp_path_factory.mktemp("house")
    wheels.fill(path / "wheels", stack)
    with tarfile.open(path / "wheels.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(path / "wheels", "wheels")
    return path / "wheels.tar.gz"


@pytest.fixture
def eight(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster(*NAMES)


@pytest.fixture
def desk(eight: Cluster, tmp_path: Path) -> Desk:
    desk = Desk(eight, tmp_path / "desk")
    desk.env |= {"PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
    return desk


def ids(cluster: Cluster) -> list[str]:
    """The active environment of each host, "" for none."""
    found = []
    for name in cluster.names:
        said = cluster.exec(name, ["cat", "/root/share/env/ipexctl.json"])
        found.append(json.loads(said.stdout)["id"] if said.returncode == 0 else "")
    return found


def sent(cluster: Cluster) -> int:
    """Bytes that have left the controller."""
    line = next(line for line in cluster.run(["cat", "/proc/net/dev"]).stdout.splitlines() if "eth0:" in line)
    return int(line.partition(":")[2].split()[8])


def of_uv(cluster: Cluster) -> int:
    """Bytes of the installer itself, which goes the same way where hosts do not see this checkout as their own."""
    program = Path(find_uv().path)
    seen = cluster.exec("node0", ["test", "-e", str(program)]).returncode == 0
    return 0 if seen else program.stat().st_size


def install(desk: Desk, *words: str | Path, **env: str) -> Told:
    return desk("install", *PLACE, "--json", *words, timeout=240, **env)


def test_eight_hosts_without_a_way_out_get_every_wheel_once_from_the_controller_and_then_have_nothing_to_do(
    eight: Cluster, desk: Desk, house: Path, stack: list[wheels.Built]
) -> None:
    payload = sum(len(built.data) for built in stack) + of_uv(eight)
    before = sent(eight)
    told = install(desk, *ROW, "--wheels", house)
    crossed = sent(eight) - before
    assert told.code == 0, told
    assert told.answer["changed"] == list(NAMES)
    assert len(set(ids(eight))) == 1
    assert payload < crossed < 1.4 * payload, f"{crossed / payload:.2f} times the wheels"

    before = sent(eight)
    again = desk("install", *PLACE, *ROW, "--wheels", house)
    crossed = sent(eight) - before
    assert again.code == 0, again
    assert "unchanged  node[0-7]" in again.out
    assert "8 hosts have" in again.err + again.out
    assert "nothing to do, changed 0" in again.err + again.out
    assert crossed < payload / 4


def test_hosts_whose_ports_are_closed_to_each_other_get_the_wheels_from_the_controller(
    eight: Cluster, desk: Desk, house: Path, stack: list[wheels.Built]
) -> None:
    payload = sum(len(built.data) for built in stack) + of_uv(eight)
    giver = eight.address("node0")
    for name in NAMES[1:]:
        eight.exec(name, ["ip", "route", "add", "prohibit", giver], check=True)
    before = sent(eight)
    told = install(desk, *ROW, "--wheels", house)
    crossed = sent(eight) - before
    assert told.code == 0, told
    assert len(set(ids(eight))) == 1
    assert ids(eight)[0]
    assert 2 * payload < crossed < 2.8 * payload, "once to node0, whom nobody reaches, and once for all others"


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(cluster, tmp_path / "desk")
    desk.env |= {"PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
    yield desk
    for name in cluster.names:
        cluster.exec(name, ["rm", "-rf", "/root/share", "/root/.cache"])


@pytest.mark.parametrize("ending", ["", ".tar", ".zip"])
def test_wheels_are_fetched_where_an_index_is_and_installed_where_none_is(
    cluster: Cluster, site: Desk, stack: list[wheels.Built], tmp_path: Path, ending: str
) -> None:
    with cluster.inside(), serving(Index(stack)) as index:
        one = site("wheels", "fetch", tmp_path / f"house{ending}", *ROW, "--python", "3.11", "--index-url", index.url)
        assert one.code == 0, one
        again = site(
            "wheels", "fetch", tmp_path / f"house{ending}", *ROW, "--python", "3.11", "--json", "--index-url", index.url
        )
        assert (again.code, again.answer["fetched"]) == (0, []), again
    shutil.rmtree(site.home / ".cache", ignore_errors=True)  # another machine, which has the house and nothing else
    told = install(site, *ROW, "--wheels", tmp_path / f"house{ending}")
    assert told.code == 0, told
    assert told.answer["changed"] == list(cluster.names)
    assert len(set(ids(cluster))) == 1


def test_a_lock_that_is_written_is_what_locked_installs_and_partial_switches_who_is_ready(
    cluster: Cluster, site: Desk, stack: list[wheels.Built], tmp_path: Path
) -> None:
    lock = tmp_path / "ipexctl.lock"
    with cluster.inside(), serving(Index(list(stack))) as index:
        one = install(site, *ROW, "--index-url", index.url, "--lock", lock, "--limit", "node0")
        assert one.code == 0, one
        assert json.loads(lock.read_text())["ipexctl"] == "lock"
        index.wheels.append(wheels.wheel("numpy", "1.27.0", {"numpy/__init__.py": ""}))
        shutil.rmtree(site.home / ".cache", ignore_errors=True)  # what was resolved once is forgotten
        asks = ("--index-url", index.url, "--lock", lock, "--locked")
        refused = install(site, "--torch", "2.9.0", *asks)
        assert refused.code == 2, refused
        assert "torch 2.9.0 is asked for, the lock has 2.8.0" in refused.err
        cluster.exec("node2", ["mkdir", "-p", "/root/share/env/precious"], check=True)
        stopped = install(site, *asks)
        assert stopped.code == 4, stopped
        assert ids(cluster) == [one.answer["id"], "", ""]
        partial = install(site, *asks, "--partial")
        assert partial.code == 4, partial
        assert partial.answer["changed"] == ["node1"]
        assert list(partial.answer["failed"]) == ["node2"]
        assert ids(cluster) == [one.answer["id"], one.answer["id"], ""]
        cluster.exec("node2", ["rm", "-r", "/root/share/env"], check=True)
        rest = install(site, *asks)
        assert (rest.code, rest.answer["changed"]) == (0, ["node2"]), rest
        assert ids(cluster) == [one.answer["id"]] * 3
