"""With ``run --profile``: takes oneDNN's lines out of what a rank writes, so that they fill no screen and no log."""

import os
from typing import BinaryIO, Dict, List, Optional

from ipexctl.protocol import hooks

STORED_LIMIT = 32 << 20  # bytes stored of one rank


class OneDnnLog:
    """Of a rank with this environment: where the user enables these lines in it, they are passed on as well."""

    def __init__(self, directory: str, rank: int, env: "Dict[str, str]") -> None:
        self.path = os.path.join(directory, hooks.PROFILE, "%d%s" % (rank, hooks.KERNELS))
        self.echo = any(env.get(name) for name in hooks.VERBOSE_ENV)
        self.held = b""  # the beginning of a line that is too short to be classified
        self.verbose: "Optional[bool]" = None  # the line that has begun; None between lines
        self.room = STORED_LIMIT
        self.file: "Optional[BinaryIO]" = None

    def filter_output(self, data: bytes) -> bytes:
        """Returns what of the script's output is to be passed on."""
        data, self.held = self.held + data, b""
        passed: "List[bytes]" = []
        while data:
            if self.verbose is None:
                if any(mark.startswith(data) for mark in hooks.VERBOSE):
                    self.held = data
                    break
                self.verbose = data.startswith(hooks.VERBOSE)
            end = data.find(b"\n") + 1 or len(data)
            line, data = data[:end], data[end:]
            if self.verbose:
                self.write_line(line)
            if self.echo or not self.verbose:
                passed.append(line)
            if line.endswith(b"\n"):
                self.verbose = None
        return b"".join(passed)

    def finish(self) -> bytes:
        """Returns what was held back at the end of the output."""
        held, self.held = self.held, b""
        if self.file is not None:
            self.file.close()
        return held

    def write_line(self, data: bytes) -> None:
        if self.room <= 0:
            return
        self.room -= len(data)
        try:
            if self.file is None:
                os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
                self.file = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
            self.file.write(data)
        except OSError:
            self.room = 0  # a full disk ends no rank
