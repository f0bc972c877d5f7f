"""The one rank that the check of an environment starts, with a real Intel MPI: a mixture of builds does not pass."""

import os
import subprocess
import sys
from pathlib import Path

from ipexctl.decide.launch.dialects import get_dialect
from ipexctl.decide.releases.runtime import Runtime

ROOT = Path(__file__).parents[2]
ASK = """
import sys
from ipexctl.remote.session.verify import query_mpi_version
print(query_mpi_version(sys.argv[1], sys.argv[3:], sys.argv[2]))
"""


def check(runtime: Runtime, *first: Path) -> subprocess.CompletedProcess[str]:
    """What the check says of this MPI; the loader searches the directories ``first`` before its own."""
    library_path = os.pathsep.join([*map(str, first), *runtime.library_path])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": library_path}
    alone = get_dialect(runtime.dialect, runtime.version).single_rank
    argv = [sys.executable, "-c", ASK, runtime.mpiexec, "libmpi.so.12", *alone]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)


def test_the_version_is_that_of_the_library_which_a_rank_has_loaded(runtime: Runtime) -> None:
    done = check(runtime)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Intel(R) MPI Library 2021.18"), done.stdout
