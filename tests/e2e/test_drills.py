"""Each part of a run killed at each of ten points of its story, on three separate hosts: nothing is left, within the
limits of faults.md, and the exit code is honest.

IPEXCTL_DRILLS=10 does it all ten times, each part at all ten points (`make drills`). Without it three parts meet two
points each; that a run outlives none of its parts is test_attempt.py's, where all of them run.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, Process
from tests.e2e.workspace import ACTOR, LIGHT, RANKS, CommandResult, Started, Workspace, find_orphans, kill
from tests.stock import MPICH, VENV
from tests.waiting import wait

ROUNDS = range(int(os.environ.get("IPEXCTL_DRILLS", "1")))
pytestmark = pytest.mark.usefixtures(*(("stock", "mpich") if len(ROUNDS) > 1 else ("hosts",)))
LEASE = 3  # seconds; what faults.md says of 30 is true of any number
READY = 8.0  # seconds in which a leased run's hosts must have found each other, or it ends; 30 by default
# Seconds from a kill to the last process's end: 15 by the limits, the rest for ten runs on few cores and other tests.
CLEAN = 25.0 if len(ROUNDS) > 1 else 60.0
HURRIED = {"IPEXCTL_TIMINGS": json.dumps({"ready_timeout": READY})}
RUNS = "/root/.local/state/ipexctl/runs"

Events = Sequence[dict[str, Any]]


def _step(name: str, hosts: int = 1) -> Callable[[Events], bool]:
    return lambda result: sum(e["event"] == "step-ended" and e["step"] == name for e in result) >= hosts


POINTS: dict[str, Callable[[Events], bool]] = {
    "the first host was looked at": _step("probe"),
    "the script was carried": _step("sync", 3),
    "the first directory was made": _step("prepare"),
    "all directories were made": _step("prepare", 3),
    "the keeper was started": _step("start keeper"),
    "the first guard was started": _step("start guard"),
    "mpirun was started": lambda result: any(e["event"] == "run-started" for e in result),
    "the first rank was started": lambda result: any(
        e["event"] == "rank-stage" and e["stage"] == "start" for e in result
    ),
    "all ranks write": lambda result: len({e["rank"] for e in result if e["event"] == "output"}) == 3,
    "the first rank has ended": lambda result: any(e["event"] == "rank-ended" for e in result),
}
PARTS = [("node0", "keeper"), ("node1", "rank"), ("node2", "guard")]
if len(ROUNDS) > 1:
    PARTS += [("node0", "mpiexec.hydra"), ("node1", "hydra_"), ("node1", "stub")]
# Ranks that know nothing of each other, and groups of torch; over impi with MPICH 5 too. `make drills` meets all of
# them; else ranks need no torch, whose start costs four times what the run does.
WAYS = {
    "none": ("--venv", LIGHT),
    "impi": ("--venv", VENV, "--env", "MEET=1", "--backend", "impi"),
    "gloo": ("--venv", VENV, "--env", "MEET=1", "--backend", "gloo"),
    "mpich": ("--venv", VENV, "--env", "MEET=1", "--backend", "impi", "--mpi", MPICH),
}
TURNS = tuple(WAYS) if len(ROUNDS) > 1 else ("none",)
GATHERED = list(POINTS).index("mpirun was started")  # from here on a run needs nobody who watches


class Drill:
    """One run, named by an argument of its script."""

    def __init__(self, hosts: Cluster, path: Path, point: str, turn: int, *words: str, **env: str) -> None:
        self.hosts, self.point, self.number = hosts, point, list(POINTS).index(point)
        way = WAYS[TURNS[(self.number + turn) % len(TURNS)]]
        self.tag = f"drill{self.number}"
        self.workspace = Workspace(hosts, path)
        script = RANKS / "drill.py"
        run = ("run", *way, "--share", "--workdir", f"/root/{self.tag}", "--output", "json", "--grace", "3")
        self.command: Started = self.workspace.start(*run, *words, script, self.tag, **env)
        wait(lambda: POINTS[point](self.events()) or self.command.process.poll() is not None, 120.0)

    def events(self) -> Events:
        text = self.command.files[0].read_text("utf-8", "replace")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    @property
    def directory(self) -> Path | None:
        """The run's, on node0."""
        for spec in self.hosts.path("node0", RUNS).glob("*/spec.json"):
            try:
                if self.tag in json.loads(spec.read_text())["argv"]:
                    return spec.parent
            except (OSError, ValueError):
                continue
        return None

    def kept(self) -> bool:
        """Whether it has, or had, a keeper."""
        return self.directory is not None and (self.directory / "keeper.json").exists()

    def run(self) -> str:
        """Its id; empty as long as it has none."""
        directory = self.directory
        return json.loads((directory / "spec.json").read_text())["run"] if directory else ""

    def parts(self, names: Sequence[str] = ("node0", "node1", "node2"), run: str = "") -> list[Process]:
        run = run or self.run()
        return [p for host in names for p in self.hosts.processes(host) if run and p.environ.get("IPEXCTL_RUN") == run]

    def kill(self, host: str, word: str) -> str:
        """Kills a part as soon as there is one, a little later at each point if it has to be waited for. The run."""
        actual: list[Process] = []

        def look() -> bool:
            actual[:] = [p for p in self.parts([host]) if any(Path(part).name.startswith(word) for part in p.argv[:8])]
            return bool(actual) or self.command.process.poll() is not None

        if not (look() and actual):
            wait(look, 60.0)
            time.sleep(0.02 * self.number)
        for process in actual:
            kill(process.outer)
        return actual[0].environ["IPEXCTL_RUN"] if actual else ""

    def empty(self, run: str, within: float) -> None:
        wait(
            lambda: not self.parts(run=run),
            within,
            lambda: f"{self.point}: {self.parts(run=run)}\n{self.command.output}",
        )

    def honest(self, result: CommandResult, codes: set[int], workspace: Workspace | None = None) -> None:
        """One of these codes, or 0 with every byte."""
        assert result.code in {*codes, 0}, f"{self.point}: {result}"
        if result.code == 0:
            for rank in range(3):
                assert (workspace or self.workspace).written(rank) == self.ticks(rank), f"{self.point}: {result}"

    def ticks(self, rank: int) -> bytes:
        return b"".join(b"%s tick %d\n" % (self.tag.encode(), number) for number in range(20 + 10 * rank))


def at_points(work: Callable[[str], None], turn: int, turns: int) -> None:
    """At each of the points, five runs at a time; outside of `make drills` at those of this turn."""
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(work, POINTS if len(ROUNDS) > 1 else list(POINTS)[turn::turns]))


@pytest.mark.parametrize("again", ROUNDS)
@pytest.mark.parametrize(("host", "word"), PARTS)
def test_a_part_killed_at_any_point_leaves_nothing(
    hosts: Cluster, tmp_path: Path, host: str, word: str, again: int
) -> None:
    def drill(point: str) -> None:
        one = Drill(hosts, tmp_path / point, point, PARTS.index((host, word)) + again)
        run = one.kill(host, word)
        begun = time.monotonic()
        result = one.command.end(120.0)
        one.empty(run, max(0.1, CLEAN - (time.monotonic() - begun)))
        one.honest(result, {4, 6})

    at_points(drill, PARTS.index((host, word)), 6)
    assert not find_orphans(hosts)


@pytest.mark.fault("F10")
@pytest.mark.parametrize("again", ROUNDS)
@pytest.mark.parametrize("point", POINTS if len(ROUNDS) > 1 else ["the first rank was started"])
def test_a_killed_sshd_with_its_sessions_leaves_nothing(hosts: Cluster, tmp_path: Path, point: str, again: int) -> None:
    one = Drill(hosts, tmp_path / "desk", point, again)
    for process in hosts.processes("node1"):
        if "sshd" in process.argv[0]:
            kill(process.outer)
    try:
        result = one.command.end(90.0)
        run = one.run()
        one.empty(run, CLEAN) if run else None
        one.honest(result, {3, 4, 6})
        assert result.code != 0, "nobody could look at node1"
        if one.number >= GATHERED:
            one.honest(CommandResult(0, result.out, result.err), set())  # the run itself went on to its end
    finally:
        hosts.power_off("node1")
        hosts.power_on("node1")  # with a new sshd
    _nothing_but_directories(hosts, tmp_path)


@pytest.mark.parametrize("again", ROUNDS)
def test_a_killed_controller_with_a_lease_leaves_nothing(hosts: Cluster, tmp_path: Path, again: int) -> None:
    def drill(point: str) -> None:
        one = Drill(hosts, tmp_path / point, point, again, "--lease", str(LEASE), **HURRIED)
        one.command.signal(signal.SIGKILL)
        one.command.process.wait()
        time.sleep(0.3)  # what it had begun on a host
        if run := one.run():
            one.empty(run, (LEASE if one.number >= GATHERED else READY) + CLEAN)

    at_points(drill, 0, 5)
    _nothing_but_directories(hosts, tmp_path)


@pytest.mark.fault("G4")
@pytest.mark.parametrize("again", ROUNDS)
def test_a_killed_controller_without_a_lease_loses_no_byte(hosts: Cluster, tmp_path: Path, again: int) -> None:
    def drill(point: str) -> None:
        one = Drill(hosts, tmp_path / point, point, again)
        one.command.signal(signal.SIGKILL)
        one.command.process.wait()
        time.sleep(0.3)
        run = one.run()
        if not run:
            return
        wait(lambda: one.kept() or not one.parts(run=run), 20.0, lambda: f"{point}: a run without a keeper")
        if not one.kept():
            return
        other = Workspace(hosts, tmp_path / f"{point} other")
        result = other("attach", run)
        one.honest(result, {4, 6} if one.number < GATHERED else set(), other)
        one.empty(run, 1.0)

    at_points(drill, 1, 5)
    _nothing_but_directories(hosts, tmp_path)


def _nothing_but_directories(hosts: Cluster, path: Path) -> None:
    """No process of any run; and once they are old enough to be nobody's, `reap` takes the directories away."""
    for host in hosts.names:
        assert not [p for p in hosts.processes(host) if "IPEXCTL_RUN" in p.environ]
        for directory in hosts.path(host, RUNS).glob("*-h*"):
            if directory.is_dir():
                os.utime(directory, (time.time() - 300,) * 2)
    user = Workspace(hosts, path / "after")
    user.succeed("run", "--venv", LIGHT, ACTOR, "say")
    user.succeed("stop", "--orphans")
    for run in user("ps", "--json").answer["runs"]:  # that ended in order: their output is kept until it is asked away
        user.succeed("stop", "--orphans", run["run"])
    assert not find_orphans(hosts)
