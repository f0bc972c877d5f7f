"""What ``--persist`` saves: commands on eight hosts that log in, and over the connections of an earlier command.

Once over loopback as it is, once through a relay with a round trip of 50 ms. Beside the times stand the logins and the
turns that each command took on a host: how often the client spoke after the server, which is what latency multiplies.
The peer is OpenSSH with ControlPersist, eight at a time, whose command does nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ground import IPEXCTL, Ground, arguments, conditions, hosts, measured, read_load
from launch import IMPI, WORD, as_installed
from launch import measure as measure_launch
from tables import Cell, Measurement, Table, publish

LIMIT = 120.0
DELAY = Path(__file__).with_name("delay.py")
ROUND_TRIPS = (0, 50)  # milliseconds


class Taken(NamedTuple):
    seconds: float
    cpu: float  # seconds, of the client with its children; not of what it leaves in the background
    logins: float  # a host
    turns: float  # a host


class Road(NamedTuple):
    """A way to the hosts, through a relay."""

    ground: Ground
    hostfile: Path
    known_hosts: Path
    port: int
    place: Path  # short, as paths of sockets must be

    @property
    def record(self) -> Path:
        """Where the relay counts."""
        return self.place / "record"

    def env(self) -> dict[str, str]:
        return {**self.ground.env(), "XDG_RUNTIME_DIR": str(self.place)}


def main() -> None:
    parser = arguments(__doc__ or "", hosts=8)
    parser.add_argument("--launch", action="store_true", help="also the first line of a run on two hosts; needs pip")
    given = parser.parse_args()
    said = conditions()
    taken: dict[tuple[int, str, str], list[Taken]] = {}
    loads: list[float] = []
    with hosts(given.hosts, homes=True) as ground, contextlib.ExitStack() as stack:
        roads = {delay: stack.enter_context(open_road(ground, delay)) for delay in ROUND_TRIPS}
        project = prepare_launch(ground) if given.launch else None
        for turn in range(given.rounds):
            loads.append(read_load())
            for delay, road in roads.items():
                for name, way, result in measure_all(road, project):
                    taken.setdefault((delay, name, way), []).append(result)
                    print(f"  round {turn + 1}: {delay} ms: {name}, {way}: {result.seconds:.2f} s", file=sys.stderr)
    rows: list[list[Cell]] = []
    for (delay, name, way), results in taken.items():
        seconds, cpu, logins, turns = (statistics.median(values) for values in zip(*results, strict=True))
        base = statistics.median(each.seconds for each in taken[delay, name, "new"])
        rows.append([f"{delay} ms", name, way, seconds, seconds / base, cpu, logins, turns])
    heads = ["round trip", "command", "connections", "s", "× new", "CPU s", "logins a host", "turns a host"]
    subject = f"{given.hosts} hosts, medians of {given.rounds} interleaved rounds"
    digits = {"logins a host": 1, "turns a host": 1}
    publish(Measurement("persist", subject, said, [Table(heads, rows, digits=digits)], loads), given)


@contextlib.contextmanager
def open_road(ground: Ground, delay: int) -> Iterator[Road]:
    """The relay, and the files that lead through it. Ends the relay, and what holds connections through it."""
    place = ground.place / f"road{delay}"
    place.mkdir(mode=0o700)
    words = [sys.executable, str(DELAY), str(ground.port), str(delay), str(place / "record")]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as relay:
        try:
            assert relay.stdout is not None
            port = int(relay.stdout.readline())
            known = place / "known_hosts"
            known.write_text(ground.known_hosts.read_text().replace(f"]:{ground.port} ", f"]:{port} "))
            hostfile = place / "hostfile"
            text = ground.hostfile.read_text().replace(f"port={ground.port} ", f"port={port} ")
            hostfile.write_text(text.replace(f"known_hosts={ground.known_hosts}", f"known_hosts={known}"))
            road = Road(ground, hostfile, known, port, place)
            try:
                yield road
            finally:
                disconnect(road)
        finally:
            relay.terminate()


def disconnect(road: Road) -> None:
    """Ends the persistent connections, ours and those of ssh."""
    ours = [*IPEXCTL, "hosts", "-f", str(road.hostfile), "--disconnect"]
    theirs = [[*ssh(road, "exit"), address] for address in road.ground.addresses if any(road.place.glob("c*"))]
    for words in (ours, *theirs):
        quiet = subprocess.DEVNULL
        subprocess.run(words, env=road.env(), stdin=quiet, stdout=quiet, stderr=quiet)


def ssh(road: Road, control: str = "") -> list[str]:
    """``ssh`` with persistent connections, with all options but the host."""
    options = ["-p", str(road.port), "-o", f"UserKnownHostsFile={road.known_hosts}"]
    path = road.place / "c%C"
    options += ["-o", f"ControlPath={path}", *(["-O", control] if control else [])]
    return [*road.ground.ssh(tuned=True), *options]


def measure_all(road: Road, project: Path | None) -> Iterator[tuple[str, str, Taken]]:
    """The commands: with new connections, with new ones that persist, and with persistent ones."""
    ways = {"new": [], "new, persistent": ["--persist", "10m"], "persistent": ["--persist", "10m"]}
    for name in ("ps", "doctor --pairwise off"):
        for way, flags in ways.items():
            if way != "persistent":
                disconnect(road)
            words = [*IPEXCTL, *name.split(), "-f", str(road.hostfile), *flags]
            yield f"ipexctl {name}", way, measure(words, road)
    if project is not None:
        for way, flags in ways.items():
            if way != "persistent":
                disconnect(road)
            yield "first line of ipexctl run --no-sync, 2 hosts", way, measure_run(road, project, flags)
    sh = 'printf "%s\\n" "$@" | xargs -P 8 -I{} '
    for way, control in {"new": "no", "new, persistent": "auto", "persistent": "auto"}.items():
        if way != "persistent":
            disconnect(road)
        line = " ".join([*ssh(road), "-o", f"ControlMaster={control}", "-o", "ControlPersist=600"])
        if control == "no":
            line += " -o ControlPath=none"
        words = ["sh", "-c", f"{sh}{line} {{}} true", "sh", *road.ground.addresses]
        yield "ssh, nothing", way, measure(words, road)


def measure(words: list[str], road: Road) -> Taken:
    road.record.write_bytes(b"")
    status, cost = measured(words, road.env(), LIMIT)
    text = cost.out.read_text("utf-8", "replace")
    cost.out.unlink()
    if status not in (0, 4):  # 4: doctor has found something, as it may on any machine
        sys.exit(f"{' '.join(words)} ended with {status}:\n{text}")
    return Taken(cost.wall, cost.cpu, *count(road, len(road.ground.addresses)))


def count(road: Road, hosts: int) -> tuple[float, float]:
    """Logins and turns a host since the record was emptied."""
    lines = road.record.read_bytes().split()
    return lines.count(b"c") / hosts, lines.count(b"t") / hosts


def prepare_launch(ground: Ground) -> Path:
    """An environment with Intel MPI, and a script that writes a line."""
    venv, project = ground.place / "venv", ground.place / "project"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/python", "-m", "pip", "install", "-q", IMPI], check=True)
    (venv / "ipexctl.json").write_text(json.dumps(as_installed(venv)))
    project.mkdir()
    (project / "first.py").write_text(f"print({WORD.decode()!r}, flush=True)\n")
    for i in range(2):
        shutil.copytree(project, ground.place / f"hosts/h{i:03}")
    return project


def measure_run(road: Road, project: Path, flags: list[str]) -> Taken:
    options = [
        "-f",
        str(road.hostfile),
        "--limit",
        "h000,h001",
        "--venv",
        str(road.ground.place / "venv"),
        "--ppn",
        "1",
    ]
    options += ["--allow-duplicates", "--iface", "lo", "--no-sync", *flags]
    road.record.write_bytes(b"")
    env: Mapping[str, str] = road.env()
    taken = measure_launch([*IPEXCTL, "run", *options, str(project / "first.py")], env, Path(os.devnull))
    return Taken(taken.first, float("nan"), *count(road, 2))


if __name__ == "__main__":
    main()
