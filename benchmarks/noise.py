"""What ipexctl's own processes take from the ranks of a run: the pace of a training while they go on ÷ while they are
stopped (windows.py), and how often each of them wakes up and what it computes.

The ranks have all cores of the machine, print a line every ten steps, and wait for each other in every step, so that
whoever takes a core for a moment delays them all. The controller runs on the same machine, which adds its part. Between
two windows in which they are stopped they also do what has gathered. ``--old CHECKOUT``: another version takes part.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ground import Ground, arguments, conditions, hosts, read_load
from launch import as_installed, ours
from tables import Cell, Measurement, Table, publish
from training import EXAMPLE
from windows import MARK, alternate, await_marks, read_words, summarize_ratios

WINDOW = 0.5  # seconds
LOOK = 8.0  # seconds in which is counted what processes do
CONTROLLER = "controller"
PARTS = {"keeper": "keeper", "guard": "guard", "watch": "watcher", "meter": "meter", "rank": "wrapper"}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--stack", type=Path, required=True, help="environment that peers.py --stack has made")
    parser.add_argument("--ranks", type=int, default=len(os.sched_getaffinity(0)), help="a core each")
    parser.add_argument("--backend", nargs="+", default=["gloo", "impi"])
    parser.add_argument("--old", type=Path, help="a checkout to compare with")
    given = parser.parse_args()
    machine, loads = conditions(), []
    versions = {"before": {"PYTHONPATH": str(given.old)}} if given.old else {}
    ratios: list[list[Cell]] = []
    uses: list[list[Cell]] = []
    for backend in given.backend:
        for version, env in {**versions, "": {}}.items():
            loads.append(read_load())
            name = f"{backend}, {version}" if version else backend
            paces, use = measure(given.stack.absolute(), backend, given.ranks, given.rounds, env)
            ratios.append([name, *summarize_ratios(paces)])
            uses += [[name, part, *numbers] for part, numbers in use.items()]
    heads = ["backend", "median of pairs", "mean", "standard error"]
    title = "Pace while our processes go on ÷ while they are stopped"
    tables = [Table(heads, ratios, title, dict.fromkeys(heads, 3))]
    tables += [Table(["backend", "part", "processes", "wake-ups/s", "CPU ms/s"], uses, "Our processes in a second")]
    subject = (
        f"examples/train_ddp.py, {given.ranks} ranks, a core each; {given.rounds} pairs of windows of {WINDOW:g} s"
    )
    publish(Measurement("noise", subject, machine, tables, loads), given)


def measure(
    stack: Path, backend: str, ranks: int, rounds: int, env: Mapping[str, str]
) -> tuple[list[tuple[float, float]], dict[str, tuple[int, float, float]]]:
    """Pairs of paces, and what each part of ipexctl does: processes, wake-ups and milliseconds of CPU per second."""
    packages = {"torch": "2.13.0", "impi-torch": "0.1.0", "mpi4py": "4.1.2"}
    (stack / "ipexctl.json").write_text(json.dumps(as_installed(stack, packages)))
    with hosts(1, homes=True) as ground:
        (ground.place / "hosts/h000").mkdir(parents=True, mode=0o700)
        project = ground.place / "project"
        project.mkdir()
        marks = [ground.place / f"marks.{rank}" for rank in range(ranks)]
        (project / "first.py").write_bytes(Path(__file__).with_name("marked.py").read_bytes())
        words = ours(ground, stack, project, "--backend", backend)
        words[words.index("--ppn") + 1] = str(ranks)
        words += [str(ground.place / "marks"), str(MARK), str(EXAMPLE), "--steps", str(10**9), "--backend", backend]
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "start_new_session": True, "cwd": "/"}
        run = subprocess.Popen(words, env={**ground.env(), **env}, **options)  # type: ignore[call-overload]
        try:
            await_marks(marks, 300)
            parts = {run.pid: CONTROLLER, **find_parts(ground)}
            use = count_wakeups(parts)
            return alternate(list(parts), marks[0], rounds, WINDOW), use
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(60)


def find_parts(ground: Ground) -> dict[int, str]:
    """The agent's processes of the run, and which part of it each is."""
    parts = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = [os.fsdecode(word) for word in read_words(path)]
        places = [number for number, word in enumerate(words) if word.endswith("/agent.pyz")]
        if places and words[places[0]].startswith(str(ground.place)):
            parts[int(path.parent.name)] = PARTS.get(words[places[0] + 1], words[places[0] + 1])
    return parts


def count_wakeups(parts: Mapping[int, str]) -> dict[str, tuple[int, float, float]]:
    """How often a second the processes of each part were given a core, and for how many milliseconds; with how many
    processes it has. From schedstat of each thread: ns on a core, ns waited for one, times."""
    before = {pid: read_schedule(pid) for pid in parts}
    time.sleep(LOOK)
    rates: dict[str, tuple[int, float, float]] = {}
    for pid, part in parts.items():
        wakeups, busy = (after - earlier for after, earlier in zip(read_schedule(pid), before[pid], strict=True))
        count, wakeups_of_part, busy_of_part = rates.get(part, (0, 0.0, 0.0))
        rates[part] = (count + 1, wakeups_of_part + wakeups / LOOK, busy_of_part + busy / 1e6 / LOOK)
    return rates


def read_schedule(pid: int) -> tuple[int, int]:
    """How often the threads of a process were given a core, and for how many nanoseconds."""
    lines: list[Sequence[str]] = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(words[2]) for words in lines), sum(int(words[0]) for words in lines)


if __name__ == "__main__":
    main()
