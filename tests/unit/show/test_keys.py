"""Keys are read from a real (pseudo-)terminal, which is put back as it was."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from ipexctl.show.keys import PressedKeys

CHILD = """
import sys, time
from ipexctl.show.keys import PressedKeys
keys = PressedKeys().open()
print("ready" if keys.active else "no keys", flush=True)
end = time.monotonic() + 60
got = []
while len(got) < 4 and time.monotonic() < end and keys.active:
    got += keys.poll()
    time.sleep(0.01)
{last}
"""


def mode(number: int) -> tuple[bool, bool]:
    """(waits for Enter, echoes)"""
    flags = termios.tcgetattr(number)[3]
    return bool(flags & termios.ICANON), bool(flags & termios.ECHO)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Our end of it, and that of a program."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


@contextmanager
def playing(terminal: int, *words: str | Path) -> Iterator[IO[bytes]]:
    """The output of a Python program on this terminal, whose session it leads."""
    with subprocess.Popen(
        [sys.executable, *words],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as child:
        assert child.stdout is not None
        yield child.stdout


def press(terminal: tuple[int, int], last: str, typed: bytes) -> tuple[bytes, tuple[bool, bool], tuple[bool, bool]]:
    ours, theirs = terminal
    with playing(theirs, "-c", CHILD.format(last=last)) as output:
        assert output.readline() == b"ready\n"
        during = mode(theirs)
        os.write(ours, typed)
        rest = output.read()
    return rest, during, mode(theirs)


def test_keys_come_one_by_one_and_the_terminal_is_put_back(terminal: tuple[int, int]) -> None:
    output, during, after = press(terminal, "keys.close(); print(got)", b"r\x1b[A\x1b[25~5\n")
    assert output == b"['r', 'up', '5', 'enter']\n"
    assert during == (False, False)
    assert after == (True, True)


def test_what_is_pasted_is_no_key_also_in_pieces(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    os.set_blocking(ours, False)
    keys = PressedKeys(theirs)
    keys._foreground = lambda: True  # type: ignore[method-assign]  # a terminal of another session
    keys.open()
    assert os.read(ours, 100) == b"\x1b[?2004h"
    seen = []
    for piece in (b"a\x1b[200~dd", b"dd", b"d\x1b[201~b", b"c"):
        os.write(ours, piece)
        time.sleep(0.05)
        seen += keys.poll()
    assert seen == ["a", "b", "c"]
    keys.close()
    assert os.read(ours, 100) == b"\x1b[?2004l"


def test_the_terminal_is_put_back_after_a_crash_too(terminal: tuple[int, int]) -> None:
    assert press(terminal, "raise SystemError", b"abcd")[2] == (True, True)


def test_without_a_terminal_there_are_no_keys() -> None:
    with open(os.devnull) as null:
        keys = PressedKeys(null.fileno()).open()
        assert not keys.active
        assert keys.poll() == []


def test_a_terminal_that_is_not_ours_is_left_alone(terminal: tuple[int, int]) -> None:
    _, theirs = terminal
    before = mode(theirs)
    assert not PressedKeys(theirs).open().active
    assert mode(theirs) == before


def test_closing_twice_is_fine() -> None:
    keys = PressedKeys(-1).open()
    keys.close()
    keys.close()


SHOWING = """
import sys, time
from pathlib import Path
from ipexctl.decide.run.fold import RunFold
from ipexctl.model.events import RunStarted, Stamped, Started
from ipexctl.show.live import Live
from ipexctl.show.pipe import Pipe
live = Live(Pipe(sys.stdout))
fold = RunFold()
for event in (Started("{verb}", "x.py", ("node0", "node1")), RunStarted("r", "node0", ("node0", "node1"), "")):
    fold.handle_event(stamped := Stamped(time.time(), event))
    live.handle_event(stamped, fold.state)
end = time.monotonic() + 60
while not Path(sys.argv[1]).exists() and time.monotonic() < end:
    time.sleep(0.02)
live.close()
print("done", flush=True)
"""


@pytest.mark.fault("K6")
def test_while_ctrl_z_stops_us_the_terminal_is_whole_and_afterwards_ours_again(tmp_path: Path) -> None:
    """The live screen of a run, under a parent that plays the shell's part."""
    child, ours = pty.fork()
    if child == 0:  # the session's leader, as a shell is: what it starts has a group of its own
        shell = ["bash", "--norc", "--noprofile", "-i"]
        os.execvpe(
            shell[0], shell, {**os.environ, "PS1": "", "TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[3])}
        )
    screen = b""

    def until(words: bytes) -> bytes:
        nonlocal screen
        end = time.monotonic() + 30
        while words not in screen and time.monotonic() < end:
            if select.select([ours], [], [], 0.1)[0]:
                screen += os.read(ours, 4096)
        assert words in screen, screen
        before, screen = screen.split(words, 1)
        return before

    try:
        program, go = tmp_path / "show.py", tmp_path / "go"
        program.write_text("from pathlib import Path\n" + SHOWING.replace("{verb}", "run"))
        os.write(ours, f"stty -a | grep -o .icanon; {sys.executable} {program} {go}\n".encode())
        for after in (b"%1\n", b"fg\n"):  # once more after it went on
            until(b"node1")
            until(b"[Ctrl-C] stop")
            assert mode(ours) == (False, False)
            os.write(ours, b"\x1a")
            assert until(b"Stopped").rfind(b"\x1b[?25h") > 0  # the cursor is seen
            os.write(ours, b"stty -a | tr ' ' '_' >" + os.fsencode(tmp_path / "mode") + b"; echo hel''lo\n")
            until(b"hello")
            assert "_icanon_" in (tmp_path / "mode").read_text()
            os.write(ours, after)
            until(b"\x1b[?25l")
        until(b"node1")
        go.touch()
        until(b"done")
        assert b"Traceback" not in screen
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ours)


def test_a_pasted_burst_is_left_to_the_shell_and_ends_the_keys(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    with playing(theirs, "-c", PASTED) as output:
        assert output.readline() == b"ready\n"
        pasted = b"ipexctl ps -f hosts && echo " + b"x" * 3000 + b"\n"  # too many for any time that goes by here
        os.write(ours, pasted)
        assert output.read() == b"[] True True\n"
    assert os.read(theirs, 4096) == pasted


PASTED = """
import select, time
from ipexctl.show.keys import PressedKeys
keys = PressedKeys().open()
print("ready", flush=True)
select.select([0], [], [], 60)
time.sleep(0.2)
print(keys.poll(), keys.pasted, keys.open().active)
"""


def test_what_is_typed_while_a_verb_without_keys_works_is_left_to_the_shell(
    terminal: tuple[int, int], tmp_path: Path
) -> None:
    ours, theirs = terminal
    program, go = tmp_path / "show.py", tmp_path / "go"
    program.write_text("from pathlib import Path\n" + SHOWING.replace("{verb}", "bench"))
    with playing(theirs, program, go) as output:
        assert b"2026h" in os.read(output.fileno(), 1 << 16)
        assert mode(theirs) == (False, False), "no echo, which would move the frame"
        os.write(ours, b"dq\n")
        go.touch()
        assert output.read().endswith(b"done\n")
    assert os.read(theirs, 100) == b"dq\n"
