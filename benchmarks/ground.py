"""The ground of the benchmarks: many hosts on loopback, a stopwatch that also counts CPU, and tables.

One sshd answers for all hosts: host i has an address of its own in 127.0.0.0/8. The server is bound to the loopback
device, its keys are made for one benchmark, and everything ends with it.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

IPEXCTL = (sys.executable, "-m", "ipexctl")
CLIENTS = Path(__file__).with_name("clients.py")
WORKERS = 32  # hosts worked on at once, for every tool that can be told
TUNED = {  # what costs least of what OpenSSH 9 and Paramiko both have
    "KexAlgorithms": "curve25519-sha256@libssh.org,curve25519-sha256",
    "Ciphers": "aes128-gcm@openssh.com",
    "HostKeyAlgorithms": "ssh-ed25519",
    "GSSAPIAuthentication": "no",
    "AddressFamily": "inet",
    "PreferredAuthentications": "publickey",
}


Words = Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Ground:
    """``addresses`` are the hosts; files below ``place`` say how to reach them."""

    place: Path
    port: int
    addresses: tuple[str, ...]

    @property
    def key(self) -> Path:
        return self.place / "id"

    @property
    def known_hosts(self) -> Path:
        return self.place / "known_hosts"

    @property
    def hostfile(self) -> Path:
        return self.place / "hostfile"

    def home(self, address: str) -> Path:
        """The home of a host, where hosts have one of their own."""
        return self.place / "home" / address

    def ssh(self, *, tuned: bool) -> list[str]:
        """``ssh`` with all options but the host."""
        return ["ssh", "-F", str(self.place / ("tuned" if tuned else "default"))]

    def take(self, count: int) -> Ground:
        """The first hosts only."""
        return Ground(self.place, self.port, self.addresses[:count])

    def env(self) -> dict[str, str]:
        """For clients: a home of their own, where nothing is configured, and no agent."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return {**kept, "HOME": str(self.place / "client"), "PYTHONPATH": str(Path(__file__).parent.parent)}


@contextlib.contextmanager
def hosts(count: int, *, homes: bool = False) -> Iterator[Ground]:
    """Starts the server and writes the hostfile; ends both, also on SIGTERM. With ``homes`` each host has a home of its
    own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # else the server would stay
    place = Path(tempfile.mkdtemp(prefix="ipexctl-bench-"))
    place.chmod(0o700)
    try:
        addresses = tuple(f"127.{10 + i // 62500}.{1 + i % 62500 // 250}.{1 + i % 250}" for i in range(count))
        ground = Ground(place, _free_port(), addresses)
        for name in ("home", "client/.ssh"):
            (place / name).mkdir(parents=True)
        for key in ("host", "id"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place / key], check=True)
        shutil.copy(place / "id.pub", place / "authorized")
        public = " ".join((place / "host.pub").read_text().split()[:2])
        ground.known_hosts.write_text("".join(f"[{address}]:{ground.port} {public}\n" for address in addresses))
        shutil.copy(ground.known_hosts, place / "client/.ssh/known_hosts")
        ground.hostfile.write_text(
            "".join(
                f"h{i:03} address={address} user={getpass.getuser()} port={ground.port} key={ground.key}"
                f" known_hosts={ground.known_hosts} workdir={place}/hosts/h{i:03}\n"
                for i, address in enumerate(addresses)
            )
        )
        always = {
            "Port": ground.port,
            "IdentityFile": ground.key,
            "UserKnownHostsFile": ground.known_hosts,
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
        }
        for name, options in (("default", always), ("tuned", {**always, "IdentitiesOnly": "yes", **TUNED})):
            (place / name).write_text("".join(f"{key} {value}\n" for key, value in options.items()))
        with _server(ground, homes):
            yield ground
    finally:
        shutil.rmtree(place)


@contextlib.contextmanager
def _server(ground: Ground, homes: bool) -> Iterator[None]:
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    places = [f"SetEnv HOME={ground.place}/home\n"]
    if homes:  # sshd reads its configuration for every connection: not for many hosts
        places = []
        for address in ground.addresses:
            ground.home(address).mkdir()
            home = ground.home(address)
            places.append(f"Match LocalAddress {address}\nSetEnv HOME={home} BASH_ENV={home}/.bashrc\n")
    (ground.place / "sshd").write_text(
        f"HostKey {ground.place}/host\nPort {ground.port}\nListenAddress 0.0.0.0 rdomain lo\n"
        f"AuthorizedKeysFile {ground.place}/authorized\nPidFile none\nStrictModes no\nUsePAM no\nUseDNS no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nLogLevel ERROR\n"
        "MaxStartups 1000\nMaxSessions 100\nSubsystem sftp internal-sftp\n" + "".join(places)
    )
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    words = [sshd, "-D", "-E", str(ground.place / "log"), "-f", str(ground.place / "sshd")]
    server = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection((ground.addresses[0], ground.port), 1):
                break
            if server.poll() is not None:
                sys.exit(f"sshd does not start:\n{(ground.place / 'log').read_text()}")
            time.sleep(0.05)
        yield
    finally:
        sessions = _below(server.pid)
        server.terminate()
        server.wait()
        for process in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _below(process: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for child in map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()):
            found += [child, *_below(child)]
    return found


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# -- the stopwatch -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Of one command with all its children: seconds of wall and CPU time, the largest resident size in MiB; and the
    load average of the last minute before it."""

    wall: float
    cpu: float
    rss: float
    out: Path
    load: float = float("nan")


@dataclass(frozen=True)
class Case:
    """One tool at one task. ``fits`` looks at its output and says what is wrong, or nothing."""

    name: str
    argv: Words
    env: Mapping[str, str]
    fits: Callable[[Path], str]
    statuses: tuple[int, ...] = (0,)
    before: Callable[[], None] = lambda: None


@dataclass
class Costs:
    name: str
    all: list[Cost] = field(default_factory=list)
    wrong: str = ""

    def middle(self, what: Callable[[Cost], float]) -> float:
        return statistics.median(map(what, self.all)) if self.all else float("nan")

    @property
    def wall(self) -> float:
        return self.middle(lambda cost: cost.wall)

    @property
    def cpu(self) -> float:
        return self.middle(lambda cost: cost.cpu)

    @property
    def rss(self) -> float:
        return self.middle(lambda cost: cost.rss)


def interleaved(cases: Sequence[Case], rounds: int, limit: float) -> list[Costs]:
    """Runs every case once a round, in turn, so that a noisy moment hits all alike. A case that fails is left out."""
    results = [Costs(case.name) for case in cases]
    for turn in range(rounds):
        for case, costs in zip(cases, results, strict=True):
            if costs.wrong:
                continue
            case.before()
            status, cost = measured(case.argv, case.env, limit)
            if status not in case.statuses:
                costs.wrong = f"ended with status {status}: {_last(cost.out)}"
            else:
                costs.wrong = case.fits(cost.out)
            if not costs.wrong:
                costs.all.append(cost)
            cost.out.unlink()
            print(f"  round {turn + 1}: {case.name}: {costs.wrong or f'{cost.wall:.2f} s'}", file=sys.stderr)
    return results


def measured(argv: Words, env: Mapping[str, str], limit: float) -> tuple[int, Cost]:
    """Runs a command to its end, or to its end at ``limit`` seconds; its output is kept in a file."""
    handle, name = tempfile.mkstemp(prefix="ipexctl-bench-out-")
    with os.fdopen(handle, "wb") as out:
        load, begun = read_load(), time.monotonic()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        timer = threading.Timer(limit, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        _, status, used = os.wait4(process.pid, 0)
        timer.cancel()
        wall = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, Path(name), load)


def list_loads(results: Sequence[Costs]) -> list[float]:
    """The load average before each round: before its first command."""
    return [cost.load for cost in max((costs.all for costs in results), key=len, default=[])]


def read_load() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]


def _last(path: Path) -> str:
    lines = path.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"


# -- words -------------------------------------------------------------------------------------------------------------


def arguments(what: str, **numbers: int) -> argparse.ArgumentParser:
    """``--peers``, ``--rounds`` and ``--json``, and one option for each number."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--peers", type=Path, help="directory that peers.py has made (default: only what is on PATH)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write what was measured to this file as well")
    parser.add_argument("--only", help="of the other tools, only those with one of these words, with commas between")
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser


def chosen(cases: Sequence[Case], only: str | None) -> list[Case]:
    """Ours, and those others that were asked for."""
    words = only.lower().split(",") if only else [""]
    return [case for case in cases if "ipexctl" in case.name or any(word in case.name.lower() for word in words)]


def python(peers: Path | None) -> str | None:
    """The interpreter that has the peers' libraries."""
    return str(peers.absolute() / "bin/python") if peers else None


def tool(name: str, peers: Path | None) -> str | None:
    path = f"{peers.absolute()}/bin:" if peers else ""
    return shutil.which(name, path=path + os.environ.get("PATH", os.defpath))


def conditions() -> str:
    """What the numbers hold for."""
    versions = {}
    for words in (["ssh", "-V"], ["rsync", "--version"]):
        with contextlib.suppress(OSError):
            said = subprocess.run(words, capture_output=True, text=True)
            versions[words[0]] = (said.stdout or said.stderr).splitlines()[0].split(",")[0].strip()
    return (
        f"{time.strftime('%Y-%m-%d %H:%M')}, {os.cpu_count()} cores shared with all servers, Python"
        f" {sys.version.split()[0]}, {', '.join(versions.values())}"
    )
