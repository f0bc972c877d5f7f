"""How a run grows with its hosts: seconds to the first lines of all ranks, and from the last line to the proof that
nothing is left and to the end of the command.

Both on two hosts and on N, one rank each, for ``ipexctl run`` and for a bare mpirun over one login; what another host
costs is the difference by host. All hosts are this machine, so it is their CPU time, too. Then ``ps`` and ``stop``
while a detached run goes on on many hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ground import IPEXCTL, Ground, arguments, conditions, hosts, read_load
from launch import BARE, LIMIT, bare, prepare_hosts
from tables import Cell, Measurement, Table, publish

FEW = 2
OURS = "ipexctl run"
FIRST, LAST = b"the first line", b"the last line at "
SCRIPT = f"""import sys, time
print({FIRST.decode()!r}, flush=True)
time.sleep(float(sys.argv[1]))
print({LAST.decode()!r} + repr(time.time()), flush=True)
"""
DETACHED = 100.0  # seconds that the run of many hosts would last


class Taken(NamedTuple):
    first: float  # seconds to the first lines of all ranks
    end: float  # seconds from the last line of all to the end of the command
    proof: float  # and to the proof that nothing is left; of ipexctl only


def main() -> None:
    parser = arguments(__doc__ or "", hosts=16, many=32)
    given = parser.parse_args()
    if given.hosts <= FEW:
        parser.error(f"--hosts: more than {FEW}, with which they are compared")
    said, counts = conditions(), (FEW, given.hosts)
    with hosts(max(given.hosts, given.many), homes=True) as ground:
        venv, project = prepare_hosts(ground, "first.py", SCRIPT)
        cases = {OURS: ours, BARE: launch_bare}
        taken: dict[tuple[str, int], list[Taken]] = {(name, count): [] for name in cases for count in counts}
        asked: dict[str, list[float]] = {"ipexctl ps": [], "ipexctl stop": []}
        loads = []
        for turn in range(given.rounds):
            loads.append(read_load())
            for (name, count), times in taken.items():
                times.append(measure(cases[name](ground, venv, project, count), ground.env(), count))
                print(f"  round {turn + 1}: {name}, {count} hosts: {times[-1].first:.2f} s", file=sys.stderr)
            for name, seconds in ask_about_run(ground, venv, project, given.many).items():
                asked[name].append(seconds)
                print(f"  round {turn + 1}: {name}, {given.many} hosts: {seconds:.2f} s", file=sys.stderr)
    heads = ["command", f"s, {FEW} hosts", f"s, {given.hosts} hosts", "s for another host"]
    measured = [
        (OURS, "first lines", "first"),
        (BARE, "first lines", "first"),
        (OURS, "last line to the proof", "proof"),
        (OURS, "last line to the end", "end"),
    ]
    rows = [
        build_row(
            f"{name}: {what}", [[getattr(each, field) for each in taken[name, count]] for count in counts], counts
        )
        for name, what, field in measured
    ]
    many: list[list[Cell]] = [[name, statistics.median(seconds)] for name, seconds in asked.items()]
    tables = [
        Table(heads, rows, digits={heads[-1]: 3}),
        Table(["command", "s"], many, title=f"a run goes on on {given.many} hosts"),
    ]
    subject = f"One rank each, medians of {given.rounds} interleaved rounds"
    publish(Measurement("growth", subject, said, tables, loads), given)


def build_row(what: str, seconds: Sequence[Sequence[float]], counts: tuple[int, int]) -> list[Cell]:
    few, many = (statistics.median(times) for times in seconds)
    return [what, few, many, (many - few) / (counts[1] - counts[0])]


def ours(ground: Ground, venv: Path, project: Path, count: int, *flags: str, seconds: float = 0.2) -> list[str]:
    options = ["-f", write_hostfile(ground, count), "--venv", str(venv), "--ppn", "1", "--allow-duplicates"]
    return [*IPEXCTL, "run", *options, "--iface", "lo", *flags, str(project / "first.py"), str(seconds)]


def write_hostfile(ground: Ground, count: int) -> str:
    """The path of a hostfile of the first hosts."""
    path = ground.place / f"hostfile-{count}"
    path.write_text("".join(ground.hostfile.read_text().splitlines(keepends=True)[:count]))
    return str(path)


def launch_bare(ground: Ground, venv: Path, project: Path, count: int) -> list[str]:
    *words, line = bare(ground.take(count), venv, project)
    return [*words, f"{line} 0.2"]


def ask_about_run(ground: Ground, venv: Path, project: Path, count: int) -> dict[str, float]:
    """Seconds of ``ps`` and ``stop`` while a run goes on on so many hosts."""
    env, hostfile = ground.env(), write_hostfile(ground, count)
    execute(ours(ground, venv, project, count, "--detach", seconds=DETACHED), env)
    took = {}
    for name in ("ps", "stop"):
        begun = time.monotonic()
        execute([*IPEXCTL, name, "-f", hostfile], env)
        took[f"ipexctl {name}"] = time.monotonic() - begun
    return took


def execute(words: Sequence[str], env: Mapping[str, str]) -> None:
    """Ends this program where the command fails."""
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(words, env=env, timeout=LIMIT, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def measure(words: Sequence[str], env: Mapping[str, str], count: int) -> Taken:
    """Ends this program where a rank never says something."""
    begun = time.monotonic()
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(words, env=env, start_new_session=True, **options)  # type: ignore[call-overload]
    first, said = 0.0, b""
    try:
        while data := os.read(process.stdout.fileno(), 65536):
            said += data
            if not first and said.count(FIRST) == count:
                first = time.monotonic() - begun
        process.wait(LIMIT)
        ended = time.time()
    finally:
        process.stdout.close()
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not first or process.returncode:
        sys.exit(f"{' '.join(words)} ended with {process.returncode}:\n{said.decode(errors='replace')}")
    last = max(float(piece.split(maxsplit=1)[0]) for piece in said.split(LAST)[1:])
    return Taken(first, ended - last, read_proof(env) - last if tuple(words[: len(IPEXCTL)]) == IPEXCTL else 0.0)


def read_proof(env: Mapping[str, str]) -> float:
    """The time (Unix seconds) of the proof in the saved run that was written last; names hold the minute only."""
    runs = Path(env["HOME"], ".local/state/ipexctl/runs").glob("*/events.jsonl")
    newest = max(runs, key=lambda path: path.stat().st_mtime_ns)
    events = map(json.loads, newest.read_text().splitlines())
    return float(next(event["at"] for event in events if event["event"] == "cleanup-checked"))


if __name__ == "__main__":
    main()
