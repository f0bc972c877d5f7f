"""An index that goes on and on behind a file."""

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from ipexctl.act.context import Limits
from ipexctl.act.packages.download import download_wheels
from ipexctl.act.packages.resolve import _explain_uv_error
from ipexctl.act.packages.sources import Sources
from ipexctl.model.errors import UsageError
from ipexctl.model.wheels import Wheel
from ipexctl.verbs.install.lock import _UV_CAUSE
from tests.stopwatch import Stopwatch


@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"])
def test_trailers_without_an_end_end_a_download(tmp_path: Path, header: bytes) -> None:
    """Python reads them all: the thread, which Ctrl-C does not end, was held for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n" + header + b"Transfer-Encoding: chunked\r\n\r\n0\r\n")
                while True:
                    connection.sendall(b"T: a\r\n" * 100)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x-1-py3-none-any.whl"
        sources = Sources(environ={}, limits=Limits(stall=1.0, tries=1, probe=1.0))
        with pytest.raises(UsageError):
            download_wheels([Wheel("x", "1", url, "0" * 64)], tmp_path, sources, threading.Event(), lambda *_: None)


def test_what_an_index_has_uv_write_is_read_in_time() -> None:
    """Why a version was withdrawn is the index's to say: a quarter of a MiB of beginnings took a minute and more."""
    watch = Stopwatch()
    assert not _UV_CAUSE.search("Because " * 32768)
    for text in ("error sending request for url (" * 8192, "Wheels are required for `a`" + "a.=" * (1 << 18)):
        assert _explain_uv_error("", text, Sources(), ()).exit == 4
    assert watch.read() < 10
