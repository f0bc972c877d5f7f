"""Records the runs of the pictures anew (tests/data/screens/*.jsonl), on separate hosts with a real mpirun:

.venv/bin/python -m pytest tests/faults/record_screens.py     # root; then: python -m tests.unit.show.pictures
"""

import signal
import time

import pytest

from tests.cluster import Cluster
from tests.e2e.recording import DATA, keep
from tests.e2e.workspace import LIGHT, Start, Workspace

SCRIPT = DATA / "train.py"
RUN = ("run", "--venv", LIGHT, "--limit", "node[0-1]", "--ppn", "2", "--grace", "2")


@pytest.mark.parametrize(("name", "fault"), [("well", []), ("failed", ["nan"])])
def test_a_run_without_help(name: str, fault: list[str], start: Start, controller: Workspace, mpi: Cluster) -> None:
    start(*RUN, SCRIPT, *fault).end()
    keep(name, controller)


def test_a_hang(start: Start, controller: Workspace, mpi: Cluster) -> None:
    mpi.exec("node0", ["mkfifo", "/tmp/features"], check=True)
    command = start(*RUN, "--stall-warn", "20", SCRIPT, "hang")
    command.until("no progress", timeout=90)
    time.sleep(8)
    command.signal(signal.SIGINT)
    command.end()
    mpi.exec("node0", ["rm", "/tmp/features"], check=True)
    keep("hang", controller)
