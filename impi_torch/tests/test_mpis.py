"""The same ranks under other MPIs than Intel's: what mpi4py's own wheels can load (README, "Other MPIs")."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from conftest import HERE, environment, job

SYSTEM = Path("/usr/lib/x86_64-linux-gnu")


@pytest.mark.parametrize("script", ["collectives", "groups"])
def test_open_mpi_works(script: str) -> None:
    if not shutil.which("mpirun.openmpi"):
        pytest.skip("no mpirun.openmpi here")
    env = environment(MPI4PY_MPIABI="openmpi", OMPI_ALLOW_RUN_AS_ROOT=1, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
    env.pop("LD_LIBRARY_PATH")
    program = [sys.executable, str(HERE / "ranks" / f"{script}.py")]
    job(["mpirun.openmpi", "--oversubscribe", "-n", "2", *program], env).ok()


@pytest.mark.parametrize("script", ["collectives", "groups"])
def test_mpich_works(script: str, tmp_path: Path) -> None:
    library = SYSTEM / "libmpich.so.12"
    if not shutil.which("mpirun.mpich") or not library.exists():
        pytest.skip("no mpirun.mpich here")
    (tmp_path / "libmpi.so.12").symlink_to(library)  # the name that the common ABI gives it; Debian's differs
    env = environment(MPI4PY_MPIABI="mpich", LD_LIBRARY_PATH=tmp_path)
    job(["mpirun.mpich", "-n", "2", sys.executable, str(HERE / "ranks" / f"{script}.py")], env).ok()
