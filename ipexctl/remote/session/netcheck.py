"""How hosts reach each other: a listener and a tester on each of them, led by the controller over its own links.

Standard library, Python 3.6 or later. Commands come as JSON lines, answers go as JSON lines; the end of the input ends
everything. The listener is bound to one address, lives as long as the session, takes only those who say its token
first, and does nothing but echo and swallow.
"""

import errno
import hmac
import json
import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional

LARGE = 64 << 10  # bytes that no single packet holds
MOST = 16 << 20  # bytes of one measurement of the rate
IDLE = 5.0  # seconds a visitor may be silent
VISITORS = threading.BoundedSemaphore(256)
SIGNS: List[str] = []  # files to remove at the end


def main() -> None:
    say({"ready": True})
    for line in sys.stdin.buffer:
        asked = json.loads(line.decode())
        try:
            say({"done": DO[asked.pop("do")](**asked)})
        except OSError as error:
            say({"failed": "os", "what": error.strerror or str(error)})
    for sign in SIGNS:
        forget(sign)


def say(message: Dict[str, Any]) -> None:
    data = (json.dumps(message) + "\n").encode()
    while data:
        data = data[os.write(1, data) :]


# --- the side that is visited -----------------------------------------------------------------------------------------


def listen(address: str, token: str) -> Dict[str, int]:
    """Opens a TCP port and a UDP port on this address; which, the kernel decides."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    tcp = socket.socket(family, socket.SOCK_STREAM)
    tcp.bind((address, 0))
    tcp.listen(256)
    udp = socket.socket(family, socket.SOCK_DGRAM)
    udp.bind((address, 0))
    threading.Thread(target=receive, args=(tcp, token.encode()), daemon=True).start()
    threading.Thread(target=answer_datagrams, args=(udp, token.encode()), daemon=True).start()
    return {"tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1]}


def receive(tcp: socket.socket, token: bytes) -> None:
    while True:
        visitor, _ = tcp.accept()
        if VISITORS.acquire(blocking=False):
            threading.Thread(target=serve, args=(visitor, token), daemon=True).start()
        else:
            visitor.close()


def serve(visitor: socket.socket, token: bytes) -> None:
    try:
        visitor.settimeout(IDLE)
        visitor.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not hmac.compare_digest(exactly(visitor, len(token)), token):
            return
        visitor.sendall(b"+")
        while True:
            word = exactly(visitor, 9)
            count = int(word[1:], 16)
            while count > 0:
                count -= len(some(visitor, min(count, 1 << 18)))
            visitor.sendall(word[:1])
    except (OSError, EOFError, ValueError):
        pass
    finally:
        visitor.close()
        VISITORS.release()


def answer_datagrams(udp: socket.socket, token: bytes) -> None:
    while True:
        data, sender = udp.recvfrom(65536)
        if hmac.compare_digest(data[: len(token)], token):
            udp.sendto(b"%s %d" % (token, len(data)), sender)


def exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += some(link, count - len(data))
    return data


def some(link: socket.socket, count: int) -> bytes:
    data = link.recv(count)
    if not data:
        raise EOFError
    return data


# --- the side that visits ---------------------------------------------------------------------------------------------


def visit(targets: List[Dict[str, Any]], patience: float, token: str, mtu: int) -> Dict[str, Any]:
    """Every target at the same time; then, one after the other, the rate to those of which it is asked."""
    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(lambda target: reach(target, patience, token, mtu), targets))
    for target, result in zip(targets, found):  # noqa: B905 (Python 3.6)
        if target.get("rate") and result["error"] is None and result["large"]:
            result["rate"] = rate(target, patience, token)
    return {"found": found}


def reach(target: Dict[str, Any], patience: float, token: str, mtu: int) -> Dict[str, Any]:
    found: Dict[str, Any] = dict.fromkeys(("error", "rtt", "local", "large", "mtu", "rate"))
    found["host"] = target["host"]
    link = None
    try:
        link = connect(target, patience, token)
        found["local"] = link.getsockname()[0]
        found["rtt"] = min(echo(link, b"p", 0) for _ in range(3))
        found["large"] = False
        found["large"] = echo(link, b"l", LARGE) is not None
    except EOFError:
        found["error"] = "closed by who answers there"
    except socket.timeout:
        found["error"] = "no answer" if found["large"] is None else None
    except OSError as error:
        found["error"] = WORDS.get(error.errno or 0) or error.strerror or str(error)
    finally:
        if link is not None:
            link.close()
    if found["error"] is None:
        found["mtu"] = path_mtu(target, token, mtu)
    return found


WORDS = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "no route",
    errno.ENETUNREACH: "no route",
    errno.ETIMEDOUT: "no answer",
    errno.ECONNRESET: "reset",
}


def connect(target: Dict[str, Any], patience: float, token: str) -> socket.socket:
    link = socket.create_connection((target["address"], target["tcp"]), patience)
    try:
        link.settimeout(patience)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(token.encode())
        exactly(link, 1)
    except BaseException:
        link.close()
        raise
    return link


def echo(link: socket.socket, word: bytes, count: int) -> float:
    """Seconds until so many bytes were taken."""
    begun = time.time()
    link.sendall(word + b"%08x" % count + b"x" * count)
    exactly(link, 1)
    return time.time() - begun


def rate(target: Dict[str, Any], patience: float, token: str) -> Optional[float]:
    """Bytes a second, from one measurement of at most 16 MiB and about 0.3 seconds."""
    try:
        link = connect(target, patience, token)
        try:
            count, took, measured = 1 << 20, 0.0, 0.0
            while took < 0.1 and count < MOST:
                took = echo(link, b"r", count)
                count, measured = count * 4, count / max(took, 1e-6)
            return measured
        finally:
            link.close()
    except (OSError, EOFError):
        return None


def path_mtu(target: Dict[str, Any], token: str, mtu: int) -> Optional[int]:
    """The largest packet that passes whole, of the usual sizes up to the interface's own; None if none is answered."""
    v6 = ":" in target["address"]
    udp = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        # IPV6_MTU_DISCOVER or IP_MTU_DISCOVER: IP_PMTUDISC_PROBE (linux/in.h), never fragment and never remember
        udp.setsockopt(41 if v6 else 0, 23 if v6 else 10, 3)
        udp.settimeout(0.3)
        udp.connect((target["address"], target["udp"]))
        over = 48 if v6 else 28
        for size in sorted({size for size in (mtu, 8900, 4000, 1500, 1450, 1400, 1280) if size <= mtu}, reverse=True):
            for _ in range(2):
                try:
                    udp.send(token.encode() + b"x" * (size - over - len(token)))
                    if udp.recv(256).split()[-1] == b"%d" % (size - over):
                        return size
                except (OSError, IndexError):
                    continue
        return None
    except OSError:
        return None
    finally:
        udp.close()


# --- directories ------------------------------------------------------------------------------------------------------


def sign(directories: List[str], name: str) -> Dict[str, Any]:
    """Leaves an empty file in each directory until the session ends. Those that could be signed."""
    signed = []
    for directory in directories:
        path = os.path.join(directory, name)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError:
            continue
        SIGNS.append(path)
        signed.append(directory)
    return {"signed": signed}


def see(directories: List[str], names: List[str]) -> Dict[str, Any]:
    """Whose signs are there, by directory."""
    return {"seen": {at: [name for name in names if os.path.exists(os.path.join(at, name))] for at in directories}}


def forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


DO: Dict[str, Callable[..., Dict[str, Any]]] = {"listen": listen, "visit": visit, "sign": sign, "see": see}

main()
