"""Telling programs and web services of the user what happens: a command gets JSON on its standard input, a URL a POST.

Each target has a thread of its own: a slow one delays neither the command nor the other targets."""

import os
import queue
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ipexctl.model.errors import UsageError
from ipexctl.model.json_values import Record
from ipexctl.model.text import looks_secret, printable

LIMIT = 10.0  # seconds for a command or a web service
EVENT_ENV = "IPEXCTL_EVENT"  # for a command: start, stall, failure or end
_ENV = "env:"
_MOST = 100  # notifications that wait for one target
_READ = 1 << 16  # bytes of an answer that are read


class Target(Record):
    """``argv`` of a command, or a ``url``. ``label`` names it in messages and holds no secret."""

    label: str
    argv: tuple[str, ...] = ()
    url: str = ""

    @property
    def secret(self) -> str:
        """What no record may hold: web services have their tokens in the URL."""
        return self.url if urlsplit(self.url).path.strip("/") or urlsplit(self.url).query else ""


def parse_target(text: str, environ: Mapping[str, str]) -> Target:
    """A URL, a command, or ``env:NAME``, the variable that holds either. Raises `UsageError`."""
    if text.startswith(_ENV):
        name = text.removeprefix(_ENV)
        if not environ.get(name):
            raise UsageError(f"--notify {printable(text)}: the variable is not set", hint=f"export {printable(name)}=…")
        return _parse_target(environ[name], printable(text), from_env=True)
    return _parse_target(text, "", from_env=False)


def _parse_target(text: str, label: str, *, from_env: bool) -> Target:
    if text.lower().startswith(("http://", "https://")):
        return _parse_url(text, label, from_env=from_env)
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--notify takes a command or a URL: {str(error).lower()}") from None
    if not argv:
        raise UsageError("--notify takes a command or a URL, not an empty word")
    label = label or printable(argv[0])
    if shutil.which(argv[0]) is None:
        reasons = ["a URL begins with http:// or https://"] if "://" in argv[0] else []
        raise UsageError(f"--notify {label}: there is no such command", reasons=reasons)
    return Target(label, argv)


def _parse_url(url: str, label: str, *, from_env: bool) -> Target:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or any(char.isspace() or not char.isprintable() for char in url):
        raise UsageError(f"--notify {label or 'URL'}: not a URL with a host")
    if not from_env and (parts.password or any(looks_secret(name) for name, _ in parse_qsl(parts.query))):
        what = "--notify has a secret in its URL, which every user of this machine can read"
        raise UsageError(
            what, hint="put it into a variable (export IPEXCTL_HOOK='https://…'): --notify env:IPEXCTL_HOOK"
        )
    return Target(label or f"{parts.scheme}://{printable(host)}", url=url)


class Notifier:
    """Delivers notifications to ``targets``. ``pop_warnings`` has one line for each target that failed, once."""

    def __init__(self, targets: Sequence[Target], environ: Mapping[str, str], limit: float = LIMIT) -> None:
        self._environ, self._limit = environ, limit
        self._warnings: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._queues: list[queue.Queue[tuple[str, bytes] | None]] = []
        self._threads = []
        for target in targets:
            waiting: queue.Queue[tuple[str, bytes] | None] = queue.Queue(_MOST)
            thread = threading.Thread(target=self._deliver_all, args=(target, waiting), name="notify", daemon=True)
            self._queues.append(waiting)
            self._threads.append(thread)
            thread.start()

    def send(self, event: str, document: bytes) -> None:
        """Passes a JSON document on; returns at once. What a target is too slow for is dropped."""
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
        for thread in self._threads:
            while thread.is_alive() and time.monotonic() < until and not is_interrupted():
                thread.join(0.05)

    def pop_warnings(self) -> list[str]:
        """What went wrong since the last call."""
        warnings = []
        while not self._warnings.empty():  # nobody else takes any
            warnings.append(self._warnings.get_nowait())
        return warnings

    def _deliver_all(self, target: Target, waiting: "queue.Queue[tuple[str, bytes] | None]") -> None:
        failed = False
        while (item := waiting.get()) is not None:
            why = self._post(target.url, item[1]) if target.url else self._execute(target.argv, *item)
            if why and not failed:
                self._warnings.put(f"--notify {target.label}: {printable(why, 200)}; the command goes on")
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

    def _post(self, url: str, document: bytes) -> str:
        """Why a web service did not take it, or nothing."""
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, build_opener

        headers = {"Content-Type": "application/json", "User-Agent": "ipexctl"}
        try:
            request = Request(url, document, headers, method="POST")
            with build_opener(_make_redirect_handler()).open(request, timeout=self._limit) as answer:
                answer.read(_READ)
        except _ForeignRedirectError:
            return "it redirects to another host, which is not followed"
        except HTTPError as error:
            return f"HTTP status {error.code}"
        except (URLError, HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            return (getattr(reason, "strerror", None) or str(reason) or type(reason).__name__).lower()
        return ""


class _ForeignRedirectError(Exception):
    """A web service sends us to another host."""


def _make_redirect_handler() -> Any:
    """Follows redirects with the same document, to the same host and port only: the document is for nobody else."""
    from urllib.request import HTTPRedirectHandler, Request

    class SameHost(HTTPRedirectHandler):
        max_redirections = 3

        def redirect_request(self, request: Any, fp: Any, code: int, message: str, headers: Any, url: str) -> Any:
            before, after = urlsplit(request.full_url), urlsplit(url)
            if (before.scheme, before.hostname, before.port) != (after.scheme, after.hostname, after.port):
                raise _ForeignRedirectError
            return Request(url, request.data, dict(request.headers), method="POST")

        http_error_308 = HTTPRedirectHandler.http_error_302  # before Python 3.11 it is not known

    return SameHost()
