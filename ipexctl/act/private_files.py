"""Files of ipexctl's own that are read again later: whole or not at all, and for nobody else, whatever the umask."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_private(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replaces a file by one rename, once its bytes are on the disk. No other process, here or on another host with the
    same home, uses the same temporary name."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            os.fchmod(number, mode)
            file.flush()
            os.fsync(number)
        Path(part).replace(path)
    except OSError:
        with suppress(OSError):
            Path(part).unlink()
        raise
