"""Figures that scripts write into files: TensorBoard's event files, and the ``trainer_state.json`` of Transformers'
Trainer. No content of a file raises, whoever wrote it: what cannot be read is left out, and everything is bounded.

An event file is a sequence of records: length (8 bytes), its checksum (4), data, their checksum (4), little endian;
checksums are masked CRC-32C (tensorflow/core/lib/io/record_writer.h, tensorflow/core/lib/hash/crc32c.h). The data are
a protobuf message ``Event`` (tensorflow/core/util/event.proto) with a ``Summary`` (framework/summary.proto), whose
values are a ``simple_value`` or a ``TensorProto`` of one number (framework/tensor.proto, types.proto). Trainer's file
is JSON with a list ``log_history`` (transformers/trainer_callback.py, TrainerState)."""

import json
import os
import re
import stat
import struct
import time
from typing import BinaryIO, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ipexctl.protocol.samples import FIGURES

DEPTH = 8  # directories below the working directory
ENTRIES = 20000  # of directories, in one search
FILES = 256  # at most
BYTES = 1 << 25  # of event files, in one search
STATE_BYTES = 1 << 24  # of one trainer_state.json
RECORD = 1 << 16  # bytes: longer records hold images, histograms or graphs, and are skipped
POINTS = 1000  # of a figure, before every second one is left out
ALL_POINTS = 200000  # of all figures of a run on this host
NAME = 200  # letters of a figure's name
SLACK = 2.0  # seconds: the times of some file systems are that coarse
EVENTS = "events.out.tfevents."
STATE = "trainer_state.json"

# TIME.HOST.PROCESS.NUMBER, after `EVENTS`; TensorFlow 1 wrote TIME.HOST
_WRITER = re.compile(r"\d+\.(?P<host>.+?)(?:\.(?P<pid>\d{1,10})\.\d+)?(?:\.v2)?$")
_CHECKPOINT = re.compile(r"checkpoint-\d+/(?=%s$)" % re.escape(STATE))
_SKIPPED = {"node_modules", "site-packages", "__pycache__"}


class Points(NamedTuple):
    """New points of a figure in a file below the working directory; a value is the text of a float."""

    source: str
    rank: int
    name: str
    points: "List[Tuple[int, str]]"


# Checksums.


def _build_table() -> "List[int]":
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)  # Castagnoli's polynomial, reversed
        table.append(number)
    return table


_TABLE = _build_table()


def compute_masked_crc(data: bytes) -> int:
    """CRC-32C, rotated by 15 bits and added to a constant, as the records have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# Protocol buffers: https://protobuf.dev/programming-guides/encoding


class MalformedError(ValueError):
    """Bytes that are not the message they should be."""


def read_varint(data: bytes, at: int) -> "Tuple[int, int]":
    """A number and where it ends. Raises `MalformedError`."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
    raise MalformedError("a number without an end")


_LENGTHS = {1: 8, 5: 4}  # bytes of a field by its wire type


def iterate_fields(data: bytes) -> "Iterator[Tuple[int, int, bytes]]":
    """Number, wire type and bytes of each field; those of a varint as eight bytes. Raises `MalformedError`."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = read_varint(data, at)
            yield key >> 3, kind, struct.pack("<Q", value & (1 << 64) - 1)
            continue
        length = _LENGTHS.get(kind)
        if kind == 2:
            length, at = read_varint(data, at)
        if length is None or at + length > len(data):
            raise MalformedError("a field that is cut off, or of an unknown type")
        yield key >> 3, kind, data[at : at + length]
        at += length


def read_event(data: bytes) -> "Tuple[int, List[Tuple[str, float]]]":
    """Step, and the scalars of one ``Event`` by their tags. Raises `MalformedError`."""
    step, values = 0, []
    for number, kind, field in iterate_fields(data):
        if (number, kind) == (2, 0):
            step = struct.unpack("<q", field)[0]
        elif (number, kind) == (5, 2):
            for part, of, value in iterate_fields(field):
                scalar = _read_value(value) if (part, of) == (1, 2) else None
                if scalar is not None:
                    values.append(scalar)
    return step, values


def _read_value(data: bytes) -> "Optional[Tuple[str, float]]":
    """A ``Summary.Value``; None where it is no scalar."""
    tag, number = "", None
    for field, kind, value in iterate_fields(data):
        if (field, kind) == (1, 2):
            tag = value.decode("utf-8", "replace")
        elif (field, kind) == (2, 5):
            number = round_single(value)
        elif (field, kind) == (8, 2):
            number = _read_tensor(value)
    return None if number is None else (tag, number)


def round_single(data: bytes) -> float:
    """A number of four bytes as the double with the fewest digits that is the same number of four bytes."""
    number = float(struct.unpack("<f", data)[0])
    rounded = (float("%.*g" % (digits, number)) for digits in (6, 7, 8))
    return next((short for short in rounded if abs(short) < 3e38 and struct.pack("<f", short) == data), number)


_FORMATS = {1: "f", 2: "d", 3: "i", 9: "q", 19: "e"}  # DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64, DT_HALF
_BFLOAT16 = 14
_VALUES = {5: "f", 6: "d"}  # float_val and double_val, packed or not


def _read_tensor(data: bytes) -> "Optional[float]":
    """The only number of a ``TensorProto``; None where it has none, or several."""
    kind, content, numbers = 0, b"", []
    for field, wire, value in iterate_fields(data):
        if (field, wire) == (1, 0):
            kind = struct.unpack("<q", value)[0]
        elif (field, wire) == (4, 2):
            content = value
        elif field in _VALUES:
            size = struct.calcsize(_VALUES[field])
            numbers += [value[at : at + size] for at in range(0, len(value), size)]
        elif field in (7, 10) and wire in (0, 2):  # int_val and int64_val, packed or not
            whole, end = read_varint(value, 0) if wire == 2 else (struct.unpack("<Q", value)[0], len(value))
            return float(whole - (1 << 64 if whole >> 63 else 0)) if end == len(value) else None
    if kind == _BFLOAT16 and len(content) == 2:
        content, kind = b"\0\0" + content, 1
    if not content and len(numbers) == 1:
        content = numbers[0]
    form = _FORMATS.get(kind)
    if form is None or struct.calcsize(form) != len(content):
        return None
    return round_single(content) if form == "f" else float(struct.unpack("<" + form, content)[0])


def read_records(file: "BinaryIO", most: int, size: int) -> "Iterator[Tuple[int, int, List[Tuple[str, float]]]]":
    """From the file's present offset on: the offset behind each record, its step, and its scalars. Ends before a record
    that is not whole yet in a file of ``size`` bytes, and after ``most`` bytes. Raises `MalformedError` at a damaged
    one."""
    at = file.tell()
    end = at + most
    while at < end:
        file.seek(at)
        head = file.read(12)
        if len(head) < 12:
            return
        length, check = struct.unpack("<QI", head)
        if compute_masked_crc(head[:8]) != check:
            raise MalformedError("a record's length is damaged")
        if at + 16 + length > size:
            return
        at += 16 + length
        if length > RECORD:
            yield at, 0, []
            continue
        data, tail = file.read(length), file.read(4)
        step, values = read_event(data)
        if values and struct.pack("<I", compute_masked_crc(data)) != tail:
            raise MalformedError("a record is damaged")
        yield at, step, values


def read_log_history(text: bytes) -> "Optional[List[Tuple[int, str, float]]]":
    """The entries of a ``trainer_state.json``: step, name, value; empty for other JSON. None for what is no JSON: it
    may be half written."""
    try:
        state = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    history = state.get("log_history") if isinstance(state, dict) else None
    figures = []
    for entry in history if isinstance(history, list) else []:
        step = entry.get("step") if isinstance(entry, dict) else None
        if type(step) is int:
            numbers = ((name, value) for name, value in entry.items() if type(value) in (int, float) and name != "step")
            figures += [(step, name, value) for name, value in numbers]
    return figures


class Figure:
    """What was passed on of one figure: of the first `POINTS` each, of as many more each second one, and so on."""

    def __init__(self) -> None:
        self.count = self.passed = 0
        self.stride = 1

    def pass_point(self) -> bool:
        """Whether the next point is passed on."""
        self.count += 1
        if (self.count - 1) % self.stride:
            return False
        self.passed += 1
        if self.passed % POINTS == 0:
            self.stride *= 2
        return True


class FigureFiles:
    """The files below a directory that were written since a moment; each call of `read` gives what is new in them."""

    def __init__(self, root: str, since: float, host: str, find_rank: "Callable[[int], int]") -> None:
        """``since`` in Unix seconds, by the clock of the root's file system; ``host`` is this host's own name, as
        writers put it into names of files; ``find_rank`` gives the rank of a process, or -1."""
        self.root, self.since, self.host, self.find_rank = root, since - SLACK, host, find_rank
        self.offsets: "Dict[str, int]" = {}  # of event files; -1 for one that is damaged
        self.entries: "Dict[str, int]" = {}  # of a trainer's history that were read
        self.states: "Dict[str, Tuple[float, int]]" = {}  # of its files: when they were changed, size
        self.figures: "Dict[Tuple[str, str], Figure]" = {}
        self.total = 0
        self.spare = BYTES

    def read(self, until: float) -> "Iterator[Points]":
        """New points; ends at ``until`` (steady clock) whatever is still to be read."""
        self.spare = BYTES
        for source, path in sorted(self.find_changed_files(until)):
            if time.monotonic() > until:
                return
            try:
                if os.path.basename(path) == STATE:
                    yield from self.read_state(source, path)
                else:
                    yield from self.read_events(source, path)
            except OSError:
                continue  # it is gone, or not ours to read

    def find_changed_files(self, until: float) -> "List[Tuple[str, str]]":
        """Name below the root and path of each such file that was changed, nearest to the root first. A checkpoint's
        state goes by the name of that which all checkpoints continue."""
        logs: List[Tuple[str, str]] = []
        states: Dict[str, Tuple[float, str]] = {}
        level, entries = [self.root], 0
        for _ in range(DEPTH + 1):
            below: List[str] = []
            for directory in level:
                if time.monotonic() > until or entries > ENTRIES:
                    break
                for entry in _list_entries(directory):
                    entries += 1
                    name = entry.name
                    if name == STATE or name.startswith(EVENTS):
                        changed = self.get_change_time(entry)
                        source = os.path.relpath(entry.path, self.root)
                        if changed is not None and name == STATE:
                            source = _CHECKPOINT.sub("", source)
                            states[source] = max(states.get(source, (0.0, "")), (changed, entry.path))
                        elif changed is not None and self.is_of_this_host(name):
                            logs.append((source, entry.path))
                    elif not name.startswith(".") and name not in _SKIPPED and _is_directory(entry):
                        below.append(entry.path)
            level = below
        return ([(source, path) for source, (_, path) in states.items()] + logs)[:FILES]

    def get_change_time(self, entry: "os.DirEntry[str]") -> "Optional[float]":
        """When a regular file was changed; None for others, and for one that was not changed since the run began."""
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return None
        return status.st_mtime if stat.S_ISREG(status.st_mode) and status.st_mtime >= self.since else None

    def is_of_this_host(self, name: str) -> bool:
        """Whether a process of this host wrote an event file: several hosts may see it."""
        writer = _WRITER.match(name[len(EVENTS) :])
        return writer is None or writer.group("host") == self.host

    def read_events(self, source: str, path: str) -> "Iterator[Points]":
        offset = self.offsets.get(path, 0)
        writer = _WRITER.match(os.path.basename(path)[len(EVENTS) :])
        rank = self.find_rank(int(writer.group("pid"))) if writer and writer.group("pid") else -1
        if offset < 0 or self.spare <= 0:
            return
        fresh: Dict[str, List[Tuple[int, str]]] = {}
        with _open_regular(path) as file:
            file.seek(offset)
            try:
                for at, step, values in read_records(file, self.spare, os.fstat(file.fileno()).st_size):
                    self.spare -= at - offset
                    self.offsets[path] = offset = at
                    for name, value in values:
                        self.add_point(fresh, source, step, name, value)
            except MalformedError:
                self.offsets[path] = -1
        for name, points in fresh.items():
            yield Points(source, rank, name, points)

    def read_state(self, source: str, path: str) -> "Iterator[Points]":
        with _open_regular(path) as file:
            status = os.fstat(file.fileno())
            state = (status.st_mtime, status.st_size)
            if self.states.get(source) == state or status.st_size > STATE_BYTES:
                return
            entries = read_log_history(file.read(STATE_BYTES))
        if entries is None:
            return
        self.states[source] = state
        done = self.entries.get(source, 0)
        if done > len(entries):  # another training began
            done = 0
        self.entries[source] = len(entries)
        fresh: Dict[str, List[Tuple[int, str]]] = {}
        for step, name, value in entries[done:]:
            self.add_point(fresh, source, step, name, value)
        for name, points in fresh.items():
            yield Points(source, -1, name, points)

    def add_point(
        self, fresh: "Dict[str, List[Tuple[int, str]]]", source: str, step: int, name: str, value: float
    ) -> None:
        name = name[:NAME]
        figure = self.figures.get((source, name))
        if figure is None:
            if len(self.figures) >= FIGURES:
                return
            figure = self.figures[source, name] = Figure()
        if self.total < ALL_POINTS and abs(step) < 1 << 53 and figure.pass_point():
            self.total += 1
            fresh.setdefault(name, []).append((step, format_value(value)))


def format_value(value: float) -> str:
    """The shortest text that is this number again; an integer that no float can hold is infinite."""
    try:
        return repr(float(value))
    except OverflowError:
        return "inf" if value > 0 else "-inf"


def _list_entries(directory: str) -> "List[os.DirEntry[str]]":
    """At most `ENTRIES` of them; none of what is no directory, or not ours to list."""
    entries: "List[os.DirEntry[str]]" = []
    try:
        with os.scandir(directory) as listing:
            for entry in listing:
                entries.append(entry)
                if len(entries) > ENTRIES:
                    break
    except OSError:
        return []
    return entries


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _open_regular(path: str) -> "BinaryIO":
    """A regular file, and no other that somebody put in its place. Raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError("%s is no regular file" % path)
    return os.fdopen(number, "rb")
