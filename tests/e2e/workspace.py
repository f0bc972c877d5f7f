"""A user at the controller of a cluster: `ipexctl` as a program, and what it leaves behind."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyte

from ipexctl.model.json_values import to_json
from ipexctl.model.stack import StackMpi, StackSummary
from ipexctl.verbs.files.project import find_project
from tests import mpi
from tests.cluster import Cluster
from tests.e2e.command_server import can_fork, run_forked
from tests.waiting import wait

ROOT = Path(__file__).parents[2]
ACTOR = ROOT / "tests/integration/ranks/actor.py"
RANKS = Path(__file__).parent / "ranks"
IPEXCTL = (sys.executable, "-m", "ipexctl")
LIGHT = "/opt/light"  # on the hosts: an environment with Intel MPI only
GATE = "/root/ledger/go"  # `count N GATE` of the actor goes on from tick 9 once its host has this file (`open_gates`)
# A run that notices a tenth as late what is lost: ``workspace("run", …, **QUICK)``.
_QUICK = {"ping": 0.5, "idle": 0.5, "beat": 0.5, "silent": 3, "quiet": 4, "poll": 0.2, "ready_timeout": 15}
QUICK = {"IPEXCTL_TIMINGS": json.dumps(_QUICK)}


@dataclass(frozen=True)
class CommandResult:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def answer(self) -> dict[str, Any]:
        """With --json: standard output, which is one JSON document and nothing else."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value

    def __str__(self) -> str:
        return f"exit {self.code}\n{self.out}\n{self.err}"


def find_place(source: Path) -> str:
    """Where a directory, or the project of a script, goes on hosts."""
    return f"/root/ipexctl/{find_project(source, None).name}"


def write_hostfile(cluster: Cluster, file: Path, venv: str) -> Path:
    """Writes the hostfile of a cluster whose hosts have their environment elsewhere than where other tests have it."""
    hosts = [line for line in cluster.hostfile.read_text().splitlines() if line.strip()]
    file.write_text("".join(f"{line} venv={venv}\n" for line in hosts))
    return file


class Workspace:
    """``workspace("run", "script.py")`` runs a command to its end; ``workspace.start(…)`` leaves it running.

    Each workspace is another user's: an own home, own state, an empty environment.
    """

    def __init__(self, cluster: Cluster, path: Path, *, hostfile: Path | None = None) -> None:
        self.cluster, self.path = cluster, path
        self.hostfile = hostfile or cluster.hostfile
        path.mkdir(parents=True, exist_ok=True)
        self.home = path / "home"
        self.home.mkdir(mode=0o700, exist_ok=True)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "PYTHONPATH": str(ROOT),
            "IPEXCTL_HOSTFILE": str(self.hostfile),
        }

    def words(self, *words: str | Path) -> list[str]:
        return [*self.cluster.controller, *IPEXCTL, *map(str, words)]

    def __call__(self, *words: str | Path, timeout: float = 120.0, **env: str) -> CommandResult:
        done = self._run(words, env, timeout)
        return CommandResult(
            done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        )

    def _run(
        self, words: Sequence[str | Path], env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        whole = {**self.env, **env}
        asked: dict[str, Any] = {"env": whole, "cwd": self.path, "timeout": timeout}
        try:
            if can_fork(whole):
                return run_forked(self.cluster.network, [*map(str, words)], **asked)
            return subprocess.run(self.words(*words), stdin=subprocess.DEVNULL, capture_output=True, **asked)
        except subprocess.TimeoutExpired as late:
            printed = b"".join(filter(None, (late.stdout, late.stderr))).decode("utf-8", "replace")
            raise AssertionError(f"{[*words]} still going on after {timeout} s:\n{printed}") from None

    def succeed(self, *words: str | Path, timeout: float = 120.0, **env: str) -> CommandResult:
        """Runs a command that must end with 0."""
        result = self(*words, timeout=timeout, **env)
        assert result.code == 0, result
        return result

    def raw(self, *words: str | Path, timeout: float = 120.0) -> tuple[bytes, bytes]:
        """Standard output and error as they are, of a command that ends with 0."""
        done = self._run(words, {}, timeout)
        done.check_returncode()
        return done.stdout, done.stderr

    def start(self, *words: str | Path, **env: str) -> Started:
        """Begins a command. Its output goes to files."""
        return Started(self, words, env)

    def start_for_test(self) -> Iterator[Callable[..., Started]]:
        """Yields `start` for a fixture, which ends what a test has begun."""
        begun: list[Started] = []

        def start(*words: str | Path, **env: str) -> Started:
            begun.append(self.start(*words, **env))
            return begun[-1]

        yield start
        for command in begun:
            command.close()

    @property
    def records(self) -> list[Path]:
        """What was saved, oldest first."""
        place = self.home / ".local/state/ipexctl/runs"
        return sorted(place.iterdir(), key=lambda path: path.stat().st_ctime) if place.is_dir() else []

    def report(self) -> dict[str, Any]:
        """Of the last command."""
        value = json.loads((self.records[-1] / "report.json").read_text())
        assert isinstance(value, dict)
        return value

    def written(self, rank: int, stream: str = "out") -> bytes:
        """What this rank wrote, as the last command saved it."""
        return (self.records[-1] / "ranks" / f"{rank}.{stream}").read_bytes()


class Started:
    """A command that is going on, or was."""

    def __init__(
        self, workspace: Workspace, words: Sequence[str | Path], env: dict[str, str], terminal: int | None = None
    ) -> None:
        self.workspace = workspace
        number = len(list(workspace.path.glob("out.*")))
        self.files = workspace.path / f"out.{number}", workspace.path / f"err.{number}"
        out, err = (path.open("wb") for path in self.files)
        with out, err:
            self.process = subprocess.Popen(
                workspace.words(*words),
                env=workspace.env | env,
                cwd=workspace.path,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(
                    signal.SIGINT, signal.SIG_DFL
                ),  # in the background, who tests ignores it
            )

    @property
    def output(self) -> CommandResult:
        code = self.process.poll()
        out, err = (path.read_text("utf-8", "replace") for path in self.files)
        return CommandResult(-999 if code is None else code, out, err)

    def until(self, *words: str, timeout: float = 60.0) -> CommandResult:
        """Waits until all these words are on the screen (either stream)."""
        wait(
            lambda: all(word in self.output.out + self.output.err for word in words) or self.process.poll() is not None,
            timeout,
            lambda: f"no {words} in\n{self.output}",
        )
        output = self.output
        assert all(word in output.out + output.err for word in words), f"ended without {words}:\n{output}"
        return output

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, timeout: float = 60.0) -> CommandResult:
        """Waits for its end."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still going on after {timeout} s:\n{self.output}") from None
        return self.output

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


Start = Callable[..., Started]
NewController = Callable[..., Workspace]
Group = tuple[str, ...]  # of words: the backend of a run and what that needs


class Terminal:
    """A command on a terminal of its own: `read` what was sent to it, `show` what a person saw on it, `close` it as a
    window is closed. The live screen sends only what changes: a word on the screen may have been sent in pieces."""

    def __init__(
        self, workspace: Workspace, *words: str | Path, columns: int = 100, lines: int = 30, program: str = "env"
    ) -> None:
        self.master, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen = b""
        self._drawn = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._drawn)
        self._shown: dict[str, None] = {}

        def own() -> None:
            os.setsid()
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, who tests has another
            fcntl.ioctl(far, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [program, *workspace.words(*words)],
            env=workspace.env,
            cwd=workspace.path,
            stdin=far,
            stdout=far,
            stderr=far,
            preexec_fn=own,
        )
        os.close(far)
        os.set_blocking(self.master, False)

    def read(self) -> bytes:
        """Everything that was written to it so far."""
        try:
            while piece := os.read(self.master, 65536):
                self.screen += piece
                self._stream.feed(piece)
                self._shown |= dict.fromkeys(line.rstrip() for line in self._drawn.display)
        except (BlockingIOError, OSError):
            pass
        return self.screen

    def look(self) -> str:
        """What is on the screen at this moment."""
        self.read()
        return "".join(f"{line.rstrip()}\n" for line in self._drawn.display)

    def show(self) -> bytes:
        """All lines that were on the screen at some moment, each once."""
        self.read()
        return "\n".join(self._shown).encode()

    def until(self, word: bytes, timeout: float = 60.0) -> None:
        wait(lambda: word in self.read() or word in self.show(), timeout, lambda: f"no {word!r} in {self.screen!r}")

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def end(self, timeout: float = 60.0) -> int:
        wait(lambda: (self.read(), self.process.poll() is not None)[1], timeout, lambda: f"going on: {self.screen!r}")
        return int(self.process.returncode)

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def kill(self) -> None:
        self.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def find_orphans(cluster: Cluster, hosts: Sequence[str] = ()) -> dict[str, list[str]]:
    """Processes on hosts that carry a run's mark, and run directories: what must not be after a run."""
    actual: dict[str, list[str]] = {}
    for host in hosts or cluster.names:
        marked = [
            f"{process.pid} {' '.join(process.argv)[:80]}"
            for process in cluster.processes(host)
            if "IPEXCTL_RUN" in process.environ
        ]
        runs = cluster.path(host, "/root/.local/state/ipexctl/runs")
        left = [path.name for path in runs.iterdir() if not path.name.startswith("lock")] if runs.is_dir() else []
        if marked or left:
            actual[host] = marked + left
    return actual


def open_gates(cluster: Cluster) -> None:
    for host in cluster.names:
        cluster.write(host, GATE, b"")


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Sends a signal to one of several processes, which may have ended since they were found."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def clean(cluster: Cluster) -> None:
    """What a failed test left on the hosts."""
    for host in cluster.names:
        for process in cluster.processes(host):
            if "IPEXCTL_RUN" in process.environ:
                kill(process.outer)
        for place in ("/root/.local/state/ipexctl", "/root/ledger"):
            shutil.rmtree(cluster.path(host, place), ignore_errors=True)
        cluster.path(host, "/root/ledger").mkdir(0o700)


@contextmanager
def trusted(cluster: Cluster) -> Iterator[None]:
    """node0 may log in to all hosts by their addresses, itself too: what a plain mpirun needs and ipexctl does not."""
    lines = [f"{cluster.address(host)} {cluster.host_key(host)}\n" for host in cluster.names]
    files = {"id_ed25519": cluster.key.read_bytes(), "known_hosts": "".join(lines).encode()}
    for name, data in files.items():
        cluster.write("node0", f"/root/.ssh/{name}", data, 0o600)
    try:
        yield
    finally:
        for name in files:
            cluster.path("node0", f"/root/.ssh/{name}").unlink()


def running(cluster: Cluster, host: str, word: str) -> list[int]:
    """The processes of a run on a host whose command line has this word in it, as ids on this machine."""
    return [
        process.outer
        for process in cluster.processes(host)
        if "IPEXCTL_RUN" in process.environ and any(word in part for part in process.argv[:8])
    ]


def light(cluster: Cluster, place: Path) -> None:
    """Puts an environment with nothing but Intel MPI on every host, as `ipexctl install` would leave it."""
    made = mpi.make(place / "light")
    (made / "ipexctl.json").write_text(marker(LIGHT, {}))
    for host in cluster.names:
        shutil.copytree(made, cluster.path(host, LIGHT), symlinks=True)


def marker(venv: str, packages: Mapping[str, str], **layout: object) -> str:
    """What install leaves in an environment with Intel MPI from PyPI and ``packages``, name → version; ``layout`` is
    what differs."""
    python, version = f"{sys.version_info.major}.{sys.version_info.minor}", mpi.IMPI.partition("==")[2]
    backend: Literal["gloo", "impi"] = "impi" if "impi-torch" in packages else "gloo"
    stack = StackSummary("lent", "2.8.0", None, None, None, backend, python, StackMpi("impi-rt", version))
    actual = {
        "mpi": "impi-rt", "version": version, "mpiexec": "bin/mpiexec.hydra", "bin": ["bin"],
        "lib": ["lib"], "providers": None, "mpi_root": "", "ccl_root": None, "module": None,
    }  # fmt: skip
    return json.dumps(
        {
            "format": 1,
            "id": "lent",
            "venv": venv,
            "prefix": venv,
            "python": python,
            "stack": to_json(stack),
            "packages": dict(packages),
            "layout": {**actual, **layout},
        }
    )


def lend(cluster: Cluster, venv: str, place: str, packages: Mapping[str, str] = {}) -> None:
    """Lets every host use an environment of this machine, which it sees below its own disk, at ``place``."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for host in cluster.names:
        cluster.write(host, f"{venv}/ipexctl.json", marker(venv, packages).encode())
        cluster.write(host, f"{venv}/pyvenv.cfg", b"home = /usr/bin\ninclude-system-site-packages = false\n")
        for name in ("python", "python3", version):  # uv's may lie in this user's home, which hosts do not see
            link = cluster.path(host, f"{venv}/bin/{name}")
            link.unlink(missing_ok=True)
            link.symlink_to(f"/usr/bin/{version}")
        link = cluster.path(host, place)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(venv)
