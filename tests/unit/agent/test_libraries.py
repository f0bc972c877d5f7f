"""The libraries that a rank really loaded, with their versions; two of a kind are said, one is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ipexctl.act import agent
from ipexctl.remote.agent import libraries

CODE = b"\x7fELF" + bytes(4096)
CCL, MPI, FABRIC = (CODE + mark + CODE for mark in (b"\0Gold-2021.14.0 2024\0", b"\0002021.13\0", b"\0001.18.1\0"))

# A rank that maps these files as the loader would.
RANK = """
import mmap, sys
import torch
held = []
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        held.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE))
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run/ranks").mkdir(parents=True)
    (tmp_path / "torch.py").touch()
    for name, data in agent.read_hooks().items():
        (tmp_path / name).write_bytes(data)
    return tmp_path / "run"


def library(run: Path, name: str, data: bytes) -> str:
    path = run.parent / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(data)
    return str(path)


def load(run: Path, *paths: str, code: str = RANK) -> list[tuple[str, str, str]]:
    env = {**os.environ, "PYTHONPATH": str(run.parent), "IPEXCTL_DIR": str(run), "IPEXCTL_RANK": "3"}
    subprocess.run([sys.executable, "-c", code, *paths], env=env, check=True, timeout=60)
    return libraries.list_loaded_libraries(str(run), 3)


def test_kind_path_and_version_of_what_is_mapped(run: Path) -> None:
    ccl, mpi = library(run, "bind/lib/libccl.so.1", CCL), library(run, "bind/opt/mpi/lib/libmpi.so.12.0.0", MPI)
    fabric, omp = library(run, "lib/libfabric.so.1", FABRIC), library(run, "torch.libs/libgomp-a34b3233.so.1.0.0", CODE)
    other = library(run, "lib/libmpifort.so.12", CODE)
    result = load(run, ccl, mpi, fabric, omp, other)
    assert sorted(result) == [
        ("MPI", mpi, "2021.13"),
        ("OpenMP", omp, ""),
        ("libfabric", fabric, "1.18.1"),
        ("oneCCL", ccl, "2021.14.0"),
    ]
    assert libraries.describe_duplicate_libraries(result, "") == []


def test_two_of_a_kind_are_reported_with_both_paths_and_versions(run: Path) -> None:
    ours = library(run, "oneccl_bindings_for_pytorch/opt/mpi/lib/libmpi.so.12", MPI)
    theirs = library(run, "intel_extension_for_pytorch/opt/mpi/lib/libmpi.so.12", MPI.replace(b"2021.13", b"2021.12"))
    (text,) = libraries.describe_duplicate_libraries(load(run, ours, theirs), "")
    assert text.startswith("has loaded MPI twice")
    assert f"{ours} (2021.13)" in text
    assert f"{theirs} (2021.12)" in text


def test_intels_openmp_speaks_for_gnus_where_it_is_preloaded(run: Path) -> None:
    intel, gnu = library(run, "libiomp5.so", CODE), library(run, "libgomp.so.1", CODE)
    result = load(run, intel, gnu)
    assert libraries.describe_duplicate_libraries(result, f"/usr/lib/libtcmalloc.so.4:{intel}") == []
    assert "OpenMP twice" in libraries.describe_duplicate_libraries(result, "")[0]


def test_two_wheels_with_gnus_openmp_are_no_conflict(run: Path) -> None:
    wheels = [library(run, f"{name}.libs/libgomp-{name}.so.1", CODE) for name in ("torch", "scikit_learn")]
    assert libraries.describe_duplicate_libraries([("OpenMP", wheel, "") for wheel in wheels], "") == []


def test_a_helper_without_torch_does_not_speak_for_its_rank(run: Path) -> None:
    mpi = library(run, "libmpi.so.12", MPI)
    assert load(run, mpi, code=RANK.replace("import torch", "")) == []
    assert load(run, mpi) == [("MPI", mpi, "2021.13")]


def test_what_a_rank_has_written_itself_is_no_trap(run: Path) -> None:
    os.mkfifo(run.parent / "libmpi.so.12")
    (run / "ranks/3.libraries").write_bytes(b"\xff\n/nowhere/libccl.so.1\n" + os.fsencode(run.parent / "libmpi.so.12"))
    assert libraries.list_loaded_libraries(str(run), 3) == []
    assert libraries.list_loaded_libraries(str(run), 4) == []
