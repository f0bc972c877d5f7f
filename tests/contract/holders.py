"""Directories of persistent connections, which end with the test that needs them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ipexctl.act.ssh.holder import end_connections, list_connections


@contextlib.contextmanager
def holder_directory() -> Iterator[Path]:
    """A directory for control sockets, whose paths are short; the holders of connections there are ended."""
    place = Path(tempfile.mkdtemp(prefix="ipexctl-"))
    try:
        yield place / "sockets"
    finally:
        end_connections(place / "sockets", [*list_connections(place / "sockets")])
        assert not list_connections(place / "sockets")
        for _ in range(2):  # a holder that is ending removes its socket meanwhile
            shutil.rmtree(place, ignore_errors=True)
