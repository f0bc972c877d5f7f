"""Runs whose ranks do not get on, and runs that fail in telling ways: real mpirun, on this machine as two hosts."""

# What is missing in a report fails the test by itself.
# mypy: disable-error-code="union-attr"

import json
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.model import events as e
from ipexctl.model.errors import Exit
from ipexctl.model.reports import CommandReport, RankOutcome
from ipexctl.remote.agent import procs
from ipexctl.verbs.common.known_errors import read_known_errors
from ipexctl.verbs.run.attempt import LaunchAttempt
from tests.integration.attempts import QUICK, RANKS, Start, of, run_alone, until
from tests.waiting import wait


@pytest.fixture
def start(start_actor: Start) -> Start:
    def make(*args: str, **settings: Any) -> LaunchAttempt:
        return start_actor(*args, script="stuck.py", **settings)

    return make


def output(events: list[e.Event]) -> list[str]:
    return [event.text for event in of(e.Message, events)]


def child(attempt: LaunchAttempt, rank: int) -> int:
    """The script's process of a rank: the one the wrapper started."""
    site = next(s for s in attempt.run_dirs.values() if Path(s.directory, "ranks", f"{rank}.start.json").exists())
    return int(json.loads(Path(site.directory, "ranks", f"{rank}.start.json").read_text())["child"])


@pytest.mark.fault("F6")
def test_a_rank_that_hangs_is_named_by_the_stacks_of_all(start: Start) -> None:
    events = list(run_alone(start("hang", "2", ppn=2, stall_warn=2.0, stall="kill")))
    # Where the ranks fall silent one after another, the first of them are told before, truly, as some.
    assert of(e.Stalled, events)[-1].kind == "all"
    assert {stack.rank for stack in of(e.RankStack, events)} == {0, 1, 2, 3}
    assert all("stuck.py" in stack.text for stack in of(e.RankStack, events))
    reported = [text for text in output(events) if "the stacks are saved" in text][-1]
    assert "3 of 4 ranks wait in collective, rank 2 on b does not" in reported
    assert re.search(r"  rank 2 +stuck\.py:\d+ read_data\n", reported)
    assert of(e.RunEnded, events)[0].reason == "limit"


def test_a_loader_that_stalls_is_named_early_where_the_others_wait_for_it(start: Start) -> None:
    attempt = start("loader", "2", ppn=2, stall_warn=60.0, time_limit=15.0, timings=QUICK._replace(doubt=2.0))
    seen = list(run_alone(attempt))
    (stall,) = of(e.Stalled, seen)
    assert (stall.kind, stall.ends) == ("all", False)
    compared = of(e.StallCompared, seen)[0]
    assert compared.ranks == (2,)
    assert "3 of 4 ranks wait in all_reduce, rank 2 on b does not" in compared.text
    assert re.search(r"rank 2 +stuck\.py:\d+ read_data", compared.text)


@pytest.mark.fault("F6")
def test_a_stopped_rank_among_busy_ones_is_reported_with_its_state_and_may_go_on(start: Start) -> None:
    attempt = start("tick", "-", "60", stall_warn=1.5)
    story, events = until(attempt, e.Output)
    pid = child(attempt, 1)
    os.kill(pid, signal.SIGSTOP)
    for event in story:
        events.append(event)
        if isinstance(event, e.Message) and "the stacks are saved" in event.text:
            os.kill(pid, signal.SIGCONT)
    stalled = of(e.Stalled, events)[0]
    assert (stalled.ranks, stalled.kind, stalled.states) == ((1,), "some", {"1": "T"})
    assert any("rank 1 on b is silent and idle (rank 1 on b stopped by a signal" in text for text in output(events))
    assert "the stalled ranks make progress again" in output(events)
    assert [(end.run, end.reason) for end in of(e.RunEnded, events)] == [(attempt.launch.run, "done")]


def test_a_rank_that_computes_without_a_word_is_no_stall(start: Start) -> None:
    events = list(run_alone(start("busy", "1", "60", stall_warn=2.0, stall="kill")))
    assert of(e.Stalled, events) == []
    assert of(e.RunEnded, events)[0].reason == "done"


def test_every_host_is_sampled_and_its_own_ranks_with_it(start: Start) -> None:
    events = list(run_alone(start("busy", "1", "20", metrics_every=0.3)))
    by_host = {name: [sample for sample in of(e.HostSample, events) if sample.host == name] for name in "ab"}
    for rank, samples in enumerate(by_host.values()):
        assert {use.rank for sample in samples for use in sample.ranks} == {rank}
        assert all(sample.cores and 0 < sample.memory <= sample.memory_total for sample in samples)
        assert [sample.at for sample in samples] == sorted(sample.at for sample in samples)
    seconds = dict.fromkeys(range(2), 0.0)
    for sample in of(e.HostSample, events):
        for use in sample.ranks:
            seconds[use.rank] += use.cpu * sample.seconds
    assert seconds[1] > seconds[0] > 0, "one computed, the other waited"


@pytest.mark.fault("F12")
def test_ranks_that_outlast_the_others_are_reported_and_may_be_ended(start: Start) -> None:
    events = list(run_alone(start("uneven", "3", ppn=2, straggler_warn=1.0, straggler_kill=True, stall_warn=0)))
    assert any(text.startswith("3 of 4 ranks done for") and text.endswith("rank 3 on b") for text in output(events))
    assert of(e.RunEnded, events)[0].reason == "limit"
    assert {end.rank for end in of(e.RankEnded, events) if end.status == 0} == {0, 1, 2}


def report(events: Iterable[e.Event]) -> CommandReport:
    fold = RunFold()
    for number, event in enumerate(events):
        fold.handle_event(e.Stamped(time.time() + number / 1000, event))
    return make_report(fold.state, read_known_errors)


def first(report: CommandReport) -> RankOutcome:
    assert report.run is not None
    return next(rank for rank in report.run.ranks if rank.rank == report.run.first)


def test_a_segfault_is_reported_with_the_stack_it_came_from_and_leaves_no_core(start: Start) -> None:
    attempt = start("crash", "1")
    result = report(run_alone(attempt))
    assert result.exit == Exit.RANK
    assert (first(result).rank, first(result).signal) == (1, signal.SIGSEGV)
    assert first(result).traceback.startswith("Fatal Python error: Segmentation fault")
    assert "in read_null" in first(result).traceback
    assert result.run.diagnosis.code == "sigsegv"
    assert not list(RANKS.glob("core*"))


def test_an_error_file_of_torch_is_honoured(start: Start) -> None:
    result = report(run_alone(start("record")))
    assert first(result).error == "KeyError: 'loss'"
    assert "in train" in first(result).traceback


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group of 64 MiB, where this machine lets us make one."""
    with control_group("memory") as group:
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        yield group


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A control group that can be frozen so that SIGKILL waits for its thaw (version 1)."""
    with control_group("freezer") as group:
        yield group
        (group / "freezer.state").write_text("THAWED")


@contextmanager
def control_group(kind: str) -> Iterator[Path]:
    group = Path("/sys/fs/cgroup") / kind / f"ipexctl-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no {kind} control group (version 1) can be made here: {error.strerror}")
    yield group
    until_when = time.monotonic() + 60
    while group.exists() and time.monotonic() < until_when:
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.1)


@pytest.mark.fault("F5")
def test_a_rank_that_nothing_can_kill_is_named_and_the_rest_ends(start: Start, freezer: Path) -> None:
    hurried = QUICK._replace(kill=0.5, wipe=0.5, last_wipe=1.0)  # all of them pass before it is given up
    attempt = start("freeze", "1", str(freezer / "cgroup.procs"), grace=0.5, timings=hurried)
    story, events = until(attempt, e.Output, clean=False)
    frozen = child(attempt, 1)
    (freezer / "freezer.state").write_text("FROZEN")
    attempt.context.interrupts.handle_signal(signal.SIGINT)
    events += list(story)
    result = report(events)
    assert result.exit == Exit.RESIDUE
    assert result.run.orphans["b"] == (frozen,)  # both hosts are this machine
    reported = next(event.failure for event in of(e.HostFailed, events))
    assert f"process {frozen} (state D)" in reported.what
    assert reported.hint.endswith(f"ipexctl stop --orphans {attempt.launch.run}")
    (freezer / "freezer.state").write_text("THAWED")
    wait(lambda: not procs.find_marked(procs.format_run_mark(attempt.launch.run)), pause=0.1)


def test_the_kernels_own_words_on_a_rank_it_killed_are_reported(start: Start, memory_group: Path) -> None:
    result = report(run_alone(start("eat", "1", str(memory_group / "cgroup.procs"))))
    assert (first(result).rank, first(result).signal) == (1, signal.SIGKILL)
    if not readable_kernel_log():
        pytest.skip("the kernel's log may not be read here, or its process numbers are of another namespace")
    assert "Killed process" in first(result).kernel


def readable_kernel_log() -> bool:
    try:
        with open("/dev/kmsg") as log:
            log.read(1)
    except OSError:
        return False
    return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"  # the kernel's first: PROC_PID_INIT_INO


def again(start: Start, succeeds: int, restarts: int) -> list[e.Event]:
    """The story of a run whose script ends well at its start number `succeeds`."""
    return list(run_alone(start("again", str(succeeds), restarts=restarts)))


def test_a_failed_run_is_started_again_until_it_ends_well(start: Start) -> None:
    events = again(start, 2, 3)
    result = report([e.Started("run", "again", ("a", "b")), *events])
    assert result.exit == Exit.OK
    assert [event.reason for event in of(e.RunEnded, events)] == ["rank", "rank", "done"]
    assert any("starting again (2 of 3)" in text for text in output(events))
    assert len(of(e.Ended, events)) == 1
