"""A page on loopback, for the user of this machine alone: a request must hold the token that is part of the address,
and the name in ``Host`` must be loopback's. (A page of another site whose name was pointed here sends its own.)"""

import hmac
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, SHUT_RDWR
from typing import Any

from ipexctl.model.errors import Exit, UsageError

_HEADERS = {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin"}  # fmt: skip

_REQUEST_TIMEOUT = 10.0  # seconds for one request and its answer
_PLACES = 64  # requests at a time


@contextmanager
def serve_page(address: tuple[str, int], render: Callable[[], str]) -> Iterator[str]:
    """Serves what ``render`` returns, in threads of its own; gives the page's address. Raises `UsageError`."""
    path, places = f"/{secrets.token_urlsafe(24)}/", threading.BoundedSemaphore(_PLACES)

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "ipexctl", ""

        def handle(self) -> None:
            """Ends the connection after some seconds, however often a byte comes: its place is another viewer's."""
            timer = threading.Timer(_REQUEST_TIMEOUT, self.end_connection)
            timer.daemon = True
            timer.start()
            try:
                super().handle()
            finally:
                timer.cancel()

        def end_connection(self) -> None:
            with suppress(OSError):  # the viewer went away while its page was drawn
                self.connection.shutdown(SHUT_RDWR)

        def do_GET(self) -> None:
            status, body = 404, b""
            if (self.headers.get("Host") or "").lower() not in names:
                status = 421
            elif hmac.compare_digest(self.path.encode("utf-8", "replace"), path.encode()):
                status, body = 200, render().encode("utf-8", "replace")
            self.send_response(status)
            for name, value in {**_HEADERS, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing: an address has the token in it."""

    class Server(ThreadingHTTPServer):
        address_family = AF_INET6 if ":" in address[0] else AF_INET

        def process_request(self, request: Any, client_address: Any) -> None:
            if places.acquire(blocking=False):
                super().process_request(request, client_address)
            else:
                self.shutdown_request(request)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                places.release()

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignores a viewer that went away."""

    try:
        server = Server(address, Handler)
    except OSError as error:
        what = f"nothing can listen on {address[0]} port {address[1]}"
        raise UsageError(f"{what}: {(error.strerror or str(error)).lower()}", exit=Exit.STEP) from None
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    names = {f"{name}:{server.server_port}" for name in (shown, "localhost")}
    threading.Thread(target=server.serve_forever, args=(0.2,), name="page", daemon=True).start()
    try:
        yield f"http://{shown}:{server.server_port}{path}"
    finally:
        server.shutdown()
        server.server_close()
