"""The wrapper of one rank, started by mpirun on the rank's own host.

It applies what is true of that host (environment, cores, working directory, interpreter), maps the launcher's variables
to RANK, LOCAL_RANK and WORLD_SIZE, starts the script, and leaves a record of how it ended."""

import ctypes
import errno
import fcntl
import os
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
from contextlib import suppress
from subprocess import DEVNULL, PIPE
from typing import Any, Dict, Iterable, List, Optional

from ipexctl.protocol import paths
from ipexctl.protocol.frames import ERR, OUT, build_frame_head, build_frame_tail, escape_output
from ipexctl.protocol.hooks import PROFILE_ENV
from ipexctl.protocol.rank_records import Memory, RankBegun, RankEnded, RankNote, RankStarted
from ipexctl.protocol.run_spec import Library, RankSpec, RunSpec
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import death_report, files, kernel_log, libraries, memory_watch, procs

_RANK = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")

FEW = 1 << 13  # bytes: less is little to read at a time
FRAME = 4096  # bytes: PIPE_BUF, and what Open MPI reads at a time
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}  # the kernel's numbers of the call
_MPOL_BIND = 2  # linux/mempolicy.h


def main(argv: "List[str]") -> int:
    """``rank`` with the run's directory in the environment (set by the guard for all that it starts)."""
    stopped: List[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The guard signals the script itself as well; the wrapper only outlives it.
        signal.signal(number, lambda number, _frame: stopped.append(number))
    directory = argv[0] if argv else os.environ[paths.DIRECTORY_ENV]
    spec = files.read_spec(directory)
    rank = next((int(os.environ[name]) for name in _RANK if os.environ.get(name, "").isdigit()), None)
    if rank is None:
        return _print_error("mpirun gave this process no rank")
    place = spec.ranks.get(rank)
    if place is None:
        return _print_error("rank %d was planned for another host than %s" % (rank, spec.host))
    # First, so that a killed wrapper is missed.
    unwritten = files.write_record(directory, files.BEGIN, RankBegun(rank, os.getpid()))
    if unwritten:
        return _print_error("rank %d did not start on %s: %s" % (rank, spec.host, unwritten))
    notes = Notes(directory, rank, spec.host)
    env = _build_environment(directory, spec, place, rank)
    preload = _select_loadable_libraries(spec.preload, spec.argv[0], notes)
    if preload:
        env["LD_PRELOAD"] = ":".join(preload)
    _bind_to_cores(place, notes)
    output = FramedOutput(2, spec.nonce, rank, spec.timings) if spec.framed else Output(spec.timings)
    if spec.profile:
        output.kernels = kernel_log.open_kernel_log(directory, rank, env)
    began, before, kernel = time.time(), _read_memory_limits(), death_report.KernelLog()
    record = RankEnded(rank, spec.host)
    if stopped or os.path.exists(os.path.join(directory, paths.ENDING)):
        record = record._replace(signal=int(signal.SIGTERM), stopped=True, at=time.time())
        files.write_record(directory, files.END, record)
        return 128 + signal.SIGTERM
    given = os.path.join(directory, paths.STDIN)
    try:
        # The launcher's own input may never end: a script that reads it would wait for ever.
        stdin = os.open(given if rank == 0 and os.path.exists(given) else os.devnull, os.O_RDONLY)
        # PMI's connection is an inherited descriptor, so descriptors stay open.
        options: Dict[str, Any] = {"env": env, "cwd": spec.workdir, "close_fds": False, "preexec_fn": _prepare_child}
        child = subprocess.Popen(spec.argv, stdin=stdin, stdout=PIPE, stderr=PIPE, **options)
    except OSError as error:
        files.write_record(directory, files.END, record._replace(status=127, error=str(error), at=time.time()))
        return _print_error("rank %d could not start %s: %s" % (rank, spec.argv[0], error), 127)
    if stopped:  # the script may have been born too late for the guard's look
        child.send_signal(stopped[0])
    started = RankStarted(rank, spec.host, os.getpid(), child.pid, sorted(os.sched_getaffinity(0)), began)
    files.write_record(directory, files.START, started)
    for work, args in ((_check_binding, (child.pid, spec, place, env, notes)), (_end_without_guard, (spec,))):
        threading.Thread(target=work, args=args, daemon=True).start()
    watch = memory_watch.MemoryWatch(directory, rank, child.pid)
    watch.start()
    status = output.relay_output(child)
    record = record._replace(signal=max(0, -status), stopped=bool(stopped), at=time.time())
    after = _read_memory_limits()
    if record.signal == signal.SIGKILL and (after.kills or 0) > (before.kills or 0):
        record = record._replace(oom=after)
    if record.signal == signal.SIGKILL and not stopped:
        record = record._replace(stacks=watch.read_last_stacks())
    loaded = libraries.list_loaded_libraries(directory, rank)
    record = record._replace(libraries=loaded)
    for text in libraries.describe_duplicate_libraries(loaded, env.get("LD_PRELOAD", "")):
        notes.add(text)
    if status:
        elastic = env["TORCHELASTIC_ERROR_FILE"]
        record = death_report.describe_rank_death(directory, record, child.pid, kernel, elastic)
        record = record._replace(unheard=_has_no_reader())
    if status >= 0:
        record = record._replace(status=status)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    unwritten = files.write_record(directory, files.END, record)
    if unwritten:
        _print_error("the end of rank %d on %s is not recorded: %s" % (rank, spec.host, unwritten))
    elif spec.framed or spec.independent:
        return 0  # Open MPI would end the others at once; who failed first, and what then happens, the keeper says
    return status if status >= 0 else 128 - status


def _print_error(why: str, status: int = 1) -> int:
    sys.stderr.write("ipexctl: %s\n" % why)
    return status


def _build_environment(directory: str, spec: "RunSpec", place: "RankSpec", rank: int) -> "Dict[str, str]":
    """The rank's whole environment: the launcher's own variables, then what was planned for this host and rank."""
    launcher = ("PMI", "PMIX", "MPI_", "I_MPI", "HYDRA", "OMPI", "OPAL", "PRTE", "PRRTE", "ACCELERATE_")
    independent = spec.independent  # then nothing may make it look for others
    names = {name: value for name, value in os.environ.items() if name.startswith(launcher) and not independent}
    names.update(spec.env)
    names.update(place.env)
    if independent:
        names.update({paths.INSTANCE_ENV: str(rank), paths.INSTANCES_ENV: str(spec.size)})
    else:
        names.update(
            RANK=str(rank),
            WORLD_SIZE=str(spec.size),
            LOCAL_RANK=str(-1 if spec.alone else place.local),
            LOCAL_WORLD_SIZE=str(len(spec.ranks)),
        )
    names[paths.RUN_ENV], names[paths.NODE_ENV] = spec.run, "%s:%s" % (spec.run, spec.label)
    names[paths.DIRECTORY_ENV], names[paths.RANK_ENV] = directory, str(rank)
    if spec.profile:
        names[PROFILE_ENV] = spec.profile
    # Where a script with torch's @record leaves its error.
    names.setdefault("TORCHELASTIC_ERROR_FILE", os.path.join(directory, paths.RANKS, "%d.elastic" % rank))
    if not names.get("MASTER_PORT") and not independent:
        names["MASTER_PORT"] = str(files.read_json(directory, paths.PORT)["port"])
    hooks = os.path.join(directory, paths.HOOKS)
    names["PYTHONPATH"] = ":".join([hooks, *filter(None, [names.get("PYTHONPATH", "")])])
    return names


class Notes:
    """What the user should know of this rank and no output of it may tell: passed on as warnings."""

    def __init__(self, directory: str, rank: int, host: str) -> None:
        self.directory, self.rank, self.host, self.count = directory, rank, host, 0

    def add(self, text: str) -> None:
        note = RankNote(self.rank, self.host, text, time.time())
        files.write_record(self.directory, "note%d" % self.count, note)
        self.count += 1


class Output:
    """All that the script writes, on its way to a launcher that tags it: no byte of it can be part of a tag, also of a
    script that knows the run's nonce."""

    def __init__(self, timings: "Timings") -> None:
        self.timings = timings
        self.broken = False  # the launcher is gone, and the run with it
        self.kernels: "Optional[kernel_log.KernelLog]" = None  # with a profile

    def relay_output(self, child: "subprocess.Popen[bytes]") -> int:
        """Passes on what the child writes until it has ended; its status. What outlives it is not waited for (but its
        output is, for `Timings.linger`).

        This process runs on the rank's own cores. After the beginning it lets output gather before it reads, unless
        much came the last time."""
        assert child.stdout is not None
        assert child.stderr is not None
        late, until = time.monotonic() + self.timings.early, 0.0
        end, only_end = procs.open_end(child.pid), select.poll()
        with selectors.DefaultSelector() as selector:
            for pipe, stream in ((child.stdout, OUT), (child.stderr, ERR)):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe.fileno(), selectors.EVENT_READ, stream)
            if end is not None:
                selector.register(end, selectors.EVENT_READ)
                only_end.register(end, select.POLLIN)
            pipes, read = 2, 0
            while pipes:
                ended = child.poll() is not None  # asked before the pipes, so that nothing written before it is missed
                if ended and not until:
                    until = time.monotonic() + self.timings.linger
                    if end is not None:
                        selector.unregister(end)
                ready = selector.select(0 if ended else 0.1 if end is None else None)
                if ended and (not ready or time.monotonic() > until):
                    break
                if ready and not ended and read < FEW and time.monotonic() > late:
                    only_end.poll(1000 * self.timings.pace)
                read = 0
                for key, _ in ready:
                    if key.fd != end:
                        count = self.pass_on(key.fd, key.data)
                        read += count
                        if not count:
                            selector.unregister(key.fd)
                            pipes -= 1
        if end is not None:
            os.close(end)
        if self.kernels:
            self.write(OUT, self.kernels.finish())
        return child.wait()

    def pass_on(self, pipe: int, stream: str) -> int:
        """Writes what the pipe has; how many bytes that were, 0 at its end."""
        data = os.read(pipe, 1 << 16)
        count = len(data)
        if self.kernels and stream == OUT:
            data = self.kernels.filter_output(data)
        self.write(stream, data)
        return count

    def write(self, stream: str, data: bytes) -> None:
        self.write_all(1 if stream == OUT else 2, escape_output(data))

    def write_all(self, fd: int, data: bytes) -> None:
        """Writes all of it, for as long as somebody reads."""
        try:
            while data and not self.broken:
                data = data[os.write(fd, data) :]
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            self.broken = True


class FramedOutput(Output):
    """The same for a launcher without tags of its own: pieces with rank, stream and length.

    Open MPI reads up to `FRAME` bytes of a rank's pipe at a time and passes them on in one piece. A frame is written
    at once, when the pipe is empty; so it is read, and passed on, at once. Both streams go through one pipe (the other
    may be a terminal, which has no such rule)."""

    def __init__(self, fd: int, nonce: str, rank: int, timings: "Timings") -> None:
        super().__init__(timings)
        self.fd = fd
        self.head = build_frame_head(nonce, rank)
        self.room = FRAME - len(self.head) - 8
        self.pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        self.poll = select.poll()
        self.poll.register(fd, 0)

    def write(self, stream: str, data: bytes) -> None:
        for at in range(0, len(data), self.room):
            piece = data[at : at + self.room]
            self.wait_until_read()
            self.write_all(self.fd, self.head + build_frame_tail(stream, len(piece)) + piece)

    def wait_until_read(self) -> None:
        """Until everything before was read, or nobody is left to read it."""
        pause = 0.00005
        while self.pipe and not self.broken and fcntl.ioctl(self.fd, termios.FIONREAD, b"\0\0\0\0") != b"\0\0\0\0":
            time.sleep(pause)
            pause = min(pause * 1.5, 0.005)
            self.broken = bool(self.poll.poll(0))  # an error is all that it can tell


def _select_loadable_libraries(libraries: "List[Library]", python: str, notes: "Notes") -> "List[str]":
    """Those that the loader of this host really loads into the interpreter; it says of the others why not."""
    good: List[str] = []
    line = [python, "-V"]  # loads all that the interpreter is linked with, and ends before it has started
    for library in libraries:
        env = {"LD_PRELOAD": ":".join([*good, library.path])}
        try:
            done = subprocess.run(line, env=env, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, timeout=20)
            why = done.stderr.decode("utf-8", "replace").strip()
            why = why or ("" if done.returncode == 0 else "the interpreter ends with status %d" % done.returncode)
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        if why:
            notes.add("goes on without %s: %s" % (library.name, why.splitlines()[-1][:300]))
        else:
            good.append(library.path)
    return good


def _bind_to_cores(place: "RankSpec", notes: "Notes") -> None:
    """Cores and memory as planned; what the host does not allow is noted, not fatal."""
    cpus = place.cpus
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            notes.add("may not use CPUs %s as planned: %s" % (_format_list(cpus), error.strerror))
        else:
            given = os.sched_getaffinity(0)  # the kernel leaves out what its cpuset lacks, without a word
            if given != set(cpus):
                notes.add("was planned for CPUs %s and got %s" % (_format_list(cpus), _format_list(given)))
    nodes = place.membind
    if nodes:
        mask = (ctypes.c_ulong * 16)()
        for node in nodes:
            mask[node // 64] |= 1 << node % 64
        libc = ctypes.CDLL(None, use_errno=True)
        number = _SET_MEMPOLICY.get(os.uname().machine)
        if number is None or libc.syscall(number, _MPOL_BIND, ctypes.byref(mask), 16 * 64 + 1):
            why = os.strerror(ctypes.get_errno()) if number else "not known how on %s" % os.uname().machine
            notes.add("its memory is not bound to NUMA nodes %s: %s" % (_format_list(nodes), why))


def _end_without_guard(spec: "RunSpec") -> None:
    """Ends the run's part on this host, a node lease after its guard was killed: nobody else would."""
    guard = procs.find_process(int(os.environ.get(paths.GUARD_ENV, os.getpid())))
    while guard and procs.is_still_alive(guard):
        time.sleep(1.0)
    time.sleep(spec.timings.node_lease)
    procs.kill_marked(procs.format_node_mark(spec.run, spec.label), 0)


def _check_binding(pid: int, spec: "RunSpec", place: "RankSpec", environment: "Dict[str, str]", notes: "Notes") -> None:
    """Notes where the script's threads really may run, if that is elsewhere than planned, or too little."""
    time.sleep(spec.timings.settle)
    planned = set(place.cpus)
    try:
        allowed = set().union(*(os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/%d/task" % pid)))
    except OSError:
        return  # it has ended
    threads = environment.get("OMP_NUM_THREADS", "")
    text = "was planned for CPUs %s, but its threads %%s %s" % (_format_list(planned), _format_list(allowed))
    if planned and not allowed <= planned.union(place.workers):
        notes.add(text % "may run on")
    elif planned and threads.isdigit() and len(allowed) < min(int(threads), len(planned)):
        notes.add(text % "share")


def _format_list(numbers: "Iterable[int]") -> str:
    """(0, 1, 2, 8) is "0-2,8"."""
    parts: List[List[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join("%d" % a if a == b else "%d-%d" % (a, b) for a, b in parts)


def _has_no_reader() -> bool:
    """Whether nobody reads what this rank writes any more: mpirun's part here has ended before it."""
    poll = select.poll()
    for fd in (1, 2):
        poll.register(fd, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _prepare_child() -> None:
    procs.die_with_parent()
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))  # a core file in the user's tree helps nobody here
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


# Of control groups, version 1 and 2: the directory of all groups, and in a group the files of the fields of `Memory`.
_MEMORY = (
    ("memory", {"kills": "oom_control", "used": "max_usage_in_bytes", "limit": "limit_in_bytes"}),
    ("", {"kills": "events", "used": "peak", "limit": "max"}),
)


def _read_memory_limits() -> "Memory":
    """The memory of this control group, or of the nearest one above that has numbers."""
    numbers: Dict[str, int] = {}
    for line in os.fsdecode(procs.read_file("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, names = _MEMORY[0 if controllers else 1]
        base = os.path.join("/sys/fs/cgroup", root) + path
        while base.startswith("/sys/fs/cgroup") and len(numbers) < len(names):
            for field, name in names.items():
                words = procs.read_file(os.path.join(base, "memory." + name)).split()
                with suppress(ValueError, IndexError):
                    number = int(words[words.index(b"oom_kill") + 1] if field == "kills" else words[0])
                    numbers.setdefault(field, number)
            if "limit" not in numbers:
                numbers.pop("used", None)  # of the group whose limit it is
            base = os.path.dirname(base)
    return Memory(**numbers)
