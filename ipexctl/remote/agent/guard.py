"""The guard of a run on one host: starts the launcher's proxy when the keeper asks, passes on what the ranks write,
reports how they end, ends everything.

It holds a connection to the keeper on node0. When it does not know that the keeper has heard it within the node lease,
it ends all processes of the run on this host by itself: before the keeper may start others elsewhere. Of a run that may
be started again it then stays, and connects again (`keeper_search`). It is the sub-reaper of all it starts, so nothing
can leave its family."""

import os
import resource
import select
import signal
import socket
import time
from contextlib import suppress
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from ipexctl.protocol import hooks, messages, paths, rank_records
from ipexctl.protocol.codec import encode
from ipexctl.protocol.rank_layout import RankLayout, place_spec
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.remote.agent import files, launcher_proxy, output_pipe, procs, ready_sign, rpc, spool, stack_traces
from ipexctl.remote.agent.helper import Helper, start_helper
from ipexctl.remote.agent.host_lock import HostQueue
from ipexctl.remote.agent.keeper_search import KeeperSearch
from ipexctl.remote.agent.local_ranks import LocalRanks
from ipexctl.remote.agent.sampling import sample_host

BACKLOG_LIMIT = 1 << 22  # bytes for the keeper that wait here; more stays in the pipe, and then the ranks wait
CARRIER, SAMPLER = "carry", "meter"  # what the processes beside the guard call themselves, in its place
NO_CARRIER = messages.CheckpointTaken(0, "the process that carries checkpoints ended", 0, 0.0)
SMALL_OUTPUT = 1 << 14  # bytes: less output is little


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
        self.search = KeeperSearch(spec, keeper.peer, self.become_keeper)
        self.queue = HostQueue(os.path.dirname(directory), spec, self.report)
        self.ends: "Dict[int, int]" = {}  # wrapper or proxy → a descriptor that wakes us when it ends
        self.last = time.monotonic()  # when its last round began
        self.heard = self.last  # up to when the keeper has heard this host, as it says
        self.output = output_pipe.OutputPipe(spec.nonce)
        self.resting = 0.0  # until when output gathers in the pipe
        self.layout = RankLayout(0, {})  # of the last attempt
        self.launched = 0.0  # when the first attempt's ranks were started
        self.sampler: "Optional[Helper]" = None
        self.carrier: "Optional[Helper]" = None
        self.forget_ranks()
        self.join_keeper()

    def report(self, message: "messages.Message") -> None:
        self.keeper.send(message)

    def forget_ranks(self) -> None:
        """Begins an attempt: nothing is known of its ranks."""
        self.group = procs.create_cgroup(self.spec.run, self.spec.label)
        self.ranks = LocalRanks(self.directory, self.spec.host, self.find_process)
        self.proxies: "Set[int]" = set()
        self.missing = ""  # what a proxy needs here, and ends without a word where it is not

    def watch(self) -> None:
        procs.become_reaper()
        for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM):  # a polite stop of the run is not for its guard
            signal.signal(number, signal.SIG_IGN)
        try:
            while self.do_round(time.monotonic()):
                unsent = [self.keeper] if self.keeper.open and self.keeper.outbox else []
                select.select(self.list_wakeup_sources(), unsent, [], self.compute_pause(self.last))
        except Exception as error:  # a fault of ours: else this host would only be lost
            name = "" if isinstance(error, OSError) else type(error).__name__ + ": "
            self.keeper.send(messages.AgentFailed(name + str(error)))
            self.keeper.flush()
            raise

    def join_keeper(self, joined: "messages.Joined" = messages.Joined()) -> None:
        """Sends the first word to a keeper; ``joined`` says what of the one before is known."""
        running = time.monotonic() - self.launched if self.launched else 0.0
        hosts = list(self.layout.ranks)
        self.report(joined._replace(attempt=self.layout.number, hosts=hosts, running=running, port=self.search.port))

    def end_helpers(self) -> None:
        for helper in self.helpers:
            list(helper.end(0.0))
        self.sampler = self.carrier = None

    def sample_host(self, guard: "rpc.Wire") -> None:
        sample_host(self.directory, self.spec, guard)

    def carry_checkpoints(self, guard: "rpc.Wire") -> None:
        from ipexctl.remote.agent.carrier import Carrier  # the guard itself does not need it

        Carrier(self.spec, guard).run()

    @property
    def helpers(self) -> "List[Helper]":
        return [helper for helper in (self.sampler, self.carrier) if helper]

    def do_round(self, now: float) -> bool:
        """Does what is due now, in seconds of the steady clock; False once it has ended its part."""
        lease, last, self.last = self.spec.timings.node_lease, self.last, now
        if now - last > lease:
            return self.abort_run()  # this host stood still
        for message in self.keeper.receive():
            if isinstance(message, messages.FindLeader):
                if self.follow_another():
                    return True
            elif isinstance(message, messages.Finish):
                self.finish_run(message.stay)
                if not message.stay:
                    return False
            else:
                self.handle_message(message)
        self.queue.wait(now)
        self.reap()
        gone = {pid for pid in self.proxies if not self.find_process(pid)}
        self.pass_output_on(now)
        self.report_records()  # how its ranks ended comes before the end of their proxy
        if gone:
            self.proxies -= gone
            self.report(messages.ProxyEnded(self.missing))
        for helper in self.helpers:
            for message in helper.receive():
                self.report(message)
            helper.flush()
        if self.carrier and not self.carrier.open:
            self.carrier = None
            self.report(NO_CARRIER)
        self.keeper.flush()
        if not self.keeper.open or now - self.heard > lease:
            return self.abort_run()
        return True

    def compute_pause(self, now: float) -> float:
        """Returns seconds until the next round, if nothing wakes us before. Once all ranks run, rounds may be rare
        where every end wakes us: each takes the core of a rank for a moment."""
        awaited = all(process.pid in self.ends for process in self.ranks.alive.values())
        pause = self.spec.timings.steady if self.is_steady(now) and awaited else self.spec.timings.tick
        return max(0.0, min(pause, self.resting - now)) if self.resting else pause

    def is_steady(self, now: float) -> bool:
        """Returns whether all ranks have been running for a moment."""
        return self.ranks.alive.keys() == set(self.spec.ranks) and now > self.ranks.begun + self.spec.timings.early

    def pass_output_on(self, now: float) -> None:
        """What the ranks wrote, to the keeper. While all ranks run, little output gathers before it is read again: each
        look takes the core of a rank for a moment."""
        if now < self.resting:
            return
        self.resting, count = 0.0, self.send_output(BACKLOG_LIMIT - len(self.keeper.outbox))
        if 0 < count < SMALL_OUTPUT and self.is_steady(now):
            self.resting = now + self.spec.timings.pace

    def send_output(self, most: int) -> int:
        """Sends what is in the pipe to the keeper, a little more than so many bytes at most; how many it sent. All that
        is in it now is no more than `output_pipe.SIZE`: what a rank wrote comes before its end."""
        count = 0
        while count < most:
            data = self.output.take_frames()
            if not data:
                break
            self.keeper.send_output(data)
            count += len(data)
        return count

    def list_wakeup_sources(self) -> "List[Any]":
        """Returns what wakes us at once: the keeper's message, and the end of a wrapper or a proxy (where the kernel
        and Python offer it)."""
        watched = {process.pid for process in self.ranks.alive.values()} | self.proxies
        for pid in set(self.ends) - watched:
            os.close(self.ends.pop(pid))
        for pid in watched - set(self.ends):
            end = procs.open_end(pid)
            if end is not None:  # otherwise the next round finds it
                self.ends[pid] = end
        sources = [*self.ends.values(), *([self.keeper] if self.keeper.open else [])]
        if self.carrier:
            sources.append(self.carrier)
        if not self.resting and len(self.keeper.outbox) < BACKLOG_LIMIT:
            return [*sources, self.output]
        return sources

    def handle_message(self, message: "rpc.Received") -> None:
        """Does what the keeper asks. Messages for others are ignored."""
        ranks = self.ranks
        if isinstance(message, messages.Ping):
            self.heard = max(self.heard, message.heard)
            self.report(messages.Pong(message.sent, time.time(), self.last, message.steady))
        elif isinstance(message, messages.Leaders):
            self.search.ports.update(message.ports)
        elif isinstance(message, messages.Release):
            self.search.go_back()
            self.keeper.close()
        elif isinstance(message, messages.Begin):
            self.begin_attempt(message.layout)
        elif isinstance(message, messages.TakeHost):
            self.queue.take()
        elif isinstance(message, messages.LeaveHost):
            self.queue.go_back()
        elif isinstance(message, messages.StartProxy):
            self.start_proxy(message.words)
        elif isinstance(message, messages.RanksPort):
            files.write_json(self.directory, paths.PORT, {"port": message.port, "resume": message.resume})
            self.launched = self.launched or time.monotonic()
        elif isinstance(message, messages.Terminate):
            self.terminate_ranks()
        elif isinstance(message, messages.Kill):  # wrappers end, and tell, by themselves
            self.report(messages.ProcessesKilled(len(self.find_rank_processes(ranks.wrappers))))
            self.kill_all(self.spec.timings.wipe, self.list_launcher_processes() | ranks.wrappers)
        elif isinstance(message, (messages.FindCheckpoints, messages.TakeCheckpoint)):
            if self.carrier:
                self.carrier.send(message)
            else:
                self.report(NO_CARRIER)
        elif isinstance(message, messages.ReportLoad):
            self.report(messages.RankLoads(stack_traces.measure_loads(ranks.alive)))
        elif isinstance(message, messages.ReportStacks):
            for stack in stack_traces.collect_stacks(self.directory, ranks.alive, self.spec, self.heard):
                self.report(stack)
            self.report(messages.StacksReported())

    def terminate_ranks(self) -> None:
        ranks = self.ranks
        ranks.ending_since = ranks.ending_since or time.time()
        with suppress(OSError):  # only a wrapper that begins at this moment misses it: the hard stop is for that
            files.write_json(self.directory, paths.ENDING, {"at": ranks.ending_since})
        processes = self.find_rank_processes()
        for process in processes:
            ranks.shared_memory |= procs.list_shared_memory(process.pid)
        self.send_signal(processes, signal.SIGTERM)
        self.send_signal(processes, signal.SIGCONT)

    def begin_attempt(self, layout: "RankLayout") -> None:
        """Takes the ranks of an attempt: their specification, and no file of the ones before."""
        base = self.base
        if base.reserve is not None and self.search.leader == base.host:
            base = base._replace(head=base.reserve)
        self.end_helpers()
        self.search.end()
        self.layout = layout
        spec = place_spec(base, layout)
        if spec != self.spec:
            files.write_json(self.directory, paths.SPEC, encode(spec))
            self.spec = spec
        self.remove_files(paths.ENDING, paths.PORT)
        if spec.profile:
            files.remove_directory(os.path.join(self.directory, hooks.PROFILE))
        self.forget_ranks()
        self.report(messages.Begun(layout.number, ready_sign.find_taken_sign(spec)))
        if spec.timings.sample > 0:
            self.sampler = start_helper(self.directory, SAMPLER, 10, self.sample_host)
        if spec.keep:
            self.carrier = start_helper(self.directory, CARRIER, 19, self.carry_checkpoints)

    def remove_files(self, *more: str) -> None:
        """Removes what ranks have left, and these."""
        names = [os.path.join(paths.RANKS, name) for name in os.listdir(os.path.join(self.directory, paths.RANKS))]
        for name in (*names, *more):
            with suppress(OSError):
                os.unlink(os.path.join(self.directory, name))

    def start_proxy(self, words: "List[str]") -> None:
        """Starts the launcher's proxy, without a shell."""
        argv = launcher_proxy.find_command(words, self.spec.proxies)
        self.missing = launcher_proxy.find_missing_program(argv, self.spec.proxies)
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
        """Passes on what the ranks' wrappers wrote, and notices wrappers that died without a record."""
        records = self.ranks.take_records(self.last)
        if any(isinstance(record, rank_records.RankEnded) for record in records):
            self.send_output(output_pipe.SIZE)
        for record in records:
            self.report(record)

    def finish_run(self, stay: bool = False) -> None:
        """Ends all that is left but the keeper's own, reports what could not be ended, takes its files along, unless it
        is to ``stay`` for another attempt."""
        timings = self.spec.timings
        self.queue.leave()
        self.report_records()
        strays = self.end_strays()
        # Wrappers say how their scripts ended: on a busy host that takes longer than the end of mpirun.
        until = time.monotonic() + timings.kill
        while self.ranks.alive and time.monotonic() < until:
            time.sleep(0.05)
            self.report_records()
        own = self.list_launcher_processes() - self.proxies if self.spec.head else set()
        own |= {helper.process.pid for helper in self.helpers}  # the last sample comes when no rank lives any more
        left = self.kill_all(timings.last_wipe, own)
        self.proxies.clear()  # the end of each would wake us again and again until the next attempt
        for helper in self.helpers:
            for message in helper.end(timings.last_sample):
                self.report(message)
        self.sampler = self.carrier = None
        procs.remove_cgroup(self.group)
        self.report_records()
        self.send_output(output_pipe.SIZE)
        for path in self.ranks.shared_memory if not left else ():
            with suppress(OSError):
                os.unlink(path)
        for rank in sorted(set(self.spec.ranks) - self.ranks.ended):  # ended by us before its wrapper could tell
            self.report(self.ranks.end_unseen(rank))
        if not self.has_output() and not left and not stay and not self.has_profile():
            files.remove_directory(self.directory)  # before the run may end: then nothing is left here
        self.report(messages.Cleaned(describe_processes(left), strays))
        if not stay:
            list(self.keeper.finish(self.spec.timings.flush))

    def has_output(self) -> bool:
        """Returns whether the ranks' output is here: this host leads, or has led."""
        return self.spec.head is not None or spool.measure_end(os.path.join(self.directory, paths.OUT)) > 0

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

    def find_strays(self) -> "List[procs.Process]":
        return [process for process in self.find_rank_processes() if process.pid not in self.ranks.wrappers]

    def abort_run(self) -> bool:
        """The keeper is lost: ends the run's part on this host alone. True where it is back, for another attempt."""
        self.queue.leave()
        self.end_helpers()
        left = self.kill_all(self.spec.timings.leave)
        procs.remove_cgroup(self.group)
        self.keeper.close()
        if self.base.restarts and not self.queue.waits:
            lost, heard = self.search.leader, self.keeper.heard
            keeper = self.search.await_keeper()
            if keeper:
                self.come_back(keeper, lost, heard, left)
                return True
        if not left and not self.has_output():
            files.remove_directory(self.directory)
        return False

    def come_back(self, keeper: "rpc.Wire", lost: str, heard: float, left: "List[procs.Process]") -> None:
        """Joins a keeper without ranks; the one on ``lost`` was heard then."""
        self.keeper = keeper
        self.last = self.heard = time.monotonic()
        self.spec = self.base._replace(ranks={})
        self.remove_files()
        self.forget_ranks()
        self.join_keeper(messages.Joined(leader=lost, away=time.monotonic() - heard, left=describe_processes(left)))

    def follow_another(self) -> bool:
        """Leaves a keeper that has too few hosts for one that leads the others by now, if there is any."""
        lost, before = self.search.leader, self.keeper
        keeper, refused = self.search.connect(self.search.list_later())
        self.last = time.monotonic()
        if keeper is None:
            self.report(messages.NoLeader(refused))
            return False
        self.report(messages.Cleaned([]))
        before.drain(self.spec.timings.flush)
        before.close()
        self.end_helpers()
        self.come_back(keeper, lost, before.heard, [])
        return True

    def become_keeper(self, listener: "socket.socket") -> None:
        from ipexctl.remote.agent.keeper import take_over  # most guards never need it

        take_over(self.directory, self.base._replace(head=self.base.reserve), listener, self.umask)


def describe_processes(processes: "List[procs.Process]") -> "List[Tuple[int, str]]":
    """Returns their ids and kernel states."""
    return [(process.pid, process.state) for process in processes]


def _read_program(pid: int) -> str:
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return ""
