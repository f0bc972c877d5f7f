"""How keeper, guards, shims and watchers talk: JSON lines over TCP, opened by proof of the run's token.

The token lies in ``spec.json`` (mode 0600) on each host of the run and never travels: the keeper sends a challenge,
the other side answers with an HMAC. A stranger gets no further and costs one of few waiting places for a few seconds.
"""

import hashlib
import hmac
import os
import socket
import time
from typing import List, Optional, Union

from ipexctl.protocol.codec import DamagedError, Unreadable, load_object
from ipexctl.protocol.messages import KINDS, Challenge, Hello, Message, Welcome
from ipexctl.protocol.timings import Timings

Received = Union[Message, Unreadable]

LINE = 1 << 20  # longest message, bytes
GREETS = 1 << 12  # the same of somebody who has not proved itself yet
GREETING = "ipexctl-run-1"


class AuthenticationError(OSError):
    """The other side is not ours, or does not believe us."""


def proof(token: str, challenge: str, role: str, name: str) -> str:
    message = _bytes("\n".join([GREETING, challenge, role, name]))
    return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()


class Wire:
    """One connection. ``send`` queues without blocking; ``take`` returns the messages that have arrived whole, of
    ``most`` bytes each."""

    def __init__(self, sock: "socket.socket", most: int = LINE) -> None:
        self.sock = sock
        self.most = most
        self.sock.setblocking(False)
        self.inbox = b""
        self.outbox = b""
        self.open = True
        self.role = ""
        self.name = ""
        self.since = time.monotonic()
        self.heard = time.monotonic()
        self.challenge = ""

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: "Message") -> None:
        self.outbox += KINDS.write(message) + b"\n"
        self.flush()

    def flush(self) -> None:
        while self.open and self.outbox:
            try:
                self.outbox = self.outbox[self.sock.send(self.outbox) :]
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()

    def take(self) -> "List[Received]":
        """Messages received since the last call; closes the wire at its end or at a line that is no object. Raises
        nothing."""
        while self.open and len(self.inbox) <= self.most:
            try:
                piece = self.sock.recv(65536)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                piece = b""
            if not piece:
                self.close()
                break
            self.inbox += piece
            self.heard = time.monotonic()
        *lines, self.inbox = self.inbox.split(b"\n")
        if len(self.inbox) > self.most:
            self.close()
        messages = []
        for line in lines:
            message = _message(line) if len(line) <= self.most else None
            if message is None:
                self.close()
                break
            messages.append(message)
        return messages

    def close(self) -> None:
        if self.open:
            self.open = False
            self.sock.close()


def connect(address: str, port: int, token: str, role: str, name: str, timeout: float = Timings().connect) -> "Wire":
    """A believed connection to the keeper. Raises OSError (also AuthenticationError) within about `timeout` seconds."""
    sock = socket.create_connection((address, port), timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    challenge = _line(sock)
    if not isinstance(challenge, Challenge):
        raise AuthenticationError("%s:%d is not this run's keeper" % (address, port))
    hello = Hello(role, name, proof(token, challenge.challenge, role, name), time.time())
    sock.sendall(KINDS.write(hello) + b"\n")
    if not isinstance(_line(sock), Welcome):
        raise AuthenticationError("the keeper at %s:%d does not know this run's token" % (address, port))
    return Wire(sock)


def challenge(wire: "Wire") -> None:
    """The keeper's first word."""
    wire.challenge = os.urandom(16).hex()
    wire.send(Challenge(wire.challenge))


def believe(wire: "Wire", message: "Received", token: str) -> str:
    """Checks the answer to `challenge`; the other side's role, which the wire now carries, or "" for a stranger."""
    if not isinstance(message, Hello):
        return ""
    wanted = proof(token, wire.challenge, message.role, message.name)
    if not hmac.compare_digest(_bytes(message.proof), _bytes(wanted)):
        return ""
    wire.role, wire.name, wire.most = message.role, message.name, LINE
    wire.send(Welcome())
    return message.role


def _line(sock: "socket.socket") -> "Received":
    text = b""
    while not text.endswith(b"\n") and len(text) < GREETS:
        piece = sock.recv(1)
        if not piece:
            raise AuthenticationError("the connection was closed before the greeting")
        text += piece
    message = _message(text)
    if message is None:
        raise AuthenticationError("the greeting is not the keeper's")
    return message


def _message(line: bytes) -> "Optional[Received]":
    """None for what is no object."""
    try:
        return KINDS.from_object(load_object(line))
    except DamagedError:
        return None


def _bytes(text: str) -> bytes:
    """Of any text: JSON can name half a character ("\\ud800"), which UTF-8 cannot."""
    return text.encode("utf-8", "surrogatepass")
