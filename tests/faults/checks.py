"""What must hold in every case: how a command ended, and four checks of what it left.

A check that does not hold raises `Broken`, which says which of the four counts it adds to (tests/faults/conftest.py).
"""

import json
import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ipexctl.protocol.paths import LOCK, PART, RUN_ENV, RUNS
from tests.cluster import Cluster
from tests.e2e.workspace import CommandResult, Workspace

Count = Literal["wrong success", "processes left", "bytes lost unsaid", "sentinels or secrets found"]
COUNTS: tuple[Count, ...] = ("wrong success", "processes left", "bytes lost unsaid", "sentinels or secrets found")

LEDGERS = "/root/ledger"  # on hosts: RANK.out and RANK.err, what a rank is about to print (ranks/actor.py)
SENTINEL = "pwned"  # what a file is called that only an injection can have made
PLACES = ("/", "/root", "/tmp", "/var/tmp", "/dev/shm", "/home")  # where hosts are searched for them
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
SETTLE = 15.0  # seconds in which all is clean after the end (as docs/failures.md promises)


class Broken(AssertionError):
    """Something that must never be: ``toll`` of ``count``."""

    def __init__(self, count: Count, toll: int, text: str) -> None:
        super().__init__(f"{count}: {text}" if count not in text else text)
        self.count, self.toll = count, toll


def remove_kept_output(controller: Workspace) -> None:
    """Removes the output of runs that nobody watched to their end, which `stop` leaves for `attach` and `logs`."""
    for run in controller("ps", "--json").answer["runs"]:
        expect(controller("stop", "--orphans", run["run"]), 0)


def expect(result: CommandResult, code: int, *words: str) -> None:
    """It ended with this code, says all these words, and shows nobody a trace."""
    if result.code == 0 and code != 0:
        raise Broken("wrong success", 1, f"0 in place of {code}: {result}")
    assert result.code == code, result
    missing = [word for word in words if word not in result.out + result.err]
    assert not missing, f"{missing} in\n{result}"
    assert "Traceback (most recent call last)" not in result.err, result


@dataclass(frozen=True)
class HostState:
    """What may be on a host before a case, and after it."""

    processes: frozenset[tuple[int, tuple[str, ...]]]
    listening: frozenset[int]
    temporary: frozenset[str]


@dataclass
class Checks:
    """The four checks of one case. A test says here what it may leave and what is secret."""

    cluster: Cluster
    path: Path  # where its controllers live
    workspaces: list[Workspace] = field(default_factory=list)
    secrets: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    _seen: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._before = {host: look(self.cluster, host) for host in self.cluster.names}

    def secret(self, value: str, *known: Path) -> None:
        """From now on no command line and no file may hold this, but the files ``known``."""
        self.secrets[value] = known

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Meanwhile all command lines of this machine, hosts included, are searched for secrets 50 times a second."""
        done = threading.Event()

        def sample() -> None:
            while not done.wait(0.02):
                self._seen += find_in_command_lines(list(self.secrets))

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def all(self) -> None:
        """After the case. The first of the four that does not hold raises; all are looked at."""
        broken = [*self._find_orphans(), *self._ledgers(), *self._sentinels(), *self._secrets()]
        if broken:
            raise Broken(broken[0].count, broken[0].toll, "\n".join(str(each) for each in broken))

    def _find_orphans(self) -> Iterator[Broken]:
        deadline = time.monotonic() + SETTLE
        while (actual := self._find_left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        if actual:
            yield Broken("processes left", len(actual), "; ".join(actual))

    def _find_left(self) -> list[str]:
        actual = [
            f"controller: {' '.join(argv)[:200]}"
            for workspace in self.workspaces
            for argv in find_processes_of_home(workspace.home)
        ]
        actual += [f"controller: {place}" for workspace in self.workspaces for place in find_sockets(workspace.path)]
        actual += [
            f"controller: {place}" for workspace in self.workspaces for place in (workspace.path / "tmp").glob("*")
        ]
        for host in self.cluster.names:
            before, now = self._before[host], look(self.cluster, host)
            marked = {p.pid for p in self.cluster.processes(host) if RUN_ENV in p.environ}
            for pid, argv in now.processes:
                if (pid, argv) not in before.processes or pid in marked:
                    actual.append(f"{host}: {pid} {' '.join(argv)[:200]}")
            actual += [f"{host}: port {port}" for port in now.listening - before.listening]
            actual += [f"{host}: {place}" for place in now.temporary - before.temporary]
            actual += [f"{host}: {place}" for place in self._find_unfinished(host)]
        return actual

    def _find_unfinished(self, host: str) -> Iterator[str]:
        """Directories of runs, and trees in the making."""
        runs = self.cluster.path(host, f"/root/{RUNS}")
        if runs.is_dir():
            yield from (f"{RUNS}/{each.name}" for each in runs.iterdir() if not each.name.startswith(LOCK))
        for top, names, _ in os.walk(self.cluster.path(host, "/root")):
            yield from (f"{top}/{name}" for name in names if name.startswith(PART))

    def _ledgers(self) -> Iterator[Broken]:
        """What ranks noted is in the last record, or its report counts what is missing."""
        records = [
            record for workspace in self.workspaces for record in workspace.records if (record / "ranks").is_dir()
        ]
        if not records:
            return
        report = records[-1] / "report.json"
        lost = (json.loads(report.read_text()).get("lost") or {}) if report.exists() else {}
        for host in self.cluster.names:
            place = self.cluster.path(host, LEDGERS)
            for ledger in sorted(place.glob("*.out")) + sorted(place.glob("*.err")) if place.is_dir() else []:
                written, log = ledger.read_bytes(), records[-1] / "ranks" / ledger.name
                kept = log.read_bytes() if log.exists() else b""
                if kept != written and not (lost.get("ranks") or {}).get(ledger.stem):
                    less = max(1, len(written) - len(kept))
                    yield Broken("bytes lost unsaid", less, f"{ledger.name}: {len(kept)} of {len(written)} bytes")

    def _sentinels(self) -> Iterator[Broken]:
        actual = [str(place) for place in self.path.rglob(f"*{SENTINEL}*") if is_sentinel(place.name)]
        for host in self.cluster.names:
            actual += [
                f"{host}:{top}/{name}"
                for top in PLACES
                for name in os.listdir(self.cluster.path(host, top))
                if is_sentinel(name)
            ]
        if actual:
            yield Broken("sentinels or secrets found", len(actual), "; ".join(actual))

    def _secrets(self) -> Iterator[Broken]:
        actual = list(self._seen)
        for value, known in self.secrets.items():
            places = [self.path, *(self.cluster.path(host, top) for host in self.cluster.names for top in PLACES[1:])]
            actual += [str(place) for place in find_in_files(value.encode(), places) if place not in known]
        if actual:
            yield Broken("sentinels or secrets found", len(actual), "; ".join(sorted(set(actual))))


def is_sentinel(name: str) -> bool:
    """``touch pwned`` made it; a name that only quotes the injection is none."""
    return re.fullmatch(rf"{SENTINEL}[0-9]*", name) is not None


def look(cluster: Cluster, host: str) -> HostState:
    return HostState(
        frozenset((p.pid, p.argv) for p in cluster.processes(host) if p.pid != 1 and not is_server(p.argv)),
        frozenset(find_listening(cluster.init(host))),
        frozenset(f"{top}/{name}" for top in TEMPORARY for name in os.listdir(cluster.path(host, top))),
    )


def is_server(argv: Sequence[str]) -> bool:
    """A host's sshd, or a session of it that is just ending."""
    return bool(argv) and re.match(r"(/usr/sbin/)?sshd\b", argv[0]) is not None


def find_listening(pid: int) -> Iterator[int]:
    """TCP ports somebody listens on in this process's network."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A":
                yield int(local.rpartition(":")[2], 16)


def find_processes_of_home(home: Path) -> Iterator[tuple[str, ...]]:
    """Command lines of living processes whose HOME this is."""
    mark = b"HOME=" + os.fsencode(home)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield tuple((entry / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0"))
            except OSError:
                continue


def find_sockets(top: Path) -> list[Path]:
    return [place for place in top.rglob("*") if stat.S_ISSOCK(place.lstat().st_mode)]


def find_in_command_lines(values: Sequence[str]) -> list[str]:
    actual = []
    words = [value.encode() for value in values]
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue
            if any(word in line for word in words):
                actual.append("argv " + line.replace(b"\0", b" ").decode("utf-8", "replace")[:80])
    return actual


def find_in_files(value: bytes, tops: Sequence[Path]) -> Iterator[Path]:
    for top in tops:
        for folder, _, names in os.walk(top):
            for name in names:
                place = Path(folder, name)
                if place.is_file() and not place.is_symlink() and value in place.read_bytes():
                    yield place
