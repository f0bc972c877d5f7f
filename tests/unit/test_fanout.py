"""One piece of work on many hosts."""

import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.act.ssh import Links
from ipexctl.act.ssh.link import SSHLink
from ipexctl.act.threads import StallTimer
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import Event, HostFailed, Progress, StepEnded, StepStarted
from ipexctl.model.hosts import Command, Completed, Host, Link, LinkError, Opener
from tests.fakes import FakeOpener

HOSTS = tuple(Host(f"node{n}", f"10.0.0.{n}") for n in range(6))
REFUSED = Failure("node2", Kind.UNREACHABLE, "connection refused (10.0.0.2:22)", code="refused")


def context(links: Opener, bound: int = 32) -> Context:
    return Context(links, Path("state"), Path("cache"), bound)


def played(story, events: list[Event] | None = None):  # type: ignore[no-untyped-def]
    events = [] if events is None else events
    try:
        while True:
            events.append(next(story))
    except StopIteration as stop:
        return stop.value, events


def fanout_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("probe node")]


def uname(link: Link, emit: Emit) -> str:
    return link.run(Command(("uname", "-m"))).text


def test_results_come_in_the_order_of_the_hosts_whatever_the_order_of_the_work() -> None:
    def slower_first(host: Host, command: Command) -> Completed:
        time.sleep(0.05 * (5 - int(host.name[-1])))
        return Completed(0, host.name.encode())

    (results, _), events = played(run_on_hosts(context(FakeOpener(slower_first)), HOSTS, "probe", uname))
    assert list(results) == [host.name for host in HOSTS]
    assert all(results[host.name] == host.name for host in HOSTS)
    assert next(e for e in events if isinstance(e, StepEnded)) == StepEnded("node5", "probe", "ok", "")


def test_a_host_that_fails_is_a_value_beside_the_results_of_the_others() -> None:
    links = FakeOpener({"uname": b"x86_64"}, down={"node2": REFUSED})
    (results, failures), events = played(run_on_hosts(context(links), HOSTS, "probe", uname))
    assert failures == {"node2": REFUSED}
    assert list(results.values()) == ["x86_64"] * 5
    assert HostFailed(REFUSED) in events
    assert StepEnded("node2", "probe") not in events


def test_a_failure_that_the_work_returns_is_reported_like_one_that_was_raised() -> None:
    full = Failure("node0", Kind.STEP, "no space left", code="no-space")
    results, events = played(run_on_hosts(context(FakeOpener({})), HOSTS[:1], "probe", lambda link, emit: full))
    assert results == ({}, {"node0": full})
    assert events == [StepStarted("node0", "probe"), HostFailed(full)]


def test_what_the_work_emits_comes_between_its_start_and_its_end_which_says_the_outcome() -> None:
    def work(link: Link, emit: Emit) -> int:
        emit(Progress(link.host.name, "probe", 1, 2, "files"))
        return 2

    results, events = played(
        run_on_hosts(context(FakeOpener({})), HOSTS[:1], "probe", work, outcome=lambda n: ("changed", f"{n} files"))
    )
    assert results == ({"node0": 2}, {})
    assert events == [
        StepStarted("node0", "probe"),
        Progress("node0", "probe", 1, 2, "files"),
        StepEnded("node0", "probe", "changed", "2 files"),
    ]


def test_no_more_hosts_are_worked_on_at_once_than_the_bound() -> None:
    at_work, most, lock = 0, 0, threading.Lock()

    def work(link: Link, emit: Emit) -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.02)
        with lock:
            at_work -= 1

    played(run_on_hosts(context(FakeOpener({}), bound=2), HOSTS, "probe", work))
    assert most == 2


class SlowToConnect(FakeOpener):
    """Dark hosts: opening them takes until `timed_out`."""

    timed_out = threading.Event()

    def open(self, host: Host):  # type: ignore[no-untyped-def]
        if host.name in self._down:
            self.timed_out.wait(1000)
        return super().open(host)


def test_dark_hosts_do_not_hold_up_the_others() -> None:
    dark = {f"node{n}": Failure(f"node{n}", Kind.UNREACHABLE, "no answer within 10 s", code="timeout") for n in (0, 1)}
    opener = SlowToConnect({"uname": b"x"}, down=dark)
    ended: list[str] = []
    for event in run_on_hosts(context(opener, bound=2), HOSTS, "probe", uname):
        if isinstance(event, StepEnded):
            ended.append(event.host)
        if len(ended) == 4:
            opener.timed_out.set()
    assert sorted(ended) == ["node2", "node3", "node4", "node5"]


def test_an_unexpected_exception_ends_everything_and_names_its_host(caplog: pytest.LogCaptureFixture) -> None:
    def work(link: Link, emit: Emit) -> None:
        if link.host.name == "node3":
            raise ZeroDivisionError("our own mistake")
        time.sleep(0.01)

    with pytest.raises(ZeroDivisionError):
        played(run_on_hosts(context(FakeOpener({})), HOSTS, "probe", work))
    assert "node3: step 'probe' raised ZeroDivisionError" in caplog.text
    assert fanout_threads() == []


@pytest.mark.parametrize("how", ["close", "interrupt"])
def test_breaking_off_closes_the_links_and_leaves_no_thread(how: str, tmp_path: Path) -> None:
    local = tuple(Host(name, "localhost") for name in ("node0", "node1"))
    mark = tmp_path / "lives"
    sleeper = Command(("sh", "-c", f'echo $$ > "{mark}.$$"; sleep 1000; true'), timeout=1000)
    story = run_on_hosts(context(Links(connect_timeout=1)), local, "probe", lambda link, emit: link.run(sleeper))
    assert {next(story).host, next(story).host} == {"node0", "node1"}  # type: ignore[attr-defined]
    deadline = time.monotonic() + 60
    pids: list[str] = []
    while len(pids) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
        pids = [output.strip() for path in tmp_path.glob("lives.*") if (output := path.read_text()).endswith("\n")]
    assert len(pids) == 2
    if how == "close":
        story.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            story.throw(KeyboardInterrupt())
    assert fanout_threads() == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_breaking_off_ends_a_worker_that_floods_events() -> None:
    def flood(link: Link, emit: Emit) -> None:
        while True:
            emit(Progress(link.host.name, "probe", 0, 0))
            if link.closed:  # type: ignore[attr-defined]
                raise LinkError(REFUSED)

    story = run_on_hosts(context(FakeOpener({})), HOSTS[:2], "probe", flood)
    for _ in range(100):
        next(story)
    time.sleep(0.1)  # until the queue is full
    story.close()
    assert fanout_threads() == []


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_connection_that_is_lost_already_is_stopped_without_a_traceback() -> None:
    def close() -> None:
        raise EOFError  # Paramiko's, which cannot send this any more

    before = {*threading.enumerate()}
    with StallTimer(close, 0.05) as timer:
        for thread in {*threading.enumerate()} - before:
            thread.join(10)
    assert timer.stalled


def test_a_shell_that_writes_on_and_on_is_ended_all_the_same() -> None:
    """A host that opens no second session was waited for until its first one was silent."""
    link, shell, nobody = SSHLink(HOSTS[0], MagicMock()), MagicMock(), threading.Event()

    def read(_: float) -> list[Any]:
        if nobody.wait(0.01):
            raise AssertionError("it is read on")
        return [("out", b"x")]

    shell.has_ended.return_value, shell.read = False, read
    link._shell = shell
    timer = threading.Timer(10, nobody.set)
    timer.start()
    assert link._end_idle_shell()
    timer.cancel()
    assert shell.__exit__.called
