"""Many runs in random order for a bounded time, and what must not grow meanwhile: `make soak MINUTES=60 SEED=…`.

Three separate hosts. One long run is watched from the first minute to the last; beside it other runs are started,
watched, killed with their controllers, attached to and stopped, and environments are installed over each other. After
each round nothing of what ended may be left; over all rounds the memory and the open files of the long run's keeper,
guards and watcher, the files on the hosts and the servers' open files must stay flat. The seed that is printed brings
the same order again.
"""

import argparse
import contextlib
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import wheels
from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, LIGHT, CommandResult, Started, Workspace, light
from tests.faults.checks import find_processes_of_home
from tests.wheels import Index, serving

RUN = ("run", "--venv", LIGHT, "--share", "--grace", "2")
CALM = 30.0  # seconds in which all that ended must be gone
GROWTH_KIB = 8 << 10  # the most by which a process's memory may differ between the first and the last third


class Soak:
    """``play`` does one thing in random order; ``look`` says what is wrong after it."""

    def __init__(self, cluster: Cluster, place: Path, index: Index, seed: int) -> None:
        self.cluster, self.place, self.index, self.random = cluster, place, index, random.Random(seed)
        self.workspace = Workspace(cluster, place / "desk")
        self.command: list[Started] = []
        self.findings: list[str] = []
        self.samples: dict[str, list[dict[str, int]]] = {}
        self.counts: dict[str, int] = {}

    def say(self, *words: str | Path, allowed: tuple[int, ...] = (0,)) -> CommandResult:
        """A command to its end, which must be one of these codes, and no trace."""
        result = self.workspace(*words, timeout=300.0, PIP_CONFIG_FILE="/dev/null")
        if result.code not in allowed or "Traceback (most recent call last)" in result.err:
            self.findings.append(f"{words}: {result}")
        return result

    def runs(self) -> list[str]:
        """The runs on the hosts but the long one."""
        result = self.say("ps", "--json")
        return [row["run"] for row in result.answer["runs"] if row["run"] != self.long_run] if result.code == 0 else []

    def begin(self) -> None:
        self.long = self.workspace.start(*RUN, ACTOR, "count", "100000000")
        self.long.until("0│tick 5")
        self.long_run = ""
        [self.long_run] = self.runs()

    def play(self) -> str:
        acts: list[tuple[Callable[[], object], int]] = [
            (self.detach, 3), (self.watch, 3), (self.run_to_the_end, 2), (self.kill_watcher, 3), (self.attach, 3),
            (self.stop, 3), (self.kill_part, 1), (self.install, 1), (self.sync, 1), (self.look_on, 1),
        ]  # fmt: skip
        act = self.random.choices([act for act, _ in acts], [weight for _, weight in acts])[0]
        name = getattr(act, "__name__", "")
        self.counts[name] = self.counts.get(name, 0) + 1
        act()
        return name

    def detach(self) -> None:
        if len(self.runs()) < 3:
            self.say(*RUN, "--detach", ACTOR, self.random.choice(["wait", "stubborn"]))

    def watch(self) -> None:
        if len(self.runs()) < 3:
            self.command.append(self.workspace.start(*RUN, ACTOR, "count", "100000"))
            time.sleep(self.random.uniform(0, 5))

    def run_to_the_end(self) -> None:
        fails = self.random.random() < 0.5
        self.say(*RUN, ACTOR, *(("exit", "3", "1") if fails else ("say",)), allowed=(5 if fails else 0,))

    def kill_watcher(self) -> None:
        if self.command:
            command = self.command.pop(self.random.randrange(len(self.command)))
            command.signal(self.random.choice([signal.SIGKILL, signal.SIGHUP, signal.SIGINT, signal.SIGTERM]))
            code = command.end(90.0).code
            if code not in (-9, -1, -2, -15, 129, 130, 143, 5, 6):  # it was starting; its run had ended before
                self.findings.append(f"a watcher that got a signal: {command.output}")

    def attach(self) -> None:
        if runs := self.runs():
            command = self.workspace.start("attach", self.random.choice(runs))
            time.sleep(self.random.uniform(0, 3))
            command.signal(signal.SIGHUP)
            command.end(60.0)

    def stop(self) -> None:
        if runs := self.runs():
            self.say("stop", self.random.choice(runs), *self.random.choice([(), ("--kill",)]), allowed=(0, 2))

    def kill_part(self) -> None:
        """A keeper, a guard, a launcher or a rank of any run but the long one."""
        actual = [
            process.outer
            for host in self.cluster.names
            for process in self.cluster.processes(host)
            if process.environ.get("IPEXCTL_RUN", self.long_run) != self.long_run
        ]
        if actual:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.random.choice(actual), signal.SIGKILL)

    def install(self) -> None:
        stack = ("--track", "native", "--backend", "gloo", "--python", "/usr/bin/python3", "--index-url")
        version = self.random.choice(["2.8.0", "2.9.0"])
        self.say("install", "--torch", version, *stack, self.index.url)

    def sync(self) -> None:
        tree = self.workspace.path / "tree"
        tree.mkdir(exist_ok=True)
        (tree / "file").write_bytes(self.random.randbytes(self.random.randrange(1 << 20)))
        self.say("sync", tree)

    def look_on(self) -> None:
        self.say("doctor", "--pairwise", "off", "--json", allowed=(0, 4))

    def calm(self) -> None:
        """Ends all but the long run; whatever of it remains is a finding."""
        for command in self.command:
            command.signal(signal.SIGKILL)
            command.process.wait()
        self.command.clear()
        for run in self.runs():
            self.say("stop", run, "--kill", allowed=(0, 2))
        for run in self.runs():
            self.say("attach", run, allowed=(0, 5, 6))  # node0 keeps what nobody has fetched yet
        self.say("stop", "--orphans", allowed=(0, 2))
        end = time.monotonic() + CALM
        while (left := self.find_left()) and time.monotonic() < end:
            time.sleep(0.5)
        self.findings += [f"left: {each}" for each in left]

    def find_left(self) -> list[str]:
        actual = []
        for host in self.cluster.names:
            for process in self.cluster.processes(host):
                if process.environ.get("IPEXCTL_RUN", self.long_run) != self.long_run:
                    actual.append(f"{host}: {' '.join(process.argv)[:100]}")
            runs = self.cluster.path(host, "/root/.local/state/ipexctl/runs")
            actual += [
                f"{host}: {each.name}" for each in runs.iterdir() if not each.name.startswith(("lock", self.long_run))
            ]
        others = find_processes_of_home(self.workspace.home)
        return actual + [f"controller: {' '.join(argv)[:100]}" for argv in others if "100000000" not in argv]

    def sample(self) -> None:
        """Memory and open files of what lives as long as the soak; files on the hosts."""
        watched = {"watcher": self.long.process.pid}
        for host in self.cluster.names:
            for process in self.cluster.processes(host):
                role = next((word for word in ("keeper", "guard") if word in process.argv[:8]), "")
                if role and process.environ.get("IPEXCTL_RUN") == self.long_run:
                    watched[f"{host} {role}"] = process.outer
                if process.argv[0].startswith("sshd:") and "listener" in process.argv[0]:
                    watched[f"{host} sshd"] = process.outer
            files = sum(
                len(names)
                for top in ("/root", "/tmp", "/var/tmp", "/dev/shm")
                for folder, _, names in os.walk(self.cluster.path(host, top))
                if self.long_run not in folder and "/.local/share/" not in folder
            )
            self.samples.setdefault(f"{host} files", []).append({"files": files})
        for name, pid in watched.items():
            self.samples.setdefault(name, []).append(measure(pid))

    def judge(self) -> None:
        """What grew from the first third of the samples to the last."""
        for name, samples in self.samples.items():
            third = max(1, len(samples) // 3)
            for kind in samples[0]:
                first = statistics.median(sample[kind] for sample in samples[:third])
                last = statistics.median(sample[kind] for sample in samples[-third:])
                print(f"{name:16} {kind:5} {first:10.0f} → {last:10.0f}")
                if last - first > {"KiB": GROWTH_KIB, "open": 2, "files": 20}[kind]:
                    self.findings.append(f"{name} grew: {kind} {first:.0f} → {last:.0f}")


def measure(pid: int) -> dict[str, int]:
    status = Path(f"/proc/{pid}/status").read_text()
    memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return {"KiB": memory, "open": len(os.listdir(f"/proc/{pid}/fd"))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    print(f"soak: seed {asked.seed}, {asked.minutes:g} minutes", flush=True)
    index = Index([wheels.torch("2.8.0"), wheels.torch("2.9.0"), wheels.impi(), wheels.numpy()])
    with contextlib.ExitStack() as opened:
        place = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        cluster = opened.enter_context(Cluster())
        light(cluster, place)  # while this process is on a network with an index
        opened.enter_context(cluster.inside())
        opened.enter_context(serving(index, "10.77.0.1"))
        findings = soak(Soak(cluster, place, index, asked.seed), asked.minutes)
    print(f"soak: {len(findings)} findings")
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def soak(soaking: Soak, minutes: float) -> list[str]:
    end, rounds, printed = time.monotonic() + 60.0 * minutes, 0, 0
    soaking.begin()
    try:
        while time.monotonic() < end and len(soaking.findings) < 20:
            for _ in range(12):
                soaking.play()
            soaking.calm()
            soaking.sample()
            rounds += 1
            print(f"round {rounds}: {sum(soaking.counts.values())} acts, {len(soaking.findings)} findings", flush=True)
            print("".join(f"{finding}\n" for finding in soaking.findings[printed:]), end="", flush=True)
            printed = len(soaking.findings)
            if soaking.long.process.poll() is not None:
                soaking.findings.append(f"the long run ended: {soaking.long.output}")
                break
        result: Any = soaking.say("stop", soaking.long_run)
        soaking.long.end(60.0)
        soaking.long_run = "none"
        soaking.findings += [f"left: {each}" for each in soaking.find_left()] if result.code == 0 else []
        soaking.judge()
        print(", ".join(f"{count} {name}" for name, count in sorted(soaking.counts.items())))
    finally:
        soaking.long.close()
    return soaking.findings


if __name__ == "__main__":
    sys.exit(main())
