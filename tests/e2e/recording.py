"""The events of real runs, kept for the pictures of screens (tests/data/screens/*.jsonl)."""

import dataclasses
import os
import re
from typing import Any

from ipexctl.model import events as e
from ipexctl.model.events import Stamped
from ipexctl.store import event_json
from ipexctl.store.masking import Masker
from ipexctl.verbs.run.replay import read_saved_run
from tests.e2e.workspace import RANKS, ROOT, Workspace

DATA = ROOT / "tests/data/screens"
START = 1_795_298_400.0  # of every record: 22:00 of 21 November 2026 in UTC


def record(name: str, workspace: Workspace) -> None:
    """Keeps the events of the last command, where the tests are to be recorded."""
    if os.environ.get("IPEXCTL_RECORD"):
        keep(name, workspace)


def keep(name: str, workspace: Workspace) -> None:
    """Keeps the events of the last command, without what the screens of a run do not show, and no path of this
    machine."""
    starts = {next(read_saved_run(path, Masker({}))).at: path for path in workspace.records}
    saved = starts[max(starts)]  # the last that began
    events = [event for event in read_saved_run(saved, Masker({})) if not isinstance(event.event, e.FactsRead)]
    earlier = events[0].at - START
    lines = [event_json.dump_ascii_json(event_json.encode_event(_move(event, earlier))) + "\n" for event in events]
    text = "".join(lines).replace(f"{workspace.path}/home", "/home/me").replace(str(workspace.path), "/home/me")
    text = text.replace(f"{RANKS}/", "").replace(str(RANKS), "/home/me/work")
    text = re.sub(r"/var/cache/ipexctl-tests/stock/\w+", "/opt/stock", text)
    (DATA / f"{name}.jsonl").write_text(text)


def _move(stamped: Stamped, earlier: float) -> Stamped:
    event: Any = stamped.event
    if isinstance(event, e.Started) and event.selection_flags:
        event = dataclasses.replace(
            event, selection_flags=("-f", "hosts")
        )  # as a user would have it, and no path of this machine
    if getattr(event, "at", 0.0):
        event = dataclasses.replace(event, at=round(event.at - earlier, 3))
    return Stamped(round(stamped.at - earlier, 3), event)
