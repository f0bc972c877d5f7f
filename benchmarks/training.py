"""Samples per second of examples/train_ddp.py: under ``ipexctl run``, and under what else starts it on the same cores.

For Gloo and for impi (impi_torch over Intel MPI), with 1, 2 and 4 ranks on one host: mpirun by hand with the line of
Hugging Face's guide for many CPUs and Intel's variables (perf_train_cpu_many; run_lora_finetune_ddp.sh of IPEX 2.8),
torchrun, and ``accelerate launch`` with its mpirun. All get the same number of OpenMP threads, a core each. The pace is
measured in the script, from the end of its tenth step on (paced.py). ``ipexctl run`` preloads tcmalloc where the host
has it, and the others do not; `run` with the C library's malloc separates the allocator from the launch. mpirun by hand
takes part twice, to show how much two medians of one command differ. The speed of a shared machine changes within a
minute: the launchers of one case come one behind the other, each time another one first, and a ratio is the median of
those of the rounds.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ground import IPEXCTL, Ground, arguments, conditions, hosts, read_load
from launch import as_installed
from tables import Cell, Measurement, Table, publish

LIMIT = 300.0  # seconds
PACE = "samples_per_second"
EXAMPLE = Path(__file__).parents[1] / "examples/train_ddp.py"
PACED = Path(__file__).with_name("paced.py")
SAMPLES = 256  # of each rank and step
BACKENDS = ("gloo", "impi")
RANKS = (1, 2, 4)
OURS, GUIDE, AGAIN, TORCHRUN, ACCELERATE = (
    "ipexctl run", "mpirun by hand", "mpirun by hand, again", "torchrun", "accelerate launch",
)  # fmt: skip
OUR_OPTIONS: Mapping[str, Sequence[str]] = {OURS: (), f"{OURS}, malloc of the C library": ("--allocator", "default")}
OTHERS = (GUIDE, TORCHRUN, ACCELERATE)
ANSWER = re.compile(r"^(?:\d+│)?(\{.*\})$", re.MULTILINE)  # ipexctl prefixes a rank's lines
GUIDE_ENV = {"CCL_WORKER_COUNT": "1", "KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}


class Case(NamedTuple):
    """One way to start so many ranks with this backend."""

    backend: str
    ranks: int
    launcher: str
    argv: Sequence[str]
    env: Mapping[str, str]


def main() -> None:
    parser = arguments(__doc__ or "", steps=600)
    parser.add_argument("--stack", type=Path, help="environment that peers.py --stack has made")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=BACKENDS)
    given = parser.parse_args()
    if not given.stack:
        parser.error("--stack is needed")
    machine, loads = conditions(), []
    answers: dict[tuple[str, int, str], list[dict[str, Any]]]
    with hosts(1, homes=True) as ground:
        groups = [
            list(build_cases(ground, given.stack.absolute(), backend, ranks, given.steps))
            for backend in given.backend
            for ranks in given.ranks
        ]
        answers = {case[:3]: [] for cases in groups for case in cases}
        for turn in range(given.rounds):
            loads.append(read_load())
            for case in (case for cases in groups for case in rotate(cases, turn)):
                answer = measure(case)
                answers[case[:3]].append(answer)
                pace = f"{answer[PACE]:,.0f} samples/s"
                print(f"  round {turn + 1}: {case.backend}, {case.ranks}: {case.launcher}: {pace}", file=sys.stderr)
    torch = next(iter(answers.values()))[0]["torch"]
    subject = f"examples/train_ddp.py, torch {torch}, {given.steps} steps, medians of {given.rounds} interleaved rounds"
    tables = [build_pace_table(answers), build_settings_table(answers)]
    publish(Measurement("training", subject, machine, tables, loads), given)


def rotate(cases: Sequence[Case], turn: int) -> list[Case]:
    first = turn % len(cases)
    return [*cases[first:], *cases[:first]]


def build_cases(ground: Ground, stack: Path, backend: str, ranks: int, steps: int) -> Iterator[Case]:
    """All ways to start this training. impi needs an mpirun, so torchrun cannot start it."""
    threads = str(max(1, len(os.sched_getaffinity(0)) // ranks))
    python, script = str(stack / "bin/python"), write_project(ground, stack)
    words = [str(SAMPLES), str(EXAMPLE), "--steps", str(steps), "--backend", backend]
    for launcher, options in OUR_OPTIONS.items():
        argv = build_our_argv(ground, stack, [*options, "--ppn", str(ranks), "--backend", backend, script, *words])
        yield Case(backend, ranks, launcher, argv, ground.env())
    env = {
        **ground.env(),
        "PATH": f"{stack}/bin:{os.environ.get('PATH', os.defpath)}",
        "LD_LIBRARY_PATH": f"{stack}/lib",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29517",
    }
    machines = ground.place / "machines"
    machines.write_text("127.0.0.1\n")
    mpirun = ["mpirun", "-f", str(machines), "-n", str(ranks), "-ppn", str(ranks)]
    for name, value in {**GUIDE_ENV, "OMP_NUM_THREADS": threads}.items():
        mpirun += ["-genv", name, value]
    for launcher in (GUIDE, AGAIN):
        yield Case(backend, ranks, launcher, [*mpirun, python, "-u", script, *words], env)
    if backend == "gloo":
        torchrun = ["torchrun", "--nproc-per-node", str(ranks), "--master-port", "29518", script, *words]
        yield Case(backend, ranks, TORCHRUN, torchrun, {**env, "OMP_NUM_THREADS": threads})
    accelerate = ["accelerate", "launch", "--cpu", "--num_machines", "1", "--num_processes", str(ranks)]
    accelerate += ["--mixed_precision", "no", "--dynamo_backend", "no", "--num_cpu_threads_per_process", threads]
    accelerate += ["--main_process_ip", "127.0.0.1", "--main_process_port", "29519"]
    if ranks > 1:
        accelerate += ["--mpirun_hostfile", str(machines)]
    yield Case(backend, ranks, ACCELERATE, [*accelerate, script, *words], env)


def write_project(ground: Ground, stack: Path) -> str:
    """The directory of the script, and the record of an environment beside the stack; returns the script's path."""
    packages = {"torch": "2.13.0", "impi-torch": "0.1.0", "mpi4py": "4.1.2"}
    (stack / "ipexctl.json").write_text(json.dumps(as_installed(stack, packages)))
    (ground.place / "hosts/h000").mkdir(parents=True, mode=0o700, exist_ok=True)
    script = ground.place / "project/paced.py"
    script.parent.mkdir(exist_ok=True)
    script.write_bytes(PACED.read_bytes())
    return str(script)


def build_our_argv(ground: Ground, stack: Path, words: Sequence[str]) -> list[str]:
    """``words``: further options, the script and its arguments."""
    return [*IPEXCTL, "run", "-f", str(ground.hostfile), "--venv", str(stack), "--iface", "lo", *words]


def measure(case: Case) -> dict[str, Any]:
    """The answer of paced.py. Ends this program where there is none, or where `ipexctl run` failed.

    Another launcher may fail after it: torch aborts one process in many that has finished (docs/failures.md)."""
    process = subprocess.run(
        case.argv, env=case.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT
    )
    found = ANSWER.findall(process.stdout)
    if (process.returncode and case.launcher in OUR_OPTIONS) or len(found) != 1:
        output = (process.stdout + process.stderr)[-3000:]
        sys.exit(f"{' '.join(case.argv)} ended with {process.returncode}:\n{output}")
    answer: dict[str, Any] = json.loads(found[0])
    if answer["ranks"] != case.ranks:
        sys.exit(f"{case.launcher} started {answer['ranks']} ranks instead of {case.ranks}")
    return answer


def build_pace_table(answers: Mapping[tuple[str, int, str], Sequence[Mapping[str, Any]]]) -> Table:
    """A row for each case. The ratios are to the best of the other launchers of the same ranks and backend, round by
    round."""

    def compare(case: tuple[str, int, str], key: str) -> float:
        others = [answers.get((*case[:2], other), ()) for other in OTHERS]
        best = max(others, key=lambda each: read_median(each, key))
        ratios: list[float] = [one[key] / other[key] for one, other in zip(answers[case], best, strict=True)]
        return statistics.median(ratios)

    rows: list[list[Cell]] = []
    for case, each in answers.items():
        paces = [answer[PACE] for answer in each]
        cpu = read_median(each, "cpu_ms_per_step")
        ratios = compare(case, PACE), compare(case, "by_quick_steps")
        rows.append([case[0], str(case[1]), case[2], read_median(each, PACE), *ratios, min(paces), max(paces), cpu])
    heads = ["backend", "ranks", "launcher", "samples/s", "× best other", "the same, quick steps", "least", "most"]
    digits = {"samples/s": 0, "least": 0, "most": 0}
    return Table([*heads, "CPU ms/step of rank 0"], rows, "Samples per second", digits)


def read_median(answers: Sequence[Mapping[str, Any]], key: str) -> float:
    """0 without answers."""
    return statistics.median(answer[key] for answer in answers) if answers else 0.0


def build_settings_table(answers: Mapping[tuple[str, int, str], Sequence[Mapping[str, Any]]]) -> Table:
    """Threads, cores and variables of rank 0 in each case."""
    rows: list[list[Cell]] = []
    for (backend, ranks, launcher), each in answers.items():
        if launcher != AGAIN:
            cores = ",".join(map(str, each[0]["cores"]))
            variables = f"`{format_settings(each[0]['settings'])}`"
            rows.append([backend, str(ranks), launcher, str(each[0]["threads"]), cores, variables])
    heads = ["backend", "ranks", "launcher", "threads", "cores", "variables"]
    return Table(heads, rows, "Settings of rank 0")


def format_settings(settings: Mapping[str, str]) -> str:
    """Variables as a shell writes them. Paths of libraries are left out; preloaded ones have the name of their file."""
    shown = {name: value for name, value in settings.items() if not name.endswith("_PATH")}
    if preloaded := shown.get("LD_PRELOAD"):
        shown["LD_PRELOAD"] = ":".join(Path(path).name for path in re.split(r"[:\s]+", preloaded))
    return " ".join(f"{name}={value}" for name, value in shown.items())


if __name__ == "__main__":
    main()
