"""A page on loopback, for the user of this machine alone.

A request must hold the token that is part of the address. The name in ``Host`` must be loopback's: a page of
another site whose name was pointed at loopback (DNS rebinding) sends its own name. Only GET is answered, and nothing is
logged."""

import hmac
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socket import AF_INET, AF_INET6
from typing import NamedTuple

from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.hints import advise
from ipexctl.model.text import printable

_PATIENCE = 10.0  # seconds for one request
_AT_ONCE = 16  # connections; more are closed at once
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class ServedPage(NamedTuple):
    """A page as it is now: ``tag`` changes with it, ``part`` is what a viewer of an earlier one needs."""

    tag: str
    whole: bytes
    part: bytes


def parse_address(text: str) -> tuple[str, int]:
    """``127.0.0.1:8000``, ``[::1]:0``, ``localhost:8000``, ``8000``: an address of loopback and a port, 0 for any.
    Raises `UsageError` for everything else."""
    host, _, port = text.rpartition(":")
    host = {"": "127.0.0.1", "localhost": "127.0.0.1"}.get(host, host).strip("[]")
    try:
        address, number = ip_address(host), int(port)
    except ValueError:
        address, number = None, -1
    if address is None or not 0 <= number <= 65535 or not port.isascii():
        what = f"--serve takes an address of this machine and a port, not {printable(text)!r}"
        raise UsageError(what, hint=advise("watch", "--serve", "127.0.0.1:0"))
    if not address.is_loopback:
        reasons = ["whoever reaches this machine could read the output of the ranks"]
        hint = "from another machine: ssh -L 8000:127.0.0.1:8000 THIS_MACHINE, with --serve 127.0.0.1:8000"
        raise UsageError(f"--serve {printable(text)} is not an address of loopback", reasons=reasons, hint=hint)
    return str(address), number


@contextmanager
def serve_page(address: tuple[str, int], render: Callable[[], ServedPage]) -> Iterator[str]:
    """Serves what ``render`` returns, in threads of its own, and gives the page's address, token included. ``render``
    is called for each request. Raises `UsageError` where nothing can listen there."""
    token = secrets.token_urlsafe(24)

    class Handler(_Handler):
        pass

    class Server(ThreadingHTTPServer):
        address_family = AF_INET6 if ":" in address[0] else AF_INET
        daemon_threads = True
        request_queue_size = _AT_ONCE

        def handle_error(self, request: object, client_address: object) -> None:
            """A viewer that went away is nobody's error."""

    try:
        server = Server(address, Handler)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"nothing can listen on {address[0]} port {address[1]}: {why}", exit=Exit.STEP) from None
    port = server.server_address[1]
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    Handler.path_of_page = f"/{token}/"
    Handler.names = frozenset(f"{name}:{port}" for name in (shown, "localhost"))
    Handler.render = staticmethod(render)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, name="page", daemon=True)
    thread.start()
    try:
        yield f"http://{shown}:{port}/{token}/"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection. ``names`` are what ``Host`` may be, in small letters."""

    path_of_page: str
    names: frozenset[str]
    render: Callable[[], ServedPage]
    timeout = _PATIENCE
    server_version, sys_version = "ipexctl", ""
    _room = threading.BoundedSemaphore(_AT_ONCE)

    def handle(self) -> None:
        if self._room.acquire(blocking=False):
            try:
                super().handle()
            finally:
                self._room.release()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if (self.headers.get("Host") or "").lower() not in self.names:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST)
        elif not hmac.compare_digest(path.encode("utf-8", "replace"), self.path_of_page.encode()):
            self._answer(HTTPStatus.NOT_FOUND)
        else:
            page = self.render()
            tag = f'"{page.tag}"'
            if self.headers.get("If-None-Match") == tag:
                self._answer(HTTPStatus.NOT_MODIFIED, tag=tag)
            else:
                self._answer(HTTPStatus.OK, page.part if query == "part" else page.whole, tag)

    def _answer(self, status: HTTPStatus, body: bytes = b"", tag: str = "") -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if tag:
            self.send_header("ETag", tag)
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: an address has the token in it."""
