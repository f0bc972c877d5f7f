"""A run is understood once: every view and the report read the same state."""

import ast
import io
from dataclasses import replace

import pytest

from ipexctl.decide.page.build import build_page
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.decide.saved_runs import list_figures
from ipexctl.model import events as e
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import Event, Stamped
from ipexctl.model.saved_runs import FigureRow
from ipexctl.show import typeset
from ipexctl.show.page.verdict import make_verdict
from ipexctl.show.pipe import Pipe
from ipexctl.show.run_screen import choose_next_step, format_run_card
from tests.stopwatch import Stopwatch
from tests.unit.show import streams
from tests.unit.show.streams import fold_state
from tests.unit.show.test_live import drawn, watch
from tests.unit.test_house import FILES, name, nodes

RUN = e.RunStarted("k7", "a", ("a", "b"), "mpirun")


def test_the_ranks_that_others_wait_for_are_the_same_on_the_screen_and_in_the_report() -> None:
    stalled = e.Stalled((1,), 60.0, "some", {"1": "S"})
    message = e.Message("no progress for 60 s: rank 1 on b is silent", "warning", code="stalled")
    stream = streams.stamp([e.Started("run", "x.py", ("a", "b")), RUN, stalled, message])
    view = watch(stream)
    report = make_report(view.state)
    assert report.run
    assert {*report.run.suspects} == view.suspects == {1}
    assert " 1 ◀ " in "\n".join(drawn(view))


def count_figures(*pieces: bytes) -> tuple[float | None, int, int, list[FigureRow]]:
    """The loss on the screen, points on the page, lines on it, and rows of the export."""
    outputs = [e.Output(0, "a", "out", piece, not piece.endswith(b"\n")) for piece in pieces]
    fold, rows = RunFold(every_line=True), list[FigureRow]()
    for stamped in streams.stamp([RUN, *outputs], step=1.0):
        fold.handle_event(stamped)
        rows += list_figures("k7", stamped, fold.state)
    (log,) = build_page(fold.state, make_report(fold.state)).logs
    points = fold.state.run.figures["loss"][0].count
    return fold.state.ranks[0].figures.get("loss"), points, len(log.lines), rows


def test_a_carriage_return_redraws_a_line_for_the_screen_the_page_and_the_export() -> None:
    loss, points, lines, rows = count_figures(b"step 1 loss 0.5\rstep 2 loss 0.25\n")
    assert (loss, points, lines, [(row.step, row.value) for row in rows]) == (0.25, 1, 1, [(2, 0.25)])
    loss, points, lines, rows = count_figures(b"step 1 loss 0.5\r", b"step 2 loss 0.25\r", b"\n")
    assert (loss, points, lines) == (0.25, 2, 1)
    assert [(row.step, row.value) for row in rows] == [(1, 0.5), (2, 0.25)], "a bar is read as often as it is seen"


def test_a_failure_without_a_newline_before_it_is_distinguished_from_the_bar_it_follows() -> None:
    bar, trace = b"\rtrain: 50%|##  | 1/2", b"Traceback (most recent call last):\n  File 'x'\nValueError: odd\n"
    pieces = [e.Output(0, "a", "err", bar, True), e.Output(0, "a", "err", trace)]
    (entry,) = fold_state(streams.stamp([RUN, *pieces])).unusual.values()
    assert (entry.text, entry.more) == ("ValueError: odd", 2)


def test_of_failures_of_a_run_the_first_that_was_seen_is_known() -> None:
    lost = e.HostFailed(Failure("b", Kind.LOST, "lost (silent)", code="lost"))
    state = fold_state(streams.stamp([RUN, e.RankEnded(1, "b", 3), e.RankEnded(0, "a", 1), lost]))
    assert state.attempt
    assert state.attempt.failed is state.ranks[1]
    assert state.attempt.lost == {"b": (streams.START + 0.1 * 3, "lost (silent)")}


OF_A_RUN = {
    "Output",
    "LauncherOutput",
    "RankStage",
    "RankEnded",
    "RunEnded",
    "Stalled",
    "StallCompared",
    "Resumed",
    "RankStack",
}
OTHERS = {
    "show/sinks.py",  # an event is a line there
    "decide/run/journal_events.py",  # records of the same names
}


def test_events_of_a_run_are_understood_in_one_module() -> None:
    matching = set()
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.MatchClass) and ast.unparse(node.cls).rpartition(".")[2] in OF_A_RUN:
                matching.add(name(path))
    assert matching - OTHERS == {"decide/run/fold.py"}


def test_bytes_with_a_carriage_return_are_split_in_one_module() -> None:
    splitting = {
        name(path) for path in FILES for node in nodes(path) if isinstance(node, ast.Constant) and node.value == b"\r"
    }
    assert {each for each in splitting if not each.startswith(("remote/", "act/"))} == {"decide/run/lines.py"}


def test_clocks_are_compared_by_the_delays_of_messages_in_one_module() -> None:
    noting = {name(path) for path in FILES for node in nodes(path) if "delays" in (getattr(node, "attr", ""),)}
    assert noting == {"decide/run/fold.py", "model/run_state.py"}


def test_an_event_changes_the_state_before_any_sink_sees_it() -> None:
    seen: list[tuple[Event, int]] = []

    class Sink:
        def handle_event(self, stamped: Stamped, state: object) -> None:
            seen.append((stamped.event, feeder.state.ranks[0].written.get("out", 0)))

    feeder = streams.Feeder(Sink())
    for stamped in streams.stamp([RUN, e.Output(0, "a", "out", b"12345\n")]):
        feeder.handle_event(stamped)
    assert [size for _, size in seen] == [0, 6]


def test_the_loss_of_an_epoch_is_no_point_of_the_loss_of_steps() -> None:
    epoch = b"epoch 0 train_loss 1.0446\n"
    assert count_figures(b"train_loss 2\n", epoch)[:2] == (1.0446, 2)
    bars = b"10%|# | 1/10 [00:00<00:01, 3.00it/s]\n", b"50%|##| 1/2 [00:00<00:00, 3.00it/s, train_loss=0.51]\n"
    assert count_figures(*bars)[0] == 0.51, "no bar of an evaluation"
    pieces = b"step 1 loss 0.5\n", epoch, b"step 2 loss 0.25\n"
    loss, points, _, rows = count_figures(*pieces)
    for more, last in ((b"", 1.0446), (b"loss nan\n", None)):
        outputs = [e.Output(0, "a", "out", piece) for piece in (*pieces, more)]
        assert make_report(fold_state(streams.stamp([RUN, *outputs]))).run.loss == last  # type: ignore[union-attr]
    values = [(row.name, row.value) for row in rows if row.name != "epoch"]
    assert (loss, points, values) == (0.25, 2, [("loss", 0.5), ("train_loss", 1.0446), ("loss", 0.25)])


def test_a_rank_that_ended_well_shows_its_last_line_of_stdout() -> None:
    bar = e.Output(0, "a", "err", b"100%|###| 8/8 [00:00<00:00, 20.33it/s]\n")
    ended = [e.RankEnded(rank, "ab"[rank], 0) for rank in (0, 1)]
    outputs = [e.Output(0, "a", "out", b"epoch 2 acc 0.9\n"), bar, e.Output(1, "b", "err", b"done\n")]
    run = make_report(fold_state(streams.stamp([RUN, *outputs, *ended]))).run
    assert [rank.tail for rank in run.ranks if run] == ["epoch 2 acc 0.9", "done"]  # type: ignore[union-attr]
    harmless = (
        b"[WARNING] Setting accelerator to CPU. If you have GPU or other accelerator, we were unable to detect it.\n"
    )
    warned = [e.Output(0, "a", "out", b"saved\n"), *(e.Output(rank, "ab"[rank], "out", harmless) for rank in (0, 1))]
    run = make_report(fold_state(streams.stamp([RUN, *warned, e.Output(1, "b", "err", b"done\n"), *ended]))).run
    assert [rank.tail for rank in run.ranks if run] == ["saved", "done"]  # type: ignore[union-attr]


def test_the_last_lines_of_a_failed_rank_have_what_address_sanitizer_found_and_not_its_picture_of_the_memory() -> None:
    found, picture = (
        "SUMMARY: AddressSanitizer: heap-buffer-overflow x.cpp:10 in main\n",
        11 * "  0x0c047fff7fb0: 00 fa\n",
    )
    legend = (
        "Shadow byte legend (one shadow byte represents 8 application bytes):\n"
        + 18 * "  Array cookie:            ac\n"
    )
    wrote = f"{found}Shadow bytes around the buggy address:\n{picture}{legend}==71==ABORTING\n"
    run = make_report(
        fold_state(streams.stamp([RUN, e.Output(0, "a", "err", wrote.encode()), e.RankEnded(0, "a", 1)]))
    ).run
    assert run is not None
    assert run.ranks[0].tail == f"{found}==71==ABORTING"


@pytest.mark.parametrize("stream", ["out", "err"])
def test_a_rank_that_ended_well_shows_a_line_with_words_and_not_the_ruler_of_its_table(stream: e.Stream) -> None:
    table = "| accuracy |  0.9 |\n└──────────┘\n------ ------\n"
    events = [RUN, e.Output(0, "a", stream, table.encode()), e.RankEnded(0, "a", 0)]
    run = make_report(fold_state(streams.stamp(events))).run
    assert run is not None
    assert run.ranks[0].tail == "| accuracy |  0.9 |"


def test_a_loss_that_is_no_number_is_told_alike_by_every_view() -> None:
    lines = [(0, b"step 29 loss 2.342\n"), (1, b"step 29 loss 2.3\n"), (0, b"step 30 loss nan grad_norm inf\n")]
    both = [*lines, (1, b"step 30 loss inf\n"), (0, b"step 31 loss nan\n")]
    later = [*lines, (1, b"step 31 loss inf\n")]
    silent = [lines[0], lines[2], (1, b"done, loss nan\n")]
    apart = "loss is NaN on rank 0 on a since step 30 (2.342 at step 29), later on rank 1"
    for outputs, text in (
        (lines, "loss is NaN on rank 0 on a since step 30 (2.342 at step 29)"),
        (both, "loss is inf on both ranks since step 30 (2.342 at step 29)"),
        (later, apart),
        (silent, apart),
    ):
        stream = streams.stamp([RUN, *(e.Output(rank, "ab"[rank], "out", data) for rank, data in outputs)])
        state = fold_state(stream)
        report = make_report(state)
        assert report.run
        assert report.run.lost_loss
        assert (report.run.lost_loss.text, report.run.lost_loss.step, report.run.lost_loss.last) == (text, 30, 2.342)
        assert f"▌ {text}" in "\n".join(drawn(watch(stream)))
        shown = io.BytesIO()
        typeset.print_items(typeset.make_console(Pipe(shown), 100), Pipe(shown), format_run_card(report.run))
        assert f"! {text}" in shown.getvalue().decode()
        assert text in make_verdict(build_page(state, report)).lines
    started = e.Started("run", "train.py", ("a", "b"), words=("run", "--ppn", "1", "train.py", "--lr", "9"))
    ended = [*(e.RankEnded(rank, "ab"[rank], 0) for rank in (0, 1)), e.RunEnded("k7", "done")]
    run = make_report(fold_state(streams.stamp([started, RUN, e.Output(0, "a", "out", lines[2][1]), *ended]))).run
    assert choose_next_step(run)[1] == "ipexctl run --stop-on-nan --ppn 1 train.py --lr 9"  # type: ignore[arg-type]
    started = replace(started, words=("run", "--stop-on-nan", "train.py"))
    run = make_report(fold_state(streams.stamp([started, RUN, e.Output(0, "a", "out", lines[2][1]), *ended]))).run
    assert run.lost_loss.command is None, "it is that run already"  # type: ignore[union-attr]
    again = fold_state(streams.stamp([RUN, *(e.Output(0, "a", "out", b"grad_norm inf\n") for _ in range(2)), RUN]))
    assert make_report(again).run.lost_loss is None  # type: ignore[union-attr]


def test_a_loss_that_transformers_prints_as_0_is_no_number_where_the_norm_of_its_gradient_is_none() -> None:
    lines = ["{'loss': '2.836', 'grad_norm': 'nan'}\n", "{'loss': '0', 'grad_norm': 'nan'}\n", "{'loss': '0'}\n"]
    texts = []
    for line in lines:
        state = fold_state(streams.stamp([RUN, e.Output(0, "a", "out", line.encode())]))
        lost = state.last_attempt.lost_loss if state.last_attempt else None
        texts.append(lost and lost.text)
    assert texts == [None, "loss is NaN (printed as 0) on rank 0 on a", None]


def test_a_step_of_the_epoch_before_says_nothing_of_when_a_loss_was_lost() -> None:
    lines = b"epoch 0 step 20 loss 5.796e35\nepoch 1 step 0 loss inf\n"
    state = fold_state(streams.stamp([RUN, e.Output(0, "a", "out", lines)]))
    assert state.last_attempt
    assert state.last_attempt.lost_loss
    assert state.last_attempt.lost_loss.text == "loss is inf on rank 0 on a since step 0 (5.796e+35 before)"


def test_a_loss_that_many_ranks_lose_takes_no_time_that_grows_with_the_cube_of_their_number() -> None:
    """It took 16 s for 2,000 ranks."""
    watch = Stopwatch()
    hosts = tuple(f"h{rank // 8}" for rank in range(3_000))
    lost = (e.Output(rank, host, "out", b"step %d loss nan\n" % (rank // 1_500)) for rank, host in enumerate(hosts))
    state = fold_state(streams.stamp([e.RunStarted("k7", "h0", hosts, ""), *lost]))
    assert state.last_attempt
    assert state.last_attempt.lost_loss
    assert len(state.last_attempt.lost_loss.later) == 1_500
    assert watch.read() < 12.0


def test_starts_without_an_end_that_a_host_claims_take_bounded_memory() -> None:
    """60 bytes of a journal took a megabyte for 1,000 ranks."""
    starts = [e.RunStarted("k7", "h0", ("h0",) * 60_000, "", restart=number) for number in range(3)]
    state = fold_state(
        streams.stamp([each for start in starts for each in (start, e.RunEnded("k7", "rank", again=True))])
    )
    assert [attempt.started.restart for attempt in state.run.attempts] == [0, 2]


def test_what_a_head_writes_again_and_again_takes_bounded_memory() -> None:
    """100 bytes of a journal were a span of the page for each of 1,000 ranks."""
    ranks = tuple(range(1_000))
    stalls = [each for turn in range(200) for each in (e.Stalled(ranks, 60.0 + turn, "all", {}), e.Resumed())]
    lost = [e.HostFailed(Failure(f"h{number}", Kind.LOST, "lost")) for number in range(10_100)]
    other = e.HostFailed(Failure("h0", Kind.RECORD, "output is missing"))
    warnings = [e.Message(f"rank 0: {number}", "warning") for number in range(10_100)]
    stages = [e.RankStage(0, f"h{number}", "running", 1.0) for number in range(10_100)]
    started = e.RunStarted("k7", "h0", ("h0",) * 1_000, "")
    state = fold_state(streams.stamp([started, *stalls, *lost, other, *warnings, *stages]))
    assert state.last_attempt
    assert [stall.event.seconds for stall in state.last_attempt.stalls] == [*range(60, 190), 259]
    assert state.last_attempt.stall is None
    assert [failure.kind for failure in state.failures[-2:]] == [Kind.LOST, Kind.RECORD]
    assert (len(state.failures), len(state.warnings), len(state.run.delays)) == (10_001, 10_000, 10_000)
    assert len(state.last_attempt.ranks[0].stages) == 64


def test_failures_and_warnings_have_a_size_in_all_and_one_of_each_kind_is_kept() -> None:
    text = "x" * (4 << 20)
    lost = [e.HostFailed(Failure(f"node{number}", Kind.LOST, text)) for number in range(40)]
    warnings = [e.Message(f"{number}{text}", "warning", "node0") for number in range(40)]
    fold = RunFold()
    for event in (*lost, *warnings, e.HostFailed(Failure("node0", Kind.RESIDUE, text))):
        fold.handle_event(Stamped(1.0, event))
    assert (len(fold.state.failures), len(fold.state.warnings)) == (16, 0)
    assert fold.state.failures[-1].kind is Kind.RESIDUE
