"""Bounds of the HTTP servers of the controller and of hosts: no visitor holds a place for ever."""

import socket
import threading
from contextlib import suppress
from typing import Any

VISITOR_LIMIT = 64  # visitors at the same time
REQUEST_TIMEOUT = 10.0  # seconds for a request, or until its visitor has proved that it is a host of this session


class BoundedServer:
    """Before an HTTP server with threads: `VISITOR_LIMIT` at a time."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.visitors = threading.BoundedSemaphore(VISITOR_LIMIT)

    def process_request(self, request: Any, client: Any) -> None:
        parent: Any = super()
        if self.visitors.acquire(blocking=False):
            parent.process_request(request, client)
        else:
            parent.shutdown_request(request)

    def process_request_thread(self, request: Any, client: Any) -> None:
        parent: Any = super()
        try:
            parent.process_request_thread(request, client)
        finally:
            self.visitors.release()

    def handle_error(self, *_: Any) -> None:
        """Nothing: a visitor has gone away."""


class BoundedHandler:
    """Before a handler of HTTP requests: ends the connection after `REQUEST_TIMEOUT`, however often a byte comes."""

    connection: Any

    def setup(self) -> None:
        parent: Any = super()
        parent.setup()
        self.deadline = threading.Timer(REQUEST_TIMEOUT, self.end_connection)
        self.deadline.daemon = True
        self.deadline.start()

    def finish(self) -> None:
        parent: Any = super()
        self.deadline.cancel()
        parent.finish()

    def end_connection(self) -> None:
        with suppress(OSError):  # it has gone away
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: Any) -> None:
        """Nothing: an address may have a token in it."""
