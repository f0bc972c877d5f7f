"""Why a rank died, as far as its host can tell: its own last words, its fatal signal's stacks, the kernel's log."""

import os
import re
import signal
from contextlib import suppress
from typing import Any, Dict

from ipexctl.protocol.hooks import ERROR, RANKS, STACKS, THREAD_ERROR
from ipexctl.protocol.rank_records import Memory, RankEnded
from ipexctl.remote.agent import files, procs

CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
TRACEBACK_LIMIT, ERROR_LIMIT, LINE_LIMIT = 20100, 2100, 4200  # letters kept: what the rank's own Python has cut is less
DIRECT_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"  # Python's words
HANDLED = "\nDuring handling of the above exception, another exception occurred:\n\n"
KERNEL_LINES = 5000  # of the kernel's log that are read


class KernelLog:
    """The kernel's log from now on. Silent where it may not be read (most accounts; most containers)."""

    def __init__(self) -> None:
        self.fd = -1
        with suppress(OSError):
            self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self.fd, 0, os.SEEK_END)

    def find_death_line(self, pid: int) -> str:
        """Returns the last line that names this process with a cause of death."""
        about = re.compile(r"Killed process %d |\[%d\]: segfault|\[%d\] (?:trap|general prot)" % (pid, pid, pid))
        last_line = ""
        for _ in range(KERNEL_LINES if self.fd >= 0 else 0):
            try:
                line = os.read(self.fd, 8192).decode("utf-8", "replace")
            except BrokenPipeError:
                continue  # older records were overwritten
            except OSError:
                break
            if about.search(line):
                last_line = line.split(";", 1)[-1].strip()[:400]
        return last_line


def describe_rank_death(directory: str, end: RankEnded, pid: int, kernel: KernelLog, elastic: str) -> RankEnded:
    """Returns the rank's end with its exception, its stacks and the line of the kernel's log that tell of it, each ""
    if there is none. ``elastic`` is $TORCHELASTIC_ERROR_FILE. What was raised in another process of the rank than
    `pid`, its script, may have been handled there. So it counts only where nothing else tells, never after a signal."""
    base = os.path.join(directory, RANKS, "%d" % end.rank)
    exceptions = _read_uncaught_exceptions(base)
    of_helper = {} if end.signal else next((each for each in exceptions.values() if "error" in each), {})
    of_helper = _follow_children(exceptions, of_helper)
    own = _follow_children(exceptions, exceptions.get(pid, {}))
    own = {} if own.get("status") == 0 else own  # what ended it came later
    report = own if "error" in own else _read_elastic_error(elastic) or of_helper
    trace = str(report.get("traceback", ""))
    if report.get("lost"):  # a process that it waited for, whose end says why
        causes = [each for number, each in exceptions.items() if number != pid and "error" in each]
        if causes:
            trace = str(causes[0].get("traceback", "")) + DIRECT_CAUSE + trace.rpartition(HANDLED)[2]
    trace = trace[-TRACEBACK_LIMIT:]
    if end.signal in CRASHES and not trace:  # torch's threads may abort at the exit after an exception
        stacks = procs.read_tail(base + STACKS, TRACEBACK_LIMIT).decode("utf-8", "replace")
        _, fatal, stacks = stacks.rpartition("Fatal Python error")  # so begin faulthandler's last words
        trace = fatal and fatal + stacks
    line = kernel.find_death_line(pid) if end.signal else ""
    if "Killed process" in line and not end.oom:  # in another control group than its wrapper's, which counts its own
        end = end._replace(oom=Memory())
    raised = own.get("at")
    cut_short = end.stopped and end.signal in (signal.SIGTERM, signal.SIGKILL)  # while Python was ending
    if isinstance(raised, float) and cut_short:
        end = end._replace(lingered=max(end.at - raised, 0.0))
    status = own.get("status")  # of a script that had asked to end so
    if isinstance(status, int) and end.status != 0:
        at = own.get("at", end.at)  # its process lives on, and may be killed
        end = end._replace(status=status & 0xFF, signal=0, abort=None, exited=True, at=at)
    if isinstance(raised, float):
        end = end._replace(raised=raised)
        if cut_short and end.signal:
            end = end._replace(status=1, signal=0, at=raised)
    room, observed = (tuple(report.get(name) or ()) for name in ("room", "observed"))
    exit_line = str(exceptions.get(pid, {}).get("exit_line", ""))[:LINE_LIMIT]
    end = end._replace(room=room if len(room) == 2 else None, exit_line=exit_line)
    if len(observed) == 2:
        end = end._replace(observed=(str(observed[0]), str(observed[1])[:ERROR_LIMIT]))
    return end._replace(error=str(report.get("error", ""))[:ERROR_LIMIT], traceback=trace, kernel=line)


def describe_good_end(directory: str, end: RankEnded, pid: int) -> RankEnded:
    """Returns the end of a rank whose script `pid` ended well with where that called ``sys.exit``, and with the
    exception of another process of it that had met other ranks (a shell script, say, looks at no status), or of a task
    of which nobody asked for the result."""
    base = os.path.join(directory, RANKS, "%d" % end.rank)
    exceptions = _read_uncaught_exceptions(base)
    lost = [*exceptions.values(), *_read_uncaught_exceptions(base, THREAD_ERROR).values()]
    unheard = next((each for each in lost if each.get("grouped") and "error" in each), {})
    error, trace = str(unheard.get("error", ""))[:ERROR_LIMIT], str(unheard.get("traceback", ""))[-TRACEBACK_LIMIT:]
    exit_line = str(exceptions.get(pid, {}).get("exit_line", ""))[:LINE_LIMIT]
    return end._replace(exit_line=exit_line, error=error, traceback=trace)


def _read_uncaught_exceptions(base: str, ending: str = ERROR) -> "Dict[int, Dict[str, Any]]":
    """The rank's processes with an exception that nobody caught, the latest first: what sitecustomize kept of it."""
    import glob  # each wrapper would pay for it

    exceptions = {}
    names = glob.glob(glob.escape(base) + ".*" + ending)
    with suppress(OSError):  # the oldest may go meanwhile
        names.sort(key=os.path.getmtime, reverse=True)
    for path in names:
        with suppress(OSError, ValueError):
            exceptions[int(path.split(".")[-2])] = files.read_json("/", path, files.RANK_LIMIT)
    return exceptions


def _follow_children(exceptions: "Dict[int, Dict[str, Any]]", own: "Dict[str, Any]") -> "Dict[str, Any]":
    """Returns what ended a process: its exception; or, where that only says that a command or a child failed (as the
    launchers of Accelerate and torch do of the user's script, in scripts that start them, too), theirs."""
    for _ in exceptions:  # each once at most
        own = exceptions.get(own.get("child", 0), own)
        own = next((other for other in exceptions.values() if "of" in own and other.get("argv") == own["of"]), own)
    return own


def _read_elastic_error(path: str) -> "Dict[str, Any]":
    """Returns the error file that torch's ``@record`` writes."""
    try:
        value: Any = files.read_json("/", path, files.RANK_LIMIT)["message"]
    except (OSError, ValueError, KeyError):
        return {}
    if not isinstance(value, dict):
        return {"error": value}
    extra: Any = value.get("extraInfo")
    trace = extra.get("py_callstack", "") if isinstance(extra, dict) else ""
    return {"error": value.get("message", ""), "traceback": trace}
