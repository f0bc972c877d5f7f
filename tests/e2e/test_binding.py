"""The way of oneccl_bind_pt from an index to the ranks, on two separate hosts.

No binding can be had from the registries, so its wheel is a double; the Intel MPI in it is real, laid out as in the
binding of that version.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ipexctl.verbs.common.probe import load_releases
from tests import mpi, wheels
from tests.cluster import Cluster, missing
from tests.e2e.workspace import ROOT, Workspace
from tests.wheels import Built, Index, serving

RANK = Path(__file__).parent / "ranks/binding.py"
ADDS = ROOT / "tests/integration/ranks/sum.py"
PYTHON = "/opt/python"  # on the hosts: one that Debian has not any more
CONTROLLER = "10.77.0.1"
LAYOUTS = {  # torch, Python, module, and where mpiexec, libmpi and libfabric lie in it
    "torch_ccl, and all before 2.3": ("1.11.0", "3.9", "torch_ccl", "bin", "lib", "lib"),
    "2.3": ("2.3.1", "3.11", "oneccl_bindings_for_pytorch", "bin", "lib", "opt/mpi/libfabric/lib"),
    "from 2.4 on": (
        "2.7.0",
        "3.11",
        "oneccl_bindings_for_pytorch",
        "opt/mpi/bin",
        "opt/mpi/lib",
        "opt/mpi/libfabric/lib",
    ),
}

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        "avx2" not in Path("/proc/cpuinfo").read_text(errors="replace"), reason="no row with IPEX for this CPU"
    ),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if why := missing():
        pytest.skip(why)
    return mpi.make(tmp_path_factory.mktemp("mpi") / "env")


def binding(version: str, module: str, real: Path, bins: str, lib: str, fabric: str) -> Built:
    """The wheel: in its module the binding's files, where its version has them."""
    files: dict[str, str | bytes] = {f"{module}/__init__.py": f'__version__ = "{version}"\n'}
    for name in ("mpiexec.hydra", "hydra_bstrap_proxy", "hydra_pmi_proxy"):
        files[f"{module}/{bins}/{name}"] = (real / "bin" / name).read_bytes()
    files[f"{module}/{lib}/libmpi.so.12"] = (real / "lib/libmpi.so.12").read_bytes()
    files[f"{module}/{fabric}/libfabric.so.1"] = (real / "lib/libfabric.so.1").read_bytes()
    for name in ("libtcp-fi.so", "librxm-fi.so", "libshm-fi.so"):
        files[f"{module}/{fabric}/prov/{name}"] = (real / "lib" / name).read_bytes()
    files[f"{module}/lib/libccl.so.1"] = wheels.LIBRARY.read_bytes()
    return wheels.wheel("oneccl-bind-pt", version, files)


def interpreter(cluster: Cluster, python: str) -> str:
    """On all hosts; skips the test where this machine has none to give them."""
    if Path(f"/usr/bin/python{python}").exists():
        return f"/usr/bin/python{python}"
    actual = sorted(Path.home().glob(f".pyenv/versions/{python}.*"))
    if not actual:
        pytest.skip(f"no Python {python} on this machine: nothing newer holds this row")
    for host in cluster.names:
        shutil.copytree(actual[-1], cluster.path(host, PYTHON), symlinks=True, ignore=shutil.ignore_patterns("test"))
        cluster.write(host, "/etc/ld.so.conf.d/python.conf", f"{PYTHON}/lib\n".encode())
        cluster.exec(host, ["ldconfig"], check=True)
    return f"{PYTHON}/bin/python{python}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_binding_goes_from_an_index_to_ranks_that_import_it_and_use_its_own_mpi(
    layout: str, real: Path, make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    torch, python, module, *places = LAYOUTS[layout]
    cluster = make_cluster("node0", "node1")
    workspace = Workspace(cluster, tmp_path / "desk")
    workspace.env |= {"PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
    row = next(row for row in reversed(load_releases().releases) if row.torch == torch)
    doubles = [wheels.torch(torch), wheels.ipex(row.ipex), wheels.numpy()]
    build = row.oneccl + "+cpu" * (torch == "2.7.0")  # as Intel names its files
    doubles += [binding(build, module, real, *places), wheels.wheel("setuptools", "80.0.0", {})]
    words = ["--torch", torch, "--backend", "ccl", "--python", interpreter(cluster, python), "--json"]
    with cluster.inside(), serving(Index(doubles), CONTROLLER) as index:
        result = workspace("install", *words, "--index-url", index.url, timeout=200)
    assert result.code == 0, result
    assert result.answer["stack"]["module"] == module
    job = tmp_path / "job"
    job.mkdir()
    for script in (RANK, ADDS):
        shutil.copy(script, job)
    packages = json.loads(cluster.exec("node1", ["cat", f"{result.answer['venv']}/ipexctl.json"]).stdout)["packages"]
    assert packages["oneccl-bind-pt"] == build
    workspace.succeed("run", "--ppn", "2", "--backend", "ccl", job / RANK.name, module, ADDS.name, timeout=100)
    for rank in range(4):
        output = workspace.written(rank).decode()
        assert f"rank {rank} of 4: sum 10" in output
        assert f"binding {build} of True ['{places[1]}/libmpi.so.12']" in output, "one MPI in a job, the binding's"
