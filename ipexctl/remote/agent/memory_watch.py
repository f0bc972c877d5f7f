"""Where a rank stood when memory was about to run out. The kernel's kill leaves no traceback, so the rank's wrapper
asks for its stacks shortly before: when, growing as it does, it would soon have all that its control group or its host
has left.

Costs one short read a second, and nothing of the rank; a rank that grows fast is measured ten times a second."""

import os
import threading
import time
from contextlib import suppress
from typing import Tuple

from ipexctl.protocol.hooks import RANKS, STACKS, STACKS_SIGNAL
from ipexctl.remote.agent import procs, stack_traces

SLOW, FAST = 1.0, 0.1  # seconds between two measurements, of a rank that grows slowly or fast
STACKS_LEAD = 3.0  # seconds until memory would run out: its stacks are requested
DENSE_SAMPLING_LEAD = 15.0  # seconds until then: it is measured often
REQUEST_INTERVAL = 1.0  # seconds between two requests
REQUEST_LIMIT = 50  # requests to one rank
ANSWER_LIMIT = 1 << 15  # bytes read of an answer
PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """Looks after one process of a rank until that has ended."""

    def __init__(self, directory: str, rank: int, pid: int) -> None:
        self.path = os.path.join(directory, RANKS, "%d%s" % (rank, STACKS))
        self.pid = pid
        self.offset = -1  # where the last answer begins
        self.group = find_limiting_group()

    def start(self) -> None:
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        before, then, requested, requests, pause = read_resident(self.pid), time.monotonic(), 0.0, 0, SLOW
        while requests < REQUEST_LIMIT:
            time.sleep(pause)
            resident, now = read_resident(self.pid), time.monotonic()
            if not resident:
                return
            growth, before, then = (resident - before) / max(now - then, 0.001), resident, now  # bytes a second
            left = read_room(*self.group) / growth if growth > 0 else DENSE_SAMPLING_LEAD  # seconds
            pause = FAST if left < DENSE_SAMPLING_LEAD else SLOW
            if left < STACKS_LEAD and now - requested > REQUEST_INTERVAL:
                requested, requests = now, requests + self.request_stacks()

    def request_stacks(self) -> int:
        """Has the rank's Python write its stacks. The number of requests: 1, or 0 where it cannot be asked."""
        if not stack_traces.has_file_open(self.pid, self.path):
            return 0
        with suppress(OSError):
            size = os.path.getsize(self.path)
            os.kill(self.pid, STACKS_SIGNAL)
            self.offset = size
            return 1
        return 0

    def read_last_stacks(self) -> str:
        """Returns the last stacks that the rank wrote on request; "" where it wrote none."""
        if self.offset < 0:
            return ""
        return procs.read_file(self.path)[self.offset :][:ANSWER_LIMIT].decode("utf-8", "replace")


def read_resident(pid: int) -> int:
    """Returns bytes of memory that a process has; 0 when it has ended."""
    words = procs.read_file("/proc/%d/statm" % pid).split()
    return int(words[1]) * PAGE if len(words) > 1 else 0


def find_limiting_group() -> "Tuple[str, int]":
    """Returns the directory of the nearest control group with a limit of memory, and the limit; ("", 0) without one."""
    for line in os.fsdecode(procs.read_file("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = ("memory", "limit_in_bytes") if controllers else ("", "max")
        base = os.path.join("/sys/fs/cgroup", root).rstrip("/") + path
        while base.startswith("/sys/fs/cgroup"):
            words = procs.read_file(os.path.join(base, "memory." + name)).split()
            if words and words[0].isdigit() and int(words[0]) < 1 << 60:  # version 1 writes a huge number for none
                return base, int(words[0])
            base = os.path.dirname(base)
    return "", 0


def read_room(group: str, limit: int) -> int:
    """Bytes that a process can still have: of its host, and of its control group, whose cached files count as free."""
    room = 1 << 62
    for line in procs.read_file("/proc/meminfo").splitlines():
        if line.startswith(b"MemAvailable:"):
            room = int(line.split()[1]) << 10
    if group:
        used = procs.read_file(os.path.join(group, "memory.current")) or procs.read_file(
            os.path.join(group, "memory.usage_in_bytes")
        )
        cached = 0
        for line in procs.read_file(os.path.join(group, "memory.stat")).splitlines():
            if line.startswith((b"file ", b"total_cache ")):
                cached = int(line.split()[1])
        if used.strip().isdigit():
            room = min(room, max(limit - int(used) + cached, 0))
    return room
