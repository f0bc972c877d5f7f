"""A session with one host: a small program of ours runs there, takes requests and answers them.

The program comes in through its own input, so nothing is left on the host; when the session is closed (or we are
killed, or the link is cut) its input ends, and it undoes what it had not finished."""

import logging
import math
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

from ipexctl.act import agent
from ipexctl.act.threads import StallTimer
from ipexctl.model.errors import Failure, Kind, LinkError
from ipexctl.model.errors import RemoteError as RemoteError
from ipexctl.model.hosts import Channel, Command, Link
from ipexctl.protocol import session as messages
from ipexctl.protocol.codec import MESSAGE_LIMIT, DamagedError, Unreadable, decode

T = TypeVar("T")
_log = logging.getLogger(__name__)

# Reads the program, whose length is known, and leaves the rest of the input to it.
BOOT = """import sys, zlib
exec(compile(zlib.decompress(sys.stdin.buffer.read(int(sys.argv[1]))), '<ipexctl>', 'exec'))"""
_OWN_MODULES = {"install": ("confirmation", "environments", "places", "programs", "uv")}
_SILENCE_TIMEOUT = 30.0  # seconds without a sign of life after which the host counts as lost
_EXIT_TIMEOUT = 5.0  # seconds that a program may take to end


def load_session_program(name: str) -> str:
    """Returns a session program with the modules it imports, as text: "install", "relay", "netcheck"."""
    others = [f"remote.session.{other}" for other in ("loop", "relay", *_OWN_MODULES.get(name, ()))]
    return agent.build_program(f"remote.session.{name}", "remote.agent.procs", *others)


class Session(AbstractContextManager["Session"]):
    """Opens with `Session.start`; `call` waits for the answer. One request at a time. Close it."""

    def __init__(self, host: str, channel: Channel, silence: float = _SILENCE_TIMEOUT) -> None:
        self._host = host
        self._channel = channel
        self._silence = silence
        self._errors = bytearray()  # the end of its standard error, for the message when it dies
        self._timer: StallTimer | None = None  # of the last answer that was awaited
        self._closed = False
        self.quickest = math.inf  # seconds of the quickest answer: about the delay of the host
        self._messages = self._read_messages()

    @classmethod
    def start(cls, link: Link, python: str, program: str, *, silence: float = _SILENCE_TIMEOUT) -> "Session":
        """Starts a program under an interpreter of the host. Raises `LinkError`."""
        packed = zlib.compress(program.encode(), 1)
        channel = link.stream(Command((python, "-I", "-u", "-c", BOOT, str(len(packed)))))
        session = cls(link.host.name, channel, silence)
        try:
            with suppress(OSError):  # it has ended already: its standard error says why
                channel.write(packed)
            with session._limit_silence():
                message = next(session._messages, None)
            if not isinstance(message, messages.Ready):
                raise session._explain_end()
        except BaseException:
            session.close()
            raise
        return session

    def call(
        self, do: str, kind: type[T], *, progress: Callable[[int, int], None] | None = None, **arguments: Any
    ) -> T:
        """Returns the answer to a request, of the type ``kind``; ``progress`` gets (done, total). Raises `LinkError`;
        `RemoteError` for what the host cannot do, for a malformed answer (code "malformed"), and for a fault of our
        program there (code "internal"), as the host says: its traceback is in debug.log."""
        begun = time.monotonic()
        try:
            self._channel.write(messages.encode_request(do, arguments))
        except (ValueError, OSError):
            raise self._explain_end() from None
        with self._limit_silence():
            for message in self._messages:
                if isinstance(message, messages.Progress) and progress:
                    progress(message.done, message.total)
                elif isinstance(message, (messages.Done, messages.Failed, Unreadable)):
                    took, outcome = time.monotonic() - begun, type(message).__name__.lower()
                    self.quickest = min(self.quickest, took)
                    _log.info("%s: request %s: %s after %.3f s", self._host, do, outcome, took)
                    if isinstance(message, messages.Failed) and message.code == messages.INTERNAL:
                        _log.error("%s: request %s: %s", self._host, do, message.details.get("traceback"))
                    return _decode_answer(message, do, kind)
        raise self._explain_end()

    def close(self) -> None:
        """Ends its input and our side. Safe to call twice."""
        if not self._closed:
            self._closed = True
            with suppress(ValueError, OSError, LinkError):
                self._channel.end_input()
            self._channel.close()

    def end(self) -> None:
        """Ends its input and waits until the program has ended, so that its lock is free when this returns."""
        with suppress(ValueError, OSError, LinkError), StallTimer(self.close, _EXIT_TIMEOUT):
            self._channel.end_input()
            for _ in self._channel:
                pass
        self.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_messages(self) -> Iterator[messages.Message | Unreadable]:
        incomplete, noise = bytearray(), 0  # bytes that are no messages
        for stream, data in self._channel:
            if stream == "err":
                self._errors += data
                del self._errors[:-4096]
                continue
            if self._timer:
                self._timer.reset(self._silence)
            incomplete += data
            lines: list[bytearray] = []
            if b"\n" in data:  # else a piece costs no more than its bytes
                *lines, incomplete = incomplete.split(b"\n")
            for line in lines:
                message = messages.decode_message(bytes(line))
                noise += len(line) + 1 if message is None else 0
                if message is not None and not isinstance(message, messages.KeepAlive):
                    yield message
            if max(len(incomplete), noise) > MESSAGE_LIMIT:
                return

    def _explain_end(self) -> LinkError:
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        what = "lost: its session ended" + (f" with {lines[-1][:300]!r}" if lines else "")
        if self._timer and self._timer.stalled:
            what = f"lost: no answer for {self._silence:g} s"
        return LinkError(Failure(self._host, Kind.UNREACHABLE, what, code="lost"))

    @contextmanager
    def _limit_silence(self) -> Iterator[None]:
        """While it is entered, silence ends the session."""
        with StallTimer(self._channel.close, self._silence) as self._timer:
            yield


def _decode_answer(message: messages.Done | messages.Failed | Unreadable, do: str, kind: type[T]) -> T:
    if isinstance(message, messages.Failed):
        raise RemoteError(message.code, message.what, message.details)
    try:
        if isinstance(message, messages.Done):
            return decode(kind, message.answer)
    except DamagedError:
        pass
    raise RemoteError(messages.MALFORMED, f"unexpected response from the host to {do}", {})
