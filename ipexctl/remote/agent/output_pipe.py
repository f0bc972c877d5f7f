"""The pipe into which the wrappers of a host write what their ranks write, and out of which its guard takes it.

All wrappers share it: each writes frames, which the kernel never interleaves (`protocol.frames.FRAME`). They open it by
its path below the guard's process, so that no file system has to have named pipes."""

import fcntl
import os
from contextlib import suppress

from ipexctl.protocol.frames import FRAME, compile_frame_pattern, find_frame_end

SIZE = 1 << 20  # bytes it holds, if the account may have as much: that many ranks write on while nobody reads
PIECE = 1 << 18  # bytes taken at a time
_F_SETPIPE_SZ = 1031  # linux/fcntl.h


class OutputPipe:
    """Of the process that makes it, and of no process that this one executes."""

    def __init__(self, nonce: str) -> None:
        self.pattern = compile_frame_pattern(nonce)
        self.reader, self.writer = os.pipe()  # the writer is never written to: without one, each pause would be an end
        os.set_blocking(self.reader, False)
        with suppress(OSError):  # over the user's quota of pipes: the usual 64 KiB do
            fcntl.fcntl(self.writer, _F_SETPIPE_SZ, SIZE)
        self.path = "/proc/%d/fd/%d" % (os.getpid(), self.writer)
        self.held = b""  # the beginning of a frame

    def fileno(self) -> int:
        return self.reader

    def take_frames(self) -> bytes:
        """Whole frames; nothing where there is none."""
        try:
            data = os.read(self.reader, PIECE)
        except BlockingIOError:
            return b""
        data = self.held + data
        end = find_frame_end(data, self.pattern) or (len(data) if len(data) > FRAME else 0)  # or no frames of ours
        self.held = data[end:]
        return data[:end]
