"""Which processes on this host belong to a run, and how to end them. Also a program of its own (`main`).

A process belongs to a run when its environment carries ``IPEXCTL_RUN=<run>``, and to one host's part of it when it
carries ``IPEXCTL_NODE=<run>:<label>`` (several hosts of a lab are one machine) or descends from that host's guard: a
sub-reaper, so that a daemon that cleaned its environment is still its descendant. Where the host allows it, all that a
guard starts is also in a control group (version 2) of its own, which tells even when the guard is dead. Never by name,
never by user."""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ipexctl.protocol import paths

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_PIECE = 1 << 16  # bytes that are read at a time
_VARIABLES = 1 << 23  # bytes of a process's variables: the kernel takes 6 MiB of a program that it starts
_MAPS = 1 << 24  # bytes of the list of files in its memory: 65,530 (vm.max_map_count) with usual names
_TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
STUCK = 2.0  # seconds
_CGROUP = "/sys/fs/cgroup"


class Process(NamedTuple):
    """``start`` is the kernel's start time in clock ticks since boot: with the pid it names a process for ever.
    ``seconds`` of CPU it has used, with its ended children; ``rss`` bytes are in memory."""

    pid: int
    start: int
    parent: int
    state: str
    seconds: float = 0.0
    rss: int = 0


def read_file(path: str, limit: "Optional[int]" = None) -> bytes:
    """Returns a file's bytes, about ``limit`` at most; none where there is no such file, or it may not be read."""
    data = bytearray()
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY)  # half the time of a file object, and a search of /proc reads hundreds
        try:
            for piece in iter(lambda: os.read(fd, _PIECE), b""):
                data += piece
                if limit and len(data) >= limit:
                    break
        finally:
            os.close(fd)
    return bytes(data)


def read_maps(pid: int) -> bytes:
    """Returns the list of files in a process's memory. Another user's may have names without an end, as root sees."""
    return read_file("/proc/%d/maps" % pid, _MAPS)


def read_tail(path: str, size: int, begin: int = 0) -> bytes:
    """Returns the last bytes of a file that a rank writes, which may have no end: at most so many of those behind
    ``begin``."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            end = os.fstat(fd).st_size
            begin = max(begin, end - size)
            return os.pread(fd, end - begin, begin)
        finally:
            os.close(fd)
    return b""


def read_age(path: str) -> float:
    """Returns seconds since a file was changed, by the clock of its file system. Raises OSError."""
    return read_clock(os.path.dirname(path)) - os.stat(path).st_mtime


def read_clock(directory: str) -> float:
    """Returns the time, in Unix seconds, by the clock of a directory's file system, which may be a server's: by a file
    made there now. Where none can be made, by the clock of this host."""
    import tempfile  # each start of the agent would pay for it

    with suppress(OSError), tempfile.TemporaryFile(dir=directory) as probe:
        return os.fstat(probe.fileno()).st_mtime
    return time.time()


def find_process(pid: int, proc: str = "/proc") -> "Optional[Process]":
    """Returns the process with this id, or None when there is none (zombies count as none)."""
    # Of itself a process that qemu runs reads another start time there than others do, but not of its first thread.
    own = "task/%d/" % pid if pid == os.getpid() else ""
    text = read_file("%s/%d/%sstat" % (proc, pid, own))
    if not text:
        return None
    words = text[text.rindex(b")") + 2 :].split()  # the name before it may hold anything
    state, seconds = words[0].decode(), sum(map(int, words[11:15])) / _TICKS
    about = pid, int(words[19]), int(words[1]), state, seconds, int(words[21]) * PAGE
    return None if state in "ZX" else Process(*about)


def list_processes() -> "Dict[int, Process]":
    """Returns all processes of this host (of this process-number namespace), by id."""
    processes = (find_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in processes if process}


def list_killed_children() -> "Dict[int, List[Tuple[int, int]]]":
    """Returns the id and the signal (proc(5): stat, exit_code) of each process that a signal has ended and whose parent
    has not waited for it yet, by the parent's id. SIGTERM, by which parents end their own, is none."""
    killed: Dict[int, List[Tuple[int, int]]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        text = read_file("/proc/%s/stat" % name)
        words = text[text.rfind(b")") + 2 :].split()
        if words[:1] == [b"Z"] and int(words[49]) & 0x7F not in (0, signal.SIGTERM):
            killed.setdefault(int(words[1]), []).append((int(name), int(words[49]) & 0x7F))
    return killed


def list_shared_memory(pid: int) -> "Set[str]":
    """Files of shared memory that MPI has made and the process has mapped. Only MPICH's have names that stay. A process
    of another user may have our mark: files of others, and in directories that they could replace, are none."""
    begin, places = b"/dev/shm/mpich_shm_", set()
    for words in (line.split(None, 5) for line in read_maps(pid).splitlines()):
        if words[5:] and words[5].startswith(begin) and b"/" not in words[5][len(begin) :]:
            with suppress(OSError):  # it is gone
                if os.lstat(words[5]).st_uid == os.geteuid():
                    places.add(os.fsdecode(words[5]))
    return places


def format_run_mark(run: str) -> str:
    """Returns the variable that all processes of a run have."""
    return "%s=%s" % (paths.RUN_ENV, run)


def format_node_mark(run: str, label: str) -> str:
    """Returns the variable that all processes of one host's part of a run have."""
    return "%s=%s:%s" % (paths.NODE_ENV, run, label)


def _read_variables(pid: int) -> "List[bytes]":
    """Returns what the process was started with in its environment; nothing where that may not be read, and of another
    user's process, also for root: it may have marks of ours, and variables without an end (PR_SET_MM_MAP, prctl(2))."""
    status = read_file("/proc/%d/status" % pid) if os.geteuid() == 0 else b""
    if status and b"\nUid:\t%d\t" % os.getuid() not in status:
        return []
    return read_file("/proc/%d/environ" % pid, _VARIABLES).split(b"\0")


def has_mark(pid: int, mark: str) -> bool:
    """Returns whether the process was started with this in its environment, by this account."""
    return mark.encode() in _read_variables(pid)


def read_run(pid: int) -> str:
    """Returns the run that this account started the process in; empty outside of runs."""
    begin = (paths.RUN_ENV + "=").encode()
    words = (word for word in _read_variables(pid) if word.startswith(begin))
    return next(words, begin)[len(begin) :].decode("ascii", "replace")


def create_cgroup(run: str, label: str) -> str:
    """Returns a control group below this process's own, as a directory; empty where that is not allowed."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as text:
            own = [line[3:].strip("/") for line in text.read().splitlines() if line.startswith("0::")]
        path = os.path.join(_find_cgroup_root(), *own[:1], "%s%s-%s" % (paths.GROUP, run, label))
        os.makedirs(path, exist_ok=True)  # each attempt asks for it
    except OSError:
        return ""
    return path


def find_cgroups(run: str) -> "List[str]":
    """Returns the control groups of a run on this host, wherever they are; not those of a run whose name only begins
    with that of this one, and none that another user has made, who may have some below his own."""
    groups, name = [], paths.GROUP + run
    for path in list_directories(_find_cgroup_root()):
        with suppress(OSError):
            if os.path.basename(path).rpartition("-")[0] == name and os.stat(path).st_uid == os.geteuid():
                groups.append(path)
    return groups


def list_directories(top: str) -> "List[str]":
    """Returns a directory and all below it, each before those that are in it; they may be deeper than Python's stack,
    which `os.walk` takes for each."""
    directories = [top]
    for path in directories:
        with suppress(OSError):
            directories += [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    return directories


def find_mount(directory: str) -> str:
    """Where something is mounted, there or below, also of the same file system: somebody's data. Empty for nowhere."""
    top = os.fsencode(os.path.realpath(directory)) + b"/"
    for line in read_file("/proc/self/mountinfo").split(b"\n")[:-1]:
        at = line.split(b" ")[4].decode("unicode_escape").encode("latin-1")  # where blanks are numbers
        if (at + b"/").startswith(top):
            return os.fsdecode(at)
    return ""


def join_cgroup(group: str) -> None:
    """Moves this process, and with it all that it starts, into the group. Where that fails, marks and descent tell."""
    with suppress(OSError), open(os.path.join(group, "cgroup.procs"), "w", encoding="utf-8") as text:
        text.write("0")


def list_cgroup_members(group: str) -> "Set[int]":
    """Returns all processes in it and below; none for an empty name."""
    pids: Set[int] = set()
    for path in list_directories(group) if group else ():
        pids.update(map(int, read_file(os.path.join(path, "cgroup.procs")).split()))
    return pids


def remove_cgroup(group: str) -> None:
    """Removes a group in which nobody is left; the dead stay in it for a moment, until somebody has collected them."""
    until = time.monotonic() + 1.0
    while group and os.path.isdir(group) and not list_cgroup_members(group):
        for path in reversed(list_directories(group)):
            try:
                os.rmdir(path)
            except OSError:
                if time.monotonic() > until:
                    return
                time.sleep(0.05)


def _find_cgroup_root() -> str:
    """Returns where the kernel shows control groups of version 2."""
    old = os.path.join(_CGROUP, "unified")
    return old if os.path.isdir(old) else _CGROUP


def find_marked(
    mark: str,
    root: int = 0,
    spare: "Iterable[int]" = (),
    groups: "Iterable[str]" = (),
    all_now: "Optional[Dict[int, Process]]" = None,
) -> "List[Process]":
    """Living processes with the mark, without this one and `spare`; all descendants of `root` (a guard) and members of
    `groups` count too. ``all_now`` are the processes of this host, if they were just listed."""
    all_now = list_processes() if all_now is None else all_now
    out: Set[int] = {os.getpid(), *spare}
    ours = set(find_descendants(root, all_now) if root else ())
    for group in groups:
        ours |= list_cgroup_members(group)
    return [p for p in all_now.values() if p.pid not in out and (p.pid in ours or has_mark(p.pid, mark))]


def find_descendants(root: int, processes: "Dict[int, Process]") -> "List[int]":
    """Children of a process, their children and so on, the oldest generation first."""
    children: Dict[int, List[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    descendants = children.pop(root, [])
    for pid in descendants:
        descendants += children.pop(pid, [])  # once, whatever the numbers of processes that ended meanwhile say
    return descendants


def is_still_alive(process: "Process") -> bool:
    """Returns whether this very process (not another one with its number) still lives."""
    now = find_process(process.pid)
    return now is not None and now.start == process.start


def send_signal(processes: "Iterable[Process]", number: int) -> None:
    """Signals exactly these processes; those that are gone are left alone."""
    for process in processes:
        if is_still_alive(process):
            with suppress(OSError):  # gone between the look and the signal, or not ours to signal: the next look tells
                os.kill(process.pid, number)


def kill_marked(
    mark: str, root: int, spare: "Iterable[int]" = (), patience: float = 5.0, groups: "Iterable[str]" = ()
) -> "List[Process]":
    """SIGKILLs everything with the mark until nothing is left or `patience` seconds passed; returns what is left. MPI's
    files of shared memory, which nobody else would remove, are unlinked. Where all that is left has been in the hands
    of the kernel (frozen, or waiting for a disk) for `STUCK` seconds, that is not waited for any longer."""
    spare = set(spare)
    now = time.monotonic()
    until, moved = now + patience, now
    while True:
        reap_children()
        left = find_marked(mark, root, spare, groups)
        now = time.monotonic()
        if any(process.state != "D" for process in left):
            moved = now
        if not left or now > until or now - moved > STUCK:
            return left
        for path in set().union(*(list_shared_memory(process.pid) for process in left)):
            with suppress(OSError):
                os.unlink(path)
        send_signal(left, signal.SIGKILL)
        send_signal(left, signal.SIGCONT)
        time.sleep(0.05)


def reap_children() -> None:
    """Lets go of children that have ended."""
    with suppress(OSError):  # there is none any more
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def become_reaper() -> None:
    """Makes orphans among our descendants our children, where the kernel and libc offer it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """For use in a child before exec: the kernel kills it when its parent ends."""
    with suppress(OSError, AttributeError):  # the guard finds orphans anyway
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def close_files(*kept: int) -> None:
    """Closes all files of this process, which was forked off, but for its standard ones and those ``kept``."""
    for number in os.listdir("/proc/self/fd"):
        if int(number) > 2 and int(number) not in kept:
            with suppress(OSError):  # that of the listing itself
                os.close(int(number))


def rename_word(old: bytes, new: bytes) -> None:
    """Replaces a word of this process's command line, as `ps` and /proc show it, by one that is no longer: a process
    that was forked off to do something else. Does nothing where that is not possible."""
    at = read_file("/proc/self/cmdline").find(b"\0%s\0" % old)
    text = read_file("/proc/self/stat")
    with suppress(ValueError, IndexError):
        start = int(text[text.rindex(b")") + 2 :].split()[45])  # arg_start, proc(5)
        if at >= 0 and start and len(old) >= len(new):
            ctypes.memmove(start + at + 1, new.ljust(len(old), b"\0"), len(old))


def open_end(pid: int) -> "Optional[int]":
    """Returns a descriptor that becomes readable when the process ends; None where the kernel or Python has no such
    thing, and of a process that is gone."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        return None


def daemonize() -> bool:
    """Leaves the starting session for good. True in the process that goes on, False in the one that must return."""
    sys.stdout.flush()
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    return True


def main(argv: "List[str]") -> int:
    """``prove RUN``: prints the run's living processes as JSON. ``reap RUN``: ends them first."""
    from ipexctl.protocol import messages  # each wrapper would pay for it

    role, run = argv
    groups = find_cgroups(run)
    mark, ends = format_run_mark(run), role == paths.Role.REAP
    left = kill_marked(mark, 0, groups=groups) if ends else find_marked(mark, groups=groups)
    for group in groups:
        remove_cgroup(group)
    rows = []
    for process in left:
        words = read_file("/proc/%d/cmdline" % process.pid).replace(b"\0", b" ").decode("utf-8", "replace")[:200]
        if is_still_alive(process):
            rows.append(messages.ProcessRow(process.pid, process.state, words))
    print(messages.KINDS.write(messages.ProcessesLeft(rows)).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
