"""Starting and watching a run: what is done on which host, over links. What to start is decided elsewhere."""

import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeVar

from ipexctl.act import agent
from ipexctl.act.context import Context
from ipexctl.act.run_dir import START_PYTHON, RemoteRunDir, build_agent_command, is_run_dir, remove_run_dir
from ipexctl.act.threads import start_thread
from ipexctl.act.transfer.send import UNTRUSTED, build_script_command, make_remote_error
from ipexctl.model.errors import Failure, Kind, advise
from ipexctl.model.hosts import Channel, Command, CommandIO, Completed, Link, LinkError
from ipexctl.model.json_values import Record
from ipexctl.model.launch import RANK_LIMIT
from ipexctl.model.text import format_time, printable
from ipexctl.protocol import frames, journal, messages, paths, rank_records
from ipexctl.protocol.codec import MESSAGE_LIMIT, DamagedError, Unreadable
from ipexctl.protocol.messages import KINDS
from ipexctl.protocol.paths import AGENT, AGENTS, BOTH, ROLE, RUNS, Role
from ipexctl.protocol.timings import Timings

_STACKS_SIZE_LIMIT = 1 << 26  # bytes of stacks of all ranks
_LINE_LIMIT = 1 << 12  # bytes of the first line of a keeper
RUNS_LIMIT = 1000  # runs of one host; each takes a line of the screen
ORPHANS_LIMIT = 100  # directories on one host; for each all hosts are searched for processes
_HOST = re.compile(r"[\w:-][\w.:-]{,252}", re.ASCII)  # its name, by which a directory here is called
_KEEPER_START_TIMEOUT = 60.0  # seconds in which the keeper must listen: 30 for its command, and 30 until it starts

S = TypeVar("S")
T = TypeVar("T")


class KeeperPort:
    """Where the keeper of a run that is being started will listen, for those who wait for it."""

    def __init__(self, address: str) -> None:
        self.address = address  # of the head, for the other hosts
        self.port = 0  # while it does not listen
        self._known = threading.Event()

    def set_port(self, port: int) -> None:
        """``port`` is 0 where it will never listen. Only the first call counts."""
        if not self._known.is_set():
            self.port = port
            self._known.set()

    def wait_for_port(self) -> int:
        """Returns its port, 0 where it will never listen, or has not in a minute."""
        self._known.wait(_KEEPER_START_TIMEOUT)
        return self.port


def start_head(link: Link, site: RemoteRunDir, run: str, keeper: KeeperPort, on_listening: Callable[[], None]) -> None:
    """Starts the keeper and the guard of the head; ``on_listening`` is called when the keeper listens. Raises
    `LinkError`: as `start_guard`, and STEP when the keeper does not start."""
    output = bytearray()

    def read_port(data: bytes) -> None:
        output.extend(data[: _LINE_LIMIT - len(output)])
        answer = KINDS.read(bytes(output).partition(b"\n")[0])
        if isinstance(answer, messages.KeeperListening) and not keeper.port:
            keeper.set_port(answer.port)
            on_listening()

    try:
        done = link.run(site.build_command(Role.KEEPER, site.directory, BOTH, run=run), CommandIO(on_output=read_port))
    finally:
        keeper.set_port(0)
    if not keeper.port:
        answer = _parse_answer(link, done, "the run's keeper did not start", messages.AgentFailed)
        raise LinkError(Failure(site.host.name, Kind.STEP, f"keeper: {answer.error}", code="keeper"))
    behind = done.out.partition(b"\n")[2]  # the keeper's line
    _check_guard_answer(link, site, replace(done, out=behind), keeper)


def start_guard(link: Link, site: RemoteRunDir, run: str, keeper: KeeperPort) -> bool:
    """Starts the guard on another host than the head, and tells it of the keeper as soon as that listens; False where
    it will never listen. Raises `LinkError`: BUSY when another run holds the host, UNREACHABLE when no packet from
    there gets to the head, STEP when its keeper does not take part."""
    command = site.build_command(
        Role.GUARD, site.directory, keeper.address, run=run, timeout=_KEEPER_START_TIMEOUT + 30.0
    )

    def write_port() -> bytes:
        port = keeper.wait_for_port()
        return (KINDS.write(messages.KeeperListening(port)) if port else b"").ljust(messages.PORT_SIZE)

    done = link.run(replace(command, late_input=messages.PORT_SIZE), CommandIO(get_input=write_port))
    if not keeper.port:
        return False
    _check_guard_answer(link, site, done, keeper)
    return True


def make_busy_failure(host: str, run: messages.HostBusy | messages.RunRow) -> Failure:
    """Returns why no other run starts on this host."""
    what = f"busy with run {run.run} of {run.owner}, since {format_time(run.started)}"
    hint = advise("stop", run.run, text="wait for it (in a playbook: wait: true), start beside it (share: true)")
    return Failure(host, Kind.BUSY, what, hint, "busy")


def _check_guard_answer(link: Link, site: RemoteRunDir, done: Completed, keeper: KeeperPort) -> None:
    refusals = (messages.HostBusy, messages.AgentFailed, messages.KeeperUnreachable, messages.EnvironmentGone)
    answer = _parse_answer(link, done, "its guard did not start", messages.GuardReady, *refusals)
    if isinstance(answer, messages.HostBusy):
        raise LinkError(make_busy_failure(site.host.name, answer))
    if isinstance(answer, messages.EnvironmentGone):
        what = f"an install removed {printable(answer.path, 300)}, the environment of this run, while it started"
        raise LinkError(Failure(site.host.name, Kind.STEP, what, "start it again", "environment-gone"))
    if isinstance(answer, (messages.AgentFailed, messages.KeeperUnreachable)):
        what = f"cannot reach the head at {keeper.address} port {keeper.port}: {answer.error}"
        ports = "open the ports between the hosts, or choose another network with --iface"
        kind = Kind.UNREACHABLE if isinstance(answer, messages.KeeperUnreachable) else Kind.STEP
        raise LinkError(Failure(site.host.name, kind, what, ports, "back-connection"))


Order = messages.StopRun | messages.KillRun | messages.RequestStacks | messages.Inspect | messages.Vote


def send_order(link: Link, site: RemoteRunDir, order: Order) -> bool:
    """Gives the keeper an order; False when it is gone."""
    done = link.run(site.build_command(Role.ORDER, site.directory, KINDS.write(order).decode()))
    if done.status == UNTRUSTED:
        raise make_remote_error(link, done.status, done.err)
    return done.ok


def collect_stacks(
    link: Link, site: RemoteRunDir, request: str, timings: Timings
) -> tuple[tuple[rank_records.RankStack, ...], tuple[str, ...]]:
    """Stacks of the ranks of a running run, and the hosts that did not report theirs. ``request`` is an id that no
    other request has. Raises `LinkError`."""
    timeout = 2 * timings.inquiry + 2 * timings.reply + timings.connect
    command = site.build_command(Role.STACKS, site.directory, request, timeout=timeout)
    done = link.run(replace(command, cap=_STACKS_SIZE_LIMIT))
    records = [journal.KINDS.read(line) for line in done.out.splitlines()]
    if done.ok and records and isinstance(records[-1], journal.InquiryEnded):
        stacks = tuple(record for record in records if isinstance(record, rank_records.RankStack))
        return stacks, tuple(records[-1].missing)
    problem = "its ranks' stacks cannot be read"
    if done.truncated:
        what = f"{problem}: they are larger than {_STACKS_SIZE_LIMIT >> 20} MiB"
        raise LinkError(Failure(site.host.name, Kind.STEP, what, code="stacks"))
    answer = _parse_answer(link, done, problem, messages.AgentFailed)
    raise LinkError(Failure(site.host.name, Kind.STEP, f"{problem}: {answer.error}", code="stacks"))


def find_leftover_processes(
    link: Link, site: RemoteRunDir, run: str, *, reap: bool = False, patience: float = 30.0
) -> tuple[int, ...]:
    """Returns the ids of processes of the run that live on a host; ``reap`` ends them first. Raises `LinkError` when
    the host has not answered within ``patience`` seconds."""
    if not reap:
        mark, none = f"{paths.RUN_ENV}={run}", KINDS.write(messages.ProcessesLeft([])).decode()
        look = build_script_command("find_processes.sh", mark, f"{paths.GROUP}{run}-", none)
        if isinstance(KINDS.read(link.run(replace(look, timeout=patience)).out.strip()), messages.ProcessesLeft):
            return ()
    program = agent.build_program("remote.agent.procs").encode()  # the run's own directory may be gone by now
    role = Role.REAP if reap else Role.PROVE
    words = ("/bin/sh", "-c", f'p=$1; shift; {START_PYTHON} "$@"', "sh", site.python, "-", role, run)
    done = link.run(Command(words, stdin=program, timeout=patience, brief=True))
    if not done.ok:
        raise LinkError(Failure(site.host.name, Kind.RESIDUE, f"cannot look for processes: {done.get_tail(1)}"))
    answer = _parse_answer(link, done, "cannot look for processes", messages.ProcessesLeft)
    return tuple(process.pid for process in answer.processes)


class HostCleanup(NamedTuple):
    """Whether a process of the run was running on a host, which could not be ended, and whether its directory stays
    that was to be removed."""

    was_running: bool
    left: tuple[int, ...]
    stays: bool


def end_run_on_host(
    link: Link, site: RemoteRunDir, run: str, patience: float = 30.0, *, remove: bool = True
) -> HostCleanup:
    """Ends what is left of a run on one host, and with ``remove`` takes its directory away. Raises `LinkError`."""
    left = running = find_leftover_processes(link, site, run, patience=patience)
    if running:
        left = find_leftover_processes(link, site, run, reap=True)
    stays = remove and bool(site.directory) and (bool(left) or not remove_run_dir(link, site))
    return HostCleanup(bool(running), left, stays)


def list_runs_on_head(link: Link) -> messages.RunListing:
    """Returns the newest runs whose head the host is, and orphaned directories on it, as far as these can be a run's,
    `RUNS_LIMIT` and `ORPHANS_LIMIT` at most. Raises `LinkError`. Any agent can tell of all, but that of an old run
    may have lost its interpreter: the first that works is believed, and when none does, that is not "no runs"."""
    words = (RUNS, ROLE, AGENT, Role.LIST, KINDS.write(messages.RunListing()).decode(), AGENTS)
    command = build_script_command("list_runs.sh", *words, begins="ownership.sh")
    done = link.run(replace(command, timeout=20.0, cap=MESSAGE_LIMIT))
    listing = _parse_answer(link, done, "its runs cannot be listed", messages.RunListing)
    runs = [row for row in listing.runs if is_run_dir(row.directory, row.run)]
    orphans = [each for each in listing.orphans if is_run_dir(each.directory, each.run)]
    newest = sorted(runs, key=lambda row: row.started, reverse=True)
    return messages.RunListing(newest[:RUNS_LIMIT], orphans[:ORPHANS_LIMIT])


def read_run_description(link: Link, directory: str) -> messages.RunDescription:
    """Returns what a watcher must know of the run in this directory of its head. Raises `LinkError`, also where it is
    not that run, or none that can be."""
    problem = "the run cannot be read"
    done = link.run(build_agent_command(directory, Role.SHOW, directory))
    about = _parse_answer(link, done, problem, messages.RunDescription)
    ranks = sorted(rank for node in about.hosts.values() for rank in node.ranks)
    places = [node.directory for node in about.hosts.values()]
    if (
        about.host not in about.hosts
        or not all(map(_HOST.fullmatch, about.hosts))
        or ranks != list(range(len(ranks)))
        or len(ranks) > RANK_LIMIT
        or not about.nonce.isascii()
        or not all(is_run_dir(place, about.run) for place in (directory, *places))
    ):
        raise LinkError(Failure(link.host.name, Kind.STEP, f"{problem}: unexpected response", code="agent"))
    timings = (min(max(value, 0.001 * bool(usual)), 1e6) for value, usual in zip(about.timings, Timings(), strict=True))
    return about._replace(timings=Timings(*timings))


def _parse_answer(link: Link, done: Completed, problem: str, kind: type[T], *others: type[S]) -> T | S:
    """The agent's answer, its last line. Raises `LinkError`, which begins with ``problem``, for another than these."""
    if done.status == UNTRUSTED:
        raise make_remote_error(link, done.status, done.err)
    if done.status == paths.GONE_STATUS:
        what = f"{problem}: the run is over, and its directory is gone"
        raise LinkError(Failure(link.host.name, Kind.STEP, what, code=REMOVED))
    answer = KINDS.read((done.out.strip().splitlines() or [b""])[-1])
    kinds: tuple[type[T] | type[S], ...] = (kind, *others)
    if isinstance(answer, kinds):
        return answer
    why = f"unexpected response from the agent ({type(answer).__name__})"
    if isinstance(answer, Unreadable):
        why = done.get_tail(2) or f"status {done.status}"
    raise LinkError(Failure(link.host.name, Kind.STEP, f"{problem}: {why}", code="agent"))


_FRAME_QUEUE_LIMIT = 16  # frames that wait for who reads them, of up to a megabyte each
_RECORDS_SIZE_LIMIT = 1 << 16  # bytes of records that are read at once: a Ctrl-C waits for as long

LOST, BACK, GAVE_UP, REMOVED, SILENT = "lost", "back", "gave-up", "removed", "silent"
LAST = (frames.END, GAVE_UP, REMOVED)  # kinds behind which nothing comes


class OutputFrame(Record):
    """A piece of the run's files, of one of the kinds of `protocol.frames`; or of the follower's own about its link
    (LOST and BACK; GAVE_UP ends it, and REMOVED, where the run's directory is gone; SILENT: for so many seconds)."""

    kind: str
    data: bytes = b""


class RunFollower:
    """Reads a run's files from the head, reconnecting at the exact byte; with ``once`` only what is there now."""

    def __init__(
        self,
        context: Context,
        site: RemoteRunDir,
        *,
        once: bool = False,
        samples: bool = True,
        timings: Timings = Timings(),
    ) -> None:
        self._context = context
        self._site = site
        self._once = (frames.ONCE,) if once else ()
        self._samples = () if samples else (frames.NO_SAMPLES,)
        self._timings = timings
        # Where the next watcher would have to go on.
        self.offsets = dict.fromkeys((frames.JOURNAL, frames.OUT, frames.ERR, frames.SAMPLES), 0)
        self._frames: queue.Queue[OutputFrame] = queue.Queue(_FRAME_QUEUE_LIMIT)
        self._over = threading.Event()
        self._reader = start_thread(self._read_with_reconnects)

    def read_frame(self, timeout: float) -> OutputFrame | None:
        """Returns the next frame, or None after ``timeout`` seconds without one."""
        try:
            return self._frames.get(timeout=timeout)
        except queue.Empty:
            if self._reader.done():
                self._reader.result()  # raises a fault of ours in the thread
            return None

    def close(self) -> None:
        self._over.set()
        while not self._reader.done():
            self.read_frame(0.05)

    def _read_with_reconnects(self) -> None:
        since, pause, lost = 0.0, 0.5, False
        while not self._over.is_set():
            try:
                for frame in self._stream_frames():
                    if lost:
                        self._frames.put(OutputFrame(BACK))
                    lost, pause = False, 0.5
                    if frame.kind != frames.ALIVE:
                        self._frames.put(frame)
                    if frame.kind in LAST or self._over.is_set():
                        return
                why = "the connection ended"
            except LinkError as error:
                why = error.failure.what
            if not lost:
                self._frames.put(OutputFrame(LOST, why.encode()))
                lost, since = True, time.monotonic()
            if time.monotonic() - since > self._timings.give_up:
                self._frames.put(OutputFrame(GAVE_UP, why.encode()))
                return
            self._over.wait(pause)
            pause = min(pause * 2, 10.0)

    def _stream_frames(self) -> Iterator[OutputFrame]:
        *words, samples = map(str, self.offsets.values())
        link = self._context.links.open(self._site.host)
        more = (samples,) if self.offsets[frames.SAMPLES] else self._samples
        command = self._site.build_command(Role.WATCH, self._site.directory, *words, *self._once, *more, timeout=0)
        with link.stream(command) as channel:
            # Of its own, so that a screen that stands still does not look like a controller that is gone.
            threading.Thread(target=_send_beats, args=(channel, self._timings.beat), name="beat", daemon=True).start()
            held = bytearray()
            for piece in self._read_channel(channel):
                held += piece
                at = 0
                while True:
                    try:
                        frame, at = frames.unpack_frame(held, at)
                    except DamagedError as error:
                        what = f"unexpected response from the watcher on the head ({error})"
                        raise LinkError(Failure(self._site.host.name, Kind.STEP, what, code="malformed")) from None
                    if frame is None:
                        del held[:at]
                        break
                    if frame.kind in self.offsets:
                        self.offsets[frame.kind] = frame.offset + len(frame.data)
                    of_records = frame.kind in (frames.JOURNAL, frames.SAMPLES)
                    size = _RECORDS_SIZE_LIMIT if of_records else MESSAGE_LIMIT
                    for begin in range(0, max(len(frame.data), 1), size):
                        yield OutputFrame(frame.kind, frame.data[begin : begin + size])
            if not self._over.is_set() and channel.status() == paths.GONE_STATUS:
                yield OutputFrame(REMOVED)

    def _read_channel(self, channel: Channel) -> Iterator[bytes]:
        """Yields what the watcher on the head says, until `close`. Raises `LinkError` when it says nothing for too
        long: its host or its disk hangs, while sshd may still answer for them."""
        silent = 0.0  # not by the clock: a controller that slept has not waited
        while (pieces := channel.read(self._timings.poll)) is not None and not self._over.is_set():
            data = b"".join(piece for stream, piece in pieces if stream == "out")
            before = silent
            if data:
                silent = 0.0
            elif not pieces:
                silent += self._timings.poll
            if (before < self._timings.silent) != (silent < self._timings.silent):
                self._frames.put(OutputFrame(SILENT, b"%d" % silent))
            if data:
                yield data
            elif silent >= self._timings.quiet:
                what = f"no sign of life for {self._timings.quiet:g} s"
                raise LinkError(Failure(self._site.host.name, Kind.UNREACHABLE, what, code="lost"))


def _send_beats(channel: Channel, pause: float) -> None:
    """Tells the watcher on the head, until the channel ends, that somebody listens: it has no other way to know."""
    try:
        while True:
            channel.write(b".")
            time.sleep(pause)
    except (OSError, LinkError):
        return
