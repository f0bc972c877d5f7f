"""The guard of a run on one host: starts Hydra's proxy when the keeper asks, reports how ranks end, ends everything.

It holds a connection to the keeper on node0. When the keeper has been silent for the node lease, it ends all
processes of the run on this host by itself. It is the sub-reaper of all it starts, so nothing can leave its family."""

import fcntl
import os
import resource
import select
import shlex
import signal
import sys
import time
from contextlib import suppress
from typing import Any, Dict, Iterable, List, Optional, Set, Union

from ipexctl.protocol import hooks, messages, paths, rank_records
from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.messages import KINDS, HostBusy
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.remote.agent import files, procs, rpc, stack_traces
from ipexctl.remote.agent.sampling import Sampler, start_sampler


def main(argv: "List[str]") -> int:
    """``guard RUNDIR ADDRESS [PORT]``: connects to the keeper, prints `GuardReady`, and goes on in the background.

    Without PORT a `KeeperListening` on the standard input tells it: this program may begin before the keeper listens.
    Where the input ends without one there is no keeper, and nothing is started. Prints `HostBusy` when another run
    holds this account's lock on the host."""
    directory, address = argv[0], argv[1]
    umask = os.umask(0o077)  # as the keeper's
    spec = files.read_spec(directory)
    # A home directory may be shared: each host has a lock of its own in it.
    other = lock_host(os.path.join(os.path.dirname(directory), paths.LOCK + files.get_host_tag()), spec)
    if other is not None and other.run != spec.run and not spec.share:
        print(KINDS.write(other).decode())
        return 1
    base = os.path.dirname(directory)
    for name in os.listdir(base):
        if files.is_half_made(os.path.join(base, name)):
            files.remove_directory(os.path.join(base, name))
    if spec.head is None:  # there the keeper has done so
        files.reserve_space(directory)
    files.write_json(directory, paths.OWNER, {"host": files.get_host_tag()})
    os.makedirs(os.path.join(directory, paths.RANKS), mode=0o700, exist_ok=True)
    port = int(argv[2]) if argv[2:] else _read_port(2 * spec.timings.ready_timeout)
    if not port:
        return 1
    try:
        keeper = rpc.connect(address, port, spec.token, paths.Role.GUARD, spec.host, spec.timings.connect)
    except OSError as error:
        answered = isinstance(error, ConnectionError) or (type(error) is OSError and error.errno is None)
        refusal = messages.AgentFailed if answered else messages.KeeperUnreachable
        print(KINDS.write(refusal(str(error))).decode())
        return 1
    print(KINDS.write(messages.GuardReady()).decode())
    if procs.daemonize():
        files.run_then_record_crash(directory, paths.Role.GUARD, Guard(directory, spec, keeper, umask).watch)
    return 0


def _read_port(patience: float) -> int:
    """Where the keeper listens, out of the standard input; 0 where that does not tell it within so many seconds: a
    controller may have vanished without a word, and this process has the host's lock."""
    if not select.select([0], [], [], patience)[0]:
        return 0
    listening = KINDS.read(sys.stdin.buffer.read(messages.PORT_SIZE).strip())
    return listening.port if isinstance(listening, messages.KeeperListening) else 0


def lock_host(path: str, spec: "RunSpec") -> "Optional[HostBusy]":
    """Takes the lock for as long as this process (not its children) lives; its holder's record if it is taken.

    The kernel gives the lock back when the holder ends, however it ends: there are no stale locks."""
    door = os.open(path + ".door", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(door, fcntl.LOCK_EX)  # one at a time: nobody reads of a holder that has not written yet
        except OSError:  # a home without locks: nothing keeps two runs from one host
            return None
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with os.fdopen(fd, "rb") as text:
                holder = KINDS.read(text.read())
            return holder if isinstance(holder, HostBusy) else HostBusy()
        os.ftruncate(fd, 0)
        os.pwrite(fd, KINDS.write(HostBusy(spec.run, spec.owner, spec.started)), 0)
        return None
    finally:
        os.close(door)


class Guard:
    # Only methods ask for the host's processes or change them, so that a test can play these.
    find_process, reap = staticmethod(procs.find_process), staticmethod(procs.reap_children)
    send_signal = staticmethod(procs.send_signal)

    def __init__(self, directory: str, spec: "RunSpec", keeper: "rpc.Wire", umask: int) -> None:
        self.directory = directory
        self.spec = spec
        self.umask = umask  # the login's, for the ranks
        self.mark = procs.format_node_mark(spec.run, spec.label)
        self.group = procs.create_cgroup(spec.run, spec.label)
        self.keeper = keeper
        self.reported: "Set[str]" = set()  # record files already passed on
        self.alive: "Dict[int, procs.Process]" = {}  # rank → its wrapper
        self.ends: "Dict[int, int]" = {}  # wrapper or proxy → a descriptor that wakes us when it ends
        self.ended: "Set[int]" = set()
        self.wrappers: "Set[int]" = set()  # of all ranks, also of those that have ended
        self.proxies: "Set[int]" = set()
        self.missing = ""  # what a proxy needs here, and ends without a word where it is not
        self.ending_since: Optional[float] = None  # when it began to end the ranks, by this host's clock
        self.orphaned = False  # a wrapper's parent, Hydra's proxy for its rank, has died
        self.last = self.begun = time.monotonic()  # when its last round began, and its last rank
        self.sampler: "Optional[Sampler]" = None

    def watch(self) -> None:
        procs.become_reaper()
        for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM):  # a polite stop of the run is not for its guard
            signal.signal(number, signal.SIG_IGN)
        if self.spec.head is None:
            self.write_address()
        self.sampler = start_sampler(self.directory, self.spec)
        while self.do_round(time.monotonic()):
            select.select(self.list_wakeup_sources(), [], [], self.compute_pause(self.last))

    def write_address(self) -> None:
        """For `list_runs.sh`, which asks a Python where there is no such file."""
        me = self.find_process(os.getpid())
        with suppress(OSError), open(os.path.join(self.directory, paths.GUARD), "w", encoding="ascii") as file:
            file.write("%d %d\n" % (os.getpid(), me.start if me else 0))

    def do_round(self, now: float) -> bool:
        """Does what is due now, in seconds of the steady clock; False once it has ended its part."""
        timings, last, self.last = self.spec.timings, self.last, now
        if now - last > timings.node_lease:
            return self.abort_run("this host stood still for %.0f s" % (now - last))
        for message in self.keeper.receive():
            if isinstance(message, messages.Finish):
                return self.finish_run()
            self.handle_message(message)
        gone = self.proxies.intersection(self.reap())
        self.report_records()  # how its ranks ended comes before the end of their proxy
        if gone:
            self.proxies -= gone
            self.keeper.send(messages.ProxyEnded(time.time(), self.missing))
        for sample in self.sampler.receive() if self.sampler else ():
            self.keeper.send(sample)
        self.keeper.flush()
        if not self.keeper.open:
            return self.abort_run("a line is not the keeper's" if self.keeper.tampered else "the keeper is gone")
        if now - self.keeper.heard > timings.node_lease:
            return self.abort_run("no message from the keeper for %.0f s" % (now - self.keeper.heard))
        return True

    def compute_pause(self, now: float) -> float:
        """Seconds until the next round, if nothing wakes us before. Once all ranks run, rounds may be rare where every
        end wakes us: each takes the core of a rank for a moment."""
        timings = self.spec.timings
        running = self.alive.keys() == set(self.spec.ranks) and now > self.begun + timings.early
        awaited = all(process.pid in self.ends for process in self.alive.values())
        return timings.steady if running and awaited else timings.tick

    def list_wakeup_sources(self) -> "List[Any]":
        """What wakes us at once: the keeper's message, and the end of a wrapper or a proxy (where the kernel and Python
        offer it)."""
        watched = {process.pid for process in self.alive.values()} | self.proxies
        for pid in set(self.ends) - watched:
            os.close(self.ends.pop(pid))
        for pid in watched - set(self.ends):
            end = procs.open_end(pid)
            if end is not None:  # otherwise the next round finds it
                self.ends[pid] = end
        return [*self.ends.values(), *([self.keeper] if self.keeper.open else [])]

    def handle_message(self, message: "rpc.Received") -> None:
        """Does what the keeper asks. Messages for others are ignored."""
        if isinstance(message, messages.Ping):
            self.keeper.send(messages.Pong(message.sent, time.time()))
        elif isinstance(message, messages.StartProxy):
            self.start_proxy(message.words)
        elif isinstance(message, messages.RanksPort):
            files.write_json(self.directory, paths.PORT, {"port": message.port})
        elif isinstance(message, messages.Terminate):
            self.ending_since = self.ending_since or time.time()
            with suppress(OSError):  # only a wrapper that begins at this moment misses it: the hard stop is for that
                files.write_json(self.directory, paths.ENDING, {"at": self.ending_since})
            found = self.find_rank_processes()
            self.send_signal(found, signal.SIGTERM)
            self.send_signal(found, signal.SIGCONT)
        elif isinstance(message, messages.Kill):
            wrappers = {process.pid for process in self.alive.values()}  # they end, and tell, by themselves
            self.keeper.send(messages.ProcessesKilled(len(self.find_rank_processes(wrappers))))
            self.kill_all(self.spec.timings.wipe, self.list_launcher_processes() | wrappers)
        elif isinstance(message, messages.ReportLoad):
            self.keeper.send(messages.RankLoads(stack_traces.measure_loads(self.alive)))
        elif isinstance(message, messages.ReportStacks):
            for stack in stack_traces.collect_stacks(self.directory, self.alive, self.spec):
                self.keeper.send(stack)
            self.keeper.send(messages.StacksReported())

    def start_proxy(self, words: "List[str]") -> None:
        """Starts Hydra's proxy as a remote shell would: the words joined, read by a shell."""
        directory, _, program = (shlex.split(" ".join(words)) or [""])[0].rpartition("/")
        second = os.path.join(directory, "hydra_pmi_proxy")
        if program == "hydra_bstrap_proxy" and not os.access(second, os.X_OK):
            self.missing = "%s is missing or cannot be executed" % second
        pid = os.fork()
        if pid:
            self.proxies.add(pid)
            return
        try:
            os.setsid()
            os.umask(self.umask)
            procs.join_cgroup(self.group)
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            self.keeper.sock.close()
            if self.spec.nofile:
                _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            env = dict(self.spec.proxy_env, **{paths.GUARD_ENV: str(os.getppid())})
            os.execve("/bin/sh", ["sh", "-c", "exec " + " ".join(words)], env)
        finally:
            os._exit(127)

    def find_rank_processes(self, spare: "Iterable[int]" = ()) -> "List[procs.Process]":
        """Everything of the run here but the guard, the proxies, (on node0) the keeper with its mpirun, and `spare`."""
        all_now = procs.list_processes()
        out = self.list_launcher_processes(all_now).union(spare)
        return procs.find_marked(self.mark, os.getpid(), out, [self.group], all_now)

    def kill_all(self, patience: float, spare: "Iterable[int]" = ()) -> "List[procs.Process]":
        """Ends everything of the run here but the guard and `spare`; what is left after so many seconds."""
        return procs.kill_marked(self.mark, os.getpid(), spare, patience, [self.group])

    def list_launcher_processes(self, all_now: "Optional[Dict[int, procs.Process]]" = None) -> "Set[int]":
        """What is none of the ranks': what the launcher needs for an orderly end (proxies, and on node0 the keeper,
        mpirun and its shims), and the sampler. ``all_now`` are the processes of this host, if they were just listed."""
        keep = set(self.proxies)
        if self.sampler:
            keep.add(self.sampler.process.pid)
        keeper = files.read_keeper_address(self.directory)
        own = set(keeper.own) if keeper else set()
        for process in (procs.list_processes() if all_now is None else all_now).values():
            of_hydra = process.parent in self.proxies and _read_program(process.pid).startswith("hydra_")
            if of_hydra or process.parent in own:
                keep.add(process.pid)
        return keep | own

    def report_records(self) -> None:
        """Passes on what the wrappers wrote, and notices wrappers that died without a record."""
        try:
            names = sorted(os.listdir(os.path.join(self.directory, paths.RANKS)), key=_get_record_order)
        except OSError:
            return
        for name in names:
            if name in self.reported or not name.endswith(paths.RECORD):
                continue
            record = self.read_record(name)
            if record is None:
                continue
            self.reported.add(name)
            if isinstance(record, rank_records.RankBegun):
                # One that has died already is missed below, unless it left a record of its end.
                gone = procs.Process(record.pid, -1, os.getpid(), "X")
                self.wrappers.add(record.pid)
                self.alive[record.rank] = self.find_process(record.pid) or gone
                self.begun = self.last
                continue
            if isinstance(record, rank_records.RankEnded):
                self.alive.pop(record.rank, None)
                self.ended.add(record.rank)
                record = record._replace(ending=self.ending_since is not None and record.at >= self.ending_since)
            if not isinstance(record, Unreadable):
                self.keeper.send(record)
        for rank, process in list(self.alive.items()):
            now = self.find_process(process.pid)
            if now and now.parent != process.parent and not self.orphaned:
                self.orphaned = True
                self.keeper.send(messages.ProxyEnded(time.time(), self.missing))
            end = os.path.join(self.directory, files.build_record_path(rank, files.END))
            if (not now or now.start != process.start) and not os.path.exists(end):
                del self.alive[rank]
                self.report_unseen_end(rank)

    def report_unseen_end(self, rank: int) -> None:
        """Nobody saw its end."""
        self.ended.add(rank)
        self.keeper.send(rank_records.RankEnded(rank, self.spec.host, lost=True, at=time.time()))

    def read_record(self, name: str) -> "Union[rank_records.RankRecord, rank_records.RankStage, Unreadable, None]":
        """The record in a file of a rank; None while it cannot be read. Stages come from the script's own Python."""
        rank, _, kind = name[: -len(paths.RECORD)].partition(".")
        try:
            value = files.read_json(self.directory, os.path.join(paths.RANKS, name))
        except (OSError, ValueError):
            return None
        if kind in hooks.STAGES and rank.isdigit():
            at = value.get("at")
            return rank_records.RankStage(int(rank), self.spec.host, kind, at if isinstance(at, float) else time.time())
        record = rank_records.KINDS.from_object(value)
        return Unreadable(kind, "no record of a rank") if isinstance(record, Unreadable) else record

    def finish_run(self) -> bool:
        """Ends all that is left but the keeper's own, reports what could not be ended, takes its files along. False."""
        self.report_records()
        strays = self.end_strays()
        own = self.list_launcher_processes() - self.proxies if self.spec.head else set()
        if self.sampler:  # what the ranks wrote is complete once none of them lives
            own.add(self.sampler.process.pid)
        left = self.kill_all(self.spec.timings.last_wipe, own)
        for sample in self.sampler.finish(self.spec.timings.last_figures) if self.sampler else ():
            self.keeper.send(sample)
        procs.remove_cgroup(self.group)
        self.report_records()
        for rank in sorted(set(self.spec.ranks) - self.ended):  # ended by us before its wrapper could tell
            self.report_unseen_end(rank)
        if self.spec.head is None and not left and not self.has_profile():
            files.remove_directory(self.directory)  # before the run may end: then nothing is left here
        self.keeper.send(messages.Cleaned([(p.pid, p.state) for p in left], strays))
        until = time.monotonic() + self.spec.timings.flush
        while self.keeper.open and self.keeper.outbox and time.monotonic() < until:
            select.select([], [self.keeper], [], 0.1)
            self.keeper.flush()
        return False

    def has_profile(self) -> bool:
        """Whether a watcher has something to fetch here, and will then remove the directory."""
        folder = os.path.join(self.directory, hooks.PROFILE)
        return bool(self.spec.profile and os.path.isdir(folder) and os.listdir(folder))

    def end_strays(self) -> "List[str]":
        """Ends what outlived the ranks; its names. As long as it holds a rank's output open, mpirun waits for it: now
        mpirun's proxies can end by themselves, and it complains of nothing."""
        patience, strays = self.spec.timings.orderly, self.find_strays()
        until = time.monotonic() + patience / 2  # for helpers that end with their script
        while strays and time.monotonic() < until:
            time.sleep(0.05)
            strays = self.find_strays()
        names = ["%s (process %d)" % (_read_program(process.pid), process.pid) for process in strays]
        self.send_signal(strays, signal.SIGKILL)
        until = time.monotonic() + patience
        while strays and any(map(self.find_process, self.proxies)) and time.monotonic() < until:
            time.sleep(0.05)
        return names

    def find_strays(self) -> "List[procs.Process]":
        return [process for process in self.find_rank_processes() if process.pid not in self.wrappers]

    def abort_run(self, why: str) -> bool:
        """The keeper is lost: ends the run's part on this host alone. False."""
        left = self.kill_all(self.spec.timings.leave)
        procs.remove_cgroup(self.group)
        if self.spec.head is not None:
            return False  # the ranks' output is there
        if left:
            pids = [process.pid for process in left]
            files.write_json(self.directory, paths.LEFTOVERS, {"why": why, "at": time.time(), "left": pids})
        else:
            files.remove_directory(self.directory)
        return False


_KINDS = (files.BEGIN, files.START, *hooks.STAGES)  # then notes and END


def _get_record_order(name: str) -> int:
    """A rank's records in the order they happened, whatever the directory's."""
    kind = name.split(".")[1] if "." in name else ""
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS) + (kind == files.END)


def _read_program(pid: int) -> str:
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return ""
