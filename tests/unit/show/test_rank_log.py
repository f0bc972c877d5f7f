"""All lines of a rank can be read and searched, however many it wrote, and little of them is in memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipexctl.model import events as e
from ipexctl.show.rank_log import RECENT_SIZE, LineSpool, RankLog, format_line
from tests.unit.show import streams
from tests.unit.show.test_live import drawn, watch

MANY = 100_000  # lines, of 40 bytes each


def fill(log: RankLog, many: int = MANY) -> None:
    for start in range(0, many, 500):
        log.append(b"".join(b"step %-34d\n" % n for n in range(start + 1, start + 501)))


def find(log: RankLog, text: str, start: int = 1 << 40, *, forwards: bool = False, fold: bool = False) -> int:
    return next((n for n in log.search(text, start, forwards=forwards, fold=fold) if n), 0)


def test_every_line_can_be_read_and_memory_is_bounded(tmp_path: Path) -> None:
    log = RankLog(LineSpool(tmp_path))
    fill(log)
    assert (log.first, log.count) == (1, MANY)
    assert len(log.recent) < 2 * RECENT_SIZE
    for first in (1, 7000, MANY - 2, MANY):
        expected = [f"step {n}" for n in range(first, min(first + 3, MANY + 1))]
        assert [line.rstrip() for line in log.read_lines(first, first + 2)] == expected
    assert not [*tmp_path.iterdir()], "the file has no name"


def test_the_whole_log_is_searched_both_ways(tmp_path: Path) -> None:
    log = RankLog(LineSpool(tmp_path))
    fill(log, 50_000)
    log.append(b"\x1b[31mLoss\x1b[0m is \tNaN\n")
    fill(log, 50_000)
    assert find(log, "step 7 ", MANY) == 50_008
    assert find(log, "step 7 ", 50_008) == 7
    assert find(log, "step 7 ", 7) == 0
    assert find(log, "step 7 ", 7, forwards=True) == 50_008
    assert find(log, "step 7 ", 50_008, forwards=True) == 0
    assert find(log, "loss is     nan", fold=True) == 50_001
    assert find(log, "loss is") == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=60), st.text(max_size=3))
def test_a_search_finds_what_reading_each_line_finds(lines: list[bytes], text: str) -> None:
    log = RankLog(LineSpool())
    for line in lines:
        log.append(line + b"\n")
    shown = list(map(format_line, lines))
    assert log.read_lines(1, len(lines)) == shown
    if text:
        assert find(log, text) == max((n for n, line in enumerate(shown, 1) if text in line), default=0)


def test_a_disk_without_room_leaves_the_newest_lines_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = LineSpool(tmp_path)
    logs = RankLog(spool), RankLog(spool)
    for log in logs:
        fill(log, 10_000)
    write = os.pwrite

    def full(number: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "pwrite", full)
    fill(logs[0], 5000)
    monkeypatch.setattr(os, "pwrite", write)
    assert [log.count - log.first < 2 * RECENT_SIZE / 40 for log in logs] == [True, True]
    assert [line.rstrip() for line in logs[1].read_lines(1, 1 << 40)][-1] == "step 10000"
    fill(logs[0], 10_000)
    assert logs[0].read_lines(logs[0].first, logs[0].first)[0].startswith("step ")
    assert find(logs[0], "step 9 ") == 15_009

    view = watch(streams.stamp([e.RunStarted("k7", "a", ("a",), "")]), spool=spool, keys=True)
    view.logs._logs[0] = logs[1]
    for key in ("/", *"nowhere", "enter"):
        view.press(key)
    assert drawn(view)[-1].startswith(f"no «nowhere» from line {logs[1].first:,} on, the first that is held")


def test_a_long_search_goes_on_while_the_run_does_and_escape_ends_it(tmp_path: Path) -> None:
    stream = streams.stamp([e.RunStarted("k7", "a", ("a",), "")])
    view = watch(stream, spool=LineSpool(tmp_path), keys=True, slice=0.0)
    log = view.logs[0]
    log.append(b"needle\n")
    fill(log)
    for key in ("/", *"needle"):
        view.press(key)
    view.pattern, view.prompt = "needle", ""
    view.press("n")
    steps = 0
    while view.search():
        steps += 1
        if view.match:
            break
        fill(log, 500)
    assert view.match == 1
    assert steps > 1
    view.match = 0
    view.press("n")
    view.press("escape")
    assert not view.search()
