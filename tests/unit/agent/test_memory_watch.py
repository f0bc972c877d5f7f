"""A rank whose memory is about to run out is asked where it stands; one that does not grow is not."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ipexctl.decide.diagnosis.stack_traces import describe_position, parse_main_thread
from ipexctl.protocol.hooks import RANKS, STACKS, STACKS_SIGNAL
from ipexctl.remote.agent import memory_watch
from ipexctl.remote.agent.memory_watch import MemoryGroup, MemoryWatch, read_resident
from tests.waiting import wait

RANK = f"""
import faulthandler, sys, time
handler = open(sys.argv[1], "ab")
faulthandler.register({STACKS_SIGNAL}, handler, all_threads=True, chain=False)
print("ready", flush=True)
def grow():
    kept = []
    while True:
        kept += [b"x" * (int(sys.argv[2]) << 20)] if sys.argv[2] != "0" else []
        time.sleep(0.05)
grow()
"""


@contextmanager
def rank(directory: Path, mebibytes: int) -> Iterator[MemoryWatch]:
    """A rank that grows by so much twenty times a second, and its watch."""
    (directory / RANKS).mkdir()
    path = directory / RANKS / f"0{STACKS}"
    script = directory / "train.py"
    script.write_text(RANK)
    with subprocess.Popen([sys.executable, script, path, str(mebibytes)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield MemoryWatch(str(directory), 0, process.pid)
        finally:
            process.kill()


def has_settled(pid: int) -> bool:
    """Whether a process has as much memory as half a second ago: one that has just begun still gets pages."""
    before = read_resident(pid)
    time.sleep(0.5)
    return read_resident(pid) == before


def fill(directory: Path, used: int, limit: int, cached: int = 0) -> MemoryGroup:
    """A control group with so many bytes in use."""
    (directory / "memory.current").write_text(f"{used}\n")
    (directory / "memory.stat").write_text(f"anon {used - cached}\nfile {cached}\n")
    return MemoryGroup(limit, str(directory / "memory.current"), str(directory / "memory.stat"))


def test_a_rank_that_grows_where_nothing_is_left_says_where_it_is(tmp_path: Path) -> None:
    with rank(tmp_path, 1) as watch:
        watch.group = fill(tmp_path, 100 << 20, 100 << 20)
        watch.start()
        wait(lambda: "grow" in watch.read_last_stacks())
        line = describe_position(parse_main_thread(watch.read_last_stacks()))
    assert line in ("train.py:10 grow", "train.py:9 grow")


def test_a_rank_that_does_not_grow_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "SLOW", 0.01)
    with rank(tmp_path, 0) as watch:
        wait(lambda: has_settled(watch.pid))  # where nothing is left, one page more is growth
        watch.group = fill(tmp_path, 100 << 20, 100 << 20)
        thread = threading.Thread(target=watch.watch)
        thread.start()
        thread.join(1.0)
        assert watch.read_last_stacks() == ""
    thread.join()


def test_a_process_that_has_no_handler_gets_no_signal(tmp_path: Path) -> None:
    (tmp_path / RANKS).mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watch = MemoryWatch(str(tmp_path), 0, process.pid)
        assert watch.request_stacks() == 0
        assert process.poll() is None
        process.kill()


def test_room_is_what_the_group_and_the_host_have_left(tmp_path: Path) -> None:
    assert memory_watch.read_room(fill(tmp_path, 90 << 20, 100 << 20, cached=40 << 20)) == 50 << 20
    assert memory_watch.read_room(fill(tmp_path, 90 << 20, 10 << 20, cached=40 << 20)) == 0
    assert 0 < memory_watch.read_room(None) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
