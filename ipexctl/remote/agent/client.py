"""Those who talk to a keeper on its own host: the shim Hydra calls, the watcher the controller reads, orders."""

from __future__ import annotations

import json
import os
import select
import struct
import sys
import threading
import time
from typing import Any, BinaryIO, Dict, List, Optional

from ipexctl.remote.agent import files, procs, rpc, spool

FRAME = struct.Struct("!cQI")  # kind, offset in its file, length; then the bytes
PIECE = 1 << 18
IDLE = 2.0  # seconds after which a watcher shows that it lives
SILENT = 10.0  # seconds without a byte from the controller (one comes every two) after which nobody is there


def main(argv: List[str]) -> int:
    role, rest = argv[0], argv[1:]
    return {"watch": watch, "tell": tell, "shim": shim, "list": list_runs, "show": show}[role](rest)


def shim(argv: List[str]) -> int:
    """Called in place of ssh: asks the host's guard, and waits. By Hydra as ``shim RUNDIR -q -x HOST word …``, by Open
    MPI as ``shim RUNDIR HOST word …``."""
    directory, words = argv[0], argv[1:]
    if words[0].startswith("-"):
        words = words[words.index("-x") + 1 :]
    label, words = words[0], words[1:]
    spec = files.read(directory, files.SPEC)
    host = next(name for name, entry in spec["hosts"].items() if entry["label"] == label)
    link = _connect(directory, spec, "shim", host)
    link.send({"do": "proxy", "words": words})
    while link.open:
        select.select([link], [], [], 5.0)
        if any(message.get("do") == "end" for message in link.take()):
            return 0
    return 1


def tell(argv: List[str]) -> int:
    """``tell RUNDIR stop|kill WHY``: an order to the keeper; prints its state. Status 3: the keeper is gone."""
    directory, order, why = argv[0], argv[1], argv[2]
    try:
        spec = files.read(directory, files.SPEC)
        link = _connect(directory, spec, "tell", "controller")
    except (OSError, ValueError, rpc.AuthenticationError) as error:
        print(json.dumps({"error": str(error)}))
        return 3
    link.send({"do": order, "why": why})
    until = time.monotonic() + 5.0
    while link.open and time.monotonic() < until:
        select.select([link], [], [], 0.5)
        for message in link.take():
            print(json.dumps(message))
            return 0
    return 3


def watch(argv: List[str]) -> int:
    """``watch RUNDIR JOURNAL OUT ERR [once]``: what is in the run's files from these offsets on, in frames, until its
    end; with ``once`` until the files' present end. Needs no keeper.

    Frames: ``j`` journal, ``o`` and ``e`` mpirun's outputs, ``t`` a sign of life, ``z`` the end ("end", "gone", "now").
    Ends early when the controller falls silent (`_attend`).
    """
    directory, offsets = argv[0], [int(word) for word in argv[1:4]]
    spec = files.read(directory, files.SPEC)
    sink = sys.stdout.buffer
    once = argv[4:] == ["once"]
    link: Optional[rpc.Wire] = None
    if not once:
        threading.Thread(target=_attend, daemon=True).start()
    try:
        link = None if once else _connect(directory, spec, "watch", "controller")
    except (OSError, ValueError, rpc.AuthenticationError):
        pass  # over already; the files tell
    tails: List[Any] = [
        _Tail(directory, files.JOURNAL, b"j", offsets[0]),
        _Spooled(directory, files.OUT, b"o", offsets[1], spec.get("log_cap")),
        _Spooled(directory, files.ERR, b"e", offsets[2], spec.get("log_cap")),
    ]
    said, pause = time.monotonic(), 0.02
    while True:
        over = b"now" if once else _over(directory)  # asked before the files are read: nothing after it is missed
        moved = sum(tail.pass_on(sink) for tail in tails)
        if moved:
            sink.flush()
            said, pause = time.monotonic(), 0.02
            continue
        if over:
            sink.write(FRAME.pack(b"z", 0, len(over)) + over)
            sink.flush()
            return 0
        if time.monotonic() - said > IDLE:
            sink.write(FRAME.pack(b"t", 0, 0))
            sink.flush()
            said = time.monotonic()
        pause = min(pause * 1.5, 0.1)
        if link and link.open:
            if select.select([link], [], [], pause)[0]:
                link.take()
        else:
            time.sleep(pause)


def _attend() -> None:
    """Ends this process, however busy, when its input falls silent for `SILENT` seconds or ends.

    Of a laptop that fell asleep, or a cable that was cut, no connection tells for hours. The keeper must not take that
    for a watcher: the run may have a lease. The controller, when it is back, starts another one. A controller that
    never writes (of a version that did not) is taken to be there.
    """
    try:
        if not os.read(0, PIECE):
            return
        while select.select([0], [], [], SILENT)[0] and os.read(0, PIECE):
            pass
    except OSError:
        return  # it has no input
    os._exit(0)


def list_runs(argv: List[str]) -> int:
    """``list BASE``: the runs whose head this host is, as JSON; and directories of runs that nobody looks after."""
    base, runs, stray = argv[0], [], []
    for name in sorted(os.listdir(base)):
        directory = os.path.join(base, name)
        try:
            spec = files.read(directory, files.SPEC)
        except (OSError, ValueError):
            if files.torn(directory):
                stray.append({"run": name.rpartition("-h")[0], "directory": directory})
            continue
        if files.elsewhere(directory):
            continue
        if not spec.get("head"):
            if not files.fresh(directory) and not procs.living(procs.of_seat(spec["run"], spec["label"])):
                stray.append({"run": spec["run"], "directory": directory})
            continue
        state = {b"": "running", b"end": "ended"}.get(_over(directory), "gone")
        row = {key: spec[key] for key in ("run", "title", "owner", "started", "size")}
        row.update(state=state, hosts=sorted(spec["hosts"]), directory=directory, watchers=0)
        if state == "running":
            row.update(_told(directory, spec))
        elif state == "ended":
            row.update(reason=files.read(directory, files.END)["reason"])
        runs.append(row)
    print(json.dumps({"runs": runs, "stray": stray}))
    return 0


def _told(directory: str, spec: Dict[str, Any]) -> Dict[str, Any]:
    """What the keeper itself says of its run."""
    try:
        link = _connect(directory, spec, "tell", "controller")
    except (OSError, ValueError, rpc.AuthenticationError):
        return {}
    link.send({"do": "look"})
    until = time.monotonic() + 2.0
    while link.open and time.monotonic() < until:
        select.select([link], [], [], 0.5)
        for message in link.take():
            return {"watchers": message.get("watchers", 0), "state": _STATES.get(message["state"], "running")}
    return {}


_STATES = {"gathering": "starting", "stopping": "stopping", "killing": "stopping", "finishing": "stopping"}


def show(argv: List[str]) -> int:
    """``show RUNDIR``: what a watcher must know of a run, as JSON. Never the token or the ranks' environment."""
    spec = files.read(argv[0], files.SPEC)
    keys = ("run", "title", "owner", "started", "size", "host", "hosts", "argv", "nonce")
    print(json.dumps({key: spec[key] for key in keys}))
    return 0


class _Tail:
    def __init__(self, directory: str, name: str, kind: bytes, offset: int) -> None:
        self.path = os.path.join(directory, name)
        self.kind = kind
        self.offset = offset
        self.file: Optional[BinaryIO] = None

    def pass_on(self, sink: Any) -> int:
        if self.file is None:
            try:
                self.file = open(self.path, "rb", buffering=0)
            except OSError:
                return 0
            self.file.seek(self.offset)
        piece = self.file.read(PIECE)
        if piece:
            sink.write(FRAME.pack(self.kind, self.offset, len(piece)))
            sink.write(piece)
            self.offset += len(piece)
        return len(piece)


class _Spooled:
    """The same of an output, whose oldest parts may be gone: the offset of the next frame tells."""

    def __init__(self, directory: str, name: str, kind: bytes, offset: int, cap: Any) -> None:
        self.kind = kind
        self.tail = spool.Tail(os.path.join(directory, name), cap, offset)

    def pass_on(self, sink: Any) -> int:
        piece = self.tail.read(PIECE)
        if piece:
            sink.write(FRAME.pack(self.kind, self.tail.offset - len(piece), len(piece)))
            sink.write(piece)
        return len(piece)


def _over(directory: str) -> bytes:
    """b"" while the run goes on; b"end" when its final record is there; b"gone" when the keeper died without one."""
    if os.path.exists(os.path.join(directory, files.END)):
        return b"end"
    try:
        keeper = files.read(directory, files.KEEPER)
    except (OSError, ValueError):
        return b"" if files.fresh(directory) else b"gone"  # it is still to come, or whoever began this run is no more
    now = procs.look(keeper["pid"])
    if now and now.start == keeper["start"]:
        return b""
    return b"end" if os.path.exists(os.path.join(directory, files.END)) else b"gone"


def _connect(directory: str, spec: Dict[str, Any], role: str, name: str) -> rpc.Wire:
    keeper = files.read(directory, files.KEEPER)
    return rpc.connect(keeper["address"], keeper["port"], spec["token"], role, name)
