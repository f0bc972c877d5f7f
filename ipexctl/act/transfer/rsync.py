"""Large files of which a part changed: rsync sends the changed parts, over the open connection.

rsync's remote shell is `rsync_shell.py`, which passes its two pipes to this process; they are joined to a channel of
the link. So there is no second connection and no second set of rules for keys and hosts. rsync writes into a private
directory; it reads the old versions in place and never changes them."""

import array
import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from ipexctl.act.stall_timer import PATIENCE, StallTimer
from ipexctl.model.commands import Command
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.links import Channel, Link, LinkError
from ipexctl.model.text import printable

_STARTING = 20.0  # seconds the local rsync may take until it starts its remote shell
_ENDING = 5.0  # seconds both sides may take to end, once they are stopped
_PIECE = 1 << 18
_WORD = re.compile(rb"[A-Za-z0-9._,=/-]+")  # no character that a shell interprets

_OPTIONS = (
    "--from0",
    "--files-from=-",
    "--no-implied-dirs",
    "--times",
    "--perms",
    "--chmod=Fu=rwX,Fgo=,Fug-s,Fo-t",  # 0600, or 0700 for executables
    "--ignore-times",  # the plan has chosen the files already
    "--no-whole-file",
    f"--timeout={PATIENCE:.0f}",
)
_RECORDED_CHECKSUM = "--checksum-choice=xxh128"  # in batch mode rsync chooses MD5, which takes ten times as long
# The old versions, relative to the private directory: read, never written.
_SENDING = ("--copy-dest=../..", "--", "./", "host:.")
_RECEIVING = ("--copy-dest=..", "--copy-links", "--", "host:./", "./")


class RsyncError(Exception):
    """rsync failed on one of the sides; the text says why. Only the private directory has changed."""


def find_rsync() -> str | None:
    """The path of the local rsync, None without one."""
    return shutil.which("rsync")


def send_files(
    link: Link,
    root: Path,
    names: Sequence[str],
    into: str,
    sent: Callable[[int], None],
    *,
    record: Path | None = None,
) -> None:
    """Sends the files ``names`` of ``root`` into the directory ``into`` on the host, two levels below the old versions.
    With ``record`` writes what is sent to this file (absolute), for `remote/receive_tree.sh`.

    Calls ``sent`` with the number of bytes of each write. Raises `RsyncError`, or `LinkError` for a lost connection."""
    words = _SENDING if record is None else (f"--write-batch={record}", _RECORDED_CHECKSUM, *_SENDING)
    _run_rsync(link, root, names, into, words, sent=sent)


def receive_files(
    link: Link, sizes: Mapping[str, int], directory: str, into: Path, received: Callable[[int], None]
) -> None:
    """Receives files of ``directory`` on the host into ``into``, one level below the old versions. A host that sends
    more than ``sizes`` (bytes by name) is stopped, and no file grows beyond the largest of them.

    Calls ``received`` with the number of bytes of each read. Raises as `send_files` does."""
    _run_rsync(link, into, [*sizes], directory, _RECEIVING, received=received, sizes=[*sizes.values()])


def _run_rsync(
    link: Link,
    root: Path,
    names: Sequence[str],
    directory: str,
    words: Sequence[str],
    *,
    sent: Callable[[int], None] = lambda _: None,
    received: Callable[[int], None] = lambda _: None,
    sizes: Sequence[int] = (),
) -> None:
    """Runs a local rsync in ``root`` and one on the host in ``directory``, over a channel of the link."""
    program = find_rsync()
    if program is None:
        raise RsyncError("rsync is not installed on this machine")
    with contextlib.ExitStack() as ending:
        stderr_file = ending.enter_context(tempfile.TemporaryFile())
        local_end, remote_end = socket.socketpair(socket.AF_UNIX)
        ending.enter_context(local_end)
        with remote_end:
            process = _start_rsync(program, words, root, names, remote_end, stderr_file)
        ending.callback(_end_process, process)
        if sizes:  # it has children only once its remote shell's pipes are received
            most = max(*sizes, 1 << 16)  # its error output is a file, too
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
        remote_words, source, sink = _receive_pipes(local_end, process, stderr_file)
        ending.enter_context(source)
        ending.enter_context(sink)
        channel = ending.enter_context(_open_channel(link, Command(remote_words, cwd=directory)))

        def stop() -> None:
            channel.close()
            _end_process(process)

        watch = ending.enter_context(StallTimer(stop))

        def copy_input() -> None:
            try:
                while data := source.read(_PIECE):
                    channel.write(data)
                    watch.reset()
                    sent(len(data))
                channel.end_input()
            except (OSError, LinkError):
                pass  # the other direction reports the error

        copier = threading.Thread(target=copy_input, name=f"rsync to {link.host.name}", daemon=True)
        copier.start()
        ending.callback(copier.join, _ENDING)
        ending.callback(stop)  # runs first, so that the thread does not wait for rsync
        most = sum(sizes) + sum(sizes) // 8 + (1 << 20) if sizes else sys.maxsize
        err = _relay_to_local_rsync(channel, sink, watch, received, most)
        status = 255 if watch.stalled else channel.status()
        sink.close()
        with contextlib.suppress(OSError):
            local_end.send(bytes([min(status, 255)]))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING)
        local_err = _read_tail(stderr_file)
    if watch.stalled:
        raise LinkError(Failure(link.host.name, Kind.STEP, f"no progress for {PATIENCE:g} s in rsync", code="stalled"))
    if code := status or process.returncode:
        raise RsyncError(_explain_status(code, err or local_err))


def _open_channel(link: Link, command: Command) -> Channel:
    try:
        return link.stream(command)
    except LinkError as error:
        if error.failure.code == "sessions":
            raise RsyncError(error.failure.what) from None
        raise


def _relay_to_local_rsync(
    channel: Channel, sink: IO[bytes], watch: StallTimer, received: Callable[[int], None], most: int
) -> bytes:
    """Copies the output of the host's rsync to the local one until it ends; returns its error output. Raises
    `RsyncError` at more than ``most`` bytes."""
    err = bytearray()
    for stream, data in channel:
        watch.reset()
        if stream == "err":
            err += data[: 4096 - len(err)]
            continue
        received(len(data))
        most -= len(data)
        if most < 0:
            raise RsyncError("the host sends more than it listed")
        remaining = memoryview(data)
        try:
            while remaining:
                remaining = remaining[sink.write(remaining) :]
        except ConnectionError:
            pass  # the local rsync ended early with a message; the host's then ends too
    return bytes(err)


def _start_rsync(
    program: str, words: Sequence[str], root: Path, names: Sequence[str], remote_end: socket.socket, stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    proxy = [sys.executable, "-I", "-S", str(Path(__file__).with_name("rsync_shell.py")), str(remote_end.fileno())]
    shell = " ".join('"' + word.replace('"', '""') + '"' for word in proxy)
    # Nothing of the user's environment: rsync reads RSYNC_…, and aliases from the home directory.
    env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent", "LC_ALL": "C"}
    with tempfile.TemporaryFile() as names_file:
        names_file.write(b"".join(os.fsencode("./" + name) + b"\0" for name in names))
        names_file.seek(0)
        return subprocess.Popen(
            [program, *_OPTIONS, "--rsh", shell, *words],
            stdin=names_file,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            cwd=root,
            env=env,
            pass_fds=(remote_end.fileno(),),
            start_new_session=True,
        )


def _receive_pipes(
    local_end: socket.socket, process: subprocess.Popen[bytes], stderr_file: IO[bytes]
) -> tuple[tuple[str, ...], IO[bytes], IO[bytes]]:
    """The command that the local rsync wants to run on the host, and the pipes from and to it. Raises `RsyncError`."""
    local_end.settimeout(_STARTING)
    pipes = array.array("i")
    try:
        data, more, _, _ = local_end.recvmsg(1 << 16, socket.CMSG_SPACE(2 * pipes.itemsize))
    except OSError:
        raise RsyncError("the local rsync does not start") from None
    for _, kind, rights in more:
        if kind == socket.SCM_RIGHTS:
            pipes.frombytes(rights[: len(rights) - len(rights) % pipes.itemsize])
    words = data.split(b"\0")
    if len(pipes) == 2 and words[:2] == [b"rsync", b"--server"] and all(map(_WORD.fullmatch, words)):
        for pipe in pipes:
            os.set_blocking(pipe, True)
        return tuple(map(os.fsdecode, words)), os.fdopen(pipes[0], "rb", 0), os.fdopen(pipes[1], "wb", 0)
    for pipe in pipes:
        os.close(pipe)
    if data:
        raise RsyncError("the local rsync wants to run an unknown command")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_ENDING)
    raise RsyncError(_explain_status(process.returncode or 0, _read_tail(stderr_file)))


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """Ends the local rsync and its remote shell, which are a process group of their own."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)


def _read_tail(stderr_file: IO[bytes]) -> bytes:
    size = stderr_file.seek(0, os.SEEK_END)
    stderr_file.seek(max(0, size - 4096))
    return stderr_file.read()


def _explain_status(status: int, err: bytes) -> str:
    """The status with rsync's first line of errors, which is the cause; the last one is a summary."""
    lines = err.decode("utf-8", "surrogateescape").strip().splitlines()
    return f"rsync ended with status {status}" + (f": {printable(lines[0], 160)}" if lines else "")
