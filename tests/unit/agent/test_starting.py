"""Keeper and guards start together: a guard is told the keeper's port on its input, or ends."""

import subprocess
from pathlib import Path

import pytest

from ipexctl.act import run_control
from ipexctl.act.run_control import KeeperPort
from ipexctl.act.run_dir import RemoteRunDir, create_run_dir
from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.model.hosts import Command, Completed, Host, LinkError
from ipexctl.protocol import messages, paths
from ipexctl.protocol.messages import KINDS
from tests.fakes import FakeLink
from tests.unit.agent.runs import PLAIN, SPEC, TIMINGS, keeping, remote
from tests.waiting import wait

HERE = Host("here", "localhost")
DIRECTORY = RemoteRunDir(HERE, "/none", "python3")
LISTENING = KINDS.write(messages.KeeperListening(4000)) + b"\n"


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """The directory of a run on another host than the head; its guard waits for 0.4 s."""
    directory = tmp_path / paths.RUNS / f"{SPEC.run}-h1"
    link = LocalLink(HERE, env={"HOME": str(tmp_path), "PATH": PLAIN["PATH"]})
    spec = SPEC._replace(head=None, timings=TIMINGS._replace(ready_timeout=0.2, orderly=0.2, kill=0.5))
    create_run_dir(link, RemoteRunDir(HERE, str(directory), "python3"), spec)
    return directory


def start_guard(part: Path) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(remote("guard", str(part), "127.0.0.1"), env=PLAIN, stdin=pipe, stdout=pipe)


def test_a_guard_connects_to_the_port_that_its_input_tells(part: Path, tmp_path: Path) -> None:
    with keeping(tmp_path / "elsewhere") as kept:
        reported = KINDS.write(messages.KeeperListening(kept.port)).ljust(messages.PORT_SIZE)
        out, _ = start_guard(part).communicate(reported, timeout=60)
        assert KINDS.read(out) == messages.GuardReady()
        kept.connect(paths.Role.ORDER, "test").send(messages.KillRun("test"))
        wait(lambda: kept.over)


@pytest.mark.parametrize("reported", [b"", b" " * messages.PORT_SIZE, b"rubbish".ljust(messages.PORT_SIZE)])
def test_a_guard_that_gets_no_port_ends_without_a_word(part: Path, reported: bytes) -> None:
    guard = start_guard(part)
    assert guard.communicate(reported, timeout=60)[0] == b""
    assert guard.returncode == 1


def test_a_guard_whose_controller_falls_silent_ends(part: Path) -> None:
    with start_guard(part) as guard:
        assert guard.wait(60) == 1  # its input is open all the time
        assert guard.stdout
        assert guard.stdout.read() == b""


def answer_on_head(*answers: bytes, err: bytes = b"") -> tuple[KeeperPort, list[int], LinkError | None]:
    """What comes of a head that answers so: the port, what it was when that was passed on, and the error."""
    keeper, listening = KeeperPort("10.0.0.1"), []
    link = FakeLink(HERE, lambda host, command: Completed(1, b"".join(answers), err))
    try:
        run_control.start_head(link, DIRECTORY, "r", keeper, lambda: listening.append(keeper.port))
    except LinkError as error:
        return keeper, listening, error
    return keeper, listening, None


def test_of_a_head_whose_guard_crashes_the_reason_is_reported() -> None:
    keeper, listening, error = answer_on_head(LISTENING, err=b"Traceback\nOSError: No space left on device\n")
    assert (keeper.port, listening) == (4000, [4000])
    assert error
    assert "its guard did not start: " in error.failure.what
    assert "No space left on device" in error.failure.what


def test_of_a_head_whose_keeper_crashes_the_others_are_reported_at_once() -> None:
    keeper, listening, error = answer_on_head(err=b"Traceback\nMemoryError\n")
    assert (keeper.wait_for_port(), listening) == (0, [])
    assert error
    assert "the run's keeper did not start: " in error.failure.what


def test_of_a_head_whose_first_line_has_no_end_no_more_is_gathered() -> None:
    keeper, listening, error = answer_on_head(b" " * 5000 + LISTENING)
    assert (keeper.port, listening) == (0, [])
    assert error


def test_a_head_that_is_well_has_a_keeper_and_a_guard() -> None:
    ready = KINDS.write(messages.GuardReady()) + b"\n"
    assert answer_on_head(LISTENING, ready)[1:] == ([4000], None)


def test_where_the_keeper_does_not_listen_a_guard_gets_spaces_and_is_no_failure() -> None:
    keeper, inputs = KeeperPort("10.0.0.1"), []

    def answer(_: Host, command: Command) -> Completed:
        inputs.append(command.stdin)
        return Completed(1)

    keeper.set_port(0)
    assert not run_control.start_guard(FakeLink(HERE, answer), DIRECTORY, "r", keeper)
    assert inputs == [b" " * messages.PORT_SIZE]
