"""Files onto a host: whole or not at all, never through a link somebody planted, never readable by others.

What the host does is `remote/receive_tree.sh`: everything is received into a private directory beside its target
and moved into place by rename.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import secrets
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from ipexctl.act.stall_timer import PATIENCE, StallTimer
from ipexctl.model.commands import Command, Completed
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import Event, Progress
from ipexctl.model.links import Channel, Link, LinkError
from ipexctl.model.text import printable
from ipexctl.protocol.paths import PART

Emit = Callable[[Event], None]

_CHUNK = 1 << 20  # bytes given to the link at once
_TOLD = 0.1  # seconds between two progress events of one host
_TRIES = 3


def write_files(
    link: Link,
    files: Mapping[str, bytes],
    directory: str,
    *,
    mode: int = 0o600,
    modes: Mapping[str, int] | None = None,
) -> str:
    """Writes small ``files`` (relative path → contents) into ``directory`` on the host; returns its absolute path.

    ``directory`` is absolute, or relative to the home directory, and is created 0700; files get ``mode`` or what
    ``modes`` says of them, whatever the umask. Each file is replaced by rename. A directory that is a link, belongs to
    somebody else or can be written by others is refused: `LinkError` with the reason.
    """
    wanted = modes or {}
    parcel = bytearray(tar_directory("tree"))
    seen = {""}
    for name in sorted(files):
        _require_relative(name)
        for parent in reversed(Path(name).parents):
            if (at := "" if str(parent) == "." else str(parent)) not in seen:
                seen.add(at)
                parcel += tar_directory(f"tree/{at}")
        parcel += tar_file(f"tree/{name}", files[name], wanted.get(name, mode))
    return install_tree(link, directory, [bytes(parcel)], own=f"put-{secrets.token_hex(8)}")


def send_file(
    link: Link, source: Path, target: str, emit: Emit, step: str, *, sha256: str | None = None, mode: int = 0o600
) -> bool:
    """Brings one big file to ``target`` (absolute, or relative to the home directory) and checks its hash there.

    Goes on where an earlier try was cut. Returns False when the file was there already, byte for byte. ``sha256`` (hex)
    is taken from the file where it is not given. Raises `LinkError` when it cannot be written or does not arrive whole.
    """
    directory, _, name = target.rpartition("/")
    digest = sha256 or hash_file(source)
    size = source.stat().st_size
    for attempt in range(_TRIES):
        whole, partial, free = _run(link, "have", directory or "/", name, digest).text.split()
        if whole != "-":
            return False
        done = int(partial) if int(partial) <= size and not attempt else 0
        if int(free) * 1024 < size - done:
            room = f"need {_mb(size - done)}, {_mb(int(free) * 1024)} free in {directory}"
            raise _step_error(link, f"no space left: {room}", "no-space")
        told = ProgressReporter(link.host.name, step, size, emit, done, detail=name)
        words = ("append", directory or "/", name, digest, str(done), f"{mode:o}")
        with source.open("rb") as file:
            file.seek(done)
            chunks = iter(lambda: file.read(_CHUNK), b"")
            said = _stream(link, words, _without_greeting(told.count_chunks(chunks)))
        if said != "partial":
            return True
    raise _step_error(link, f"{printable(name)} arrived damaged {_TRIES} times", "damaged")


def install_tree(link: Link, directory: str, parcel: Iterable[bytes], *, own: str, old: Sequence[str] = ()) -> str:
    """Unpacks a parcel (pieces of a tar stream with ``tree/…`` in it) into ``directory`` and returns its absolute path.

    ``own`` names this push; ``old`` are the private directories of earlier ones, to be removed. If the pieces raise,
    nothing has changed there.
    """
    return _stream(link, ("place", directory, PART + own, *old), _without_greeting(_with_end_marker(parcel)))


def merge_tree(
    link: Link, directory: str, parcel: Callable[[str], Iterable[bytes]], *, own: str, old: Sequence[str] = ()
) -> str:
    """As `place`, but ``parcel`` is called with a private directory on the host (absolute), two levels below
    ``directory``: files put there by other means go the same way as those of the stream, if it has ``merged`` (their
    names) and ``sums`` in it.
    """
    return _stream(
        link, ("merge", directory, PART + own, *old), lambda into: _with_end_marker(parcel(into)), greeted=True
    )


def _with_end_marker(parcel: Iterable[bytes]) -> Iterator[bytes]:
    yield from parcel
    yield tar_file("whole", b"", 0o600) + bytes(1024)


def list_tree(link: Link, directory: str) -> bytes:
    """What there is in ``directory`` on the host, as `decide.planning.sync.read_state` understands it."""
    return _run(link, "look", directory).out


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def tar_file(name: str, data: bytes, mode: int, mtime: int = 0) -> bytes:
    """One file of a tar stream, header and contents."""
    return tar_header(name, size=len(data), mode=mode, mtime=mtime) + data + bytes(-len(data) % 512)


def tar_header(name: str, *, size: int = 0, mode: int = 0o600, mtime: int = 0, link: str | None = None) -> bytes:
    """The header of a tar member: a file, or a symbolic link if ``link`` says where to."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, mode, mtime
    if link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, link
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def tar_directory(name: str) -> bytes:
    """A directory of a tar stream, 0700."""
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o700
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


@dataclass
class ProgressReporter:
    """Counts bytes on their way and tells it, not too often."""

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
            self.count(len(chunk))
        self.report(always=True)

    def count(self, size: int) -> None:
        self.done += size
        self.report()

    def report(self, *, always: bool = False) -> None:
        now = time.monotonic()
        if always or now - self._last >= _TOLD:
            self._last = now
            self.emit(Progress(self.host, self.step, min(self.done, self.total), self.total, "B", self.detail))


def _script() -> str:
    return resources.files("ipexctl.remote").joinpath("receive_tree.sh").read_text("utf-8")


def _command(words: Sequence[str]) -> Command:
    return Command(("/bin/sh", "-c", _script(), "ipexctl-place", *words), timeout=PATIENCE, cap=256 << 20)


def _run(link: Link, *words: str) -> Completed:
    completed = link.run(_command(words))
    if not completed.ok:
        raise _remote_error(link, completed.status, completed.err)
    return completed


def _stream(
    link: Link, words: Sequence[str], pieces: Callable[[str], Iterable[bytes]], *, greeted: bool = False
) -> str:
    """Gives the pieces to the host's script; returns what it says in the end.

    A script that greets says one line before it reads; the pieces are made with it, however long that takes.
    """
    said = {"out": bytearray(), "err": bytearray()}
    sent = 0
    with link.stream(_command(words)) as channel, StallTimer(channel.close) as watch:
        greeting = _read_greeting(channel, said) if greeted else ""
        try:
            if greeting is not None:
                watch.moved(math.inf)
                for piece in _rechunk(pieces(greeting)):
                    channel.write(piece)
                    watch.moved()
                    sent += len(piece)
            channel.end_input()
        except BrokenPipeError:
            pass  # it ended early and says why
        except LinkError:
            raise
        except Exception:  # the pieces could not be made: let the host clean up before we go on
            watch.moved()
            channel.end_input()
            for _ in channel:
                pass
            raise
        finally:
            watch.moved(PATIENCE + sent / 50e6)  # it may have to hash or sync what it got
        for stream, data in channel:
            said[stream] += data[: 4096 - len(said[stream])]
        status = channel.status() if not watch.stalled else 1
    if watch.stalled:
        raise _step_error(link, f"no progress for {PATIENCE:g} s after {_mb(sent)}", "stalled")
    if status:
        raise _remote_error(link, status, bytes(said["err"]))
    return os.fsdecode(bytes(said["out"])).removesuffix("\n")


def _without_greeting(pieces: Iterable[bytes]) -> Callable[[str], Iterable[bytes]]:
    return lambda _: pieces


def _read_greeting(channel: Channel, said: dict[str, bytearray]) -> str | None:
    """The first line; None if it has ended without one."""
    for stream, data in channel:
        said[stream] += data[: 8192 - len(said[stream])]
        line, end, rest = said["out"].partition(b"\n")
        if end:
            said["out"] = bytearray(rest)
            return os.fsdecode(bytes(line))
    return None


def _rechunk(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of about a chunk, so that many small ones cost little."""
    gathered = io.BytesIO()
    for piece in pieces:
        if gathered.tell() == 0 and len(piece) >= _CHUNK:
            yield piece
            continue
        gathered.write(piece)
        if gathered.tell() >= _CHUNK:
            yield gathered.getvalue()
            gathered = io.BytesIO()
    if gathered.tell():
        yield gathered.getvalue()


def _remote_error(link: Link, status: int, err: bytes) -> LinkError:
    lines = err.decode("utf-8", "surrogateescape").strip().splitlines()
    what = printable(lines[-1], 200) if lines else f"the host's shell ended with status {status}"
    full = "No space left" in what or "no space left" in what
    return _step_error(link, what, "no-space" if full else "refused-there")


def _step_error(link: Link, what: str, code: str) -> LinkError:
    return LinkError(Failure(link.host.name, Kind.STEP, what, code=code))


def _require_relative(name: str) -> None:
    parts = name.split("/")
    if not name or name.startswith("/") or ".." in parts or "" in parts or "." in parts or "\0" in name:
        raise ValueError(f"not a plain relative path: {name!r}")


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
