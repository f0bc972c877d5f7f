"""Reading a saved run back as the events that made it: any sink shows it again."""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ipexctl.act.inputs import expand_home
from ipexctl.model import events as e
from ipexctl.model.errors import Exit, UsageError, advise
from ipexctl.model.events import Stamped
from ipexctl.model.json_values import JsonObject
from ipexctl.model.text import pluralize
from ipexctl.protocol.codec import MESSAGE_LIMIT
from ipexctl.show.sanitise import escape
from ipexctl.store import event_json
from ipexctl.store.masking import Masker
from ipexctl.store.private_files import open_regular_file
from ipexctl.store.record import EVENTS, MARK, RANKS, list_saved_runs, read_name, read_report

_OUTPUT_EVENT_SIZE = 1 << 16  # bytes of a rank's output in one event
_LINE_LIMIT = 1 << 25  # bytes: an answer of a thousand hosts is one
_UNBOUNDED = frozenset(("planned", "answer"))  # events; others come from hosts, and are no longer than their messages
_FILE_SIZE_LIMIT = 1 << 62  # bytes: what is read behind them has numbers of 63 bits, too
_READINGS_LIMIT = 4  # of each byte of a rank's file, on average: what was truncated meanwhile is referred to again


def find_saved_run(runs: Path, word: str, *, with_ranks: bool = False) -> Path:
    """The saved run named by ``word``: ``last`` (``with_ranks``: the last one that started ranks, if there is one), a
    name, a path, or the beginning or the last part of a name. What somebody puts into the current directory does not
    take the place of a run that is saved here. Raises `UsageError` when none matches, or several do."""
    path, is_own = expand_home(word), word == "last" or ("/" not in word and (runs / word / EVENTS).is_file())
    if not is_own and (path / EVENTS).is_file():
        return path
    every = list_saved_runs(runs)
    if not every:
        raise UsageError(f"no run is saved in {escape(str(runs))}")
    if word == "last":
        trained = (run for run in reversed(every) if any(read_run_ids(run)))
        return next(trained, every[-1]) if with_ranks else every[-1]
    if "~" in word and Path(word).name == word and (runs / word / EVENTS).is_file():  # of one of several watchers
        return runs / word
    names = {read_name(run): run for run in every}
    command = names.get(word.partition(".")[0])
    started = [*read_run_ids(command)] if command and word not in names else []
    if named := names.get(word) or (command if word in started else None):
        return named
    parts = (word, f"-{word}")
    matches = [run for name, run in names.items() if name.startswith(parts[0]) or name.endswith(parts[1])]
    matches = matches or [run for run in every if next(read_run_ids(run), "") == word]  # records of 0.1
    if len(matches) == 1:
        return matches[0]
    if not matches:
        reason = f"saved in {escape(str(runs))}: {_format_newest_names(every)}"
        if started:
            reason = f"runs of the same command: {', '.join(map(escape, started))}"
        code = "no-such-run" if command and read_report(command) else "usage"  # while it goes on, hosts may know more
        what = f"no saved run is called {escape(word)}"
        raise UsageError(what, reasons=[reason], hint=advise("runs"), code=code)
    what = f"{escape(word)} matches {len(matches)} saved runs"
    raise UsageError(what, reasons=[_format_newest_names(matches)], hint="write more of it")


def _format_newest_names(runs: list[Path]) -> str:
    newest = [escape(read_name(run)) for run in reversed(runs[-5:])]
    return ", ".join(newest) + (f" and {len(runs) - 5} older" if len(runs) > 5 else "")


# Without a bound Python takes 134 bytes of memory for each turn of a group.
_RUN = re.compile(rb'"event": "run-started", "run": ("(?:[^"\\]|\\.){,1000}")')


def read_run_ids(directory: Path) -> Iterator[str]:
    """Yields the ids of the runs that a saved command started, in order."""
    with suppress(OSError, ValueError), open_regular_file(directory / EVENTS) as file:
        seen = set[str]()
        for line in iter(lambda: file.readline(_LINE_LIMIT), b""):
            if not line.endswith(b"\n"):
                break  # a hole, which may be of any size
            if (match := _RUN.search(line)) and (run := str(json.loads(match[1]))) not in seen:
                seen.add(run)
                yield run


def find_run(directory: Path, word: str) -> tuple[str, str]:
    """Returns the run that ``word`` names of a saved command that started several, empty where it names all of the
    command, and the last one of them; both are empty where it started one."""
    ids = [*read_run_ids(directory)]
    if len(ids) < 2:
        return "", ""
    return word if word in ids else "", ids[-1]


def read_run(directory: Path, run: str, masker: Masker) -> Iterator[Stamped]:
    """Yields the events of a saved command up to the end of one of its runs, without what the ranks of those before
    wrote; all of them without a ``run``. Raises `UsageError` as `read_saved_run` does."""
    current = ""
    for stamped in read_saved_run(directory, masker):
        event = stamped.event
        starts = event.run if isinstance(event, e.RunStarted) and run else current
        if run and current == run and (starts != run or isinstance(event, e.Started)):
            yield Stamped(stamped.at, e.Ended("run", Exit.OK))  # the command went on
            return
        current = starts
        if current == run or not isinstance(event, e.RunStarted | e.Output):
            yield stamped


def read_saved_run(directory: Path, masker: Masker) -> Iterator[Stamped]:
    """Yields the events of a saved run with their times; ``masker``, through which they are shown, masks from then on
    what the record has hashes of. What is damaged, cut off or missing becomes a `Message` (a warning) in its place.
    Raises `UsageError` when there is nothing to show."""
    masker.add_kept(directory)
    try:
        lines = open_regular_file(directory / EVENTS)
    except OSError as error:
        what = f"{escape(str(directory))} is not a saved run"
        reasons = [f"{EVENTS}: {(error.strerror or str(error)).lower()}"]
        raise UsageError(what, reasons=reasons, hint=advise("runs")) from None
    ranks = _RankFiles(directory / RANKS)
    at = 0.0
    shown = ended = 0
    with lines:
        for count, raw in enumerate(iter(lambda: lines.readline(_LINE_LIMIT), b""), 1):
            if not raw.endswith(b"\n"):
                yield _make_warning(at, f"the record is cut off in line {count} of {EVENTS}")
                break
            try:
                line = event_json.read_line(raw)
                if len(raw) > MESSAGE_LIMIT and line.get("event") not in _UNBOUNDED:
                    raise event_json.DamagedRecordError("it is too long")
                if line.get("event") == "gap":
                    lost = _read_count(line, "lines")
                    what = pluralize(lost, "event") if lost else "events"
                    yield _make_warning(at, f"missing here, since they could not be stored: {what}")
                    continue
                if "offset" in line:
                    yield from ranks.read(line)
                else:
                    stamped = event_json.decode_event(line)
                    at, ended = stamped.at, isinstance(stamped.event, e.Ended)
                    yield stamped
                shown += 1
            except event_json.DamagedRecordError as error:
                yield _make_warning(at, f"line {count} of {EVENTS} is damaged: {error}")
    if not shown:
        raise UsageError(f"{escape(str(directory))} holds no event that can be read")
    yield from ranks.read_unreferenced(at)
    report = None if ended else read_report(directory)
    if not ended and not (report and report.refused):  # which ends in the middle
        yield _make_warning(at, "the record ends here: its command is still at work, or was killed")


def read_preparation(runs: Path, run: str, masker: Masker) -> Iterator[e.Event]:
    """Yields how a run was asked for and planned, where it was started here."""
    last: dict[type, e.Event] = {}
    record = runs / run.partition(".")[0]
    for stamped in read_saved_run(record, masker) if (record / EVENTS).is_file() else ():
        event = stamped.event
        if isinstance(event, e.RunStarted) and event.run == run:
            yield from last.values()
            return
        if isinstance(event, e.Started | e.Planned):
            last[type(event)] = event


def read_left_play(runs: Path, run: str, masker: Masker) -> Iterator[e.Event]:
    """Yields what is left of the play that started a run here, if it has not waited for the run's end."""
    record = runs / run.partition(".")[0]
    for stamped in read_saved_run(record, masker) if (record / EVENTS).is_file() else ():
        if isinstance(stamped.event, e.Message) and stamped.event.code == e.PLAY_LEFT:
            yield stamped.event


def pace_events(
    events: Iterable[Stamped],
    speed: float,
    skip: float = 0.0,
    *,
    is_paused: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Stamped]:
    """Yields the events as slow as they came, ``speed`` times as fast; those of the first ``skip`` seconds at once.
    While ``is_paused``, none comes."""
    first: float | None = None
    begun, moving = clock(), False  # by the clock: when the last event that is shown at once was shown
    for stamped in events:
        first = stamped.at if first is None else first
        ahead = stamped.at - first - skip
        moving = moving or ahead > 0
        if not moving:
            begun = clock()
        while ahead > 0:
            paused, now = is_paused(), clock()  # one reading: a second one can be past what the first had left
            left = begun + ahead / speed - now
            if left <= 0 and not paused:
                break
            sleep(_PAUSE_POLL if paused else min(left, _PAUSE_POLL))
            begun += clock() - now if paused else 0.0
        yield stamped


_PAUSE_POLL = 0.1  # seconds between two checks whether the view is paused


def _make_warning(at: float, text: str) -> Stamped:
    return Stamped(at, e.Message(text, "warning", code="record-gap"))


def _read_count(line: JsonObject, key: str) -> int:
    """What is missing, 0 where that is not known."""
    count = line.get(key)
    return count if isinstance(count, int) and 0 < count <= _FILE_SIZE_LIMIT else 0


_MARKS = re.compile(rb"(?:%s[^\n]*\n)+" % re.escape(MARK))


class _RankFiles:
    """The ranks' files of one record, and how far each has been shown."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._shown: dict[tuple[int, e.Stream], int] = {}
        self._read: dict[tuple[int, str], int] = {}  # bytes of each
        self._hosts: dict[int, str] = {}

    def read(self, line: JsonObject) -> Iterator[Stamped]:
        """Yields the bytes of one reference, in pieces. Raises `DamagedRecordError`."""
        stamped = event_json.decode_event({**line, "data": ""})
        event = stamped.event
        if not isinstance(event, e.Output):
            raise event_json.DamagedRecordError("it refers to bytes and is not output")
        offset, length = line.get("offset"), line.get("length")
        if not isinstance(offset, int) or not isinstance(length, int) or offset < 0 or length < 0:
            raise event_json.DamagedRecordError("offset or length is not a whole number")
        key = (event.rank, event.stream)
        self._hosts[event.rank] = event.host
        end = offset + length
        if end > _FILE_SIZE_LIMIT:
            raise event_json.DamagedRecordError("offset and length are beyond any file")
        self._shown[key] = max(self._shown.get(key, 0), end)
        for start, data in self._read_pieces(key, offset, end):
            offset = start + len(data)
            partial = event.partial if offset >= end else not data.endswith(b"\n")
            yield Stamped(stamped.at, e.Output(event.rank, event.host, event.stream, data, partial))
        if missing := end - offset + _read_count(line, "lost"):
            yield _make_warning(
                stamped.at, f"missing here: {pluralize(missing, 'byte')} of rank {event.rank} ({event.stream})"
            )

    def read_unreferenced(self, at: float) -> Iterator[Stamped]:
        """Yields what the ranks' files hold beyond the last reference: the record ended before it was noted."""
        for (rank, stream), shown in sorted(self._shown.items()):
            start = self._skip_marks((rank, stream), shown)
            if next(self._read_pieces((rank, stream), start, start + 1), None) is None:
                continue
            size = (self._directory / f"{rank}.{stream}").stat().st_size
            left = f"{pluralize(size - start, 'byte')} of rank {rank} ({stream})"
            yield _make_warning(at, f"shown here, since their time is not known: {left}")
            for _, data in self._read_pieces((rank, stream), start, size):
                yield Stamped(at, e.Output(rank, self._hosts[rank], stream, data, partial=True))

    def _skip_marks(self, key: tuple[int, str], offset: int) -> int:
        """Where the rank's own bytes go on: behind the marks that begin there, which say what other events do."""
        while piece := next(self._read_pieces(key, offset, offset + _OUTPUT_EVENT_SIZE), None):
            if not piece[1].startswith(MARK):
                break
            marks = _MARKS.match(piece[1])
            offset += marks.end() if marks else len(piece[1])
        return offset

    def _read_pieces(self, key: tuple[int, str], offset: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Pieces of one file and where each begins; they end with a line where they can. A hole is its end:
        nobody wrote that, and it may be as long as no disk is."""
        try:
            file = open_regular_file(self._directory / f"{key[0]}.{key[1]}")
        except OSError:
            return
        with file:
            with suppress(OSError):  # behind its end
                end = min(end, os.lseek(file.fileno(), offset, os.SEEK_HOLE))
                if self._read.get(key, 0) > _READINGS_LIMIT * os.lseek(file.fileno(), 0, os.SEEK_HOLE):
                    return
            while offset < end and (data := os.pread(file.fileno(), min(_OUTPUT_EVENT_SIZE, end - offset), offset)):
                if offset + len(data) < end:
                    data = data[: data.rfind(b"\n") + 1 or len(data)]
                self._read[key] = self._read.get(key, 0) + len(data)
                yield offset, data
                offset += len(data)
