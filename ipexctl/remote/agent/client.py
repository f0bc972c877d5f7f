"""Those who ask a keeper on its own host, for the controller: orders, stacks, and what runs there are."""

import os
import time
from contextlib import suppress
from typing import List, Optional, Set

from ipexctl.protocol import frames, hooks, journal, messages, paths, rank_records
from ipexctl.protocol.messages import KINDS, Message
from ipexctl.protocol.paths import Role
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.remote.agent import files, procs, spool
from ipexctl.remote.agent.keeper_state import BEFORE_THE_END, RunPhase
from ipexctl.remote.agent.watcher import PIECE, JournalTail, check_if_run_over, connect

ORDERS = (messages.StopRun, messages.KillRun, messages.Inspect, messages.RequestStacks, messages.Vote)


def order(argv: "List[str]") -> int:
    """``tell RUNDIR MESSAGE``: an order to the keeper, as JSON; prints its status. Status 3: the keeper is gone."""
    directory, message = argv[0], KINDS.read(argv[1].encode())
    try:
        if not isinstance(message, ORDERS):
            raise ValueError("no order: %.80s" % argv[1])
        status = _ask_keeper(directory, files.read_spec(directory), message)
    except (OSError, ValueError) as error:
        print(KINDS.write(messages.AgentFailed(str(error))).decode())
        return 3
    if status:
        print(KINDS.write(status).decode())
    return 0 if status else 3


def _ask_keeper(directory: str, spec: "RunSpec", message: "Message") -> "Optional[messages.KeeperStatus]":
    """Returns what the keeper answers; None when it does not. Raises OSError or ValueError."""
    link = connect(directory, spec, Role.ORDER, paths.CONTROLLER)
    link.send(message)
    answer = link.wait(spec.timings.reply)
    return answer if isinstance(answer, messages.KeeperStatus) else None


def list_runs(argv: "List[str]") -> int:
    """``list BASE``: prints a `RunListing`: the runs whose head this host is, and orphaned directories."""
    base, runs, orphans = argv[0], [], []
    living = {procs.read_run(pid) for pid in procs.list_processes() if pid != os.getpid()}
    for name in sorted(os.listdir(base)):
        directory = os.path.join(base, name)
        try:
            if os.lstat(directory).st_uid != os.getuid():
                continue
            spec = files.read_spec(directory)
        except (OSError, ValueError):
            if files.is_half_made(directory):
                orphans.append(messages.OrphanDirectory(name.rpartition("-h")[0], directory))
            continue
        if files.belongs_to_other_host(directory):
            continue
        if spec.head is None:
            lives = spec.run in living
            if not lives and not files.is_fresh(directory):
                orphans.append(messages.OrphanDirectory(spec.run, directory))
            if not lives or len(spec.leaders) < 2:
                continue
            state, nodes = "leaderless", spec.reserve.hosts if spec.reserve else {}
        else:
            state = {b"": "running", frames.ENDED: "ended"}.get(check_if_run_over(directory), "gone")
            nodes = spec.head.hosts
        hosts = sorted(host for host, node in nodes.items() if node.ranks) or [spec.host]
        about = (spec.run, spec.title, spec.owner, spec.started, spec.size, state, hosts, directory)
        row = messages.RunRow(*about, command=spec.command, restarts=spec.restarts, lease=spec.timings.node_lease)
        ready = _count_ready(directory) if spec.ready else -1
        row = row._replace(output=_read_last_output(directory, spec.nonce), ready=ready, workdir=spec.workdir)
        if state == "running":
            with suppress(OSError, ValueError):
                status = _ask_keeper(directory, spec, messages.Inspect())
                if status:
                    row = row._replace(watchers=status.watchers, state=_STATES.get(status.state, state))
                    row = row._replace(restart=status.restart)
        elif state == "ended":
            end = journal.KINDS.from_object(files.read_json(directory, paths.END))
            if isinstance(end, journal.RunEnd):
                row = row._replace(reason=end.reason, restart=end.restart)
        if state != "gone":
            row = row._replace(seconds=_measure_seconds(directory, ended=state == "ended"))
        runs.append(row)
    print(KINDS.write(messages.RunListing(runs, orphans)).decode())
    return 0


def _measure_seconds(directory: str, ended: bool) -> float:
    """Returns seconds from the run's start to its end, or until now, by the clock of the file system alone,
    which may be a server's. 0.0 where a file that tells is missing."""
    begun = os.path.join(directory, paths.OWNER)  # written once; where the keeper listens is written again and again
    with suppress(OSError):
        if ended:
            return max(os.path.getmtime(os.path.join(directory, paths.END)) - os.path.getmtime(begun), 0.0)
        return max(procs.read_age(begun), 0.0)
    return 0.0


def _count_ready(directory: str) -> int:
    ready: "Set[int]" = set()
    with suppress(OSError, ValueError), open(os.path.join(directory, paths.JOURNAL), "rb") as lines:
        for line in lines:
            if b'"Launched"' in line:  # of another attempt
                ready.clear()
            elif b'"ready"' in line:
                record = journal.KINDS.read(line)
                if isinstance(record, rank_records.RankStage) and record.stage == hooks.READY:
                    ready.add(record.rank)
    return len(ready)


_END_OF_OUTPUT = 1 << 16  # bytes of the output that are searched for rank 0's; all ranks share it
_LAST_OUTPUT = 1 << 11  # bytes of rank 0's that are passed on


def _read_last_output(directory: str, nonce: str) -> str:
    """Returns the end of rank 0's standard error, where bars are, and after it of its standard output."""
    end, pieces = spool.read_end(os.path.join(directory, paths.OUT), _END_OF_OUTPUT), []
    for stream in (frames.ERR, frames.OUT):
        piece = frames.select_rank_output(end, nonce, 0, stream).replace(b"\r", b"\n")
        pieces.append(piece if len(piece) <= _LAST_OUTPUT else piece[-_LAST_OUTPUT:].partition(b"\n")[2])
    return b"\n".join(pieces).decode("utf-8", "replace")


_STATES = {state.value: "stopping" for state in (RunPhase.STOPPING, RunPhase.KILLING, RunPhase.FINISHING)}
_STATES.update({state.value: "starting" for state in BEFORE_THE_END if state is not RunPhase.RUNNING})
_STATES["waiting"] = "waiting"
_STATES[RunPhase.RESTING.value] = "restarting"


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
        tail = JournalTail(path, os.path.getsize(path))
        status = _ask_keeper(directory, spec, messages.RequestStacks(request))
        if status and status.state != RunPhase.RUNNING.value:
            why, status = "the run is %s" % _STATES.get(status.state, status.state), None
        if status and _print_stacks(directory, tail, request, 2 * spec.timings.inquiry + spec.timings.reply):
            return 0
    except (OSError, ValueError) as error:
        why = str(error)
    print(KINDS.write(messages.AgentFailed(why)).decode())
    return 3


def _print_stacks(directory: str, tail: "JournalTail", request: str, patience: float) -> bool:
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
            over = check_if_run_over(directory)  # before the files are read for the last time
            time.sleep(0.02)
    return False
