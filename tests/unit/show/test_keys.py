"""Keys are read from a real (pseudo-)terminal, which is put back as it was."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

from ipexctl.show.keys import Keys

CHILD = """
import sys, time
from ipexctl.show.keys import Keys
keys = Keys().open()
print("ready" if keys.active else "no keys", flush=True)
end = time.monotonic() + 60
got = ""
while len(got) < 3 and time.monotonic() < end and keys.active:
    got += keys.poll()
    time.sleep(0.01)
{last}
"""


def mode(number: int) -> tuple[bool, bool]:
    """(waits for Enter, echoes)"""
    flags = termios.tcgetattr(number)[3]
    return bool(flags & termios.ICANON), bool(flags & termios.ECHO)


def on_a_terminal(last: str, typed: bytes) -> tuple[bytes, tuple[bool, bool], tuple[bool, bool]]:
    ours, theirs = pty.openpty()
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD.format(last=last)],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[3],
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, termios.TIOCSCTTY, 0),
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        during = mode(theirs)
        os.write(ours, typed)
        said = child.stdout.read()
        child.wait(15)
        return said, during, mode(theirs)
    finally:
        os.close(ours)
        os.close(theirs)


def test_keys_come_one_by_one_and_the_terminal_is_put_back() -> None:
    said, during, after = on_a_terminal("keys.close(); print(repr(got))", b"r\x1b[A5d")
    assert said == b"'r5d'\n"
    assert during == (False, False)
    assert after == (True, True)


def test_the_terminal_is_put_back_after_a_crash_too() -> None:
    assert on_a_terminal("raise SystemError", b"abc")[2] == (True, True)


def test_without_a_terminal_there_are_no_keys() -> None:
    with open(os.devnull) as null:
        keys = Keys(null.fileno()).open()
        assert not keys.active
        assert keys.poll() == ""


def test_a_terminal_that_is_not_ours_is_left_alone() -> None:
    ours, theirs = pty.openpty()
    try:
        before = mode(theirs)
        keys = Keys(theirs).open()
        assert not keys.active
        assert mode(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)


def test_closing_twice_is_fine() -> None:
    keys = Keys(-1).open()
    keys.close()
    keys.close()
