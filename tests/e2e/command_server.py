"""Commands of ipexctl at the price of a fork: a process that has imported all of it becomes each of them.

Imports are half of the processor time of a short command. `Started` and `Terminal` start real programs."""

import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import ipexctl.__main__
from tests.cluster.spaces import enter

ROOT = Path(__file__).parents[2]
# What an interpreter reads when it starts: a command with other values needs one of its own.
INTERPRETER = {"LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
_INTERPRETER_NAMES = ("LANG", "LC_", "LD_", "PYTHON", "TZ")
_NUMBER = struct.Struct("i")  # a process id, then its exit code


def can_fork(env: Mapping[str, str]) -> bool:
    """Whether a command with this environment begins as the server did."""
    return {name: value for name, value in env.items() if name.startswith(_INTERPRETER_NAMES)} == INTERPRETER


def run_forked(
    network: str, words: Sequence[str], env: Mapping[str, str], cwd: Path, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Does for ``python -m ipexctl`` with these words, in a network namespace, what `subprocess.run` does."""
    with tempfile.TemporaryFile("w+") as request, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        json.dump([network, list(words), dict(env), str(cwd)], request)
        request.flush()
        status, theirs = os.pipe()
        with open(status, "rb", buffering=0) as numbers:
            fds = [request.fileno(), out.fileno(), err.fileno(), theirs]
            socket.send_fds(_start_server(), [b"command"], fds)
            os.close(theirs)
            (pid,) = _NUMBER.unpack(numbers.read(_NUMBER.size))
            try:
                in_time = bool(select.select([numbers], [], [], timeout)[0])
            except BaseException:  # pytest's own limit, or Ctrl-C
                os.kill(pid, signal.SIGKILL)
                raise
            if not in_time:
                os.kill(pid, signal.SIGKILL)
            (code,) = _NUMBER.unpack(numbers.read(_NUMBER.size))
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess([*words], code, out.read(), err.read())
    if not in_time:
        raise subprocess.TimeoutExpired(done.args, timeout, done.stdout, done.stderr)
    return done


@cache
def _start_server() -> socket.socket:
    """Returns the connection to the server of this process, which ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        words = [sys.executable, "-m", "tests.e2e.command_server"]
        env = {**INTERPRETER, "PATH": os.environ["PATH"]}
        subprocess.Popen(words, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=env)
    return ours


def serve() -> None:
    """Becomes each command that is asked for on standard input; what goes on is the server, until nobody asks."""
    for module in pkgutil.walk_packages(ipexctl.__path__, "ipexctl."):
        if not module.name.startswith("ipexctl.remote."):  # which is for hosts
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()
    running: dict[int, int] = {}  # process id → where its exit code goes

    def report_ends(*_: object) -> None:
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _send(running.pop(pid), os.waitstatus_to_exitcode(status), last=True)

    signal.signal(signal.SIGCHLD, report_ends)
    requests = socket.socket(fileno=0)
    while True:
        word, fds, _, _ = socket.recv_fds(requests, len(b"command"), 4)
        if not word:
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        else:
            running[pid] = fds.pop()
            for fd in fds:
                os.close(fd)
            _send(running[pid], pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        if not pid:
            requests.detach()
            _become(*fds)
            return


def _send(fd: int, number: int, *, last: bool = False) -> None:
    try:
        os.write(fd, _NUMBER.pack(number))
    except BrokenPipeError:
        pass  # the test has ended
    if last:
        os.close(fd)


def _become(request: int, *outputs: int) -> None:
    with open(request) as file:
        file.seek(0)
        network, words, env, cwd = json.load(file)
    with open(network, "rb") as space:
        enter(space.fileno())
    for target, fd in enumerate((os.open(os.devnull, os.O_RDONLY), *outputs[:2])):
        os.dup2(fd, target)
    os.closerange(3, 64)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [ipexctl.__main__.__file__, *words]
    sys.path[0] = cwd
    code: Any = 0
    try:
        ipexctl.__main__.main()
    except SystemExit as ended:
        code = ended.code or 0
    # What an interpreter does at its end, but for the modules, which it takes apart.
    threading._shutdown()  # type: ignore[attr-defined]
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
