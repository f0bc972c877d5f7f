"""A page on loopback, for the user of this machine alone: a request must hold the token that is part of the address,
and the name in ``Host`` must be loopback's. (A page of another site whose name was pointed here sends its own.)"""

import hmac
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ipexctl.protocol.http_bounds import BoundedHandler, BoundedServer
from ipexctl.store.private_files import refuse_os_errors

_HEADERS = {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin"}  # fmt: skip


@contextmanager
def serve_page(address: tuple[str, int], render: Callable[[], str]) -> Iterator[str]:
    """Serves what ``render`` returns, in threads of its own; gives the page's address. Raises `UsageError`."""
    path = f"/{secrets.token_urlsafe(24)}/"

    class Handler(BoundedHandler):
        server_version, sys_version = "ipexctl", ""

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

    with refuse_os_errors(f"{address[0]} port {address[1]}", "cannot be listened on"):
        server = BoundedServer(address, Handler)
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    names = {f"{name}:{server.server_port}" for name in (shown, "localhost")}
    threading.Thread(target=server.serve_forever, args=(0.2,), name="page", daemon=True).start()
    try:
        yield f"http://{shown}:{server.server_port}{path}"
    finally:
        server.shutdown()
        server.server_close()
