"""After the end of a run its hosts are searched: over a network that loses packets more than once, if it ended well."""

from collections import Counter
from pathlib import Path
from typing import Literal

import pytest

from ipexctl.act.context import Context
from ipexctl.act.run_dir import RemoteRunDir
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import CleanupChecked, RunEnded
from ipexctl.model.hosts import Command, Completed, Host, LinkError
from ipexctl.model.launch import Running
from ipexctl.protocol.messages import KINDS, ProcessesLeft
from ipexctl.verbs.run.watch import RunWatcher
from tests.fakes import FakeOpener

HOSTS = {name: RemoteRunDir(Host(name, name), f"/root/runs/r1-{name}", "python3") for name in "ab"}


@pytest.mark.parametrize(
    ("reason", "cuts", "lost", "unchecked"),
    [
        ("done", 0, set(), ()),
        ("done", 2, set(), ()),
        ("done", 9, set(), ("b",)),
        ("done", 2, {"b"}, ("b",)),
        ("lost", 1, set(), ("b",)),
    ],
)
def test_a_connection_that_is_cut_does_not_make_a_run_that_ended_well_a_lost_one(
    tmp_path: Path, reason: Literal["done", "lost"], cuts: int, lost: set[str], unchecked: tuple[str, ...]
) -> None:
    """Exit 6, of all ranks ended well, in as many runs as a packet was lost in the wrong moment."""
    asked: Counter[str] = Counter()

    def answer(host: Host, command: Command) -> Completed:
        if command.argv[0] != "ipexctl-find_processes.sh":
            return Completed(0)
        asked[host.name] += 1
        if host.name == "b" and asked["b"] <= cuts:
            raise LinkError(Failure("b", Kind.UNREACHABLE, "the connection was lost", code="lost"))
        return Completed(0, KINDS.write(ProcessesLeft([])))

    context = Context(FakeOpener(answer), tmp_path / "state", tmp_path / "cache")
    watcher = RunWatcher(context, Running("r1", "a", ("a", "b"), {}, "train.py", "train.py"), "nonce", HOSTS)
    watcher.run_ended, watcher.lost_hosts = RunEnded("r1", reason), lost
    [proof] = [event for event in watcher.prove_ended() if isinstance(event, CleanupChecked)]
    assert proof.unchecked == unchecked
    assert asked["a"] == 1
