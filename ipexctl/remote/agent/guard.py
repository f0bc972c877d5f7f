"""The guard of a run on one host: starts the launcher's proxy when the keeper asks, passes on what the ranks write,
reports how they end, ends everything.

It holds a connection to the keeper on node0. When it does not know that the keeper has heard it within the node lease,
it ends all processes of the run on this host by itself: before the keeper may start others elsewhere. Of a run that may
be started again it then stays, and connects again: to that keeper, or to one that a later host in the order of leaders
has started in its place (`keeper_state.take_over`), after which it never goes back. It is the sub-reaper of all it
starts, so nothing can leave its family."""

import fcntl
import os
import resource
import select
import shlex
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple, Union

from ipexctl.protocol import hooks, messages, paths, rank_records, samples
from ipexctl.protocol.codec import Unreadable, encode
from ipexctl.protocol.messages import KINDS, HostBusy
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.protocol.world import World, place_spec
from ipexctl.remote.agent import files, procs, rpc, spool, stack_traces, tickets
from ipexctl.remote.agent.helper import Helper, start_helper
from ipexctl.remote.agent.output_pipe import OutputPipe
from ipexctl.remote.agent.sampling import start_sampler

BACKLOG_LIMIT = 1 << 22  # bytes for the keeper that wait here; more stays in the pipe, and then the ranks wait
CARRIER = "carry"  # what the process that carries checkpoints calls itself, in the guard's place
NO_CARRIER = messages.CheckpointTaken(0, "the process that carries checkpoints ended", 0, 0.0)
SMALL_OUTPUT = 1 << 14  # bytes: less output is little


def main(argv: "List[str]") -> int:
    """``guard RUNDIR ADDRESS [PORT]``: connects to the keeper, prints `GuardReady`, and goes on in the background.
    Without PORT a `KeeperListening` on the standard input tells it: this program may begin before the keeper listens.
    Where the input ends without one there is no keeper, and nothing is started. Prints `HostBusy` when another run
    holds this account's lock on the host."""
    directory, address = argv[0], argv[1]
    umask = os.umask(0o077)  # as the keeper's
    spec = files.read_spec(directory)
    # A home directory may be shared: each host has a lock of its own in it.
    base = os.path.dirname(directory)
    other = None if spec.wait else take_host(base, spec)[1]
    if other is not None and other.run != spec.run and not spec.share:
        print(KINDS.write(other).decode())
        return 1
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


def take_host(base: str, spec: "RunSpec") -> "Tuple[int, Optional[HostBusy]]":
    """Takes the host's lock for a run, unless another one holds it, or has waited longer for it: that one's record."""
    queue = tickets.list_tickets(base)
    if queue and queue[0].run != spec.run and not spec.share:
        return -1, HostBusy(queue[0].run, queue[0].owner, queue[0].since)
    return lock_host(os.path.join(base, paths.LOCK + files.get_host_tag()), spec)


def lock_host(path: str, spec: "RunSpec") -> "Tuple[int, Optional[HostBusy]]":
    """Takes the lock for as long as this process (not its children) lives, or its descriptor is open; its holder's
    record if it is taken. The kernel gives the lock back when the holder ends, however it ends: there are no stale
    locks."""
    door = os.open(path + ".door", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(door, fcntl.LOCK_EX)  # one at a time: nobody reads of a holder that has not written yet
        except OSError:  # a home without locks: nothing keeps two runs from one host
            return -1, None
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with os.fdopen(fd, "rb") as text:
                holder = KINDS.read(text.read())
            return -1, holder if isinstance(holder, HostBusy) else HostBusy()
        os.ftruncate(fd, 0)
        os.pwrite(fd, KINDS.write(HostBusy(spec.run, spec.owner, spec.started)), 0)
        return fd, None
    finally:
        os.close(door)


Record = Union[rank_records.RankRecord, rank_records.RankStage, Unreadable]


class Guard:
    # Only methods ask for the host's processes or change them, so that a test can play these.
    find_process, reap = staticmethod(procs.find_process), staticmethod(procs.reap_children)
    send_signal = staticmethod(procs.send_signal)

    def __init__(self, directory: str, spec: "RunSpec", keeper: "rpc.Wire", umask: int) -> None:
        self.directory = directory
        self.base = self.spec = spec  # of the first attempt, and of this one
        self.umask = umask  # the login's, for the ranks
        self.mark = procs.format_node_mark(spec.run, spec.label)
        self.keeper = keeper
        self.ends: "Dict[int, int]" = {}  # wrapper or proxy → a descriptor that wakes us when it ends
        self.last = self.begun = time.monotonic()  # when its last round began, and its last rank
        self.heard = self.last  # up to when the keeper has heard this host, as it says
        self.output = OutputPipe(spec.nonce)
        self.resting = 0.0  # until when output gathers in the pipe
        self.waits = spec.wait  # for the host: it is another run's, or not all hosts are free
        self.renewed = 0.0  # when it renewed its ticket
        self.lock, self.told = -1, messages.HostWaits(True)
        self.leader, self.peer = next(iter(spec.leaders), ""), keeper.peer  # the host with the keeper, and its address
        self.former = self.leader, self.peer  # of the keeper before
        self.leaders: "Dict[str, int]" = {}  # those that may take its place → the ports where they then listen
        self.standby: "Optional[socket.socket]" = None  # where this host would
        # Since when it has had no keeper that began an attempt or goes on with it, and when a host that may have one
        # was silent last; the others refused the connection. 0: it has one.
        self.lost_at = self.silent_at = 0.0
        self.keeper_process = 0  # of this host, if it has tried to take its place
        self.world, self.launched = World(0, {}), 0.0  # the last attempt; when the first one's ranks were started
        with suppress(OSError):  # without a free port this host leads nothing
            if spec.reserve:
                self.standby = rpc.listen_on_free_port(spec.reserve.address, spec.reserve.ports, later=True)
        self.forget_ranks()
        self.join_keeper("", 0.0)

    def forget_ranks(self) -> None:
        """Begins an attempt: nothing is known of its ranks."""
        self.group = procs.create_cgroup(self.spec.run, self.spec.label)
        self.reported: "Set[str]" = set()  # record files already passed on
        self.alive: "Dict[int, procs.Process]" = {}  # rank → its wrapper
        self.ended: "Set[int]" = set()
        self.wrappers: "Set[int]" = set()  # of all ranks, with their stubs, also of those that have ended
        self.proxies: "Set[int]" = set()
        self.missing = ""  # what a proxy needs here, and ends without a word where it is not
        self.ending_since: Optional[float] = None  # when it began to end the ranks, by this host's clock
        self.sampler: "Optional[Helper[samples.HostSample]]" = None
        self.carrier: "Optional[Helper[messages.Message]]" = None
        self.scripts: "Dict[int, int]" = {}  # rank → its script's process
        self.shared_memory: "Set[str]" = set()  # files of it that MPI leaves where ranks do not finalise it

    def watch(self) -> None:
        procs.become_reaper()
        for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM):  # a polite stop of the run is not for its guard
            signal.signal(number, signal.SIG_IGN)
        if self.spec.head is None:
            self.write_address()
        if not self.waits:
            self.start_helpers()
        try:
            while self.do_round(time.monotonic()):
                unsent = [self.keeper] if self.keeper.open and self.keeper.outbox else []
                select.select(self.list_wakeup_sources(), unsent, [], self.compute_pause(self.last))
        except Exception as error:  # a fault of ours: else this host would only be lost
            self.keeper.send(messages.AgentFailed("%s: %s" % (type(error).__name__, error)))
            self.keeper.flush()
            raise

    def join_keeper(self, lost: str, away: float) -> None:
        """Sends the first word to a keeper, so many seconds after it has heard the one on the host ``lost``."""
        if self.base.leaders:
            port = self.standby.getsockname()[1] if self.standby else 0
            running = time.monotonic() - self.launched if self.launched else 0.0
            self.keeper.send(messages.Joined(self.world.number, list(self.world.ranks), lost, away, running, port))

    def start_helpers(self) -> None:
        """Starts what works beside the ranks."""
        self.sampler = start_sampler(self.directory, self.spec)
        if self.spec.keep:
            self.carrier = start_helper(self.directory, CARRIER, 19, KINDS, self.carry_checkpoints)

    def end_helpers(self) -> None:
        for helper in self.helpers:
            list(helper.finish(0.0))
        self.sampler = self.carrier = None

    def wait_for_host(self, now: float) -> None:
        """Keeps the place in the host's queue, and tells the keeper how far it is."""
        base, spec = os.path.dirname(self.directory), self.spec
        if now < self.renewed + tickets.RENEWAL_INTERVAL:
            return
        self.renewed = now
        tickets.write_ticket(base, spec.started, spec.run, spec.owner)
        lock, holder = take_host(base, spec)
        if lock >= 0:  # for a moment: other hosts may not be free
            os.close(lock)
        before = sum(ticket[:2] < (spec.started, spec.run) for ticket in tickets.list_tickets(base))
        self.tell_keeper(messages.HostWaits(False, holder, before))

    def tell_keeper(self, waits: "messages.HostWaits") -> None:
        if waits != self.told:
            self.told = waits
            self.keeper.send(waits)

    def take_host(self) -> None:
        """All hosts are free for the run."""
        self.lock, holder = take_host(os.path.dirname(self.directory), self.spec)
        self.waits = holder is not None
        if not self.waits:
            tickets.remove_ticket(os.path.dirname(self.directory), self.spec.run)
            self.start_helpers()
        self.tell_keeper(messages.HostWaits(not self.waits, holder))

    def leave_host(self) -> None:
        """Another host was not free after all."""
        self.end_helpers()
        self.waits = True
        if self.lock >= 0:
            os.close(self.lock)

    def carry_checkpoints(self) -> None:
        from ipexctl.remote.agent.carrier import Carrier  # the guard itself does not need it

        Carrier(self.spec).run()

    @property
    def helpers(self) -> "List[Helper[Any]]":
        return [helper for helper in (self.sampler, self.carrier) if helper]

    def write_address(self) -> None:
        """For `list_runs.sh`, which asks a Python where it cannot read this: of a run that this host may lead later."""
        me = self.find_process(os.getpid())
        with suppress(OSError), open(os.path.join(self.directory, paths.GUARD), "w", encoding="ascii") as file:
            file.write("%d %d%s\n" % (os.getpid(), me.start if me else 0, " +" if self.spec.leaders else ""))

    def do_round(self, now: float) -> bool:
        """Does what is due now, in seconds of the steady clock; False once it has ended its part."""
        timings, last, self.last = self.spec.timings, self.last, now
        if now - last > timings.node_lease:
            return self.abort_run("this host stood still for %.0f s" % (now - last))
        for message in self.keeper.receive():
            if isinstance(message, messages.Finish):
                if message.others and self.follow_another():
                    return True
                self.finish_run(message.stay)
                if not message.stay:
                    return False
            else:
                self.handle_message(message)
        if self.waits:
            self.wait_for_host(now)
        gone = self.proxies.intersection(self.reap())
        self.pass_output_on(now)
        self.report_records()  # how its ranks ended comes before the end of their proxy
        if gone:
            self.proxies -= gone
            self.keeper.send(messages.ProxyEnded(time.time(), self.missing))
        self.report_helpers()
        self.keeper.flush()
        if not self.keeper.open:
            return self.abort_run("a line is not the keeper's" if self.keeper.tampered else "the keeper is gone")
        if now - self.heard > timings.node_lease:
            return self.abort_run("not heard by the keeper for %.0f s" % (now - self.heard))
        return True

    def report_helpers(self) -> None:
        """Passes on what those that work beside us have to say."""
        for helper in self.helpers:
            for message in helper.receive():
                self.keeper.send(message)
            helper.send()
        if self.carrier and not self.carrier.open:
            self.carrier = None
            self.keeper.send(NO_CARRIER)

    def compute_pause(self, now: float) -> float:
        """Returns seconds until the next round, if nothing wakes us before. Once all ranks run, rounds may be rare
        where every end wakes us: each takes the core of a rank for a moment."""
        awaited = all(process.pid in self.ends for process in self.alive.values())
        pause = self.spec.timings.steady if self.is_steady(now) and awaited else self.spec.timings.tick
        return max(0.0, min(pause, self.resting - now)) if self.resting else pause

    def is_steady(self, now: float) -> bool:
        """Returns whether all ranks have been running for a moment."""
        return self.alive.keys() == set(self.spec.ranks) and now > self.begun + self.spec.timings.early

    def pass_output_on(self, now: float) -> None:
        """What the ranks wrote, to the keeper. While all ranks run, little output gathers before it is read again: each
        look takes the core of a rank for a moment."""
        if now < self.resting:
            return
        self.resting, count = 0.0, 0
        while len(self.keeper.outbox) < BACKLOG_LIMIT:
            data = self.output.take_frames()
            if not data:
                break
            self.keeper.send_output(data)
            count += len(data)
        if 0 < count < SMALL_OUTPUT and self.is_steady(now):
            self.resting = now + self.spec.timings.pace

    def pass_written_output_on(self) -> None:
        """All that is in the pipe now, however much waits for the keeper: what a rank wrote comes before its end."""
        count = self.output.measure_content()
        while count > 0:
            data = self.output.take_frames()
            if not data:
                break
            self.keeper.send_output(data)
            count -= len(data)

    def list_wakeup_sources(self) -> "List[Any]":
        """Returns what wakes us at once: the keeper's message, and the end of a wrapper or a proxy (where the kernel
        and Python offer it)."""
        watched = {process.pid for process in self.alive.values()} | self.proxies
        for pid in set(self.ends) - watched:
            os.close(self.ends.pop(pid))
        for pid in watched - set(self.ends):
            end = procs.open_end(pid)
            if end is not None:  # otherwise the next round finds it
                self.ends[pid] = end
        sources = [*self.ends.values(), *([self.keeper] if self.keeper.open else [])]
        sources += [self.carrier.output] if self.carrier else []
        if not self.resting and len(self.keeper.outbox) < BACKLOG_LIMIT:
            return [*sources, self.output]
        return sources

    def handle_message(self, message: "rpc.Received") -> None:
        """Does what the keeper asks. Messages for others are ignored."""
        if isinstance(message, messages.Ping):
            self.heard = max(self.heard, message.heard)
            self.keeper.send(messages.Pong(message.sent, time.time(), self.last, message.steady))
        elif isinstance(message, messages.Leaders):
            self.leaders.update(message.ports)
        elif isinstance(message, messages.Release):
            self.leader, self.peer = self.former
            self.keeper.close()
        elif isinstance(message, messages.Begin):
            self.begin_attempt(message.world)
        elif isinstance(message, messages.TakeHost):
            self.take_host()
        elif isinstance(message, messages.LeaveHost) and not self.waits:
            self.leave_host()
        elif isinstance(message, messages.StartProxy):
            self.start_proxy(message.words)
        elif isinstance(message, messages.RanksPort):
            files.write_json(self.directory, paths.PORT, {"port": message.port, "resume": message.resume})
            self.launched = self.launched or time.monotonic()
        elif isinstance(message, messages.Terminate):
            self.ending_since = self.ending_since or time.time()
            with suppress(OSError):  # only a wrapper that begins at this moment misses it: the hard stop is for that
                files.write_json(self.directory, paths.ENDING, {"at": self.ending_since})
            found = self.find_rank_processes()
            for process in found:
                self.shared_memory |= procs.list_shared_memory(process.pid)
            self.send_signal(found, signal.SIGTERM)
            self.send_signal(found, signal.SIGCONT)
        elif isinstance(message, messages.Kill):
            # Wrappers end, and tell, by themselves.
            self.keeper.send(messages.ProcessesKilled(len(self.find_rank_processes(self.wrappers))))
            self.kill_all(self.spec.timings.wipe, self.list_launcher_processes() | self.wrappers)
        elif isinstance(message, (messages.FindCheckpoints, messages.TakeCheckpoint)):
            if self.carrier:
                self.carrier.send(KINDS.write(message))
            else:
                self.keeper.send(NO_CARRIER)
        elif isinstance(message, messages.ReportLoad):
            self.keeper.send(messages.RankLoads(stack_traces.measure_loads(self.alive)))
        elif isinstance(message, messages.ReportStacks):
            for stack in stack_traces.collect_stacks(self.directory, self.alive, self.spec, self.heard):
                self.keeper.send(stack)
            self.keeper.send(messages.StacksReported())

    def begin_attempt(self, world: "World") -> None:
        """Takes the ranks of an attempt: their specification, and no file of the ones before."""
        self.end_helpers()
        leads = self.base.reserve is not None and self.leader == self.base.host
        base = self.base._replace(head=self.base.reserve) if leads else self.base
        self.spec, self.world = place_spec(base, world), world
        self.lost_at = self.silent_at = 0.0
        self.remove_files(paths.ENDING, paths.PORT, *([paths.GUARD] if self.spec.head else []))
        files.remove_directory(os.path.join(self.directory, hooks.PROFILE))
        files.write_json(self.directory, paths.SPEC, encode(self.spec))
        self.forget_ranks()
        self.start_helpers()
        self.keeper.send(messages.Begun(world.number))

    def remove_files(self, *more: str) -> None:
        """Removes what ranks have left, and these."""
        names = [os.path.join(paths.RANKS, name) for name in os.listdir(os.path.join(self.directory, paths.RANKS))]
        for name in (*names, *more):
            with suppress(OSError):
                os.unlink(os.path.join(self.directory, name))

    def start_proxy(self, words: "List[str]") -> None:
        """Starts the launcher's proxy with its arguments, and no shell. What a launcher puts before it is for the
        remote shell of a login: settings of its variables, in that shell's language, and the user's own profile."""
        argv = find_proxy_command(words, self.spec.proxies[0]) or self.spec.proxies[:1]
        for name in self.spec.proxies[1:]:
            path = os.path.join(os.path.dirname(argv[0]), name)
            if not os.access(path, os.X_OK):
                self.missing = "%s is missing or cannot be executed" % path
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
            env = dict(self.spec.proxy_env, **{paths.GUARD_ENV: str(os.getppid()), paths.OUTPUT_ENV: self.output.path})
            os.execve(argv[0], argv, env)
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
        keep = self.proxies | {helper.process.pid for helper in self.helpers}
        keeper = files.read_keeper_address(self.directory)
        own = set(keeper.own) if keeper else set()
        for process in (procs.list_processes() if all_now is None else all_now).values():
            second = process.parent in self.proxies and _read_program(process.pid) in self.spec.proxies
            if second or process.parent in own:
                keep.add(process.pid)
        return keep | own

    def report_records(self) -> None:
        """Passes on what the wrappers wrote, and notices wrappers that died without a record."""
        try:
            names = sorted(os.listdir(os.path.join(self.directory, paths.RANKS)), key=_get_record_order)
        except OSError:
            return
        records = ((name, self.read_record(name)) for name in names if name.endswith(paths.RECORD))
        fresh = [(name, record) for name, record in records if record is not None]
        if any(isinstance(record, rank_records.RankEnded) for _, record in fresh):
            self.pass_written_output_on()
        for name, record in fresh:
            self.reported.add(name)
            self.report_record(record)
        for rank, process in list(self.alive.items()):
            now = self.find_process(process.pid)
            end = os.path.join(self.directory, files.build_record_path(rank, files.END))
            if (not now or now.start != process.start) and not os.path.exists(end):
                del self.alive[rank]
                self.report_unseen_end(rank)

    def report_record(self, record: "Record") -> None:
        """Passes one on, and takes note of what it says."""
        if isinstance(record, rank_records.RankBegun):
            # One that has died already is missed later, unless it left a record of its end.
            gone = procs.Process(record.pid, -1, os.getpid(), "X")
            self.wrappers.update((record.pid, record.stub))
            self.alive[record.rank] = self.find_process(record.pid) or gone
            self.begun = self.last
            return
        if isinstance(record, rank_records.RankStarted):
            self.scripts[record.rank] = record.child
        if isinstance(record, (rank_records.RankWorld, rank_records.RankStage, rank_records.RankDropped)):
            self.shared_memory |= procs.list_shared_memory(self.scripts.get(record.rank, 0))
        if isinstance(record, rank_records.RankEnded):
            self.alive.pop(record.rank, None)
            self.ended.add(record.rank)
            failed = record.raised or record.at
            record = record._replace(ending=self.ending_since is not None and failed >= self.ending_since)
        if not isinstance(record, Unreadable):
            self.keeper.send(record)

    def report_unseen_end(self, rank: int) -> None:
        """Its wrapper was killed, and what it still held of the rank's output is lost."""
        self.pass_written_output_on()
        self.ended.add(rank)
        self.keeper.send(rank_records.RankEnded(rank, self.spec.host, lost=True, at=time.time()))

    def read_record(self, name: str) -> "Optional[Record]":
        """Returns the record in a file of a rank; None while it cannot be read, and of one that was passed on. Stages
        come from the script's own Python."""
        if name in self.reported:
            return None
        rank, _, kind = name[: -len(paths.RECORD)].partition(".")
        try:
            value = files.read_json(self.directory, os.path.join(paths.RANKS, name))
        except (OSError, ValueError):
            return None
        if kind in hooks.STAGES and rank.isdecimal():
            at = value.get("at")
            return rank_records.RankStage(int(rank), self.spec.host, kind, at if isinstance(at, float) else time.time())
        record = rank_records.KINDS.from_object(value)
        return Unreadable(kind, "no record of a rank") if isinstance(record, Unreadable) else record

    def finish_run(self, stay: bool = False) -> None:
        """Ends all that is left but the keeper's own, reports what could not be ended, takes its files along, unless it
        is to ``stay`` for another attempt."""
        tickets.remove_ticket(os.path.dirname(self.directory), self.spec.run)
        self.report_records()
        strays = self.end_strays()
        self.await_wrappers()
        own = self.list_launcher_processes() - self.proxies if self.spec.head else set()
        own |= {helper.process.pid for helper in self.helpers}  # the last sample comes when no rank lives any more
        left = self.kill_all(self.spec.timings.last_wipe, own)
        for helper in self.helpers:
            for message in helper.finish(self.spec.timings.last_sample):
                self.keeper.send(message)
        self.sampler = self.carrier = None
        procs.remove_cgroup(self.group)
        self.report_records()
        self.pass_written_output_on()
        for path in self.shared_memory if not left else ():
            with suppress(OSError):
                os.unlink(path)
        for rank in sorted(set(self.spec.ranks) - self.ended):  # ended by us before its wrapper could tell
            self.report_unseen_end(rank)
        if not self.has_output() and not left and not stay and not self.has_profile():
            files.remove_directory(self.directory)  # before the run may end: then nothing is left here
        self.keeper.send(messages.Cleaned([(p.pid, p.state) for p in left], strays))
        if stay:
            return
        until = time.monotonic() + self.spec.timings.flush
        while self.keeper.open and self.keeper.outbox and time.monotonic() < until:
            select.select([], [self.keeper], [], 0.1)
            self.keeper.flush()

    def has_output(self) -> bool:
        """Returns whether the ranks' output is here: this host leads, or has led."""
        return self.spec.head is not None or spool.measure_end(os.path.join(self.directory, paths.OUT), 0) > 0

    def has_profile(self) -> bool:
        """Returns whether a watcher has something to fetch here, and will then remove the directory."""
        folder = os.path.join(self.directory, hooks.PROFILE)
        return bool(self.spec.profile and os.path.isdir(folder) and os.listdir(folder))

    def end_strays(self) -> "List[str]":
        """Ends what outlived the ranks; its names. The launcher's proxies may wait for it: now they can end by
        themselves, and the launcher complains of nothing."""
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

    def await_wrappers(self) -> None:
        """Lets wrappers say how their scripts ended: on a busy host that takes longer than the end of mpirun."""
        until = time.monotonic() + self.spec.timings.kill
        while self.alive and time.monotonic() < until:
            time.sleep(0.05)
            self.report_records()

    def find_strays(self) -> "List[procs.Process]":
        return [process for process in self.find_rank_processes() if process.pid not in self.wrappers]

    def abort_run(self, why: str) -> bool:
        """The keeper is lost: ends the run's part on this host alone. True where it is back, for another attempt."""
        tickets.remove_ticket(os.path.dirname(self.directory), self.spec.run)
        self.end_helpers()
        left = self.kill_all(self.spec.timings.leave)
        procs.remove_cgroup(self.group)
        heard, lost = self.keeper.heard, self.leader
        if self.base.restarts and not self.waits and self.connect_again():
            self.come_back(lost, heard, left)
            return True
        if self.has_output():
            return False
        if left:
            pids = [process.pid for process in left]
            files.write_json(self.directory, paths.LEFTOVERS, {"why": why, "at": time.time(), "left": pids})
        else:
            files.remove_directory(self.directory)
        return False

    def come_back(self, lost: str, heard: float, left: "List[procs.Process]") -> None:
        """Joins a keeper without ranks; the one on ``lost`` was heard then."""
        self.spec = self.base._replace(ranks={})
        self.remove_files()
        self.forget_ranks()
        self.join_keeper(lost, time.monotonic() - heard)
        self.keeper.send(messages.Cleaned([(process.pid, process.state) for process in left]))

    def follow_another(self) -> bool:
        """Leaves a keeper that has too few hosts for one that leads the others by now, if there is any."""
        lost, before = self.leader, self.keeper
        before.send(messages.Cleaned([]))
        later = list(self.list_keepers().items())[1:]
        if not self.connect_to_one(later)[0]:
            return False
        before.close()
        self.come_back(lost, before.heard, [])
        return True

    def connect_to_one(self, keepers: "Iterable[Tuple[str, Tuple[str, int]]]") -> "Tuple[bool, bool]":
        """Returns whether one of these could be connected to, and whether one before it was silent."""
        silent, timings = False, self.spec.timings
        reach = timings.reach if self.base.leaders else timings.connect
        for host, (address, port) in keepers:
            try:
                self.keeper = rpc.connect(address, port, self.spec.token, paths.Role.GUARD, self.spec.host, reach)
            except ConnectionRefusedError:
                continue
            except OSError:
                silent = True
            else:
                if host == self.leader:
                    self.lost_at = self.silent_at = 0.0
                else:
                    self.former, self.leader, self.peer = (self.leader, self.peer), host, (address, port)
                self.last = self.heard = time.monotonic()
                return True, silent
        return False, silent

    def connect_again(self) -> bool:
        """Waits for a keeper, without ranks; False when there is none any more, or none has been reached for long."""
        timings, now = self.spec.timings, time.monotonic()
        self.lost_at, self.silent_at = self.lost_at or now, self.silent_at or now
        self.keeper.close()
        while time.monotonic() < self.lost_at + timings.away:
            found, silent = self.connect_to_one(self.list_keepers().items())
            if found:
                return True
            self.silent_at = time.monotonic() if silent else self.silent_at
            if time.monotonic() >= self.silent_at + (timings.rejoin if self.base.leaders else 0.0):
                return False
            self.take_turn(time.monotonic() - now)
            time.sleep(timings.steady)
        return False

    def list_keepers(self) -> "Dict[str, Tuple[str, int]]":
        """Where a keeper may be: on the host where it was, or on a later one in the order of leaders."""
        order = list(self.base.leaders)
        later = order[order.index(self.leader) + 1 :] if order else []
        known = {host: (self.base.leaders[host], self.leaders[host]) for host in later if host in self.leaders}
        return {self.leader: self.peer, **known}

    def take_turn(self, away: float) -> None:
        """Starts a keeper here, if no host before this one has, which each has had some seconds to do."""
        self.reap()
        later = list(self.list_keepers())[1:]
        running = self.keeper_process and self.find_process(self.keeper_process)
        due = self.base.host in later and away >= later.index(self.base.host) * self.spec.timings.turn
        if running or not due or self.standby is None:
            return
        self.keeper_process = os.fork()
        if self.keeper_process:
            return
        try:
            from ipexctl.remote.agent.keeper import take_over  # most guards never need it

            spec = self.base._replace(head=self.base.reserve)
            take_over(self.directory, spec, self.standby, self.umask)
        finally:
            os._exit(1)


_KINDS = (files.BEGIN, files.START, *hooks.STAGES)  # then notes and END


def find_proxy_command(words: "List[str]", proxy: str) -> "List[str]":
    """Returns the program of this name and its arguments in a command for a remote shell."""
    split = shlex.split(" ".join(words))
    programs = [word.rpartition(";")[2] for word in split]
    at = next((at for at, program in enumerate(programs) if os.path.basename(program) == proxy), 0)
    arguments = split[at + 1 :]
    if arguments[-1:] == [")"]:
        arguments.pop()
    return programs[at : at + 1] + arguments


def _get_record_order(name: str) -> int:
    """Returns a rank's records in the order they happened, whatever the directory's."""
    kind = name.split(".")[1] if "." in name else ""
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS) + (kind == files.END)


def _read_program(pid: int) -> str:
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return ""
