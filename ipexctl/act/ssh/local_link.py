"""The link to this machine: a subprocess in a session of its own, with the environment a login would have."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import cast

from ipexctl.act.ssh.collect import CommandLog, TimedOut, collect, timeout_error
from ipexctl.act.ssh.quoting import fit_line, make_stop_script, shell_line
from ipexctl.model.commands import Command, Completed
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import Stream
from ipexctl.model.hosts import Host
from ipexctl.model.links import LinkError

# What sshd would give a session too. Nothing else of the user's environment reaches a command.
_KEPT = ("HOME", "LOGNAME", "USER", "SHELL", "PATH", "LANG", "LC_ALL", "TZ")
_PIECE = 1 << 18


class LocalChannel:
    """A running local command; see `Channel`."""

    def __init__(self, process: subprocess.Popen[bytes], log: CommandLog) -> None:
        self._log = log
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin = process.stdin
        os.set_blocking(self._stdin.fileno(), False)
        self._woken, self._wake = socket.socketpair()  # readable for ever once `close` was called
        self._selector = selectors.DefaultSelector()
        self._selector.register(process.stdout, selectors.EVENT_READ, "out")
        self._selector.register(process.stderr, selectors.EVENT_READ, "err")
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._open = 2  # outputs that have not ended
        self._closed = False
        self._reading, self._writing, self._closing = threading.Lock(), threading.Lock(), threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self, timeout: float | None) -> list[tuple[Stream, bytes]] | None:
        """See `Pieces`. After `close` both outputs have ended."""
        with self._reading:
            if self._closed or not self._open:
                return None
            pieces: list[tuple[Stream, bytes]] = []
            for key, _ in self._selector.select(timeout):
                if key.data is None:
                    return None
                if data := os.read(key.fd, _PIECE):
                    pieces.append((cast(Stream, key.data), data))
                else:
                    self._selector.unregister(key.fileobj)
                    self._open -= 1
            return pieces if pieces or self._open else None

    def __iter__(self) -> Iterator[tuple[Stream, bytes]]:
        while (pieces := self.read(None)) is not None:
            yield from pieces

    def ended(self) -> bool:
        return self._process.poll() is not None

    def write(self, data: bytes) -> None:
        """Raises `BrokenPipeError` when the command no longer reads, or after `end_input` or `close`."""
        remaining = memoryview(data)
        with self._writing:
            if self._stdin.closed:
                raise BrokenPipeError("the command's input has ended")
            with selectors.DefaultSelector() as ready:
                ready.register(self._stdin, selectors.EVENT_WRITE)
                ready.register(self._woken, selectors.EVENT_READ)
                while remaining:
                    ready.select()
                    if self._closed:
                        raise BrokenPipeError("the channel was closed")
                    try:
                        remaining = remaining[os.write(self._stdin.fileno(), remaining) :]
                    except BlockingIOError:
                        continue

    def end_input(self) -> None:
        with self._writing:
            self._stdin.close()  # nothing is buffered: `write` goes past the file object

    def status(self) -> int:
        status = self._process.wait()
        return status if status >= 0 else 128 - status

    def close(self) -> None:
        """Ends our side at once, also while other threads read or write."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        status = self._process.poll()
        self._log.end(status if status is None or status >= 0 else 128 - status)
        self._wake.send(b"x")
        with self._reading, self._writing:
            self._selector.close()
            for end in (self._stdin, self._process.stdout, self._process.stderr, self._woken, self._wake):
                if end:
                    end.close()

    def __enter__(self) -> LocalChannel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LocalLink:
    """Commands on this machine. ``env`` replaces the environment of a login (`_KEPT` of ours)."""

    def __init__(self, host: Host, *, env: Mapping[str, str] | None = None) -> None:
        self._host = host
        self._env = dict(env) if env is not None else {key: os.environ[key] for key in _KEPT if key in os.environ}
        self._running: set[LocalChannel] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def host(self) -> Host:
        return self._host

    @property
    def alive(self) -> bool:
        return not self._closed

    def connect(self) -> None:
        """Nothing to do here."""

    def notes(self) -> tuple[str, ...]:
        return ()

    def run(self, command: Command) -> Completed:
        deadline = time.monotonic() + command.timeout
        channel = self._start(command)
        try:
            completed = collect(channel, command, deadline)
        except TimedOut:
            raise timeout_error(self._host.name, command, _stop_process_group(channel)) from None
        except BaseException:
            _stop_process_group(channel)
            raise
        finally:
            with self._lock:
                self._running.discard(channel)
            channel.close()
        if self._closed:
            raise self._gone()
        return completed

    def stream(self, command: Command) -> LocalChannel:
        channel = self._start(command, owned=False)
        if command.stdin:
            channel.write(command.stdin)
        return channel

    def close(self) -> None:
        """Stops what `run` is waiting for."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for channel in running:
            _stop_process_group(channel)
            channel.close()

    def _start(self, command: Command, *, owned: bool = True) -> LocalChannel:
        way = fit_line(shell_line(command))
        log = CommandLog(self._host.name, command)
        home = self._env.get("HOME", "/")
        process = subprocess.Popen(  # without a shell of Python's: sh is a word like others, its line quoted by us
            ("/bin/sh", "-c", way.line),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._env,
            cwd=home if os.path.isdir(home) else "/",  # noqa: PTH112
            start_new_session=True,
            bufsize=0,
        )
        channel = LocalChannel(process, log)
        with self._lock:
            if self._closed:
                _stop_process_group(channel)
                channel.close()
                raise self._gone()
            if owned:
                self._running.add(channel)
        if way.stdin:
            channel.write(way.stdin)
        return channel

    def _gone(self) -> LinkError:
        return LinkError(Failure(self._host.name, Kind.UNREACHABLE, "the link was closed", code="lost"))


def _stop_process_group(channel: LocalChannel) -> str:
    """Stops the command's process group; returns what may still run, or ""."""
    script = make_stop_script(channel.pid)
    result = subprocess.run(("/bin/sh", "-c", script), stdin=subprocess.DEVNULL, capture_output=True)
    channel.ended()  # takes its status, so that no zombie is left
    return f"process {channel.pid} may still be running" if b"alive" in result.stdout else ""
