"""The keeper of a run, on node0: starts mpirun, stores what ranks write, watches the hosts, ends everything.

A run ends when its script ends, on request, at a limit, or when a host is lost. A lost watcher ends nothing, unless the
run was given a lease. What follows from what is decided in `keeper_steps`; here are its clock, connections, processes
and files. Everything that happens goes into the journal; watchers read the files, so a watcher that comes back goes on
at the exact byte."""

import os
import random
import selectors
import signal
import socket
import subprocess
import time
from contextlib import suppress
from typing import Dict, List, Optional, Set

from ipexctl.protocol import frames, journal, messages, paths, rank_records, samples
from ipexctl.protocol.codec import encode
from ipexctl.protocol.mpi_abort import find_aborts
from ipexctl.protocol.paths import Role
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.remote.agent import files, keeper_state, keeper_steps, procs, rpc, spool
from ipexctl.remote.agent.keeper_state import KeeperRun, Moment, RunPhase
from ipexctl.remote.agent.launcher_pipes import LauncherPipes
from ipexctl.remote.agent.notices import NoticeQueue
from ipexctl.remote.agent.progress_monitor import ProgressMonitor

UNPROVED_LIMIT = 64  # waiting places for those who have not proved themselves, beside one for each host
JOURNAL_BACKLOG = 1 << 16  # bytes of the journal that wait for space before the reserve is used
LOWEST_PORT = 20000  # of those that are tried for the rendezvous
CONNECTION_PORT = 32768  # the first that Linux gives to connections (Documentation/networking/ip-sysctl.rst)
READ_SIZE = 1 << 16  # bytes taken from a pipe at a time
SEARCHED_TAIL = 1 << 13  # bytes of mpirun's output that are searched for the end of a rank
WAKE_INTERVAL = 0.02  # seconds between two messages that wake watchers
FAULT_LENGTH = 300  # letters of what a fault of a guard is called
LEADING = "lead"  # what a keeper calls itself that has taken the place of another
PROGRESS = (rank_records.RankStarted, rank_records.RankStage, rank_records.RankNote)


def take_over(directory: str, spec: "RunSpec", listener: "socket.socket", umask: int) -> None:
    """Becomes the keeper on a host that takes the head's place, in a process that its guard has forked off."""
    procs.close_files(listener.fileno())
    procs.rename_word(Role.GUARD.encode(), LEADING.encode())
    listener.listen(rpc.BACKLOG)
    files.run_then_record_crash(
        directory, Role.KEEPER, lambda: Keeper(directory, spec, listener, umask, takes_over=True).serve()
    )


def _read_clocks() -> "Moment":
    return Moment(time.monotonic(), time.time())


class Keeper:
    """``takes_over``: from a keeper on another host, whose guards are on their way."""

    def __init__(
        self, directory: str, spec: "RunSpec", listener: "socket.socket", umask: int, takes_over: bool = False
    ) -> None:
        self.directory = directory
        self.umask = umask  # the login's, for mpirun and the ranks it starts itself
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        self.journal = open(os.path.join(directory, paths.JOURNAL), "wb" if takes_over else "ab", buffering=0)
        self.unwritten = b""  # of the journal
        self.run = KeeperRun(spec, _read_clocks(), takes_over)
        self.wires: "Set[rpc.Wire]" = set()
        self.guards: "Dict[str, rpc.Wire]" = {}
        self.faults: "Dict[str, str]" = {}  # of guards
        self.launcher: "Optional[subprocess.Popen[bytes]]" = None
        self.pipes: "Optional[LauncherPipes]" = None
        self.pattern = frames.compile_frame_pattern(spec.nonce)
        self.output = spool.Spool(os.path.join(directory, paths.OUT), self.pattern)  # the ranks'
        self.launcher_output = spool.Spool(os.path.join(directory, paths.ERR))
        self.launcher_pipes: "Set[int]" = set()  # mpirun's two outputs
        self.launcher_tail = b""
        self.samples: "Optional[spool.Spool]" = None
        self.unstored = 0
        self.terminated = False  # by a signal
        self.pinged = self.loaded = 0.0  # when the guards were last sent a ping, and asked how busy their ranks are
        self.grown, self.woken = False, 0.0  # whether watchers do not know yet of all in the files; when they last did
        self.monitor = ProgressMonitor(spec.timings)
        self.notices = NoticeQueue(self.spec, lambda why: self.write_record(journal.NoticeFailed(spec.host, why)))
        files.reserve_space(directory)

    @property
    def spec(self) -> "RunSpec":
        """That of the attempt that is going on."""
        return self.run.spec

    # -- the loop -----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        for number in (signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self.on_sigterm)
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.write_address([os.getpid()])
        lease, last = self.spec.timings.node_lease, time.monotonic()
        while self.run.state is not RunPhase.DONE:
            ready = self.selector.select(self.compute_pause())
            self.check_launcher_end()
            for key, _ in ready:
                if self.selector.get_map().get(key.fd) is key:  # the one before may have ended an attempt, and this
                    key.data(key.fileobj)
            now = time.monotonic()
            for host, guard in list(self.guards.items()):
                silent = now - guard.asked  # what arrives later may be of a guard that has left us for another keeper
                if now - last > lease:  # frozen or suspended: the guards have ended their parts by now
                    why = "node0 stood still for %.0f s" % (now - last)
                    self.handle_input(keeper_state.GuardLost(host, why, silent=max(silent, now - last)))
                elif silent > lease:
                    why = "no sign of life for %.0f s" % silent
                    self.handle_input(keeper_state.GuardLost(host, why, silent=silent))
                elif silent - (now - last) > self.spec.timings.silent:  # while this host did not stand still itself
                    self.handle_input(keeper_state.GuardSilent(host, silent))
            last = now
            self.do_periodic_work(now)
        self.journal.close()

    def compute_pause(self) -> float:
        """Returns seconds until something is due, if nothing arrives before."""
        timings = self.spec.timings
        until = [timings.steady if self.run.is_steady(_read_clocks()) else timings.tick]
        if self.grown:
            until.append(WAKE_INTERVAL)
        return min(until)

    def check_launcher_end(self) -> None:
        awaited = self.run.launched and self.run.launcher_ended is None
        if self.launcher and awaited and self.launcher.poll() is not None:
            self.handle_input(keeper_state.LauncherEnded(self.launcher.returncode))

    def close_end(self, end: int) -> None:
        """mpirun has ended, which `check_launcher_end` notices."""
        self.selector.unregister(end)
        os.close(end)

    def on_sigterm(self, *_: object) -> None:
        self.terminated = True

    def do_periodic_work(self, now: float) -> None:
        """What is to be done and to be noticed from time to time."""
        timings = self.spec.timings
        if now - self.pinged >= min(timings.ping, timings.node_lease / 8):
            self.pinged = now
            answers = {host: guard.answer for host, guard in self.guards.items() if guard.answer}
            heard = keeper_state.find_heard(self.run, answers)
            for host, guard in self.guards.items():
                guard.send(messages.Ping(time.time(), heard.get(host, 0.0), now))
        self.wake_watchers(now)
        running = self.run.state is RunPhase.RUNNING
        if running and self.monitor.warn and now - self.loaded >= self.monitor.interval:
            self.loaded = now
            self.send("", messages.ReportLoad())
        for link in list(self.wires):
            link.flush()
            if not link.open or (not link.role and now - link.since > timings.greet):
                self.drop_connection(link)
        if self.terminated:
            self.handle_input(messages.StopRun("SIGTERM to the keeper"))
        if running:
            for alarm in self.monitor.poll(now):
                self.handle_input(alarm)
        self.handle_input(keeper_state.Tick(self.watchers > 0))
        self.notices.work(now)

    def wake_watchers(self, now: float) -> None:
        """A watcher looks into the files a few times a second by itself: lines that are few come at once by this."""
        if self.grown and now - self.woken >= WAKE_INTERVAL:
            self.grown, self.woken = False, now
            for link in self.wires:
                if link.role == Role.WATCH and not link.outbox:  # one that reads nothing gets no more
                    link.send(messages.FilesGrown())

    @property
    def watchers(self) -> int:
        return sum(1 for link in self.wires if link.role == Role.WATCH)

    # -- what the run's state asks for --------------------------------------------------------------------------------

    def handle_input(self, what: "keeper_state.Input") -> None:
        for action in keeper_steps.next_step(self.run, what, _read_clocks()):
            if isinstance(action, keeper_state.Send):
                self.send(action.host, action.message)
            elif isinstance(action, keeper_state.Note):
                self.write_record(action.record)
                self.notices.note_record(action.record)
            elif isinstance(action, keeper_state.StartLauncher):
                self.handle_input(self.start_launcher())
            elif isinstance(action, keeper_state.Disconnect):
                self.drop_connection(self.guards.pop(action.host))
            elif isinstance(action, keeper_state.ReleaseShims):
                if self.pipes:
                    self.pipes.release_shims(self.spec.head_spec.hosts[action.host].label)
            elif isinstance(action, keeper_state.EndAttempt):
                self.end_launcher()
                self.write_record(action.record)
            elif isinstance(action, keeper_state.Dissolve):
                for name in (paths.KEEPER, paths.JOURNAL):
                    os.unlink(os.path.join(self.directory, name))
            else:
                self.finish_run(action.end)

    def send(self, host: str, message: "messages.Message") -> None:
        """To the guard of a host, to all for ""."""
        for name, guard in self.guards.items():
            if host in {"", name}:
                guard.send(message)

    def start_launcher(self) -> "keeper_state.Input":
        """Chooses a free port for the ranks, then starts mpirun: all hosts are ready."""
        head = self.spec.head_spec
        try:
            port = self.find_free_port()
        except OSError as error:
            return keeper_state.LauncherFailed("no port for the rendezvous: %s" % error.strerror)
        try:
            self.pipes = LauncherPipes(self.directory, [node.label for node in head.hosts.values()])
        except OSError as error:
            return keeper_state.LauncherFailed("no pipes for the launcher: %s" % error.strerror)
        self.selector.register(self.pipes.requests, selectors.EVENT_READ, self.take_proxy_requests)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            workdir = head.workdir if os.path.isdir(head.workdir) else "/"
            self.launcher = subprocess.Popen(
                head.mpiexec,
                env={**head.mpiexec_env, "PWD": workdir},  # as it is named on all hosts, where a link leads to it here
                cwd=workdir,
                stdin=subprocess.DEVNULL,
                stdout=out_write,
                stderr=err_write,
                start_new_session=True,
                preexec_fn=self.prepare_launcher_process,
            )
        except OSError as error:
            return keeper_state.LauncherFailed("cannot start %s: %s" % (head.mpiexec[0], error))
        finally:
            os.close(out_write)
            os.close(err_write)
        for fd in (out_read, err_read):
            os.set_blocking(fd, False)
            self.launcher_pipes.add(fd)
            self.selector.register(fd, selectors.EVENT_READ, self.store_launcher_output)
        end = procs.open_end(self.launcher.pid)
        if end is not None:
            self.selector.register(end, selectors.EVENT_READ, self.close_end)
        self.write_address([os.getpid(), self.launcher.pid])
        return keeper_state.LauncherStarted(self.launcher.pid, port, self.output.offset)

    def take_proxy_requests(self, _: int) -> None:
        """Passes on what the launcher's shims ask for to the guards."""
        assert self.pipes is not None
        hosts = {node.label: name for name, node in self.spec.head_spec.hosts.items()}
        for label, words in self.pipes.take_requests():
            if hosts[label] in self.guards:
                self.send(hosts[label], messages.StartProxy(words))
            else:
                self.pipes.release_shims(label, 1)

    def prepare_launcher_process(self) -> None:
        """In mpirun's process, before it is mpirun."""
        procs.die_with_parent()
        os.umask(self.umask)

    def find_free_port(self) -> int:
        """Returns a free port for the rendezvous. Where any may be taken, it is none of those that Linux gives to
        connections: one could have it before rank 0 binds it."""
        head = self.spec.head_spec
        if head.port:
            ports = [head.port, head.port]
        elif head.ports[1]:
            ports = head.ports
        else:
            ports = [LOWEST_PORT, random.randrange(LOWEST_PORT, CONNECTION_PORT)]
        with rpc.listen_on_free_port(head.address, ports) as probe:
            return int(probe.getsockname()[1])

    def end_launcher(self) -> None:
        """The guards are done: ends mpirun itself and stores the rest of its output. What follows is another attempt,
        or nothing."""
        if self.pipes:  # Open MPI does not wait for its shims, and they hold its outputs open
            self.selector.unregister(self.pipes.requests)
            self.pipes.close()
        if self.launcher and self.launcher.poll() is None:
            try:
                self.launcher.wait(self.spec.timings.orderly)
            except subprocess.TimeoutExpired:
                self.launcher.kill()
                self.launcher.wait()
        until = time.monotonic() + self.spec.timings.last_wipe
        while self.launcher_pipes and time.monotonic() < until:
            for key, _ in self.selector.select(0.1):
                if key.fd in self.launcher_pipes or key.data == self.close_end:
                    key.data(key.fd)
        for fd in list(self.launcher_pipes):
            self.close_launcher_pipe(fd)
        if self.pipes:
            self.pipes.remove()
        self.launcher, self.pipes, self.launcher_tail = None, None, b""
        self.monitor = ProgressMonitor(self.spec.timings)
        self.write_address([os.getpid()])

    def finish_run(self, end: "journal.RunEnd") -> None:
        """Writes the final record."""
        self.end_launcher()
        for sink in (self.output, self.launcher_output):
            self.unstored += sink.close()
        files.release_space(self.directory)
        end = end._replace(unstored=self.unstored, at=time.time())
        self.notices.note_record(end)
        self.notices.finish()  # before anybody reads that the run has ended, and looks for what is left of it
        self.write_record(end)
        files.write_json(self.directory, paths.END, journal.KINDS.to_object(end))

    # -- what arrives -------------------------------------------------------------------------------------------------

    def accept(self, listener: "socket.socket") -> None:
        try:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            return
        strangers = [link for link in self.wires if not link.role]
        if len(strangers) >= UNPROVED_LIMIT + len(self.spec.head_spec.hosts):
            # Ours prove themselves in a moment: whoever has waited longest is none of them.
            self.drop_connection(min(strangers, key=lambda link: link.since))
        link = rpc.Wire(sock, rpc.GREETING_LIMIT)
        self.wires.add(link)
        self.selector.register(sock, selectors.EVENT_READ, lambda _: self.receive(link))
        rpc.send_challenge(link)

    def receive(self, link: "rpc.Wire") -> None:
        for message in link.receive():
            if not link.role:
                role = rpc.verify_caller(link, message, self.spec.token)
                if not role or (role == Role.GUARD and link.name not in self.spec.head_spec.hosts):
                    link.close()
                    break
                if role == Role.GUARD and isinstance(message, messages.Hello):
                    if link.name in self.guards:  # it has ended its part meanwhile
                        self.handle_input(keeper_state.GuardLost(link.name, "its guard had lost node0"))
                    self.guards[link.name] = link
                    self.handle_input(keeper_state.GuardConnected(link.name, message.clock))
            elif link.role == Role.GUARD:
                self.receive_from_guard(link.name, message)
            elif link.role == Role.ORDER:
                if isinstance(message, (messages.StopRun, messages.KillRun, messages.RequestStacks, messages.Vote)):
                    self.handle_input(message)
                state = "waiting" if self.run.is_waiting() else self.run.state.value
                link.send(messages.KeeperStatus(state, self.watchers, self.run.restart))
        if not link.open:
            self.drop_connection(link)

    def receive_from_guard(self, host: str, message: "rpc.Received") -> None:
        now = time.monotonic()
        ranks = self.spec.head_spec.hosts[host].ranks
        if isinstance(message, messages.RanksOutput):
            own, writers = frames.select_frames(message.data, self.pattern, set(ranks))
            if len(own) < len(message.data):
                why = "%d bytes are of none of its ranks" % (len(message.data) - len(own))
                self.write_record(journal.MessageIgnored(host, "RanksOutput", why))
            self.monitor.note_output(writers, now)
            self.store_output(self.output, own)
            return
        if isinstance(message, messages.RankLoads):
            for rank in set(ranks).intersection(message.ranks):
                self.monitor.note_load(rank, *message.ranks[rank], now)
            return
        if isinstance(message, samples.HostSample):
            self.store_sample(host, message)
            return
        if isinstance(message, messages.AgentFailed):
            self.faults[host] = message.error[:FAULT_LENGTH]
            return
        if isinstance(message, messages.Pong) and host in self.guards:
            self.guards[host].asked = message.asked
            self.guards[host].answer = keeper_state.LastPong(message.asked, message.steady, now)
        elif isinstance(message, rank_records.RankEnded) and message.rank in ranks:
            self.monitor.note_end(message.rank, message.status == 0, now)
        elif isinstance(message, rank_records.RankStack) and message.rank in ranks:
            self.monitor.note_stack(message.rank, now)
        elif isinstance(message, PROGRESS) and message.rank in ranks:
            stage = message.stage if isinstance(message, rank_records.RankStage) else ""
            self.monitor.note_progress(message.rank, now, stage)
        self.check_launcher_end()  # before what came of it
        self.handle_input(keeper_state.FromGuard(host, message))

    def store_sample(self, host: str, sample: "samples.HostSample") -> None:
        """Beside the journal, which must not lack space for it."""
        ranks = self.spec.head_spec.hosts[host].ranks
        at = self.run.convert_to_head_time(host, sample.at)
        uses = [use for use in sample.ranks if use.rank in ranks]
        guard = self.guards.get(host)
        delay = guard.measure_delay() if guard else None
        sample = sample._replace(host=host, at=at, ranks=uses, delay=delay, output=self.output.offset)
        self.grown = True
        if self.samples is None:
            self.samples = spool.Spool(os.path.join(self.directory, paths.SAMPLES), cap=samples.SIZE_LIMIT)
        self.samples.write(samples.KINDS.write(sample) + b"\n")

    def store_launcher_output(self, fd: int) -> None:
        try:
            piece = os.read(fd, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if piece:
            self.store_output(self.launcher_output, piece)
            self.launcher_tail = (self.launcher_tail + piece)[-SEARCHED_TAIL:]
            for abort in find_aborts(self.launcher_tail):
                if abort.called and abort.rank is not None:
                    self.handle_input(keeper_state.RankAborted(abort.rank, abort.code))
        else:
            self.close_launcher_pipe(fd)

    def store_output(self, sink: "spool.Spool", data: bytes) -> None:
        missing = sink.write(data)
        self.grown = True
        if missing and not self.unstored:
            self.write_record(journal.Unstored(self.directory, *sink.measure_free_space(missing)))
        self.unstored += missing

    def close_launcher_pipe(self, fd: int) -> None:
        self.selector.unregister(fd)
        self.launcher_pipes.discard(fd)
        os.close(fd)

    def drop_connection(self, link: "rpc.Wire") -> None:
        """A connection is over. Of a guard that means: its host, or at least its guard, is lost."""
        self.wires.discard(link)
        link.close()
        with suppress(KeyError, ValueError):  # it was dropped before
            self.selector.unregister(link.sock)
        if link.role == Role.GUARD and self.guards.get(link.name) is link:
            why, fault = "its guard ended", self.faults.pop(link.name, "")
            if fault:
                why = "%s: %s" % (why, fault)
            if link.tampered:
                why = "a line on the connection to its guard is not authentic"
            self.handle_input(keeper_state.GuardLost(link.name, why, link.tampered))
        elif link.tampered and link.role:
            self.write_record(journal.MessageIgnored(link.name, link.role, "not authentic"))

    # -- records ------------------------------------------------------------------------------------------------------

    def write_record(self, record: "journal.Record") -> None:
        self.unwritten += journal.encode_record(record if record.at else record._replace(at=time.time()))
        self.grown = True
        try:
            while self.unwritten:
                self.unwritten = self.unwritten[self.journal.write(self.unwritten) or 0 :]
        except OSError:
            if len(self.unwritten) > JOURNAL_BACKLOG:
                files.release_space(self.directory)  # the next line is written there

    def write_address(self, own: "List[int]") -> None:
        me = procs.find_process(os.getpid())
        address, port = self.spec.head_spec.address, self.listener.getsockname()[1]
        keeper = files.KeeperAddress(address, port, os.getpid(), me.start if me else 0, own)
        files.write_json(self.directory, paths.KEEPER, encode(keeper))
