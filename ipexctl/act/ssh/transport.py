"""An SSH transport with bounded waits: the banner by a deadline, or what a busy server sends in its place; keepalives
that notice a host that is gone; the algorithms it asks for, in their order."""

import logging
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import paramiko

from ipexctl.act.ssh.hostkeys import matches_patterns
from ipexctl.act.ssh.paramiko_internals import QuietTransport
from ipexctl.act.ssh.tcp import LOST_AFTER
from ipexctl.model.errors import ConnectError as ConnectError
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


# The first of each that the host has too is taken. Measured: curve25519 and AES-GCM cost a fraction of the defaults.
KEX = ("curve25519-sha256@libssh.org", "curve25519-sha256", "ecdh-sha2-nistp256")
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
HOST_KEYS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
RSA = ("rsa-sha2-512", "rsa-sha2-256")
MACS = ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com", "hmac-sha2-256", "hmac-sha2-512", "hmac-sha1")


def change_algorithms(names: Sequence[str], value: str) -> list[str]:
    """``names`` as a value of ssh_config changes them: ``+`` adds some, ``^`` puts them first, ``-`` removes those that
    match its patterns, and a value without such a sign replaces them."""
    sign, listed = value[0], [name for name in value.lstrip("+-^").split(",") if name]
    if sign == "-":
        return [name for name in names if not matches_patterns(name, listed)]
    return list(dict.fromkeys({"+": [*names, *listed], "^": [*listed, *names]}.get(sign, listed)))


# Keyword of ssh_config → Paramiko's name of the list, and how its error and the server's offer call them.
_LISTS = {
    "kexalgorithms": ("kex", "kex algorithm", "kex_algo_list"),
    "hostkeyalgorithms": ("key_types", "host key", "server_key_algo_list"),
    "ciphers": ("ciphers", "ciphers", "server_encrypt_algo_list"),
    "macs": ("digests", "macs", "server_mac_algo_list"),
}

_WINDOW_SIZE = 4 << 20  # bytes a host may send ahead on one channel: enough for 1 Gbit/s at 30 ms
_CLOCK_INTERVAL = 2.4  # seconds: how often an idle transport looks at its clock; hundreds of them do
_KEEPALIVE_INTERVAL = 7.0  # seconds of silence before a keepalive; three unanswered mean that the host is lost
LOSSES = (paramiko.SSHException, EOFError, OSError)  # what Paramiko raises where a connection is lost

_log = logging.getLogger("ipexctl.ssh")
_log.addHandler(logging.NullHandler())
_log.propagate = False  # Paramiko logs what it raises; each caller reports it once
_log.setLevel(logging.CRITICAL)


class Transport(QuietTransport):
    """A connection that ends when its host no longer answers; see `ConnectError` for why."""

    deadline: float = 0.0  # of connecting, on the monotonic clock
    connect_error: ConnectError | None = None  # what ended it; Paramiko itself would report an end of file

    def __init__(self, sock: Any) -> None:
        super().__init__(sock, _WINDOW_SIZE)
        self.set_log_channel("ipexctl.ssh")
        self._unanswered = 0

    def set_algorithms(self, known_key_types: Sequence[str], wishes: Iterable[tuple[str, str]] = ()) -> None:
        """Sets the algorithms, by ``wishes`` of ssh_config also weak ones. The host is asked to show a key of a type
        that is known of it."""
        options = self.get_security_options()
        options.kex = _order_algorithms(KEX, options.kex)
        options.ciphers = _order_algorithms(CIPHERS, options.ciphers, only=True)
        options.digests = _order_algorithms(MACS, options.digests, only=True)
        key_types = [key_type for name in known_key_types for key_type in (RSA if name == "ssh-rsa" else (name,))]
        options.key_types = _order_algorithms([*key_types, *HOST_KEYS, *RSA], options.key_types, only=True)

        for keyword, wish in wishes:
            name = _LISTS[keyword][0]
            current, implemented = getattr(options, name), self.list_implemented_algorithms(name)
            chosen = (word for word in change_algorithms(current, wish) if word in implemented)
            setattr(options, name, tuple(chosen) or current)

    def explain_incompatible(self, error: Exception, name: str) -> ConnectError:
        """What a server offers that is too weak, or unknown, and where to allow it for the hosts of that name."""
        for keyword, (_, phrase, offer) in _LISTS.items():
            offered = [word for word in self.offered.get(offer, ()) if not word.startswith(("ext-", "kex-"))]
            if f"acceptable {phrase}" in str(error) and offered:
                what = f"no common algorithm: the server offers only the {keyword} {printable(', '.join(offered), 100)}"
                place = f"in ~/.ssh/config below Host {printable(name)}"
                return ConnectError("algorithms", what, f"to allow it, {place}: {keyword} +{printable(offered[0])}")
        return ConnectError("algorithms", f"no common algorithm: {printable(str(error), 100)}")

    def start_keepalive(self) -> None:
        """From now on a host that does not answer for `LOST_AFTER` seconds is disconnected."""
        self.call_when_idle(_KEEPALIVE_INTERVAL, self._check_alive)
        self.sock.settimeout(_CLOCK_INTERVAL)

    def end(self) -> None:
        """Ends the connection and wakes whoever waits on it."""
        with suppress(OSError, AttributeError, TypeError):  # never connected, or a channel through a jump host
            self.sock.shutdown(socket.SHUT_RDWR)
        self.close()
        self.sock.close()
        self.wake_waiters()

    def get_exception(self) -> Exception | None:
        error = self.connect_error or super().get_exception()
        if error is None or isinstance(error, (ConnectError, *LOSSES)):
            return error
        return paramiko.SSHException(f"a packet that makes no sense: {error!r}")  # Paramiko raises what parsing raised

    def describe_refusal(self) -> str:
        """Returns what the server wrote to the user when it ended the login, as a part of a sentence; empty if it wrote
        nothing. That is why it disconnects, else its last banner: PAM's words come as one, behind the server's own."""
        words = " ".join((self.farewell or self.login_banner).split())
        return f": the host says '{printable(words, 300)}'" if words else ""

    def handle_keepalive_reply(self) -> None:
        self._unanswered = 0

    def prepare_banner_read(self, sock: socket.socket) -> None:
        await_banner(sock, self.deadline)
        sock.settimeout(_CLOCK_INTERVAL)  # whoever waits has a deadline of his own, and `end` wakes all

    def _check_alive(self) -> None:
        if self._unanswered >= 3:
            self.connect_error = ConnectError("lost", f"no sign of life for {LOST_AFTER} s")
            self.packetizer.close()
            return
        self._unanswered += 1
        self.send_keepalive()


def abort_connection(sock: Any) -> None:
    """Aborts a socket or transport, also while another thread waits for it."""
    if isinstance(sock, Transport):
        sock.end()
    elif sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()


def _order_algorithms(preferred: Sequence[str], available: Sequence[str], *, only: bool = False) -> tuple[str, ...]:
    first = [name for name in dict.fromkeys(preferred) if name in available]
    others = [] if only and first else [name for name in available if name not in first]
    return tuple(first + others)
