"""The live screen, drawn on a terminal made of memory (pyte)."""

import io
import re
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import pytest
from rich.console import RenderableType

from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.lines import LINE_LIMIT
from ipexctl.decide.run.report import make_report
from ipexctl.decide.run.unusual import UNUSUAL_LIMIT
from ipexctl.model import events as e
from ipexctl.model.errors import Exit, Failure, Kind
from ipexctl.model.events import Event, Stamped
from ipexctl.model.reports import SeparateWorlds, StallPlace
from ipexctl.show import typeset
from ipexctl.show.live import Live
from ipexctl.show.pipe import Pipe
from ipexctl.show.rank_log import LOG_SIZE, MIN_LOG_SIZE, RankLogs
from ipexctl.show.run_frame import draw_run
from ipexctl.show.steps_frame import draw_steps
from ipexctl.show.view import View
from tests.unit.show import streams
from tests.unit.show.streams import fold
from tests.unit.show.terminal import Terminal, as_text, make_console, read_screen
from tests.waiting import wait

# All that Rich itself sends: colours, cursor up and down, erase line, cursor off and on, carriage return.
OWN = re.compile(r"\x1b\[(?:[0-9;]*m|[0-9]*[ABDGHKJ]|\?(?:25|2026)[lh])|\r|\n")


class LiveView(View):
    """A view of a state that it folds itself."""

    def __init__(self, **options: Any) -> None:
        self.fold = RunFold()
        super().__init__(self.fold.state, RankLogs(), **options)

    def handle_event(self, stamped: Stamped) -> None:
        self.fold.handle_event(stamped)
        self.logs.add_lines(self.state)


def watch(stream: Iterable[Stamped], until: float = float("inf"), **options: Any) -> LiveView:
    view = LiveView(**options)
    for stamped in stream:
        if stamped.at - streams.START > until:
            break
        view.handle_event(stamped)
    return view


def drawn(view: View, width: int = 80, height: int = 24, now: float | None = None) -> list[str]:
    """A frame as a terminal shows it."""
    pipe = Pipe(raw := io.BytesIO())
    now = view.state.at if now is None else now
    draw: Any = draw_steps(view.state, width, height, now) if view.state.attempt is None else None
    make_console(pipe, width, height).print(draw or draw_run(view, width, height, now))
    text = raw.getvalue().decode()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", OWN.sub("", text))
    return as_text(read_screen(text.encode(), width, 200)).splitlines()


def live(stream: Iterable[Stamped], width: int = 80, height: int = 24) -> tuple[str, list[str]]:
    """All bytes that the sink sent, and what the terminal shows at the end."""
    raw = Terminal()
    pipe = Pipe(raw)
    events = list(stream)
    sink = Live(pipe, console=make_console(pipe, width, height))
    feeder = streams.Feeder(sink)
    for index, stamped in enumerate(events):
        feeder.handle_event(stamped)
        if index % (len(events) // 5 + 1) == 0:
            time.sleep(Live.RATE * 1.5)
    sink.close(make_report(feeder.state))
    assert sink.error is None
    text = raw.getvalue().decode()
    return text, as_text(read_screen(text.encode(), width, height, whole=True)).splitlines()


def test_a_question_has_the_terminal_to_itself() -> None:
    raw, held = Terminal(), threading.Event()
    pipe = Pipe(raw)
    sink = Live(pipe, console=make_console(pipe, 80, 24), held=held)
    feeder = streams.Feeder(sink)

    def read_frame() -> str:
        return as_text(read_screen(raw.getvalue(), 80, 24)).strip()

    feeder.handle_event(Stamped(streams.START, e.Started("doctor", "2 hosts", ("a", "b"))))
    feeder.handle_event(Stamped(streams.START, e.StepStarted("a", "probe")))
    wait(lambda: "probe" in read_frame())
    held.set()
    wait(lambda: not read_frame())
    time.sleep(Live.IDLE + 2 * Live.RATE)
    assert not read_frame()
    held.clear()
    wait(lambda: "probe" in read_frame())
    sink.close()


@cache  # they are the same for terminals of every size
def first_events(verb: str, count: int) -> tuple[Stamped, ...]:
    return tuple(islice(getattr(streams, verb)(count), 4000 if verb == "run" else None))


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("height", [8, 24])
@pytest.mark.parametrize("count", [1, 8, 256])
@pytest.mark.parametrize("verb", ["doctor", "install", "run"])
def test_a_frame_fits_the_terminal_at_every_moment(verb: str, count: int, height: int, width: int) -> None:
    made, stream = LiveView(), deque(first_events(verb, count))
    for until in (0.0, 0.5, 3.0, 8.0, 1e9):
        while stream and stream[0].at - streams.START <= until:
            made.handle_event(stream.popleft())
        lines = drawn(made, width, height)
        assert len(lines) <= height
        assert all(len(line) <= width for line in lines)


def test_256_hosts_are_on_one_screen_with_the_failed_one_first() -> None:
    lines = drawn(watch(streams.install(256), until=5.5))
    assert "✗ xeon005" in lines[1]
    assert "more at work" in "\n".join(lines)
    assert re.match(r"verify: done on \d+ of 256 hosts · \d+ at work · 1 failed", lines[-1])


def test_no_host_is_done_before_the_verb_is_and_work_on_this_machine_has_a_name() -> None:
    hosts = ("a", "b")
    events: list[Event] = [e.Started("install", "", hosts), *(e.StepEnded(host, "look") for host in hosts)]
    events += [e.StepStarted("", "fetch the wheels"), e.Progress("", "fetch the wheels", 28, 100)]
    lines = drawn(watch(streams.stamp(events)))
    assert lines[-1] == "look: done on 2 of 2 hosts"
    assert re.search(r"^\S here +━.* fetch the wheels · 28 % of 100 B$", "\n".join(lines), re.MULTILINE)
    lines = drawn(watch(streams.stamp([*events, e.StepStarted("b", "build")])))
    assert lines[-1] == "look: done on 1 of 2 hosts · 1 at work"
    lines = drawn(watch(streams.stamp([*events, e.StepEnded("", "fetch the wheels"), e.Ended("x", Exit.OK)])))
    assert lines[-1] == "2 of 2 hosts done"


def test_a_host_that_is_back_behind_its_beginning_has_an_empty_bar() -> None:
    """One of 2^62 cells was an internal error."""
    events = [e.Started("install", "t", ("a",)), e.Progress("a", "send", -(1 << 62), 1)]
    assert "━" not in "".join(drawn(watch(streams.stamp(events))))


def test_the_screen_tells_which_step_it_is_how_fast_and_who_waits_and_marks_only_what_is_done() -> None:
    events: list[Event] = [
        e.Started("install", "torch 2.8.0", ("a", "b", "c")),
        e.PhaseStarted(2, 6, "send the wheels"),
        e.StepEnded("c", "lock"),
        e.Progress("b", "send", 0, 3 << 30, "B", "waits for a"),
        e.Progress("a", "send", 1 << 30, 3 << 30),  # of an earlier try
    ]
    stamped = streams.stamp(events, step=0.0)
    later = [Stamped(streams.START + 10, e.Progress("a", "send", 2 << 30, 3 << 30))]
    now = streams.START + 10
    lines = drawn(watch([*stamped, *later]), width=100, now=now)
    assert lines[0].startswith("step 2 of 6: send the wheels · torch 2.8.0 ")
    assert lines[1].endswith("send · 66 % of 3.0 GiB · 102 MiB/s · 10.0 s left")
    assert lines[2].endswith("send · 0 % of 3.0 GiB · waits for a")
    assert lines[3].split() == ["·", "c", "lock"]
    done = [e.PhaseStarted(6, 6, "tidy"), e.StepEnded("c", "tidy")]
    lines = drawn(watch([*stamped, *later, *(Stamped(now, event) for event in done)]), width=100, now=now)
    assert lines[3].split() == ["✓", "c", "tidy"]


def test_a_step_without_a_measure_shows_that_time_goes_by() -> None:
    events: list[Event] = [e.Started("install", "", ("a",)), e.StepStarted("a", "unpack")]
    lines = drawn(watch(streams.stamp(events)), now=streams.START + 14.1)
    assert "unpack · 14.0 s" in "\n".join(lines)


def test_who_attaches_sees_the_script_and_the_time_since_the_runs_beginning() -> None:
    begun = streams.START - 754.0
    started = e.RunStarted("1031-k7", "a", ("a",), "mpirun", begun, "train_ddp.py  1 host × 1 rank")
    events: list[Event] = [e.Started("attach", "", ("a",)), started]
    header = drawn(watch(streams.stamp(events, step=0.0)))[0]
    assert re.fullmatch(r"train_ddp.py  1 host × 1 rank   1 rank on 1 host +1031-k7  00:12:34", header)
    over = e.RunEnded("1031-k7", "stopped", at=begun + 20.0)
    assert watch(streams.stamp([*events, over])).state.took == 20.0
    failed, again = replace(over, reason="rank", at=begun + 10.0, again=True), replace(started, at=begun + 12.0)
    assert watch(streams.stamp([*events, failed, again, over])).state.took == 20.0  # of both starts
    shown = "\n".join(live(streams.stamp([*events, over, e.Ended("attach", Exit.LOST)]))[1])
    assert re.search(r"^train_ddp.py  1 host × 1 rank +20\.0 s$", shown, re.MULTILINE)
    assert "✗ the run was stopped after 20.0 s" in shown


def test_many_ranks_are_folded_and_the_odd_one_out_stays_visible() -> None:
    stream = list(streams.run(64, 4, steps=4))
    made = watch(stream, until=6.0)
    made.state.ranks[77].stage = "first collective"
    lines = drawn(made)
    assert any(line.startswith(" 77 ") and "first collective" in line for line in lines)
    assert any("0-76,78-255" in line or line.startswith("0-76,78-") for line in lines)


def test_the_same_line_of_many_ranks_is_one_line() -> None:
    events: list[Event] = [e.RunStarted("r", "a", ("a",) * 16, "")]
    events += [e.Output(rank, "a", "err", b"UserWarning: same\n") for rank in range(1, 16)]
    lines = drawn(watch(streams.stamp(events)))
    assert [line for line in lines if "UserWarning" in line and "│" in line] == ["1-15 │ UserWarning: same (× 15)"]


def test_a_silent_rank_is_named() -> None:
    made = watch(streams.run(2, 1), until=10.0)
    made.handle_event(Stamped(made.state.at + 100, e.Output(0, "xeon01", "out", b"x\n")))
    text = "\n".join(drawn(made))
    assert "silent 1 m 40 s" in text


def test_what_went_by_unseen_is_counted() -> None:
    made = watch(streams.stamp([e.RunStarted("r", "a", ("a",), "")]))
    view = made
    for _ in range(3):
        made.handle_event(
            Stamped(made.state.at, e.Output(0, "a", "out", b"".join(b"%d\n" % n for n in range(100_000))))
        )
        text = "\n".join(drawn(view))
    assert "99999" in text
    skipped = int(re.search(r"([\d,]+) lines went by unseen", text)[1].replace(",", ""))  # type: ignore[index]
    assert 299_900 < skipped < 300_000


def test_memory_is_bounded_whatever_ranks_print() -> None:
    made = watch(streams.stamp([e.RunStarted("r", "a", ("a",) * 4, "")]))
    for n in range(300):
        made.handle_event(Stamped(float(n), e.Output(n % 4, "a", "err", b"warning %d\n" % n * 5000)))
        made.handle_event(Stamped(float(n), e.Output(n % 4, "a", "out", b"x" * 100_000, partial=True)))
    state = made.state
    assert all(
        sum(map(len, made.logs[rank]._lines)) <= max(LOG_SIZE // 4, MIN_LOG_SIZE)
        and len(state.ranks[rank].tail) <= 1 << 12
        for rank in range(4)
    )
    assert all(len(line.data) <= LINE_LIMIT for line in state.open.values())
    assert len(state.unusual) <= UNUSUAL_LIMIT


def test_a_sample_of_a_host_is_known_of_its_ranks() -> None:
    made = watch(streams.stamp([e.RunStarted("r", "a", ("a", "a", "b"), "")]))
    assert [(rank.cpu, rank.rss) for rank in made.state.ranks] == [(None, None)] * 3
    ranks = (e.RankSample(0, 1.5, 10), e.RankSample(1, 0.0, 20))
    made.handle_event(Stamped(made.state.at + 1, e.HostSample("a", 0.0, 5.0, 1.75, 4, 300, 1000, ranks=ranks)))
    assert [(rank.cpu, rank.rss) for rank in made.state.ranks] == [(1.5, 10), (0.0, 20), (None, None)]


def test_keys_choose_rank_pause_and_let_go() -> None:
    view = watch(streams.run(4), until=15.0)
    view.keys = view.can_detach = True
    for key in ("r", "5", "enter"):
        assert view.press(key) == ""
    text = "\n".join(drawn(view))
    assert "─ rank 5 " in text
    assert "step 24 loss 0.588 rank 5" in text
    view.press(" ")
    assert "PAUSED" in drawn(view)[-1]
    assert view.press("d") == "detach"


STALLED: list[Event] = [
    e.RunStarted("r", "a", ("a", "a", "b", "b"), ""),
    e.Stalled((0, 1, 2, 3), 60.0, "all", {}),
    e.Message("no progress for 60 s: all 4 ranks on a, b are silent", "warning", code="stalled"),
    e.StallCompared(
        (2,),
        "3 of 4 ranks wait in all_reduce, rank 2 on b does not\n  rank 2  data.py:41 read_batch",
        (StallPlace((2,), "data.py:41"), StallPlace((0, 1, 3), "train.py:88", "all_reduce")),
    ),
]


@pytest.mark.parametrize("width", [80, 160])
def test_a_stall_stays_in_the_frame_and_its_rank_is_marked_until_progress_returns(width: int) -> None:
    noise = [e.Output(0, "a", "err", b"warning %d\n" % n) for n in range(100)]
    started = e.Started("run", "x.py", ("a", "b"), selection_flags=("-f", "h2"))
    killed = [replace(each, limit=120.0) if isinstance(each, e.Stalled) else each for each in STALLED]
    view = watch(streams.stamp([started, *killed]))
    ends = drawn(view, width, now=view.state.attempt.stall.at + 10.0)  # type: ignore[union-attr]
    assert ends[1] == "▌ no progress for 70 s: all 4 ranks on a, b are silent"
    assert "▌ the run ends in 50 s; at once: Ctrl-C here, or ipexctl stop r -f h2" in ends
    lines = drawn(watch(streams.stamp([started, *STALLED, *noise])), width)
    assert lines[1] == "▌ no progress for 70 s: all 4 ranks on a, b are silent"
    assert lines[3] == "▌   rank 2  data.py:41 read_batch"
    assert lines[4] == "▌ stacks: ipexctl logs r --stacks -f h2"
    assert lines[5] == "▌ end it: Ctrl-C here, or ipexctl stop r -f h2"
    assert [line[:10] for line in lines[7:11]] == [" 0     a  ", " 1     a  ", " 2 ◀   b  ", " 3     b  "]
    assert [line.split()[-1] for line in lines[7:11] if "data.py" in line] == ["data.py:41"]
    assert "data.py:41" in lines[9]
    assert [line.split()[2] for line in lines[7:11]] == ["all_reduce", "all_reduce", "b", "all_reduce"]
    resumed = e.Resumed()
    text = "\n".join(drawn(watch(streams.stamp([*STALLED, resumed])), width))
    assert "▌" not in text
    assert "◀" not in text


def test_a_host_without_a_sign_of_life_is_counted_in_its_row_and_nowhere_else() -> None:
    silent = [e.HostSilent("b", 10.0), e.Message("no sign of life for 10 s", host="b", code="silent")]
    _, lines = live(streams.stamp([STALLED[0], STALLED[1], *silent]))
    assert [line for line in lines if line.startswith("b: no sign")] == []


def test_a_stall_beside_a_host_without_a_sign_of_life_names_that_host_until_it_is_lost() -> None:
    silent = [*STALLED, e.HostSilent("b", 66.0)]
    lines = drawn(watch(streams.stamp(silent)), 120)
    assert lines[1] == "▌ no sign of life from b for 66 s: the others may wait for it"
    assert "are silent" not in "".join(lines)
    lost = e.HostFailed(Failure("b", Kind.LOST, "lost (no sign of life for 30 s)", code="lost"))
    assert "▌" not in "".join(drawn(watch(streams.stamp([*silent, lost])), 120))


def test_ranks_that_have_not_met_stay_in_the_frame_until_they_do() -> None:
    separate = e.WorldsCompared(SeparateWorlds("never-met", {"1": 4}, "the ranks have not met", ("for this reason",)))
    lines = drawn(watch(streams.stamp([STALLED[0], separate])))
    assert lines[1:3] == ["▌ the ranks have not met", "▌ for this reason"]
    assert "▌" not in "".join(drawn(watch(streams.stamp([STALLED[0], separate, e.WorldsCompared(None)]))))


def test_the_newest_warning_stays_in_the_frame_cut_to_the_screen() -> None:
    words = "t.py:6 sets MASTER_ADDR to 127.0.0.1 (rank 1): that is each host itself, where 2 of 3 ranks cannot be met"
    first, other = e.Message("torchvision is for CUDA", "warning"), e.Message(words, "warning", "b", "master-addr")
    shown = e.Message("the ranks have not met", "warning", code="never-met")
    lines = drawn(watch(streams.stamp([STALLED[0], first])))
    assert lines[1] == "! torchvision is for CUDA"
    left_out = e.Message("going on without c", "warning", code="hosts-left-out")  # the row of the restart has it
    events = streams.stamp([STALLED[0], first, other, shown, left_out])
    lines = drawn(watch(events))
    assert lines[1].startswith("! 2 warnings: b: t.py:6 sets MASTER_ADDR to 127.0.0.1 (rank 1)")
    assert lines[2].endswith("where 2 of 3 ranks cannot be met")
    assert lines[3].startswith(" rank")
    assert drawn(watch(events), 40, 14)[1].endswith("…")


def test_of_many_ranks_the_one_that_the_others_wait_for_is_the_first_row() -> None:
    events = [e.RunStarted("r", "a", tuple(f"n{n // 8}" for n in range(256)), ""), *STALLED[1:3]]
    lines = drawn(watch(streams.stamp([*events, e.StallCompared((77,), "x")])))
    assert re.match(r" 77 ◀ +n9 ", lines[6])


def test_ctrl_c_is_seen_at_once_in_the_footer_and_in_the_rows() -> None:
    ended, aborted = e.RankEnded(1, "a", 0), e.RankEnded(2, "b", None, abort=7)
    events = [STALLED[0], ended, aborted, e.Message("stopping (again to kill)", "warning", code="stop")]
    view = watch(streams.stamp(events), keys=True)
    lines = drawn(view)
    assert lines[-1].endswith("  stopping  [Ctrl-C] again to kill")
    assert [line.split()[2] for line in lines[2:6]] == ["stopping", "done", "abort", "stopping"]
    view.handle_event(Stamped(view.state.at, e.Message("killing", "warning", code="kill")))
    assert drawn(view)[-1].endswith("  killing")


@pytest.mark.parametrize("width", [20, 40, 60])
def test_the_footer_loses_other_keys_before_ctrl_c(width: int) -> None:
    view = watch(streams.stamp(STALLED[:1]), keys=True, can_detach=True)
    assert drawn(view, width)[-1].endswith("[Ctrl-C] stop")


@pytest.mark.parametrize("width", [50, 80, 160])
def test_the_numbers_of_a_bar_are_never_cut(width: int) -> None:
    bar = "\rtrain of a model with a long name:  45%|" + "█" * 60 + "| 27/60 [00:03<00:04, 8.10it/s]"
    made = watch(streams.stamp([STALLED[0], e.Output(0, "a", "err", bar.encode(), partial=True)]))
    lines = drawn(made, width)
    assert re.search(r" 27/60 .* 8\.10", lines[2])
    bars = [line for line in lines if line.endswith("27/60 [00:03<00:04, 8.10it/s]")]
    assert len(bars) == (1 if width == 50 else 2)
    assert ("█" in bars[-1]) == (width == 160)


def test_keys_that_mean_nothing_change_nothing() -> None:
    view = watch(streams.run(2), until=15.0)
    keys = ["x", "r", "9", "9", "enter", "/", "escape", "q", "r", "backspace", "enter", "\x00", "d", "n", "escape"]
    for key in keys:
        assert view.press(key) == ""
    assert (view.rank, view.host, view.paused, view.panel, view.bottom, view.full_screen) == (
        0,
        "",
        False,
        "log",
        None,
        False,
    )


def test_a_rank_that_does_not_exist_is_reported_until_the_next_key() -> None:
    view = watch(streams.run(2), until=15.0)
    view.keys = True
    for key in ("r", "7", "enter"):
        view.press(key)
    assert drawn(view)[-1].startswith("there is no rank 7   [↑↓] rank")
    view.press("x")
    assert drawn(view)[-1].startswith("[↑↓] rank")


@pytest.mark.fault("H5")
@pytest.mark.parametrize("colours", [True, False])
def test_nothing_hostile_reaches_the_terminal(colours: bool) -> None:
    for until in (0.0, 0.05, 0.15, 0.25, 1e9):
        view = watch(streams.hostile(), until)
        drawn(view)
    text, lines = live(streams.hostile())
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", OWN.sub("", text))
    assert "[bold red]title[/foo]" in "\n".join(lines)


def test_a_run_leaves_its_card_and_nothing_of_the_live_part() -> None:
    text, lines = live(streams.run(4, fails=3))
    shown = "\n".join(line for line in lines if line)
    assert "✗ rank 3 on xeon02 exited with code 1" in shown
    assert "RuntimeError: loss is NaN at step 31" in shown
    assert "0 processes left on 4 hosts" in shown
    assert "─ rank 0" not in shown
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0


def test_a_cause_is_shown_before_what_follows_from_it() -> None:
    cause, effect = Failure("b", Kind.STEP, "no environment"), "nothing was started; without b: --limit '!b'"
    story = [
        e.Started("run", "t.py", ("a", "b")),
        e.HostFailed(cause),
        e.Message(effect, "warning", code="not-started"),
    ]
    lines = [line for line in live(streams.stamp([*story, e.Ended("run", Exit.STEP)]))[1] if line]
    assert lines.index("✗ b: no environment") < lines.index(f"! {effect}")


def test_a_terminal_that_goes_away_ends_nothing() -> None:
    class Gone(Terminal):
        def write(self, data: object) -> int:
            raise OSError(5, "Input/output error")

    pipe = Pipe(Gone())
    sink = Live(pipe, console=make_console(pipe, 80, 24))
    stream = list(streams.run(2, 1, steps=5))
    streams.feed(sink, stream)
    time.sleep(0.25)
    sink.close(fold(stream))
    assert (pipe.error is None, sink.error) == (False, None)


@pytest.mark.fault("H2")
def test_a_terminal_that_stands_still_does_not_hold_the_run() -> None:
    import threading

    release = threading.Event()

    class Still(Terminal):
        def write(self, data: object) -> int:
            release.wait(1000)
            return 0

    pipe = Pipe(Still())
    sink = Live(pipe, console=make_console(pipe, 80, 24))
    feeder = streams.Feeder(sink)
    feeder.handle_event(Stamped(0.0, e.RunStarted("r", "a", ("a",), "")))
    time.sleep(0.25)
    for n in range(2000):
        feeder.handle_event(Stamped(float(n), e.Output(0, "a", "out", b"line\n" * 100)))
        feeder.handle_event(Stamped(float(n), e.Message("talk")))
    release.set()
    feeder.handle_event(Stamped(1.0, e.Ended("run", Exit.OK)))
    sink.close()


def test_our_own_talk_also_goes_to_a_standard_error_that_is_a_file() -> None:
    pipe, err = Pipe(Terminal()), io.BytesIO()
    sink = Live(pipe, Pipe(err), console=make_console(pipe, 80, 24))
    feeder = streams.Feeder(sink)
    feeder.handle_event(Stamped(0.0, e.Message("mind \x1b[2J this", "warning", "a")))
    sink.close()
    assert err.getvalue().decode() == "! a: mind \\x1b[2J this\n"


@pytest.mark.parametrize("before", ["\n", " "])
def test_a_command_in_a_message_is_one_line_for_who_copies_it(before: str) -> None:
    out = io.BytesIO()
    pipe, command = Pipe(out), "ipexctl install --venv /opt/lab/env --like lab0 --with einops"
    message = f"train.py imports einops (line 7), not in the environment:{before}{command}"
    typeset.print_items(typeset.make_console(pipe, 40), pipe, typeset.format_message(message, "! "))
    first, *_, last = out.getvalue().decode().splitlines()
    assert first == "! train.py imports einops (line 7), not"
    assert last.strip() == command


def test_an_error_in_drawing_is_raised_to_the_loop_and_the_terminal_is_given_back() -> None:
    raw = Terminal()
    pipe = Pipe(raw)
    sink = Live(pipe, console=make_console(pipe, 80, 24))
    feeder = streams.Feeder(sink)

    def fail(width: int, height: int, now: float) -> RenderableType:
        raise KeyError("planted")

    sink._make_frame = fail  # type: ignore[method-assign]
    feeder.handle_event(Stamped(1.0, e.Started("run", "", ("n0",))))
    wait(lambda: sink.error)
    with pytest.raises(KeyError, match="planted"):
        feeder.handle_event(Stamped(2.0, e.StepStarted("n0", "probe")))
    sink.close()
    assert raw.getvalue().endswith(b"\x1b[?25h") or b"\x1b[?25l" not in raw.getvalue().rpartition(b"\x1b[?25h")[2]
