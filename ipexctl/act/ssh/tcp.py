"""TCP connections by a deadline, with the kernel's keepalives; name resolution that may be late."""

import errno
import socket
import time
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import Any

from ipexctl.act.ssh.settings import Settings
from ipexctl.act.threads import start_thread
from ipexctl.model.errors import ConnectError

LOST_AFTER = 30  # seconds without any reply from a host, after which it is lost


def open_tcp(settings: Settings, deadline: float, limit: float, on_socket: Callable[[Any], None]) -> socket.socket:
    """Returns a socket to the host; its addresses share the time. Raises `ConnectError`. ``deadline`` is on the
    monotonic clock, ``limit`` (seconds) is for messages, ``on_socket`` gets each new socket."""
    timeout = failure = ConnectError("timeout", f"no answer within {limit:g} s ({settings.endpoint})")
    addresses = _resolve_addresses(settings, deadline)
    for number, (family, address) in enumerate(addresses):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        sock = socket.socket(family, socket.SOCK_STREAM)
        on_socket(sock)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(left / (len(addresses) - number))
            sock.connect(address)
            _enable_keepalive(sock)
            return sock
        except TimeoutError:
            failure = timeout
        except OSError as error:
            failure = _make_connect_error(error, settings)
        sock.close()
    raise failure


def _make_connect_error(error: OSError, settings: Settings) -> ConnectError:
    if error.errno == errno.ECONNREFUSED:
        return ConnectError("refused", f"connection refused ({settings.endpoint})")
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EADDRNOTAVAIL, errno.EACCES):
        return ConnectError("no-route", f"{(error.strerror or 'no route to host').lower()} ({settings.endpoint})")
    return ConnectError("lost", f"{(error.strerror or str(error)).lower()} ({settings.endpoint})")


def _enable_keepalive(sock: socket.socket) -> None:
    """The kernel, too, gives up on a host that does not acknowledge, also while data is being written."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5}
    options = {"TCP_USER_TIMEOUT": LOST_AFTER * 1000, **seconds, "TCP_KEEPCNT": 4}
    for name, value in options.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _resolve_addresses(settings: Settings, deadline: float) -> list[tuple[int, Any]]:
    """Addresses of a host. The resolver takes no deadline, so a late one is left behind in its thread."""
    answer = start_thread(partial(socket.getaddrinfo, settings.address, settings.port, type=socket.SOCK_STREAM))
    if not wait([answer], max(1.0, deadline - time.monotonic())).done:
        raise ConnectError("dns", f"the name {settings.address} was not resolved in time")
    try:
        return [(family, address) for family, _, _, _, address in answer.result()]
    except (OSError, UnicodeError):
        raise ConnectError("dns", f"the name {settings.address} cannot be resolved") from None
