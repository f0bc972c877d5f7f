"""Result screens: what stands out, what is left out."""

import io
import re
from dataclasses import replace
from importlib import import_module
from typing import Any, get_args, get_type_hints

import pytest
from rich.console import Console
from rich.padding import Padding

from ipexctl.model import events as e
from ipexctl.model.answers import AnyAnswer, UnknownAnswer, list_answer_types
from ipexctl.model.answers.doctor import DoctorHost, ExplainAnswer, HostFailure
from ipexctl.model.answers.files import FailedTransfer, FetchAnswer, FetchedHost, SyncAnswer, SyncedHost
from ipexctl.model.answers.hosts import HostsAnswer, LabAnswer, LabHost
from ipexctl.model.answers.install import InstallAnswer, VerifiedHost, VerifyAnswer
from ipexctl.model.answers.manage import ListedRun, PsAnswer
from ipexctl.model.answers.plan import DryRun
from ipexctl.model.answers.play import CommandAnswer, CommandOutput, FailedCommand, PlayAnswer, PlayedStep
from ipexctl.model.answers.saved import CompareAnswer, ReportAnswer, RunDifference, RunsAnswer
from ipexctl.model.answers.tools import AccelerateAnswer
from ipexctl.model.answers.tune import TriedLaunch, TuneAnswer
from ipexctl.model.errors import Exit, Failure, Kind, advise
from ipexctl.model.events import Event, Stamped
from ipexctl.model.facts import Facts
from ipexctl.model.reports import Diagnosis, Finding, LostOutput, OutOfMemory, RankOutcome, SeparateWorlds
from ipexctl.show import screens, typeset
from ipexctl.show.answers.play import format_recap
from ipexctl.show.answers.tune import draw_launches, format_answer
from ipexctl.show.pending_failures import select_unexplained
from ipexctl.show.pipe import Pipe
from ipexctl.show.run_screen import _draw_ranks
from ipexctl.show.tables import format_launch_plan
from tests.markers import MARKER
from tests.stopwatch import Stopwatch
from tests.tables import read_table
from tests.unit.show import streams
from tests.unit.show.answers import ANSWERS
from tests.unit.show.streams import fold

RANKS = ("a", "a", "b", "b")


def drawn(items: list[Any], width: int = 80) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, markup=False, emoji=False, highlight=False, color_system=None)
    for item in items:
        console.print(item, crop=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def ending(*events: Event, exit: Exit = Exit.OK, lost: LostOutput | None = None, width: int = 80) -> str:
    story = [e.Started("run", "train.py", ("a", "b")), e.RunStarted("k7", "a", RANKS, "mpirun"), *events]
    report = fold(streams.stamp([*story, e.Ended("run", exit)], step=1.0), lost=lost)
    return drawn([*screens.format_ending(report), *screens.format_next_steps(report)], width)


def ended(rank: int, status: int | None = 0, **more: Any) -> e.RankEnded:
    return e.RankEnded(rank, RANKS[rank], status, at=more.pop("at", streams.START + 100), **more)


WELL = [ended(rank) for rank in range(4)]
STOPPED = [ended(rank, None, signal=15, cause="stopped") for rank in range(4)]
PROVED = e.CleanupChecked("k7", ("a", "b"), {})


def test_a_backend_that_the_script_chose_stands_on_the_card() -> None:
    well = [*WELL, e.RunEnded("k7", "done"), PROVED]
    assert "backend" not in ending(*well)
    assert "  backend  gloo\n0 processes left on 2 hosts" in ending(e.BackendChosen("gloo"), *well)


def test_an_exception_in_a_thread_stands_behind_a_good_end() -> None:
    trace = b'Traceback (most recent call last):\n  File "a.py", line 3, in save\nOSError: [x]\n'
    output = e.Output(1, "a", "err", b"Exception in thread Thread-1 (save):\n" + trace)
    text = ending(output, *WELL, e.RunEnded("k7", "done"), PROVED).replace("\n ", "")
    assert "ended well after 6.0 s, but rank 1 on a had an exception in a thread: OSError: [x]" in text
    stopped = [ended(rank, None, signal=2, cause="stopped") for rank in range(4)]
    text = ending(output, *stopped, e.RunEnded("k7", "stopped", "SIGINT"), PROVED)
    assert "(SIGINT)\n  rank 1 on a had an exception in a thread: OSError: [x]\n" in text, "why it was stopped, perhaps"


def test_the_end_card_repeats_a_stall_that_was_not_overcome() -> None:
    stall = e.Stalled((2,), 60.0, "some", {})
    message = e.Message("no progress for 60 s: rank 2 on b silent", "warning", code="stalled")
    compared = e.StallCompared((2,), "3 of 4 ranks wait in all_reduce, rank 2 on b does not\n  rank 2  data.py:41")
    text = ending(stall, message, compared, *STOPPED, e.RunEnded("k7", "stopped"))
    assert "  stall    no progress for 67 s: rank 2 on b silent\n" in text, "seven more until the end"
    assert "rank 2 on b does not\n             rank 2  data.py:41" in text
    assert "stall" not in ending(stall, message, compared, e.Resumed(), *STOPPED, e.RunEnded("k7", "stopped"))


def test_ranks_that_have_not_met_are_the_first_line_of_a_good_end_until_they_meet() -> None:
    separate = SeparateWorlds("never-met", {"1": 4}, "the ranks have not met", ("for this reason",))
    ended = [*WELL, e.RunEnded("k7", "done")]
    text = ending(e.WorldsCompared(separate), *ended)
    assert "ended well after 6.0 s, but did not work together" in text
    assert text.startswith("! the ranks have not met\n  for this reason\n✓ 4 ranks on 2 hosts ended well after ")
    assert ending(e.WorldsCompared(separate), e.WorldsCompared(None), *ended).startswith("✓ 4 ranks")


def test_many_ranks_are_a_line_a_host() -> None:
    stream = list(streams.run(4, 8, steps=2))
    text = drawn(screens.format_ending(fold(stream)))
    assert "ranks 8-15   xeon02  exit 0  step 2 loss 1.667 rank 8" in text


def test_the_first_failure_has_status_host_time_and_last_words() -> None:
    words = b"".join(b"line %d\n" % n for n in range(40))
    text = ending(e.Output(1, "a", "err", words), ended(1, 3), ended(2, 1, at=streams.START + 101), WELL[0], WELL[3])
    assert "✗ rank 1 on a exited with code 3 after " in text
    assert "(first of 2 that failed)" in text
    assert "  line 20\n" in text
    assert "  line 39\n" in text
    assert "line 19" not in text
    assert "failed too: rank 2 on b" in text


def test_of_an_exception_without_a_message_the_line_that_raised_it_is_shown() -> None:
    call = '  File "/env/lib/python3.11/site-packages/x.py", line {} in f\n    {}\n'
    calls = "".join(call.format(number, "g()") for number in range(50))
    trace = f'Traceback (most recent call last):\n  File "t.py", line 9 in <module>\n    fit()\n{calls}'
    for last, shown in (("AssertionError", True), ("x.EmptyError:", True), ("ValueError: no", False)):
        text = ending(ended(1, 1, traceback=f"{trace}{call.format(50, 'assert n >= 1')}{last}", error=last))
        assert ("line 50 in f" in text, "assert n >= 1" in text, "line 49 in f" in text) == (shown, shown, False)


def test_the_last_words_of_a_rank_neither_begin_nor_end_with_harmless_lines() -> None:
    noise = b"[W1128 03:24:58.4 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n"
    farewell = b"impi: rank 1 ended with exit status 1\nAbort(1) on node 1 (rank 1 in comm 0): application called "
    farewell += b"MPI_Abort(MPI_COMM_WORLD, 1) - process 1\n[cli_1]: readline failed\n"
    words = e.Output(1, "a", "err", noise + b"bad config: no preset\n" + farewell)
    text = ending(words, ended(1, 1), WELL[0])
    assert "bad config: no preset" in text
    assert not [word for word in ("socket", "Abort", "readline", "impi: ") if word in text]
    for ends in ([ended(1, 3)], [*WELL, e.RunEnded("k7", "done"), PROVED]):
        assert "socket" not in ending(e.Output(1, "a", "err", noise), *ends), "nor is one the only one"


def test_a_stack_that_lies_in_libraries_alone_is_shown() -> None:
    frames = "".join(f'  File "/env/lib/python3.11/site-packages/x.py", line {n} in f\n' for n in range(90))
    crash = f"Fatal Python error: Aborted\n\nCurrent thread 0x8f (most recent call first):\n{frames}"
    assert "line 89 in f" in ending(ended(1, None, signal=6, traceback=crash))


def test_an_exit_is_shown_with_its_line_its_words_and_what_the_script_handled() -> None:
    trace = 'Traceback (most recent call last):\n  File "brk.py", line 49, in <module>\nOSError: no sample'
    text = ending(ended(1, 1, error="giving up", traceback=trace, exit_line="brk.py:51"))
    assert "rank 1 on a exited with code 1 by sys.exit at brk.py:51" in text
    assert "  OSError: no sample\n  giving up\n" in text


@pytest.mark.parametrize(("lingered", "sentence"), [(0.2, "exited with code 1 after"), (38.3, "failed after")])
def test_a_rank_that_failed_and_had_to_be_ended_has_not_exited(lingered: float, sentence: str) -> None:
    stopped = e.RunEnded("k7", "stopped", "Ctrl-C")
    text = ending(ended(1, 1, error="ValueError: no", lingered=lingered), stopped)
    assert f"✗ rank 1 on a {sentence}" in text
    assert ("its process did not end by itself for 38.3 s" in text) is (lingered > 1)
    assert "then     the run was stopped after 2.0 s (Ctrl-C)" in text


def test_calls_of_our_hooks_are_not_shown_in_the_traceback_of_a_process_that_the_rank_started() -> None:
    ours = '  File "/h/hooks/_ipexctl_hooks.py", line 78, in call\n    result = own(*args)\n             ^^^^^^^^^^\n'
    trace = (
        f'Traceback (most recent call last):\n  File "a.py", line 4, in work\n    meet()\n{ours}{ours}OSError: in use'
    )
    text = ending(ended(1, 1, traceback=trace))
    assert '  File "a.py", line 4, in work\n      meet()\n  OSError: in use\n' in text


def test_of_a_crash_the_thread_that_crashed_is_shown() -> None:
    threads = (("/h/hooks/_worlds.py", "answer"), ("/h/train.py", "load"))
    others = "".join(
        f'Thread 0x7f (most recent call first):\n  File "{file}", line 2 in {name}\n\n' for file, name in threads
    )
    now = 'Current thread 0x8f (most recent call first):\n  File "/h/hooks/sitecustomize.py", line 2 in call\n'
    now += '  File "a.py", line 7 in f'
    crash = f"Fatal Python error: Aborted\n\n{others}{now}"
    text = ending(ended(1, None, signal=6, traceback=f"{crash}\n\nExtension modules: torch._C (total: 1)\n"))
    assert "  Fatal Python error: Aborted\n\n  Current thread 0x8f (most recent call first):\n    File" in text
    assert ".py, line 2" not in text.replace('"', "")
    assert "Extension modules" not in text
    text = ending(
        ended(1, None, signal=6, traceback=crash.replace('  File "a.py", line 7 in f', "  <no Python frame>"))
    )
    assert "train.py" in text, "all there is to see of it"
    assert "_worlds.py" not in text


@pytest.mark.parametrize(
    ("wrote", "words"),
    [
        ("python: k.c:42: step: Assertion `n > 0' failed.\n", "python: k.c:42: step: Assertion `n > 0' failed.\n"),
        (
            "terminate called after throwing an instance of 'E'\n  what():  7 tiles\nframe #0: f\n\n",
            "terminate called after throwing an instance of 'E'\n    what():  7 tiles\n",
        ),
        ("", ""),
    ],
)
def test_the_words_of_native_code_that_aborts_stand_above_its_stack(wrote: str, words: str) -> None:
    crash = 'Fatal Python error: Aborted\n\nCurrent thread 0x8f (most recent call first):\n  File "a.py", line 7 in f'
    output = e.Output(1, "a", "err", b"step 3\n" * bool(wrote) + wrote.encode())
    text = ending(output, ended(1, None, signal=6, traceback=crash))
    assert f"after 2.0 s\n{words and '  '}{words}  Fatal Python error: Aborted\n" in text


@pytest.mark.parametrize(
    ("wrote", "words"), [("step 3\ntar: x.tar: Cannot open\n", "  step 3\n  tar: x.tar: Cannot open\n"), ("", "")]
)
@pytest.mark.parametrize("known", [True, False])
def test_what_a_failed_command_wrote_stands_above_the_exception(wrote: str, words: str, known: bool) -> None:
    last = "subprocess.CalledProcessError: Command 'tar' returned" if known else "ValueError: x"
    traceback = f'Traceback (most recent call last):\n  File "a.py", line 7 in f\n{last}'
    lines = "".join(f"[rank1]: {line}\n" for line in traceback.splitlines())
    text = ending(e.Output(1, "a", "err", f"{wrote}{lines}".encode()), ended(1, 1, traceback=traceback))
    assert f"after 2.0 s\n{words * known}  Traceback (most recent call last):\n" in text


def test_the_last_words_of_a_failed_command_stay_on_a_small_screen() -> None:
    last = "subprocess.CalledProcessError: Command 'tar' returned"
    traceback = "Traceback (most recent call last):\n" + '  File "a.py", line 7 in f\n' * 16 + last
    lines = "".join(f"[rank1]: {line}\n" for line in traceback.splitlines())
    tar = e.Output(1, "a", "err", f"step 3\ntar: x.tar: Cannot open\n{lines}".encode())
    story = [e.Started("run", "train.py", ("a", "b")), e.RunStarted("k7", "a", RANKS, "mpirun"), tar]
    report = fold(streams.stamp([*story, ended(1, 1, traceback=traceback), e.RunEnded("k7", "rank"), PROVED]))
    out = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None)
    with out.capture() as capture:
        out.print(*screens.format_ending(report))
    assert "\n  tar: x.tar: Cannot open\n  …\n" in capture.get()


@pytest.mark.parametrize("hint", ["a smaller batch", "a smaller batch, fewer ranks there " * 8])
@pytest.mark.parametrize("calls", [4, 12])
def test_who_failed_stays_on_a_screen_of_24_rows(hint: str, calls: int) -> None:
    library = '  File "/opt/env/lib/python3.11/site-packages/torch/nn/module.py", line 1775, in _wrapped_call'
    call = f"{library}\n    return self._call_impl(*args, **kwargs)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
    own = '  File "/root/ipexctl/a-project-with-a-long-name-0a1b2c3d/train.py", line 63, in main\n    open(PATH)\n'
    last = "OSError: " + "a sentence that does not end " * 3
    traceback = (
        f"Traceback (most recent call last):\n{own}    ^^^^\n{calls * call}Extension modules: {'torch, ' * 40}\n{last}"
    )
    failed = ended(1, 1, traceback=traceback, error=last)
    story = [e.Started("run", "train.py", ("a", "b")), e.RunStarted("k7", "a", RANKS, "mpirun"), failed, *WELL[2:]]
    report = fold(streams.stamp([*story, e.RunEnded("k7", "rank"), PROVED, e.Ended("run", Exit.RANK)], step=1.0))
    assert report.run
    known = Diagnosis("x", "a title of some length that says what it is known as", f"{'Why it is so. ' * 9}", hint)
    report = replace(report, run=replace(report.run, diagnosis=known), saved="/home/me/.local/state/ipexctl/runs/k7")
    place = replace(report, selection_flags=("-f", "/home/me/.local/state/ipexctl/lab/hostfile"))
    items = [*screens.format_ending(place), *screens.format_saved_path(place), *screens.format_next_steps(place)]
    out = io.StringIO()
    console = Console(file=out, width=80, height=24, force_terminal=True, color_system=None, highlight=False)
    for item in items:
        console.print(item, crop=False)
    lines = [part for line in out.getvalue().splitlines() for part in re.findall(".{1,80}", line.rstrip() or " ")]
    assert "✗ rank 1 on a exited with code 1" in "\n".join(lines[-22:])
    assert "OSError: a sentence" in out.getvalue()
    if len(hint) < 40:
        assert 'train.py", line 63, in main' in out.getvalue()
        assert "site-packages" not in out.getvalue()
    piped = Console(file=io.StringIO(), width=1000)
    with piped.capture() as capture:
        piped.print(*items)
    assert 'train.py", line 63, in main' in capture.get(), "where no screen bounds the lines, too"


def test_the_exception_stands_above_the_end_of_a_message_of_many_lines() -> None:
    last = "ValueError: a bad loc\n" + "\n".join(f"tensor {n}" for n in range(40))
    failed = ended(
        1, 1, traceback=f'Traceback (most recent call last):\n  File "a.py", line 3 in f\n{last}', error=last
    )
    assert " s\n  ValueError: a bad loc\n  …\n  tensor 11\n" in ending(failed)


@pytest.mark.parametrize(
    ("end", "output"),
    [
        ({"signal": 11}, "was killed by SIGSEGV (signal 11)"),
        ({"signal": 9}, "was killed by SIGKILL (signal 9)"),
        ({"signal": 4}, "was killed by SIGILL (signal 4)"),
        ({"signal": 9, "error": "killed", "oom": OutOfMemory(3, 4)}, "was killed (out of memory: 3 B of 4 B"),
        ({"abort": 7}, "called MPI_Abort(7)"),
    ],
)
def test_signals_are_named_and_an_unknown_failure_names_the_log(end: dict[str, Any], output: str) -> None:
    text = ending(ended(1, None, **end), *[WELL[n] for n in (0, 2, 3)], e.RunEnded("k7", "rank"), width=120)
    assert f"rank 1 on a {output}" in text
    assert text.endswith("hint       all that rank 1 wrote:\nipexctl logs k7 --rank 1")


@pytest.mark.parametrize(
    ("reason", "output"),
    [
        ("lost", "the run ended because a part of it was lost,"),
        ("limit", "the run reached its limit"),
        ("launch", "the launch failed"),
    ],
)
def test_a_run_that_ended_otherwise_says_why(reason: Any, output: str) -> None:
    text = ending(*STOPPED, e.RunEnded("k7", reason, "node b is dark\nsince noon"))
    assert f"✗ {output} after" in text
    assert "  node b is dark\n  since noon" in text
    assert "by us: ranks 0-3" in text


def test_the_headline_of_a_run_that_lost_a_host_names_it() -> None:
    lost = e.HostFailed(Failure("b", Kind.LOST, "lost (no sign of life for 15 s)"))
    assert "the run ended because b was lost, after" in ending(lost, e.RunEnded("k7", "lost", "b lost"))


def test_a_run_that_was_ended_for_a_stall_has_its_headline() -> None:
    stall = e.Stalled((0, 1, 2, 3), 15.0, "all", {}, ends=True)
    compared = e.StallCompared((2,), "rank 2 on b does not")
    text = ending(stall, compared, *STOPPED, e.RunEnded("k7", "limit", "no progress for 15 s"))
    assert "✗ the run was ended because it stalled, after" in text
    assert text.endswith("hint       where the ranks stood:\nipexctl logs k7 --stacks")


def test_a_launch_that_failed_before_there_was_a_run_lasted_no_time() -> None:
    events = [e.Started("run", "train.py", ("a",)), e.RunEnded("k7", "launch", "no mpirun"), e.Ended("run", Exit.LOST)]
    text = drawn(screens.format_ending(fold(streams.stamp([*events]))))
    assert text.startswith("✗ the launch failed\n  no mpirun")


def test_ranks_whose_end_nobody_saw_are_named() -> None:
    text = ending(WELL[0], WELL[1], ended(2, None, cause="lost"), e.RunEnded("k7", "lost"))
    assert "end not observed: ranks 2-3 on b" in text


def test_what_is_left_running_is_named_with_host_and_process() -> None:
    text = ending(*WELL, e.RunEnded("k7", "done"), e.CleanupChecked("k7", ("a", "b"), {"b": (7, 8)}, ("a",)))
    assert "✗ 2 processes left on b: 7 8" in text
    assert text.endswith("\nipexctl stop --orphans k7")
    assert "! could not look: a" in text
    assert "0 processes" not in text


def test_a_run_that_was_let_go_says_how_to_come_back() -> None:
    assert ending() == "run k7 goes on: 4 ranks on 2 hosts\nipexctl attach k7"


def test_a_command_that_a_failure_advises_is_no_further_step() -> None:
    report = fold(streams.stamp([e.Started("run", "t.py", ("a",)), e.RunStarted("k7", "a", ("a",), "mpirun")]))
    hint = advise("attach", "k7", text="this looks again:")
    text = drawn(screens.format_next_steps(report, hints=[hint]))
    assert (text.count("ipexctl attach k7"), "this looks again" in text) == (1, True)


def test_a_service_that_goes_on_says_where_it_is_asked_and_how_it_ends() -> None:
    words = ("see https://pytorch.org/docs/stable", "the API is at http://10.0.0.5:8000/v1", "replica 0 is up")
    lines = [f"{line}\n".encode() for line in words]
    text = ending(*(e.Output(0, "a", "out", line) for line in lines))
    assert text.splitlines()[1:] == [
        "  address  http://10.0.0.5:8000/v1", "hint       end it: ipexctl stop k7; watch it:", "ipexctl attach k7"
    ]  # fmt: skip


def test_bytes_that_were_not_stored_are_counted_per_rank() -> None:
    lost = LostOutput(12, {"3": 12}, 1, (), "no space left on device")
    assert "! not stored: 12 bytes of rank 3, 1 event (no space left on device)" in ending(lost=lost)


@pytest.mark.parametrize("explained", [True, False])
def test_a_host_that_could_not_be_looked_at_is_reported_once_and_counted_once(explained: bool) -> None:
    what = "connection refused (10.0.0.3:22)"
    hosts = [
        DoctorHost("a", streams.facts()),
        DoctorHost("b", None, failure=HostFailure(Kind.UNREACHABLE, what, "refused")),
    ]
    finding = Finding("SSH001", "error", ("b",), f"cannot be reached: {what}", fix="ssh b")
    value = streams.checked(hosts, [finding] if explained else [])
    text = drawn(screens.format_answer(value), 100)
    assert ("✗ nothing is known of b" in text) != explained
    assert ("E  SSH001  b  cannot be reached: connection refused (10.0.0.3:22)" in text) == explained
    assert text.endswith("not fit    1 host could not be probed")
    known = Failure("b", Kind.UNREACHABLE, what)
    others = [Failure("b", Kind.STEP, "no space left"), Failure("a", Kind.UNREACHABLE, what)]
    assert select_unexplained([known, *others], value) == ([] if explained else [known]) + others


def test_facts_that_are_not_known_are_question_marks() -> None:
    text = drawn(screens.format_answer(streams.checked([DoctorHost("a", Facts(arch="x"))])), 100)
    assert text.splitlines()[1].split() == ["a", "?", "?", "?", "?", "?", "none"]


def test_fit_is_not_green_with_warnings() -> None:
    warning = Finding("NET004", "warning", ("a",), "packets of 9000 bytes do not pass")
    for findings, colour in (([], "\x1b[32m"), ([warning], "\x1b[33m")):
        out = io.StringIO()
        console = Console(file=out, width=80, force_terminal=True, color_system="standard")
        console.print(screens.format_answer(streams.checked([DoctorHost("a", streams.facts())], findings))[-1])
        assert f"fit        {colour}" in re.sub(r"\x1b\[0m|\x1b\[2m", "", out.getvalue())


def test_outputs_of_a_command_that_are_equal_are_reported_once() -> None:
    rows = [CommandOutput(f"n{n}", 0, "up [bold]\n", "") for n in range(3)]
    rows.append(CommandOutput("odd", 2, "", "no \x1b[2J\n"))
    text = drawn(screens.format_answer(CommandAnswer((*rows, FailedCommand("dark", "x")))))
    assert text == "✓ n[0-2] (3)\n  up [bold]\n✗ odd exit 2\n  no \\x1b[2J"


def test_no_step_of_a_dry_run_is_marked_as_done() -> None:
    value = PlayAnswer("demo", (PlayedStep("look", "run", 0), PlayedStep("put", "sync", 4)), False, {}, dry=True)
    assert drawn(screens.format_answer(value)) == "- look\n✗ put  exit 4"


@pytest.mark.parametrize(
    "value", [DryRun("a\nb\n"), SyncAnswer(True, (), "a\nb\n"), InstallAnswer((), {}, check=True, plan="a\nb")]
)
def test_a_dry_run_shows_the_plan_and_nothing_else(value: AnyAnswer) -> None:
    assert drawn(screens.format_answer(value)) == "a\nb"


@pytest.mark.parametrize("width", [40, 160])
def test_the_path_of_a_page_is_whole_beside_its_name(width: int) -> None:
    path = "/home/me/.local/state/ipexctl/runs/1122-102011-a3f2/report.html"
    assert drawn(screens.format_answer(ReportAnswer(path, 33000, ())), width).splitlines() == [
        f"page       {path}",
        "size       32 KiB",
    ]


PLAN = """\
t.py: 2 ranks on 1 host, backend gloo, Intel MPI 2021.18.1, which is written out here to be longer than a line

rank  host   local  NUMA  CPUs  workers  interface
0     node2  0      0     0     -        eth0 10.77.0.12
1     node2  1      0     1     -        eth0 10.77.0.12

each rank:
  /root/.local/share/ipexctl/env.d/torch2.8.0-022e455bfc/bin/python -u t.py; true

on all hosts, for the ranks:
  ACCELERATE_TORCH_DEVICE=cpu    # else Accelerate moves models away from IPEX's weights
"""


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_plan_of_a_run_breaks_no_word_and_keeps_rank_host_and_cpus(width: int) -> None:
    lines = drawn(format_launch_plan(PLAN), width).splitlines()
    (command,) = [line for line in lines if line.startswith("  /root")]
    assert command.endswith("python -u t.py; true")
    assert all(len(line) <= width for line in lines if line != command)
    assert " ".join(" ".join(lines).split()[:19]) == " ".join(PLAN.split()[:19])
    (head,) = [line.split() for line in lines if line.startswith("rank  ")]
    assert head[:2] == ["rank", "host"]
    assert "CPUs" in head
    assert ("interface" in head) == (width > 40)
    reason = "cpu    # else Accelerate moves models away from IPEX's weights"
    assert lines[-1].endswith("IPEX's weights")
    assert any(line.endswith(reason) for line in lines) == (width == 160)


def test_logs_say_nothing_of_how_the_run_goes() -> None:
    """They read outputs: whether the run goes on is known to the command alone."""
    story = [e.Started("logs", "", ()), e.RunStarted("k7", "a", RANKS, "mpirun"), e.Ended("logs", Exit.OK)]
    report = fold(streams.stamp(story))
    assert drawn([*screens.format_ending(report), *screens.format_next_steps(report)]) == ""


LONG = "echo '[127.0.0.1]:43999 ssh-ed25519 " + "A" * 68 + "' >> '/home/me/.ssh/known hosts'"


@pytest.mark.parametrize("width", [40, 80, 160])
def test_what_is_copied_is_never_broken(width: int) -> None:
    line = "mpirun -n 8 " + "-genv VIRTUAL_ENV=/home/me/env " * 8 + "train.py"
    assert drawn(screens.format_answer(DryRun(f"{line}\n")), width) == line
    assert drawn(screens.format_answer(HostsAnswer("hosts", (), f"{line}\nb\n")), width) == f"{line}\nb"
    assert f"  {line}\n" in drawn(
        screens.format_answer(CommandAnswer((CommandOutput("a", 0, f"{line}\nx\n", ""),))), width
    )
    path = "/home/me/" + "deep/" * 40
    assert f"saved      {path}" in drawn(screens.format_saved_path(replace(fold([]), saved=path)), width)
    fix = f"if it is right: {LONG}   or, for all hosts: --accept-new-host-keys"
    finding = Finding("SSH002", "error", ("b",), "has no trusted host key: unknown host key", fix=fix)
    text = drawn(screens.format_answer(streams.checked([], [finding])), width)
    assert LONG in text
    failure = Failure("b", Kind.UNREACHABLE, "unknown host key", fix)
    assert LONG in drawn(typeset.format_hint(failure.hint or ""), width)
    hint = drawn(typeset.format_hint(advise("install", "--venv", path, text="or:")), width)
    assert hint.endswith(f"\nipexctl install --venv {path}")


def test_a_table_that_does_not_fit_has_nothing_broken() -> None:
    path = "/srv/" + "deep/" * 12
    rows = [{"name": f"n{n}", "note": "two words", "path": path} for n in range(2)]
    assert drawn(screens.format_answer(UnknownAnswer({"rows": rows})), 60).splitlines()[1] == f"n0    two words  {path}"
    rows = [{"name": "n0", "path": path, "note": "two words"}]
    assert drawn(screens.format_answer(UnknownAnswer({"rows": rows})), 60).splitlines() == [
        *["name  n0", f"path  {path}", "note  two words"]
    ]
    assert drawn(screens.format_answer(UnknownAnswer({"rows": rows})), 100).splitlines()[0].split() == [
        "name",
        "path",
        "note",
    ]
    rows = [{"name": "n0", "note": "a b " * 9}]
    assert drawn(screens.format_answer(UnknownAnswer({"rows": rows})), 40).splitlines()[1:] == [
        *["n0    a b a b a b a b a b a b a b a b a", "      b"]
    ]


def test_long_texts_and_many_columns_of_somebody_elses_record_take_no_time() -> None:
    """A hint of 1 MiB, and 20,000 rows each with a column of its own, held `replay` for minutes."""
    watch = Stopwatch()
    assert drawn(typeset.format_hint("ab " * (1 << 18)), 80).count("ab") == 1 << 18
    assert len(drawn(screens.format_answer(UnknownAnswer({"x": [{f"k{n}": n} for n in range(5000)]})), 80)) > 5000
    assert watch.read() < 4


def test_a_study_without_a_measurement_names_no_figure() -> None:
    answer = TuneAnswer("t.py", "", (), None, 0, 0.0, 0.0, False, "no other launch was tried", 1, 3.0, 300.0)
    assert str(format_answer(answer)[1]) == "1 run in 3.0 s of 5 m 00 s"


def test_answers_of_somebody_elses_record_neither_fail_nor_steer_the_terminal() -> None:
    """An escape sequence headed a comparison raw; the others were internal errors."""
    differs = RunDifference("\x1b]0;x\x07", "n", ())
    assert "\x1b" not in drawn(screens.format_answer(CompareAnswer((), (differs,), ())), 80)
    assert drawn(screens.format_answer(DryRun("the plan", dry=False)), 80) == "the plan"
    tried = [TriedLaunch("a", {}, 1, None, ratio, None, None, False, "", "") for ratio in (1e308, -1e308)]
    assert drawn([*draw_launches(80, tried)], 80).count("a") == 2


def test_the_story_of_a_finding_is_broken_anew_at_each_width() -> None:
    value = ExplainAnswer("X", "X  a host\n\none two\nthree four\n\nfix: do --it\n\nmet by:\n  a/b\n  c/d")
    assert drawn(screens.format_answer(value), 12).splitlines()[2:4] == ["one two", "three four"]
    assert drawn(screens.format_answer(value), 80).splitlines()[2:] == [
        *["one two three four", "", "fix: do --it", "", "met by:", "  a/b", "  c/d"]
    ]


def test_sync_and_fetch_say_how_much_went_where() -> None:
    sent = SyncedHost("lab0", "/home/me/{x}", True, 3, 1200, 1)
    same = SyncedHost("lab2", "/home/me/{x}", False, 0, 0, 0)
    more = replace(same, host="lab3", changed=True), FailedTransfer("lab4", "no space", "disk")
    hosts = (sent, replace(sent, host="lab1"), same, *more)
    assert drawn(screens.format_answer(SyncAnswer(False, hosts))).splitlines() == [
        "✓ lab[0-1]  3 files, 1.2 KiB to /home/me/{x}, 1 removed",
        "✓ lab2  nothing to do, /home/me/{x} is the same",
        "✓ lab3  directories only, to /home/me/{x}",
    ]
    counts = {"lab0": (1, 20, 0), "lab1": (1, 20, 0), "lab2": (0, 0, 2), "lab3": (0, 0, 0)}
    came = tuple(FetchedHost(name, f"out/{name}", *each) for name, each in counts.items())
    assert drawn(screens.format_answer(FetchAnswer(False, came))).splitlines() == [
        "✓ lab[0-1]  1 file, 20 B into out/lab[0-1]",
        "✓ lab2  nothing to do, 2 files the same in out/lab2",
        "- lab3  nothing there",
    ]


def test_verify_names_the_stack_once() -> None:
    stack = replace(MARKER.stack, name="torch 2.8.0 + ipex 2.8.0, Python 3.11")
    hosts = tuple(VerifiedHost(name, "ab12", stack) for name in ("a", "lab0", "lab1"))
    text = drawn(screens.format_answer(VerifyAnswer(hosts, {})))
    assert text == "✓ a, lab[0-1]  torch 2.8.0 + ipex 2.8.0, Python 3.11: complete and the same"
    text = drawn(screens.format_answer(VerifyAnswer(hosts, {"a": "torch is 2.9.0, not 2.8.0"})))
    assert text.splitlines()[0] == "✗ a  torch 2.8.0 + ipex 2.8.0, Python 3.11"
    value = VerifyAnswer((VerifiedHost("a", None, None),), {"a": "no environment at /x"})
    assert drawn(screens.format_answer(value)) == ""  # told as a failure


def test_a_program_reads_a_line_for_each_saved_run() -> None:
    answer = next(value for name, _, _, value in ANSWERS if name == "runs")
    assert isinstance(answer, RunsAnswer)
    assert any(run.cause for run in answer.runs)
    out = io.BytesIO()
    typeset.print_items(typeset.make_console(Pipe(out)), Pipe(out), screens.format_answer(answer))
    _, *lines = out.getvalue().decode().splitlines()
    assert [line.split()[0] for line in lines] == [run.name for run in reversed(answer.runs)]
    assert all(line.endswith(run.cause or run.title) for line, run in zip(lines, reversed(answer.runs), strict=True))


def test_the_output_of_a_host_is_one_object_however_many_lines_it_has() -> None:
    """A mebibyte of newlines took a minute and 700 MB with one for each."""
    items = screens.format_answer(CommandAnswer((CommandOutput("a", 0, "\n" * 1000 + "x\n", ""),)))
    assert len(items) == 2
    assert drawn(items) == "✓ a" + "\n" * 1001 + "  x"


def test_a_run_that_no_watcher_had_did_not_reach_its_time_limit() -> None:
    row = ListedRun("r", "ended", "train.py", 1, ("a",), "a", "2026-11-29 14:42:11", "me@desk", 0, "limit")
    assert "ended (limit)" in drawn(screens.format_answer(PsAnswer((row,), (), ("a",), ())))


def test_no_runs_are_reported_as_such() -> None:
    value = PsAnswer((), (), ("a", "b"), ())
    assert drawn(screens.format_answer(value)) == "no runs of this account on these 2 hosts"
    assert (
        drawn(screens.format_answer(replace(value, unreachable=("b",))))
        == "no runs of this account on the 1 host that answered"
    )
    assert drawn(screens.format_answer(replace(value, unreachable=("a", "b")))) == ""


@pytest.mark.parametrize("value", read_table("screens/answers_of_other_versions_crash_nothing"))
def test_answers_of_other_versions_crash_nothing(value: dict[str, Any]) -> None:
    drawn(screens.format_answer(UnknownAnswer(value)))


def test_each_kind_of_answer_has_a_screen() -> None:
    """A text, a plan, rows, or a module of its name. `accelerate config --file` has no text to print."""
    elsewhere = {*screens._ROWS, *screens._PLANS, "dry-run", "run-plan"}
    for kind, answer in list_answer_types().items():
        text = get_type_hints(answer).get(screens._TEXTS.get(kind, ""), None)
        if kind not in elsewhere and text is not str:
            module = import_module(f"ipexctl.show.answers.{answer.__module__.rpartition('.')[2]}")
            shown = next(iter(get_type_hints(module.format_answer).values()))
            assert answer in (get_args(shown) or (shown,)), kind
    page = screens.format_answer(AccelerateAnswer("1.15.0", 1, 1, "today.yaml"))
    assert "today.yaml" in drawn(page)


def test_hosts_are_counted_after_playbooks_only() -> None:
    report = fold(streams.stamp([e.Started("install", "", ("n0",)), e.StepEnded("n0", "look", "ok")]))
    assert not drawn(screens.format_ending(report), 80)
    assert drawn(screens.format_ending(replace(report, verb="play", refused="a later step")), 80)


def test_a_plan_is_broken_between_words_and_hangs_below_its_label() -> None:
    note = "note         not torch 2.7.0: its index does not answer; taking torch 2.8.0"
    assert drawn(screens.format_answer(DryRun(f"{note}\nlab[0-1]  build: nothing is installed")), 40).splitlines() == [
        "note         not torch 2.7.0: its index",
        "             does not answer; taking",
        "             torch 2.8.0",
        "lab[0-1]  build: nothing is installed",
    ]


def test_a_recap_of_many_hosts_joins_equal_rows() -> None:
    stream: list[Event] = [e.Started("play", "", ())]
    stream += [e.StepEnded(f"n{n:03d}", "sync", "failed" if n == 7 else "changed") for n in range(100)]
    report = fold(streams.stamp(stream))
    lines = drawn(format_recap(report.hosts), 100).splitlines()
    assert len(lines) == 2
    assert "n[000-006,008-099]" in lines[0] + lines[1]
    assert sum("failed=1" in line and line.startswith("✗ n007") for line in lines) == 1


def test_every_screen_is_made_of_text_that_was_looked_at() -> None:
    """Whatever a hostile stream holds, no screen has a control character or a style that came from it."""
    stream: list[Stamped] = list(streams.hostile())
    answers = [stamped.event.value for stamped in stream if isinstance(stamped.event, e.Answer)]
    items = screens.format_ending(fold(stream))
    findings = [stamped.event.finding for stamped in stream if isinstance(stamped.event, e.FindingReported)]
    evil = findings[0].hosts[0]
    items += screens.format_answer(answers[0])
    items += screens.format_answer(streams.checked([DoctorHost(evil, Facts(uarch=evil))], findings))
    items += screens.format_answer(LabAnswer(True, evil, evil, hosts=(LabHost(evil, evil, 22, True, 1, evil),)))
    text = drawn([Padding(item, 0) for item in items], 200)
    assert not any(ord(char) < 32 and char != "\n" for char in text)
    assert "xe\\x1b[2Jon[/bold]\\u202e" in text


@pytest.mark.parametrize("width", [36, 40, 80])
def test_a_long_last_line_never_takes_the_place_of_rank_host_and_exit(width: int) -> None:
    hosts = ("node0", "a-very-long-host-name-of-a-cluster.example.org")
    ranks = tuple(RankOutcome(n, host, "ok", status=0, tail="w" * 500) for n, host in enumerate(hosts))
    pipe = Pipe(raw := io.BytesIO())
    typeset.make_console(pipe, width).print(typeset.AtWidth(_draw_ranks, ranks))
    lines = raw.getvalue().decode().splitlines()
    assert len(lines) == 2
    for number, line in enumerate(lines):
        assert len(line) <= width
        assert re.match(rf"  rank {number}  {hosts[number][:8]}.*  exit 0", line)
    assert ("wwww" in lines[0]) == (width == 80)
