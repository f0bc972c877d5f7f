"""The wrapper of one rank, started by mpirun on the rank's own host.

It applies what is true of that host (environment, cores, working directory, interpreter), maps the launcher's variables
to RANK, LOCAL_RANK and WORLD_SIZE, starts the script, and leaves a record of how it ended.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import select
import selectors
import signal
import stat
import subprocess
import sys
import termios
import threading
import time
from typing import Any, Dict, Iterable, List, Optional, Set

from ipexctl.remote.agent import files, oom_report, procs

_RANK = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_SIZE = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")

FRAME = 4096  # bytes: PIPE_BUF, and what Open MPI reads at a time
LINGER = 2.0  # seconds for the last words of a script whose daemons hold its outputs open, and go on writing
SETTLED = 10.0  # seconds after which a rank's threads run where they will run
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}  # the kernel's numbers of the call
_MPOL_BIND = 2  # linux/mempolicy.h


def main(argv: List[str]) -> int:
    """``rank`` with IPEXCTL_DIR in the environment (set by the guard for all that it starts)."""
    stopped: List[int] = []

    def pass_on(number: int, _frame: Any) -> None:
        stopped.append(number)  # the guard signals the script itself as well; the wrapper only outlives it

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    directory = argv[0] if argv else os.environ["IPEXCTL_DIR"]
    spec = files.read(directory, files.SPEC)
    rank = _number(_RANK)
    if rank is None:
        sys.stderr.write("ipexctl: mpirun gave this process no rank\n")
        return 1
    place: Optional[Dict[str, Any]] = spec["ranks"].get(str(rank))
    if place is None:
        sys.stderr.write("ipexctl: rank %d was planned for another host than %s\n" % (rank, spec["host"]))
        return 1
    unwritten = files.news(directory, rank, "begin", {"pid": os.getpid()})  # first, so that a killed wrapper is missed
    if unwritten:
        sys.stderr.write("ipexctl: rank %d did not start on %s: %s\n" % (rank, spec["host"], unwritten))
        return 1
    notes = Notes(directory, rank)
    environment = _environment(directory, spec, place, rank)
    preload = _loadable(spec.get("preload", []), spec["argv"][0], notes)
    if preload:
        environment["LD_PRELOAD"] = ":".join(preload)
    _bind(place, notes)
    frames = Frames(2, spec["frames"], rank) if spec.get("frames") else None
    began = time.time()
    before = _memory()
    kernel = oom_report.KernelLog()
    if stopped or os.path.exists(os.path.join(directory, files.ENDING)):
        files.news(
            directory, rank, "end", {"status": None, "signal": signal.SIGTERM, "at": time.time(), "stopped": True}
        )
        return 128 + signal.SIGTERM
    try:
        # PMI's connection is an inherited descriptor, so descriptors stay open.
        child = subprocess.Popen(
            spec["argv"],
            env=environment,
            cwd=spec["workdir"],
            close_fds=False,
            preexec_fn=_in_child,
            stdout=subprocess.PIPE if frames else None,
            stderr=subprocess.PIPE if frames else None,
        )
    except OSError as error:
        files.news(directory, rank, "end", {"status": 127, "signal": 0, "at": time.time(), "error": str(error)})
        sys.stderr.write("ipexctl: rank %d could not start %s: %s\n" % (rank, spec["argv"][0], error))
        return 127
    if stopped:  # the script may have been born too late for the guard's look
        child.send_signal(stopped[0])
    files.news(
        directory,
        rank,
        "start",
        {"pid": os.getpid(), "child": child.pid, "at": began, "cpus": sorted(os.sched_getaffinity(0))},
    )
    watch = threading.Timer(SETTLED, _drifted, (child.pid, place, environment, notes))
    watch.daemon = True
    watch.start()
    status = frames.carry(child) if frames else child.wait()
    record: Dict[str, Any] = {
        "status": status if status >= 0 else None,
        "signal": -status if status < 0 else 0,
        "at": time.time(),
        "stopped": bool(stopped),
    }
    after = _memory()
    if record["signal"] == signal.SIGKILL and after.get("kills", 0) > before.get("kills", 0):
        record["oom"] = after
    if status:
        record["unheard"] = _unheard()
        elastic = environment["TORCHELASTIC_ERROR_FILE"]
        record.update(oom_report.of(directory, rank, child.pid, record["signal"], kernel, elastic))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    unwritten = files.news(directory, rank, "end", record)
    if unwritten:
        sys.stderr.write("ipexctl: the end of rank %d on %s is not recorded: %s\n" % (rank, spec["host"], unwritten))
    elif frames or spec.get("independent"):
        return 0  # Open MPI would end the others at once; who failed first, and what then happens, the keeper says
    return status if status >= 0 else 128 - status


def _environment(directory: str, spec: Dict[str, Any], place: Dict[str, Any], rank: int) -> Dict[str, str]:
    """The rank's whole environment: the launcher's own variables, then what was planned for this host and rank."""
    launcher = ("PMI", "PMIX", "MPI_", "I_MPI", "HYDRA", "OMPI", "OPAL", "PRTE", "PRRTE", "ACCELERATE_")
    independent = spec.get("independent")  # then nothing may make it look for others
    names = {name: value for name, value in os.environ.items() if name.startswith(launcher) and not independent}
    names.update(spec["env"])
    names.update(place.get("env", {}))
    if independent:
        names.update(IPEXCTL_INSTANCE=str(rank), IPEXCTL_INSTANCES=str(spec["size"]))
    else:
        names.update(
            RANK=str(rank),
            WORLD_SIZE=str(spec["size"]),
            LOCAL_RANK=str(-1 if spec.get("alone") else place["local"]),
            LOCAL_WORLD_SIZE=str(len(spec["ranks"])),
        )
    names.update(
        IPEXCTL_RUN=spec["run"],
        IPEXCTL_SEAT="%s:%s" % (spec["run"], spec["label"]),
        IPEXCTL_DIR=directory,
        IPEXCTL_RANK=str(rank),
    )
    # Where a script with torch's @record leaves its error.
    names.setdefault("TORCHELASTIC_ERROR_FILE", os.path.join(directory, files.RANKS, "%d.elastic" % rank))
    if not names.get("MASTER_PORT") and not independent:
        names["MASTER_PORT"] = str(files.read(directory, "port.json")["port"])
    hooks = os.path.join(directory, "hooks")
    names["PYTHONPATH"] = ":".join([hooks, *filter(None, [names.get("PYTHONPATH", "")])])
    return names


class Notes:
    """What the user should know of this rank and no output of it may tell: passed on as warnings."""

    def __init__(self, directory: str, rank: int) -> None:
        self.directory, self.rank, self.count = directory, rank, 0

    def add(self, text: str) -> None:
        files.news(self.directory, self.rank, "note%d" % self.count, {"text": text, "at": time.time()})
        self.count += 1


class Frames:
    """All that the script writes, for a launcher without tags of its own: pieces with rank, stream and length.

    Open MPI reads up to `FRAME` bytes of a rank's pipe at a time and passes them on in one piece. A frame is written
    at once, when the pipe is empty; so it is read, and passed on, at once. Both streams go through one pipe (the other
    may be a terminal, which has no such rule).
    """

    def __init__(self, fd: int, nonce: str, rank: int) -> None:
        self.fd = fd
        self.head = b"\x01" + nonce.encode() + b"=" + str(rank).encode()
        self.room = FRAME - len(self.head) - 8
        self.pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        self.broken = False
        self.poll = select.poll()
        self.poll.register(fd, 0)

    def carry(self, child: "subprocess.Popen[bytes]") -> int:
        """Passes on what the child writes until it has ended; its status. What outlives it is not waited for."""
        assert child.stdout is not None
        assert child.stderr is not None
        until = 0.0
        with selectors.DefaultSelector() as selector:
            for pipe, stream in ((child.stdout, b"o"), (child.stderr, b"e")):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe.fileno(), selectors.EVENT_READ, stream)
            while selector.get_map():
                ended = child.poll() is not None  # asked before the pipes, so that nothing written before it is missed
                ready = selector.select(0 if ended else 0.1)
                until = until or (time.monotonic() + LINGER if ended else 0.0)
                if ended and (not ready or time.monotonic() > until):
                    break
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fd)
                    self.write(key.data, data)
        return child.wait()

    def write(self, stream: bytes, data: bytes) -> None:
        for at in range(0, len(data), self.room):
            piece = data[at : at + self.room]
            self.wait()
            try:
                if not self.broken:
                    os.write(self.fd, self.head + stream + b"%d\x02" % len(piece) + piece)
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                self.broken = True  # the launcher is gone, and the run with it

    def wait(self) -> None:
        """Until everything before was read, or nobody is left to read it."""
        pause = 0.00005
        while self.pipe and not self.broken and fcntl.ioctl(self.fd, termios.FIONREAD, b"\0\0\0\0") != b"\0\0\0\0":
            time.sleep(pause)
            pause = min(pause * 1.5, 0.005)
            self.broken = bool(self.poll.poll(0))  # an error is all that it can tell


def _loadable(libraries: List[Dict[str, str]], python: str, notes: Notes) -> List[str]:
    """Those that the loader of this host really loads into the interpreter; it says of the others why not."""
    good: List[str] = []
    for library in libraries:
        try:
            done = subprocess.run(
                [python, "-I", "-S", "-c", ""],
                env={"LD_PRELOAD": ":".join([*good, library["path"]])},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=20,
            )
            why = done.stdout.decode("utf-8", "replace").strip()
            why = why or ("" if done.returncode == 0 else "the interpreter ends with status %d" % done.returncode)
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        if why:
            notes.add("goes on without %s: %s" % (library["name"], why.splitlines()[-1][:300]))
        else:
            good.append(library["path"])
    return good


def _bind(place: Dict[str, Any], notes: Notes) -> None:
    """Cores and memory as planned; what the host does not allow is noted, not fatal."""
    cpus = place.get("cpus")
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            notes.add("may not use CPUs %s as planned: %s" % (_list(cpus), error.strerror))
        else:
            given = os.sched_getaffinity(0)  # the kernel leaves out what its cpuset lacks, without a word
            if given != set(cpus):
                notes.add("was planned for CPUs %s and got %s" % (_list(cpus), _list(given)))
    nodes = place.get("membind")
    if nodes:
        mask = (ctypes.c_ulong * 16)()
        for node in nodes:
            mask[node // 64] |= 1 << node % 64
        libc = ctypes.CDLL(None, use_errno=True)
        number = _SET_MEMPOLICY.get(platform.machine())
        if number is None or libc.syscall(number, _MPOL_BIND, ctypes.byref(mask), 16 * 64 + 1):
            why = os.strerror(ctypes.get_errno()) if number else "not known how on %s" % platform.machine()
            notes.add("its memory is not bound to NUMA nodes %s: %s" % (_list(nodes), why))


def _drifted(pid: int, place: Dict[str, Any], environment: Dict[str, str], notes: Notes) -> None:
    """Notes where the script's threads really may run, if that is elsewhere than planned, or too little."""
    planned = set(place.get("cpus") or ())
    allowed: Set[int] = set()
    try:
        for thread in os.listdir("/proc/%d/task" % pid):
            allowed |= os.sched_getaffinity(int(thread))
    except OSError:
        return  # it has ended
    threads = environment.get("OMP_NUM_THREADS", "")
    if planned and not allowed <= planned.union(place.get("workers") or ()):
        notes.add("was planned for CPUs %s, but its threads may run on %s" % (_list(planned), _list(allowed)))
    elif planned and threads.isdigit() and len(allowed) < min(int(threads), len(planned)):
        notes.add("was planned for CPUs %s, but its threads share %s" % (_list(planned), _list(allowed)))


def _list(numbers: Iterable[int]) -> str:
    """(0, 1, 2, 8) is "0-2,8"."""
    parts: List[List[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join("%d" % a if a == b else "%d-%d" % (a, b) for a, b in parts)


def _unheard() -> bool:
    """Whether nobody reads what this rank writes any more: mpirun's part here has ended before it."""
    poll = select.poll()
    for fd in (1, 2):
        poll.register(fd, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _in_child() -> None:
    procs.die_with_parent()
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))  # a core file in the user's tree helps nobody here
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def _number(names: "tuple[str, ...]") -> Optional[int]:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None)


def _memory() -> Dict[str, int]:
    """What this control group (v1 or v2), or the one above that tells, says of its memory, as far as it does: ``kills``
    so far for lack of it, ``used`` at most and ``limit`` in bytes."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as text:
            groups = [line.rstrip("\n").split(":", 2) for line in text]
    except OSError:
        return {}
    found: Dict[str, int] = {}
    for _, controllers, path in groups:
        if "memory" in controllers.split(","):
            base = "/sys/fs/cgroup/memory" + path
            names = {
                "kills": "memory.oom_control",
                "used": "memory.max_usage_in_bytes",
                "limit": "memory.limit_in_bytes",
            }
        elif not controllers:
            base = "/sys/fs/cgroup" + path
            names = {"kills": "memory.events", "used": "memory.peak", "limit": "memory.max"}
        else:
            continue
        while base.startswith("/sys/fs/cgroup") and len(found) < len(names):
            for key in set(names) - set(found):
                try:
                    with open(os.path.join(base, names[key]), encoding="utf-8") as text:
                        words = text.read().split()
                    found[key] = int(words[words.index("oom_kill") + 1] if key == "kills" else words[0])
                except (OSError, ValueError, IndexError):
                    continue
            if "limit" not in found:
                found.pop("used", None)  # of the group whose limit it is
            base = os.path.dirname(base)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
