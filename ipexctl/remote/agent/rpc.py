"""How keeper, guards and watchers talk: JSON lines over TCP, opened by proofs of the run's token, then sealed.

The token lies in ``spec.json`` (mode 0600) on each host of the run and never travels. A stranger gets no further than
the keeper's challenge and costs one of few waiting places for a few seconds. `seal` says what a line's seal promises.
"""

import base64
import errno
import os
import select
import socket
import struct
import time
from collections import deque
from contextlib import suppress
from typing import Any, Iterator, Optional, Sequence, Union

from ipexctl.protocol import seal
from ipexctl.protocol.codec import MESSAGE_LIMIT, Unreadable, load_object
from ipexctl.protocol.messages import KINDS, Challenge, Hello, Message, RanksOutput, Tampered, Welcome

Received = Union[Message, Unreadable, RanksOutput]

BACKLOG = 128  # connections that wait for the keeper
GREETING_LIMIT = 1 << 12  # the same of somebody who has not proved itself yet
PIECE = 1 << 18  # bytes that are received at a time
_RTT_AT = 68  # where the kernel's description of a connection has the time of a packet there and back
_BYTES = b"="  # the first letter of a line that is no object: bytes in base64


def listen_on_free_port(address: str, ports: "Sequence[int]", later: bool = False) -> "socket.socket":
    """Returns a socket that listens on the last free one of the ports from ``ports[0]`` to ``ports[1]``; 0 is any. (MPI
    takes the first ones.) ``later``: it has its port, and refuses connections until it is to listen. Raises OSError."""
    for port in range(ports[1], ports[0] - 1, -1):
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            if not later:  # of the run before, connections may linger; while nobody listens, others could have the port
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, port))
            if not later:
                sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return sock
    raise OSError(errno.EADDRINUSE, "all ports from %d to %d are in use" % (ports[0], ports[1]))


class Wire:
    """One connection. ``send`` queues without blocking; ``receive`` gives the messages that have arrived whole, of
    ``most`` bytes each."""

    def __init__(self, sock: "socket.socket", most: int = MESSAGE_LIMIT) -> None:
        self.sock = sock
        self.most = most
        self.sock.setblocking(False)
        self.inbox = b""
        self.lines: "deque[bytes]" = deque()  # whole, and not yet taken
        self.outbox = b""
        self.open = True
        self.tampered = False  # closed because of a line that the other side did not seal, or complained of
        self.role = self.name = self.challenge = ""
        self.since = self.heard = self.asked = time.monotonic()
        self.answer: Any = None  # of a guard: its last `keeper_state.LastPong`; ``asked``: when we sent that ping
        self.peer = ("", 0)  # where it was connected to
        self.sending: "Optional[seal.Seals]" = None  # both are there once both sides are proved
        self.receiving: "Optional[seal.Seals]" = None

    def fileno(self) -> int:
        return self.sock.fileno()

    def measure_delay(self) -> "Optional[float]":
        """Returns the milliseconds of a packet to the other side and back, as the kernel measures them (``tcpi_rtt`` of
        linux/tcp.h, in microseconds); None where it does not tell."""
        try:
            info = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + 4)
            microseconds: int = struct.unpack_from("=I", info, _RTT_AT)[0]
            return microseconds / 1000.0
        except (OSError, struct.error):
            return None

    def send(self, message: "Message") -> None:
        self._send_line(KINDS.write(message))

    def send_output(self, output: bytes) -> None:
        """Sends a `RanksOutput`, of less than 3/4 of `MESSAGE_LIMIT`."""
        self._send_line(_BYTES + base64.b64encode(output))

    def _send_line(self, line: bytes) -> None:
        self.outbox += (self.sending.seal(line) if self.sending else line) + b"\n"
        self.flush()

    def flush(self) -> None:
        while self.open and self.outbox:
            try:
                self.outbox = self.outbox[self.sock.send(self.outbox) :]
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()

    def drain(self, seconds: float) -> None:
        """Sends what waits, for so long at most."""
        until = time.monotonic() + seconds
        while self.open and self.outbox and time.monotonic() < until:
            select.select([], [self], [], 0.1)
            self.flush()

    def finish(self, seconds: float) -> "Iterator[Any]":
        """The same, then yields what comes for as long, until the other side has closed: what is on its way to it would
        be lost if this process ended before it has read all that came, as pings do until then."""
        self.drain(seconds)
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        until = time.monotonic() + seconds
        yield from iter(lambda: self.wait(until - time.monotonic()), None)

    def receive(self) -> "Iterator[Received]":
        """Messages received since the last call; closes the wire at its end or at a line that is no object, and as
        ``tampered`` at one whose seal is wrong. Raises nothing."""
        ended, pieces, size = False, [self.inbox], len(self.inbox)
        while self.open and not ended and size <= self.most and not self.lines:  # by `wait` they are taken one by one
            try:
                piece = self.sock.recv(PIECE)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                piece = b""
            ended = not piece
            pieces.append(piece)
            size += len(piece)
            self.heard = self.heard if ended else time.monotonic()
        *lines, self.inbox = b"".join(pieces).split(b"\n")
        self.lines.extend(lines)
        while self.lines:  # a greeting's answer changes how the next line is read
            message = self._read(self.lines.popleft())
            if message is None:
                self.close()
            elif isinstance(message, Tampered):
                self.tampered = True
                self.close()
            else:
                yield message
        if ended or len(self.inbox) > self.most:
            self.close()

    def wait(self, seconds: float) -> "Optional[Received]":
        """Returns the next message; None if there is none in time, or no more."""
        until = time.monotonic() + seconds
        while True:
            for message in self.receive():
                return message
            if not self.open or time.monotonic() >= until:
                return None
            select.select([self], [], [], max(0.0, until - time.monotonic()))

    def read_bytes(self, count: int, patience: float) -> "Iterator[bytes]":
        """The next bytes, which are no lines, and have no seal. Ends early where none has come for so many seconds."""
        piece = b"\n".join([*self.lines, self.inbox])
        self.lines.clear()
        self.inbox, piece = piece[count:], piece[:count]
        while count:
            if not piece and select.select([self], [], [], patience)[0]:
                with suppress(OSError):
                    piece = self.sock.recv(min(PIECE, count))
            if not piece:
                return
            yield piece
            count -= len(piece)
            piece = b""

    def start_sealing(self, token: str, side: str, greeting: "seal.Greeting") -> None:
        """From here on lines are sealed; ``side`` is ours."""
        self.role, self.name, self.most = greeting.role, greeting.name, MESSAGE_LIMIT + seal.SEAL
        other = seal.CALLER if side == seal.KEEPER else seal.KEEPER
        self.sending, self.receiving = seal.Seals(token, side, greeting), seal.Seals(token, other, greeting)

    def close(self) -> None:
        self.lines.clear()
        if self.open:
            self.open = False
            self.sock.close()

    def _read(self, line: bytes) -> "Optional[Received]":
        """None for what is no object, and for what is too long."""
        if len(line) > self.most:
            return None
        if self.receiving:
            opened = self.receiving.open(line)
            if opened is None:
                self.send(Tampered())
                return Tampered()
            line = opened
        try:
            if self.receiving and line.startswith(_BYTES):
                return RanksOutput(base64.b64decode(line[1:]))
            return KINDS.from_object(load_object(line))
        except ValueError:  # `DamagedError`, or no base64
            return None


def connect(address: str, port: int, token: str, role: str, name: str, timeout: float) -> "Wire":
    """A connection to the keeper on which both sides are proved. Raises OSError within about `timeout` seconds."""
    host: Any = address
    with suppress(UnicodeEncodeError):
        host = address.encode("ascii")  # for a text Python would first load all rules of international names
    sock = socket.create_connection((host, port), timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wire = Wire(sock)
    wire.peer = (address, port)
    message = wire.wait(timeout)
    if not isinstance(message, Challenge):
        wire.close()
        raise OSError("%s:%d is not this run's keeper" % (address, port))
    greeting = seal.Greeting(message.challenge, os.urandom(16).hex(), role, name, time.time())
    wire.send(Hello(*greeting[1:], proof=seal.compute_proof(token, seal.CALLER, greeting)))
    message = wire.wait(timeout)
    if not isinstance(message, Welcome):
        wire.close()
        raise OSError("the keeper at %s:%d does not know this run's token" % (address, port))
    if not seal.verify_proof(token, seal.KEEPER, greeting, message.proof):
        wire.close()
        raise OSError("%s:%d does not prove to be this run's keeper" % (address, port))
    wire.start_sealing(token, seal.CALLER, greeting)
    return wire


def send_challenge(wire: "Wire") -> None:
    """The keeper's first word."""
    wire.challenge = os.urandom(16).hex()
    wire.send(Challenge(wire.challenge))


def verify_caller(wire: "Wire", message: "Received", token: str) -> str:
    """Checks the answer to `send_challenge`; the other side's role, which the wire carries, or "" for a stranger."""
    if not isinstance(message, Hello):
        return ""
    greeting = seal.Greeting(wire.challenge, *message[:-1])
    if not seal.verify_proof(token, seal.CALLER, greeting, message.proof):
        return ""
    wire.send(Welcome(seal.compute_proof(token, seal.KEEPER, greeting)))
    wire.start_sealing(token, seal.KEEPER, greeting)
    return message.role
