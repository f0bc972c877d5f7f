"""What sampling costs: CPU seconds of an hour's samples on one host, and the pace of a training with and without them.

The hour is that of `--metrics-every 5`: 720 samples of this machine, with ranks of several processes each, taken faster
than in a run. The training is examples/train_ddp.py under ``ipexctl run``, in pairs, each first in every second pair.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ground import Ground, arguments, conditions, hosts, number, table
from launch import as_installed, ours

from ipexctl.protocol import messages, samples, seal
from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.run_spec import RankSpec, RunSpec
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import files, sampling, spool

HOUR = 720  # samples
PAUSE = 0.05  # seconds between two of them
TREE = "import subprocess, sys, time; [subprocess.Popen(['sleep', '600']) for _ in range({})]; time.sleep(600)"
EXAMPLE = Path(__file__).parents[1] / "examples/train_ddp.py"
PACE = re.compile(r"^\d+│rank \d+: loss .*, (\d+) samples/s$", re.MULTILINE)


def main() -> None:
    parser = arguments(__doc__ or "", hosts=1)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the host")
    parser.add_argument("--processes", type=int, default=8, help="processes of each rank, of the hour's samples")
    parser.add_argument("--steps", type=int, default=2000, help="of the training")
    parser.add_argument("--venv", type=Path, help="an environment with torch and impi-rt; without it no training")
    given = parser.parse_args()
    machine = conditions()
    cost = measure_hour(given.ranks, given.processes)
    count = sum(path.name.isdigit() for path in Path("/proc").iterdir())
    what = f"{given.ranks} ranks of {given.processes} processes, {count} on it"
    print(f"An hour's samples of one host, {what}. {machine}\n")
    rows = [[name, f"{seconds:.2f}", f"{100 * seconds / 3600:.4f}"] for name, seconds in cost.items()]
    print(table(["part", "CPU s", "% of a core"], rows))
    if given.venv:
        compare_training(given.venv, given.ranks, given.steps, given.rounds, machine)


def measure_hour(ranks: int, processes: int) -> dict[str, float]:
    """CPU seconds of the sampler, and of guard and keeper for what it sends."""
    words = [sys.executable, "-c", TREE.format(processes)]
    wrappers = [subprocess.Popen(words, start_new_session=True) for _ in range(ranks)]
    try:
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "ranks").mkdir()
            for rank, wrapper in enumerate(wrappers):
                files.write_record(place, files.BEGIN, messages.RankBegun(rank, wrapper.pid))
            each = {rank: RankSpec(rank) for rank in range(ranks)}
            spec = RunSpec(
                "r", "t", "o", 0.0, "n", "t", "a", "l", ranks, [], place, {}, each, {},
                timings=Timings(sample=PAUSE, figures=HOUR * PAUSE / 30),
            )  # fmt: skip
            lines, seconds = take_samples(place, spec)
            return {"sampler": seconds, "guard and keeper": pass_on(lines, place)}
    finally:
        for wrapper in wrappers:
            os.killpg(wrapper.pid, signal.SIGKILL)
            wrapper.wait()


def take_samples(place: str, spec: RunSpec) -> tuple[list[bytes], float]:
    """The samples of an hour, and the CPU seconds of the process that takes them, from its fork on."""
    output, output_end = os.pipe()
    control_end, control = os.pipe()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pid = os.fork()
    if not pid:
        try:
            os.close(control)
            sampling.sample_host(place, spec, control_end, output_end)
        finally:
            os._exit(0)
    os.close(output_end)
    lines = []
    with os.fdopen(output, "rb") as text:
        for line in text:
            lines.append(line)
            if len(lines) == HOUR:
                os.close(control)
    os.waitpid(pid, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return lines[:HOUR], after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def pass_on(lines: list[bytes], place: str) -> float:
    """CPU seconds for reading, sealing, opening and storing them."""
    greeting = seal.Greeting("c", "n", "guard", "a", 0.0)
    sending, opening = (seal.Seals("token", seal.CALLER, greeting) for _ in range(2))
    stored = spool.Spool(f"{place}/samples", samples.CAP, b"{")
    begun = time.process_time()
    for line in lines:
        sample = samples.KINDS.read(line)
        assert not isinstance(sample, Unreadable)
        sealed = sending.seal(messages.KINDS.write(sample))
        received = messages.KINDS.read(opening.open(sealed) or b"")
        assert received == sample
        stored.write(samples.encode_sample(sample))
    return time.process_time() - begun


def compare_training(venv: Path, ranks: int, steps: int, rounds: int, machine: str) -> None:
    """Prints the pace of pairs, with samples and without."""
    import json

    (venv / "ipexctl.json").write_text(json.dumps(as_installed(venv)))
    cases = {"with samples": ("--metrics-every", "5"), "without": ("--metrics-every", "0")}
    paces: dict[str, list[float]] = {name: [] for name in cases}
    with hosts(1, homes=True) as ground:
        (ground.place / "hosts/h000").mkdir(parents=True, mode=0o700)
        project = ground.place / "project"
        project.mkdir()
        (project / "first.py").write_bytes(EXAMPLE.read_bytes())
        for turn in range(rounds):
            for name in sorted(cases, reverse=turn % 2 == 1):
                paces[name].append(train(ground, venv, project, ranks, steps, cases[name]))
                print(f"  pair {turn + 1}: {name}: {paces[name][-1]:.0f} samples/s", file=sys.stderr)
    ratios = [with_ / without for with_, without in zip(*(paces[name] for name in cases), strict=True)]
    print(f"\nexamples/train_ddp.py, {ranks} ranks, {steps} steps, {rounds} interleaved pairs. {machine}\n")
    summaries = (statistics.median, min, max)
    rows = [[name, *(number(summary(each)) for summary in summaries)] for name, each in paces.items()]
    print(table(["", "samples/s, median", "least", "most"], rows))
    print(f"\nRatio: {statistics.median(ratios):.4f} by the median of pairs ({min(ratios):.4f} to {max(ratios):.4f}).")


def train(ground: Ground, venv: Path, project: Path, ranks: int, steps: int, flags: tuple[str, ...]) -> float:
    """Samples per second of all ranks."""
    words = ours(ground, venv, project, "--backend", "gloo", *flags)
    words[words.index("--ppn") + 1] = str(ranks)
    done = subprocess.run(
        [*words, "--steps", str(steps)], env=ground.env(), capture_output=True, text=True, timeout=600
    )
    paces = [float(pace) for pace in PACE.findall(done.stdout)]
    if done.returncode or len(paces) != ranks:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return sum(paces)


if __name__ == "__main__":
    main()
