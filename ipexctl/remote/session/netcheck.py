"""How hosts reach each other: a listener and a tester on each of them, led by the controller over its own links.

Standard library, Python 3.6 or later; requests come through `loop`. The listener is bound to one address, lives as long
as the session, serves only connections that begin with its token, and does nothing but echo and discard."""

import errno
import hmac
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Dict, List, Optional

from ipexctl.protocol.session import Attempts, ConnectionAttempt, Ports, SeenMarkerFiles
from ipexctl.remote.session.loop import call_by_name, serve_requests

LARGE_MESSAGE = 64 << 10  # bytes that no single packet holds
MEASURED_LIMIT = 16 << 20  # bytes of one measurement of the rate
IDLE_TIMEOUT = 5.0  # seconds a client may be silent
CLIENTS = threading.BoundedSemaphore(256)
MARKER_FILES: List[str] = []  # to be removed at the end


def listen(address: str, token: str) -> Ports:
    """Opens a TCP port and a UDP port on this address; which, the kernel decides."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    tcp = socket.socket(family, socket.SOCK_STREAM)
    tcp.bind((address, 0))
    tcp.listen(256)
    udp = socket.socket(family, socket.SOCK_DGRAM)
    udp.bind((address, 0))
    threading.Thread(target=accept_clients, args=(tcp, token.encode()), daemon=True).start()
    threading.Thread(target=answer_datagrams, args=(udp, token.encode()), daemon=True).start()
    return Ports(tcp.getsockname()[1], udp.getsockname()[1])


def accept_clients(tcp: socket.socket, token: bytes) -> None:
    while True:
        client, _ = tcp.accept()
        if CLIENTS.acquire(blocking=False):
            threading.Thread(target=serve_client, args=(client, token), daemon=True).start()
        else:
            client.close()


def serve_client(client: socket.socket, token: bytes) -> None:
    try:
        client.settimeout(IDLE_TIMEOUT)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not hmac.compare_digest(read_exactly(client, len(token)), token):
            return
        client.sendall(b"+")
        while True:
            word = read_exactly(client, 9)
            count = int(word[1:], 16)
            while count > 0:
                count -= len(read_some(client, min(count, 1 << 18)))
            client.sendall(word[:1])
    except (OSError, EOFError, ValueError):
        pass
    finally:
        client.close()
        CLIENTS.release()


def answer_datagrams(udp: socket.socket, token: bytes) -> None:
    while True:
        data, sender = udp.recvfrom(65536)
        if hmac.compare_digest(data[: len(token)], token):
            udp.sendto(b"%s %d" % (token, len(data)), sender)


def read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += read_some(connection, count - len(data))
    return data


def read_some(connection: socket.socket, count: int) -> bytes:
    data = connection.recv(count)
    if not data:
        raise EOFError
    return data


def try_targets(targets: List[Dict[str, Any]], patience: float, token: str, mtu: int) -> Attempts:
    """Tries every target at the same time; then measures, one after the other, the rates that are asked for."""
    with ThreadPoolExecutor(64) as pool:
        attempts = list(pool.map(lambda target: try_target(target, patience, token, mtu), targets))
    for at, target in enumerate(targets):
        if target.get("rate") and attempts[at].error is None and attempts[at].large:
            attempts[at] = attempts[at]._replace(rate=measure_rate(target, patience, token))
    return Attempts(attempts)


def try_target(target: Dict[str, Any], patience: float, token: str, mtu: int) -> ConnectionAttempt:
    attempt = ConnectionAttempt(target["host"])
    try:
        with connect(target, patience, token) as connection:
            attempt = attempt._replace(local=connection.getsockname()[0])
            attempt = attempt._replace(rtt=min(time_echo(connection, b"p", 0) for _ in range(3)), large=False)
            attempt = attempt._replace(large=time_echo(connection, b"l", LARGE_MESSAGE) is not None)
    except EOFError:
        attempt = attempt._replace(error="closed by the other host")
    except socket.timeout:
        attempt = attempt._replace(error="no answer" if attempt.large is None else None)
    except OSError as error:
        attempt = attempt._replace(error=WORDS.get(error.errno or 0) or error.strerror or str(error))
    return attempt._replace(mtu=find_path_mtu(target, token, mtu)) if attempt.error is None else attempt


WORDS = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "no route",
    errno.ENETUNREACH: "no route",
    errno.ETIMEDOUT: "no answer",
    errno.ECONNRESET: "reset",
}


def connect(target: Dict[str, Any], patience: float, token: str) -> socket.socket:
    connection = socket.create_connection((target["address"], target["tcp"]), patience)
    try:
        connection.settimeout(patience)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(token.encode())
        read_exactly(connection, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def time_echo(connection: socket.socket, word: bytes, count: int) -> float:
    """Returns seconds until so many bytes were taken."""
    begun = time.time()
    connection.sendall(word + b"%08x" % count + b"x" * count)
    read_exactly(connection, 1)
    return time.time() - begun


def measure_rate(target: Dict[str, Any], patience: float, token: str) -> Optional[float]:
    """Returns bytes a second, from one measurement of at most 16 MiB and about 0.3 seconds."""
    try:
        with connect(target, patience, token) as connection:
            count, took, rate = 1 << 20, 0.0, 0.0
            while took < 0.1 and count < MEASURED_LIMIT:
                took = time_echo(connection, b"r", count)
                count, rate = count * 4, count / max(took, 1e-6)
            return rate
    except (OSError, EOFError):
        return None


def find_path_mtu(target: Dict[str, Any], token: str, mtu: int) -> Optional[int]:
    """The largest packet that passes whole, of the usual sizes up to the interface's own; None if none is answered."""
    v6 = ":" in target["address"]
    over = 48 if v6 else 28
    with socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM) as udp:
        try:
            # IPV6_MTU_DISCOVER or IP_MTU_DISCOVER: IP_PMTUDISC_PROBE (linux/in.h), never fragment and never remember
            udp.setsockopt(41 if v6 else 0, 23 if v6 else 10, 3)
            udp.settimeout(0.3)
            udp.connect((target["address"], target["udp"]))
        except OSError:
            return None
        for size in sorted({size for size in (mtu, 8900, 4000, 1500, 1450, 1400, 1280) if size <= mtu}, reverse=True):
            for _ in range(2):
                try:
                    udp.send(token.encode() + b"x" * (size - over - len(token)))
                    if udp.recv(256).split()[-1] == b"%d" % (size - over):
                        return size
                except (OSError, IndexError):
                    continue
    return None


def leave_marker_file(path: str) -> None:
    """Leaves an empty file where that works, until the session ends."""
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        MARKER_FILES.append(path)


def find_marker_files(paths: List[str]) -> SeenMarkerFiles:
    """Returns those of these marker files that this host sees."""
    return SeenMarkerFiles([path for path in paths if os.path.exists(path)])


def remove_marker_files() -> None:
    for path in MARKER_FILES:
        with suppress(OSError):
            os.unlink(path)


if __name__ == "__main__":
    functions = (listen, try_targets, leave_marker_file, find_marker_files)
    serve_requests(call_by_name(*functions), remove_marker_files)
