"""A small hub, as huggingface_hub speaks to one: one repository with revisions, whose files a test gives."""

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class Hub:
    """``commits`` maps a commit (40 hex digits) to its files, ``refs`` a branch or a tag to a commit. Where there is a
    ``token``, who has not got it sees nothing. ``sent`` counts the bytes of files that were sent. ``misbehave`` may
    answer in its place, and says whether it did."""

    def __init__(self, repository: str, commits: Mapping[str, Mapping[str, bytes]], refs: Mapping[str, str]) -> None:
        self.repository, self.commits, self.refs = repository, commits, refs
        self.token, self.gated = "", False
        self.sent, self.tokens = 0, set[str]()
        self.url = ""
        self.misbehave: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False

    @contextmanager
    def serve(self, inside: AbstractContextManager[None]) -> Iterator[None]:
        """Listens on the loopback of the network that one is ``inside``."""
        with inside:
            listener = socket.create_server(("127.0.0.1", 0))
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler(), bind_and_activate=False)
        server.socket.close()
        server.socket, server.server_address = listener, listener.getsockname()[:2]
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()

    def _describe(self, path: str) -> dict[str, Any] | None:
        prefix = next((p for p in ("/api/models/", "/api/datasets/") if path.startswith(f"{p}{self.repository}")), "")
        revision = path.removeprefix(f"{prefix}{self.repository}").removeprefix("/revision/") or "main"
        commit = self.refs.get(revision, revision)
        if not prefix or commit not in self.commits:
            return None
        files = [{"rfilename": name, "size": len(data)} for name, data in self.commits[commit].items()]
        return {"id": self.repository, "sha": commit, "siblings": files, "tags": [], "private": False}

    def _find(self, path: str) -> tuple[str, bytes] | None:
        _, separator, rest = path.partition(f"{self.repository}/resolve/")
        commit, _, name = rest.partition("/")
        data = self.commits.get(commit, {}).get(name)
        return (commit, data) if separator and data is not None else None

    def _make_handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, status: int, data: bytes, headers: Mapping[str, str] = {}) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data)

            def do_GET(self) -> None:
                path, given = unquote(urlsplit(self.path).path), self.headers.get("Authorization", "")
                hub.tokens |= {given} - {""}
                begin = int(self.headers.get("Range", "bytes=0-")[len("bytes=") :].partition("-")[0])
                if hub.misbehave(self):
                    return
                if hub.token and given != f"Bearer {hub.token}":
                    self.answer(401, b"{}", {"X-Error-Code": "GatedRepo" if hub.gated else "RepoNotFound"})
                elif answer := hub._describe(path):
                    self.answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})
                elif found := hub._find(path):
                    commit, data = found
                    headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": commit}
                    if begin:
                        headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
                    hub.sent += (len(data) - begin) * (self.command == "GET")
                    self.answer(206 if begin else 200, data[begin:], headers)
                else:
                    is_known = path.startswith((f"/api/models/{hub.repository}/", f"/api/datasets/{hub.repository}/"))
                    self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound" if is_known else "RepoNotFound"})

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        return Handler
