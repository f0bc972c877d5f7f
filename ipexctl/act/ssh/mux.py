"""The client's side of OpenSSH's multiplexing protocol (PROTOCOL.mux of its sources), over the control socket of an
``ssh`` that holds a connection: sessions on it start without a login.

A message is its length and its body, numbers are big-endian and of 32 bits, strings begin with their length. A session
gets three descriptors, its standard input and outputs, as SCM_RIGHTS of one byte each; from then on its bytes do not
pass through this process's protocol at all. One control connection carries one session: it ends with it."""

import os
import select
import socket
import stat
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ipexctl.model.json_values import Record

_VERSION = 4
_HELLO = 0x00000001
_NEW_SESSION, _ALIVE_CHECK, _TERMINATE = 0x10000002, 0x10000004, 0x10000005
_OK, _DENIED, _FAILURE, _EXIT, _ALIVE, _OPENED = (0x80000000 | number for number in (1, 2, 3, 4, 5, 6))
_NO_ESCAPE = 0xFFFFFFFF
_LONGEST = 1 << 18  # bytes of a message, as in OpenSSH
_PEER = struct.Struct("iII")  # struct ucred: process, user, group


class MuxError(Exception):
    """The holder cannot be spoken to: it has ended, belongs to somebody else, or speaks another protocol."""


class SessionRefusedError(Exception):
    """The host opens no further session, by `MaxSessions`, or the holder does not."""


class MuxTimeoutError(Exception):
    """No answer in time."""


class MuxMessage(Record):
    """A message of the holder: its kind, the number that follows (of a request or of a session), and the rest."""

    kind: int
    number: int
    body: bytes

    @property
    def value(self) -> int:
        """The number in the body: an exit status, or a process id."""
        if len(self.body) < 4:
            raise MuxError("the holder sent a message that is too short")
        return int.from_bytes(self.body[:4], "big")

    @property
    def text(self) -> str:
        """The string in the body: why a request was refused."""
        return self.body[4 : 4 + self.value].decode("utf-8", "replace")


def pack_message(*parts: int | bytes) -> bytes:
    """A message of numbers and strings."""
    body = b"".join(
        part.to_bytes(4, "big") if isinstance(part, int) else len(part).to_bytes(4, "big") + part for part in parts
    )
    return len(body).to_bytes(4, "big") + body


def split_messages(data: bytearray) -> list[MuxMessage]:
    """Takes the whole messages out of ``data``. Raises `MuxError`."""
    found = []
    while len(data) >= 4:
        size = int.from_bytes(data[:4], "big")
        if not 8 <= size <= _LONGEST:
            raise MuxError(f"the holder sent a message of {size} bytes")
        if len(data) < 4 + size:
            break
        kind, number = struct.unpack_from(">II", data, 4)
        found.append(MuxMessage(kind, number, bytes(data[12 : 4 + size])))
        del data[: 4 + size]
    return found


class MuxConnection:
    """A control connection to the holder at ``path``. Raises `MuxError` if there is none that can be trusted.

    ``timeout`` in seconds is for the greeting: the holder is a process of this machine."""

    def __init__(self, path: Path, timeout: float = 5.0) -> None:
        self._received = bytearray()
        self._messages: list[MuxMessage] = []
        self._request = 0
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            status = path.lstat()
            if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.getuid():
                raise MuxError(f"{path} is no socket of ours")
            self.socket.settimeout(timeout)
            self.socket.connect(os.fspath(path))
            peer = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            if _PEER.unpack(peer)[1] != os.getuid():
                raise MuxError(f"{path} is served by another user")
            self.socket.setblocking(False)
            self._send(pack_message(_HELLO, _VERSION))
            hello = self._wait_for_message(time.monotonic() + timeout)
            if (hello.kind, hello.number) != (_HELLO, _VERSION):
                raise MuxError("the holder speaks another protocol")
        except (OSError, MuxTimeoutError) as error:
            self.socket.close()
            raise MuxError(str(error)) from None
        except BaseException:
            self.socket.close()
            raise

    def check_alive(self, timeout: float) -> int:
        """The process id of the holder. Raises `MuxError`, also where it does not answer within ``timeout`` seconds."""
        try:
            return self._ask(_ALIVE_CHECK, deadline=time.monotonic() + timeout, expected=_ALIVE).value
        except (MuxTimeoutError, SessionRefusedError) as error:
            raise MuxError(f"no answer of the holder: {error}") from None

    def terminate(self, timeout: float) -> None:
        """Ends the holder and waits for its end. Raises `MuxError` if it does not within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        try:
            self._ask(_TERMINATE, deadline=deadline, expected=_OK)
            while True:
                self._wait_for_message(deadline)
        except (MuxTimeoutError, SessionRefusedError) as error:
            raise MuxError(f"the holder does not end: {error}") from None
        except MuxError:  # the connection ends with it
            return

    def open_session(self, line: bytes, descriptors: Sequence[int], timeout: float) -> None:
        """Starts a command with these descriptors as standard input, output and error; the caller closes its own.

        Returns when the host has opened the session. Raises `SessionRefusedError` if it does not, `MuxTimeoutError`
        after ``timeout`` seconds, `MuxError` if the holder has ended."""
        no = 0  # terminal, X11, agent, subsystem
        words = (b"", no, no, no, no, _NO_ESCAPE, b"", line)
        self._ask(_NEW_SESSION, *words, deadline=time.monotonic() + timeout, expected=_OPENED, descriptors=descriptors)

    def read_status(self, timeout: float | None) -> int | None:
        """The exit status of the session: 255 where it ended without one. None if it does not end within ``timeout``
        seconds; None waits for ever. Raises `MuxError` when the connection has ended before."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while (message := self._wait_for_message(deadline)).kind != _EXIT:
                pass
        except MuxTimeoutError:
            return None
        return message.value

    def has_ended(self, timeout: float = 0.0) -> bool:
        """Whether the connection has ended, or does so within ``timeout`` seconds. No message may be expected."""
        try:
            if timeout:
                self._poll(select.POLLIN, time.monotonic() + timeout)
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except (OSError, ValueError):  # also closed by us
            return True

    def wake(self) -> None:
        """Ends the waiting of other threads: for them the connection has ended."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()

    def _ask(
        self, kind: int, *parts: int | bytes, deadline: float, expected: int, descriptors: Sequence[int] = ()
    ) -> MuxMessage:
        self._request += 1
        self._send(pack_message(kind, self._request, *parts))
        for descriptor in descriptors:
            self._send(b"\0", descriptor)
        while True:
            message = self._wait_for_message(deadline)
            if message.kind in (_DENIED, _FAILURE) and message.number == self._request:
                raise SessionRefusedError(message.text)
            if message.kind == expected and message.number == self._request:
                return message

    def _send(self, data: bytes, descriptor: int | None = None) -> None:
        remaining = memoryview(data)
        while remaining:
            try:
                if descriptor is None:
                    sent = self.socket.send(remaining)
                else:
                    sent = socket.send_fds(self.socket, [remaining], [descriptor])
            except BlockingIOError:
                self._poll(select.POLLOUT, None)
                continue
            except OSError as error:
                raise MuxError(f"the holder has ended: {error.strerror}") from None
            remaining = remaining[sent:]

    def _wait_for_message(self, deadline: float | None) -> MuxMessage:
        """The next message; ``deadline`` is on the monotonic clock. Raises `MuxTimeoutError` and `MuxError`."""
        while not self._messages:
            try:
                data = self.socket.recv(1 << 14)
            except BlockingIOError:
                if not self._poll(select.POLLIN, deadline):
                    raise MuxTimeoutError("it takes too long") from None
                continue
            except OSError as error:
                raise MuxError(f"the holder has ended: {error.strerror}") from None
            if not data:
                raise MuxError("the holder has ended")
            self._received += data
            self._messages = split_messages(self._received)
        return self._messages.pop(0)

    def _poll(self, event: int, deadline: float | None) -> bool:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return False
        poll = select.poll()
        poll.register(self.socket, event)
        return bool(poll.poll(None if left is None else left * 1000)) or left is None
