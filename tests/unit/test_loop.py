"""The one loop: how a story that is broken off ends."""

import json
import stat
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from ipexctl import loop
from ipexctl.act.context import Context, run_on_hosts
from ipexctl.decide.launch.accelerate import require_accelerate
from ipexctl.decide.planning.install import ANOTHER_PATH
from ipexctl.model import events as e
from ipexctl.model.answers import UnknownAnswer
from ipexctl.model.errors import Exit, Failure, Interrupted, Kind, UsageError, advise
from ipexctl.model.events import Answer, Ended, Event, HostFailed, Message, RunStarted, Started, StepEnded, StepStarted
from ipexctl.model.hosts import Command, Host, Link, LinkError
from ipexctl.protocol.hooks import RAISED
from ipexctl.show.sinks import Plain
from ipexctl.verbs.run.watch import wrap_internal_errors


@pytest.mark.parametrize(
    ("acting", "message"),
    [(True, "interrupted: node0 partly done; type the same command again to go on"), (False, "interrupted")],
)
def test_a_command_that_is_broken_off_says_how_to_go_on_where_something_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], acting: bool, message: str
) -> None:
    monkeypatch.setattr(loop, "get_state_directory", lambda: tmp_path)
    monkeypatch.setattr(loop, "get_cache_directory", lambda: tmp_path)

    def story(_: object) -> Generator[Event, None, Any]:
        yield Started("sync", "", ("node0", "node1"))
        yield StepStarted("node0", "send")
        yield StepEnded("node0", "send", "changed")
        raise Interrupted

    assert loop.run_command(story, loop.OutputOptions(output="plain"), acting=acting) is Exit.INT
    assert capsys.readouterr().err.splitlines()[-1] == message


# faults of ours ---------------------------------------------------------------------------------------------------

Workflow = Generator[Event, None, Any]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loop, "get_state_directory", lambda: tmp_path / "state")
    monkeypatch.setattr(loop, "get_cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "state"


def run_command(workflow: Callable[[Context], Workflow], *, acting: bool = False) -> Exit:
    return loop.run_command(workflow, loop.OutputOptions(output="plain"), acting=acting)


def run_events(*events: Event, acting: bool = False) -> Exit:
    """A command of which no more is known than these."""

    def workflow(_: Context) -> Workflow:
        yield from events

    return run_command(workflow, acting=acting)


def decide_the_launch() -> None:
    raise KeyError("planted \x1b[2J")


def begin(_: Context) -> Workflow:
    yield Started("run", "train.py", ("node0",))
    yield StepStarted("node0", "probe")
    yield StepEnded("node0", "probe")


def test_an_exception_in_a_decision_ends_with_70(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def workflow(context: Context) -> Workflow:
        yield from begin(context)
        decide_the_launch()

    assert run_command(workflow, acting=True) is Exit.INTERNAL
    (saved,) = (state / "runs").iterdir()
    log = saved / "debug.log"
    sentence, hint = capsys.readouterr().err.splitlines()[-2:]
    assert sentence == r"error: internal error in run: KeyError: 'planted \x1b[2J'"
    assert hint.split() == ["hint:", "the", "traceback", "is", "in", str(log)]
    text = log.read_text()
    assert "in decide_the_launch" in text
    assert "StepEnded(host='node0', step='probe'" in text
    assert "\x1b" not in text
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    report = json.loads((saved / "report.json").read_bytes())
    assert report["exit"] == 70
    assert report["failures"] == []  # of no host


@pytest.mark.parametrize("begun", [True, False])
def test_a_path_that_the_system_refuses_is_no_fault_of_ours(
    state: Path, capsys: pytest.CaptureFixture[str], begun: bool
) -> None:
    def workflow(context: Context) -> Workflow:
        if begun:
            yield from begin(context)
        Path("x" * 400).stat()

    assert run_command(workflow) is Exit.INPUT
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert sentence == f"error: {'x' * 300}… cannot be used: file name too long"


def test_a_current_directory_that_has_been_removed(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    def workflow(context: Context) -> Workflow:
        yield from begin(context)
        Path.cwd()

    assert run_command(workflow) is Exit.INPUT
    assert "error: the current directory has been removed\n  hint: cd ~\n" in capsys.readouterr().err


def test_a_refusals_hint_names_hosts_and_environment(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def workflow(_: Context) -> Workflow:
        yield Started("run", "train.py", ("node0",), selection_flags=("-f", "lab/hosts", "--venv", "/x"))
        require_accelerate({})

    assert run_command(workflow) is Exit.STEP
    assert "hint: ipexctl install --with accelerate -f lab/hosts --venv /x" in capsys.readouterr().err


def test_an_exception_before_the_first_event_is_logged(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def workflow(_: Context) -> Workflow:
        decide_the_launch()
        yield Ended("hosts", Exit.OK)

    assert run_command(workflow) is Exit.INTERNAL
    assert "in decide_the_launch" in (state / "debug.log").read_text()
    assert str(state / "debug.log") in capsys.readouterr().err


def test_an_exception_in_a_screen_ends_with_70_and_the_workflow_in_order(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def workflow(context: Context) -> Workflow:
        try:
            yield from begin(context)
            yield Ended("run", Exit.OK)
        finally:
            ended.append(True)

    def draw_step(self: Plain, stamped: Any, _: object) -> None:
        if isinstance(stamped.event, StepEnded):
            raise TypeError("planted")

    monkeypatch.setattr(Plain, "handle_event", draw_step)
    assert run_command(workflow, acting=True) is Exit.INTERNAL
    assert ended == [True]
    (saved,) = (state / "runs").iterdir()
    assert "in draw_step" in (saved / "debug.log").read_text()
    assert "error: internal error in run: TypeError: planted" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["closing", "report"])
def test_an_exception_at_the_end_ends_with_70(where: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def workflow(context: Context) -> Workflow:
        yield from begin(context)
        yield Ended("run", Exit.OK)

    def fail(*_: object, **__: object) -> None:
        raise ValueError("planted")

    if where == "closing":
        monkeypatch.setattr(Plain, "close", fail)
    else:
        monkeypatch.setattr("ipexctl.loop.make_report", fail)
    assert run_command(workflow, acting=True) is Exit.INTERNAL
    (saved,) = (state / "runs").iterdir()
    assert "ValueError: planted" in (saved / "debug.log").read_text()
    assert (saved / "report.json").is_file()


def test_an_exception_in_a_session_ends_the_others(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Event] = []

    def ask_session(link: Link, _: object) -> None:
        if link.host.name == "node1":
            link.run(Command(("true",)))
            raise AttributeError("planted")
        link.run(Command(("sleep", "1000"), timeout=1000.0))

    def workflow(context: Context) -> Workflow:
        yield Started("install", "", ("node0", "node1"))
        hosts = [Host(name, "localhost", vars={"lab": "test", "local": "yes"}) for name in ("node0", "node1")]
        for event in run_on_hosts(context, hosts, "install", ask_session):
            events.append(event)
            yield event
        yield Ended("install", Exit.OK)

    assert run_command(workflow) is Exit.INTERNAL
    assert not [event for event in events if isinstance(event, HostFailed)]
    text = (state / "debug.log").read_text()
    assert "in ask_session" in text
    assert "node1: step 'install' raised AttributeError('planted')" in text
    assert "node1: status 0 after" in text
    assert "node0: status 143 after" in text
    assert "internal error in install: AttributeError: planted" in capsys.readouterr().err


def test_a_run_no_longer_watched_is_named_with_commands(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def workflow(_: Context) -> Workflow:
        yield Started("run", "train.py", ("node0",), selection_flags=("-f", "my hosts", "--venv", "/x"))
        with wrap_internal_errors("r1"):
            yield RunStarted("r1", "node0", ("node0",), "train.py")
            decide_the_launch()

    assert run_command(workflow) is Exit.INTERNAL
    err = capsys.readouterr().err
    assert "internal error in run: KeyError" in err
    assert "hint: run r1 may still be running; this watches it, and Ctrl-C there ends it:\n" in err
    assert "ipexctl attach r1 -f 'my hosts'\n" in err


def test_the_command_of_a_message_has_the_users_options(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = Started("attach", "k7", ("node0",), selection_flags=("-f", "my hosts"))
    left = Message(advise("attach", "k7", text="the rest is on the head; this reads it:"), "warning", code="left")
    assert run_events(started, left, Ended("attach", Exit.OK)) is Exit.OK
    assert (
        capsys.readouterr().err
        == "k7\nwarning: the rest is on the head; this reads it:\nipexctl attach k7 -f 'my hosts'\n"
    )


def test_a_stall_says_what_the_exception_of_a_thread_is_known_as(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = json.dumps({"error": "RuntimeError: No CUDA GPUs are available", "traceback": "", "thread": "Thread-3"})

    def workflow(_: Context) -> Workflow:
        yield Started("run", "train.py", ("node0",), selection_flags=("-f", "my hosts"))
        yield RunStarted("k7", "node0", ("node0", "node0"), "train.py")
        for seconds in (20.0, 120.0):
            yield e.Stalled((0, 1), seconds, "all", {}, False, 1.0)
            yield from (e.RankStack(rank, "node0", 5, "S", "", f"{RAISED}{error}\n" * rank) for rank in (0, 1))
            yield e.StallCompared((), "rank 1 on node0: Thread-3 ended with RuntimeError")
            yield Message("the stacks are saved; going on")
        yield Ended("run", Exit.OK)

    run_command(workflow)
    lines = capsys.readouterr().err.splitlines()
    [at] = [at for at, line in enumerate(lines) if line.startswith("warning: a GPU is asked for; ")]
    assert "the stacks are saved; going on" in lines[:at]
    assert lines[at + 1] == "ipexctl migrate train.py"


def test_an_unexpected_lost_link_is_a_hosts_failure(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def workflow(_: Context) -> Workflow:
        yield Started("ps", "", ("node0",))
        raise LinkError(Failure("node0", Kind.UNREACHABLE, "the connection was lost"))

    assert run_command(workflow) is Exit.UNREACHABLE
    assert "node0: the connection was lost" in capsys.readouterr().err
    assert not state.exists()


def test_a_command_that_contacts_no_host_leaves_no_log(state: Path) -> None:
    assert run_events(Started("hosts", "", ()), Answer(UnknownAnswer({})), Ended("hosts", Exit.OK)) is Exit.OK
    assert not state.exists()


def test_a_look_up_is_saved_from_the_run_on_that_it_finds(state: Path) -> None:
    def attach(_: Context) -> Workflow:
        yield Started("attach", "k7", ("node0",))
        yield StepEnded("node0", "list runs", "ok")
        if (state / "found").exists():
            yield RunStarted("k7", "node0", ("node0",), "mpirun")
            yield Ended("attach", Exit.OK)
        raise UsageError("no run k7 is kept on these hosts", exit=Exit.STEP)

    assert run_command(attach, acting=True) is Exit.STEP
    assert not [*state.glob("runs/*")]
    state.mkdir(mode=0o700, exist_ok=True)
    (state / "found").touch()
    run_command(attach, acting=True)
    (saved,) = state.glob("runs/k7")
    kinds = [json.loads(line)["event"] for line in (saved / "events.jsonl").read_text().splitlines()]
    assert kinds[:4] == ["started", "step-ended", "run-started", "ended"]


def test_a_refusal_in_the_middle_answers_as_one_before_the_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    def attach(_: Context) -> Workflow:
        yield Started("attach", "k7", ("node0",))
        raise UsageError("no run k7 is kept", reasons=["two are"], hint=advise("runs"), exit=Exit.STEP, code="no-run")

    assert loop.run_command(attach, loop.OutputOptions(json_=True)) is Exit.STEP
    answer = json.loads(capsys.readouterr().out)
    assert (answer["refused"], answer["reasons"], answer["hint"]) == ("no run k7 is kept", ["two are"], "ipexctl runs")
    assert (answer["next"], answer["codes"], answer["exit"]) == ([["ipexctl", "runs"]], ["no-run"], 4)


def test_a_look_up_that_cannot_be_saved_says_so(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state.mkdir(mode=0o777)
    (state / "runs").write_text("")
    started = RunStarted("k7", "node0", ("node0",), "mpirun")
    attach = (Started("attach", "k7", ("node0",)), started, Ended("attach", Exit.OK))
    assert run_events(*attach, acting=True) is Exit.STEP
    assert "is not a directory" in capsys.readouterr().err


def test_the_hint_of_a_failed_host_has_the_users_options(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = Started("run", "train.py", ("node0",), selection_flags=("-f", "my hosts", "--venv", "/x"))
    hint = advise("attach", "k7", text="it may still be running:")
    lost = HostFailed(Failure("node0", Kind.LOST, "connection lost", hint, "watch"))
    assert run_events(started, lost, Ended("run", Exit.OK), acting=True) is Exit.LOST
    command = "ipexctl attach k7 -f 'my hosts'"
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines[lines.index("hint: it may still be running:") + 1] == command
    (saved,) = state.glob("runs/*")
    (failed,) = json.loads((saved / "report.json").read_text())["failures"]
    assert failed["hint"] == f"it may still be running:\n{command}"


def test_the_hint_of_a_failed_install_is_the_same_install(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("install", "--torch", "2.13.0", "--venv=/full", "-f", "h", "--with", "a")
    started = Started("install", "", ("node0",), selection_flags=("-f", "h", "--venv", "/full"), words=words)
    full = HostFailed(Failure("node0", Kind.STEP, "no space left", ANOTHER_PATH, "no-space"))
    assert run_events(started, full, Ended("install", Exit.STEP), acting=True) is Exit.STEP
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.strip() == "ipexctl install --torch 2.13.0 -f h --with a --venv /opt/ipexctl"


def test_a_key_with_a_passphrase_is_used_by_the_same_command(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = Started("run", "", ("node0",), selection_flags=("-f", "h"), words=("run", "t.py", "--lr", "1"))
    locked = HostFailed(Failure("node0", Kind.UNREACHABLE, "key k has a passphrase", "ssh-add k", "passphrase"))
    assert run_events(started, locked, Ended("run", Exit.UNREACHABLE), acting=True) is Exit.UNREACHABLE
    advice, command = capsys.readouterr().err.splitlines()[-2:]
    assert advice.endswith("give it to an agent (ssh-add k), or type the passphrase when asked:")
    assert command.strip() == "ipexctl run -f h --ask-pass t.py --lr 1"


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (("run", "--ppn", "2", "train.py", "--lr", "1"), "ipexctl run -f h --wait --ppn 2 train.py --lr 1"),
        (("tune", "train.py"), "ipexctl tune -f h --wait train.py"),
        (("play", "train.yaml"), "ipexctl ps -f h"),
    ],
)
def test_the_hint_on_busy_hosts_ends_no_run(
    words: tuple[str, ...], after: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = Started(words[0], "", ("node0",), selection_flags=("-f", "h"), words=words)
    hint = advise("stop", "k7", text="wait for it")
    busy = HostFailed(Failure("node0", Kind.BUSY, "busy with run k7", hint, "busy"))
    assert run_events(started, busy, Ended(words[0], Exit.BUSY), acting=True) is Exit.BUSY
    advice, command = capsys.readouterr().err.splitlines()[-2:]
    assert "end it (ipexctl stop k7 -f h)" in advice
    assert command.strip() == after
