"""Where a rank stood when memory was about to run out. The kernel's kill leaves no traceback, so the rank's wrapper
asks for its stacks shortly before: when, growing as it does, it would soon have all that its control group or its host
has left.

Costs one short read a second, and nothing of the rank; a rank that grows fast is measured ten times a second."""

import os
import threading
import time
from contextlib import suppress
from typing import Dict, Iterator, NamedTuple, Optional, Tuple

from ipexctl.protocol.hooks import RANKS, STACK_LIMIT, STACKS, STACKS_REQUEST, STACKS_SIGNAL
from ipexctl.protocol.rank_records import Memory
from ipexctl.remote.agent import procs, stack_traces

SLOW, FAST = 1.0, 0.1  # seconds between two measurements, of a rank that grows slowly or fast
STACKS_LEAD = 3.0  # seconds until memory would run out: its stacks are requested
DENSE_SAMPLING_LEAD = 15.0  # seconds until then: it is measured often
REQUEST_INTERVAL = 1.0  # seconds between two requests
REQUEST_LIMIT = 50  # requests to one rank
UNLIMITED = 1 << 60  # bytes: what version 1 of control groups shows where there is no limit is more


class MemoryWatch:
    """Looks after one process of a rank until that has ended."""

    def __init__(self, directory: str, rank: int, pid: int) -> None:
        self.path = os.path.join(directory, RANKS, "%d%s" % (rank, STACKS))
        self.pid = pid
        self.offset = -1  # where the last answer begins
        self.group = find_memory_group(procs.read_file("/proc/self/cgroup"), "/sys/fs/cgroup")

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
            left = read_room(self.group) / growth if growth > 0 else DENSE_SAMPLING_LEAD  # seconds
            pause = FAST if left < DENSE_SAMPLING_LEAD else SLOW
            if left < STACKS_LEAD and now - requested > REQUEST_INTERVAL:
                requested, requests = now, requests + self.request_stacks()

    def request_stacks(self) -> int:
        """Has the rank's Python write its stacks. The number of requests: 1, or 0 where it cannot be asked."""
        if not stack_traces.has_file_open(self.pid, self.path):
            return 0
        with suppress(OSError):
            size = os.path.getsize(self.path)
            number = STACKS_SIGNAL
            if self.offset != size and stack_traces.has_signal(self.pid, b"SigIgn:", STACKS_REQUEST):
                number = STACKS_REQUEST  # it has answered the last one
            os.kill(self.pid, number)
            self.offset = size
            return 1
        return 0

    def read_last_stacks(self) -> str:
        """Returns the last stacks that the rank wrote on request; "" where it wrote none."""
        if self.offset < 0:
            return ""
        return procs.read_tail(self.path, STACK_LIMIT, self.offset).decode("utf-8", "replace")


def read_resident(pid: int) -> int:
    """Returns bytes of memory that a process has; 0 when it has ended."""
    process = procs.find_process(pid)
    return process.rss if process else 0


def parse_number(word: bytes) -> int:
    """0 for what is no number, or none of the kernel's."""
    return int(word) if len(word) < 20 and word.isdigit() else 0


def parse_memory(text: bytes) -> "Dict[str, int]":
    """Of /proc/meminfo: bytes by name."""
    amounts = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == b"kB":
            amounts[words[0].decode("ascii", "replace").rstrip(":")] = 1024 * parse_number(words[1])
    return amounts


class MemoryGroup(NamedTuple):
    """The control group that limits this process's memory most, and its files."""

    limit: int
    usage: str
    statistics: str


def find_memory_group(own: bytes, root: str) -> "Optional[MemoryGroup]":
    """``own`` is /proc/self/cgroup, ``root`` where the kernel shows control groups. None where none has a limit."""
    groups = []
    for directory, old in list_groups(own, root, "memory"):
        names = ("limit_in_bytes", "usage_in_bytes", "stat") if old else ("max", "current", "stat")
        limit, usage, statistics = (os.path.join(directory, "memory." + name) for name in names)
        number = parse_number(procs.read_file(limit).strip())
        if 0 < number < UNLIMITED:
            groups.append(MemoryGroup(number, usage, statistics))
    return min(groups, default=None)


def list_groups(own: bytes, root: str, controller: str) -> "Iterator[Tuple[str, bool]]":
    """Yields the directories of the control groups that this process is in, from the outermost on, which have such a
    controller or are of version 2; True for version 1."""
    for line in os.fsdecode(own).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers or controller in controllers.split(","):
            base = os.path.join(root, controller) if controllers else root
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts) + 1):
                yield os.path.join(base, *parts[:depth]), bool(controllers)


def read_numbers() -> Memory:
    """Returns the memory of this process's control group, or of the nearest one above that has numbers."""
    numbers: Dict[str, int] = {}
    for base, old in reversed([*list_groups(procs.read_file("/proc/self/cgroup"), "/sys/fs/cgroup", "memory")]):
        for field, names in (
            ("kills", ("events", "oom_control")),
            ("used", ("peak", "max_usage_in_bytes")),
            ("limit", ("max", "limit_in_bytes")),
        ):
            words = procs.read_file(os.path.join(base, "memory." + names[old])).split()
            with suppress(ValueError, IndexError):
                numbers.setdefault(field, int(words[words.index(b"oom_kill") + 1 if field == "kills" else 0]))
        if "limit" not in numbers:
            numbers.pop("used", None)  # of the group whose limit it is
    return Memory(**numbers)


def read_statistic(group: "MemoryGroup", *names: bytes) -> int:
    """Returns the first of these numbers that the group's statistics have, 0 where they have none."""
    lines = map(bytes.split, procs.read_file(group.statistics).splitlines())
    amounts = {words[0]: words[1] for words in lines if len(words) == 2}
    return next((parse_number(amounts[name]) for name in names if name in amounts), 0)


def read_room(group: "Optional[MemoryGroup]") -> int:
    """Bytes that a process can still have: of its host, and of its control group, whose cached files count as free."""
    room = parse_memory(procs.read_file("/proc/meminfo")).get("MemAvailable", 1 << 62)
    used = procs.read_file(group.usage).strip() if group else b""
    if group and used.isdigit():
        room = min(room, max(group.limit - int(used) + read_statistic(group, b"total_cache", b"file"), 0))
    return room
