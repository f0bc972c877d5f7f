"""A session with one host: a small program of ours runs there, takes requests and answers them.

The program comes in through its own input, so nothing is left on the host; when the session is closed (or we are
killed, or the link is cut) its input ends, and it undoes what it had not finished.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from types import TracebackType
from typing import Any, TypeVar

from ipexctl.model.commands import Command
from ipexctl.model.errors import Failure, Kind, LinkError
from ipexctl.model.errors import RemoteError as RemoteError
from ipexctl.model.links import Channel, Link
from ipexctl.protocol.codec import DamagedError, Unreadable, decode
from ipexctl.protocol.session import (
    INTERNAL,
    LONGEST,
    MALFORMED,
    Done,
    Failed,
    KeepAlive,
    Message,
    Progress,
    Ready,
    decode_message,
    encode_request,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)

# Reads the program, whose length is known, and leaves the rest of the input to it.
BOOT = "import sys;n=int(sys.argv[1]);exec(compile(sys.stdin.buffer.read(n),'<ipexctl>','exec'))"
_SILENCE = 30.0  # seconds without a sign of life after which the host counts as lost
_SHARED = ("protocol.codec", "protocol.session", "remote.session.loop")
_START = """import json, sys, types
for name, text in json.loads(%r):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, '<' + name + '>', 'exec'), module.__dict__)
module.main()
"""


class SessionProgramError(RuntimeError):
    """A session program of ours has a fault: its exception, with the traceback of the host as a note."""


@cache
def load_program(name: str) -> str:
    """A session program ("install", "netcheck", "bench") as one text, with the modules it imports."""
    packages = ("", ".protocol", ".remote", ".remote.session")
    modules = [(f"ipexctl{package}", "") for package in packages]
    for module in (*_SHARED, f"remote.session.{name}"):
        source = files("ipexctl").joinpath(module.replace(".", "/") + ".py")
        modules.append((f"ipexctl.{module}", source.read_text("utf-8")))
    return _START % json.dumps(modules)


def load_script(name: str) -> str:
    """A file of ``remote/session`` as text."""
    return files("ipexctl.remote.session").joinpath(name).read_text("utf-8")


class Session:
    """Opens with `Session.start`; `call` waits for the answer. One request at a time. Close it."""

    def __init__(self, host: str, channel: Channel, silence: float = _SILENCE) -> None:
        self._host = host
        self._channel = channel
        self._silence = silence
        self._errors = bytearray()  # the end of its standard error, for the message when it dies
        self._heard = time.monotonic()
        self._awaited = False
        self._closed = threading.Event()
        self._lost = False
        self._messages = self._read()
        threading.Thread(target=self._watch, name=f"watch {host}", daemon=True).start()

    @classmethod
    def start(cls, link: Link, python: str, program: str, *, silence: float = _SILENCE) -> Session:
        """Starts the text of a ``program`` under an interpreter of the host. Raises `LinkError`."""
        text = program.encode()
        argv = (python, "-I", "-u", "-c", BOOT, str(len(text)))
        channel = link.stream(Command(argv))
        session = cls(link.host.name, channel, silence)
        try:
            try:
                channel.write(text)
            except (BrokenPipeError, OSError):
                pass  # it has ended already: its standard error says why
            with session._awaiting():
                message = next(session._messages, None)
            if not isinstance(message, Ready):
                raise session._explain_end()
        except BaseException:
            session.close()
            raise
        return session

    def call(
        self, do: str, kind: type[T], *, progress: Callable[[int, int], None] | None = None, **arguments: Any
    ) -> T:
        """The answer to a request, of the type ``kind``; ``progress`` gets (done, total).

        Raises `LinkError`; `RemoteError` for what the host cannot do and for a malformed answer (code "malformed");
        `SessionProgramError` for a fault of our program there.
        """
        begun = time.monotonic()
        try:
            self._channel.write(encode_request(do, arguments))
        except (BrokenPipeError, ValueError, OSError):
            raise self._explain_end() from None
        with self._awaiting():
            for message in self._messages:
                if isinstance(message, Progress) and progress:
                    progress(message.done, message.total)
                elif isinstance(message, (Done, Failed, Unreadable)):
                    took, outcome = time.monotonic() - begun, type(message).__name__.lower()
                    _log.info("%s: request %s: %s after %.3f s", self._host, do, outcome, took)
                    return _read_answer(message, do, kind)
        raise self._explain_end()

    def close(self) -> None:
        """Ends its input and our side. Safe to call twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            self._channel.end_input()
        except (BrokenPipeError, ValueError, OSError, LinkError):
            pass
        self._channel.close()

    def end(self, patience: float = 5.0) -> None:
        """Ends its input and waits until the program has ended, so that its lock is free when this returns."""
        try:
            self._channel.end_input()
            timer = threading.Timer(patience, self.close)
            timer.start()
            for _ in self._channel:
                pass
            timer.cancel()
        except (BrokenPipeError, ValueError, OSError, LinkError):
            pass
        self.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> Iterator[Message | Unreadable]:
        incomplete = b""
        for stream, data in self._channel:
            self._heard = time.monotonic()
            if stream == "err":
                self._errors += data
                del self._errors[:-4096]
                continue
            *lines, incomplete = (incomplete + data).split(b"\n")
            if len(incomplete) > LONGEST:
                return
            for message in map(decode_message, lines):
                if message is not None and not isinstance(message, KeepAlive):
                    yield message

    def _explain_end(self) -> LinkError:
        if self._lost:
            what = f"lost: no answer for {self._silence:g} s"
            return LinkError(Failure(self._host, Kind.UNREACHABLE, what, code="lost"))
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        what = "lost: its session ended" + (f" with {lines[-1][:300]!r}" if lines else "")
        return LinkError(Failure(self._host, Kind.UNREACHABLE, what, code="lost"))

    def _awaiting(self) -> _Awaiting:
        return _Awaiting(self)

    def _watch(self) -> None:
        while not self._closed.wait(1.0):
            if self._awaited and time.monotonic() - self._heard > self._silence:
                self._lost = True
                self._channel.close()
                return


def _read_answer(message: Done | Failed | Unreadable, do: str, kind: type[T]) -> T:
    if isinstance(message, Failed) and message.code == INTERNAL:
        raise SessionProgramError(f"{do}: {message.what}\n{message.details.get('traceback', '')}")
    if isinstance(message, Failed):
        raise RemoteError(message.code, message.what, message.details)
    try:
        if isinstance(message, Done):
            return decode(kind, message.answer)
    except DamagedError:
        pass
    raise RemoteError(MALFORMED, f"unexpected response from the host to {do}", {})


class _Awaiting:
    """While it is entered, silence counts."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session._heard = time.monotonic()
        self._session._awaited = True

    def __exit__(self, *_: object) -> None:
        self._session._awaited = False
