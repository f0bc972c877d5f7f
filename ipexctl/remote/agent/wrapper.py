"""The wrapper of one rank, started by mpirun on the rank's own host.

It applies what is true of that host (environment, cores, working directory, interpreter), maps the launcher's variables
to RANK, LOCAL_RANK and WORLD_SIZE, starts the script, passes its output on to the guard, and leaves a record of how it
ended. What the launcher does to its own process of the rank, a stub (`run_stub`), does not reach it:
MPI_Abort has every such process killed at once, and the rank's last lines and its status would be lost with it."""

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from subprocess import DEVNULL, PIPE
from typing import Any, Callable, Dict, Iterable, List

from ipexctl.protocol import paths
from ipexctl.protocol.frames import build_head
from ipexctl.protocol.hooks import MEETING_ENV, PROFILE_ENV, PROGRAM, READY
from ipexctl.protocol.mpi_abort import find_aborts
from ipexctl.protocol.placeholders import fill
from ipexctl.protocol.rank_records import RankBegun, RankDropped, RankEnded, RankNote, RankStarted
from ipexctl.protocol.run_spec import Library, RankSpec, RunSpec
from ipexctl.remote.agent import death_report, files, libraries, memory_watch, procs, ready_sign
from ipexctl.remote.agent.output_relay import OneDnnLog, OutputRelay

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}  # the kernel's numbers of the call
_MPOL_BIND = 2  # linux/mempolicy.h


def main(argv: "List[str]") -> int:
    """``rank`` with the run's directory in the environment (set by the guard for all that it starts)."""
    dropped, held = os.pipe()
    wrapper = os.fork()
    if wrapper:
        os.close(dropped)
        return run_stub(wrapper)  # holds its end of the pipe until it ends
    stopped: List[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The guard signals the script itself as well; the wrapper only outlives it.
        signal.signal(number, lambda number, _frame: stopped.append(number))
    os.close(held)
    stub = os.getppid()
    os.setsid()  # launchers signal whole process groups
    directory = argv[0] if argv else os.environ[paths.DIRECTORY_ENV]
    spec = files.read_spec(directory)
    rank_text = os.environ.get(spec.rank_variable, "")
    if not rank_text.isdigit():
        return _print_error("mpirun gave this process no rank")
    rank = int(rank_text)
    if rank not in spec.ranks:
        return _print_error("rank %d was planned for another host than %s" % (rank, spec.host))
    # First, so that a killed wrapper is missed.
    unwritten = files.write_record(directory, files.BEGIN, RankBegun(rank, os.getpid(), stub))
    if unwritten:
        return _print_error("rank %d did not start on %s: %s" % (rank, spec.host, unwritten))
    end = Wrapper(directory, spec, rank, dropped, stopped).run_script()
    unwritten = files.write_record(directory, files.END, end)
    if unwritten:
        return _print_error("the end of rank %d on %s is not recorded: %s" % (rank, spec.host, unwritten))
    return 0  # a launcher may end the others at once; who failed first, and what then happens, the keeper says


def run_stub(wrapper: int) -> int:
    """Is what the launcher takes for the rank: ends when the rank's wrapper does, with its status, or when the
    launcher's own process ends. Only SIGKILL ends it before: some launchers send other signals at ends that are good
    (Hydra sends SIGUSR1)."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    procs.rename_word(paths.Role.RANK.encode(), b"stub")
    launcher = os.getppid()
    ends = [end for end in (procs.open_end(wrapper), procs.open_end(launcher)) if end is not None]
    pause = None if len(ends) == 2 else 0.1
    while os.getppid() == launcher:
        pid, status = os.waitpid(wrapper, os.WNOHANG)
        if pid:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1
        select.select(ends, [], [], pause)
    return 1


class Wrapper:
    """One rank on this host. ``dropped`` is a pipe that ends with the rank's stub, ``stopped`` the signals that
    asked this process to end."""

    def __init__(self, directory: str, spec: "RunSpec", rank: int, dropped: int, stopped: "List[int]") -> None:
        self.directory, self.spec, self.rank, self.dropped, self.stopped = directory, spec, rank, dropped, stopped
        self.place = spec.ranks[rank]
        self.notes = 0
        self.env = _build_environment(directory, spec, self.place, rank)
        self.argv, self.ready = spec.argv, spec.ready
        if self.place.values:
            port = self.env.get("MASTER_PORT") or str(files.read_json(directory, paths.PORT)["port"])
            values = dict(self.place.values, port=port)
            self.ready = fill(self.ready, values)
            if spec.fills:
                self.argv = [fill(word, values) for word in self.argv]
                self.env.update((name, fill(self.env[name], values)) for name in spec.filled)
        resume = files.read_json(directory, paths.PORT).get("resume") if spec.keep else None
        if spec.keep and resume:
            path = os.path.join(os.path.dirname(os.path.normpath(spec.keep.path)), str(resume))
            self.env[paths.RESUME_ENV] = path
            self.argv = [*self.argv, *(word.replace("{checkpoint}", path) for word in spec.keep.words)]
        self.asks = ready_sign.is_asked(self.ready)
        self.given_up = False  # by the launcher

    def run_script(self) -> RankEnded:
        """Starts the script and goes along with it; how it ended."""
        spec, end = self.spec, RankEnded(self.rank, self.spec.host)
        preload = _select_loadable_libraries(spec.preload, sys.executable, self.note)
        if preload:
            self.env["LD_PRELOAD"] = ":".join(preload)
        _bind_to_cores(self.place, self.note)
        began, before, kernel = time.time(), memory_watch.read_numbers(), death_report.KernelLog()
        if self.stopped or os.path.exists(os.path.join(self.directory, paths.ENDING)):
            return end._replace(signal=int(signal.SIGTERM), stopped=True, at=time.time())
        try:
            output = OutputRelay(os.environ.get(paths.OUTPUT_ENV, ""), build_head(spec.nonce, self.rank), spec.timings)
            output.awaited = b"" if self.asks else os.fsencode(self.ready), self.report_ready
            if spec.profile:
                output.kernels = OneDnnLog(self.directory, self.rank, self.env)
            child = self.start_script()
        except OSError as error:
            _print_error("rank %d could not start %s: %s" % (self.rank, self.argv[0], error))
            return end._replace(status=127, error=str(error), at=time.time())
        if self.stopped:  # the script may have been born too late for the guard's look
            child.send_signal(self.stopped[0])
        started = RankStarted(self.rank, spec.host, os.getpid(), child.pid, sorted(os.sched_getaffinity(0)), began)
        files.write_record(self.directory, files.START, started)
        if not spec.stages:
            self.record_stage(PROGRAM)
        works: List[Any] = [(_end_without_guard, (spec,))]
        if self.asks:
            works.append((ready_sign.await_answer, (self.ready, self.place.values["address"], self.report_ready)))
        for work, args in works:
            threading.Thread(target=work, args=args, daemon=True).start()
        watch = memory_watch.MemoryWatch(self.directory, self.rank, child.pid)
        watch.start()
        output.relay(child, self.dropped, lambda: self.answer_drop(child, output.tail))
        status = child.wait()
        end = end._replace(status=status if status >= 0 else None, signal=max(0, -status), at=output.ended)
        end = end._replace(stopped=bool(self.stopped))
        if status or self.given_up:
            end = self.describe_abort(end, output.tail)
        after = memory_watch.read_numbers()
        if before.kills is not None and after.kills is not None:
            end = end._replace(kills=after.kills - before.kills)
        if end.signal == signal.SIGKILL and end.kills:
            end = end._replace(oom=after)
        if end.signal == signal.SIGKILL and not self.stopped:
            end = end._replace(stacks=watch.read_last_stacks())
        loaded = libraries.list_loaded_libraries(self.directory, self.rank)
        for text in libraries.describe_duplicate_libraries(loaded, self.env.get("LD_PRELOAD", "")):
            self.note(text)
        if status:
            elastic = self.env["TORCHELASTIC_ERROR_FILE"]
            end = death_report.describe_rank_death(self.directory, end, child.pid, kernel, elastic)
        else:
            end = death_report.describe_good_end(self.directory, end, child.pid)
        if end.abort is not None and end.error:  # the exception is the cause, the call what followed
            end = end._replace(status=end.abort & 0xFF or 1, abort=None)
        return end._replace(libraries=loaded)

    def start_script(self) -> "subprocess.Popen[bytes]":
        """The script's process, in a session of its own: what it sends to its group is not for us. Raises OSError."""
        given = os.path.join(self.directory, paths.STDIN)
        # The launcher's own input may never end: a script that reads it would wait for ever.
        stdin = os.open(given if self.rank == 0 and os.path.exists(given) else os.devnull, os.O_RDONLY)
        # PMI's connection is an inherited descriptor, so descriptors stay open.
        options: Dict[str, Any] = {"close_fds": False, "start_new_session": True, "preexec_fn": _prepare_child}
        options.update(env=self.env, cwd=self.spec.workdir)
        return subprocess.Popen(self.argv, stdin=stdin, stdout=PIPE, stderr=PIPE, **options)

    def note(self, text: str) -> None:
        """Passes on as a warning what the user should know of this rank and no output of it may tell."""
        note = RankNote(self.rank, self.spec.host, text, time.time())
        files.write_record(self.directory, "note%d" % self.notes, note)
        self.notes += 1

    def record_stage(self, stage: str) -> None:
        """Leaves the record of a stage that the rank's own Python cannot tell."""
        with suppress(OSError):
            files.write_json(self.directory, files.build_record_path(self.rank, stage), {"at": time.time()})

    def report_ready(self) -> None:
        self.record_stage(READY)

    def answer_drop(self, child: "subprocess.Popen[bytes]", tail: bytes) -> None:
        """The launcher has ended its part of the rank. Who has called MPI_Abort waits for that, and would go on now."""
        self.given_up = True
        files.write_record(self.directory, files.DROP, RankDropped(self.rank, self.spec.host, time.time()))
        if next(find_aborts(tail), None):
            child.kill()

    def describe_abort(self, end: RankEnded, tail: bytes) -> RankEnded:
        """The end of a rank that may have ended the whole job: not the signal is its cause that it waited for."""
        abort = next(find_aborts(tail), None)  # by what it wrote last; within MPI_Init all ranks are rank 0
        if abort is None:
            return end
        if abort.called:
            return end._replace(signal=0, abort=abort.code)
        return end._replace(signal=0, status=end.status or 1)  # MPI's own codes say nothing outside of it


def _print_error(why: str) -> int:
    sys.stderr.write("ipexctl: %s\n" % why)
    return 1


def _build_environment(directory: str, spec: "RunSpec", place: "RankSpec", rank: int) -> "Dict[str, str]":
    """The rank's whole environment: the launcher's own variables, then what was planned for this host and rank."""
    launcher = (*spec.rank_prefixes, "ACCELERATE_")
    independent = spec.independent  # then nothing may make it look for others
    outer = independent or spec.per_host  # it is no rank of the launcher's
    names = {name: value for name, value in os.environ.items() if name.startswith(launcher) and not outer}
    names.update(spec.env)
    names.update(place.env)
    names.setdefault("PWD", spec.workdir)  # as of a shell that has gone there: scripts read it
    if independent:
        names.update({paths.INSTANCE_ENV: str(rank), paths.INSTANCES_ENV: str(spec.size)})
    elif not outer:
        names.setdefault("ROLE_RANK", str(rank))
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
    port = names.get("MASTER_PORT")
    if port == "{port}" or not (port or independent):
        names["MASTER_PORT"] = str(files.read_json(directory, paths.PORT)["port"])
    if spec.size > 1 and not independent:
        count = spec.size if spec.meeting else 0
        if outer and spec.meeting:
            count = 1
        names[MEETING_ENV] = "%s %s %d" % (names.get("MASTER_ADDR"), names["MASTER_PORT"], count)
    hooks = os.path.join(directory, paths.HOOKS)
    names["PYTHONPATH"] = ":".join([hooks, *filter(None, [names.get("PYTHONPATH", "")])])
    return names


def _select_loadable_libraries(libraries: "List[Library]", python: str, note: "Callable[[str], None]") -> "List[str]":
    """Returns those that the loader of this host really loads into the interpreter; it says of the others why not."""
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
            note("goes on without %s: %s" % (library.name, why.splitlines()[-1][:300]))
        else:
            good.append(library.path)
    return good


def _bind_to_cores(place: "RankSpec", note: "Callable[[str], None]") -> None:
    """Cores and memory as planned; what the host does not allow is noted, not fatal."""
    cpus = place.cpus
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            note("may not use CPUs %s as planned: %s" % (_format_list(cpus), error.strerror))
        else:
            given = os.sched_getaffinity(0)  # the kernel leaves out what its cpuset lacks, without a word
            if given != set(cpus):
                note("was planned for CPUs %s and got %s" % (_format_list(cpus), _format_list(given)))
    nodes = place.membind
    if nodes:
        mask = (ctypes.c_ulong * 16)()
        for node in nodes:
            mask[node // 64] |= 1 << node % 64
        libc = ctypes.CDLL(None, use_errno=True)
        number = _SET_MEMPOLICY.get(os.uname().machine)
        if number is None or libc.syscall(number, _MPOL_BIND, ctypes.byref(mask), 16 * 64 + 1):
            why = os.strerror(ctypes.get_errno()) if number else "not known how on %s" % os.uname().machine
            note("its memory is not bound to NUMA nodes %s: %s" % (_format_list(nodes), why))


def _end_without_guard(spec: "RunSpec") -> None:
    """Ends the run's part on this host after its guard was killed: nobody else would, before others start again."""
    guard = procs.find_process(int(os.environ.get(paths.GUARD_ENV, os.getpid())))
    while guard and procs.is_still_alive(guard):
        time.sleep(1.0)
    procs.kill_marked(procs.format_node_mark(spec.run, spec.label), 0)


def _format_list(numbers: "Iterable[int]") -> str:
    """(0, 1, 2, 8) is "0-2,8"."""
    parts: List[List[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join("%d" % a if a == b else "%d-%d" % (a, b) for a, b in parts)


def _prepare_child() -> None:
    procs.die_with_parent()
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))  # a core file in the user's tree helps nobody here
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
