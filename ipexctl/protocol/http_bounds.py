"""Bounds of the HTTP servers of the controller and of hosts: no visitor holds a place for ever. Slow to import, and few
sessions need it."""

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, Tuple, Type

VISITOR_LIMIT = 64  # visitors at the same time
REQUEST_TIMEOUT = 10.0  # seconds for a request, or until its visitor has proved that it is a host of this session


class BoundedServer(ThreadingMixIn, HTTPServer):
    """An HTTP server with threads: for `VISITOR_LIMIT` visitors at a time."""

    daemon_threads = True

    def __init__(self, address: Tuple[str, int], handler: "Type[BoundedHandler]") -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.visitors = threading.BoundedSemaphore(VISITOR_LIMIT)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.visitors.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.visitors.release()

    def handle_error(self, *_: Any) -> None:
        """Nothing: a visitor has gone away."""


class BoundedHandler(BaseHTTPRequestHandler):
    """Answers HTTP requests; ends a connection after `REQUEST_TIMEOUT`, however often a byte comes."""

    def setup(self) -> None:
        super().setup()
        self.deadline = threading.Timer(REQUEST_TIMEOUT, self.end_connection)
        self.deadline.daemon = True
        self.deadline.start()

    def finish(self) -> None:
        self.deadline.cancel()
        super().finish()

    def end_connection(self) -> None:
        with suppress(OSError):  # it has gone away
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: Any) -> None:
        """Nothing: an address may have a token in it."""
