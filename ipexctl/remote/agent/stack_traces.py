"""What the ranks on this host are doing: how busy they are, and where their programs stand.

A rank's Python answers `STACKS_REQUEST`, or `STACKS_SIGNAL` while it waits in C code with its lock, by writing the
stacks of all its threads to ``ranks/<rank>.stacks`` (sitecustomize's faulthandler). Of a process that does not answer,
as it is stopped or closed that file, the kernel state must do."""

import json
import os
import time
from contextlib import suppress
from typing import Dict, Iterator, List, Tuple

from ipexctl.protocol import hooks
from ipexctl.protocol.rank_records import RankStack
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.remote.agent import files, procs

PROCESS_LIMIT = 8  # processes of one rank that are asked
QUIET_SECONDS = 0.2  # seconds without growth after which stacks are complete


def measure_loads(wrappers: "Dict[int, procs.Process]") -> "Dict[int, Tuple[float, str]]":
    """Rank → (CPU seconds of all its processes, state). One that is stopped or waits for a disk speaks for its rank."""
    all_now = procs.list_processes()
    loads: Dict[int, Tuple[float, str]] = {}
    for rank, wrapper in wrappers.items():
        family = [all_now[pid] for pid in procs.find_descendants(wrapper.pid, all_now)]
        states = [process.state for process in family]
        odd = [state for state in states if state in "TtD"]
        loads[rank] = (sum(process.seconds for process in family), (odd + states + ["?"])[0])
    return loads


def collect_stacks(
    directory: str, wrappers: "Dict[int, procs.Process]", spec: "RunSpec", heard: float
) -> "Iterator[RankStack]":
    """Where each rank's processes stand. Takes about a third of the node lease at most, and ends with the one of the
    guard that was ``heard`` last then: it is deaf meanwhile."""
    lease = spec.timings.node_lease
    until = min(time.monotonic() + lease / 3, heard + lease)
    all_now = procs.list_processes()
    todo: List[Tuple[int, int, str]] = []
    for rank, wrapper in sorted(wrappers.items()):
        path = os.path.join(directory, hooks.RANKS, "%d%s" % (rank, hooks.STACKS))
        family = procs.find_descendants(wrapper.pid, all_now)  # the script itself first
        answering = [pid for pid in family if has_file_open(pid, path)][:PROCESS_LIMIT]
        todo += [(rank, pid, path) for pid in answering or family[:1]]
    before = {path: _get_size(path) for _, _, path in todo}
    asked: Dict[str, int] = {}
    texts: Dict[int, str] = {}
    rounds = max([sum(1 for other in todo if other[2] == path) for path in before] or [0])
    for turn in range(rounds):  # one process of each rank at a time: those of a rank share a file
        if time.monotonic() > until:
            break
        for path in before:
            mine = [pid for _, pid, where in todo if where == path]
            if turn < len(mine) and all_now[mine[turn]].state not in "Tt" and has_file_open(mine[turn], path):
                asked[path] = mine[turn]
        grouped = {path: pid for path, pid in asked.items() if _ask_for_collectives(path, pid)}
        patience, limit = spec.timings.stacks, (time.monotonic() + until) / 2
        # Who holds Python's lock does not answer this, and must have time for the signal.
        collectives = _collect_answers(before, grouped, patience, min(limit, time.monotonic() + patience))
        for path, text in _ask_for_stacks(before, asked, patience, until).items():
            texts[asked.pop(path)] = collectives.get(path, "") + text
    killed = procs.list_killed_children()
    for rank, pid, path in todo:
        text = texts.get(pid, "") + _read_errors(path, pid, killed.get(pid, [])[:PROCESS_LIMIT])
        state = all_now[pid].state if procs.find_process(pid) else "X"  # before it was asked, which wakes it
        state = hooks.OVER if state in "RS" and _is_python_over(pid) else state
        wchan = procs.read_file("/proc/%d/wchan" % pid).decode("utf-8", "replace").strip()  # 0: it does not wait
        yield RankStack(rank, spec.host, pid, state, "" if wchan == "0" else wchan, text, time.time())


def _read_errors(path: str, pid: int, killed: "List[Tuple[int, int]]") -> str:
    """Returns a line for each uncaught exception of a living process: in its main thread, in another one; and for each
    of its ``killed`` children, whose work, as by a queue, others of it may wait for, for ever."""
    lines = ""
    for child, number in killed:
        error = {"error": "ChildProcessError: killed by signal %d" % number, "thread": "process %d" % child}
        lines += "\n%s%s\n" % (hooks.RAISED, json.dumps(error))
    for ending in (hooks.ERROR, hooks.THREAD_ERROR):
        with suppress(OSError, ValueError):
            record = files.read_json("/", "%s.%d%s" % (path[: -len(hooks.STACKS)], pid, ending), files.RANK_LIMIT)
            record.pop("argv", None)
            lines += "\n%s%s\n" % (hooks.RAISED, json.dumps(record))
    return lines


def _ask_for_stacks(
    before: "Dict[str, int]", asked: "Dict[str, int]", patience: float, until: float
) -> "Dict[str, str]":
    """Returns what the processes append to their files: each is asked at once if it did not answer the request."""
    texts = dict.fromkeys(asked, "")
    for number, field in ((hooks.STACKS_REQUEST, b"SigIgn:"), (hooks.STACKS_SIGNAL, b"SigCgt:")):
        silent = {path: pid for path, pid in asked.items() if not texts[path]}
        for path, pid in list(silent.items()):
            if not has_file_open(pid, path) or not has_signal(pid, field, number):  # it may have ended meanwhile
                del silent[path]
                continue
            with suppress(OSError):
                os.kill(pid, number)
        texts.update(_collect_answers(before, silent, patience, (time.monotonic() + until) / 2))
    return texts


def _ask_for_collectives(path: str, pid: int) -> bool:
    """Whether a thread of the process waits to be asked (`_ipexctl_collectives`)."""
    try:
        os.close(os.open("%s.%d%s" % (path[: -len(hooks.STACKS)], pid, hooks.ASK), os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _collect_answers(
    before: "Dict[str, int]", asked: "Dict[str, int]", patience: float, until: float
) -> "Dict[str, str]":
    """Returns what was appended to the files, once they grow no more. Moves ``before`` on. A process that writes
    nothing is given up after ``patience`` seconds; one that waits for a core, at ``until``."""
    sizes = {path: before[path] for path in asked}
    begun = grown = time.monotonic()
    while asked and time.monotonic() < until:
        time.sleep(0.05)
        now, sizes_before = time.monotonic(), sizes
        sizes = {path: _get_size(path) for path in asked}
        if sizes != sizes_before:
            grown = now
        silent = [pid for path, pid in asked.items() if sizes[path] == before[path]]
        processes = (procs.find_process(pid) for pid in silent)
        waited_for = silent and (now - begun < patience or any(each and each.state == "R" for each in processes))
        if not waited_for and now - grown > QUIET_SECONDS:
            break
    texts: Dict[str, str] = {}
    for path in asked:
        # The main thread is the last one.
        texts[path] = procs.read_tail(path, hooks.STACK_LIMIT, before[path]).decode("utf-8", "replace")
        before[path] = _get_size(path)
    return texts


def has_file_open(pid: int, path: str) -> bool:
    """Whether the process still holds the file its handler writes to. (Sent to others, the signal would end them.)"""
    try:
        wanted = os.path.realpath(path)
        held = any(os.readlink("/proc/%d/fd/%s" % (pid, fd)) == wanted for fd in os.listdir("/proc/%d/fd" % pid))
    except OSError:
        return False
    return held and has_signal(pid, b"SigCgt:", hooks.STACKS_SIGNAL)


def has_signal(pid: int, field: bytes, number: int) -> bool:
    """Whether a signal is in a set of the process (proc(5): status)."""
    for line in procs.read_file("/proc/%d/status" % pid).splitlines():
        if line.startswith(field):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _is_python_over(pid: int) -> bool:
    """Whether its Python has been taken down: faulthandler's handler is gone then, what our hooks ignore still is."""
    try:
        python = "python" in os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return False
    ignores = has_signal(pid, b"SigIgn:", hooks.STACKS_REQUEST)
    return python and ignores and not has_signal(pid, b"SigCgt:", hooks.STACKS_SIGNAL)


def _get_size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
