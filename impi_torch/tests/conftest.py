"""Starting ranks: each test runs a script of `ranks/` under mpirun and looks at how it ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import hosts as namespaces

HERE = Path(__file__).parent
LIMIT = 240.0  # seconds for one job; the machine may be shared


@dataclass(frozen=True)
class Ended:
    """How a job ended: exit code, what it wrote, how long it took."""

    code: int
    out: str
    err: str
    seconds: float

    def ok(self) -> Ended:
        assert self.code == 0, f"exit {self.code} after {self.seconds:.1f} s\n{self.out[-3000:]}\n{self.err[-6000:]}"
        return self


def mpirun() -> str:
    """The mpirun beside this Python, else the one of the PATH, else nothing."""
    beside = Path(sys.prefix, "bin", "mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun") or ""


def environment(**more: Any) -> dict[str, str]:
    env = namespaces.environment()
    env.update({"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "GLOO_SOCKET_IFNAME": "lo"})
    if "Open MPI" in version():
        env.update(
            {
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "OMPI_MCA_rmaps_base_oversubscribe": "1",
            }
        )
    env.update({key: str(value) for key, value in more.items()})
    return env


def version() -> str:
    return subprocess.run(
        [mpirun(), "--version"], capture_output=True, text=True, check=False, env=namespaces.environment()
    ).stdout


def job(argv: list[str], env: dict[str, str], limit: float = LIMIT) -> Ended:
    """Run a command to its end; a job over the limit is ended and told as exit 124."""
    start = time.monotonic()
    process = subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=limit)
        return Ended(process.returncode, out, err, time.monotonic() - start)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 15)
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, err = process.communicate()
        return Ended(124, out, err, time.monotonic() - start)


class Run:
    """Runs `ranks/SCRIPT.py` on one host or several."""

    def __init__(self, several: namespaces.Hosts | None = None) -> None:
        self.several = several

    def __call__(
        self,
        script: str,
        *args: str,
        ranks: int = 2,
        per_host: int = 1,
        limit: float = LIMIT,
        mpi: tuple[str, ...] = (),
        **more: Any,
    ) -> Ended:
        program = [sys.executable, "-X", "faulthandler", str(HERE / "ranks" / f"{script}.py"), *args]
        if self.several is None:
            return job([mpirun(), *mpi, "-n", str(ranks), *program], environment(**more), limit)
        more.setdefault("MASTER_ADDR", self.several.addresses[0])
        more.setdefault("GLOO_SOCKET_IFNAME", "eth0")
        return job([*self.several.mpirun(ranks, per_host), *program], environment(**more), limit)


@pytest.fixture(scope="session")
def run() -> Run:
    if not mpirun():
        pytest.skip("no mpirun beside this Python or on the PATH")
    return Run()


@pytest.fixture(scope="session")
def across() -> Iterator[Run]:
    """Runs over up to four namespaced hosts."""
    reason = namespaces.available() or ("" if mpirun() and "Intel" in version() else "needs Intel MPI's mpirun")
    if reason:
        pytest.skip(reason)
    with namespaces.hosts(4) as made:
        yield Run(made)
