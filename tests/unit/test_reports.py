"""Events → Report → exit code."""

import json
import random
import shlex
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.decide.page.build import build_page
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.model import events as e
from ipexctl.model.answers import UnknownAnswer
from ipexctl.model.errors import Exit, Failure, Hint, Kind, advise
from ipexctl.model.events import Event, Stamped
from ipexctl.model.facts import Disk, Facts
from ipexctl.model.json_values import to_json
from ipexctl.model.reports import CommandReport, Diagnosis, Finding, LostOutput, RankOutcome, RunOutcome, StallPlace
from ipexctl.show.run_screen import describe_rank_end, format_run_card
from ipexctl.show.screens import format_next_steps, list_next_commands
from ipexctl.show.typeset import Line
from ipexctl.verbs.common.known_errors import read_known_errors
from tests.tables import read_table
from tests.unit.show import streams
from tests.unit.show.streams import fold, fold_state

HOSTS = ("a", "b")
RANKS = ("a", "a", "b", "b")
STARTED = e.Started("run", "train.py", HOSTS)
RUN = e.RunStarted("r1", "a", RANKS, "mpirun")


def folded(*events: Event, exit: Exit = Exit.OK, lost: LostOutput | None = None) -> CommandReport:
    stream = [Stamped(100.0 + n / 1000, event) for n, event in enumerate([*events, e.Ended("run", exit)])]
    return fold(stream, lost=lost)


def of_run(report: CommandReport) -> RunOutcome:
    assert report.run is not None
    return report.run


def first(report: CommandReport) -> RankOutcome:
    run = of_run(report)
    return next(rank for rank in run.ranks if rank.rank == run.first)


def end(rank: int, status: int | None = 0, at: float = 0.0, **more: object) -> e.RankEnded:
    return e.RankEnded(rank, RANKS[rank], status, at=at, **more)  # type: ignore[arg-type]


def done(*ends: e.RankEnded, reason: str = "done") -> list[Event]:
    given = {event.rank for event in ends}
    rest = [end(rank) for rank in range(4) if rank not in given]
    return [STARTED, RUN, *ends, *rest, e.RunEnded("r1", reason), e.CleanupChecked("r1", HOSTS, {})]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "command"),
    read_table("reports/a_failed_run_that_keeps_checkpoints_has_the_command_that_resumes", frozen=True),
)
def test_a_failed_run_has_the_command_that_resumes(words: tuple[str, ...], command: str | None) -> None:
    started = replace(STARTED, words=words)
    _, *failed = done(end(1, 3))
    assert of_run(folded(started, *failed)).resume == command
    _, *good = done()
    assert of_run(folded(started, *good)).resume is None
    if words[:1] == ("run",):
        for first in ("play", "attach"):  # the run is one of its steps, or was started before
            before = e.Started(first, "a play", RANKS, words=(first, "x"))
            assert of_run(folded(before, started, *failed)).resume == command
    lines = [line.plain for line in format_run_card(of_run(folded(started, *failed))) if isinstance(line, Line)]
    assert [line for line in lines if "--keep" in line] == ([f"  resume   {command}"] if command else [])


def test_what_a_damaged_checkpoint_ended_does_not_go_on_from_it_again() -> None:
    words = ("run", "--keep", "ckc", "--resume", "auto", "--restarts", "2", "train.py", "--lr", "1")
    begun = replace(RUN, resumed=e.ResumedFrom("ckc/step8.pt"))
    error = "_pickle.UnpicklingError: Weights only load failed.\n\tWeightsUnpickler error: \n\nCheck"
    broken = end(1, 1, error=error, traceback=f"Traceback\n{error}\x1b[1m")
    events = [replace(STARTED, words=words), begun, broken, e.RunEnded("r1", "rank")]
    run = of_run(fold_with_catalogue(events))
    assert run.resume is None
    assert run.diagnosis
    assert run.diagnosis.title == "ckc/step8.pt, which the ranks went on from, is damaged or incomplete"
    assert run.diagnosis.command == "ipexctl run --keep ckc --restarts 2 --resume off train.py --lr 1"
    begun = replace(RUN, resumed=None)  # the script's own choice: ipexctl takes one that is whole
    run = of_run(fold_with_catalogue([events[0], begun, *events[2:]]))
    assert run.resume == "ipexctl run --keep ckc --restarts 2 --resume auto train.py --lr 1"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("--keep", "out"), "ipexctl run --resume auto --keep out train.py"),
        (("--keep", "out", "--resume", "off"), ""),
        ((), ""),
    ],
)
def test_a_checkpoint_that_a_host_lacks_is_gathered_by_resume(words: tuple[str, ...], command: str) -> None:
    error = "ValueError: Can't find a valid checkpoint at out/checkpoint-470"
    started = replace(STARTED, words=("run", *words, "train.py"))
    run = of_run(fold_with_catalogue([started, RUN, end(1, 1, error=error, traceback=error), e.RunEnded("r1", "rank")]))
    assert run.diagnosis
    assert run.diagnosis.command == command
    assert "--resume auto" in str(run.diagnosis.fix)


def test_all_went_well_is_0() -> None:
    report = folded(*done())
    assert (report.exit, report.causes, of_run(report).first, of_run(report).clean) == (Exit.OK, (), None, HOSTS)


def test_a_stream_without_an_end_is_not_ok() -> None:
    assert fold([Stamped(1.0, STARTED)]).exit is Exit.LOST
    assert fold([]).exit is Exit.LOST


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (e.HostFailed(Failure("a", Kind.UNREACHABLE, "x")), Exit.UNREACHABLE),
        (e.HostFailed(Failure("a", Kind.BUSY, "x")), Exit.BUSY),
        (e.HostFailed(Failure("", Kind.LOST, "x")), Exit.LOST),
        (e.StepEnded("a", "sync", "failed"), Exit.STEP),
        (e.FindingReported(Finding("CPU001", "error", ("a",), "x")), Exit.STEP),
        (e.FindingReported(Finding("CPU001", "warning", ("a",), "x")), Exit.OK),
        (e.CleanupChecked("r1", HOSTS, {"b": (7,)}), Exit.RESIDUE),
        (e.CleanupChecked("r1", HOSTS, {"b": ()}), Exit.OK),
        (e.CleanupChecked("r1", HOSTS, {}, ("b",)), Exit.LOST),
        (e.RunEnded("r1", "limit"), Exit.LOST),
        (e.RunEnded("r1", "launch"), Exit.STEP),
        (e.RunEnded("r1", "rank"), Exit.RANK),
        (e.Message("hm", "warning"), Exit.OK),
    ],
)
def test_each_cause_has_its_exit_code(event: Event, code: Exit) -> None:
    assert folded(STARTED, event).exit is code


def test_bytes_that_were_not_stored_are_9() -> None:
    assert folded(*done(), lost=LostOutput(3, {}, 0, (), "")).exit is Exit.RECORD


@given(st.permutations([Kind.UNREACHABLE, Kind.STEP, Kind.LOST, Kind.BUSY, Kind.RESIDUE, Kind.RECORD]))
def test_of_several_causes_the_same_one_wins_in_any_order(kinds: Sequence[Kind]) -> None:
    events = [e.HostFailed(Failure("a", kind, "x")) for kind in kinds]
    assert folded(*events).exit is Exit.RESIDUE
    assert folded(*(ev for ev in events if ev.failure.kind is not Kind.RESIDUE), exit=Exit.INT).exit is Exit.INT
    assert folded(*(ev for ev in events if ev.failure.kind is not Kind.RESIDUE)).exit is Exit.LOST


@pytest.mark.parametrize(("one", "other"), [(1, 2), (64, 128), (0, 7), (7, 0)])
def test_the_exit_code_does_not_depend_on_the_ranks_codes(one: int, other: int) -> None:
    report = folded(*done(end(0, one, 50.0), end(1, other, 50.001), reason="rank"))
    assert report.exit is Exit.RANK


def test_the_first_cause_is_the_earliest_failure_whatever_order_it_is_seen_in() -> None:
    begun = [Stamped(40.0, STARTED), Stamped(40.0, RUN)]
    begun += [Stamped(41.0, e.RankStage(rank, host, "python", 40.99)) for rank, host in enumerate(RANKS)]
    ends = [end(0, 1, 50.9), end(1, 2, 50.1), end(3, None, 50.5, signal=11), end(2), e.RunEnded("r1", "rank")]
    for seed in range(6):
        random.Random(seed).shuffle(ends)
        report = fold([*begun, *(Stamped(51.0 + n, event) for n, event in enumerate(ends))])
        assert (first(report).rank, of_run(report).followers) == (1, (3, 0))


def test_failures_at_the_same_time_are_reported_by_rank() -> None:
    report = folded(*done(end(1, 2, 50.0), end(0, 1, 50.0), reason="rank"))
    assert (first(report).rank, of_run(report).followers) == (0, (1,))


def test_ranks_that_ended_well_although_a_process_of_theirs_did_not_are_named_with_the_cause() -> None:
    """As those of a shell script that goes on after python; the first of them only missed the other."""
    missed = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:41"
    trace = 'Traceback (most recent call last):\n  File "/w/tiny.py", line 6, in <module>\n'
    lost = end(0, at=1.0, error=missed, traceback=f"{trace}{missed}")
    ends = [lost, end(1, at=1.1, error="RuntimeError: bad sample 17", line="tiny.py:6")]
    run = of_run(make_report(fold_state(streams.stamp([RUN, *done(*ends)])), read_known_errors))
    assert run.good
    assert (
        run.uncaught
        == "rank 1 on a had an exception in a process of its script at tiny.py:6: RuntimeError: bad sample 17"
    )


def test_of_an_exception_that_holds_the_stack_of_another_one_both_are_named() -> None:
    """As of a checkpoint that async_save did not write: its first line names ranks, and no reason."""
    inner = 'Traceback (most recent call last): (RANK 0)\n  File "/w/save.py", line 9, in save\n'
    error = f"CheckpointException: ranks:dict_keys([0])\n{inner}NotADirectoryError: '/data/ckpt'\n"
    run = of_run(
        make_report(
            fold_state(streams.stamp([RUN, *done(end(0, at=1.0, error=error), end(1, at=1.1))])), read_known_errors
        )
    )
    assert run.uncaught.endswith("CheckpointException: ranks:dict_keys([0]) … NotADirectoryError: '/data/ckpt'")


@pytest.mark.parametrize(("later", "last"), [(1.0, 1.0), (4.0, 4.0), (1.0, 4.0)])
def test_ranks_that_end_well_just_after_an_exception_that_they_wrote_are_named(later: float, last: float) -> None:
    """As of ``try: main()`` with ``traceback.print_exc()``; the cause may end last."""
    head = 'Traceback (most recent call last):\n  File "/w/tiny.py", line 6, in <module>\n'
    raised = {0: "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer", 1: "KeyError: 'x'"}
    wrote = [e.Output(rank, "a", "err", f"{head}{text}\n".encode()) for rank, text in raised.items()]
    started, begun, *ended = done(end(0, at=10.0 + later), end(1, at=10.0 + last))
    events = [e.Stamped(10.0, event) for event in (started, begun, *wrote)]
    events += [e.Stamped(10.0 + last, event) for event in ended]
    run = of_run(make_report(fold_state(events), read_known_errors))
    assert run.good
    assert run.uncaught == ("the last that rank 1 on a wrote is an exception: KeyError: 'x'" if later < 3 else "")


def test_ranks_that_we_ended_are_never_the_cause() -> None:
    stopped = [end(rank, None, 49.0, signal=15, cause="stopped") for rank in (0, 1, 3)]
    report = folded(*done(*stopped, end(2, 3, 50.0), reason="rank"))
    assert (first(report).rank, of_run(report).stopped, report.exit) == (2, (0, 1, 3), Exit.RANK)


def test_a_rank_whose_end_nobody_saw_is_not_well() -> None:
    lost = folded(*done(end(2, None, cause="lost")))
    assert (lost.exit, of_run(lost).ranks[2].state) == (Exit.LOST, "lost")
    unseen = folded(STARTED, RUN, end(0), e.RunEnded("r1", "done"))
    assert (unseen.exit, of_run(unseen).ranks[1].state) == (Exit.LOST, "running")


def test_a_watched_run_that_somebody_stopped_did_not_do_what_was_asked() -> None:
    stopped = [end(rank, None, signal=15, cause="stopped") for rank in range(4)]
    assert folded(*done(*stopped, reason="stopped")).exit is Exit.LOST
    assert folded(*done(*stopped, reason="stopped"), exit=Exit.INT).exit is Exit.INT
    assert folded(*done(*stopped)).exit is Exit.LOST


def test_a_run_that_was_let_go_is_ok_and_still_running() -> None:
    report = folded(STARTED, RUN, e.RankStage(0, "a", "torch"))
    assert (report.exit, of_run(report).reason, of_run(report).ranks[0].state) == (Exit.OK, "", "running")


def test_a_restart_forgets_the_ranks_of_the_attempt_before_and_not_what_it_left() -> None:
    again = e.RunStarted("r1-2", "a", RANKS, "mpirun")
    first: list[Event] = [RUN, end(1, 1), e.RunEnded("r1", "rank")]
    second: list[Event] = [
        again,
        *(end(rank) for rank in range(4)),
        e.RunEnded("r1-2", "done"),
        e.CleanupChecked("r1-2", HOSTS, {}),
    ]
    assert folded(STARTED, *first, e.CleanupChecked("r1", HOSTS, {}), *second).exit is Exit.OK
    assert folded(STARTED, *first, e.CleanupChecked("r1", HOSTS, {"a": (9,)}), *second).exit is Exit.RESIDUE


def test_an_end_that_was_seen_replaces_one_that_nobody_saw_and_nothing_else_does() -> None:
    failed, lost = end(2, 3, 50.0), end(2, None, cause="lost")
    for ends in ([lost, failed], [failed, lost], [lost, failed, end(2, 7, 51.0)]):
        report = folded(*done(*ends))
        assert (report.exit, of_run(report).ranks[2].status) == (Exit.RANK, 3), ends


@pytest.mark.parametrize(("shift", "earlier"), [(3600.0, 2), (-1.5, 0)])
def test_hosts_clocks_that_differ_do_not_change_the_first_cause(shift: float, earlier: int) -> None:
    """Host b's clock is an hour ahead, or 1.5 s behind: by its own time what failed there was last, or first."""
    stream = [Stamped(100.0, STARTED), Stamped(100.1, RUN)]
    for rank, host in enumerate(RANKS):
        own = 101.0 + (shift if host == "b" else 0.0)
        stream.append(Stamped(101.01, e.RankStage(rank, host, "python", own)))
    later = 2 - earlier
    at = {earlier: 110.0, later: 110.2}
    stream += [
        Stamped(110.30, end(0, 1, at[0])),
        Stamped(110.31, end(2, 1, at[2] + shift)),
        Stamped(111.0, e.RunEnded("r1", "rank")),
        Stamped(111.0, e.Ended("run", Exit.OK)),
    ]
    state = fold_state(stream)
    report = make_report(state)
    assert (first(report).rank, of_run(report).followers) == (earlier, (later,))
    assert first(report).at == pytest.approx(110.0, abs=0.1)
    rows = build_page(state, report).rows
    assert rows[0].spans[0].begin == pytest.approx(rows[2].spans[0].begin, abs=0.1)
    assert rows[2].marks[-1].at - rows[0].marks[-1].at == pytest.approx(at[2] - at[0])


@pytest.mark.parametrize("ahead", [0.0, 30.0])
def test_who_comes_later_has_the_times_of_the_run_and_its_title(ahead: float) -> None:
    """Attached an hour after a run of 20 s has ended: all of it is seen at once. A clock may be ahead of ours."""
    came, begun = 9000.0, 9000.0 + (ahead - 25.0 if ahead else -3600.0)
    events: list[Event] = [
        e.Started("attach", "", HOSTS),
        e.RunStarted("r1", "a", RANKS, "mpirun", begun, "train.py  2 hosts"),
        *[end(rank, None if rank else 3, begun + 12 + rank, cause="stopped" if rank else "") for rank in range(4)],
        e.RunEnded("r1", "rank", at=begun + 20.0),
        e.Ended("attach", Exit.OK),
    ]
    report = fold([Stamped(came, event) for event in events])
    assert report.title == "train.py  2 hosts"
    assert of_run(report).ended - of_run(report).started == pytest.approx(20.0)
    assert first(report).at - of_run(report).started == pytest.approx(12.0)
    assert of_run(report).started <= came


def test_steps_are_counted_as_ansible_does() -> None:
    report = folded(
        e.Started("play", "", ("a", "b", "c")),
        e.Started("sync", "one", ("a", "b", "c")),
        e.StepEnded("a", "compare", "ok"),
        e.StepEnded("a", "sync", "ok"),
        e.StepEnded("b", "compare", "ok"),
        e.StepEnded("b", "sync", "failed", "no space"),
        e.HostFailed(Failure("b", Kind.STEP, "no space", code="no-space")),
        e.HostFailed(Failure("c", Kind.UNREACHABLE, "no answer")),
        e.Answer(UnknownAnswer({})),
        e.StepEnded("b", "two", "skipped"),
        e.Started("command", "two", ("a",)),
        e.StepEnded("a", "echo", "changed"),
    )
    counts = [(h.host, h.ok, h.changed, h.unreachable, h.failed, h.skipped) for h in report.hosts]
    assert counts == [("a", 2, 1, 0, 0, 0), ("b", 0, 0, 0, 1, 1), ("c", 0, 0, 1, 0, 0)]
    assert report.exit is Exit.STEP


def test_bytes_of_output_are_counted_per_rank() -> None:
    report = folded(STARTED, RUN, e.Output(1, "a", "out", b"12345\n"), e.Output(1, "a", "err", b"1"))
    rank = of_run(report).ranks[1]
    assert (rank.out_bytes, rank.err_bytes) == (6, 1)


def test_the_report_is_json_with_every_host_and_rank() -> None:
    public = json.loads(json.dumps(to_json(folded(*done(end(2, None, 50.0, signal=9), reason="rank")))))
    assert [rank["state"] for rank in public["run"]["ranks"]] == ["ok", "ok", "failed", "ok"]
    assert [host["host"] for host in public["hosts"]] == ["a", "b"]
    assert (public["exit"], public["ok"], public["run"]["first"]) == (5, False, 2)


def test_a_run_ends_when_its_head_ended_it_however_late_that_is_heard() -> None:
    folds, skew, offline = RunFold(), 900.0, 3600.0
    for at, begun in ((100.0, STARTED), (101.0, replace(RUN, at=101.0 + skew))):
        folds.handle_event(Stamped(at, begun))
    ends: list[Event] = [*(end(rank, at=131.0 + skew) for rank in range(4)), e.RunEnded("r1", "done", at=131.5 + skew)]
    for event in ends:
        folds.handle_event(Stamped(131.5 + offline, event))
    folds.handle_event(Stamped(132.0 + offline, e.Ended("run", Exit.OK)))
    assert folds.state.took == 30.5
    run = of_run(make_report(folds.state))
    assert (run.started, run.ended) == (101.0, 131.5)


def test_a_report_can_be_made_at_any_moment() -> None:
    folds = RunFold()
    folds.handle_event(Stamped(1.0, STARTED))
    assert make_report(folds.state).exit is Exit.LOST
    folds.handle_event(Stamped(2.0, e.Ended("run", Exit.OK)))
    assert make_report(folds.state).exit is Exit.OK


def test_the_fix_of_a_known_error_names_the_hosts_and_the_environment_of_the_command() -> None:
    lost = end(2, 1, 50.0, error="ModuleNotFoundError: No module named 'tabulate'")
    here = e.Started("run", "train.py", HOSTS, selection_flags=("-f", "lab/hosts", "--limit", "a,b"))
    events = [here, *done(lost, reason="rank")[1:], e.Started("sync", "", HOSTS)]
    diagnosis = diagnose(events)
    assert diagnosis.fix == "ipexctl install --with tabulate -f lab/hosts --limit a,b"
    words = ("install", "--with", "tabulate", "--with", "pillow")  # the look before the start knew of both
    missing = e.Message(advise(*words, text="t.py imports tabulate, PIL, not in the environment:"), "warning")
    diagnosis = diagnose([events[0], missing, *events[1:]])
    assert diagnosis.command == "ipexctl install --with tabulate --with pillow -f lab/hosts --limit a,b"
    other = advise("install", "--with", "omegaconf", text="main.py imports omegaconf, not in the environment:")
    diagnosis = diagnose([events[0], e.Message(other, "warning"), *events[1:]])  # which the script does not import
    assert diagnosis.command == "ipexctl install --with tabulate --with omegaconf -f lab/hosts --limit a,b"
    unknown = [events[0], e.Message(other, "warning"), *done(end(2, 1, 50.0, error=_UNKNOWN), reason="rank")[1:]]
    diagnosis = diagnose(unknown)
    assert "omegaconf" not in f"{diagnosis.command}", "it would not bring what the rank lacked"


def test_options_behind_a_script_that_refuses_them_stand_before_it_in_the_command_of_the_card() -> None:
    better = Hint(["run", "--ppn", "2", "train.py"], "--ppn goes to the script; options of ipexctl stand before it:")
    for refused in (
        "train.py: error: unrecognized arguments: --ppn 2",
        "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--ppn', '2']",
    ):
        ended = done(end(2, 1, 50.0, error=refused), reason="rank")[1:]
        diagnosis = of_run(fold_with_catalogue([STARTED, e.Message(better, "warning"), *ended])).diagnosis
        assert diagnosis
        assert diagnosis.command == "ipexctl run --ppn 2 train.py"


def test_a_backend_that_torch_lacks_is_overridden_where_the_environment_has_impi() -> None:
    words = ("run", "--hosts", "a,b", "train.py")
    for backend, message, command in (
        ("impi", "AssertionError: Unknown backend type ccl", "ipexctl run --backend-override --hosts a,b train.py"),
        (
            "impi",
            "RuntimeError: Distributed package doesn't have MPI built in.",
            "ipexctl run --backend-override --hosts a,b train.py",
        ),
        ("impi", "AssertionError: Unknown backend type smddp", "ipexctl doctor"),
        ("gloo", "AssertionError: Unknown backend type ccl", "ipexctl doctor"),
    ):
        begun = [replace(STARTED, words=words), *done(end(2, 1, 50.0, error=message), reason="rank")[1:]]
        begun = [replace(each, backend=backend) if isinstance(each, e.RunStarted) else each for each in begun]
        diagnosis = of_run(fold_with_catalogue(begun)).diagnosis
        assert diagnosis
        assert diagnosis.command == command


def test_a_library_that_another_mpi_lacks_is_not_looked_for_in_the_environment() -> None:
    started = e.Started("run", "pi.py", HOSTS, words=("run", "--mpi", "mpich", "pi.py"))
    error = "ImportError: libmpi.so.12: cannot open shared object file: No such file or directory"
    events = [started, *done(end(2, 1, 50.0, error=error), reason="rank")[1:]]
    diagnosis = of_run(fold_with_catalogue(events)).diagnosis
    assert diagnosis
    assert diagnosis.title == "the MPI that --mpi chose has no libmpi.so.12"
    assert diagnosis.command == "ipexctl install --mpi mpich --like a"


_UNKNOWN = "ModuleNotFoundError: No module named 'blobfile'"


def test_a_module_of_the_current_directory_that_was_not_sent_is_sent_by_the_command_of_the_card() -> None:
    words = ("run", "--ppn", "1", "s/train.py")
    started = e.Started("run", "train.py", HOSTS, words=words)
    warning = e.Message("s/train.py imports blobfile (line 1) of the current directory", "warning", code="local-module")
    events = [started, warning, *done(end(2, 1, 50.0, error=_UNKNOWN), reason="rank")[1:]]
    diagnosis = diagnose(events)
    assert diagnosis.command == "ipexctl run --project . --ppn 1 s/train.py"


@pytest.mark.parametrize(
    ("script", "module"), [("pkg/train.py", "pkg.train"), ("./a/b/c.py", "a.b.c"), ("train.py", ""), ("../a/b.py", "")]
)
def test_a_script_of_a_package_is_started_by_its_dotted_name(script: str, module: str) -> None:
    started = e.Started("run", script.rpartition("/")[2], HOSTS, words=("run", "--ppn", "1", script, "--lr", "3"))
    error = "ImportError: attempted relative import with no known parent package"
    command = diagnose([started, *done(end(2, 1, 50.0, error=error), reason="rank")[1:]]).command
    assert command == (f"ipexctl run --ppn 1 -m {module} --lr 3" if module else "")


@pytest.mark.parametrize(("path", "command"), read_table("reports/files_not_sent"))
def test_a_file_that_was_not_sent_has_the_command_that_sends_it(path: str, command: str) -> None:
    lost = end(2, 1, 50.0, error=f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'")
    command_line = e.Started(
        "run", "train.py", HOSTS, selection_flags=("-f", "lab/hosts"), words=("run", "train.py", "-f", "lab/hosts")
    )
    left_out = {name: f"sub/{name.rstrip('/')}" for name in ("data/tiny/train.bin", "wandb/")} | {
        "vocab.json": "vocab.json",
        "fcu.xyz": "../fcu.xyz",
        "configs/fcu.xyz": "fcu.xyz",
        "README": "../README",
    }
    events = [command_line, e.FilesLeftOut(left_out), *done(lost, reason="rank")[1:]]
    diagnosis = diagnose(events)
    assert (diagnosis.code, diagnosis.command) == ("no-file", command)
    assert ("on this machine" in diagnosis.why) == bool(command)


@pytest.mark.parametrize("path", ["/h/ipexctl/p-1/gen.py", "/h/ipexctl/p-1/train.py"])
def test_a_script_that_was_not_sent_has_the_command_that_sends_it(path: str) -> None:
    error = f"python: can't open file '{path}': [Errno 2] No such file or directory"
    command_line = e.Started("run", "gen.py", HOSTS, words=("run", "gen.py"))
    events = [
        command_line,
        e.FilesLeftOut({"gen.py": "gen.py"}),
        *done(end(2, 1, 50.0, error=error), reason="rank")[1:],
    ]
    diagnosis = diagnose(events)
    assert diagnosis.code == "no-script"
    assert (diagnosis.command == "ipexctl run --exclude '!/gen.py' gen.py") == path.endswith("gen.py")


def test_a_library_of_the_project_that_was_not_sent_has_the_command_that_sends_it_and_has_it_found() -> None:
    words = ("run", "./m", "-f", "lab/hosts")
    command_line = e.Started("run", "./m", HOSTS, selection_flags=("-f", "lab/hosts"), words=words)
    error = "ImportError: libfoo.so: cannot open shared object file: No such file or directory"
    for left_out, why, command in (
        (
            {"lib/libfoo.so": "lib/libfoo.so"},
            "It is on this",
            "run --env 'LD_LIBRARY_PATH={workdir}/lib' --exclude '!/lib/libfoo.so' ./m",
        ),
        ({"lib/": "lib"}, "A package needs a system library", "doctor --verify"),
    ):
        events = [command_line, e.FilesLeftOut(left_out), *done(end(2, 1, 50.0, error=error), reason="rank")[1:]]
        diagnosis = diagnose(events)
        assert diagnosis.code == "library"
        assert diagnosis.why.startswith(why)
        assert diagnosis.command == f"ipexctl {command} -f lab/hosts"


def test_a_process_without_a_rank_is_known_by_how_it_was_started() -> None:
    error = "ValueError: Error initializing torch.distributed: environment variable RANK expected, but not set"
    for words, option in ((("--per-host",), "--per-host"), (("--instances=2",), "--instances"), ((), "")):
        started = replace(STARTED, words=("run", *words, "train.py", "--per-host"))
        _, *failed = done(end(1, 1, error=error), reason="rank")
        diagnosis = diagnose([started, *failed])
        assert diagnosis.why.startswith(f"{option} gives no RANK" if option else "The script")
        assert diagnosis.fix.startswith(f"leave out {option}," if option else "pass the environment on")


def test_a_port_that_several_ranks_listen_on_as_rank_0_is_laid_to_the_line_that_makes_them_so() -> None:
    error = "DistNetworkError: The server socket has failed to listen on any local network address. name: EADDRINUSE"
    started, begun, *failed = done(end(0, 1, error=error), reason="rank")
    for number, inner, known in ((0, False, True), (1, False, False), (0, True, False)):
        changed = e.RendezvousChanged(
            1, "a", "10.0.0.1", "10.0.0.1", "80", line="/w/t.py:4", inner=inner, number=number
        )
        diagnosis = diagnose([started, begun, changed, *failed])
        assert diagnosis.title.startswith("rank 1 came to the rendezvous as rank 0") == known
        assert diagnosis.why.startswith("t.py:4 sets RANK") == known


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("run", "--ppn", "2", "src/train.py"), "ipexctl migrate src/train.py"),
        ((), "ipexctl migrate train.py"),
        (("run", "-m", "pkg.train"), ""),
    ],
)
def test_a_script_for_gpus_has_the_command_that_lists_all_of_it(words: tuple[str, ...], command: str) -> None:
    title = words[-1].rpartition("/")[2] if words else "train.py"
    _, begun, *failed = done(end(1, 1, error="RuntimeError: No CUDA GPUs are available"), reason="rank")
    assert isinstance(begun, e.RunStarted)
    events = [replace(STARTED, title=title, words=words), replace(begun, title=title), *failed]
    diagnosis = diagnose(events)
    assert (diagnosis.code, diagnosis.command) == ("cuda", command)
    assert diagnosis.fix.endswith(":") == bool(command)


def test_the_space_where_the_script_wrote_is_shown_by_the_command_of_a_full_disk() -> None:
    failed = end(1, 1, error="OSError: [Errno 28] No space left on device", room=("/mnt/ckpt", 0))
    diagnosis = diagnose(done(failed, reason="rank"))
    assert diagnosis.command == "ipexctl exec 'df -h /mnt/ckpt'"


def test_a_crash_of_a_program_is_not_laid_to_the_packages_of_python() -> None:
    started, *failed = done(end(1, None, signal=11), reason="rank")
    for stages, suspect in ((("program",), "the program"), (("program", "python"), "libraries"), ((), "libraries")):
        reached = [e.RankStage(1, "b", stage, 100.0) for stage in stages]
        diagnosis = diagnose([started, *failed[:1], *reached, *failed[1:]])
        assert suspect in diagnosis.why
        assert bool(diagnosis.command) == (suspect == "libraries")


def test_what_a_run_is_known_as_stays_when_a_play_goes_on() -> None:
    """Another step behind a run that crashed, or met a full disk, and may fail, was an internal error."""
    full = end(1, 1, error="OSError: [Errno 28] No space left on device", room=("/mnt/ckpt", 0))
    for failed in (end(1, None, signal=11), full):
        events = done(failed, reason="rank")
        assert diagnose([*events, e.Started("command", "echo", ("a",))]) == diagnose(events)


def test_a_crash_whose_backtrace_names_its_line_needs_no_other_build() -> None:
    frames = "#2  0x7f1 in ???\n\tat ./signal/libc_sigaction.c:0\n#3  0x5e2 in heat\n\tat /home/u/heat.f90:30\n"
    output = e.Output(1, "b", "err", f"Backtrace for this error:\n{frames}".encode())
    started, *failed = done(end(1, None, signal=11), reason="rank")
    stage = e.RankStage(1, "b", "program", 100.0)
    for written, fix in (([output], "its backtrace names the line: heat.f90:30"), ([], "a build of it with -g")):
        diagnosis = diagnose([started, failed[0], stage, *written, *failed[1:]])
        assert diagnosis.fix.startswith(fix)


def test_a_process_of_a_rank_that_crashed_needs_no_memory() -> None:
    for name, said in (("SEGV", "native code"), ("KILL", "was killed")):
        error = f"torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIG{name}"
        assert said in diagnose(done(end(1, 1, error=error), reason="rank")).title


def test_a_collective_in_a_finally_is_explained_by_the_exception_that_led_there() -> None:
    error = "impi_torch._launch.ImpiError: impi: the ranks called different collectives: barrier #2 on rank 1, bcast #2"
    before = "KeyError: 'x'\n\nDuring handling of the above exception, another exception occurred:\n\n"
    for trace, title in ((before, "after KeyError: 'x' the rank came"), ("", "the ranks called different collectives")):
        failed = end(1, 1, error=error, traceback=f"{trace}Traceback (most recent call last):\n{error}")
        assert diagnose(done(failed, reason="rank")).title.startswith(title)


def test_a_crash_of_a_recursion_is_not_laid_to_libraries() -> None:
    head = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n"
    for depth, said in ((50, "until its stack was full"), (5, "native code crashed")):
        calls = '  File "a.py", line 7 in walk\n  File "a.py", line 9 in visit\n' * depth
        failed = end(1, None, signal=11, traceback=head + calls + "  ...\n")
        assert said in diagnose(done(failed, reason="rank")).title


def test_a_run_that_lost_a_host_ends_with_the_same_run_without_it() -> None:
    started = replace(STARTED, words=("run", "--ppn", "2", "train.py"), selection_flags=("-f", "lab/hosts"))
    ends = [end(0, None, cause="stopped"), end(1, None, cause="stopped")]
    lost = e.HostFailed(Failure("b", Kind.LOST, "lost (no sign of life for 30 s)", code="lost"))
    report = folded(started, RUN, lost, *ends, e.RunEnded("r1", "lost", "b is lost"))
    command = ["ipexctl", "run", "-f", "lab/hosts", "--limit", "!b", "--ppn", "2", "train.py"]
    assert list_next_commands(None, report) == [command, ["ipexctl", "doctor", "-f", "lab/hosts"]]
    shown = [item.plain for item in format_next_steps(report) if isinstance(item, Line)]
    assert shown == ["hint       why it is lost: ipexctl doctor -f lab/hosts; without it:", shlex.join(command)]
    back = folded(started, RUN, lost, *ends, e.RunEnded("r1", "lost", "b is lost"), e.CleanupChecked("r1", HOSTS, {}))
    assert list_next_commands(None, back) == [["ipexctl", "doctor", "-f", "lab/hosts"]], "it can take part again"


def test_a_rank_that_only_noticed_that_a_host_is_gone_does_not_stand_before_the_loss() -> None:
    """A host was rebooted: another rank's connection was reset before the host counted as lost, and its hint was a
    barrier."""
    lost = e.HostFailed(Failure("b", Kind.LOST, "lost (its guard ended)", code="lost"))
    for error, named in (("RuntimeError: Connection closed by peer [10.0.0.2]:5", None), ("ValueError: x", 0)):
        ends = [end(0, 1, 50.0, error=error), end(1, None, cause="stopped"), e.RunEnded("r1", "lost", "b is lost")]
        report = fold_with_catalogue([STARTED, RUN, ends[0], lost, *ends[1:]])
        run = of_run(report)
        assert (report.exit, run.first, run.diagnosis, run.lost_hosts) == (Exit.LOST, named, None, ("b",))


@pytest.mark.parametrize(("silent_at", "named"), [(101.0, "a"), (150.0, "b")])
def test_a_head_that_this_machine_and_all_hosts_lost_at_once_is_what_was_lost(silent_at: float, named: str) -> None:
    lost = e.HostFailed(Failure("b", Kind.LOST, "lost (no sign of life for 30 s)", code="lost"))
    moments = [
        (90.0, STARTED), (90.0, RUN), (90.0, e.RankStage(0, "a", "torch", 90.0)),
        (111.0, e.HostSilent("a", 11.0)), (171.0, e.HostSilent("a", 0.0)),
        (171.1, e.HostSilent("b", 11.0, silent_at + 11)), (171.1, lost),
        (171.2, end(0, None, cause="stopped")), (171.2, e.RunEnded("r1", "lost", "b is lost")),
        (171.3, e.Ended("run", Exit.OK)),
    ]  # fmt: skip
    report = fold([Stamped(at, event) for at, event in moments])
    assert report.exit is Exit.LOST
    assert of_run(report).lost_hosts == (named,)
    assert of_run(report).detail == {"a": "a lost its network: neither b nor this machine heard of it"}.get(
        named, "b is lost"
    )


def test_an_install_for_the_run_of_some_hosts_says_how_all_get_it() -> None:
    lost = end(2, 1, 50.0, error="ModuleNotFoundError: No module named 'tabulate'")
    started = e.Started("run", "train.py", HOSTS, selection_flags=("-f", "lab/hosts", "--limit", "a,b"))
    report = fold_with_catalogue([started, *done(lost, reason="rank")[1:]])
    shown = [item.plain for item in format_next_steps(report) if isinstance(item, Line)]
    assert shown == [
        "hint       on the hosts of this run; without --limit all of the hostfile have it:",
        "ipexctl install --with tabulate -f lab/hosts --limit a,b",
    ]


def test_a_run_that_lost_a_part_of_it_has_words_before_its_command() -> None:
    ends = [end(0, None, cause="stopped"), end(1, None, cause="stopped")]
    report = folded(STARTED, RUN, *ends, e.RunEnded("r1", "lost", "mpirun's proxy on a ended before its ranks"))
    first, command = [item.plain for item in format_next_steps(report) if isinstance(item, Line)]
    assert (first[:5], command) == ("hint ", "ipexctl doctor")


def test_a_stopped_stall_ends_with_the_command_that_prints_the_stacks() -> None:
    stall = e.Stalled((0, 1), 20.0, "all", {})
    compared = e.StallCompared((), "the ranks are in different collectives: …", ())
    report = folded(STARTED, RUN, stall, compared, e.RunEnded("r1", "stopped", "Ctrl-C"))
    assert list_next_commands(None, report) == [["ipexctl", "logs", "r1", "--stacks"]]
    compared = replace(compared, places=(StallPlace((0, 1)),))  # programs, which have none
    report = folded(STARTED, RUN, stall, compared, e.RunEnded("r1", "stopped", "Ctrl-C"))
    assert list_next_commands(None, report) == [["ipexctl", "logs", "r1"]]


def test_a_full_disk_under_torch_save_is_known_with_what_was_free_on_that_host() -> None:
    for words in (
        "basic_ios::clear: iostream error",
        "[enforce fail at inline_container.cc:664] . unexpected pos 7 vs 5",
    ):
        full = end(2, 1, 50.0, error=f"RuntimeError: {words}")
        disks = (Disk("/opt/env", 5 << 30, "/"), Disk("/root", 700 << 20, "/root"), Disk("/root/x", 700 << 20, "/root"))
        read = e.FactsRead("b", Facts(disks=disks))
        diagnosis = diagnose([read, *done(full, reason="rank")])
        assert diagnosis.title == "a disk or a quota on the host is full"
        assert diagnosis.why.endswith("When the run began, b had 5.0 GiB in /opt/env, 700 MiB in /root/x free.")


def test_a_limit_of_open_files_is_known_with_its_number_on_that_host() -> None:
    short = end(2, 1, 50.0, error="OSError: [Errno 24] Too many open files: 'x'")
    read = e.FactsRead("b", Facts(limits={"nofile": 1024, "nofile_hard": 4096}))
    diagnosis = diagnose([read, *done(short, reason="rank")])
    assert diagnosis.why.endswith(" b allows 4096.")


def excused(*events: e.Event) -> CommandReport:
    started = e.Started("play", "", ("a", "b"))
    return fold([Stamped(float(i), event) for i, event in enumerate((started, *events, e.Ended("play", Exit.OK)))])


def test_what_is_excused_is_neither_a_failure_nor_in_the_exit_code() -> None:
    report = excused(
        e.Started("command", "", ("a", "b")),
        e.HostFailed(Failure("a", Kind.STEP, "it broke")),
        e.StepEnded("b", "check", "failed", "no"),
        e.FindingReported(Finding("X001", "error", ("a",), "odd", "", "")),
        e.FailuresIgnored("shaky"),
        e.Started("command", "", ("a", "b")),
        e.StepEnded("a", "command", "changed"),
    )
    assert report.exit is Exit.OK
    assert [(host.ok, host.changed, host.failed) for host in report.hosts] == [(2, 1, 0), (1, 0, 0)]
    assert report.findings[0].level == "warning"


def test_only_what_failed_since_the_last_step_began_is_excused() -> None:
    report = excused(
        e.Started("command", "", ("a",)),
        e.HostFailed(Failure("a", Kind.STEP, "before")),
        e.Started("command", "", ("b",)),
        e.HostFailed(Failure("b", Kind.STEP, "shaky")),
        e.FailuresIgnored("shaky"),
    )
    assert report.exit is Exit.STEP
    assert [failure.what for failure in report.failures] == ["before"]


@pytest.mark.parametrize("kind", [Kind.UNREACHABLE, Kind.RESIDUE, Kind.RECORD])
def test_hosts_out_of_reach_and_what_is_left_are_never_excused(kind: Kind) -> None:
    report = excused(e.Started("run", "", ("a",)), e.HostFailed(Failure("a", kind, "gone")), e.FailuresIgnored("x"))
    assert report.exit is kind.exit


def test_a_run_that_failed_and_may_is_no_failure_but_what_it_left_is() -> None:
    run: list[Event] = [
        e.Started("run", "", ("a",)),
        e.RunStarted("r1", "a", ("a",), "mpirun"),
        e.RankEnded(0, "a", 1),
        e.RunEnded("r1", "rank"),
    ]
    assert excused(*run).exit is Exit.RANK
    assert excused(*run, e.FailuresIgnored("train")).exit is Exit.OK
    assert excused(*run, e.CleanupChecked("r1", ("a",), {"a": (7,)}), e.FailuresIgnored("train")).exit is Exit.RESIDUE
    again: list[Event] = [
        event if not isinstance(event, e.RunStarted) else e.RunStarted("r2", "a", ("a",), "mpirun") for event in run
    ]
    assert excused(*run, e.FailuresIgnored("train"), *again).exit is Exit.RANK


def fold_with_catalogue(events: Sequence[Event]) -> CommandReport:
    return make_report(fold_state(streams.stamp([*events, e.Ended("run", Exit.OK)], 100.0, 1.0)), read_known_errors)


def diagnose(events: Sequence[Event]) -> Diagnosis:
    diagnosis = of_run(fold_with_catalogue(events)).diagnosis
    assert diagnosis
    return diagnosis


PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:5] Connection closed by peer [10.0.0.2]:1"


@pytest.mark.parametrize("error", [PEER, "ImpiError: impi: allreduce #7: rank 1 left the group without it"])
@pytest.mark.parametrize("later", ["", "training ends\n"])
def test_what_a_rank_caught_before_it_left_the_others_is_named(error: str, later: str) -> None:
    output = b'Traceback (most recent call last):\n  File "t.py", line 6, in train\nValueError: no label\n'
    started, begun, *ends = done(end(0, 1, 50.0, error=error), end(1, 0, 49.0), reason="rank")
    caught = [e.Output(1, "a", "err", output), e.Output(1, "a", "out", later.encode())]
    diagnosis = diagnose([started, begun, *caught, *ends])
    assert diagnosis.title.startswith("rank 1 on a had finished with the group, after an exception") == (not later)
    assert (diagnosis.why == "It wrote ValueError: no label") == (not later)


def test_a_rank_that_called_mpi_abort_is_the_cause_of_what_its_peers_saw() -> None:
    ends = end(0, 1, 49.9, error=PEER), end(2, None, 50.0, abort=7)
    report = fold_with_catalogue(done(*ends, reason="rank"))
    assert (first(report).rank, first(report).abort, report.exit) == (2, 7, Exit.RANK)
    assert describe_rank_end(first(report)) == "called MPI_Abort(7)"
    assert of_run(report).followers == (0,)


@pytest.mark.parametrize(("kills", "may"), [(0, False), (1, True), (None, True)])
@pytest.mark.parametrize(
    "how",
    [{"signal": 9, "status": None}, {"error": "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "}],
)
def test_memory_is_a_cause_of_sigkill_unless_the_kernel_counts_no_kill(
    how: dict[str, object], kills: int | None, may: bool
) -> None:
    ended = end(1, **{"status": 1, "at": 50.0, "kills": kills, **how})  # type: ignore[arg-type]
    diagnosis = diagnose(done(ended, reason="rank"))
    assert ("where memory runs out" in diagnosis.title) == may
    assert ("num_workers" in diagnosis.fix) == may


def test_where_ranks_stood_in_a_stall_is_said_by_keys() -> None:
    places = (StallPlace((1,), "train.py:21"), StallPlace((0, 2, 3), "train.py:30", "all_reduce"))
    stall = e.Stalled((0, 1, 2, 3), 15.0, "all", {}, ends=True)
    ends = (e.RankEnded(3, "b", 1, line="data.py:7"), e.RankEnded(1, "a", None, 15, cause="stopped"))
    report = folded(STARTED, RUN, stall, e.StallCompared((1,), "", places), *ends)
    assert report.run
    assert to_json(report)["run"]["places"] == [
        {"ranks": [1], "line": "train.py:21", "call": ""},
        {"ranks": [0, 2, 3], "line": "train.py:30", "call": "all_reduce"},
    ]
    assert [rank.line for rank in report.run.ranks] == ["train.py:30", "train.py:21", "train.py:30", "data.py:7"]


@pytest.mark.parametrize(("dark", "asked", "limit"), read_table("reports/hosts_out_of_reach", frozen=True))
def test_a_run_refused_for_hosts_out_of_reach_advises_itself_on_the_others(
    dark: Sequence[str], asked: str, limit: str
) -> None:
    words = ("run", "--limit", asked, "train.py")
    started = e.Started("run", "train.py", ("a", "b", "c"), words=words, selection_flags=("-f", "lab"))
    failures = [e.HostFailed(Failure(host, Kind.UNREACHABLE, "refused", advise("doctor"))) for host in dark]
    itself = [["ipexctl", "run", "-f", "lab", "--limit", limit, "train.py"]] if limit else []
    report = folded(started, *failures, exit=Exit.UNREACHABLE)
    assert list_next_commands(None, report) == [*itself, ["ipexctl", "doctor"]]
