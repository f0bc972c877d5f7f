"""Runs of a real keeper on this machine, without a launcher: mpirun is a program of the test's choice."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ipexctl
from ipexctl.act.run_dir import RemoteRunDir
from ipexctl.model.hosts import Host
from ipexctl.protocol import messages, paths, run_spec
from ipexctl.protocol.run_spec import HeadSpec, NodeSpec, RankSpec, RunSpec
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import procs, rpc
from tests.waiting import wait

TOKEN = "t" * 64
TIMINGS = Timings(ready_timeout=60.0, grace=1.0)
SPEC = RunSpec(
    run=f"r{os.getpid()}",  # guards of other tests must not take its processes for theirs
    title="train.py",
    owner="tester",
    started=0.0,
    nonce="n0nce",
    token=TOKEN,
    host="a",
    label="h0.ipexctl",
    size=1,
    argv=[sys.executable],
    workdir="/",
    env={},
    ranks={0: RankSpec(0)},
    proxy_env={},
    proxies=["hydra_bstrap_proxy", "hydra_pmi_proxy"],
    rank_variable="PMI_RANK",
    rank_prefixes=["PMI"],
    head=HeadSpec("127.0.0.1", {"a": NodeSpec("h0.ipexctl", [0], "/none", sys.executable)}, ["/bin/sleep", "300"], {}),
    share=True,
    timings=TIMINGS,
    leaders={"a": "127.0.0.1"},
)
PLAIN = {
    "PATH": os.environ["PATH"],
    "PYTHONPATH": str(Path(ipexctl.__file__).parents[1]),
    "PYTHONDONTWRITEBYTECODE": "1",
}


def remote(role: str, *words: str, before: str = "pass") -> list[str]:
    """The command line of a role of the agent; ``before`` are statements that go first."""
    program = f"import sys; from ipexctl.remote.agent.__main__ import main; {before}; sys.exit(main(sys.argv))"
    return [sys.executable, "-c", program, role, *words]


@dataclass
class Kept:
    """A run whose keeper lives. Its only host is ``a``, whose guard the test plays, or none."""

    directory: Path
    port: int
    spec: RunSpec
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def connect(self, role: str, name: str) -> rpc.Wire:
        return rpc.connect("127.0.0.1", self.port, TOKEN, role, name, 60.0)

    def join(self, host: str = "a") -> rpc.Wire:
        """A guard that has its ranks."""
        guard = self.connect(paths.Role.GUARD, host)
        for message in (messages.Joined(), messages.Begun(0)):
            guard.send(message)
        return guard

    def start(self, words: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        """A process beside the keeper, which ends with the test."""
        self.started.append(subprocess.Popen(words, **{"env": PLAIN, "stdin": subprocess.PIPE, **more}))
        return self.started[-1]

    def request_proxy(self, *words: str) -> subprocess.Popen[bytes]:
        """As the launcher does, through the shim: these words are executed on ``a``."""
        shim = RemoteRunDir(Host("a", "localhost"), str(self.directory), sys.executable).build_shim()
        (self.directory / paths.SHIM).write_bytes(shim)
        (self.directory / paths.SHIM).chmod(0o700)
        wait((self.directory / paths.PIPES / "requests").exists)
        return self.start([str(self.directory / paths.SHIM), "-q", "-x", "h0.ipexctl", *words])

    def state(self) -> messages.KeeperStatus:
        """What the keeper says of itself."""
        link = self.connect(paths.Role.ORDER, "test")
        link.send(messages.Inspect())
        received: list[rpc.Received] = []

        def answers() -> list[rpc.Received]:
            received.extend(link.receive())
            return received

        wait(answers)
        link.close()
        assert isinstance(received[0], messages.KeeperStatus)
        return received[0]

    def end(self) -> dict[str, Any]:
        return dict(json.loads((self.directory / "end.json").read_text()))

    @property
    def over(self) -> bool:
        return (self.directory / "end.json").exists()


@contextmanager
def keeping(
    place: Path, umask: int = -1, timings: Timings = TIMINGS, head: Mapping[str, Any] | None = None, **spec: Any
) -> Iterator[Kept]:
    """A keeper in ``place``, started with this umask; ``spec`` and ``head`` change its run's specification."""
    directory = place / f"{spec.get('run', SPEC.run)}-h0"
    (directory / "ranks").mkdir(parents=True, mode=0o700)
    directory.chmod(0o700)
    node = NodeSpec("h0.ipexctl", [0], str(directory), sys.executable)
    of_head = SPEC.head_spec._replace(**{"hosts": {"a": node}, **(head or {})})
    reported = SPEC._replace(head=of_head, timings=timings, **spec)
    (directory / paths.SPEC).write_bytes(run_spec.encode_spec(reported))
    done = subprocess.run(
        remote("keeper", str(directory)), stdout=subprocess.PIPE, env=PLAIN, timeout=60, check=True, umask=umask
    )
    kept = Kept(directory, json.loads(done.stdout)["port"], reported)
    wait((directory / "keeper.json").exists)
    keeper = procs.find_process(json.loads((directory / "keeper.json").read_text())["pid"])
    assert keeper
    try:
        yield kept
    finally:
        processes = procs.list_processes()
        descendants = [
            processes[pid] for pid in procs.find_descendants(keeper.pid, processes)
        ]  # the launcher outlives it
        procs.send_signal([keeper, *descendants], 9)
        for process in kept.started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(AttributeError, OSError):
                    pipe.close()  # type: ignore[union-attr]
