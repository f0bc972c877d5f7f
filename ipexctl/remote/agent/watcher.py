"""The watcher of a run on its head, which the controller reads: passes on what the run's files hold as they grow.

A program of its own, with nothing that only others need: it starts while the keeper, the guards and the launcher do."""

import os
import select
import sys
import threading
import time
from contextlib import suppress
from typing import BinaryIO, Dict, List, Optional, Union

from ipexctl.protocol import frames, paths
from ipexctl.protocol.frames import WatchFrame, pack_frame
from ipexctl.protocol.paths import Role
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.remote.agent import files, procs, rpc, spool

REASON_LENGTH = 400  # bytes of what a keeper died of
_CRASH = Role.KEEPER + paths.CRASH
_LEAST_SPACE = 1 << 16  # bytes: with less a disk counts as full
PIECE = 1 << 20  # bytes of a file in one frame, at most: the controller does much of its work for each frame


def watch(argv: "List[str]") -> int:
    """``watch RUNDIR JOURNAL OUT ERR [once] [SAMPLES|no-samples]``: what is in the run's files from these offsets on,
    in frames, until its end; with ``once`` until the files' present end. Needs no keeper. Tells once when it has sent
    all that was there when it began. Ends early when the controller falls silent (`_exit_when_silent`)."""
    directory, offsets = argv[0], [int(word) for word in argv[1:4]]
    spec = files.read_spec(directory)
    sink = sys.stdout.buffer
    once = argv[4:5] == [frames.ONCE]
    samples_offset = next((int(word) for word in argv[4:] if word.isdigit()), 0)
    link: Optional[rpc.Wire] = None
    if not once:
        threading.Thread(target=_exit_when_silent, args=(spec.timings.silent,), daemon=True).start()
    tails: Dict[str, Union[JournalTail, spool.Tail]] = {
        frames.JOURNAL: JournalTail(os.path.join(directory, paths.JOURNAL), offsets[0])
    }
    if spec.timings.sample and frames.NO_SAMPLES not in argv[4:]:
        tails[frames.SAMPLES] = spool.Tail(os.path.join(directory, paths.SAMPLES), samples_offset)
    tails[frames.OUT] = spool.Tail(os.path.join(directory, paths.OUT), offsets[1])
    tails[frames.ERR] = spool.Tail(os.path.join(directory, paths.ERR), offsets[2])
    ends = {kind: tail.measure_end() for kind, tail in tails.items()}
    behind = not any(offsets)  # a watcher that reconnects knows already
    written, pause = time.monotonic(), 0.02
    over = frames.NOW if once else b""
    if behind:
        sink.write(pack_frame(WatchFrame(frames.CLOCK, 0, b"%d" % (1000 * time.time()))))
    awaited = not once  # the keeper: a watcher of a run that begins may be earlier than the file that says where it is
    while True:
        if awaited and files.read_keeper_address(directory):
            awaited = False
            with suppress(OSError, ValueError):  # over already; the files tell
                link = connect(directory, spec, Role.WATCH, paths.CONTROLLER)
        moved = False
        # What is written before it says which attempt it is of, and when it was written: no output is sent before the
        # journal and the samples up to there.
        pieces = {kind: tail.read(PIECE) for kind, tail in reversed(list(tails.items()))}
        for kind, tail in tails.items():
            piece = pieces[kind]
            while piece:
                sink.write(pack_frame(WatchFrame(kind, tail.offset - len(piece), piece)))
                moved = True
                goes_on = kind in (frames.JOURNAL, frames.SAMPLES) and len(piece) == PIECE
                piece = tail.read(PIECE) if goes_on else b""
        if behind and (not moved or all(tail.offset >= ends[kind] for kind, tail in tails.items())):
            behind = False
            sink.write(pack_frame(WatchFrame(frames.CAUGHT_UP)))
            sink.flush()
        if moved:
            sink.flush()
            written, pause = time.monotonic(), 0.02
            continue
        if over:
            if over == frames.GONE:
                over += b" " + describe_death(directory)
            sink.write(pack_frame(WatchFrame(frames.END, 0, over)))
            sink.flush()
            return 0
        over = check_if_run_over(directory)
        if over:  # the files are read once more: what was written before the end is not missed
            continue
        if time.monotonic() - written > spec.timings.idle:
            sink.write(pack_frame(WatchFrame(frames.ALIVE)))
            sink.flush()
            written = time.monotonic()
        if link and link.open:
            if select.select([link], [], [], spec.timings.idle / 2)[0]:
                list(link.receive())  # the files have grown, or the keeper has ended
        else:
            pause = min(pause * 1.5, 0.1)
            time.sleep(pause)


def _exit_when_silent(silent: float) -> None:
    """Ends this process, however busy, when its input falls silent for so many seconds or ends. Of a laptop that fell
    asleep, or a cable that was cut, no connection tells for hours. The keeper must not take that for a watcher: the run
    may have a lease. The controller, when it is back, starts another one. A controller that never writes (of a version
    that did not) is taken to be there."""
    try:
        if not os.read(0, PIECE):
            return
        while select.select([0], [], [], silent)[0] and os.read(0, PIECE):
            pass
    except OSError:
        return  # it has no input
    os._exit(0)


class JournalTail:
    """As `spool.Tail`, of one file."""

    def __init__(self, path: str, offset: int) -> None:
        self.path, self.offset = path, offset
        self.file: "Optional[BinaryIO]" = None

    def measure_end(self) -> int:
        try:
            return os.path.getsize(self.path)
        except OSError:
            return 0

    def read(self, most: int) -> bytes:
        if self.file is None:
            try:
                self.file = open(self.path, "rb", buffering=0)
            except OSError:
                return b""
            self.file.seek(self.offset)
        piece = self.file.read(most)
        self.offset += len(piece)
        return piece


def check_if_run_over(directory: str) -> bytes:
    """b"" while the run goes on; ENDED when its final record is there; GONE when the keeper died without one."""
    if os.path.exists(os.path.join(directory, paths.END)):
        return frames.ENDED
    keeper = files.read_keeper_address(directory)
    if keeper is None:  # it is still to come, or whoever began this run is no more
        coming = files.is_fresh(directory) and not os.path.exists(os.path.join(directory, _CRASH))
        return b"" if coming else frames.GONE
    if procs.is_still_alive(procs.Process(keeper.pid, keeper.start, 0, "")):
        return b""
    return frames.ENDED if os.path.exists(os.path.join(directory, paths.END)) else frames.GONE


def describe_death(directory: str) -> bytes:
    """Why a keeper died that left no final record: its exception, or a full disk; b"" where nothing tells. Raises
    `FileNotFoundError` where the directory has been removed."""
    crash = procs.read_file(os.path.join(directory, _CRASH)).strip()
    if not crash:  # there was no space for it either
        space = os.statvfs(directory)
        if space.f_bavail * space.f_frsize < _LEAST_SPACE:
            return b"No space left on device: " + os.fsencode(directory)
    return crash.rpartition(b"\n")[2].replace(b"OSError: ", b"")[:REASON_LENGTH]


def connect(directory: str, spec: "RunSpec", role: str, name: str) -> "rpc.Wire":
    """Returns a connection to the run's keeper, in a role. Raises OSError."""
    keeper = files.read_keeper_address(directory)
    if keeper is None:
        raise OSError("the run has no keeper")
    return rpc.connect(keeper.address, keeper.port, spec.token, role, name, spec.timings.connect)
