"""Random harm while something goes on, round after round: `make chaos MINUTES=20 SEED=…`.

Three separate hosts with small disks, and a controller with one. Each round plays one act (a run over impi, Gloo or
without a group, watched, detached or stopped; a sync; an install), and harms it up to three times at random moments:
a process of ours, of MPI's or of sshd is killed or halted, a cable is pulled, a host freezes or loses its power, a
disk is full, the controller gets a signal. Then all is mended, and it is checked that the exit code was true, that no
byte of what is said to be whole is missing, that nothing is left, and that the next command works. What a round does
depends on its own seed only, which is printed: `make chaos ROUND=1764101000:17` plays it again.
"""

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests import stock, wheels
from tests.cluster import Cluster, Process
from tests.e2e.workspace import LIGHT, QUICK, RANKS, CommandResult, Started, Workspace, find_orphans, light
from tests.faults.checks import find_processes_of_home
from tests.wheels import Index, serving

DISK = 96  # MiB of each host's /root and of the controller's files
CALM = 90.0  # seconds in which all that a round began must be gone: a directory that is younger than 60 may be a start
PATIENCE = 240.0  # seconds in which a harmed command must have ended
NEVER = {1, 2, 70}  # exit codes that no harm explains: not ours, bad input, a fault of ours
WAYS = {
    "none": ("--venv", LIGHT),
    "impi": ("--venv", stock.VENV, "--env", "MEET=1", "--backend", "impi"),
    "gloo": ("--venv", stock.VENV, "--env", "MEET=1", "--backend", "gloo"),
}
VERSIONS = ("2.8.0", "2.9.0")
TORCH = "/root/env"  # where the installs of a round go
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Round:
    """One act, its harms, and what was wrong. ``seed`` decides all that is random."""

    def __init__(self, cluster: Cluster, workspace: Workspace, index: Index, seed: str, only: str) -> None:
        self.cluster, self.workspace, self.index, self.seed, self.only = cluster, workspace, index, seed, only
        self.random = random.Random(seed)
        self.story: list[str] = []
        self.findings: list[str] = []
        self.signals: set[int] = set()
        self.killed = False
        self.way = self.random.choice(list(WAYS))
        self.tag = f"chaos{seed.partition(':')[2]}"

    def play(self) -> None:
        acts = [self.run, self.run, self.run_restarted, self.detach, self.stop, self.sync, self.install]
        act = self.random.choice(acts)
        self.story.append(act.__name__)
        try:
            act()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self.find(str(error))
        finally:
            self.mend()
        self.calm()
        if not self.findings:
            self.go_on()

    def find(self, text: str) -> None:
        self.findings.append(f"{self.seed} {' · '.join(self.story)}: {text}")

    # acts

    def words_of_run(self, *options: str) -> list[str | Path]:
        workdir = ("--workdir", "/root/chaos")
        return ["run", *WAYS[self.way], *workdir, "--grace", "2", *options, RANKS / "drill.py", self.tag]

    def run(self) -> None:
        self.story.append(self.way)
        with self.harming(self.workspace.start(*self.words_of_run(), **QUICK)) as command:
            result = command.end(PATIENCE)
        self.check(result)
        self.check_logs(result)

    def run_restarted(self) -> None:
        """What is lost is started again, on the hosts that are left."""
        options = self.random.choice([("--restarts", "2"), ("--restarts", "2", "--min-hosts", "2")])
        with self.harming(self.workspace.start(*self.words_of_run(*options), **QUICK)) as command:
            self.check(command.end(PATIENCE))

    def detach(self) -> None:
        self.story.append(self.way)
        started = self.workspace(*self.words_of_run("--detach"), timeout=PATIENCE, **QUICK)
        assert started.code == 0, f"detached before any harm: {started}"
        with self.harming(self.workspace.start("attach")) as command:
            result = command.end(PATIENCE)
        self.check(result)
        self.check_logs(result)

    def stop(self) -> None:
        started = self.workspace(*self.words_of_run("--detach"), timeout=PATIENCE, **QUICK)
        assert started.code == 0, f"detached before any harm: {started}"
        with self.harming(self.workspace.start("stop", *self.random.choice([(), ("--kill",)]))) as command:
            result = command.end(PATIENCE)
            left = [host for host in self.cluster.names if self.is_on(host) and find_orphans(self.cluster, [host])]
        self.check(result)
        if result.code == 0 and [host for host in left if self.find_ranks(host)]:
            self.find(f"stop ended with 0 and ranks remain on {left}: {result}")

    def sync(self) -> None:
        """Trees of two rounds: a file on a host is the old one or the new one."""
        tree = self.workspace.path / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir()
        old = {name: self.cluster_files(name) for name in ("a", "b", "big")}
        new = {name: self.random.randbytes(size) for name, size in (("a", 3000), ("b", 70_000), ("big", 8 << 20))}
        for name, data in new.items():
            (tree / name).write_bytes(data)
        with self.harming(self.workspace.start("sync", tree, "--workdir", "/root/tree", **QUICK)) as command:
            result = command.end(PATIENCE)
        self.mend()
        self.check(result)
        for name, data in new.items():
            for host, held in self.cluster_files(name).items():
                if held is None and self.has_lost_disk:
                    continue
                if held != data and (result.code == 0 or held != old[name][host]):
                    size = "no file" if held is None else f"{len(held)} bytes"
                    self.find(f"{host} has {size} in place of {name}, neither old nor new: {result}")

    @property
    def has_lost_disk(self) -> bool:
        """With its power a host loses its disk, which is of memory."""
        return "power_off" in str(self.story)

    def cluster_files(self, name: str) -> dict[str, bytes | None]:
        paths = {host: self.cluster.path(host, f"/root/tree/{name}") for host in self.cluster.names}
        return {host: path.read_bytes() if path.exists() else None for host, path in paths.items()}

    def install(self) -> None:
        version = self.random.choice(VERSIONS)
        words = self.words_of_install(version)
        with self.harming(self.workspace.start(*words, PIP_CONFIG_FILE="/dev/null", **QUICK)) as command:
            result = command.end(PATIENCE)
        self.mend()
        self.check(result)
        for host in self.cluster.names:
            if self.cluster.path(host, TORCH).exists() or (result.code == 0 and not self.has_lost_disk):
                program = [f"{TORCH}/bin/python", "-c", "import torch; print(torch.__version__)"]
                torch = self.cluster.exec(host, program).stdout.strip()
                if torch not in VERSIONS or (result.code == 0 and torch != version):
                    self.find(f"{host} has torch {torch!r} after an install of {version}: {result}")

    def words_of_install(self, version: str) -> list[str | Path]:
        options = ("--track", "native", "--backend", "gloo", "--python", "/usr/bin/python3")
        return ["install", "--venv", TORCH, "--torch", version, *options, "--index-url", self.index.url]

    # harms

    @contextlib.contextmanager
    def harming(self, command: Started) -> Iterator[Started]:
        """Up to three harms while the command goes on, each at a random moment; all are mended before this ends."""
        moments = sorted(self.random.uniform(0.0, 6.0) for _ in range(self.random.choice([0, 1, 1, 1, 2, 3])))
        harms = [self.random.choice(self.list_harms(command)) for _ in moments]
        lasting = [self.random.uniform(0.3, 8.0) for _ in moments]

        def work() -> None:
            begun = time.monotonic()
            for moment, harm, seconds in zip(moments, harms, lasting, strict=True):
                time.sleep(max(0.0, begun + moment - time.monotonic()))
                if command.process.poll() is not None:
                    return
                self.story.append(f"{moment:.2f} s {harm.__name__}")
                with contextlib.suppress(OSError, RuntimeError):  # its host is off, or its process has ended
                    harm(seconds)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield command
        finally:
            thread.join()
            command.close()

    def list_harms(self, command: Started) -> Sequence[Callable[[float], None]]:
        host = self.random.choice([*self.cluster.names, "controller"])
        machine = self.random.choice(self.cluster.names)
        number = self.random.choice(SIGNALS)

        def kill_process(_: float) -> None:
            if process := self.choose_process(machine):
                self.killed = True
                os.kill(process.outer, signal.SIGKILL)

        def halt_process(seconds: float) -> None:
            if process := self.choose_process(machine):
                os.kill(process.outer, signal.SIGSTOP)
                time.sleep(seconds)
                os.kill(process.outer, signal.SIGCONT)

        def cut(seconds: float) -> None:
            with self.cluster.cut(host):
                time.sleep(seconds)

        def lose_packets(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                with self.cluster.drop_packets(host):
                    time.sleep(self.random.uniform(0.02, 0.3))
                time.sleep(self.random.uniform(0.05, 0.6))

        def freeze(seconds: float) -> None:
            with self.cluster.freeze(machine):
                time.sleep(seconds)

        def power_off(seconds: float) -> None:
            with self.cluster.power_off(machine):
                time.sleep(seconds)

        def fill_disk(seconds: float) -> None:
            fill(self.workspace.path if host == "controller" else self.cluster.path(host, "/root"))
            time.sleep(seconds)
            self.empty_disks()

        def signal_controller(_: float) -> None:
            self.signals.add(number)
            command.signal(number)

        rare = [halt_process, freeze, power_off, fill_disk, signal_controller]
        harms = [*[kill_process] * 3, *[cut, lose_packets] * 2, *rare]
        return [harm for harm in harms if self.only in harm.__name__]

    def choose_process(self, host: str) -> Process | None:
        """Of ours, of MPI's, or of a session of sshd; the first process and the server of a host are its system."""
        processes = [
            process
            for process in self.cluster.processes(host)
            if process.pid != 1 and "listener" not in process.argv[0] and process.ppid != 0
        ]
        return self.random.choice(processes) if processes else None

    def mend(self) -> None:
        self.cluster.restore()
        self.empty_disks()
        for host in self.cluster.names:
            if not self.cluster.path(host, "/root/.ssh").exists():  # it lost its power, and its memory disk with it
                self.cluster.small_home(host, DISK)

    def empty_disks(self) -> None:
        hosts = [self.cluster.path(host, "/root") for host in self.cluster.names if self.is_on(host)]
        for place in (self.workspace.path, *hosts):
            (place / "filler").unlink(missing_ok=True)

    def is_on(self, host: str) -> bool:
        try:
            return bool(self.cluster.init(host))
        except RuntimeError:
            return False

    # checks

    def check(self, result: CommandResult) -> None:
        """The code is one that can be true, and nobody is shown a trace."""
        allowed = {-int(number) for number in self.signals} | {128 + int(number) for number in self.signals}
        harms = [word.partition(" s ")[2] for word in self.story if " s " in word]
        allowed |= {0, 3, 4, 5, 6, 7, 8, 9} if set(harms) - {"lose_packets"} else {0}
        if self.way == "none" and not self.killed and not self.has_lost_disk:
            allowed -= {5}  # no rank was harmed, and none speaks with others
        trace = result.code >= 0 and "Traceback (most recent call last)" in result.err
        if result.code in NEVER or result.code not in allowed or trace:
            self.find(f"exit code {result.code}, not one of {sorted(allowed)}: {result}")

    def check_logs(self, result: CommandResult) -> None:
        """0: every byte of each rank. Else the kept ones are the beginning of those, but for gaps that are marked."""
        if self.signals:
            return
        for rank in range(3):
            whole = b"".join(b"%s tick %d\n" % (self.tag.encode(), number) for number in range(20 + 10 * rank))
            try:
                kept = self.workspace.written(rank)
            except (OSError, IndexError):
                kept = b""
            if kept != whole and (result.code == 0 or not is_beginning(kept, whole)):
                self.find(f"rank {rank}: {len(kept)} of {len(whole)} bytes with exit code {result.code}: {result}")

    def find_ranks(self, host: str) -> list[Process]:
        return [process for process in self.cluster.processes(host) if self.tag in process.argv]

    def calm(self) -> None:
        """Nothing may be left once what goes on has been stopped."""
        end = time.monotonic() + CALM
        while time.monotonic() < end:
            for run in self.list_runs():
                self.workspace("stop", run, "--kill", timeout=PATIENCE)
                self.workspace("stop", "--orphans", run, timeout=PATIENCE)
            if not self.find_left():
                return
            time.sleep(0.5)
        for each in self.find_left():
            self.find(f"left: {each}")

    def list_runs(self) -> list[str]:
        result = self.workspace("ps", "--json", timeout=PATIENCE)
        return [row["run"] for key in ("runs", "orphans") for row in result.answer[key]] if result.code == 0 else []

    def find_left(self) -> list[str]:
        left = [f"{host}: {word}" for host, words in find_orphans(self.cluster).items() for word in words]
        return left + [f"controller: {' '.join(argv)[:100]}" for argv in find_processes_of_home(self.workspace.home)]

    def find_parts(self) -> list[str]:
        """Of files that were being received: what a receiver leaves that was killed is removed by the next one."""
        homes = [self.cluster.path(host, "/root") for host in self.cluster.names]
        return [str(path) for home in homes for path in home.rglob(".ipexctl-part*")]

    def go_on(self) -> None:
        """The next command of the same kind works, and the next run ends well with every byte."""
        self.story.append("next command")
        if self.story[0] == "install":
            result = self.workspace(*self.words_of_install(VERSIONS[0]), timeout=PATIENCE, PIP_CONFIG_FILE="/dev/null")
            if result.code != 0:
                self.find(f"the next install: {result}")
        if self.story[0] == "sync":
            tree = self.workspace.path / "tree"
            result = self.workspace("sync", tree, "--workdir", "/root/tree", timeout=PATIENCE)
            if result.code != 0:
                self.find(f"the next sync: {result}")
        self.signals.clear()
        result = self.workspace(*self.words_of_run(), timeout=PATIENCE, **QUICK)
        if result.code != 0:
            self.find(f"the next run: {result}")
        self.check_logs(result)
        for each in self.find_left() + self.find_parts():
            self.find(f"left behind the next command: {each}")


GAP = re.compile(rb"\n\[ipexctl: (\d+) bytes? missing here: not stored\]\n")  # as `store.record` marks one


def is_beginning(kept: bytes, whole: bytes) -> bool:
    """Returns whether this is the beginning of all, with as many bytes left out as each gap has."""
    at = 0
    for number, part in enumerate(GAP.split(kept)):  # texts, and the sizes of the gaps between them
        if number % 2:
            at += int(part)
        elif not whole.startswith(part, at):
            return False
        else:
            at += len(part)
    return True


MOST = 1 << 30  # bytes


def fill(place: Path) -> None:
    """Fills a small disk; never the one of this machine, where the small one is not mounted."""
    with contextlib.suppress(OSError), (place / "filler").open("wb", buffering=0) as file:
        while file.tell() < MOST:
            file.write(bytes(1 << 16))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--round", help="seed:number of one round to play again")
    parser.add_argument("--harm", default="", help="this harm only, such as lose_packets")
    asked = parser.parse_args()
    index = Index([*map(wheels.torch, VERSIONS), wheels.impi(), wheels.numpy()])
    with contextlib.ExitStack() as opened:
        place = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        cluster = opened.enter_context(Cluster())
        light(cluster, place)
        stock.put_stock_on_hosts(cluster)
        for host in cluster.names:
            cluster.small_home(host, DISK)
        desk = place / "desk"
        desk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", desk], check=True)
        opened.callback(lambda: subprocess.run(["umount", "--lazy", desk], check=True))
        opened.enter_context(cluster.inside())
        opened.enter_context(serving(index, "10.77.0.1"))
        if asked.round:
            seeds: Iterator[str] = iter([asked.round])
        else:
            seeds = list_seeds(asked.seed, asked.minutes)
        findings = play_rounds(cluster, desk, index, seeds, asked.harm)
    print(f"chaos: {len(findings)} findings")
    return 1 if findings else 0


def list_seeds(seed: int, minutes: float) -> Iterator[str]:
    end, number = time.monotonic() + 60.0 * minutes, 0
    while time.monotonic() < end:
        number += 1
        yield f"{seed}:{number}"


def play_rounds(cluster: Cluster, desk: Path, index: Index, seeds: Iterator[str], only: str) -> list[str]:
    findings: list[str] = []
    acts: Counter[str] = Counter()
    for seed in seeds:
        shutil.rmtree(desk / "user", ignore_errors=True)
        one = Round(cluster, Workspace(cluster, desk / "user"), index, seed, only)
        one.play()
        acts[one.story[0]] += 1
        print(f"{seed} {' · '.join(one.story)}", flush=True)
        for finding in one.findings:
            print(f"finding: {finding}", flush=True)
        findings += one.findings
        if len(findings) >= 20:
            break
    print(f"chaos: {sum(acts.values())} rounds: {', '.join(f'{n} {act}' for act, n in sorted(acts.items()))}")
    return findings


if __name__ == "__main__":
    sys.exit(main())
