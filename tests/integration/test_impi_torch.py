"""The most telling of impi_torch's own tests, with real torch and Intel MPI, and with the wheel that install brings.

All of them: `make test-impi`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ipexctl.act.bundled_files import pack_impi_torch

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
TORCH = "2.13.0"
TELLING = (
    "test_collectives.py::test_collectives_are_right_on_one_host[2]",
    "test_collectives.py::test_groups_and_point_to_point_are_right_on_one_host[2]",
    "test_models.py::test_training_gives_the_parameters_that_gloo_gives[2]",
    "test_faults.py::test_a_timeout_names_the_rank_that_did_not_come[late]",
    "test_faults.py::test_a_rank_that_fails_ends_with_its_own_status_after_all_its_output[exits-3-exit status 3]",
    "test_launch.py::test_an_override_takes_the_place_of_gloo_and_of_what_this_torch_lacks[ccl]",
    "test_launch.py::test_ranks_that_a_program_behind_mpirun_started_keep_gloo_or_are_refused[gloo]",
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with torch's CPU build and the wheel that ipexctl packs."""
    house = os.environ.get("PIP_FIND_LINKS", "")
    if not list(Path(house or os.devnull).glob(f"torch-{TORCH}+cpu-*.whl")):
        pytest.skip("the CPU build of torch is not in a directory that PIP_FIND_LINKS names")
    path = tmp_path_factory.mktemp("impi")
    uv = Path(sys.executable).with_name("uv")
    wheel = pack_impi_torch(path / "cache")
    needs: tuple[str | Path, ...] = (
        f"torch=={TORCH}+cpu",
        "mpi4py>=4",
        "impi-rt==2021.18.1",
        "numpy",
        "pytest>=8",
        wheel,
    )
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, path / "env"], check=True)
    interpreter = path / "env/bin/python"
    subprocess.run([uv, "pip", "install", "-q", "--python", interpreter, "--find-links", house, *needs], check=True)
    return interpreter


def test_impi_torch_is_right(python: Path) -> None:
    options = ("-q", "-p", "no:cacheprovider", "-c", "pyproject.toml")
    words: list[str | Path] = [python, "-m", "pytest", *options, *(f"tests/{name}" for name in TELLING)]
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # it is for this run
    done = subprocess.run(words, cwd=ROOT / "impi_torch", env=env, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert f"{len(TELLING)} passed" in done.stdout, done.stdout[-2000:]
