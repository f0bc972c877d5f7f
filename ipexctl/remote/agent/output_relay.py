"""What a rank's script writes, from its two pipes into the one that the wrappers of its host share with their guard."""

import os
import select
import selectors
import subprocess
import time
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Tuple

from ipexctl.protocol import hooks
from ipexctl.protocol.frames import ERR, OUT, split_into_frames
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import procs

SMALL_OUTPUT = 1 << 13  # bytes: less is little to read at a time
PIECE = 1 << 16  # bytes read at a time
TAIL_SIZE = 1 << 13  # bytes kept of what was written last
STORED_LIMIT = 32 << 20  # bytes stored of what oneDNN prints in one rank


class OutputRelay:
    """``path`` is the pipe to the guard, ``head`` that of the rank's frames. Raises OSError."""

    def __init__(self, path: str, head: bytes, timings: "Timings") -> None:
        self.pipe = os.open(path, os.O_WRONLY)
        self.head = head
        self.timings = timings
        self.streams: Dict[int, str] = {}  # the script's open pipes
        self.broken = False  # the guard is gone
        self.ended = 0.0  # when the script did, in Unix seconds
        self.tail = b""
        self.awaited: "Tuple[bytes, Callable[[], Any]]" = (b"", int)  # a text, and what is called when it was written
        self.kernels: "Optional[OneDnnLog]" = None  # with a profile

    def relay(self, child: "subprocess.Popen[bytes]", dropped: int, on_drop: "Callable[[], None]") -> None:
        """Passes on what the child writes until it has ended. What outlives it is not waited for (but its output is,
        for `Timings.linger`). At the end of the pipe ``dropped`` calls ``on_drop``, after all that was written before.
        This process runs on the rank's own cores. After the beginning it lets output gather, unless much came last."""
        assert child.stdout is not None
        assert child.stderr is not None
        self.streams = {child.stdout.fileno(): OUT, child.stderr.fileno(): ERR}
        late, until = time.monotonic() + self.timings.early, 0.0
        end, only_end = procs.open_end(child.pid), select.poll()
        with selectors.DefaultSelector() as selector:
            for pipe in self.streams:
                os.set_blocking(pipe, False)
                selector.register(pipe, selectors.EVENT_READ)
            selector.register(dropped, selectors.EVENT_READ)
            if end is not None:
                selector.register(end, selectors.EVENT_READ)
                only_end.register(end, select.POLLIN)
            read = 0
            pause = 0.1 if end is None else None  # seconds between looks for an end that nothing tells of
            while self.streams:
                ended = child.poll() is not None  # asked before the pipes, so that nothing written before it is missed
                if ended and not until:
                    self.ended, until = time.time(), time.monotonic() + self.timings.linger
                    if end is not None:
                        selector.unregister(end)
                ready = {key.fd for key, _ in selector.select(0 if ended else pause)}
                if ended and (not ready or time.monotonic() > until):
                    break
                if ready and not ended and read < SMALL_OUTPUT and time.monotonic() > late:
                    only_end.poll(1000 * self.timings.pace)
                read = sum(self.pass_on(pipe, selector) for pipe in ready.intersection(self.streams))
                if dropped in ready:
                    selector.unregister(dropped)
                    while sum(self.pass_on(pipe, selector) for pipe in list(self.streams)):
                        pass
                    on_drop()
        if end is not None:
            os.close(end)
        if self.kernels:
            self.write(OUT, self.kernels.finish())
        child.wait()
        self.ended = self.ended or time.time()

    def pass_on(self, pipe: int, selector: "selectors.BaseSelector") -> int:
        """Writes what one of the script's pipes has now; how many bytes that were."""
        try:
            data = os.read(pipe, PIECE)
        except BlockingIOError:
            return 0
        stream = self.streams[pipe]
        if not data:
            del self.streams[pipe]
            selector.unregister(pipe)
            return 0
        count = len(data)
        if self.kernels and stream == OUT:
            data = self.kernels.filter_output(data)
        self.write(stream, data)
        return count

    def write(self, stream: str, data: bytes) -> None:
        """Writes all of it, each frame whole, for as long as somebody reads."""
        text, report = self.awaited
        if text and text in self.tail + data:
            self.awaited = b"", report
            report()
        self.tail = (self.tail + data[-TAIL_SIZE:])[-TAIL_SIZE:]
        for frame in split_into_frames(self.head, stream, data):
            if self.broken:
                return
            try:
                os.write(self.pipe, frame)
            except BrokenPipeError:
                self.broken = True


class OneDnnLog:
    """With ``run --profile``: takes oneDNN's lines out of what a rank with this environment writes, so that they fill
    no screen and no log. Where the user enables these lines in it, they are passed on as well."""

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
