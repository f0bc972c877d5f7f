"""A saved run: ``runs/<name>/`` with events, plan, report and each rank's bytes, under the run's name on its hosts.

Directories are 0700 and files 0600 from the first instant, whatever the umask. A disk that is full stops nothing: what
could not be stored is counted, reported at once and, where space returns, marked in the files."""

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ipexctl.model import events as e
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Stamped
from ipexctl.model.json_values import JsonObject, convert_json, parse_json
from ipexctl.model.reports import CommandReport, LostOutput
from ipexctl.model.text import pluralize, printable
from ipexctl.store import event_json
from ipexctl.store.private_files import (
    claim_private_directory,
    describe_error,
    open_regular_file,
    read_regular_file,
    remove_directories,
)

EVENTS, PLAN, REPORT, RANKS = "events.jsonl", "plan.txt", "report.json", "ranks"
MARK = b"\n[ipexctl: "  # begins a line in a rank's file: how many bytes are missing there, or that another run begins
_OPEN_FILES = 128  # of the ranks at once; a big cluster has more streams than a process may open files
_MERGE = 0.1  # seconds of one stream that become one reference in events.jsonl
_MERGE_BYTES = 1 << 20
_BUFFER = 1 << 15
_STACKS = 32  # files of stacks for each rank of a run, on average
_REPORT_SIZE_LIMIT = 1 << 26  # bytes
_LINE_LIMIT = 1 << 20  # bytes of a first event
PLAIN_NAME = re.compile(r"[\w-][\w.-]{,99}", re.ASCII)
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_APPEND


def _create_file(name: str, at: int) -> int:
    """A new file for us alone in the directory ``at``. Never follows a link, never opens an existing file."""
    number = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=at)
    os.fchmod(number, 0o600)
    return number


def _is_same_file(status: os.stat_result, path: Path | str, at: int | None = None) -> bool:
    """Whether the path, itself no link, leads to the file of this status."""
    try:
        return os.path.samestat(status, os.stat(path, dir_fd=at, follow_symlinks=False))
    except OSError:
        return False


def make_name(at: float) -> str:
    """Returns a name such as ``1120-103112-a3f2``, by local time, for what a command saves and the run it starts."""
    return f"{time.strftime('%m%d-%H%M%S', time.localtime(at))}-{secrets.token_hex(2)}"


def read_name(record: Path) -> str:
    """Returns the name of the run that a record is of: each further watcher of it has a record with a number."""
    return record.name.partition("~")[0]


def create_run_directory(runs: Path, name: str) -> Path:
    """Makes the directory of one saved run and returns it. ``name`` may be a host's word, which is not used where it is
    no plain name. Raises `UsageError` (exit 4) where that is not possible."""
    claim_private_directory(runs)
    name = name if PLAIN_NAME.fullmatch(name) else make_name(time.time())
    for number in range(1, 100):
        path = runs / (f"{name}~{number}" if number > 1 else name)
        try:
            for directory in (path, path / RANKS):
                directory.mkdir(mode=0o700)
                directory.chmod(0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(
                f"{printable(str(path), 400)} cannot be made: {describe_error(error)}", exit=Exit.STEP
            ) from None
        return path
    raise UsageError(f"{printable(str(runs), 400)} already holds too many records of {name}", exit=Exit.STEP)


@dataclass(slots=True)
class _File:
    """One file that only grows. What could not be written is counted (bytes of a rank, lines of events); the next that
    can be written comes after a mark."""

    name: str
    at: int  # the descriptor of its directory: a link that replaces the directory is not followed
    starts: int = 0  # of runs, when it was written to last
    size: int = 0  # bytes in the file, marks included
    lost: int = 0  # missing in all
    gap: int = 0  # of these, since the last byte that was written

    def count_lost(self, count: int) -> None:
        self.lost += count
        self.gap += count


@dataclass(slots=True)
class _Reference:
    """Where bytes of a rank lie in its file: a line of events.jsonl instead of the bytes themselves."""

    at: float
    event: e.Output
    offset: int
    length: int
    partial: bool
    lost: int

    def build_line(self) -> JsonObject:
        """The line as `event_json` writes an output, but for its data."""
        event = self.event
        line = {"at": self.at, "event": "output", "rank": event.rank, "host": event.host, "stream": event.stream}
        line |= {"offset": self.offset, "length": self.length, "partial": self.partial}
        return line | ({"lost": self.lost} if self.lost else {})


class RunRecord:
    """The sink that saves, in a new directory under ``runs``. ``trouble`` is called once per kind of write error, at
    once, with one line. Raises `UsageError` (exit 4) where nothing can be saved."""

    def __init__(self, runs: Path, name: str, trouble: Callable[[str], None] = lambda _: None) -> None:
        self.directory = create_run_directory(runs, name)
        self._trouble = trouble
        self._reported: set[str] = set()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._at, self._ranks = (os.open(path, flags) for path in (self.directory, self.directory / RANKS))
        with suppress(OSError):  # a home without locks; the kernel gives the lock back however this process ends
            fcntl.flock(self._at, fcntl.LOCK_SH | fcntl.LOCK_NB)
        self._events, self._plans = _File(EVENTS, self._at), _File(PLAN, self._at)
        self._files: dict[tuple[int, str], _File] = {}
        self._open: OrderedDict[str, int] = OrderedDict()  # descriptors by the file's name
        self._waiting: dict[tuple[int, str], _Reference] = {}  # to merge, in order of their first byte
        self._run, self._starts = "", 0  # that goes on, and how many were started
        self._stacks: dict[str, None] = {}  # names of files, the newest at the end
        self._room = 4 * _STACKS  # for them
        self._since = 0.0
        self._buffer = bytearray()
        self._documents_lost: list[str] = []
        self._closed = False

    def handle_event(self, stamped: Stamped) -> None:
        event = stamped.event
        if type(event) is e.Output:
            self._record_output(stamped.at, event)
            return
        self._write_references()
        if isinstance(event, e.Planned):
            self._append_plan(event.verb, event.text)
        if isinstance(event, e.RankStack) and event.text:
            self._write_stack(event)
        if isinstance(event, e.RunStarted):
            self._run, self._starts, self._room = event.run, self._starts + 1, _STACKS * max(len(event.ranks), 4)
        self._append_event_line(event_json.encode_event(stamped))
        if not isinstance(event, e.Progress):
            self._flush_events()

    def close(self, report: CommandReport | None = None) -> None:
        """Ends the record: writes ``report.json``, old or new, never half. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._write_references()
        self._flush_events()
        if self._events.gap and self._append_whole(self._events, self._format_gap_line()):
            self._events.gap = 0
        for file in self._files.values():
            self._append_gap_mark(file)
        if report is not None:
            self.write_document(REPORT, "".join(event_json.format_document(report)).encode() + b"\n")
        for number in (*self._open.values(), self._at, self._ranks):
            os.close(number)

    def count_lost_output(self) -> LostOutput | None:
        """What could not be stored, or was and is gone; None when everything is there."""
        ranks: dict[str, int] = {}
        for (rank, _), file in self._files.items():
            if lost := file.lost + (0 if self._closed or self._is_intact(file) else file.size):
                ranks[str(rank)] = ranks.get(str(rank), 0) + lost
        if not (ranks or self._events.lost or self._documents_lost):
            return None
        why = ", ".join(sorted(self._reported))
        return LostOutput(sum(ranks.values()), ranks, self._events.lost, tuple(self._documents_lost), why)

    def _record_output(self, at: float, event: e.Output) -> None:
        key = (event.rank, event.stream)
        file = self._files.setdefault(key, _File(f"{event.rank}.{event.stream}", self._ranks, self._starts))
        self._append_gap_mark(file)
        self._mark_next_run(file)
        offset, data = file.size, event.data
        lost = len(data) - (0 if file.gap else self._append(file, data))
        file.count_lost(lost)
        waiting = self._waiting.get(key)
        # What is partial may be a state of a bar: those stay apart.
        apart = waiting is None or lost or waiting.lost or waiting.partial or event.partial
        if waiting and not apart and waiting.offset + waiting.length == offset and waiting.length < _MERGE_BYTES:
            waiting.length += len(data)
        else:
            if waiting is not None:
                self._write_references()
            if not self._waiting:
                self._since = at
            self._waiting[key] = _Reference(at, event, offset, len(data) - lost, event.partial, lost)
        if not 0 <= at - self._since < _MERGE:
            self._write_references()

    def _is_intact(self, file: _File) -> bool:
        """Whether a rank's bytes are still where the record has them."""
        try:
            self._open_descriptor(file)
        except OSError as error:
            self._report_error(error)
            return False
        if not (whole := _is_same_file(os.fstat(self._ranks), self.directory / RANKS)):
            self._report_once(f"{RANKS} was replaced")
        return whole

    def _append(self, file: _File, data: bytes) -> int:
        """Returns how many bytes reached the file."""
        done = 0
        try:
            number = self._open_descriptor(file)
            view = memoryview(data)
            while done < len(data):
                done += os.write(number, view[done:])
        except OSError as error:
            self._report_error(error)
        file.size += done
        return done

    def _append_whole(self, file: _File, data: bytes) -> bool:
        """All of the bytes, or none: what did not fit is cut off again."""
        before = file.size
        if self._append(file, data) == len(data):
            return True
        file.size = before
        try:
            os.ftruncate(self._open_descriptor(file), before)
        except OSError as error:
            self._report_error(error)
        return False

    def _open_descriptor(self, file: _File) -> int:
        if file.name not in self._open:
            while len(self._open) >= _OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            try:
                number = os.open(file.name, _FLAGS, dir_fd=file.at) if file.size or file.lost else -1
            except FileNotFoundError:
                number = -1
            number = number if number >= 0 else _create_file(file.name, file.at)
            self._open[file.name] = number
        self._open.move_to_end(file.name)
        status = os.fstat(self._open[file.name])
        if status.st_size < file.size:  # somebody truncated it, or removed it while it was not open
            file.count_lost(file.size - status.st_size)
            file.size = status.st_size
            self._report_once(f"{file.name} was truncated")
        if not _is_same_file(status, file.name, file.at):
            self._restore_file(file)
        return self._open[file.name]

    def _restore_file(self, file: _File) -> None:
        """Writes a file that was removed or replaced again; its descriptor still has the bytes."""
        name = f".{file.name}.{secrets.token_hex(4)}"
        number = _create_file(name, file.at)
        try:
            with open(self._open[file.name], "rb", closefd=False) as old, open(number, "wb", closefd=False) as new:
                old.seek(0)
                shutil.copyfileobj(old, new)
            os.rename(name, file.name, src_dir_fd=file.at, dst_dir_fd=file.at)
        except OSError:
            os.close(number)
            os.unlink(name, dir_fd=file.at)
            raise
        os.close(self._open[file.name])
        self._open[file.name] = number
        self._report_once(f"{file.name} was removed or replaced; it is written again")

    def _append_gap_mark(self, file: _File) -> None:
        """A line in a rank's file where bytes are missing."""
        if file.gap:
            mark = MARK + f"{pluralize(file.gap, 'byte')} missing here: not stored]\n".encode()
            file.gap = 0 if self._append_whole(file, mark) else file.gap

    def _mark_next_run(self, file: _File) -> None:
        """A line in a rank's file where another run of this command goes on: it was started again, or a playbook has
        two. The last line before may have no end."""
        if file.starts != self._starts:
            self._append_whole(file, MARK + f"{self._run} begins here]\n".encode())
            file.starts = self._starts

    def _write_stack(self, event: e.RankStack) -> None:
        """A file for each process, the newest ones where a host tells of more than a run has."""
        name = f"stacks-{event.rank}-{event.pid}.txt"
        self._stacks.pop(name, None)
        self._stacks[name] = None
        if len(self._stacks) > self._room:
            oldest = next(iter(self._stacks))
            del self._stacks[oldest]
            with suppress(OSError):
                os.unlink(oldest, dir_fd=self._at)
        self.write_document(name, event.text.encode("utf-8", "replace"))

    def _write_references(self) -> None:
        """References that waited for their continuation are written."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for reference in waiting.values():
                self._append_event_line(reference.build_line())

    def _append_event_line(self, line: JsonObject) -> None:
        self._buffer += event_json.dump_ascii_json(line).encode() + b"\n"
        if len(self._buffer) >= _BUFFER:
            self._flush_events()

    def _flush_events(self) -> None:
        """Whole lines only: what did not fit is counted."""
        if not self._buffer:
            return
        data, self._buffer = bytes(self._buffer), bytearray()
        if self._append_whole(self._events, self._format_gap_line() + data):
            self._events.gap = 0
        else:
            self._events.count_lost(data.count(b"\n"))

    def _format_gap_line(self) -> bytes:
        gap = self._events.gap
        return event_json.dump_ascii_json({"event": "gap", "lines": gap}).encode() + b"\n" if gap else b""

    def _append_plan(self, verb: str, text: str) -> None:
        """A playbook has several plans: each after the first comes under its verb's name."""
        heading = f"\n# {verb}\n" if self._plans.size else ""
        text = f"{heading}{text}" if text.endswith("\n") else f"{heading}{text}\n"
        if not self._append_whole(self._plans, text.encode("utf-8", "surrogateescape")):
            self._documents_lost.append(PLAN)

    def write_document(self, name: str, data: bytes) -> None:
        """Writes a file of the record, old or new, never half."""
        new = f".{name}.{secrets.token_hex(4)}"
        try:
            with os.fdopen(_create_file(new, self._at), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(new, name, src_dir_fd=self._at, dst_dir_fd=self._at)
        except OSError as error:
            self._report_error(error)
            self._documents_lost.append(name)
            with suppress(OSError):
                os.unlink(new, dir_fd=self._at)

    def _report_error(self, error: OSError) -> None:
        more = ": free some space, missing bytes are counted" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        self._report_once(describe_error(error), f"cannot be written{{}}: {{}}{more}")

    def _report_once(self, why: str, text: str = "was changed by another program{}: {}") -> None:
        if why not in self._reported:
            self._reported.add(why)
            self._trouble("the run's record " + text.format(f" in {printable(str(self.directory), 400)}", why))


def list_saved_runs(runs: Path) -> list[Path]:
    """The saved runs, that which was written to last at the end; of a run with several watchers, the last one's
    record. Nothing but directories with an ``events.jsonl`` counts."""
    try:
        paths = [*runs.iterdir()]
    except OSError:
        return []
    records: list[tuple[float, str]] = []
    for path in paths:
        with suppress(OSError):  # which another command removes meanwhile
            status = (path / EVENTS).stat()
            if stat.S_ISREG(status.st_mode) and not path.is_symlink():
                records.append((status.st_mtime, path.name))
    newest: dict[str, Path] = {}
    for _, name in sorted(records, reverse=True):
        newest.setdefault(read_name(runs / name), runs / name)
    return [*newest.values()][::-1]


def remove_record(record: Path) -> None:
    """Removes all that is saved of a run; links in it are removed, not followed. Raises `OSError`."""
    remove_directories(_list_records_of_run(record))


def is_record_in_use(record: Path) -> bool:
    """Returns whether another process holds a record of this run: each of its watchers has its own."""
    return any(map(is_directory_in_use, _list_records_of_run(record)))


def _list_records_of_run(record: Path) -> list[Path]:
    return [each for each in record.parent.iterdir() if read_name(each) == read_name(record)]


def is_directory_in_use(directory: Path) -> bool:
    """Whether another process holds this directory, a record or a like one, or it is not ours to remove: a link, or
    another user's."""
    try:
        number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        if os.fstat(number).st_uid != os.geteuid():
            return True
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a home without locks
        return False
    finally:
        os.close(number)
    return False


def read_report(directory: Path) -> CommandReport | None:
    """The report of a saved run; None while it goes on, and of one that is damaged."""
    try:
        data = read_regular_file(directory / REPORT, _REPORT_SIZE_LIMIT)
        if b"\\ud" in data:  # of bytes that are no UTF-8, as a script's name may have them: msgspec refuses these
            report = convert_json(CommandReport, event_json.read_line(data))
        else:
            report = parse_json(CommandReport, data)
    except (OSError, ValueError):
        return None
    run = report.run
    named = {run.first, *run.followers, *run.stopped, *run.suspects} if run else set()
    return report if not run or named <= {None, *(rank.rank for rank in run.ranks)} else None


def read_selection_flags(directory: Path) -> tuple[str, ...]:
    """The options that chose the hosts of a saved command; none of one that has no hosts, or is damaged."""
    with suppress(OSError, ValueError), open_regular_file(directory / EVENTS) as file:
        event = event_json.decode_event(event_json.read_line(file.readline(_LINE_LIMIT))).event
        return event.selection_flags if isinstance(event, e.Started) else ()
    return ()


def prune_records(runs: Path, keep: int, spare: Iterable[Path] = ()) -> None:
    """Removes the oldest finished records until ``keep`` are left.

    A record without a report may belong to a command that is still going on: it stays. Every command that acts waits
    for this, so that reports are not read."""
    spared = {path.resolve() for path in spare}
    every = list_saved_runs(runs)
    for path in every[: max(len(every) - keep, 0)]:
        if path.resolve() not in spared and (path / REPORT).is_file() and not is_record_in_use(path):
            with suppress(OSError):
                remove_record(path)
