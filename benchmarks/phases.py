"""Where the time of a launch goes: the phases of ``ipexctl run`` on two hosts, from its own events.

With ``--old CHECKOUT`` another version takes part, in the same rounds. docs/performance.md has the numbers of the last
time, and says what each phase does.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ground import arguments, conditions, hosts, read_load
from launch import FIRST_LINE, LIMIT, LOGINS, ours, prepare_hosts, write_startup_files
from tables import Cell, Measurement, Table, publish

Event = Mapping[str, object]


def is_event(name: str, **values: object) -> Callable[[Event], bool]:
    return lambda event: event["event"] == name and all(event.get(key) == value for key, value in values.items())


# A phase lasts until the last of these events; the first one begins with the process.
PHASES: Mapping[str, Callable[[Event], bool]] = {
    "start to the first event": is_event("started"),
    "probe": is_event("facts-read"),
    "compare the script's directory": is_event("step-ended", step="sync"),
    "plan": is_event("planned"),
    "run directories, keeper": lambda event: (
        event["event"] == "step-ended" and event["step"] in {"prepare", "start keeper"}
    ),
    "guards": is_event("step-ended", step="start guard"),
    "mpirun to the first line": lambda event: event["event"] == "output",
    "the script itself": is_event("rank-ended"),
    "last rank's end to the proof": is_event("cleanup-checked"),
}
REST = "proof to the end of the process"


def main() -> None:
    parser = arguments(__doc__ or "", hosts=2)
    parser.add_argument("--old", type=Path, help="a checkout to compare with")
    given = parser.parse_args()
    said, loads = conditions(), []
    with hosts(given.hosts, homes=True) as ground:
        venv, project = prepare_hosts(ground, "first.py", FIRST_LINE)
        command = ours(ground, venv, project, "--output", "json")
        versions = {"before": given.old, "after": None} if given.old else {"after": None}
        cases = [(login, version) for login in LOGINS for version in versions]
        taken: dict[tuple[str, str], list[list[float]]] = {case: [] for case in cases}
        for turn in range(given.rounds + 1):
            if turn:
                loads.append(read_load())
            for (login, version), times in taken.items():
                write_startup_files(ground, LOGINS[login])
                env = ground.env() | ({"PYTHONPATH": str(versions[version])} if versions[version] else {})
                phases = measure(command, env)
                if turn:  # the first round carries files over and compiles
                    times.append(phases)
    rows: list[list[Cell]] = []
    for number, phase in enumerate([*PHASES, REST, "the first line"]):
        rows.append([phase, *(1000 * statistics.median(times[number] for times in taken[case]) for case in cases)])
    heads = ["phase, ms", *(f"{login} login, {version}" for login, version in cases)]
    subject = f"{given.hosts} hosts, one rank each, medians of {given.rounds} interleaved rounds"
    table = Table(heads, rows, digits=dict.fromkeys(heads, 0))
    publish(Measurement("phases", subject, said, [table], loads), given)


def measure(words: Sequence[str], env: Mapping[str, str]) -> list[float]:
    """Seconds of each phase, of the rest, and from the start to the first line."""
    begun = time.time()
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "cwd": "/"}  # no ipexctl in there
    done = subprocess.run(words, env=env, timeout=LIMIT, **options)  # type: ignore[call-overload]
    ended = time.time()
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr}")
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    first = next(event["at"] for event in events if event["event"] == "output")
    marks = [begun]
    for phase, holds in PHASES.items():
        times = [event["at"] for event in events if holds(event)]
        marks.append(first if phase == "mpirun to the first line" else max(times))
    marks.append(ended)
    return [after - before for before, after in pairwise(marks)] + [first - begun]


if __name__ == "__main__":
    main()
