"""Notification of commands of the user: each gets JSON on its standard input.

Each has a thread of its own: a slow one delays neither ipexctl nor the others."""

import os
import queue
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial

from ipexctl.act.threads import start_thread
from ipexctl.model.errors import UsageError
from ipexctl.model.notifications import split_command
from ipexctl.model.text import printable
from ipexctl.protocol.paths import EVENT_ENV

LIMIT = 10.0  # seconds for a command
_QUEUE_LIMIT = 100  # notifications that wait for one command


def parse_notify_command(text: str) -> tuple[str, ...]:
    """Returns the words of a command, split as a shell does. Raises `UsageError`."""
    argv = tuple(split_command("--notify", text))
    if shutil.which(argv[0]) is None:
        raise UsageError(f"--notify {printable(argv[0])}: there is no such command")
    return argv


class Notifier:
    """Delivers notifications to ``commands``, which get the variables ``environ`` as they are now. ``pop_warnings`` has
    one line for each command that failed, once."""

    def __init__(self, commands: Sequence[Sequence[str]], environ: Mapping[str, str], limit: float = LIMIT) -> None:
        self._environ, self._limit = dict(environ), limit
        self._warnings: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._queues: list[queue.Queue[tuple[str, bytes] | None]] = []
        self._deliveries = []
        for argv in commands:
            waiting: queue.Queue[tuple[str, bytes] | None] = queue.Queue(_QUEUE_LIMIT)
            self._queues.append(waiting)
            self._deliveries.append(start_thread(partial(self._deliver_all, argv, waiting)))

    def send(self, event: str, document: bytes) -> None:
        """Passes a JSON document on; returns at once. What a command is too slow for is dropped."""
        for waiting in self._queues:
            with suppress(queue.Full):
                waiting.put_nowait((event, document))

    def close(self, is_interrupted: Callable[[], bool] = lambda: False) -> None:
        """Waits until all is delivered, for the limit of one delivery and a moment; not after an interrupt."""
        until = time.monotonic() + self._limit + 2.0
        self._queues, queues = [], self._queues
        for waiting in queues:
            with suppress(queue.Full):
                waiting.put_nowait(None)
        while wait(self._deliveries, 0.05).not_done and time.monotonic() < until and not is_interrupted():
            pass

    def pop_warnings(self) -> list[str]:
        """Returns what went wrong since the last call."""
        warnings = []
        while not self._warnings.empty():  # nobody else takes any
            warnings.append(self._warnings.get_nowait())
        return warnings

    def _deliver_all(self, argv: Sequence[str], waiting: "queue.Queue[tuple[str, bytes] | None]") -> None:
        failed = False
        while (item := waiting.get()) is not None:
            why = self._execute(argv, *item)
            if why and not failed:
                self._warnings.put(f"--notify {printable(argv[0])}: {printable(why, 200)}; the command goes on")
            failed = failed or bool(why)

    def _execute(self, argv: Sequence[str], event: str, document: bytes) -> str:
        """Why a command failed, or nothing. It has a session of its own: Ctrl-C is not for it."""
        quiet = subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True,
                env={**self._environ, EVENT_ENV: event},
            )  # fmt: skip
        except OSError as error:
            return (error.strerror or str(error)).lower()
        try:
            process.communicate(document, self._limit)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"not done after {self._limit:g} s, killed"
        return f"exit status {process.returncode}" if process.returncode else ""
