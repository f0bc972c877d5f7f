"""Sends files to a host: completely or not at all, never through a symbolic link, never readable by others.

The host's `remote/receive_tree.sh` receives all in a private directory beside the target and moves it by rename."""

import hashlib
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from ipexctl.act.bundled_files import read_script
from ipexctl.act.threads import STALL_TIMEOUT, StallTimer
from ipexctl.model.errors import Failure, Hint, Kind, advise
from ipexctl.model.events import Event, Progress
from ipexctl.model.hosts import TAIL_LIMIT, Command, Completed, Link, LinkError
from ipexctl.model.text import format_size, printable
from ipexctl.protocol.paths import PART, STATE
from ipexctl.store.private_files import open_regular_file

Emit = Callable[[Event], None]

_CHUNK = 1 << 20  # bytes per write to the link
_PROGRESS_INTERVAL = 0.1  # seconds between two progress events of one host
_SHARED_SHELL_LIMIT = 2 << 20  # bytes of a tar stream that goes through the host's shared shell, as a whole
_TRIES = 3
_FILE_LIMIT = 1_000_000  # in one listing of a host
_LEVEL_LIMIT = 16 * _FILE_LIMIT  # slashes in one
_OUTPUT_LIMIT = 256 << 20  # bytes that a script writes
_SLOWEST_DISK = 10e6  # bytes a second that a host unpacks at least
_SLOWEST_RATE = 2000.0  # bytes a second that the input of a script arrives with at least


def send_file(
    link: Link, source: Path, target: str, emit: Emit, step: str, *, sha256: str | None = None, mode: int = 0o600
) -> bool:
    """Copies one large file to ``target`` (absolute, or relative to the home directory) and verifies its hash there.
    Resumes an interrupted transfer. Returns False if the host has the same file already. ``sha256`` (hex) is computed
    where it is not given. Raises `LinkError` if the file cannot be written or arrives damaged."""
    directory, _, name = target.rpartition("/")
    digest = sha256 or hash_file(source)
    size = source.stat().st_size
    for attempt in range(_TRIES):
        answer = _run_receive_script(link, directory or "/", "have", name, digest).text.split()
        if len(answer) != 3 or not all(re.fullmatch("[0-9]{1,18}", number) for number in answer[1:]):
            raise _make_step_error(link, f"unexpected response from the host to {printable(name)}", "malformed")
        whole, (partial, free) = answer[0], map(int, answer[1:])
        if whole != "-":
            return False
        done = partial if partial <= size and not attempt else 0
        if free * 1024 < size - done:
            need = f"need {format_size(size - done)}, {format_size(free * 1024)} free in {directory}"
            raise _make_step_error(link, f"no space left: {need}", "no-space")
        progress = ProgressReporter(link.host.name, step, size, emit, done, detail=name)
        words = (directory or "/", "append", name, digest, str(done), f"{mode:o}")
        with open_regular_file(source, follow=True) as file:
            file.seek(done)
            output = _stream_to_script(link, words, progress.count_chunks(iter(lambda: file.read(_CHUNK), b"")))
        progress.report(always=True)
        if output != "partial":
            return True
        if hash_file(source) != digest:
            raise _make_step_error(link, f"changed while it was sent: {printable(source.name)}", "source-changed")
    raise _make_step_error(link, f"{printable(source.name)} arrived damaged {_TRIES} times", "damaged")


def install_tree(link: Link, directory: str, archive: Iterable[bytes], *, own: str, old: Sequence[str] = ()) -> str:
    """Unpacks a tar stream (in pieces, with names ``tree/…``) into ``directory`` and returns its absolute path. ``own``
    names this transfer's private directory; ``old`` ones are removed. If ``archive`` raises, nothing is changed."""
    words = (directory, "place", PART + own, "-", *old)
    pieces = chain(archive, [TREE_END])
    beginning = _read_up_to(pieces, _SHARED_SHELL_LIMIT)
    if len(beginning) > _SHARED_SHELL_LIMIT:
        return _stream_to_script(link, words, chain([beginning], pieces))
    return os.fsdecode(_run_receive_script(link, *words, stdin=beginning).out).removesuffix("\n")


def install_stored_tree(
    link: Link, directory: str, store: str, size: int, *, own: str, old: Sequence[str] = ()
) -> None:
    """Does the same with ``size`` bytes that have arrived on the host already, in `ARCHIVE` and the files that it
    names, below ``store``, a directory in ``directory``."""
    command = _build_receive_command(directory, "place", PART + own, store, *old)
    _run_script(link, replace(command, timeout=STALL_TIMEOUT + size / _SLOWEST_DISK, brief=False))


def list_tree(link: Link, directory: str, *, send: bool = False, cap: int = _OUTPUT_LIMIT) -> bytes:
    """Lists ``directory`` on the host, for `decide.planning.sync.parse_remote_tree`, in ``cap`` bytes at most. To
    ``send`` something there it must be nobody else's. Raises `LinkError`."""
    words = (directory, "send") if send else (directory,)
    return read_listing(link, replace(build_script_command("look_tree.sh", *words, begins=_BEGINS), cap=cap), 3)


def read_listing(link: Link, command: Command, width: int) -> bytes:
    """Returns what a script lists, ``width`` fields for a file. Raises `LinkError`, also before too many files of a
    host become objects here."""
    done = _run_script(link, command)
    if done.truncated or done.out.count(b"\0") > width * _FILE_LIMIT or done.out.count(b"/") > _LEVEL_LIMIT:
        raise _make_step_error(link, "more files than can be listed", "refused-there")
    return done.out


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open_regular_file(path, follow=True) as file:
        return hash_open_file(file)


def hash_open_file(file: BinaryIO) -> str:
    """SHA-256 of what is in a file, in hex."""
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def build_tar_file(name: str, data: bytes, mode: int) -> bytes:
    """Returns one file of a tar stream, header and contents."""
    return build_tar_header(name, size=len(data), mode=mode) + data + bytes(-len(data) % 512)


def build_tar_header(name: str, *, size: int = 0, mode: int = 0o600, mtime: int = 0, link: str | None = None) -> bytes:
    """Returns the header of a tar member: a file, or a symbolic link to ``link``."""
    kind = tarfile.REGTYPE if link is None else tarfile.SYMTYPE
    return _encode_tar_header(name, size=size, mode=mode, mtime=mtime, type=kind, linkname=link or "")


def build_tar_directory(name: str) -> bytes:
    """A directory of a tar stream, 0700 and as of now: one that is new on the host goes there as it is unpacked."""
    return _encode_tar_header(name, type=tarfile.DIRTYPE, mode=0o700, mtime=int(time.time()))


def _encode_tar_header(name: str, **values: object) -> bytes:
    info = tarfile.TarInfo(name)
    for key, value in values.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


@dataclass
class ProgressReporter:
    """Counts transferred bytes and emits `Progress` events, at most one per `_PROGRESS_INTERVAL`."""

    host: str
    step: str
    total: int
    emit: Emit
    done: int = 0
    detail: str = ""
    _last: float = field(default_factory=time.monotonic)

    def count_chunks(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            self.done += len(chunk)
            self.report()

    def report(self, *, always: bool = False) -> None:
        now = time.monotonic()
        if always or now - self._last >= _PROGRESS_INTERVAL:
            self._last = now
            self.emit(Progress(self.host, self.step, min(self.done, self.total), self.total, "B", self.detail))


# The last members of a tar stream that is complete.
TREE_END = build_tar_file("whole", b"", 0o600) + bytes(1024)


ARCHIVE = "tree.tar"  # what `Packer.pack` made, in a store on a host
_BEGINS = "target_directory.sh"


def build_script_command(
    script: str, *words: str, begins: str = "", stdin: bytes = b"", patience: float = STALL_TIMEOUT
) -> Command:
    """Returns a command that runs a shell script of `remote` with these words, behind that which ``begins`` it; once it
    has its input it may take so many seconds."""
    return Command(
        (f"ipexctl-{script}", *words),
        script=(read_script(begins) if begins else "") + read_script(script),
        stdin=stdin,
        timeout=patience + len(stdin) / _SLOWEST_RATE,
        cap=_OUTPUT_LIMIT,
        brief=True,
    )


def _build_receive_command(*words: str, stdin: bytes = b"") -> Command:
    return build_script_command("receive_tree.sh", *words, begins=_BEGINS, stdin=stdin)


def _run_receive_script(link: Link, *words: str, stdin: bytes = b"") -> Completed:
    return _run_script(link, _build_receive_command(*words, stdin=stdin))


def _run_script(link: Link, command: Command) -> Completed:
    completed = link.run(command)
    if not completed.ok:
        raise make_remote_error(link, completed.status, completed.err)
    return completed


def _stream_to_script(link: Link, words: Sequence[str], pieces: Iterable[bytes]) -> str:
    """Writes the pieces to the host's script and returns its output."""
    output = {"out": bytearray(), "err": bytearray()}
    sent = 0
    with link.stream(_build_receive_command(*words)) as channel, StallTimer(channel.close) as watch:
        try:
            for piece in pieces:
                channel.write(piece)
                watch.reset()
                sent += len(piece)
            channel.end_input()
        except BrokenPipeError:
            pass  # the script ended early; its status and error output follow
        except LinkError:
            raise
        except Exception:  # making the pieces failed: let the host clean up first
            watch.reset()
            channel.end_input()
            for _ in channel:
                pass
            raise
        finally:
            watch.reset(STALL_TIMEOUT + sent / 50e6)  # the script may have to hash or sync the files
        for stream, data in channel:
            output[stream] += data[: 4096 - len(output[stream])]
        status = channel.status() if not watch.stalled else 1
    if watch.stalled:
        raise _make_step_error(link, f"no progress for {watch.patience:g} s after {format_size(sent)}", "stalled")
    if status:
        raise make_remote_error(link, status, bytes(output["err"]))
    return os.fsdecode(bytes(output["out"])).removesuffix("\n")


def _read_up_to(pieces: Iterator[bytes], size: int) -> bytes:
    """Returns the pieces until there are more than ``size`` bytes of them, or all."""
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        if len(gathered) > size:
            break
    return bytes(gathered)


UNTRUSTED = 4  # the status of a script that executes nothing where others may have put it: `remote/ownership.sh`


_MOVE_AWAY = f"on it, where no run goes on: mv ~/{STATE} ~/{STATE}.untrusted"


def make_remote_error(link: Link, status: int, err: bytes) -> LinkError:
    """Returns what a script of ours says on its standard error: what is wrong and where, and what helps."""
    lines = err[-TAIL_LIMIT:].decode("utf-8", "surrogateescape").strip().splitlines()
    if status == UNTRUSTED and lines:
        what = f"nothing of a run is executed: {printable(lines[-1], 400)}"
        return LinkError(Failure(link.host.name, Kind.STEP, what, _MOVE_AWAY, "untrusted"))
    what = printable(lines[-1], 200) if lines else f"the host's shell ended with status {status}"
    full = "No space left" in what or "no space left" in what
    return _make_step_error(link, what, "no-space" if full else "refused-there")


def _make_step_error(link: Link, what: str, code: str) -> LinkError:
    text = "room there; only a project can be on another disk (--workdir); what ipexctl has filled there:"
    hint: str | Hint | None = advise("du", text=text) if code == "no-space" else None
    if what.startswith("cannot create ") and what.endswith((": Read-only file system", ": Permission denied")):
        hint = "a directory that this login can write there; for a project: --workdir DIRECTORY"
    return LinkError(Failure(link.host.name, Kind.STEP, what, hint, code))
