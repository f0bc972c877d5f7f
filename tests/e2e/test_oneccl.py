"""The oneCCL bindings of both generations on two separate hosts.

The bindings themselves are doubles, since no wheel of theirs can be downloaded: modules of the right names and places
that make a backend ``ccl`` of torch's own Gloo, with Intel MPI's programs where theirs would be. Torch, IPEX, MPI,
accelerate, transformers and all that ipexctl does are real.
"""

import re
import sys
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.conftest import TRAINERS
from tests.e2e.test_recipes import GUIDE, NLP, QA, QUICK
from tests.e2e.trained import BF16, LAYERS, PRECISION
from tests.e2e.workspace import ROOT, Workspace, find_orphans, marker

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
DOUBLE = """
import os
import torch.distributed as dist

__version__ = "{version}"
cwd = os.path.dirname(os.path.abspath(__file__))


def _group(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


dist.Backend.register_backend("ccl", _group, devices=["cpu"])
"""
GENERATIONS = {"torch_ccl": "1.11.0", "oneccl_bindings_for_pytorch": "2.7.0"}
BINDINGS = pytest.mark.parametrize("bound", ["oneccl_bindings_for_pytorch"], indirect=True)  # what both do alike


@pytest.fixture(params=GENERATIONS)
def bound(request: pytest.FixtureRequest, recipes: str, hosts: Cluster) -> tuple[str, str]:
    """An environment on node0 and node1 that adds the bindings to that of the recipes: where it is, and the module."""
    module: str = request.param
    venv, version = f"/opt/{module}", GENERATIONS[module]
    site = f"{venv}/lib/{PYTHON}/site-packages"
    inside = f"lib/{PYTHON}/site-packages/{module}"
    layout = {
        "mpi": "binding", "mpiexec": f"{inside}/bin/mpiexec.hydra", "bin": [f"{inside}/bin"], "lib": [f"{inside}/lib"],
        "providers": f"{inside}/lib/prov", "mpi_root": inside, "ccl_root": inside, "module": module,
    }  # fmt: skip
    packages = {"torch": "2.8.0", "intel-extension-for-pytorch": "2.8.0", "oneccl-bind-pt": version}
    packages |= dict(each.split("==") for each in TRAINERS)
    texts = {
        f"{venv}/ipexctl.json": marker(venv, packages, **layout),
        f"{venv}/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\n",
        f"{site}/recipes.pth": f"{recipes}/lib/{PYTHON}/site-packages\n",
        f"{site}/{module}/__init__.py": DOUBLE.replace("{version}", version),
    }
    for name, each in packages.items():
        result = f"{site}/{name.replace('-', '_')}-{each}.dist-info/METADATA"
        texts[result] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {each}\n"
    for host in ("node0", "node1"):
        if hosts.path(host, venv).exists():
            continue
        for path, text in texts.items():
            hosts.write(host, path, text.encode())
        hosts.path(host, f"{venv}/bin").mkdir()
        hosts.path(host, f"{venv}/bin/python").symlink_to(f"/usr/bin/{PYTHON}")
        for name in ("bin", "lib"):  # Intel MPI, as if it had come with the bindings
            hosts.path(host, f"{site}/{module}/{name}").symlink_to(f"{recipes}/{name}")
    return venv, module


def test_recipe_4_ranks_add_up_over_ccl(bound: tuple[str, str], workspace: Workspace, hosts: Cluster) -> None:
    venv, module = bound
    script = ROOT / "examples/oneccl.py"
    workspace.succeed(
        "run", "--limit", "node[0-1]", "--ppn", "1", "--backend", "ccl", "--venv", venv, script, timeout=600
    )
    root = f"{venv}/lib/{PYTHON}/site-packages/{module}"
    for rank in range(2):
        text = workspace.written(rank).decode()
        version = GENERATIONS[module]
        assert f"rank {rank} of 2 on node{rank}: {module} {version}, backend ccl, sum 3" in text
        env = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
        assert env["CCL_ROOT"] == env["I_MPI_ROOT"] == root, "as the bindings' setvars.sh has it"
        assert env["FI_PROVIDER_PATH"] == f"{root}/lib/prov"
        assert env["LD_LIBRARY_PATH"].split(":")[0] == f"{root}/lib"
        assert env["PATH"].split(":")[:2] == [f"{venv}/bin", f"{root}/bin"]
        assert (env["CCL_WORKER_COUNT"], env["CCL_ATL_TRANSPORT"]) == ("1", "ofi")
        assert env["MASTER_ADDR"] == "10.77.0.10"
    assert not find_orphans(hosts)


@BINDINGS
@pytest.mark.beyond_core
def test_recipe_2_accelerate_takes_ccl(bound: tuple[str, str], workspace: Workspace, hosts: Cluster) -> None:
    venv, _ = bound
    words = ("--limit", "node[0-1]", "--ppn", "1", "--venv", venv, "--launcher", "accelerate")
    workspace.succeed("run", *words, "--env", f"ACCELERATE_MIXED_PRECISION={PRECISION}", NLP, *QUICK, timeout=600)
    for rank in range(2):
        actual = rf"rank {rank} of 2 on node{rank}: MULTI_CPU, backend ccl, {PRECISION}, {LAYERS} layers of IPEX"
        assert re.search(actual, workspace.written(rank).decode())
    assert not find_orphans(hosts)


@BINDINGS
def test_recipe_3_the_trainer_takes_ccl(bound: tuple[str, str], workspace: Workspace, hosts: Cluster) -> None:
    venv, _ = bound
    # Without --do_eval: there Accelerate gathers into one long tensor, which Gloo, behind the double, does not take.
    args = ["ccl" if word == "gloo" else word for word in GUIDE if word != "--do_eval"]
    workspace.succeed("run", "--limit", "node[0-1]", "--ppn", "1", "--venv", venv, QA, *args, timeout=600)
    for rank in range(2):
        assert (
            f"rank {rank} of 2 on node{rank}: backend ccl, {'bf16' if BF16 else 'fp32'}, "
            in workspace.written(rank).decode()
        )
    assert not find_orphans(hosts)


@BINDINGS
def test_the_playbook_of_recipe_4_plays(
    bound: tuple[str, str], workspace: Workspace, hosts: Cluster, tmp_path: Path
) -> None:
    venv, module = bound
    book = tmp_path / "oneccl.yaml"
    text = (ROOT / "playbooks/oneccl.yaml").read_text().replace("../examples", str(ROOT / "examples"))
    book.write_text(text.replace("backend: ccl\n      ppn", f"backend: ccl\n      venv: {venv}\n      ppn"))
    result = workspace.succeed(
        "play", book, "--limit", "node[0-1]", "--skip-tags", "prepare", "--allow-path", ROOT / "examples", timeout=600
    )
    assert f"rank 1 of 2 on node1: {module} {GENERATIONS[module]}, backend ccl, sum 3" in result.out
    assert not find_orphans(hosts)
