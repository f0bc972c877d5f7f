"""The banner of an SSH server, awaited by a deadline, and what a busy one sends in its place."""

import socket
import time

from ipexctl.model.errors import ConnectError
from ipexctl.model.text import printable

# What sshd sends in place of a banner, and the limit that it has reached (sshd.c, srclimit.c; it has no codes).
_REFUSED_LOGINS = {b"Exceeded MaxStartups": "connection limit", b"Not allowed at this time": "penalty for this address"}
_BANNER_LIMIT = 16 << 10  # bytes looked through for the banner


class ShedError(EOFError):
    """The server closed the connection before it began, because of its ``limit``; ``words`` are its own."""

    def __init__(self, limit: str, words: str) -> None:
        super().__init__(words)
        self.limit, self.words = limit, words


def await_banner(sock: socket.socket, deadline: float) -> None:
    """Waits until the banner has come, without taking it. Raises `EOFError`, perhaps with the server's words, where the
    server closes the connection instead, `ConnectError` for anything else that comes."""
    seen = b""
    while True:
        left = deadline - time.monotonic()
        try:
            sock.settimeout(max(0.01, left))
            data = sock.recv(_BANNER_LIMIT, socket.MSG_PEEK) if left > 0 else b""
        except TimeoutError:
            data, left = b"", 0.0
        except OSError as error:
            raise EOFError from error
        lines = data.split(b"\n")
        if any(line.startswith(b"SSH-") for line in lines[:-1]):
            return
        limit = next((limit for words, limit in _REFUSED_LOGINS.items() if data.startswith(words)), "")
        if limit and b"\n" in data:
            raise ShedError(limit, printable(lines[0].decode("ascii", "replace").strip(), 60))
        if not data or len(data) >= _BANNER_LIMIT or (len(data) == len(seen) and left <= 0):
            seen = data or seen
            if seen:
                first = seen.decode("utf-8", "replace").strip().partition("\n")[0].rstrip()
                raise ConnectError("not-ssh", f"not an SSH server: it says '{printable(first, 40)}'")
            if left <= 0:
                raise ConnectError("banner", "no SSH banner")
            raise EOFError
        if len(data) == len(seen):  # nothing new has come: give the rest of the banner time
            time.sleep(0.05)
        seen = data
