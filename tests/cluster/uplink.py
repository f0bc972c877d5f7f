"""A forward proxy in the cluster's network whose far side is this machine's own network."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Uplink:
    """``url`` is for hosts and controller alike. Only CONNECT (https) is spoken."""

    url: str

    @property
    def env(self) -> dict[str, str]:
        return {"HTTPS_PROXY": self.url, "https_proxy": self.url, "NO_PROXY": "127.0.0.1,localhost,10.77.0.1"}

    @staticmethod
    @contextmanager
    def open(
        inside: Callable[[], AbstractContextManager[None]], address: str, refused: Collection[str] = ()
    ) -> Iterator[Uplink]:
        """``refused`` are names of hosts to which it makes no connection."""
        with inside():
            listener = socket.create_server((address, 0))
        threading.Thread(target=_serve, args=(listener, refused), daemon=True).start()  # in this machine's own network
        try:
            yield Uplink(f"http://{address}:{listener.getsockname()[1]}")
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()


def _serve(listener: socket.socket, refused: Collection[str]) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_one, args=(client, refused), daemon=True).start()


def _one(client: socket.socket, refused: Collection[str]) -> None:
    with client, suppress(OSError, ValueError):
        head = b""
        while b"\r\n\r\n" not in head and len(head) < 65536:
            piece = client.recv(4096)
            if not piece:
                return
            head += piece
        method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split()
        if method != "CONNECT":
            client.sendall(b"HTTP/1.1 405 Only CONNECT\r\n\r\n")
            return
        name, _, port = target.rpartition(":")
        if name in refused:
            client.sendall(b"HTTP/1.1 502 Cannot connect\r\n\r\n")
            return
        try:
            far = socket.create_connection((name.strip("[]"), int(port)), timeout=30)
        except OSError:
            client.sendall(b"HTTP/1.1 502 Cannot connect\r\n\r\n")
            return
        far.settimeout(None)
        with far:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_copy, args=(far, client), daemon=True)
            back.start()
            _copy(client, far)
            back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
