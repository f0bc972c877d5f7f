"""Those who talk to a keeper on its own host: the watcher that the controller reads, orders."""

import os
import select
import sys
import threading
import time
from contextlib import suppress
from typing import BinaryIO, Dict, List, Optional, Union

from ipexctl.protocol import frames, journal, messages, paths, rank_records, samples
from ipexctl.protocol.frames import WatchFrame, pack_frame, pack_header
from ipexctl.protocol.messages import KINDS, Message
from ipexctl.protocol.paths import Role
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.remote.agent import files, procs, rpc, spool
from ipexctl.remote.agent.keeper_state import State

PIECE = 1 << 20  # bytes of a file in one frame, at most: the controller does much of its work for each frame


def order(argv: "List[str]") -> int:
    """``tell RUNDIR MESSAGE``: an order to the keeper, as JSON; prints its status. Status 3: the keeper is gone."""
    directory, message = argv[0], KINDS.read(argv[1].encode())
    try:
        if not isinstance(message, (messages.StopRun, messages.KillRun, messages.Inspect)):
            raise ValueError("no order: %.80s" % argv[1])
        status = _ask_keeper(directory, files.read_spec(directory), message)
    except (OSError, ValueError) as error:
        print(KINDS.write(messages.AgentFailed(str(error))).decode())
        return 3
    if status:
        print(KINDS.write(status).decode())
    return 0 if status else 3


def _ask_keeper(directory: str, spec: "RunSpec", message: "Message") -> "Optional[messages.KeeperStatus]":
    """What the keeper answers; None when it does not. Raises OSError or ValueError."""
    link = _connect(directory, spec, Role.ORDER, "controller")
    link.send(message)
    answer = link.wait(spec.timings.reply)
    return answer if isinstance(answer, messages.KeeperStatus) else None


def watch(argv: "List[str]") -> int:
    """``watch RUNDIR JOURNAL OUT ERR [once] [SAMPLES|no-samples]``: what is in the run's files from these offsets on,
    in frames, until its end; with ``once`` until the files' present end. Needs no keeper. Tells once when it has sent
    all that was there when it began.

    Ends early when the controller falls silent (`_exit_when_silent`)."""
    directory, offsets = argv[0], [int(word) for word in argv[1:4]]
    spec = files.read_spec(directory)
    sink = sys.stdout.buffer
    once = argv[4:5] == [frames.ONCE]
    samples_offset = next((int(word) for word in argv[4:] if word.isdigit()), 0)
    link: Optional[rpc.Wire] = None
    if not once:
        threading.Thread(target=_exit_when_silent, args=(spec.timings.silent,), daemon=True).start()
    out, err, cap = os.path.join(directory, paths.OUT), os.path.join(directory, paths.ERR), spec.head_spec.log_cap
    tails: Dict[str, Union[_JournalTail, spool.Tail]] = {
        frames.JOURNAL: _JournalTail(os.path.join(directory, paths.JOURNAL), offsets[0]),
        frames.OUT: spool.Tail(out, cap, offsets[1]),  # of an output the oldest parts may be gone: the offset tells
        frames.ERR: spool.Tail(err, cap, offsets[2]),
    }
    if spec.timings.sample and frames.NO_SAMPLES not in argv[4:]:
        tails[frames.SAMPLES] = spool.Tail(os.path.join(directory, paths.SAMPLES), samples.CAP, samples_offset)
    ends = {kind: tail.measure_end() for kind, tail in tails.items()}
    behind = not any(offsets)  # a watcher that reconnects knows already
    written, pause = time.monotonic(), 0.02
    over = frames.NOW if once else b""
    awaited = not once  # the keeper: a watcher of a run that begins may be earlier than the file that says where it is
    while True:
        if awaited and files.read_keeper_address(directory):
            awaited = False
            with suppress(OSError, ValueError):  # over already; the files tell
                link = _connect(directory, spec, Role.WATCH, "controller")
        moved = False
        for kind, tail in tails.items():
            piece = tail.read(PIECE)
            if piece:
                # Apart: one copy of all that is large, in pages that the kernel has to clear first.
                sink.write(pack_header(WatchFrame(kind, tail.offset - len(piece), piece)))
                sink.write(piece)
                moved = True
        if behind and (not moved or all(tail.offset >= ends[kind] for kind, tail in tails.items())):
            behind = False
            sink.write(pack_frame(WatchFrame(frames.CAUGHT_UP)))
            sink.flush()
        if moved:
            sink.flush()
            written, pause = time.monotonic(), 0.02
            continue
        if over:
            sink.write(pack_frame(WatchFrame(frames.END, 0, over)))
            sink.flush()
            return 0
        over = _check_if_run_over(directory)
        if over:  # the files are read once more: what was written before the end is not missed
            continue
        if time.monotonic() - written > spec.timings.idle:
            sink.write(pack_frame(WatchFrame(frames.ALIVE)))
            sink.flush()
            written = time.monotonic()
        if link and link.open:
            if select.select([link], [], [], spec.timings.idle / 2)[0]:
                list(link.receive())  # the files have grown, or the keeper has ended
        else:
            pause = min(pause * 1.5, 0.1)
            time.sleep(pause)


def _exit_when_silent(silent: float) -> None:
    """Ends this process, however busy, when its input falls silent for so many seconds or ends.

    Of a laptop that fell asleep, or a cable that was cut, no connection tells for hours. The keeper must not take that
    for a watcher: the run may have a lease. The controller, when it is back, starts another one. A controller that
    never writes (of a version that did not) is taken to be there."""
    try:
        if not os.read(0, PIECE):
            return
        while select.select([0], [], [], silent)[0] and os.read(0, PIECE):
            pass
    except OSError:
        return  # it has no input
    os._exit(0)


def list_runs(argv: "List[str]") -> int:
    """``list BASE``: prints a `RunListing`: the runs whose head this host is, and orphaned directories."""
    base, runs, orphans = argv[0], [], []
    for name in sorted(os.listdir(base)):
        directory = os.path.join(base, name)
        try:
            spec = files.read_spec(directory)
        except (OSError, ValueError):
            if files.is_half_made(directory):
                orphans.append(messages.OrphanDirectory(name.rpartition("-h")[0], directory))
            continue
        if files.belongs_to_other_host(directory):
            continue
        if spec.head is None:
            if not files.is_fresh(directory) and not procs.find_marked(procs.format_node_mark(spec.run, spec.label)):
                orphans.append(messages.OrphanDirectory(spec.run, directory))
            continue
        state = {b"": "running", frames.ENDED: "ended"}.get(_check_if_run_over(directory), "gone")
        hosts = sorted(spec.head.hosts)
        about = (spec.run, spec.title, spec.owner, spec.started, spec.size)
        command = spec.argv[2 if spec.argv[1:2] == ["-u"] else 1 :]
        row = messages.RunRow(*about, state=state, hosts=hosts, directory=directory, command=command)
        row = row._replace(output=_read_last_output(directory, spec.nonce))
        if state == "running":
            with suppress(OSError, ValueError):
                status = _ask_keeper(directory, spec, messages.Inspect())
                if status:
                    row = row._replace(watchers=status.watchers, state=_STATES.get(status.state, state))
        elif state == "ended":
            end = journal.KINDS.from_object(files.read_json(directory, paths.END))
            if isinstance(end, journal.RunEnd):
                row = row._replace(reason=end.reason)
        if state != "gone":
            row = row._replace(seconds=_measure_seconds(directory, ended=state == "ended"))
        runs.append(row)
    print(KINDS.write(messages.RunListing(runs, orphans)).decode())
    return 0


def _measure_seconds(directory: str, ended: bool) -> float:
    """Seconds from the keeper's start to the run's end, or until now, by the clock of the file system alone, which may
    be a server's. 0.0 where a file that tells is missing."""
    keeper = os.path.join(directory, paths.KEEPER)  # written as the keeper starts
    with suppress(OSError):
        if ended:
            return max(os.path.getmtime(os.path.join(directory, paths.END)) - os.path.getmtime(keeper), 0.0)
        return max(procs.read_age(keeper), 0.0)
    return 0.0


_END_OF_OUTPUT = 1 << 16  # bytes of each output that are searched for rank 0's; all ranks share it
_LAST_OUTPUT = 1 << 11  # bytes of rank 0's that are passed on


def _read_last_output(directory: str, nonce: str) -> str:
    """The end of rank 0's standard error, where bars are, and after it of its standard output."""
    pieces = []
    for name in (paths.ERR, paths.OUT):
        end = spool.read_end(os.path.join(directory, name), _END_OF_OUTPUT)
        piece = frames.select_rank_output(end, nonce, 0).replace(b"\r", b"\n")
        pieces.append(piece if len(piece) <= _LAST_OUTPUT else piece[-_LAST_OUTPUT:].partition(b"\n")[2])
    return b"\n".join(pieces).decode("utf-8", "replace")


_STATES = {state.value: "stopping" for state in (State.STOPPING, State.KILLING, State.FINISHING)}
_STATES.update({State.GATHERING.value: "starting", State.LAUNCHING.value: "starting"})


def show(argv: "List[str]") -> int:
    """``show RUNDIR``: what a watcher must know of a run, as JSON. Never the token or the ranks' environment."""
    spec = files.read_spec(argv[0])
    about = {name: getattr(spec, name) for name in messages.RunDescription._fields if name != "hosts"}
    print(KINDS.write(messages.RunDescription(hosts=spec.head_spec.hosts, **about)).decode())
    return 0


def stacks(argv: "List[str]") -> int:
    """``stacks RUNDIR REQUEST``: requests the ranks' stacks from the keeper; prints a `RankStack` a line, then an
    `InquiryEnded`. Status 3, and `AgentFailed`, when the run does not go on or nobody answers in time."""
    directory, request = argv
    why = "its keeper did not answer in time"
    try:
        spec = files.read_spec(directory)
        path = os.path.join(directory, paths.JOURNAL)
        tail = _JournalTail(path, os.path.getsize(path))
        status = _ask_keeper(directory, spec, messages.RequestStacks(request))
        if status and status.state != State.RUNNING.value:
            why, status = "the run is %s" % _STATES.get(status.state, status.state), None
        if status and _print_stacks(directory, tail, request, 2 * spec.timings.inquiry + spec.timings.reply):
            return 0
    except (OSError, ValueError) as error:
        why = str(error)
    print(KINDS.write(messages.AgentFailed(why)).decode())
    return 3


def _print_stacks(directory: str, tail: "_JournalTail", request: str, patience: float) -> bool:
    """Prints the journal's records that answer a request; False when they do not come in time."""
    until, held, begun, over = time.monotonic() + patience, b"", False, b""
    while time.monotonic() < until:
        piece = tail.read(PIECE)
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            record = journal.KINDS.read(line)
            begun = begun or (isinstance(record, journal.StacksRequested) and record.request == request)
            if begun and isinstance(record, (rank_records.RankStack, journal.InquiryEnded)):
                print(line.decode())
            if begun and isinstance(record, journal.InquiryEnded):
                return True
        if not piece:
            if over:
                break
            over = _check_if_run_over(directory)  # before the files are read for the last time
            time.sleep(0.02)
    return False


class _JournalTail:
    """As `spool.Tail`, of one file."""

    def __init__(self, path: str, offset: int) -> None:
        self.path, self.offset = path, offset
        self.file: "Optional[BinaryIO]" = None

    def measure_end(self) -> int:
        try:
            return os.path.getsize(self.path)
        except OSError:
            return 0

    def read(self, most: int) -> bytes:
        if self.file is None:
            try:
                self.file = open(self.path, "rb", buffering=0)
            except OSError:
                return b""
            self.file.seek(self.offset)
        piece = self.file.read(most)
        self.offset += len(piece)
        return piece


def _check_if_run_over(directory: str) -> bytes:
    """b"" while the run goes on; ENDED when its final record is there; GONE when the keeper died without one."""
    if os.path.exists(os.path.join(directory, paths.END)):
        return frames.ENDED
    keeper = files.read_keeper_address(directory)
    if keeper is None:  # it is still to come, or whoever began this run is no more
        return b"" if files.is_fresh(directory) else frames.GONE
    if procs.is_still_alive(procs.Process(keeper.pid, keeper.start, 0, "")):
        return b""
    return frames.ENDED if os.path.exists(os.path.join(directory, paths.END)) else frames.GONE


def _connect(directory: str, spec: "RunSpec", role: str, name: str) -> "rpc.Wire":
    """Raises OSError."""
    keeper = files.read_keeper_address(directory)
    if keeper is None:
        raise OSError("the run has no keeper")
    return rpc.connect(keeper.address, keeper.port, spec.token, role, name, spec.timings.connect)
