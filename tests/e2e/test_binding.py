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
from tests.cluster import Cluster
from tests.e2e.workspace import ROOT, Workspace
from tests.wheels import Built, Index, serving

RANK = Path(__file__).parent / "ranks/binding.py"
ADDS = ROOT / "tests/integration/ranks/sum.py"
CONTROLLER = "10.77.0.1"
TORCH, MODULE = "2.7.0", "oneccl_bindings_for_pytorch"
PLACES = ("opt/mpi/bin", "opt/mpi/lib", "opt/mpi/libfabric/lib")  # of mpiexec, libmpi and libfabric in the module

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        "avx2" not in Path("/proc/cpuinfo").read_text(errors="replace"), reason="no row with IPEX for this CPU"
    ),
]


def binding(version: str, real: Path) -> Built:
    """The wheel: in its module the binding's files, where its version has them."""
    bins, lib, fabric = PLACES
    files: dict[str, str | bytes] = {f"{MODULE}/__init__.py": f'__version__ = "{version}"\n'}
    for name in ("mpiexec.hydra", "hydra_bstrap_proxy", "hydra_pmi_proxy"):
        files[f"{MODULE}/{bins}/{name}"] = (real / "bin" / name).read_bytes()
    files[f"{MODULE}/{lib}/libmpi.so.12"] = (real / "lib/libmpi.so.12").read_bytes()
    files[f"{MODULE}/{fabric}/libfabric.so.1"] = (real / "lib/libfabric.so.1").read_bytes()
    for name in ("libtcp-fi.so", "librxm-fi.so", "libshm-fi.so"):
        files[f"{MODULE}/{fabric}/prov/{name}"] = (real / "lib" / name).read_bytes()
    files[f"{MODULE}/lib/libccl.so.1"] = wheels.LIBRARY.read_bytes()
    return wheels.wheel("oneccl-bind-pt", version, files)


def test_the_binding_goes_from_an_index_to_the_ranks(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """In its newest layout; tests/integration/test_install.py has them all."""
    cluster = make_cluster("node0", "node1")
    workspace = Workspace(cluster, tmp_path / "desk")
    workspace.env |= {"PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
    row = next(row for row in reversed(load_releases().releases) if row.torch == TORCH)
    doubles = [wheels.torch(TORCH), wheels.ipex(row.ipex), wheels.numpy()]
    build = f"{row.oneccl}+cpu"  # as Intel names its files
    doubles += [binding(build, mpi.make(tmp_path / "mpi")), wheels.wheel("setuptools", "80.0.0", {})]
    words = ["--torch", TORCH, "--backend", "ccl", "--python", "/usr/bin/python3", "--json"]
    with cluster.inside(), serving(Index(doubles), CONTROLLER) as index:
        result = workspace("install", *words, "--index-url", index.url, timeout=200)
    assert result.code == 0, result
    assert result.answer["stack"]["module"] == MODULE
    job = tmp_path / "job"
    job.mkdir()
    for script in (RANK, ADDS):
        shutil.copy(script, job)
    packages = json.loads(cluster.exec("node1", ["cat", f"{result.answer['venv']}/ipexctl.json"]).stdout)["packages"]
    assert packages["oneccl-bind-pt"] == build
    workspace.succeed("run", "--ppn", "2", "--backend", "ccl", job / RANK.name, MODULE, ADDS.name, timeout=100)
    for rank in range(4):
        output = workspace.written(rank).decode()
        assert f"rank {rank} of 4: sum 10" in output
        assert f"binding {build} of True ['{PLACES[1]}/libmpi.so.12']" in output, "one MPI in a job, the binding's"
