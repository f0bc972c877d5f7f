"""An environment that holds nothing but Intel MPI, for tests of the launch that need no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

IMPI = "impi-rt==2021.18.1"


def make(directory: Path) -> Path:
    """A virtual environment with mpirun in its bin; a second or two from uv's cache."""
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "-q", "--python", "/usr/bin/python3", directory], check=True)
    subprocess.run([uv, "pip", "install", "-q", "--python", directory / "bin/python", IMPI], check=True)
    return directory
