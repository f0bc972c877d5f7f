"""Whether a program is up: it answers at a URL or a port."""

import socket
import time
from typing import Callable

INTERVAL = 0.5  # seconds between two questions
ANSWER_TIMEOUT = 5.0  # seconds an answer may take


def await_answer(sign: str, address: str, report: "Callable[[], None]") -> None:
    """Asks until the answer comes, then calls ``report``. ``sign`` is a URL, or a port of this host at this address or
    its loopback."""
    while not (answers_port(sign, address) if sign.isdigit() else answers_url(sign)):
        time.sleep(INTERVAL)
    report()


def answers_port(port: str, address: str) -> bool:
    for host in (address, "127.0.0.1"):
        try:
            socket.create_connection((host, int(port)), ANSWER_TIMEOUT).close()
        except (OSError, OverflowError):
            continue
        return True
    return False


def answers_url(url: str) -> bool:
    """Whether it answers with success. No proxy is asked: it is a program of this run."""
    from http.client import HTTPException
    from urllib.request import ProxyHandler, build_opener  # the sign may be a port

    try:
        build_opener(ProxyHandler({})).open(url, timeout=ANSWER_TIMEOUT).close()
    except (OSError, ValueError, HTTPException):
        return False
    return True
