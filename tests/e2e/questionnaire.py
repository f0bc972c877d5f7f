"""`accelerate config`, answered on a terminal as a person would."""

import os
import pty
import select
import subprocess
import time
from collections.abc import Sequence

DOWN, ENTER = "\x1b[B", "\r"


def answer(words: Sequence[str], answers: Sequence[tuple[str, str]], timeout: float = 240.0) -> str:
    """Runs the program on a terminal of its own and types each answer when its question is there. What was on the
    screen. Fails when a question does not come, or the program asks for more."""
    master, far = pty.openpty()
    process = subprocess.Popen(words, stdin=far, stdout=far, stderr=far, start_new_session=True, close_fds=True)
    os.close(far)
    screen, seen, until = "", 0, time.monotonic() + timeout
    try:
        for question, typed in answers:
            while question not in screen[seen:]:
                screen += _read(master, process, until, f"'{question}' was not asked:\n{screen}")
            seen = len(screen)
            time.sleep(0.3)  # the terminal is set up for the answer after the question is written
            for key in [typed] if not typed.startswith("\x1b") else typed.replace("\x1b", "\n\x1b").split("\n")[1:]:
                os.write(master, key.encode())
                time.sleep(0.1)
        while process.poll() is None:
            screen += _read(master, process, until, f"it asks for more:\n{screen}")
        assert process.returncode == 0, screen
        return screen
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)


def _read(master: int, process: subprocess.Popen[bytes], until: float, otherwise: str) -> str:
    assert time.monotonic() < until, otherwise
    if not select.select([master], [], [], 0.2)[0]:
        return ""
    try:
        return os.read(master, 65536).decode("utf-8", "replace")
    except OSError:  # its end has been closed
        assert process.wait(60) == 0, otherwise
        return ""
