"""The link to this machine: a subprocess in a session of its own, with the environment a login would have."""

import os
import selectors
import socket
import subprocess
import threading
from collections.abc import Mapping
from typing import cast

from ipexctl.act.inputs import expand_home
from ipexctl.act.ssh.command_link import CommandChannel, CommandLink, CommandLog
from ipexctl.act.ssh.quoting import fit_argument_limit, format_shell_line
from ipexctl.model.events import Stream
from ipexctl.model.hosts import Command, Host

# What sshd would give a session too. Nothing else of the user's environment reaches a command.
_INHERITED_VARIABLES = ("HOME", "LOGNAME", "USER", "SHELL", "PATH", "LANG", "LC_ALL", "TZ")
_READ_SIZE = 1 << 18


class LocalChannel(CommandChannel):
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
                if data := os.read(key.fd, _READ_SIZE):
                    pieces.append((cast(Stream, key.data), data))
                else:
                    self._selector.unregister(key.fileobj)
                    self._open -= 1
            return pieces if pieces or self._open else None

    def has_ended(self) -> bool:
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
        self._log.log_end(self.status() if self.has_ended() else None)
        self._wake.send(b"x")
        with self._reading, self._writing:
            self._selector.close()
            for end in (self._stdin, self._process.stdout, self._process.stderr, self._woken, self._wake):
                if end:
                    end.close()


class LocalLink(CommandLink[LocalChannel]):
    """Commands on this machine. ``env`` replaces the environment of a login (`_INHERITED_VARIABLES` of ours)."""

    def __init__(self, host: Host, *, env: Mapping[str, str] | None = None) -> None:
        super().__init__(host)
        if env is None:
            inherited = {key: os.environ[key] for key in _INHERITED_VARIABLES if os.environ.get(key)}
            env = {"HOME": str(expand_home("~")), **inherited}  # cron and containers may give us none
        self._env = dict(env)

    def _start_command(self, command: Command, patience: float) -> LocalChannel:
        way = fit_argument_limit(format_shell_line(command))
        log = CommandLog(self._host.name, command)
        line = ("/bin/sh", "-c", way.line)  # no shell of Python's: sh is a word like others, its line quoted by us
        home, pipe = self._env.get("HOME", "/"), subprocess.PIPE
        cwd = home if os.path.isdir(home) else "/"  # noqa: PTH112
        process = subprocess.Popen(
            line, stdin=pipe, stdout=pipe, stderr=pipe, env=self._env, cwd=cwd, start_new_session=True, bufsize=0
        )
        channel = LocalChannel(process, log)
        if way.stdin:
            channel.write(way.stdin)
        return channel
