"""A real run with Intel MPI's mpirun, keeper, guards and wrappers; its two hosts are this machine, without SSH."""

import os
import secrets
import signal
import socket
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.act import run_control
from ipexctl.act.ssh import Links
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.model import events as e
from ipexctl.model.errors import Exit, Failure, Interrupted, Kind
from ipexctl.model.hosts import Host, Link, LinkError
from ipexctl.protocol import hooks, paths
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import procs
from ipexctl.verbs.run.attempt import LaunchAttempt
from tests.integration.attempts import Start, of, run_alone, until, written
from tests.waiting import wait


def occupy_ports(stack: ExitStack, count: int) -> int:
    """Takes ``count`` ports of this machine, one after another; the first."""
    for low in range(20000, 30000, count):
        with ExitStack() as tried:
            try:
                for port in range(low, low + count):
                    taken = tried.enter_context(socket.socket())
                    taken.bind(("127.0.0.1", port))
                    taken.listen()
            except OSError:
                continue
            stack.push(tried.pop_all())
            return low
    raise AssertionError("no ports are free")


def line(pid: int) -> list[bytes]:
    """A process's command line; nothing of one that has just ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def find(attempt: LaunchAttempt, word: bytes) -> int:
    """The process of the run whose command line has this word."""
    for process in procs.find_marked(procs.format_run_mark(attempt.launch.run)):
        if any(word in part for part in line(process.pid)[:8]):
            return process.pid
    raise AssertionError(f"no process with {word!r}")


@pytest.mark.fault("I4")
def test_ranks_run_on_their_hosts_and_nothing_is_left(start: Start) -> None:
    attempt = start("say", "two words", "$(touch pwned)", "new\nline", "", ppn=2, timings=Timings())  # as users have it
    events = list(run_alone(attempt))
    assert of(e.RunStarted, events)[0].ranks == ("a", "a", "b", "b")
    assert [(end.rank, end.host, end.status) for end in sorted(of(e.RankEnded, events), key=lambda end: end.rank)] == [
        (0, "a", 0),
        (1, "a", 0),
        (2, "b", 0),
        (3, "b", 0),
    ]
    stages = [stage.stage for stage in of(e.RankStage, events) if stage.rank == 3]
    assert stages == ["start", "python"]
    assert written(events)[3, "out"] == b"rank 3 of 4 argv ['two words', '$(touch pwned)', 'new\\nline', '']\n"
    assert 0 < of(e.RunStarted, events)[0].at <= of(e.RunEnded, events)[0].at
    assert [(over.run, over.reason) for over in of(e.RunEnded, events)] == [(attempt.launch.run, "done")]


def test_hosts_may_share_their_home_directory(start: Start) -> None:
    attempt = start("say", ppn=2, shared_home=True)
    events = list(run_alone(attempt))
    assert [(over.run, over.reason) for over in of(e.RunEnded, events)] == [(attempt.launch.run, "done")]
    assert len(written(events)) == 4


@pytest.mark.fault("F1")
def test_a_rank_that_raises_is_named_with_its_traceback_and_the_others_end(start: Start) -> None:
    events = list(run_alone(start("raise", "1", ppn=2)))
    first = next(end for end in of(e.RankEnded, events) if not end.cause)
    assert (first.rank, first.host, first.status, first.error) == (1, "a", 1, "ValueError: the answer is not 42")
    assert "actor.py" in first.traceback
    assert {end.rank for end in of(e.RankEnded, events) if end.cause == "stopped"} == {0, 2, 3}
    assert of(e.RunEnded, events)[0].reason == "rank"


@pytest.mark.fault("F2")
def test_a_rank_that_dies_by_a_signal_is_reported_with_it(start: Start) -> None:
    events = list(run_alone(start("signal", "SIGKILL", "1")))
    first = next(end for end in of(e.RankEnded, events) if not end.cause)
    assert (first.rank, first.host, first.status, first.signal) == (1, "b", None, signal.SIGKILL)


def test_a_rank_that_fails_while_others_are_still_starting_is_the_only_cause(start: Start) -> None:
    events = list(run_alone(start("exit", "64", "0", ppn=4)))
    assert of(e.RunEnded, events)[0].reason == "rank"
    causes = {end.rank: end.cause for end in of(e.RankEnded, events)}
    assert causes == {0: "", **dict.fromkeys(range(1, 8), "stopped")}


@pytest.mark.fault("G1")
def test_ctrl_c_ends_ranks_politely(start: Start) -> None:
    attempt = start("wait")
    story, events = until(attempt, e.RankStage)
    attempt.context.interrupts.handle_signal(signal.SIGINT)
    events += list(story)
    assert {end.signal for end in of(e.RankEnded, events)} == {signal.SIGTERM}
    assert of(e.RunEnded, events)[0].reason == "stopped"
    assert any(output.text == "stopping (again to kill)" for output in of(e.Message, events))


class Cable(Links):
    """Links to the hosts that can be pulled."""

    pulled = False

    def open(self, host: Host) -> Link:
        if self.pulled:
            raise LinkError(Failure(host.name, Kind.UNREACHABLE, "no route to host"))
        return super().open(host)


def test_ctrl_c_while_the_link_is_down_stops_the_run_once_it_is_back(start: Start) -> None:
    attempt = start("wait")
    cable = Cable(config=None)
    attempt.watcher.context = attempt.context = replace(attempt.context, links=cable)
    story, events = until(attempt, e.RankStage)
    cable.pulled = True
    seen = os.fsencode(attempt.watcher.head.directory)
    for watcher in [pid for pid in procs.list_processes() if {b"watch", seen} <= set(line(pid))]:
        os.kill(watcher, signal.SIGKILL)
    for event in story:
        events.append(event)
        if isinstance(event, e.Message) and "connection lost (" in event.text:
            attempt.context.interrupts.handle_signal(signal.SIGINT)
        if isinstance(event, e.Message) and "will be sent when it is back" in event.text:
            cable.pulled = False
    assert of(e.RunEnded, events)[0].reason == "stopped"
    assert {end.signal for end in of(e.RankEnded, events)} == {signal.SIGTERM}
    assert attempt.watcher.exit == 128 + signal.SIGINT


@pytest.mark.parametrize(("step", "host", "signals"), [("start keeper", "a", 1), ("start guard", "b", 2)])
def test_ctrl_c_while_the_guards_start_leaves_nothing(start: Start, step: str, host: str, signals: int) -> None:
    attempt, events = start("wait"), []
    interrupts, story = attempt.context.interrupts, run_alone(attempt)
    thrown: Interrupted | None = None
    with suppress(StopIteration):
        while True:  # as the loop does with signals that came while a sink took an event
            with interrupts.raise_on_signal():
                event = story.throw(thrown) if thrown else next(story)
            events.append(event)
            if isinstance(event, e.StepEnded) and (event.step, event.host) == (step, host):
                for _ in range(signals):
                    interrupts.handle_signal(signal.SIGINT)
            thrown = interrupts.pop_pending() if interrupts.has_pending_signal else None
    assert "Ctrl-C while the run was being started" in [output.text for output in of(e.Message, events)]
    assert attempt.watcher.exit == 128 + signal.SIGINT


def test_where_the_keeper_cannot_listen_no_other_host_is_blamed(start: Start) -> None:
    with ExitStack() as stack:
        low = occupy_ports(stack, 8)
        events = list(run_alone(start("wait", port_range=f"{low}-{low + 7}")))
    [failed] = of(e.HostFailed, events)
    assert failed.failure.host == "a"
    assert failed.failure.what.startswith("keeper: cannot listen on 127.0.0.1:")
    assert {end.host: end.outcome for end in of(e.StepEnded, events) if end.step == "start guard"} == {"b": "skipped"}


class LosesHead(Links):
    """Links of which that to the host ``a`` is lost while the run is being prepared."""

    lost = False

    def open(self, host: Host) -> Link:
        if self.lost and host.name == "a":
            raise LinkError(Failure(host.name, Kind.UNREACHABLE, "the connection was lost", code="lost"))
        return super().open(host)


def test_the_others_do_not_wait_for_a_lost_head(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_control, "_KEEPER_START_TIMEOUT", 3600.0)
    attempt, links = start("wait"), LosesHead(config=None)
    attempt.watcher.context = attempt.context = replace(attempt.context, links=links)
    events: list[e.Event] = []
    for event in run_alone(attempt):
        events.append(event)
        ended = [(end.host, end.outcome) for end in of(e.StepEnded, events) if end.step == "start guard"]
        links.lost = len([end for end in of(e.StepEnded, events) if end.step == "prepare"]) == 2 and not ended
    assert ended == [("b", "skipped")]
    assert [failed.failure.what for failed in of(e.HostFailed, events)] == ["the connection was lost"]


def test_a_second_ctrl_c_while_looking_for_what_is_left_says_what_is_not_known(start: Start) -> None:
    attempt = start("wait")
    story, events = until(attempt, e.RankStage, clean=False)
    attempt.context.interrupts.handle_signal(signal.SIGINT)
    for event in story:
        events.append(event)
        if isinstance(event, e.StepStarted) and event.step == "sweep":
            events += [story.throw(Interrupted(signal.SIGINT)), *story]  # as the loop does with a signal
    (proof,) = of(e.CleanupChecked, events)
    searched = {end.host for end in of(e.StepEnded, events) if end.step == "sweep"}
    assert proof.unchecked
    assert not searched.intersection(proof.unchecked)
    fold = RunFold()
    for event in events:
        fold.handle_event(e.Stamped(time.time(), event))
    assert make_report(fold.state).exit is Exit.RESIDUE


@pytest.mark.fault("F5")
def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace_time_and_counted(start: Start) -> None:
    attempt = start("stubborn", grace=0.3)
    story, events = until(attempt, e.Output)
    attempt.context.interrupts.handle_signal(signal.SIGTERM)
    events += list(story)
    assert {end.signal for end in of(e.RankEnded, events)} == {signal.SIGKILL}
    assert any("needed SIGKILL" in output.text for output in of(e.Message, events))


@pytest.mark.fault("G1")
def test_a_second_ctrl_c_kills_at_once(start: Start) -> None:
    attempt = start("stubborn", grace=600.0)
    story, events = until(attempt, e.Output)
    attempt.context.interrupts.handle_signal(signal.SIGINT)
    attempt.context.interrupts.handle_signal(signal.SIGINT)
    events += list(story)


@pytest.mark.fault("F7")
@pytest.mark.parametrize("act", ["daemon", "hold"])
def test_daemons_that_cleaned_their_environment_end_with_the_run(start: Start, act: str) -> None:
    before = {p.pid for p in procs.list_processes().values()}
    seconds = f"3{os.getpid()}"  # as no other test has it
    events = list(run_alone(start(act, seconds)))
    assert not of(e.LauncherOutput, events), "mpirun complains of nothing in a good run"
    assert of(e.RunEnded, events)[0].reason == "done"
    strays = [(message.host, message.text) for message in of(e.Message, events) if message.code == "strays"]
    assert sorted(host for host, _ in strays) == ["a", "b"]
    assert all("sleep" in text for _, text in strays), strays
    sleepers = [pid for pid in set(procs.list_processes()) - before if line(pid)[:2] == [b"sleep", seconds.encode()]]
    assert sleepers == []


def test_what_hides_from_everyone_is_found_by_its_control_group_when_the_guard_is_dead(start: Start) -> None:
    probe = procs.create_cgroup("probe", secrets.token_hex(4))
    if not probe:
        pytest.skip("control groups of version 2 cannot be made here")
    procs.remove_cgroup(probe)
    before = set(procs.list_processes())
    seconds = f"4{os.getpid()}"  # as no other test has it
    attempt = start("hide", seconds)
    story, events = until(attempt, e.Output)
    os.kill(find(attempt, b"guard"), signal.SIGKILL)
    events += list(story)
    assert not [pid for pid in set(procs.list_processes()) - before if seconds.encode() in line(pid)]
    assert procs.find_cgroups(attempt.launch.run) == []


@pytest.mark.parametrize("who", [b"hydra_pmi_proxy", b"shim", b"keeper", b"guard", b"rank"])
def test_whatever_part_is_killed_the_run_ends_and_nothing_is_left(start: Start, who: bytes) -> None:
    attempt = start("wait")
    story, events = until(attempt, e.Output)
    os.kill(find(attempt, who), signal.SIGKILL)
    events += list(story)
    assert of(e.RunEnded, events)[0].reason == "lost", of(e.RunEnded, events)
    if who == b"rank":
        assert {end.cause for end in of(e.RankEnded, events)} == {"lost", "stopped"}


@pytest.mark.fault("K7")
def test_ranks_read_nothing_and_the_first_what_the_user_gives(start: Start) -> None:
    """The launcher's own input never ends: without this the ranks wait for ever."""
    events = list(run_alone(start("read", ppn=2)))
    assert set(written(events).values()) == {b"read b''\n"}
    assert of(e.RunEnded, events)[0].reason == "done"
    events = list(run_alone(start("read", ppn=2, stdin=b"two\nlines \xff")))
    assert written(events)[0, "out"] == b"read b'two\\nlines \\xff'\n"
    assert {written(events)[rank, "out"] for rank in (1, 2, 3)} == {b"read b''\n"}


@pytest.mark.fault("K5")
def test_an_mpirun_that_is_killed_is_the_cause_with_its_signal(start: Start) -> None:
    attempt = start("wait")
    story, events = until(attempt, e.Output)
    os.kill(find(attempt, b"mpiexec.hydra"), signal.SIGKILL)
    events += list(story)
    end = of(e.RunEnded, events)[0]
    assert (end.reason, end.detail) == ("lost", "mpirun on a was killed by SIGKILL")
    assert [rank.cause for rank in of(e.RankEnded, events) if rank.cause != "stopped"] == []


def test_a_slow_wrapper_still_says_how_its_rank_ended_when_mpirun_is_gone(start: Start) -> None:
    """The wrapper stands still when its script ends, for two seconds."""
    attempt = start("wait")
    story, events = until(attempt, e.Output)
    wrapper = find(attempt, b"rank")
    script = next(pid for pid, process in procs.list_processes().items() if process.parent == wrapper)
    environ = dict(word.split("=", 1) for word in Path(f"/proc/{script}/environ").read_text().split("\0") if word)
    rank = int(environ["RANK"])
    left = Path(environ[paths.DIRECTORY_ENV], hooks.RANKS, f"{rank}.{script}{hooks.ERROR}")
    left.write_text('{"error": "KeyError: 1"}')

    def hold() -> None:
        end = time.monotonic() + 2.0
        with suppress(ProcessLookupError):  # between two stops it may come to its end
            while time.monotonic() < end:  # the kernel lets it go on when its group has lost mpirun
                os.kill(wrapper, signal.SIGSTOP)
                time.sleep(0.001)
            os.kill(wrapper, signal.SIGCONT)

    holding = threading.Thread(target=hold)
    holding.start()
    os.kill(script, signal.SIGKILL)
    os.kill(find(attempt, b"mpiexec.hydra"), signal.SIGKILL)
    events += list(story)
    holding.join()
    assert [end.error for end in of(e.RankEnded, events) if end.rank == rank] == ["KeyError: 1"]


@pytest.mark.fault("I1")
def test_a_second_run_on_the_same_hosts_is_refused_and_the_first_lives_on(start: Start) -> None:
    first = start("count", "30")
    story, events = until(first, e.RankStage)
    second = start("say")
    refused = of(e.HostFailed, list(run_alone(second)))
    assert {event.failure.kind for event in refused} == {Kind.BUSY}
    assert first.launch.run in refused[0].failure.what
    events += list(story)
    assert [(over.run, over.reason) for over in of(e.RunEnded, events)] == [(first.launch.run, "done")]
    assert b"tick 29\n" in written(events)[1, "out"]


@pytest.mark.fault("I1")
def test_a_second_run_may_share_the_hosts_when_asked(start: Start) -> None:
    first = start("wait")
    story, events = until(first, e.RankStage)
    second = list(run_alone(start("say", share=True)))
    assert of(e.RunEnded, second)[0].reason == "done"
    first.context.interrupts.handle_signal(signal.SIGINT)
    events += list(story)
    assert of(e.RunEnded, events)[0].reason == "stopped"


@pytest.mark.fault("G4")
@pytest.mark.fault("G3")
def test_a_run_without_a_watcher_ends_when_its_lease_is_over(start: Start) -> None:
    attempt = start("wait", lease=1.0, detach=True)
    events = list(run_alone(attempt))
    assert not of(e.RunEnded, events)
    wait(lambda: not procs.find_marked(procs.format_run_mark(attempt.launch.run)), pause=0.2)
    end = Path(attempt.watcher.head.directory, "end.json").read_text()
    assert "watcher lost" in end


def test_the_report_names_libraries_and_warns_of_two_of_a_kind(start: Start, tmp_path: Path) -> None:
    paths = [tmp_path / where / "libmpi.so.12" for where in ("binding", "ipex")]
    for path, version in zip(paths, (b"2021.13", b"2021.12"), strict=True):
        path.parent.mkdir()
        path.write_bytes(b"\x7fELF" + bytes(4096) + version + bytes(4096))
    attempt = start(*map(str, paths), script="loads.py")
    fold, messages = RunFold(), []
    for event in run_alone(attempt):
        fold.handle_event(e.Stamped(time.time(), event))
        messages += [event] if isinstance(event, e.Message) else []
    run = make_report(fold.state).run
    assert run is not None
    result = [("MPI", str(path), version) for path, version in zip(paths, ("2021.13", "2021.12"), strict=True)]
    for rank in run.ranks:
        loaded = {(library.kind, library.path, library.version) for library in rank.libraries}
        assert loaded >= {*result}, rank
    warned = [str(message.text) for message in messages if "has loaded MPI twice" in message.text]
    assert warned
    assert all(str(path) in warned[0] for path in paths)
