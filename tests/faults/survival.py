"""Drills of lost machines: `make survival MINUTES=30 SEED=…`.

Four separate hosts, of which one is a spare, and a witness that is none of the run's. In each drill a training
(ranks/lasts.py, over impi or Gloo) loses one or two of them, node0 among them, at one of ten points of its story: the
cable is cut, the host freezes and thaws, loses its power, is rebooted, or its disk is full; with a controller that
watches, or with nobody. Then it is checked, by what each rank wrote on its own host and sent to the witness, that the
training went on in time and from its checkpoint, with the losses of an undisturbed one, that no two attempts computed
at once, that the exit code is true, and that nothing is left.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests import stock
from tests.cluster import Cluster, Spec
from tests.e2e.ranks.lasts import INTERVAL, PACE, SAMPLES, STEPS, make_samples
from tests.e2e.workspace import QUICK, RANKS, CommandResult, Started, Workspace, find_orphans, light
from tests.faults.chaos import fill, list_seeds

HOSTS = ("node0", "node1", "node2", "node3")
WITNESS, PORT, SIGHTINGS = "witness", 7000, "/root/sightings.jsonl"
# What each rank sends with a step, in the order and with the time of its arrival.
WATCH = f"""
import json, socket, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("", {PORT}))
with open("{SIGHTINGS}", "a", buffering=1) as out:
    while True:
        out.write(json.dumps([time.time(), *json.loads(sock.recv(1000))]) + "\\n")
"""
DISK = 96  # MiB of each host's /root
LEASE, GRACE = 5.0, 2.0
OPTIONS = ("--restarts", "5", "--keep", "ckpt", "--node-lease", f"{LEASE:g}", "--grace", f"{GRACE:g}")
SPLIT = ("--limit", "node0,node1", "--min-hosts", "1", "--on-split", "wait")
WAYS = {
    "impi": ("--venv", stock.VENV, "--env", "MEET=1", "--backend", "impi"),
    "gloo": ("--venv", stock.VENV, "--env", "MEET=1", "--backend", "gloo"),
}
AGAIN = 60.0  # seconds from a loss to the next step
LAG = 8.0  # seconds in which a checkpoint is found, and copied
PATIENCE = 240.0
CALM = 90.0  # more than `timings.STARTING`: a directory that has just changed may be that of a run that begins
FAILED = {3, 4, 5, 6, 8, 9}  # exit codes of a run that did not survive


class Step(NamedTuple):
    """A line of ranks/lasts.py."""

    at: float
    start: int
    rank: int
    size: int
    step: int
    loss: float


class Sighting(NamedTuple):
    """A line of the witness."""

    at: float
    start: int
    host: str
    rank: int
    step: int


def parse_steps(text: str) -> Iterator[Step]:
    """Yields those that are whole: the last line may be half written, and of a full disk any may be torn."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError, TypeError):
            yield Step(*json.loads(line))


def dot(one: Iterable[float], other: Iterable[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def compute_losses() -> list[float]:
    """Returns those of an undisturbed training."""
    inputs, targets = make_samples()
    weights, losses = [0.0] * 8, []
    for _ in range(STEPS):
        errors = [dot(row, weights) - target for row, target in zip(inputs, targets, strict=True)]
        losses.append(sum(error * error for error in errors) / SAMPLES)
        columns = zip(*inputs, strict=True)
        slopes = [dot(column, errors) / SAMPLES for column in columns]
        weights = [weight - 0.1 * slope for weight, slope in zip(weights, slopes, strict=True)]
    return losses


class Drill:
    """One training and its losses. ``seed`` decides all that is random."""

    def __init__(self, cluster: Cluster, path: Path, seed: str, losses: list[float]) -> None:
        self.cluster, self.seed, self.losses = cluster, seed, losses
        self.sightings = cluster.path(WITNESS, SIGHTINGS)
        self.sightings.write_text("")
        self.random = random.Random(seed)
        self.workspace, self.path = Workspace(cluster, path / "user", hostfile=path.with_name("hosts")), path
        self.findings: list[str] = []
        self.lost_at: list[float] = []
        self.frozen: set[str] = set()
        self.recovery = self.repeated = 0.0
        self.survived = False
        harms: list[Callable[[str], None]] = [self.cut, self.freeze, self.power_off, self.reboot, self.fill_disk]
        points: list[Callable[[], bool]] = [
            *(lambda number=number: self.has_step(number) for number in (0, 1, 30, 150, STEPS - 15)),
            lambda: self.has_step(INTERVAL - 1),  # in a checkpoint
            lambda: self.has_checkpoint(),
            lambda: self.has_copy(),
        ]
        self.point = self.random.randrange(10)
        self.reached = points[self.point] if self.point < len(points) else self.restart
        self.harms = [self.random.choice(harms) for _ in range(self.random.choice([1, 1, 1, 2]))]
        self.targets = self.random.sample(HOSTS[:3], len(self.harms))
        self.watched, self.way = self.random.random() < 0.5, self.random.choice(list(WAYS))
        self.hosts: tuple[str, ...] = ("--spares", "1")
        self.begun = 0.0  # Unix seconds
        self.story = [f"point {self.point}", self.way, "watched" if self.watched else "detached"]
        if self.watched and self.random.random() < 0.4:  # two hosts, of which the command votes for one
            self.hosts, self.harms, self.targets = SPLIT, self.harms[:1], [self.random.choice(HOSTS[:2])]
            self.story.append("two hosts")

    def find(self, text: str) -> None:
        self.findings.append(f"{self.seed} {' · '.join(self.story)}: {text}")

    # what the ranks have done

    def read_steps(self) -> list[Step]:
        """Of this drill alone: a host that lost its disk of memory shows what an earlier one left below it."""
        steps: list[Step] = []
        for host in HOSTS:
            with contextlib.suppress(OSError, RuntimeError):
                text = self.cluster.path(host, "/root/steps.jsonl").read_text()
                steps += [step for step in parse_steps(text) if step.at >= self.begun]
        return sorted(steps)

    def has_step(self, number: int) -> bool:
        return any(step.step >= number for step in self.read_steps())

    def list_files(self, pattern: str) -> list[Path]:
        return [path for host in HOSTS for path in self.cluster.path(host, "/root/drill").glob(pattern)]

    def has_checkpoint(self) -> bool:
        return bool(self.list_files("ckpt/step_*.pt"))

    def has_copy(self) -> bool:
        return bool(self.list_files(".ipexctl-keep-ckpt/**/step_*.pt"))

    def restart(self) -> bool:
        """In a restart: another rank is killed first, and the next attempt is about to begin."""
        if not self.has_step(5):
            return False
        for process in self.cluster.processes("node2"):
            if "lasts.py" in " ".join(process.argv):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.outer, signal.SIGKILL)
        time.sleep(self.random.uniform(0.0, 4.0))
        return True

    # harms

    def cut(self, host: str) -> None:
        self.cluster.cut(host)

    def freeze(self, host: str) -> None:
        self.cluster.freeze(host)
        self.frozen.add(host)
        threading.Timer(self.random.choice([3.0, 20.0]), self.cluster.thaw, [host]).start()

    def power_off(self, host: str) -> None:
        self.keep_steps(host)
        self.cluster.power_off(host)

    def reboot(self, host: str) -> None:
        self.power_off(host)
        time.sleep(2.0)
        self.cluster.power_on(host)

    def fill_disk(self, host: str) -> None:
        fill(self.cluster.path(host, "/root"))

    def keep_steps(self, host: str) -> None:
        """What its ranks wrote is on a disk of memory, which a loss of power empties."""
        with contextlib.suppress(OSError):
            shutil.copy(self.cluster.path(host, "/root/steps.jsonl"), self.path / f"{host}.jsonl")

    # the drill

    def play(self) -> None:
        witness = ("--env", f"WITNESS={self.cluster.address(WITNESS)}:{PORT}")
        options = (*WAYS[self.way], *OPTIONS, *self.hosts, *witness)
        words: list[str | Path] = ["run", *options, "--workdir", "/root/drill"]
        words += [] if self.watched else ["--detach"]
        self.begun = time.time()
        command = self.workspace.start(*words, RANKS / "lasts.py", **QUICK)
        try:
            self.await_point(command)
            for harm, host in zip(self.harms, self.targets, strict=True):
                self.story.append(f"{harm.__name__} {host}")
                self.lost_at.append(time.time())
                harm(host)
                self.await_next_attempt()
            result = self.await_end(command)
        finally:
            command.close()
        steps = self.collect_steps()
        self.mend()
        self.check(result, steps)
        self.calm()

    def await_point(self, command: Started) -> None:
        if self.point == 0:
            time.sleep(self.random.uniform(0.0, 5.0))
            return
        until = time.monotonic() + 90.0
        while not self.reached() and time.monotonic() < until:
            if self.watched and command.process.poll() is not None:
                return
            time.sleep(0.1)

    def await_next_attempt(self) -> None:
        until, lost = time.monotonic() + AGAIN, self.lost_at[-1]
        before = max((step.start for step in self.read_steps()), default=-1)
        while time.monotonic() < until:
            if any(step.start > before and step.at > lost for step in self.read_steps()) or self.has_step(STEPS - 1):
                return
            time.sleep(0.2)

    def await_end(self, command: Started) -> CommandResult:
        result = command.end(PATIENCE)
        if self.watched or result.code != 0:
            return result
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and not self.has_step(STEPS - 1) and self.list_runs():
            time.sleep(2.0)
        return self.workspace("attach", timeout=PATIENCE)

    def list_runs(self, *over: str) -> list[str]:
        """Runs that go on, and those in these states."""
        listed = self.workspace("ps", "--json", timeout=PATIENCE)
        with contextlib.suppress(ValueError, KeyError):
            return [row["run"] for row in listed.answer["runs"] if row["state"] not in {"ended", "gone"} - {*over}]
        return []

    def collect_steps(self) -> list[Step]:
        steps = self.read_steps()
        for path in self.path.glob("*.jsonl"):
            steps += list(parse_steps(path.read_text()))
        return sorted(set(steps))

    def mend(self) -> None:
        self.cluster.restore()
        for host in HOSTS:
            if not os.path.ismount(self.cluster.path(host, "/root")):  # a loss of power has taken it
                self.cluster.small_home(host, DISK)
            self.cluster.path(host, "/root/filler").unlink(missing_ok=True)

    def check_sightings(self, steps: list[Step]) -> list[Step]:
        """No rank of an attempt has done a step after one of a later attempt, but for the one in which its host froze,
        before the guard that thawed with it ended it (docs/survive.md). Returns the other steps."""
        seen = [Sighting(*json.loads(line)) for line in self.sightings.read_text().splitlines()]
        if steps and not seen:
            self.find("the witness has seen no rank")
        latest, thawed = 0, {}
        for sighting in seen:
            if (
                sighting.start < latest
                and sighting.host in self.frozen
                and (sighting.start, sighting.rank) not in thawed
            ):
                thawed[sighting.start, sighting.rank] = sighting.step
            elif sighting.start < latest:
                self.find(f"two worlds: the witness has seen {sighting} after attempt {latest}")
                break
            else:
                latest = sighting.start
        return [step for step in steps if thawed.get((step.start, step.rank)) != step.step]

    def check(self, result: CommandResult, steps: list[Step]) -> None:
        steps = self.check_sightings(steps)
        attempts: dict[int, list[Step]] = defaultdict(list)
        for step in steps:
            attempts[step.start].append(step)
            if abs(step.loss - self.losses[step.step]) > 1e-9 * self.losses[step.step]:
                self.find(f"the loss of {step} is not {self.losses[step.step]}")
                break
        numbers = sorted(attempts)
        for before, after in itertools.pairwise(numbers):
            last, first = attempts[before][-1], attempts[after][0]
            if first.at <= last.at:
                self.find(f"two worlds: {last} and {first}")
            lost = max(step.step for step in attempts[before]) + 1 - first.step
            self.repeated = max(self.repeated, lost)
            if lost > INTERVAL + LAG / PACE:
                self.find(f"{lost} steps lost between {last} and {first}")
        for at in self.lost_at:
            later = [attempts[number][0].at for number in numbers if attempts[number][0].at > at]
            if later:
                self.recovery = max(self.recovery, min(later) - at)
        if self.recovery > AGAIN:
            self.find(f"on again after {self.recovery:.0f} s")
        final = {step.start for step in steps if step.step == STEPS - 1}
        self.survived = bool(final)
        if result.code == 0 and not final:
            self.find(f"exit code 0, and not all steps: {result}")
        if result.code not in {0, *FAILED}:
            self.find(f"exit code {result.code}: {result}")
        alone = len(self.harms) == 1 and self.point > 0 and self.harms[0].__name__ != "fill_disk"
        if alone and not self.survived:
            self.find(f"one machine was lost, and the training did not go on: {result}")

    def calm(self) -> None:
        until, left = time.monotonic() + CALM, {}
        while time.monotonic() < until:
            for run in self.list_runs("ended", "gone"):
                self.workspace("stop", run, "--kill", timeout=PATIENCE)
                self.workspace("stop", "--orphans", run, timeout=PATIENCE)
            self.workspace("stop", "--orphans", timeout=PATIENCE)
            left = find_orphans(self.cluster, HOSTS)
            if not left:
                break
            time.sleep(0.5)
        if left:
            self.find(f"left: {left}")
        for host in HOSTS:
            self.cluster.exec(host, ["sh", "-c", "rm -rf /root/steps.jsonl /root/drill"])


def play_drills(cluster: Cluster, desk: Path, seeds: Iterator[str]) -> list[str]:
    findings: list[str] = []
    counts: dict[str, list[Any]] = defaultdict(lambda: [0, 0, 0.0, 0.0])
    losses = compute_losses()
    for seed in seeds:
        shutil.rmtree(desk, ignore_errors=True)
        desk.mkdir()
        one = Drill(cluster, desk, seed, losses)
        one.play()
        word = "survived" if one.survived else "ended"
        print(
            f"{seed} {' · '.join(one.story)}: {word}, on again in {one.recovery:.0f} s, {one.repeated:.0f} steps again"
        )
        for finding in one.findings:
            print(f"finding: {finding}")
        sys.stdout.flush()
        findings += one.findings
        count = counts[" + ".join(harm.__name__ for harm in one.harms)]
        count[0] += 1
        count[1] += one.survived
        count[2], count[3] = max(count[2], one.recovery), max(count[3], one.repeated)
    for name, (drills, survived, recovery, repeated) in sorted(counts.items()):
        print(
            f"{name}: {drills} drills, {survived} survived, on again in at most {recovery:.0f} s, {repeated:.0f} steps"
        )
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--drill", help="seed:number of one drill to play again")
    asked = parser.parse_args()
    with contextlib.ExitStack() as opened:
        place = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        cluster = opened.enter_context(Cluster([Spec(host) for host in (*HOSTS, WITNESS)]))
        light(cluster, place)
        stock.put_stock_on_hosts(cluster)
        for host in HOSTS:
            cluster.small_home(host, DISK)
        lines = cluster.hostfile.read_text().splitlines(keepends=True)
        (place / "hosts").write_text("".join(line for line in lines if WITNESS not in line))
        watch = [*cluster.entrance(WITNESS), "python3", "-c", WATCH]
        opened.callback(subprocess.Popen(watch).kill)
        opened.enter_context(cluster.inside())
        seeds = iter([asked.drill]) if asked.drill else list_seeds(asked.seed, asked.minutes)
        findings = play_drills(cluster, place / "desk", seeds)
    print(f"survival: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
