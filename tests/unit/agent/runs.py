"""Runs of a real keeper on this machine, without a launcher: mpirun is a program of the test's choice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ipexctl
from ipexctl.remote.agent import procs, rpc

TOKEN = "t" * 64
PLAIN = {
    "PATH": os.environ["PATH"],
    "PYTHONPATH": str(Path(ipexctl.__file__).parents[1]),
    "PYTHONDONTWRITEBYTECODE": "1",
}


def remote(module: str, *words: str, before: str = "pass") -> list[str]:
    """The command line of a module of the remote side; ``before`` are statements that go first."""
    program = f"import sys; from ipexctl.remote.agent import {module}; {before}; sys.exit({module}.main(sys.argv[1:]))"
    return [sys.executable, "-c", program, *words]


@dataclass
class Kept:
    """A run whose keeper lives. Its only host is ``a``, whose guard the test plays, or none."""

    directory: Path
    port: int
    spec: Mapping[str, Any]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def connect(self, role: str, name: str) -> rpc.Wire:
        return rpc.connect("127.0.0.1", self.port, TOKEN, role, name, 5.0)

    def start(self, words: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        """A process beside the keeper, which ends with the test."""
        self.started.append(subprocess.Popen(words, **{"env": PLAIN, "stdin": subprocess.PIPE, **more}))
        return self.started[-1]

    def state(self) -> dict[str, Any]:
        """What the keeper says of itself: ``state``, ``watchers``."""
        link = self.connect("tell", "test")
        link.send({"do": "look"})
        said: list[dict[str, Any]] = []

        def answers() -> list[dict[str, Any]]:
            said.extend(link.take())
            return said

        until(answers)
        link.close()
        return said[0]

    def end(self) -> dict[str, Any]:
        return dict(json.loads((self.directory / "end.json").read_text()))

    @property
    def over(self) -> bool:
        return (self.directory / "end.json").exists()


@contextmanager
def keeping(place: Path, umask: int = -1, **spec: Any) -> Iterator[Kept]:
    """A keeper in ``place``/run, started with this umask; ``spec`` changes its run's specification."""
    directory = place / "run"
    (directory / "ranks").mkdir(parents=True, mode=0o700)
    directory.chmod(0o700)
    told = {**SPEC, "hosts": {"a": {**SPEC["hosts"]["a"], "directory": str(directory)}}, **spec}
    (directory / "spec.json").write_text(json.dumps(told))
    done = subprocess.run(
        remote("keeper", str(directory)), stdout=subprocess.PIPE, env=PLAIN, timeout=20, check=True, umask=umask
    )
    kept = Kept(directory, json.loads(done.stdout)["port"], told)
    until((directory / "keeper.json").exists)
    keeper = procs.look(json.loads((directory / "keeper.json").read_text())["pid"])
    assert keeper
    try:
        yield kept
    finally:
        procs.send([keeper], 9)
        for process in kept.started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(AttributeError, OSError):
                    pipe.close()  # type: ignore[union-attr]


def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


SPEC: dict[str, Any] = {
    "run": "r1",
    "title": "train.py",
    "owner": "tester",
    "started": 0,
    "token": TOKEN,
    "address": "127.0.0.1",
    "port": 0,
    "nonce": "n0nce",
    "host": "a",
    "label": "h0.ipexctl",
    "head": True,
    "share": True,
    "size": 1,
    "argv": [sys.executable],
    "hosts": {"a": {"label": "h0.ipexctl", "ranks": [0], "python": sys.executable}},
    "ranks": {"0": {"local": 0}},
    "mpiexec": ["/bin/sleep", "300"],
    "mpiexec_env": {},
    "proxy_env": {},
    "files": {},
    "grace": 1.0,
    "lease": None,
    "time_limit": None,
    "stall_warn": 0,
    "straggler_warn": 0,
    "log_cap": 0,
    "ready_timeout": 60.0,
    "start_timeout": 60.0,
    "node_lease": 30.0,
}
