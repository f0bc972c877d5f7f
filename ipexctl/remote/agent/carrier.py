"""The process beside the guard that looks for checkpoints, and carries them from host to host.

Copies of other hosts' parts lie beside the directory of the checkpoints, on the same disk, in `paths.KEEP`: OWNER/MARK,
and OWNER/MARK.json, which says what it is. They outlive attempts, and runs. A copy appears by one rename, when all its
files have come and their hashes are right."""

import errno
import glob
import hashlib
import os
import select
import shutil
import socket
import stat
import threading
import time
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ipexctl.protocol import messages, paths
from ipexctl.protocol.codec import MESSAGE_LIMIT, DamagedError, decode, encode
from ipexctl.protocol.messages import KINDS, CheckpointPart
from ipexctl.protocol.paths import Role
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.remote.agent import checkpoints, files, rpc

RATE = 32 << 20  # bytes a second that a host takes while ranks run
COPIES_HELD = 2  # of each host's parts, the newest
PARTS_LIMIT = 8  # checkpoints that are reported, the newest
CALLERS_LIMIT = 16
REPORT_LIMIT = MESSAGE_LIMIT // 8  # bytes of a report: orders name the files of several hosts, twice
_PIECE = 1 << 20
_STATE, _INCOMING, _ASIDE = "state.json", ".incoming", ".aside"
_FAULTS = (OSError, ValueError, RecursionError)  # the last two of names that no file has, as other hosts may tell them


class Carrier:
    def __init__(self, spec: "RunSpec", guard: "rpc.Wire") -> None:
        assert spec.keep is not None
        self.spec, self.keep, self.guard = spec, spec.keep, guard
        self.base, self.leaf = os.path.split(os.path.normpath(spec.keep.path))
        self.store = os.path.join(self.base, paths.KEEP + self.leaf)
        self.sending = threading.Lock()
        self.copying = threading.Lock()  # the keeper hears of copies in the order in which they came to be
        self.callers = threading.BoundedSemaphore(CALLERS_LIMIT)
        self.before: Dict[str, Tuple[List[str], Optional[bool]]] = {}  # mark → what the last look found out
        # Files that are not the run's, or that nobody wrote to their end; name → mark of what was found to be whole.
        self.state: Dict[str, Dict[str, Any]] = {"old": {}, "settled": {}}
        self.reported: List[CheckpointPart] = []
        self.overfull = False  # there were more files than can be reported
        self.port = 0

    def run(self) -> None:
        """Answers the guard until it is gone. Ends at once where what lies in the store may be somebody else's."""
        fault = self.find_fault()
        if fault:
            self.send(messages.CheckpointTaken(0, fault, 0, 0.0))
            return
        self.prepare_store()
        listener = rpc.listen_on_free_port(self.keep.addresses[self.spec.host], self.keep.ports)
        self.port = listener.getsockname()[1]
        threading.Thread(target=self.serve, args=(listener,), daemon=True).start()
        # What stands still before the ranks run may be half written: the keeper's look comes first.
        looking = self.keep.fresh
        while self.guard.open:
            message = self.guard.wait(self.spec.timings.look)
            if isinstance(message, messages.FindCheckpoints):
                looking = True
                self.report(message.number)
            elif isinstance(message, messages.TakeCheckpoint):
                threading.Thread(target=self.take, args=(message,), daemon=True).start()
            elif looking and self.guard.open:
                self.report(0)
        self.remove(_INCOMING)

    def send(self, message: "messages.Message") -> None:
        with self.sending:
            self.guard.send(message)
            self.guard.drain(self.spec.timings.carry)

    # -- what is here -------------------------------------------------------------------------------------------------

    def find_fault(self) -> str:
        """Returns why nothing is read, written or removed in the store: the directory that it lies in may be open to
        others, like /tmp."""
        with suppress(OSError):  # else there is none yet
            found = os.lstat(self.store)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                return "%s is no directory, or belongs to another user" % self.store
            if os.listdir(self.store) and not _is_store(self.store):
                return "%s has no copies: move it away" % self.store
        return ""

    def prepare_store(self) -> None:
        """What is there already is the run's only where it was noted as such, or is adopted."""
        if self.keep.fresh:
            self.empty_store()
        self.remove(_INCOMING)
        try:
            self.state = files.read_json(self.store, _STATE)
        except (OSError, ValueError):
            self.list_own(quiet=True, fresh=True)
        if self.keep.adopt:
            self.state["old"] = {}
        self.write_state()

    @contextmanager
    def open_store(self) -> Iterator[str]:
        """The store, to remove from it, whatever is put in its place meanwhile. Raises `OSError`, also where it is not
        ours: another user, who may write above, has put it there."""
        at = os.open(self.store, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            top = "/proc/self/fd/%d" % at
            if os.fstat(at).st_uid != os.geteuid() or not _is_store(top):
                raise OSError(errno.EPERM, "no store of ours")
            yield top
        finally:
            os.close(at)

    def empty_store(self) -> None:
        """Removes what is in it."""
        with suppress(OSError), self.open_store() as top:  # else there is none
            for name in os.listdir(top):
                files.remove_directory(os.path.join(top, name))
                with suppress(OSError):  # it was a directory
                    os.unlink(os.path.join(top, name))

    def remove(self, *names: str) -> None:
        """Removes a directory of it."""
        with suppress(OSError), self.open_store() as top:
            shutil.rmtree(os.path.join(top, *names), ignore_errors=True)

    def write_state(self) -> None:
        with suppress(OSError):  # of a disk that is full: then less is known after a restart
            os.makedirs(self.store, 0o700, exist_ok=True)
            files.write_json(self.store, _STATE, self.state)

    def report(self, number: int) -> None:
        """Tells the keeper what is here, if it asks, or does not know it yet."""
        own = sorted(self.list_own(quiet=number > 0), key=lambda part: part.at)[-PARTS_LIMIT:]
        with self.copying:
            parts = own + self.list_copies()
            found = messages.CheckpointsFound(number, self.port, parts)
            if not number and parts == self.reported:
                return
            self.reported = parts
            if len(KINDS.write(found)) <= REPORT_LIMIT:
                self.send(found)
            elif number or not self.overfull:
                self.overfull = True
                many = sum(len(part.files) for part in parts)
                self.send(messages.CheckpointTaken(0, "%d files are too many to be carried" % many, 0, 0.0))

    def list_own(self, quiet: bool, fresh: bool = False) -> "List[CheckpointPart]":
        """This host's parts. ``quiet``: no rank runs, so that what stands still may be half written. ``fresh``: from
        now on, what is here is old."""
        parts, before, self.before, settled = [], self.before, {}, dict(self.state["settled"])
        for name, found in checkpoints.find_checkpoints(self.base, self.leaf).items():
            with suppress(OSError):
                entries = checkpoints.read_files(self.base, found)
                entries = {path: file for path, file in entries.items() if self.state["old"].get(path) != file}
                if not entries:
                    continue
                mark = checkpoints.compute_mark(entries)
                needs, whole = before.get(mark) or checkpoints.check_files(self.base, name, entries)
                at = max(when for _, when in entries.values()) / 1e9
                stands = mark in before and (whole or time.time() - at > self.spec.timings.quiet_file)
                if whole if quiet else stands and whole is not False:
                    settled[name] = mark
                self.before[mark] = needs, whole
                parts.append(CheckpointPart(name, mark, entries, at, needs, settled.get(name) == mark))
        if quiet:  # what nobody wrote to its end stays so, however long it stands
            for part in parts:
                self.state["old"].update({} if part.settled and not fresh else part.files)
        settled = {part.name: part.mark for part in parts if part.settled}
        if quiet or settled != self.state["settled"]:
            self.state["settled"] = settled
            self.write_state()
        return parts

    def list_copies(self) -> "List[CheckpointPart]":
        parts = []
        for path in glob.glob(os.path.join(glob.escape(self.store), "*", "*.json")):
            with suppress(OSError, DamagedError):
                if os.path.isdir(path[: -len(".json")]):
                    parts.append(decode(CheckpointPart, files.read_json("", path)))
        return sorted(parts, key=lambda part: part.at)

    # -- giving -------------------------------------------------------------------------------------------------------

    def serve(self, listener: "socket.socket") -> None:
        while True:
            with suppress(OSError):
                sock, _ = listener.accept()
                if self.callers.acquire(blocking=False):
                    threading.Thread(target=self.answer, args=(sock,), daemon=True).start()
                else:
                    sock.close()

    def answer(self, sock: "socket.socket") -> None:
        """Sends another host of the run the files that it asks for."""
        try:
            wire = rpc.Wire(sock, rpc.GREETING_LIMIT)
            rpc.send_challenge(wire)
            hello = wire.wait(self.spec.timings.greet)
            role = rpc.verify_caller(wire, hello, self.spec.token) if hello else ""
            while role == Role.CARRY:
                ask = wire.wait(self.spec.timings.carry)
                if not isinstance(ask, messages.SendFile):
                    break
                wire.send(messages.FileSent(self.send_file(wire, ask)))
                self.flush(wire)
        finally:
            sock.close()
            self.callers.release()

    def send_file(self, wire: "rpc.Wire", ask: "messages.SendFile") -> str:
        """Returns its hash, as it was sent; "" where it is not, or no longer, the file that was meant."""
        folder = [ask.owner, ask.mark] if ask.owner else []  # of a copy
        if not self.is_ours(ask.path) or not all(map(_is_name, folder)):
            return ""
        root = os.path.join(self.store, *folder) if folder else self.base
        try:
            fd = os.open(os.path.join(root, ask.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return ""
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or [found.st_size, found.st_mtime_ns] != ask.file:
                return ""
            if ask.sha256 and _hash(file) == ask.sha256:
                return ask.sha256
            file.seek(0)
            wire.send(messages.FileBytes())
            left, hashed = found.st_size, hashlib.sha256()
            while left and wire.open:
                piece = file.read(min(_PIECE, left))
                if not piece:  # it has become shorter
                    wire.close()
                hashed.update(piece)
                wire.outbox += piece
                self.flush(wire)
                left -= len(piece)
            found = os.fstat(fd)
            return hashed.hexdigest() if [found.st_size, found.st_mtime_ns] == ask.file else ""

    def is_ours(self, path: str) -> bool:
        """Returns whether a path that another host names stays in the directory of checkpoints, also by its links."""
        parts = path.split("/")
        if parts[0] != self.leaf or {"", ".", ".."}.intersection(parts):
            return False
        top, folder = (os.path.realpath(os.path.join(self.base, *names)) for names in (parts[:1], parts[:-1]))
        return len(parts) == 1 or os.path.join(folder, "").startswith(os.path.join(top, ""))

    def flush(self, wire: "rpc.Wire") -> None:
        while wire.open and wire.outbox:
            if not select.select([], [wire], [], self.spec.timings.carry)[1]:
                wire.close()
            wire.flush()

    # -- taking -------------------------------------------------------------------------------------------------------

    def take(self, order: "messages.TakeCheckpoint") -> None:
        """Gets the files of an order, and reports it."""
        began, why, incoming = time.monotonic(), "", os.path.join(self.store, _INCOMING, str(order.number))
        total = [0]
        try:
            self.check_names(order)
            need = sum(size for source in order.sources for size, _ in source.files.values())
            os.makedirs(incoming, 0o700, exist_ok=True)
            room = os.statvfs(incoming)
            free = room.f_bavail * room.f_frsize
            if free < need * (2 if order.part else 1):  # the next one of the script's own comes first
                raise OSError("no space left in %s (need %d MiB, %d free)" % (self.base, need >> 20, free >> 20))
            for source in order.sources:
                self.take_from(source, incoming, total, None if order.part is None else RATE)
            if order.part is None:
                self.place(order, incoming)
        except _FAULTS as error:
            why = str(getattr(error, "strerror", None) or error)
        with self.copying:
            try:
                if order.part and not why:
                    self.add_copy(order.part, incoming)
            except _FAULTS as error:
                why = str(getattr(error, "strerror", None) or error)
            self.send(messages.CheckpointTaken(order.number, why, total[0], time.monotonic() - began))
        self.remove(_INCOMING, str(order.number))

    def check_names(self, order: "messages.TakeCheckpoint") -> None:
        """Raises OSError where a name that another host may have made leads out of where checkpoints and copies are."""
        listed = [file for source in order.sources for file in source.files.items()]
        for path, file in [*((name, [0, 0]) for name in order.aside), *listed]:
            if not self.is_ours(path) or len(file) != 2 or not all(0 <= number < 1 << 63 for number in file):
                raise OSError("%s is no file of a checkpoint" % path)
        copies = [(source.owner, source.mark) for source in order.sources if source.owner]
        if order.part:
            copies.append((order.part.owner, order.part.mark))
        for name in [name for copy in copies for name in copy]:
            if not _is_name(name):
                raise OSError("%s is no name of a copy" % name)

    def take_from(
        self, source: "messages.CheckpointSource", incoming: str, total: "List[int]", rate: "Optional[int]"
    ) -> None:
        """Raises OSError."""
        if source.host == self.spec.host:
            for path, (_, when) in source.files.items():
                target = _make_folder(os.path.join(incoming, path))
                shutil.copyfile(os.path.join(self.store, source.owner, source.mark, path), target)
                os.utime(target, ns=(when, when))
            return
        patience = self.spec.timings.carry
        wire = rpc.connect(source.address, source.port, self.spec.token, Role.CARRY, self.spec.host, patience)
        try:
            for path, file in source.files.items():
                target, own, known = _make_folder(os.path.join(incoming, path)), os.path.join(self.base, path), ""
                if os.path.isfile(own) and os.path.getsize(own) == file[0]:
                    known = hash_file(own)
                wire.send(messages.SendFile(path, file, source.owner, source.mark, known))
                size, received, sent = receive_file(wire, target, file[0], patience, rate)
                total[0] += size
                if known and sent == known and not size:
                    shutil.copyfile(own, target)
                elif not sent or received != sent:
                    raise OSError("%s of %s is another file by now, or arrived damaged" % (path, source.host))
                os.utime(target, ns=(file[1], file[1]))
        finally:
            wire.close()

    def add_copy(self, part: "CheckpointPart", incoming: str) -> None:
        folder = os.path.join(self.store, part.owner)
        os.makedirs(folder, 0o700, exist_ok=True)
        files.write_json(folder, part.mark + ".json", encode(part))
        if not os.path.isdir(os.path.join(folder, part.mark)):  # else it is the same, as its mark says
            os.rename(incoming, os.path.join(folder, part.mark))
        for old in [each for each in self.list_copies() if each.owner == part.owner][:-COPIES_HELD]:
            self.remove(part.owner, old.mark)
            os.unlink(os.path.join(folder, old.mark + ".json"))

    def place(self, order: "messages.TakeCheckpoint", incoming: str) -> None:
        """Moves what has come into the script's own directory, by renames, and out of it what is newer."""
        if order.aside:
            self.remove(_ASIDE)
        for name in order.aside:
            target = _make_folder(os.path.join(self.store, _ASIDE, name))
            with suppress(OSError):
                shutil.move(os.path.join(self.base, name), target)
        for path in [path for source in order.sources for path in source.files]:
            move_file(os.path.join(incoming, path), _make_folder(os.path.join(self.base, path)))


def _is_store(path: str) -> bool:
    """Who may write above it can give its name to any directory of ours, but not put this file there."""
    with suppress(OSError, ValueError):
        return {"old", "settled"} <= set(files.read_json(path, _STATE))
    return False


def receive_file(
    wire: "rpc.Wire", path: str, size: int, patience: float, rate: "Optional[int]"
) -> "Tuple[int, str, str]":
    """Stores a file of this size: how many bytes came, their hash, and that of it where it lay. Raises OSError."""
    began, received, hashed = time.monotonic(), 0, hashlib.sha256()
    with open(path, "wb") as file:
        message = wire.wait(patience)
        if isinstance(message, messages.FileBytes):
            for piece in wire.read_bytes(size, patience):
                file.write(piece)
                hashed.update(piece)
                received += len(piece)
                if rate:
                    time.sleep(max(0.0, began + received / rate - time.monotonic()))
            file.flush()
            os.fsync(file.fileno())
            message = wire.wait(patience) if received == size else None
    if not isinstance(message, messages.FileSent):
        raise OSError("the other host sent nothing for %.0f s" % patience if wire.open else "the connection ended")
    return received, hashed.hexdigest(), message.sha256


def move_file(source: str, target: str) -> None:
    """Puts a file in its place at once, also from another disk: a directory of checkpoints may be one of its own."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy2(source, target + checkpoints.UNFINISHED[0])
        os.replace(target + checkpoints.UNFINISHED[0], target)


def hash_file(path: str) -> str:
    with open(path, "rb") as file:
        return _hash(file)


def _hash(file: "Any") -> str:
    hashed = hashlib.sha256()
    for piece in iter(lambda: file.read(_PIECE), b""):
        hashed.update(piece)
    return hashed.hexdigest()


def _is_name(text: str) -> bool:
    """Returns whether a text names an entry of the directory that it is joined to."""
    return "/" not in text and text not in {"", ".", ".."}


def _make_folder(path: str) -> str:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path
