"""A replay as slow as the run was, or faster: when each event comes."""

import json
import os
import pty
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ipexctl.cli import app
from ipexctl.model import events as e
from ipexctl.model.errors import Exit
from ipexctl.model.events import Stamped
from ipexctl.show.live import Live
from ipexctl.show.pipe import Pipe
from ipexctl.store.masking import Masker
from ipexctl.store.record import RunRecord, make_name
from ipexctl.verbs.run.replay import pace_events, read_saved_run
from tests.unit.show import streams
from tests.unit.show.streams import fold

START = 1000.0


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 50.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def show(stamps: list[float], speed: float, skip: float = 0.0, paused: Callable[[float], bool] | None = None,
         slow: float = 0.0) -> list[float]:  # fmt: skip
    """When each event is shown, in seconds from the first; a screen takes ``slow`` seconds for each."""
    clock = Clock()
    shown = []
    is_paused = (lambda: paused(clock.now - 50.0)) if paused else (lambda: False)
    events = [Stamped(START + at, e.Message("x")) for at in stamps]
    for _ in pace_events(events, speed, skip, is_paused=is_paused, sleep=clock.sleep, clock=clock.read):
        shown.append(round(clock.now - 50.0, 3))
        clock.now += slow
    return shown


def test_events_come_as_they_came() -> None:
    assert show([0, 1, 3.5, 3.5, 10], 1) == [0, 1, 3.5, 3.5, 10]
    assert show([0, 1, 3.5, 3.5, 10], 10) == [0, 0.1, 0.35, 0.35, 1]
    assert show([0, 1], 0.5) == [0, 2]


def test_a_clock_that_moves_between_two_readings_never_asks_for_a_negative_sleep() -> None:
    readings = count(50.0, 0.0007)  # each reading is later than the one before it, as on a busy machine
    slept: list[float] = []
    events = [Stamped(START + at / 100, e.Message("x")) for at in range(50)]
    assert len(list(pace_events(events, 1.0, sleep=slept.append, clock=lambda: next(readings)))) == 50
    assert min(slept) > 0


def test_what_comes_before_a_time_is_shown_at_once() -> None:
    assert show([0, 1, 750, 751, 760], 1, skip=750) == [0, 0, 0, 1, 10]
    assert show([0, 1, 700, 760], 1, skip=750) == [0, 0, 0, 10]
    assert show([0, 1], 1, skip=750) == [0, 0]


def test_a_clock_that_was_set_back_delays_nothing() -> None:
    assert show([0, 5, -3600, 6], 1) == [0, 5, 5, 6]


def test_a_slow_screen_is_not_waited_for_twice() -> None:
    assert show([0, 1, 2, 3], 1, slow=0.5) == [0, 1, 2, 3]


def test_a_paused_view_holds_the_replay() -> None:
    assert show([0, 1, 2], 1, paused=lambda now: 1.05 < now < 6.05) == [0, 1, pytest.approx(7.0, abs=0.2)]


def record(runs: Path) -> RunRecord:
    return streams.save(RunRecord(runs, make_name(streams.START)), streams.run(1, steps=4))


def test_plain_output_is_the_same_at_any_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record(tmp_path / "ipexctl" / "runs")
    call = CliRunner().invoke
    plain = call(app, ["replay"])
    paced = call(app, ["replay", "--speed", "1000", "--at", "0:02"])
    assert plain.exit_code == paced.exit_code == Exit.OK
    assert paced.stdout == plain.stdout != ""
    assert call(app, ["replay", "--at", "soon"]).exit_code == Exit.INPUT
    assert call(app, ["replay", "--speed", "0"]).exit_code == Exit.INPUT


def test_a_command_refused_in_the_middle_ends_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = RunRecord(tmp_path / "ipexctl" / "runs", make_name(START))
    stream = [Stamped(START, e.Started("run", "train.py", ("a",))), Stamped(START + 1, e.Message("looking"))]
    for stamped in stream:
        made.handle_event(stamped)
    refused = "the environment has no oneccl_bind_pt"
    report = replace(fold(stream), exit=Exit.STEP, ok=False, finished=False, refused=refused)
    made.close(replace(report, reasons=("a reason",), hint="ipexctl install"))
    shown = CliRunner().invoke(app, ["replay"])
    assert shown.exit_code == Exit.STEP
    assert "the record ends here" not in shown.output
    assert "error: the environment has no oneccl_bind_pt\n  a reason\n  hint: ipexctl install" in shown.output
    document = json.loads(CliRunner().invoke(app, ["replay", "--json"]).stdout)
    assert (document["exit"], document["refused"], document["next"]) == (4, refused, [["ipexctl", "install"]])


def test_holes_of_a_strangers_files_are_not_read(tmp_path: Path) -> None:
    """A sparse file may be said to have an exabyte, which would be read for years."""
    directory = record(tmp_path).directory
    assert directory
    before = [stamped.event for stamped in read_saved_run(directory, Masker({}))]
    with next((directory / "ranks").glob("0.out")).open("ab") as file:
        file.write(b"x" * 4096)
        file.truncate(1 << 42)
    after = [stamped.event for stamped in read_saved_run(directory, Masker({}))]
    assert sum(len(event.data) for event in after if isinstance(event, e.Output)) < 1 << 20
    assert len(after) > len(before)


def test_the_live_view_says_that_it_is_paused() -> None:
    """The key that pauses it holds the replay: `loop.replay_run` asks ``paused``."""
    control, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        live = Live(Pipe(stream), speed=10.0)
        streams.feed(live, [Stamped(time.time(), e.Started("run", "t", ()))])
        before = live.paused
        live._view.press(" ")
        assert (before, live.paused) == (False, True)
        live.close()
    os.close(control)
