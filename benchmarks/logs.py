"""How fast what ranks print comes through a whole run, and what a line costs: ``ipexctl run``, and bare ways beside it.

N ranks on two hosts print M lines of 100 bytes each as fast as they are read. Our way goes through the wrapper of each
rank, mpirun, the keeper's files, the watcher, SSH, the record and the plain screen, which is a file here. The bare ways
are mpirun over one login, and pdsh where it is installed (a host for each rank), both with their output in a file.

Processor time is that between the first and the last line, of every process below this one (it adopts what the hosts'
part leaves behind), by part. Ranks stay until the last line has come.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ground import IPEXCTL, Ground, arguments, conditions, hosts, read_load, tool
from launch import prepare_hosts
from tables import Cell, Measurement, Table, publish

HOSTS = 2
LINE = 100  # bytes
LIMIT = 300.0  # seconds
PERIOD = 0.02  # seconds between two looks at the output
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_TICK = os.sysconf("SC_CLK_TCK")
SCRIPT = """import os, sys, time
file, until = open(sys.argv[1], "rb", 0), time.monotonic() + 120
while block := file.read(1 << 16):
    while block:
        block = block[os.write(1, block) :]
while not os.path.exists(sys.argv[2]) and time.monotonic() < until:
    time.sleep(0.05)
"""
# Words of a command line → the part of the way; the first that fits.
PARTS = (
    ("keeper", ("keeper",)),
    ("watcher", ("watch",)),
    ("wrapper", ("rank",)),
    ("rank", ("lines.py",)),
    ("guard", ("guard",)),
    ("meter", ("meter",)),
    ("hydra", ("mpiexec.hydra", "hydra_bstrap_proxy", "hydra_pmi_proxy")),
)
HOST_PARTS = ("rank", "wrapper", "hydra", "keeper", "watcher", "sshd", "other")


class Run(NamedTuple):
    wall: float  # seconds from the first line to the last
    whole: float  # seconds of the command
    cpu: Mapping[str, float]  # seconds by part
    client_rss: float  # MiB


@dataclass(frozen=True)
class Way:
    """One way to get the lines. ``line`` is how many bytes one of them has in its output, whose size ``measure`` tells;
    ``check`` says what is wrong with a run's output, or nothing."""

    argv: Sequence[str]
    env: Mapping[str, str]
    line: int
    check: Callable[[Path], str]
    measure: Callable[[Path], int] = lambda out: out.stat().st_size


def main() -> None:
    parser = arguments(__doc__ or "", ranks=8, lines=200_000)
    parser.add_argument("--old", type=Path, help="a checkout to compare with: its ipexctl takes part as well")
    parser.add_argument("--live", action="store_true", help="also with the live screen, on a terminal that is read")
    given = parser.parse_args()
    conditions_before = conditions()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with hosts(given.ranks) as ground:
        ways = build_ways(ground, given.ranks, given.lines, given.peers, given.old, live=given.live)
        runs: dict[str, list[Run]] = {name: [] for name in ways}
        loads = []
        for turn in range(given.rounds):
            loads.append(read_load())
            for name, way in ways.items():
                runs[name].append(measure(ground, way, given.ranks * given.lines))
                rate = given.ranks * given.lines / runs[name][-1].wall / 1e6
                print(f"  round {turn + 1}: {name}: {rate:.3f} million lines/s", file=sys.stderr)
    total = given.ranks * given.lines
    subject = f"{given.ranks} ranks × {given.lines:,} lines of {LINE} bytes, {HOSTS} hosts; medians of {given.rounds}"
    heads = ["command", "million lines/s", "s to the end", "client µs/line", *(f"{p} µs/line" for p in HOST_PARTS)]
    rows = [make_row(name, taken, total) for name, taken in runs.items()]
    table = Table([*heads, "client RSS MiB"], rows, digits={"million lines/s": 3, "client RSS MiB": 0})
    publish(Measurement("logs", f"{subject} interleaved rounds", conditions_before, [table], loads), given)


def build_ways(
    ground: Ground, ranks: int, lines: int, peers: Path | None, old: Path | None, *, live: bool
) -> Mapping[str, Way]:
    """The ways that can be had here."""
    venv, project = prepare_hosts(ground, "lines.py", SCRIPT)
    text = ground.place / "lines"
    with text.open("wb") as out:
        out.writelines(b"step %07d ".ljust(LINE - 1 + 3, b".") % i + b"\n" for i in range(lines))
    records = ground.place / "client/.local/state/ipexctl/runs"
    head = ground.take(HOSTS)
    hostfile = ground.place / "two-hosts"
    hostfile.write_text("".join(ground.hostfile.read_text().splitlines(keepends=True)[:HOSTS]))
    words = ["run", "-f", str(hostfile), "--venv", str(venv), "--ppn", str(ranks // HOSTS), "--allow-duplicates"]
    words += ["--iface", "lo", str(project / "lines.py"), str(text), str(get_end_flag(ground))]
    saved = check_record(records, ranks, text)
    prefix = len(f"{ranks - 1}│".encode())
    env = ground.env()
    ways = {"ipexctl run": Way([*IPEXCTL, *words], env, LINE + prefix, saved)}
    if old is not None:
        ways["ipexctl run, old"] = Way([*IPEXCTL, *words], env | {"PYTHONPATH": str(old)}, LINE + prefix, saved)
    if live:
        command = ["script", "-q", "-e", "-c", " ".join(map(_quote, [*IPEXCTL, *words])), "/dev/null"]
        ways["ipexctl run, live"] = Way(command, env | {"TERM": "xterm-256color"}, LINE, saved, measure_record(records))
    count = check_count(ranks * lines)
    ways["ssh + mpirun"] = Way(bare(head, venv, project, text, ranks), env, LINE, count)
    if pdsh := tool("pdsh", peers):
        label = len(ground.addresses[0]) + 2
        command = [pdsh, "-R", "ssh", "-f", str(ranks), "-w", ",".join(ground.addresses)]
        command.append(f"{venv}/bin/python {project}/lines.py {text} {get_end_flag(ground)}")
        more = {"PDSH_SSH_ARGS_APPEND": f"-F {ground.place}/tuned"}
        ways["pdsh"] = Way(command, env | more, LINE + label, count)
    return ways


def bare(ground: Ground, venv: Path, project: Path, text: Path, ranks: int) -> list[str]:
    """As a user types it who has logged in on the head, with the tag of each rank."""
    ssh = ground.place / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {" ".join(ground.ssh(tuned=True))} "$@"\n')
    ssh.chmod(0o755)
    machines = ground.place / "machines"
    machines.write_text("".join(f"{address}\n" for address in ground.addresses))
    mpirun = f"PATH={venv}/bin:$PATH LD_LIBRARY_PATH={venv}/lib FI_PROVIDER_PATH={venv}/lib/libfabric mpirun"
    launcher = f"-launcher ssh -launcher-exec {ssh} -iface lo"
    line = f"{mpirun} {launcher} -f {machines} -ppn {ranks // HOSTS} -n {ranks}"
    script = f"{venv}/bin/python {project}/lines.py {text} {get_end_flag(ground)}"
    return [*ground.ssh(tuned=True), ground.addresses[0], f"{line} {script}"]


def get_end_flag(ground: Ground) -> Path:
    """The file whose appearance ends the ranks."""
    return ground.place / "last-line-has-come"


def _quote(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def check_record(records: Path, ranks: int, text: Path) -> Callable[[Path], str]:
    """Every rank's file in the record is what the rank wrote."""

    def check(_: Path) -> str:
        files = list(records.glob("*/ranks/*.out"))
        wrong = [file.name for file in files if subprocess.run(["cmp", "-s", file, text]).returncode]
        shutil.rmtree(records)
        return "" if len(files) == ranks and not wrong else f"{len(files)} files, not equal: {wrong}"

    return check


def measure_record(records: Path) -> Callable[[Path], int]:
    return lambda _: sum(file.stat().st_size for file in records.glob("*/ranks/*.out"))


def check_count(total: int) -> Callable[[Path], str]:
    def check(out: Path) -> str:
        with out.open("rb") as file:
            count = sum(block.count(b".\n") for block in iter(lambda: file.read(1 << 20), b""))
        return "" if count == total else f"{count} lines"

    return check


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(ground: Ground, way: Way, total: int) -> Run:
    """Ends this program where the run fails or lines are missing."""
    out, err = ground.place / "out", ground.place / "err"
    get_end_flag(ground).unlink(missing_ok=True)
    first = last = rss = 0.0
    before: Mapping[int, tuple[str, float]] = {}
    after = before
    with out.open("wb") as to, err.open("wb") as errors:
        begun = time.monotonic()
        options = {"stdin": subprocess.DEVNULL, "stdout": to, "stderr": errors, "start_new_session": True}
        client = subprocess.Popen(way.argv, env=way.env, cwd=ground.place, **options)  # type: ignore[call-overload]
        while client.poll() is None:
            now, size = time.monotonic(), way.measure(out)
            if size and not first:
                first, before = now, read_processor_times(client.pid)
            if size >= way.line * total and not last:
                last, after = now, read_processor_times(client.pid)
                get_end_flag(ground).touch()
            rss = max(rss, *map(read_rss, [client.pid, *descendants(client.pid)]))
            if now - begun > LIMIT:
                os.killpg(client.pid, signal.SIGKILL)
            time.sleep(PERIOD)
        whole = time.monotonic() - begun
    reap(ground)
    wrong = f"status {client.returncode}: {err.read_text()[-500:]}" if client.returncode else way.check(out)
    if wrong or not last:
        sys.exit(f"{' '.join(way.argv)}: {wrong or 'not all lines were seen'}")
    parts: dict[str, float] = {}
    for process, (part, seconds) in after.items():
        parts[part] = parts.get(part, 0.0) + seconds - before.get(process, (part, 0.0))[1]
    return Run(last - first, whole, parts, rss)


def read_processor_times(client: int) -> Mapping[int, tuple[str, float]]:
    """Of each process below this one its part and its seconds of processor time until now."""
    ours, times = {client, *descendants(client)}, dict[int, tuple[str, float]]()
    for process in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{process}/stat").read_text()
            name, fields = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
            words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
            part = "client" if process in ours else find_part(name, words)
            times[process] = part, (int(fields[11]) + int(fields[12])) / _TICK
    return times


def find_part(name: str, words: Sequence[str]) -> str:
    if name.startswith("sshd"):
        return "sshd"
    bases = {Path(word).name for word in words[:8]}
    return next((part for part, marks in PARTS if bases.intersection(marks)), "other")


def descendants(process: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def read_rss(process: int) -> float:
    """MiB; 0 of a process that has ended."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    return 0.0


def reap(ground: Ground) -> None:
    """Waits for what the hosts' part of the run has left to us."""
    until = time.monotonic() + 5.0
    while time.monotonic() < until:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
    sys.exit(f"processes of the run on {ground.place} do not end")


def make_row(name: str, runs: Sequence[Run], total: int) -> list[Cell]:
    def median(read: Callable[[Run], float]) -> float:
        return statistics.median(map(read, runs))

    parts = [median(lambda run, part=part: run.cpu.get(part, 0.0)) / total * 1e6 for part in HOST_PARTS]  # type: ignore[misc]
    client = median(lambda run: run.cpu.get("client", 0.0)) / total * 1e6
    rate, whole = median(lambda run: total / run.wall / 1e6), median(lambda run: run.whole)
    return [name, rate, whole, client, *parts, median(lambda run: run.client_rss)]


if __name__ == "__main__":
    main()
