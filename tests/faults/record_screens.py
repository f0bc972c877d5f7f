"""Records the runs of the pictures anew (tests/data/screens/*.jsonl), on separate hosts with a real mpirun:

.venv/bin/python -m pytest tests/faults/record_screens.py     # root; then: python -m tests.unit.show.pictures
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from ipexctl.model import events as e
from ipexctl.model.events import Stamped
from ipexctl.store import event_json
from ipexctl.verbs.run.replay import read_saved_run
from tests.cluster import Cluster
from tests.e2e.groups import memory
from tests.e2e.workspace import LIGHT, ROOT, Started, Workspace

Start = Callable[..., Started]
DATA = ROOT / "tests/data/screens"
SCRIPT = DATA / "train.py"
RUN = ("run", "--venv", LIGHT, "--limit", "node[0-1]", "--ppn", "2", "--grace", "2")
START = 1_795_298_400.0  # of every record: 22:00 of 21 November 2026 in UTC


def keep(name: str, controller: Workspace) -> None:
    """The events of the last command, without what the screens of a run do not show."""
    events = [event for event in read_saved_run(controller.records[-1]) if not isinstance(event.event, e.FactsRead)]
    earlier = events[0].at - START
    (DATA / f"{name}.jsonl").write_text(
        "".join(
            event_json.dump_ascii_json(event_json.encode_event(_move(stamped, earlier))) + "\n" for stamped in events
        )
    )


def _move(stamped: Stamped, earlier: float) -> Stamped:
    event: Any = stamped.event
    if isinstance(event, e.Started) and event.selection_flags:
        event = dataclasses.replace(
            event, selection_flags=("-f", "hosts")
        )  # as a user would have it, and no path of this machine
    if getattr(event, "at", 0.0):
        event = dataclasses.replace(event, at=round(event.at - earlier, 3))
    return Stamped(round(stamped.at - earlier, 3), event)


@pytest.mark.parametrize(("name", "fault"), [("well", []), ("failed", ["nan"])])
def test_a_run_without_help(name: str, fault: list[str], start: Start, controller: Workspace, mpi: Cluster) -> None:
    start(*RUN, SCRIPT, *fault).end()
    keep(name, controller)


def test_a_full_disk(start: Start, controller: Workspace, mpi: Cluster) -> None:
    mpi.exec("node0", ["mkdir", "-p", "/mnt/ckpt"], check=True)
    mpi.exec("node0", ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", "/mnt/ckpt"], check=True)
    start(*RUN, SCRIPT, "disk").end()
    mpi.exec("node0", ["umount", "/mnt/ckpt"], check=True)
    keep("disk", controller)


def test_a_full_memory_group(start: Start, controller: Workspace, mpi: Cluster) -> None:
    with memory(mpi, "node0", 256 << 20):
        start(*RUN, SCRIPT, "memory").end()
    keep("memory", controller)


def test_a_hang(start: Start, controller: Workspace, mpi: Cluster) -> None:
    mpi.exec("node0", ["mkfifo", "/tmp/features"], check=True)
    command = start(*RUN, "--stall-warn", "20", SCRIPT, "hang")
    command.until("no progress", timeout=90)
    time.sleep(8)
    command.signal(signal.SIGINT)
    command.end()
    mpi.exec("node0", ["rm", "/tmp/features"], check=True)
    keep("hang", controller)
