"""Logs of runs whose heads keep nothing of them any more."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.context import Context
from ipexctl.act.ssh import Links
from ipexctl.model import events as e
from ipexctl.model.answers.manage import RankStacksAnswer
from ipexctl.model.errors import Exit, UsageError
from ipexctl.protocol.messages import RunRow
from ipexctl.store.record import RunRecord, make_name
from ipexctl.verbs.run.manage import add_saved_end, list_records
from ipexctl.verbs.run.report import report
from ipexctl.verbs.run.run_discovery import DiscoveredRun
from ipexctl.verbs.run.saved_logs import (
    find_ended_run,
    print_newest_output,
    print_saved_output,
    print_saved_stacks,
    refuse_ended_run,
)
from tests.unit.show import streams

FAULT = 'Thread 0x1 (most recent call first):\n  File "/home/u/train.py", line %d in wait\n'


def save(runs: Path, *more: e.Event, ended: bool = True, silent: int = -1) -> None:
    """A run of two hosts with two ranks each; ``more`` came before its end."""
    stream = [stamped for stamped in streams.run(2, 2, steps=3) if ended or not isinstance(stamped.event, e.RunEnded)]
    stream = [each for each in stream if not (isinstance(each.event, e.Output) and each.event.rank == silent)]
    stream[-2:-2] = [e.Stamped(stream[-2].at, event) for event in more]
    streams.save(RunRecord(runs, make_name(streams.START)), stream)


def test_a_run_that_was_watched_to_its_end_has_its_logs_here(tmp_path: Path) -> None:
    save(tmp_path)
    directory = find_ended_run(tmp_path, "1031-k7")
    assert directory is not None
    events = list(print_saved_output(directory, Context(Links(), tmp_path, tmp_path), {1}))
    written = b"".join(event.data for event in events if isinstance(event, e.Output) and event.stream == "out")
    assert written.splitlines()[-1] == b"step 3 loss 1.538 rank 1"
    assert {event.rank for event in events if isinstance(event, e.Output)} == {1}
    with pytest.raises(UsageError, match="has no rank 4, 9"):
        list(print_saved_output(directory, Context(Links(), tmp_path, tmp_path), {0, 9, 4}))


@pytest.mark.parametrize("reason", ["done", "lost"])
def test_only_a_run_that_lost_hosts_may_have_more_on_them(tmp_path: Path, reason: Any) -> None:
    stream = streams.run(2, 2, steps=3)
    streams.save(
        RunRecord(tmp_path, make_name(streams.START)),
        [
            replace(each, event=replace(each.event, reason=reason)) if isinstance(each.event, e.RunEnded) else each
            for each in stream
        ],
    )
    with nullcontext() if reason == "lost" else pytest.raises(UsageError, match="was watched to its end"):
        refuse_ended_run(tmp_path, "1031-k7")


def save_play(runs: Path) -> Path:
    """A playbook of two runs: the second has twice the ranks of the first, and one of them failed."""
    stream = [e.Stamped(streams.START, e.Started("play", "week.yaml", ()))]
    for number, every in enumerate((streams.run(1, 2, steps=3), streams.run(2, 2, steps=40, fails=3))):
        for each in list(every)[:-2]:
            event = each.event
            if isinstance(event, e.RunStarted):
                event = replace(event, run="1128-065912-a2f0.2" if number else "1128-065912-a2f0")
            stream.append(e.Stamped(each.at + 99 * number, event))
    stream.append(e.Stamped(stream[-1].at, e.Ended("play", Exit.OK)))
    return streams.save(RunRecord(runs, "1128-065912-a2f0"), stream).directory


def test_each_run_of_a_playbook_has_its_own_logs(tmp_path: Path) -> None:
    save_play(tmp_path)
    context = Context(Links(), tmp_path, tmp_path)

    def read(word: str) -> tuple[set[int], str]:
        directory = find_ended_run(tmp_path, word)
        assert directory is not None
        events = list(print_saved_output(directory, context, word=word))
        texts = [event.text for event in events if isinstance(event, e.Message)]
        return {event.rank for event in events if isinstance(event, e.Output)}, "".join(texts)

    ranks, text = read("1128-065912-a2f0")
    assert ranks == {0, 1}
    assert "ipexctl logs 1128-065912-a2f0.2" in text
    assert "ended:" not in text
    for word in ("1128-065912-a2f0.2", "last"):
        ranks, text = read(word)
        assert ranks == {0, 1, 2, 3}
        assert "ipexctl report 1128-065912-a2f0.2" in text
    with pytest.raises(UsageError, match="has no rank 3"):
        list(print_saved_output(tmp_path / "1128-065912-a2f0", context, {3}, "1128-065912-a2f0"))
    for number in (1, 7):
        with pytest.raises(UsageError, match="no saved run is called") as refused:
            find_ended_run(tmp_path, f"1128-065912-a2f0.{number}")
        expected = "runs of the same command: 1128-065912-a2f0, 1128-065912-a2f0.2"
        assert (refused.value.exit, refused.value.reasons) == (Exit.INPUT, (expected,))


def test_the_launches_of_a_study_have_their_logs_too(tmp_path: Path) -> None:
    stream = [*streams.run(1, 2, steps=3)]
    stream.insert(1, e.Stamped(streams.START, e.StudyStarted({}, {}, "", False, 60.0, 0, 8)))
    streams.save(RunRecord(tmp_path, make_name(streams.START)), stream)
    for word in ("1031-k7", "last"):
        assert find_ended_run(tmp_path, word) is not None
    with pytest.raises(UsageError, match="was watched to its end"):
        refuse_ended_run(tmp_path, "1031-k7")


def test_each_run_of_a_playbook_has_its_own_page_and_two_are_compared(tmp_path: Path) -> None:
    directory = save_play(tmp_path / "runs")
    context = Context(Links(), tmp_path, tmp_path)

    def draw(*words: str) -> Any:
        events = list(report(words, context, tuple, page=None, show=False))
        return next(event.value for event in events if isinstance(event, e.Answer))

    assert draw("1128-065912-a2f0").runs == ("1128-065912-a2f0",)
    assert draw("1128-065912-a2f0.2").runs == draw("last").runs == ("1128-065912-a2f0.2",)
    page = (directory / "report-1128-065912-a2f0.html").read_text()
    assert "2 ranks on 1 host ended well" in page
    assert "ended well" not in (directory / "report.html").read_text()
    compared = draw("1128-065912-a2f0", "1128-065912-a2f0.2")
    assert [(run.name, run.result) for run in compared.compared] == [
        ("1128-065912-a2f0", "ok"), ("1128-065912-a2f0.2", "failed"),
    ]  # fmt: skip


def test_a_rank_that_wrote_nothing_is_named(tmp_path: Path) -> None:
    save(tmp_path, silent=1)
    directory = find_ended_run(tmp_path, "1031-k7")
    assert directory is not None
    events = list(print_saved_output(directory, Context(Links(), tmp_path, tmp_path), {0, 1}))
    assert [event.text for event in events if isinstance(event, e.Message)] == ["written by rank 1: nothing"]


@pytest.mark.parametrize(("state", "reason"), [("ended", "lost"), ("gone", "")])
def test_ps_believes_what_was_seen_here_before_a_host_that_was_cut_off(tmp_path: Path, state: str, reason: str) -> None:
    save(tmp_path)
    row = RunRow("1031-k7", "t", "me", 1.0, 2, state, ["xeon00"], "/d", reason=reason, seconds=1.0, output="step 1\n")
    records = list_records(tmp_path)
    seen = add_saved_end(DiscoveredRun("xeon01", row), records).row
    assert (seen.state, seen.reason, seen.output) == ("ended", "done", "")
    assert seen.seconds > 2.0
    for unknown in (row._replace(run="other"), row._replace(state="ended", reason="rank")):
        assert add_saved_end(DiscoveredRun("xeon01", unknown), records).row == unknown


def test_the_stacks_of_the_last_stall_are_kept_with_the_run(tmp_path: Path) -> None:
    context = Context(Links(), tmp_path, tmp_path)
    save(tmp_path / "without")
    directory = find_ended_run(tmp_path / "without", "last")
    assert directory is not None
    with pytest.raises(UsageError, match="has ended"):
        list(print_saved_stacks(directory, context))
    stalls = [e.Stalled((0, 1), seconds, "all", {}, False, streams.START) for seconds in (20.0, 120.0)]
    stacks = [e.RankStack(rank, "xeon00", 5, "S", "", FAULT % line) for line in (7, 8) for rank in (0, 1)]
    save(tmp_path / "with", stalls[0], *stacks[:2], stalls[1], *stacks[2:])
    directory = find_ended_run(tmp_path / "with", "last")
    assert directory is not None
    (answer,) = [event for event in print_saved_stacks(directory, context, {1}) if isinstance(event, e.Answer)]
    assert isinstance(answer.value, RankStacksAnswer)
    assert [(stack.rank, stack.text) for stack in answer.value.stacks] == [(1, FAULT % 8)]
    assert any("train.py:8" in line for line in answer.value.summary)


@pytest.mark.parametrize("code", ["no-run", "no-hosts", "usage"])
def test_without_a_run_on_the_hosts_the_last_saved_one_is_printed(tmp_path: Path, code: str) -> None:
    def find_none() -> Iterator[e.Event]:
        yield e.Started("logs", "", ("a",))
        raise UsageError("no run is kept on these hosts", code=code)

    (tmp_path / "runs").mkdir()
    save(tmp_path / "runs")
    workflow = print_newest_output(find_none(), Context(Links(), tmp_path, tmp_path), {1})  # type: ignore[arg-type]
    if code == "usage":
        with pytest.raises(UsageError, match="is kept on these hosts"):
            list(workflow)
        return
    assert {event.rank for event in workflow if isinstance(event, e.Output)} == {1}


def test_a_run_that_goes_on_is_asked_for_on_its_head(tmp_path: Path) -> None:
    save(tmp_path, ended=False)
    assert find_ended_run(tmp_path, "1031-k7") is None
    assert find_ended_run(tmp_path, None) is None
    assert find_ended_run(tmp_path, "nothing") is None
