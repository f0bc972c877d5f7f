"""Events → the values of a page."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.decide.page.build import build_page
from ipexctl.decide.run.report import make_report
from ipexctl.model import events as e
from ipexctl.model.answers.doctor import DoctorAnswer, NetworkCheck
from ipexctl.model.errors import Exit
from ipexctl.model.events import Stamped
from ipexctl.model.page import LogExcerpt, RankRow, RunPage
from ipexctl.store import event_json
from ipexctl.verbs.common.known_errors import read_known_errors
from tests.unit.page.runs import STACK, fold_page, make_doctor, make_run
from tests.unit.show.streams import START, fold_state, names

SCREENS = Path(__file__).parents[2] / "data" / "screens"


def read_recorded(name: str) -> Iterator[Stamped]:
    for line in (SCREENS / f"{name}.jsonl").read_bytes().splitlines():
        yield event_json.decode_event(json.loads(line))


def kinds(row: RankRow) -> set[str]:
    return {span.kind for span in row.spans}


def marks(page: RunPage) -> list[tuple[int, str]]:
    return [(row.rank, mark.kind) for row in page.rows for mark in row.marks]


def test_a_recorded_hang_has_who_waits_and_who_is_waited_for() -> None:
    page = fold_page(read_recorded("hang"))
    assert [("odd" in kinds(row), "wait" in kinds(row)) for row in page.rows] == [
        (False, True),
        (True, False),
        (False, True),
        (False, True),
    ]
    odd = next(span for span in page.rows[1].spans if span.kind == "odd")
    assert "train.py:17 read_batch" in odd.text
    assert odd.begin < 6 < 30 < odd.end  # from the last progress, 20 s before it was reported
    assert page.rows[1].straggles
    assert not page.live


def test_the_page_of_a_study_has_its_last_run_judged() -> None:
    """The study's report has no run: it started many."""
    state = fold_state(make_run("failed"))
    report = make_report(state, read_known_errors)
    page = build_page(state, replace(report, run=None), None, read_known_errors)
    assert page.report.run == report.run
    assert page.report.run
    assert page.report.run.first


def test_the_page_of_many_ranks_takes_time_that_grows_with_their_number_alone() -> None:
    """All stacks were compared again for each rank: a record of a stranger held `report` for hours. The limit of
    each test ends it."""
    count = 6000
    begun = e.RunStarted("r1", "a", ("a",) * count, "mpirun", 0.0, "", "gloo", "bf16", {})
    stall = e.Stalled(tuple(range(count)), 20.0, "all", {}, False, START + 20)
    stacks = [e.RankStack(rank, "a", rank, "S", "", STACK) for rank in range(count)]
    events = [begun, stall, *stacks, e.StallCompared((3,), "", ()), e.Ended("run", Exit.LOST)]
    page = fold_page(Stamped(START + 20 + number, event) for number, event in enumerate(events))
    assert [number for number, row in enumerate(page.rows) if "odd" in kinds(row)] == [3]


def test_the_page_of_many_hosts_that_were_started_again_takes_time_that_grows_with_their_number_alone() -> None:
    """What a restart lost was computed again for each rank, from all pairs of hosts of before and after it; and each
    rank's log looked at the open lines of all. The limit of each test ends it."""
    hosts = tuple(f"n{number}" for number in range(6000))
    starts = [e.RunStarted("r1", "n0", hosts, "mpirun", restart=number) for number in range(3)]
    lines = [e.Output(rank, host, "out", b"x\ny", partial=True) for rank, host in enumerate(hosts)]
    events = [*starts, *lines, e.Ended("run", Exit.LOST)]
    page = fold_page(Stamped(START + 20 + number / 100, event) for number, event in enumerate(events))
    assert [line.text for line in page.logs[-1].lines] == ["x", "y"]
    assert {kind for _, kind in marks(page)} == {"restart"}


def test_stacks_that_were_asked_for_after_a_stall_are_not_those_of_the_stall() -> None:
    stream = list(make_run("hang"))
    [(index, at, bad)] = [
        (index, each.at, each.event.ranks[0])
        for index, each in enumerate(stream)
        if isinstance(each.event, e.StallCompared)
    ]
    later = Stamped(at + 5, e.RankStack(bad, "xeon02", 7, "S", "", STACK))
    page = fold_page([*stream[: index + 1], later, *stream[index + 1 :]])
    odd = next(span for span in page.rows[bad].spans if span.kind == "odd")
    assert "data.py:41 read" in odd.text


def test_a_recorded_failure_marks_the_rank_and_those_ended_for_it() -> None:
    page = fold_page(read_recorded("failed"))
    assert page.report.run is not None
    first = page.report.run.first
    assert sorted(kind for _, kind in marks(page)) == ["failed", "stopped", "stopped", "stopped"]
    assert (first, "failed") in marks(page)


def test_a_rank_that_called_mpi_abort_is_marked_with_its_code() -> None:
    stream = [
        each if not isinstance(each.event, e.RankEnded) or each.event.rank != 3 else
        replace(each, event=replace(each.event, status=None, abort=7, error=""))
        for each in make_run("good")
    ]  # fmt: skip
    assert [mark.text for mark in fold_page(stream).rows[3].marks] == ["failed: MPI_Abort(7)"]


def test_the_pace_is_that_of_the_training_not_of_an_evaluation_within_it() -> None:
    """As transformers' Trainer draws them: the bar of an evaluation has no name."""
    bars = ["10/150 [00:02<00:30, 4.5it/s]", "3/10 [00:00<00:00, 150.0it/s]", "10/10 [00:00<00:00, 140.0it/s]",
            "20/150 [00:05<00:30, 4.0it/s]"]  # fmt: skip
    stream = [each for each in make_run("good", 2) if not isinstance(each.event, e.Output)]
    stream += [
        Stamped(START + 20 + number, e.Output(0, "xeon01", "err", f"{bar}\n".encode()))
        for number, bar in enumerate(bars)
    ]
    page = fold_page(sorted(stream, key=lambda each: each.at))
    (pace,) = (figure.curves[0].points for figure in page.figures if figure.key == "pace")
    assert [value for _, value in pace] == pytest.approx([10 / 3])


def test_a_host_that_makes_the_run_slow_is_not_green() -> None:
    page = fold_page(read_recorded("slow-host"))
    assert ["odd" in kinds(row) for row in page.rows] == [False, True, False]
    assert [row.straggles.partition(":")[0] for row in page.rows] == ["", "makes the run slow", ""]
    assert page.hosts[1].straggles.startswith("rank 1: makes the run slow: its control group limits CPU time")
    marked = [curve.name for figure in page.figures for curve in figure.curves if curve.marked]
    assert set(marked) == {"rank 1", "node1"}


def test_the_first_sample_of_a_rate_is_that_of_the_time_before_it_too() -> None:
    figures = {figure.key: figure for figure in fold_page(make_run("good", every=5.0)).figures}
    first = {name: figures[name].curves[0].points[0] for name in ("cpu", "rank cpu", "memory", "rank memory")}
    assert [round(first[name][0], 1) for name in first] == [4.0, 4.0, 9.0, 9.0]
    assert figures["cpu"].curves[0].points[1][1] == first["cpu"][1]


@pytest.mark.parametrize(("later", "findings"), [(0.0, 1), (7200.0, 0)])
def test_a_page_that_is_drawn_again_shows_no_finding_of_later(later: float, findings: int) -> None:
    doctor = make_doctor(names(2))
    page = fold_page(make_run("good"), replace(doctor, at=doctor.at + later))
    assert len(page.doctor.findings if page.doctor else ()) == findings
    assert len(page.links) == findings


def test_a_good_run_has_stages_figures_and_samples_on_one_axis() -> None:
    page = fold_page(make_run("good"), make_doctor(names(2)))
    assert [span.text for span in page.rows[0].spans] == [
        "start", "python", "torch", "rendezvous", "connected", "first collective", "running",
    ]  # fmt: skip
    assert [span.kind for span in page.rows[0].spans][3:6] == ["rendezvous", "setup", "rendezvous"]
    figures = {figure.key: figure for figure in page.figures}
    assert {"loss", "pace", "cpu", "memory", "received", "watts", "rank cpu"} <= figures.keys()
    assert len(figures["loss"].curves) == 4
    assert max(value for _, value in figures["received"].curves[0].points) < 400  # without loopback
    assert len(figures["cpu"].curves) == 2
    assert all(0 <= at <= page.length for figure in page.figures for curve in figure.curves for at, _ in curve.points)
    assert page.rows[1].straggles == "pace 80% of the median"
    assert [host.joules for host in page.hosts] == [540.0 * 51] * 2
    assert [pair.first for pair in page.links] == ["xeon01"]
    assert page.variables["FI_TCP_IFACE"]["xeon01"] != page.variables["FI_TCP_IFACE"]["xeon02"]


def test_memory_below_a_gibibyte_is_in_mebibytes() -> None:
    stream = list(make_run("good"))
    small = [
        replace(each, event=replace(each.event, ranks=(e.RankSample(0, 1.0, 5 << 20),)))
        if isinstance(each.event, e.HostSample) else each
        for each in stream
    ]  # fmt: skip
    figures = {figure.key: figure for figure in fold_page(small).figures}
    assert figures["rank memory"].unit == "MiB"
    assert figures["rank memory"].curves[0].points[0][1] == 5
    assert figures["memory"].unit == "GiB"


def test_a_run_that_lost_a_host_and_started_again_has_both_attempts_on_the_axis() -> None:
    page = fold_page(make_run("lost"))
    assert page.attempts == 2
    assert [kind for rank, kind in marks(page) if rank == 0] == ["stopped", "restart", "ended"]
    assert [kind for rank, kind in marks(page) if rank == 3] == ["lost"]
    assert page.hosts[1].lost == "lost (silent for 30 s)"
    (restart,) = page.restarts
    assert restart == pytest.approx(next(mark.at for mark in page.rows[0].marks if mark.kind == "restart"))
    assert page.report.run is not None
    assert len(page.report.run.ranks) == 2


def list_runs(named: bool = True) -> Iterator[Stamped]:
    """A good run with a lost host, then a failed one; ``named``: each begins as a step of a playbook does."""
    yield from make_run("lost", script="prepare.py")
    for each in make_run("failed", 2, 2, script="train.py"):
        if named or not isinstance(each.event, e.Started):
            yield Stamped(each.at + 500, each.event)


@pytest.mark.parametrize("named", [True, False])
def test_of_several_runs_in_one_record_the_page_has_the_last_one(named: bool) -> None:
    page = fold_page(list_runs(named))
    assert (page.attempts, len(page.rows), len(page.logs)) == (1, 2, 2)
    assert (1, "failed") in marks(page)
    assert page.length < 100
    assert page.earlier == 1
    assert page.report.run is not None
    assert page.report.run.reason == "rank"
    assert page.launch is not None
    assert page.launch.size == 2
    assert page.title == ("train.py" if named else "prepare.py")


def test_a_run_that_goes_on_is_drawn_up_to_its_last_event() -> None:
    events = [each for each in make_run("good") if each.at < START + 30]
    page = fold_page(events)
    assert page.live
    assert page.length == pytest.approx(events[-1].at - page.begun)
    assert page.rows[0].spans[-1].end == pytest.approx(page.length)


def test_a_loss_that_is_no_number_is_a_mark_and_figures_of_a_script_are_bounded() -> None:
    at = START
    stream = [Stamped(at, e.RunStarted("k7", "a", ("a",), "train.py", at))]
    for number in range(40):
        data = b"::metric name=name%d value=1.0\nloss nan\n" % number
        stream += [Stamped(at + number + half, e.Output(0, "a", "out", data)) for half in (0.0, 0.5)]
    page = fold_page(stream)
    assert [mark.text for mark in page.rows[0].marks] == ["loss is nan"]
    assert len(page.figures) == 12


def test_the_pace_of_a_script_that_prints_steps_only_is_measured() -> None:
    stream = [Stamped(START, e.RunStarted("k7", "a", ("a",), "train.py", START))]
    stream += [Stamped(START + n, e.Output(0, "a", "out", b"step %d loss 0.5\n" % (4 * n))) for n in range(10)]
    page = fold_page([*stream, Stamped(START + 11, e.Ended("run", Exit.OK))])
    assert page.rows[0].pace == pytest.approx(4.0)
    assert page.rows[0].loss == 0.5


def test_lines_of_the_launcher_are_kept_apart_from_those_of_ranks() -> None:
    stream = list(make_run("good"))
    output = Stamped(START + 20, e.LauncherOutput("err", b"[proxy:0@xeon01] a warning\n"))
    (line,) = fold_page([*stream[:40], output, *stream[40:]]).launcher
    assert (line.text, line.error) == ("[proxy:0@xeon01] a warning", True)


def test_of_many_ranks_some_are_drawn_and_those_that_straggle_among_them() -> None:
    page = fold_page(make_run("good", ranks=128, hosts=2))
    straggler = next(row.rank for row in page.rows if row.straggles)
    (loss,) = (figure for figure in page.figures if figure.key == "loss")
    assert len(loss.curves) == 64
    assert [curve.name for curve in loss.curves if curve.marked] == [f"rank {straggler}"]
    assert next(curve.name for curve in loss.curves if not curve.marked) == "rank 0"


def bar(step: int, total: int, rate: str = "9.9") -> str:
    return f"epoch: 1%|█ | {step}/{total} [00:02<00:05, {rate}it/s, loss=0.5]"


@pytest.mark.parametrize(
    ("lines", "paces"),
    [
        ([f"step {step}" for step in (0, 10, 20, 0, 10, 20)], [5.0] * 4),  # how many came after 20 is not known
        ([bar(0, 8, "?"), bar(4, 8), bar(8, 8), bar(2, 8), bar(8, 8), bar(0, 8, "?"), bar(4, 8)],
         [2.0, 2.0, 1.0, 3.0, 1.0]),  # a bar for each epoch, whatever rate it prints
        ([bar(0, 8, "?"), bar(4, 8), "step 700", bar(8, 8), bar(7, 8), bar(2, 8)], [2.0, 1.0, 0.5]),
        ([bar(0, 90, "?"), bar(4, 90), "[1/5] step 3/8 9.9 it/s loss 1", bar(8, 90)], [2.0, 1.0]),
        (["loss 0.5 3.0 it/s", "loss 0.5 2.5 it/s"], [3.0, 2.5]),  # no steps
        ([bar(0, 8, "?"), bar(4, 8), "{'train_runtime': 9, 'train_steps_per_second': 77.0}"], [2.0]),
    ],
)  # fmt: skip
def test_the_pace_is_steps_over_time_also_of_counters_that_begin_anew(lines: list[str], paces: list[float]) -> None:
    stream = [Stamped(START, e.RunStarted("k7", "a", ("a",), "train.py", START))]
    stream += [Stamped(START + 2 * n, e.Output(0, "a", "out", f"{line}\n".encode())) for n, line in enumerate(lines)]
    page = fold_page([*stream, Stamped(START + 20, e.Ended("run", Exit.OK))])
    (pace,) = (figure for figure in page.figures if figure.key == "pace")
    assert [value for _, value in pace.curves[0].points] == pytest.approx(paces)


def test_a_stall_ends_where_its_ranks_make_progress_again_and_has_its_ranks_only() -> None:
    stream = list(make_run("good"))
    stalled = [Stamped(START + 30, e.Stalled((1,), 10.0, "some", {"1": "T"})), Stamped(START + 40, e.Resumed())]
    page = fold_page(sorted([*stream, *stalled], key=lambda each: each.at))
    (stall,) = (span for span in page.rows[1].spans if span.kind == "stall")
    assert stall.end == pytest.approx(START + 40 - page.begun)
    assert stall.text == "no progress for 10 s"
    assert all("stall" not in kinds(row) for row in page.rows if row.rank != 1)


def test_stalls_from_before_the_watch_have_the_times_of_the_journal() -> None:
    came = START + 600
    stages = [Stamped(came, e.RankStage(0, "a", "running", START + 1))]
    stall = e.Stalled((0,), 60.0, "all", {"0": "S"}, at=START + 160)
    stream = [Stamped(came, e.RunStarted("k7", "a", ("a",), "train.py", START, "train.py")), *stages]
    stream += [Stamped(came, event) for event in (stall, e.Resumed(START + 200), e.CaughtUp())]
    page = fold_page([*stream, Stamped(came + 5, e.Output(0, "a", "out", b"step 1\n"))])
    (span,) = (span for span in page.rows[0].spans if span.kind == "stall")
    assert (span.begin, span.end) == pytest.approx((100, 200))


def test_a_python_that_never_imports_torch_is_the_work_itself() -> None:
    stages = [
        Stamped(START + at, e.RankStage(0, "a", stage, START + at)) for at, stage in ((1, "program"), (2, "python"))
    ]
    stream = [Stamped(START, e.RunStarted("k7", "a", ("a",), "serve.py", START, "serve.py")), *stages]
    spans = fold_page([*stream, Stamped(START + 60, e.Output(0, "a", "out", b"ready\n"))]).rows[0].spans
    assert [span.kind for span in spans if span.text != "start"] == ["running", "running"]


def test_ranks_that_outlast_the_others_straggle() -> None:
    stalled = Stamped(START + 59, e.Stalled((3,), 3.0, "stragglers", {"3": "S"}))
    stream = sorted([*make_run("good"), stalled], key=lambda each: each.at)
    (span,) = (span for span in fold_page(stream).rows[3].spans if span.kind == "straggles")
    assert span.text == "still running when the others were done"


def test_without_a_rank_there_is_no_page() -> None:
    with pytest.raises(ValueError, match="no rank was started"):
        fold_page([Stamped(START, e.Started("run", "train.py", ("a",)))])


def test_what_doctor_found_in_a_play_is_on_the_page_of_its_run() -> None:
    answer = DoctorAnswer(
        (), make_doctor(names(2)).findings, None, (), NetworkCheck(0, (), None, None, None, (), {}, ())
    )
    page = fold_page([Stamped(START - 5, e.Answer(answer)), *make_run("good")])
    assert page.doctor is not None
    assert [finding.code for finding in page.doctor.findings] == ["NET004"]


def test_ranks_that_write_without_end_are_read_no_more_than_a_chart_needs() -> None:
    stream = [Stamped(START, e.RunStarted("k7", "a", ("a", "a"), "train.py", START))]
    for number in range(100):
        data = b"".join(b"loss %d\n" % (1000 * number + line) for line in range(1000))
        stream.append(Stamped(START + number / 100, e.Output(number % 2, "a", "out", data + b"loss ")))
    figures = fold_state(stream).run.figures["loss"]
    assert [series.count for series in figures.values()] == [1000, 1000]
    stream += [Stamped(START + 2, e.Output(0, "a", "out", b"0.5\n"))]
    assert fold_state(stream).run.figures["loss"][0].last == (START + 2, 0.5), "the line that was cut is whole again"


# logs -------------------------------------------------------------------------------------------------------------


def read_log(*pieces: tuple[float, e.Stream, bytes]) -> LogExcerpt:
    stream = [Stamped(START, e.RunStarted("k7", "a", ("a",), "train.py", START))]
    (log,) = fold_page(
        [*stream, *(Stamped(START + at, e.Output(0, "a", kind, data)) for at, kind, data in pieces)]
    ).logs
    return log


def test_lines_have_the_time_of_their_end_and_a_bar_its_last_state() -> None:
    log = read_log(
        (1.0, "out", b"whole\nhal"), (2.0, "err", b"other\n"), (3.0, "out", b"f\n"),
        (4.0, "err", b"\r10%|#"), (5.0, "err", b"\r90%|##"), (6.0, "out", b"\xff\n"),
    )  # fmt: skip
    assert [(round(line.at), line.error, line.text) for line in log.lines] == [
        (1, False, "whole"), (2, True, "other"), (3, False, "half"), (6, False, "�"), (6, True, "90%|##"),
    ]  # fmt: skip


def test_of_too_much_output_the_beginning_and_the_end_are_kept_and_the_rest_is_counted() -> None:
    lines = [(number / 1000, "out", b"%08d\n" % number * 100) for number in range(10_000)]
    log = read_log(*lines)  # type: ignore[arg-type]
    assert (log.lines[0].text, log.lines[-1].text) == ("00000000", "00009999")
    assert len(log.lines) * 9 + log.omitted == 9_000_000
    assert int(log.lines[log.gap].text) - int(log.lines[log.gap - 1].text) > 1


def test_empty_lines_take_no_more_of_a_page_than_others() -> None:
    """Each was an object, and 5 MiB of them 700 MiB and 20 s at the end of a run."""
    log = read_log(*[(number / 1000, "out", b"\n" * (1 << 20)) for number in range(12)])
    assert 200_000 < len(log.lines) < 300_000
    assert len(log.lines) + log.omitted == 12 << 20
