"""Three separate hosts and a user; for the main job also the real torch, IPEX and Intel MPI on each of them."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, Spec, missing
from tests.e2e.environments import SHARED_CACHE, KeptEnvironment, room_is_short, unpacking
from tests.e2e.workspace import CommandResult, Started, Workspace, clean, lend, light
from tests.stock import group, mpich, stock

__all__ = ["group", "mpich", "stock"]


@pytest.fixture(scope="package")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """node0, node1 and node2, with Intel MPI in /opt/light."""
    if why := missing():
        pytest.skip(why)
    with Cluster() as three:
        light(three, tmp_path_factory.mktemp("light"))
        yield three


@pytest.fixture(autouse=True)
def _whole_and_clean(request: pytest.FixtureRequest) -> Iterator[None]:
    used = "hosts" in request.fixturenames
    if used:
        clean(request.getfixturevalue("hosts"))
    yield
    if used:
        request.getfixturevalue("hosts").restore()


@pytest.fixture
def workspace(hosts: Cluster, tmp_path: Path) -> Workspace:
    return Workspace(hosts, tmp_path / "desk")


@pytest.fixture
def start(workspace: Workspace) -> Iterator[Callable[..., Started]]:
    """`Workspace.start`, ended with the test."""
    yield from workspace.start_for_test()


@pytest.fixture
def unpacks() -> Iterator[None]:
    """For a test with hosts of its own, on which it unpacks a stack: none other does so until they are gone."""
    with unpacking():
        yield


VENV = "/root/.local/share/ipexctl/env"
RECIPES = KeptEnvironment("recipes", VENV)
# The last accelerate and transformers that use IPEX with torch 2.8.0.
TRAINERS = ("accelerate==1.7.0", "transformers==4.52.4")
TWO = ("node0", "node1")  # of the three hosts these have the real stack
INSTALL = ("install", "--torch", "2.8.0", "--backend", "gloo", *(f"--with={each}" for each in TRAINERS))


@dataclass(frozen=True)
class Installed:
    """How the real install went; ``env`` are the user's package settings: a later install has them, but no network."""

    cluster: Cluster
    result: CommandResult
    env: dict[str, Any]


@pytest.fixture(scope="package")
def installed(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The real stack on node0 and node1, by ``ipexctl install`` on the controller, once; where the files of an
    earlier session are kept, it finds that they are right. Where room is short, one host unpacks them for all."""
    workspace = Workspace(hosts, tmp_path_factory.mktemp("install"))
    settings = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_"))}
    settings["XDG_CACHE_HOME"] = SHARED_CACHE  # wheels that this machine has fetched once stay
    with unpacking(), hosts.uplink() as uplink:
        if not RECIPES.put_on_hosts(hosts, TWO) and room_is_short():
            workspace.succeed(*INSTALL, "--json", "--limit", "node0", timeout=900, **settings, **uplink.env)
            RECIPES.keep(hosts, "node0")
            RECIPES.put_on_hosts(hosts, TWO[1:])
        result = workspace(*INSTALL, "--limit", "node0,node1", "--json", timeout=900, **settings, **uplink.env)
        if result.code == 0:
            RECIPES.keep(hosts, "node0")
    return Installed(hosts, result, settings)


@pytest.fixture(scope="package")
def recipes(request: pytest.FixtureRequest, hosts: Cluster) -> str:
    """Where the environment of the Hugging Face recipes is on node0 and node1: the one `installed` has put there. To
    write tests in less time, ``IPEXCTL_TEST_ENV`` names one of this machine instead, which hosts then see."""
    if lent := os.environ.get("IPEXCTL_TEST_ENV"):
        lend(hosts, lent, VENV)
    else:
        assert request.getfixturevalue("installed").result.code == 0
    return VENV


@pytest.fixture
def four(recipes: str, tmp_path: Path) -> Iterator[Workspace]:
    """Four hosts, as in the guide."""
    with Cluster([Spec(f"node{n}") for n in range(4)]) as cluster:
        if lent := os.environ.get("IPEXCTL_TEST_ENV"):
            lend(cluster, lent, recipes)
        else:
            assert RECIPES.put_on_hosts(cluster, cluster.names)
        yield Workspace(cluster, tmp_path / "desk")


@pytest.fixture(scope="package")
def settings(request: pytest.FixtureRequest, recipes: str) -> dict[str, str]:
    """The user's package settings by which that environment was made: with them an install finds nothing to change."""
    return {} if os.environ.get("IPEXCTL_TEST_ENV") else request.getfixturevalue("installed").env


NATIVE = "/root/.local/share/ipexctl/native"  # on node0 and node1, beside the environment with IPEX
STOCK = KeptEnvironment("native", NATIVE)


@pytest.fixture(scope="package")
def native(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Stock PyTorch of today without IPEX, with transformers and accelerate, on node0 and node1, once."""
    workspace = Workspace(hosts, tmp_path_factory.mktemp("native"))
    settings = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_"))}
    settings["XDG_CACHE_HOME"] = str(Path.home() / ".cache")
    words = ["install", "--track", "native", "--torch", "2.13.0", "--with", "transformers", "--with", "accelerate"]
    words += ["--limit", "node0,node1", "--venv", NATIVE, "--wheels-from", "controller", "--json"]
    for place in filter(None, [os.environ.get("PIP_FIND_LINKS")]):  # where this machine keeps CPU builds
        words += ["--find-links", place]
    STOCK.put_on_hosts(hosts, ("node0", "node1"))
    with hosts.uplink() as uplink:
        result = workspace(*words, timeout=900, **settings, **uplink.env)
    if result.code == 0:
        STOCK.keep(hosts, "node0")
    return Installed(hosts, result, settings)


FRAMEWORKS = "/root/frameworks/env"
OTHERS = KeptEnvironment("frameworks", FRAMEWORKS)
TORCH = "2.13.0"  # whose CPU build is a tenth of the default index's
PACKAGES = (
    "transformers", "accelerate", "lightning", "trl", "peft", "datasets", "sentence-transformers", "xllamacpp", "gguf"
)  # fmt: skip


@pytest.fixture(scope="package")
def frameworks(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The frameworks and every backend on all hosts, with mpi4py, which Lightning prefers to its own ways. To write
    tests in less time, ``IPEXCTL_TEST_FRAMEWORKS`` names an environment of this machine instead."""
    if lent := os.environ.get("IPEXCTL_TEST_FRAMEWORKS"):
        lend(hosts, lent, FRAMEWORKS, {"torch": TORCH, "impi-torch": "0.1.0"})
    else:
        _install_frameworks(hosts, tmp_path_factory.mktemp("frameworks"))
    return hosts


def _install_frameworks(hosts: Cluster, desk: Path) -> None:
    house = os.environ.get("PIP_FIND_LINKS", "")
    if not list(Path(house or os.devnull).glob(f"torch-{TORCH}+cpu-*.whl")):
        pytest.skip("the CPU build of torch is not in a directory that PIP_FIND_LINKS names")
    settings = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_"))}
    settings["XDG_CACHE_HOME"] = str(Path.home() / ".cache")
    words = ["install", "--torch", TORCH, "--track", "native", "--backend", "impi", "--venv", FRAMEWORKS, "--json"]
    words += [*(f"--with={name}" for name in PACKAGES), "--wheels-from", "controller"]
    OTHERS.put_on_hosts(hosts, hosts.names)
    with hosts.uplink() as uplink:
        result = Workspace(hosts, desk)(*words, timeout=900, **settings, **uplink.env)
    assert result.code == 0, result
    OTHERS.keep(hosts, "node0")
