"""A conversation with one host: a small program of ours runs there, takes commands and answers, JSON lines both ways.

The program comes in through its own input, so nothing is left on the host; when the conversation is closed (or we are
killed, or the link is cut) its input ends, and it undoes what it had not finished.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from ipexctl.model.commands import Command
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.errors import RemoteError as RemoteError
from ipexctl.model.links import Channel, Link, LinkError

# Reads the program, whose length is known, and leaves the rest of the input to it.
_BOOT = "import sys;n=int(sys.argv[1]);exec(compile(sys.stdin.buffer.read(n),'<ipexctl>','exec'))"
_LONGEST = 4 << 20  # bytes of one answer
_SILENCE = 30.0  # seconds without a sign of life after which the host counts as lost


class Session:
    """Opens with `Session.start`; `ask` waits for the answer. One command at a time. Close it."""

    def __init__(self, host: str, channel: Channel, silence: float = _SILENCE) -> None:
        self._host = host
        self._channel = channel
        self._silence = silence
        self._said = bytearray()  # the end of its errors, for the message when it dies
        self._heard = time.monotonic()
        self._awaited = False
        self._closed = threading.Event()
        self._lost = False
        self._messages = self._read()
        threading.Thread(target=self._watch, name=f"watch {host}", daemon=True).start()

    @classmethod
    def start(cls, link: Link, python: str, program: str, *, silence: float = _SILENCE) -> Session:
        """Raises `LinkError`."""
        text = program.encode()
        argv = (python, "-I", "-u", "-c", _BOOT, str(len(text)))
        channel = link.stream(Command(argv))
        session = cls(link.host.name, channel, silence)
        try:
            try:
                channel.write(text)
            except (BrokenPipeError, OSError):
                pass  # it is gone already: its last words say why
            with session._awaiting():
                message = next(session._messages, None)
            if message is None or not message.get("ready"):
                raise session._dead()
        except BaseException:
            session.close()
            raise
        return session

    def ask(self, do: str, *, progress: Callable[[int, int], None] | None = None, **arguments: Any) -> dict[str, Any]:
        """The answer to a command. ``progress`` is told (done, total). Raises `RemoteError` or `LinkError`."""
        try:
            self._channel.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        except (BrokenPipeError, ValueError, OSError):
            raise self._dead() from None
        with self._awaiting():
            for message in self._messages:
                if "progress" in message:
                    done, total = message["progress"], message.get("total")
                    if progress and isinstance(done, int) and isinstance(total, int):
                        progress(done, total)
                elif "done" in message:
                    return dict(message["done"])
                elif "failed" in message:
                    raise RemoteError(str(message["failed"]), str(message["what"]), message.get("more") or {})
        raise self._dead()

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
        """Ends its input and waits until it has gone, so that its lock is free when we return."""
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

    def _read(self) -> Iterator[dict[str, Any]]:
        rest = b""
        for stream, data in self._channel:
            self._heard = time.monotonic()
            if stream == "err":
                self._said += data
                del self._said[:-4096]
                continue
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _LONGEST:
                return
            for line in lines:
                try:
                    message = json.loads(line)
                except ValueError:
                    continue  # not ours
                if isinstance(message, dict):
                    yield message

    def _dead(self) -> LinkError:
        if self._lost:
            what = f"lost: no answer for {self._silence:g} s"
            return LinkError(Failure(self._host, Kind.UNREACHABLE, what, code="lost"))
        said = self._said.decode("utf-8", "replace").strip().splitlines()
        what = "lost: its session ended" + (f" with {said[-1][:300]!r}" if said else "")
        return LinkError(Failure(self._host, Kind.UNREACHABLE, what, code="lost"))

    def _awaiting(self) -> _Awaiting:
        return _Awaiting(self)

    def _watch(self) -> None:
        while not self._closed.wait(1.0):
            if self._awaited and time.monotonic() - self._heard > self._silence:
                self._lost = True
                self._channel.close()
                return


class _Awaiting:
    """While it is entered, silence counts."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session._heard = time.monotonic()
        self._session._awaited = True

    def __exit__(self, *_: object) -> None:
        self._session._awaited = False
