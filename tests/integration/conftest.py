"""Intel MPI in an environment of this machine, and runs with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ipexctl.decide.releases.runtime import Runtime
from tests import mpi
from tests.integration.attempts import Start, starting


@pytest.fixture(scope="package")
def intel(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    venv = str(mpi.make(tmp_path_factory.mktemp("mpi") / "env"))
    return Runtime(
        f"{venv}/bin/python", f"{venv}/bin/mpiexec.hydra", (f"{venv}/bin",), (f"{venv}/lib",), {}, "impi", ""
    )


@pytest.fixture
def runtime(intel: Runtime) -> Runtime:
    """What starts the ranks; a module may say otherwise."""
    return intel


@pytest.fixture
def start_actor(runtime: Runtime, tmp_path: Path) -> Iterator[Start]:
    with starting(runtime, tmp_path) as start:
        yield start


@pytest.fixture
def start(start_actor: Start) -> Start:
    """`starting`'s; a module may play another script."""
    return start_actor
