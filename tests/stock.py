"""Plain PyTorch with its backends on this machine, and hosts that see it below their own disk: for tests in which ranks
of other people's kind train, at the price of one environment for all of them. Fixtures for folders that have `hosts`:
a test with ``@over("impi")`` is played by ranks that meet, over each backend; those that it names in `make test`."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, lend
from tests.mpi import IMPI, WHEELS, make
from tests.waiting import hold_lock

ROOT = Path(__file__).parents[1]
PLACE = Path("/var/cache/ipexctl-tests/stock")  # below no home: hosts have homes of their own
PACKAGES = ("torch==2.13.0", "numpy", "mpi4py==4.1.2", IMPI)
VENV, MPICH = "/opt/stock", "/opt/mpich/bin/mpirun"  # on hosts
MEET = ROOT / "tests/e2e/ranks/meet.py"  # a module of the environment
BACKENDS = ("impi", "gloo", "mpich")  # the last one: impi with MPICH 5
# Whose imports are compiled once: each host, which has a disk of its own, would compile them again.
COMPILED = "import torch._dynamo, torch.distributed, impi_torch, mpi4py, numpy"
KEPT = 86400.0  # seconds for which an environment that nobody uses stays


def over(*core: str) -> pytest.MarkDecorator:
    """A test that needs ``group`` is one of each backend; those that ``core`` does not name are for longer runs. "none"
    in ``core``: also one of ranks that do not meet and need no torch, where all that counts is ours."""
    names = (*BACKENDS, *({"none"} & {*core}))
    marks = {name: [pytest.mark.backend, *([] if name in core else [pytest.mark.beyond_core])] for name in names}
    return pytest.mark.parametrize("group", [pytest.param(name, marks=marks[name]) for name in names], indirect=True)


@pytest.fixture(scope="package")
def stock(hosts: Cluster) -> str:
    """Plain PyTorch with impi, Gloo and mpi4py on all hosts."""
    return put_stock_on_hosts(hosts)


@pytest.fixture(scope="package")
def mpich(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """MPICH 5 on all hosts: what ``--mpi`` is given."""
    return put_mpich_on_hosts(hosts, tmp_path_factory.mktemp("mpi"))


@pytest.fixture
def group(request: pytest.FixtureRequest, hosts: Cluster) -> Iterator[tuple[str, ...]]:
    """Words of ``ipexctl run`` by which the ranks of our scripts meet, as a process group of torch (ranks/meet.py)."""
    if request.param == "none":
        yield ("--venv", LIGHT)
        return
    stock = request.getfixturevalue("stock")
    mpi = ("--mpi", request.getfixturevalue("mpich")) if request.param == "mpich" else ()
    yield ("--venv", stock, "--backend", "gloo" if request.param == "gloo" else "impi", *mpi, "--env", "MEET=1")
    remove_mpichs_files(hosts)


def remove_mpichs_files(hosts: Cluster) -> None:
    """Hydra 5.0.2 leaves its description of a host's cores in /tmp now and then, also after a good end without us, and
    a rank of MPICH that is killed its shared memory."""
    hosts.restore()
    for host in hosts.names:
        hosts.exec(host, ["sh", "-c", "rm -f /tmp/hydra_hwloc_xmlfile_* /dev/shm/mpich_shm_*"])


def put_stock_on_hosts(cluster: Cluster) -> str:
    """Makes the environment if there is none, and shows it to all hosts of the cluster; its path there."""
    pinned = dict(package.split("==") for package in PACKAGES if "==" in package)
    lend(cluster, str(_make_environment()), VENV, {**pinned, "impi-torch": "0.1.0"})
    return VENV


def put_mpich_on_hosts(cluster: Cluster, directory: Path) -> str:
    """MPICH 5 from its wheel on all hosts of the cluster; what ``--mpi`` is given. ``directory`` is empty."""
    made = make(directory / "mpich", WHEELS["mpich-wheel"])
    for host in cluster.names:
        shutil.copytree(made, cluster.path(host, "/opt/mpich"), symlinks=True)
    return MPICH


def _make_environment() -> Path:
    sources = [*sorted((ROOT / "impi_torch/src").rglob("*.py")), MEET]
    parts = [*PACKAGES, COMPILED, sys.version, *(path.read_text() for path in sources)]
    place = PLACE / hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    made = place / "made"
    with hold_lock(PLACE / ".lock"):
        if not made.exists():
            shutil.rmtree(place, ignore_errors=True)
            _install(place)
        made.touch()
        for other in PLACE.iterdir():
            if other.is_dir() and (not (other / "made").exists() or _get_age(other / "made") > KEPT):
                shutil.rmtree(other)
    return place


def _install(place: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    links = os.environ.get("PIP_FIND_LINKS")  # where this machine keeps CPU builds
    subprocess.run([uv, "venv", "-q", "--python", "/usr/bin/python3", place], check=True)
    words: list[str | Path] = [uv, "pip", "install", "-q", "--python", place / "bin/python"]
    words += ["--find-links", links] if links else []
    subprocess.run([*words, *PACKAGES], check=True)
    subprocess.run([*words, "--no-deps", ROOT / "impi_torch"], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(MEET, place / f"lib/{version}/site-packages")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([place / "bin/python", "-c", COMPILED], env=env, check=True)


def _get_age(path: Path) -> float:
    return time.time() - path.stat().st_mtime
