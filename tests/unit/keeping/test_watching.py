"""A watcher and its link: a real keeper, the watcher's process beside it, and who listens to it over a link."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipexctl.act import agent, engine
from ipexctl.act.engine import AGENT, ROLE, Site, Watch
from ipexctl.act.links import Links
from ipexctl.act.world import World
from ipexctl.model.hosts import Host
from tests.unit.keeping.runs import Kept, keeping, until

HERE = Host("here", "localhost", vars={"local": "yes"})


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with keeping(tmp_path) as kept:
        yield kept


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(Links(config=None), tmp_path / "state", tmp_path / "cache")
    yield made
    made.links.close()


def at(kept: Kept, agent_is: str = "") -> Site:
    """The run as its head's place, with its agent, or with another program of that name."""
    site = Site(HERE, str(kept.directory), sys.executable)
    (kept.directory / AGENT).write_bytes(agent.archive())
    role = kept.directory / ROLE
    role.write_bytes(f"#!/bin/sh\n{agent_is}\n".encode() if agent_is else site.script())
    role.chmod(0o700)
    return site


def watchers(kept: Kept) -> list[int]:
    """The processes that watch this run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            words = (entry / "cmdline").read_bytes().split(b"\0") if (entry / "cmdline").exists() else []
            if b"watch" in words and os.fsencode(kept.directory) in words:
                found.append(int(entry.name))
    return found


def test_a_watcher_that_hangs_is_a_lost_link_and_another_goes_on_where_it_stood(
    kept: Kept, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "QUIET", 3.0)
    watch = Watch(world, at(kept))
    try:
        until(lambda: watch.offsets[0])  # of the journal
        assert watch.take(1.0) is not None
        time.sleep(4.0)
        assert watch.take(0.1) is None, "a run that says nothing is no lost link"
        [hanging] = watchers(kept)
        os.kill(hanging, signal.SIGSTOP)
        try:
            lost, back = watch.take(10.0), watch.take(10.0)
        finally:
            os.kill(hanging, signal.SIGKILL)
        assert lost == engine.Frame("lost", b"no sign of life for 3 s")
        assert back == engine.Frame("back")
        assert watch.offsets[0] == (kept.directory / "journal.jsonl").stat().st_size
    finally:
        watch.close()


def test_where_every_watcher_hangs_it_is_given_up(kept: Kept, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "QUIET", 1.0)
    monkeypatch.setattr(engine, "GIVE_UP", 2.0)
    watch = Watch(world, at(kept, "exec sleep 10"))
    try:
        assert watch.take(5.0) == engine.Frame("lost", b"no sign of life for 1 s")
        assert watch.take(10.0) == engine.Frame("gave-up", b"no sign of life for 1 s")
    finally:
        watch.close()


def test_letting_go_does_not_wait_for_a_watcher_that_hangs(kept: Kept, world: World) -> None:
    watch = Watch(world, at(kept, "exec sleep 10"))
    time.sleep(0.2)
    begun = time.monotonic()
    watch.close()
    assert time.monotonic() - begun < 3.0
