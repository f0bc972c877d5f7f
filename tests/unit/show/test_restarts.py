"""What a restart lost and found: one line on the live screen, in plain output and on the card, from the journal on."""

import io
from dataclasses import replace
from typing import NoReturn

import pytest
from rich.console import Console

from ipexctl.decide.run.journal_events import JournalReader
from ipexctl.model import events as e
from ipexctl.model.errors import Exit, Failure, Kind
from ipexctl.model.launch import Running
from ipexctl.model.run_state import LineKey, OpenLine
from ipexctl.protocol import frames, journal
from ipexctl.show.pipe import Pipe
from ipexctl.show.rank_log import RankLogs
from ipexctl.show.run_frame import draw_run
from ipexctl.show.run_screen import format_run_card, name_flaws
from ipexctl.show.sinks import Plain
from ipexctl.show.typeset import Line
from ipexctl.show.view import View
from tests.unit.page.runs import make_launch
from tests.unit.show.streams import START, feed, fold, fold_state, stamp

FROM = journal.ResumeChosen("ckpt/step_1200.pt", 1.0, 412 << 20, 9.0, ["node1"])


def read(*records: journal.Record) -> list[e.Event]:
    hosts = {"node7": "node7"}
    log = JournalReader("n", Running("r1", "node0", ("node0", "node3"), hosts, "train.py", "train.py"))
    return [event for record in records for event in log.read(frames.JOURNAL, journal.encode_record(record))]


def list_events(chosen: journal.ResumeChosen | None, *, lost: bool = True) -> list[e.Event]:
    first = read(journal.Launched(1, 2, placed={"node0": [0], "node3": [1]}))
    step = [e.Output(0, "node0", "out", b"step 1240 loss 0.5\n")]
    gone = [journal.HostLost("node3", "no sign of life for 30 s", silent=30.0)] if lost else []
    ended = journal.AttemptEnded("lost" if lost else "rank", "rank 1 on node3 failed", 2, 5)
    placed = {"node0": [0], "node7" if lost else "node3": [1]}
    again = journal.Launched(1, 2, placed=placed, restart=2)
    more: list[journal.Record] = [*gone, ended, *([chosen] if chosen else []), again]
    return [e.Started("run", "train.py", ("node0", "node3", "node7")), *first, *step, *read(*more)]


@pytest.mark.parametrize(
    ("chosen", "lost", "text"),
    [
        (FROM, True,
         "node3 lost · spare node7 in · checkpoint step 1,200 (412 MiB) from node1 in 9 s · at least 40 steps lost"),
        (FROM._replace(size=0), True, "node3 lost · spare node7 in · checkpoint step 1,200 · at least 40 steps lost"),
        (journal.ResumeChosen(""), True,
         "node3 lost · spare node7 in · from the beginning · at least 1,240 steps lost"),
        (journal.ResumeChosen("ckpt/last.pt"), False, "rank 1 on node3 failed · checkpoint ckpt/last.pt"),
        (None, True, "node3 lost · spare node7 in"),
    ],
)  # fmt: skip
def test_plain_output_and_card_say_what_was_lost(chosen: journal.ResumeChosen | None, lost: bool, text: str) -> None:
    stamped = stamp(list_events(chosen, lost=lost))
    out = io.BytesIO()
    feed(Plain(Pipe(out), Pipe(out)), stamped)
    assert f"restart 2 of 5 · {text}" in out.getvalue().decode().splitlines()
    run = fold(stamped).run
    assert run
    assert run.restarts == (text,)


def test_the_card_of_a_good_end_names_the_hosts_that_are_not_back() -> None:
    run = fold(stamp([*list_events(None), e.RunEnded("r1", "done")])).run
    assert run
    assert name_flaws(run) == ", but without node3, which got lost (exit code 6)"


def test_a_run_whose_head_is_out_of_reach_is_not_said_to_go_on() -> None:
    lost = e.HostFailed(Failure("node0", Kind.LOST, "connection lost", code="watch"))
    run = fold(stamp([*list_events(None, lost=False), lost])).run
    assert run
    [line] = [str(item) for item in format_run_card(run) if "may go on" in str(item)]
    assert line == "run r1 is out of sight, and may go on: 2 ranks on 2 hosts"


def test_the_card_says_why_no_further_restart_came() -> None:
    why = "rank 1 on node3 failed; not started again: the attempt before failed there too, t.py:5: ValueError: no"
    ended = e.RankEnded(1, "node3", 1, error="ValueError: no")
    run = fold(stamp([*list_events(FROM, lost=False), ended, e.RunEnded("r1", "rank", why)])).run
    assert run
    lines = [item.plain for item in format_run_card(run) if isinstance(item, Line)]
    assert lines[1].startswith("  restart  ")
    assert lines[1].endswith(why)


def test_a_host_without_a_sign_of_life_is_named_in_its_row_before_it_counts_as_lost() -> None:
    first = read(journal.Launched(1, 2, placed={"node0": [0], "node3": [1]}))
    away = "no sign of life for 12 s"
    for seconds, words in ((10.0,), away), ((10.0, 5.0), away), ((10.0, 0.0), "running"):
        silent = read(*[journal.HostSilent("node3", each) for each in seconds])
        stamped = stamp([*first, *[e.RankStage(rank, host, "running") for rank, host in ((0, "node0"), (1, "node3"))]])
        stamped += stamp(silent, stamped[-1].at)
        out = io.StringIO()
        view = View(fold_state(stamped), RankLogs())
        Console(file=out, width=80, height=24).print(draw_run(view, 80, 24, stamped[-1].at + 2.1))
        rows = [line for line in out.getvalue().splitlines() if "node0" in line or "node3" in line]
        assert [words in row for row in rows] == [words == "running", True], out.getvalue()


def test_the_live_screen_says_how_long_ago_a_host_was_lost() -> None:
    stamped = stamp(list_events(FROM))
    view = View(fold_state(stamped), RankLogs())
    lost = next(each.at for each in stamped if isinstance(each.event, e.HostFailed))
    for width, rows in (160, 1), (80, 2):
        out = io.StringIO()
        Console(file=out, width=width, height=24).print(draw_run(view, width, 24, lost + 14.0))
        lines = [line.strip("▌ ") for line in out.getvalue().splitlines()]
        start = next(at for at, line in enumerate(lines) if line.startswith("restart 2 of 5"))
        assert " ".join(lines[start : start + rows]) == (
            "restart 2 of 5 · node3 lost 00:44 ago · spare node7 in · checkpoint step 1,200 (412 MiB) from node1 in 9 s"
            " · at least 40 steps lost"
        )


def test_the_header_counts_from_the_first_start_and_names_spares_that_wait() -> None:
    launch = replace(make_launch(("node0", "node3"), 1), spares=("node7", "node8"))
    started, *events = list_events(FROM)
    stamped = stamp([started, e.Planned("run", "", launch), *events])
    first, *_, last = (index for index, each in enumerate(stamped) if isinstance(each.event, e.RunStarted))
    for end, spares in (last, "2 spares"), (len(stamped), "1 spare"):
        out = io.StringIO()
        view = View(fold_state(stamped[:end]), RankLogs())
        Console(file=out, width=160, height=24).print(draw_run(view, 160, 24, stamped[first].at + 61.0))
        header = out.getvalue().splitlines()[0]
        assert f"2 ranks on 2 hosts + {spares} " in header
        assert header.endswith("00:01:01")


def test_a_machine_that_hears_nobody_draws_no_host_as_dead() -> None:
    first = read(journal.Launched(1, 2, placed={"node0": [0], "node3": [1]}))
    events = [*first, e.RankStage(0, "node0", "running"), e.RankStage(1, "node3", "running")]
    for step in range(1, 9):
        events += [
            e.Output(0, "node0", "out", b"step %d/9 0.50 it/s\n" % step),
            e.Output(1, "node3", "out", b"step %d/9 0.50 it/s\n" % step),
        ]
    stamped = stamp([*events, e.HostSilent("node0", 2.0)], step=1.0)
    view = View(fold_state(stamped), RankLogs())
    out = io.StringIO()
    Console(file=out, width=80, height=24).print(draw_run(view, 80, 24, stamped[-1].at + 60.0))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[1] == "▌ no connection to node0 for 62 s: the rows show the run as it was then"
    for row in lines[3:5]:
        assert "running 1" in row
        assert "no sign of life" not in row
        assert "  0.50  " in row  # the pace of before
    stamped[-1] = replace(stamped[-1], event=e.HostSilent("node0", 2.0, at=9.0))  # as node0's keeper tells of its guard
    Console(file=out, width=80, height=24).print(draw_run(View(fold_state(stamped), RankLogs()), 80, 24, 99.0))
    assert out.getvalue().count("no connection to") == 1
    assert "no sign of life" in out.getvalue()


class Unsearched(tuple[int, ...]):
    """Ranks among which none is looked for."""

    def __contains__(self, rank: object) -> bool:
        raise AssertionError(rank)


class Unlisted(dict[LineKey, OpenLine]):
    def items(self) -> NoReturn:
        raise AssertionError(len(self))


def test_no_rank_is_looked_for_among_all_others() -> None:
    """A screen of ten thousands of ranks stood still: each was looked for among those that stall, and those that have
    failed, and the end of each looked at the open lines of all."""
    count, pipe = 40, Pipe(io.BytesIO())
    begun = [e.Started("run", "t.py", ("a",)), e.RunStarted("r1", "a", ("a",) * count, "t.py")]
    state = fold_state(stamp([*begun, e.Stalled(Unsearched(range(count)), 60.0, "some", {})]))
    Console(file=io.StringIO(), width=80).print(draw_run(View(state, RankLogs()), 80, 24, state.at))
    ends = [e.RankEnded(rank, "a", 1) for rank in range(count)]
    report = fold(stamp([*begun, *ends, e.RunEnded("r1", "rank"), e.Ended("run", Exit.OK)]))
    assert report.run
    format_run_card(replace(report.run, followers=Unsearched(report.run.followers)))
    state = fold_state(stamp([*begun, e.Output(0, "a", "out", b"y", partial=True)]))
    state.open = Unlisted(state.open)
    Plain(pipe, pipe).handle_event(e.Stamped(START, ends[0]), state)
