"""What sampling costs: CPU seconds of an hour's samples on one host, and the pace of a training with and without them.

The hour is that of `--metrics-every 5`: 720 samples of this machine, with ranks of several processes each, taken faster
than in a run. The training is one run of examples/train_ddp.py under ``ipexctl run --metrics-every 1``, five times as
often as usual, which shows five times the cost. Its meter is stopped in every second window of time (windows.py). A
window with samples has at least one: a meter that goes on after a pause samples at once.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from ground import arguments, conditions, hosts, read_load
from launch import as_installed, ours
from tables import Cell, Measurement, Table, publish
from windows import MARK, alternate, await_marks, build_pace_table, read_words, summarize_ratios

from ipexctl.protocol import messages, rank_records, samples, seal
from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.run_spec import RankSpec, RunSpec
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import files, guard, rpc, sampling, spool

HOUR = 720  # samples
PAUSE = 0.05  # seconds between two of them
TREE = "import subprocess, sys, time; [subprocess.Popen(['sleep', '600']) for _ in range({})]; time.sleep(600)"
EXAMPLE = Path(__file__).parents[1] / "examples/train_ddp.py"
WINDOW = 1.0  # seconds, as between two samples


def main() -> None:
    parser = arguments(__doc__ or "", hosts=1)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the host")
    parser.add_argument("--processes", type=int, default=8, help="processes of each rank, of the hour's samples")
    parser.add_argument("--venv", type=Path, help="an environment with torch and impi-rt; without it no training")
    given = parser.parse_args()
    machine, load = conditions(), read_load()
    cost = measure_hour(given.ranks, given.processes)
    count = sum(path.name.isdigit() for path in Path("/proc").iterdir())
    what = f"{given.ranks} ranks of {given.processes} processes, {count} processes on the host"
    cost["together"] = sum(cost.values())
    rows: list[list[Cell]] = [[name, seconds, 100 * seconds / 3600] for name, seconds in cost.items()]
    tables = [Table(["part", "CPU s", "% of a core"], rows, "An hour's samples of one host", {"% of a core": 4})]
    subject = f"{what}; examples/train_ddp.py with {given.ranks} ranks"
    if given.venv:
        tables += compare_training(given.venv, given.ranks, given.rounds)
    publish(Measurement("metrics", subject, machine, tables, [load]), given)


def measure_hour(ranks: int, processes: int) -> dict[str, float]:
    """CPU seconds of the sampler, and of guard and keeper for what it sends."""
    words = [sys.executable, "-c", TREE.format(processes)]
    wrappers = [subprocess.Popen(words, start_new_session=True) for _ in range(ranks)]
    try:
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "ranks").mkdir()
            for rank, wrapper in enumerate(wrappers):
                files.write_record(place, files.BEGIN, rank_records.RankBegun(rank, wrapper.pid, 0))
            each = {rank: RankSpec(rank) for rank in range(ranks)}
            spec = RunSpec(
                "r", "t", "o", 0.0, "n", "t", "a", "l", ranks, [], place, {}, each, {}, [], "PMI_RANK", [],
                timings=Timings(sample=PAUSE),
            )  # fmt: skip
            lines, seconds = take_samples(place, spec)
            return {"sampler": seconds, "guard and keeper": pass_on(lines, place)}
    finally:
        for wrapper in wrappers:
            os.killpg(wrapper.pid, signal.SIGKILL)
            wrapper.wait()


def take_samples(place: str, spec: RunSpec) -> tuple[list[bytes], float]:
    """The samples of an hour, and the CPU seconds of the process that takes them, from its fork on."""
    own, other = socket.socketpair()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pid = os.fork()
    if not pid:
        try:
            own.close()
            sampling.sample_host(place, spec, rpc.Wire(other))
        finally:
            os._exit(0)
    other.close()
    with own.makefile("rb") as text:
        lines = list(islice(text, HOUR))
    own.close()
    os.waitpid(pid, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return lines, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def pass_on(lines: list[bytes], place: str) -> float:
    """CPU seconds for reading, sealing, opening and storing them."""
    greeting = seal.Greeting("c", "n", "guard", "a", 0.0)
    sending, opening = (seal.Seals("token", seal.CALLER, greeting) for _ in range(2))
    stored = spool.Spool(f"{place}/samples", cap=samples.SIZE_LIMIT)
    begun = time.process_time()
    for line in lines:
        sample = samples.KINDS.read(line)
        assert not isinstance(sample, Unreadable)
        sealed = sending.seal(messages.KINDS.write(sample))
        received = messages.KINDS.read(opening.open(sealed) or b"")
        assert received == sample
        stored.write(samples.KINDS.write(sample) + b"\n")
    return time.process_time() - begun


def compare_training(venv: Path, ranks: int, rounds: int) -> list[Table]:
    """The pace of pairs of windows, with samples and without, and the ratio of the two."""
    import json

    (venv / "ipexctl.json").write_text(json.dumps(as_installed(venv)))
    with hosts(1, homes=True) as ground:
        (ground.place / "hosts/h000").mkdir(parents=True, mode=0o700)
        project = ground.place / "project"
        project.mkdir()
        marks = [ground.place / f"marks.{rank}" for rank in range(ranks)]
        (project / "first.py").write_bytes((Path(__file__).parent / "marked.py").read_bytes())
        words = ours(ground, venv, project, "--backend", "gloo", "--metrics-every", f"{WINDOW:g}")
        words[words.index("--ppn") + 1] = str(ranks)
        words += [str(ground.place / "marks"), str(MARK), str(EXAMPLE), "--steps", str(10**9)]
        run = subprocess.Popen(words, env=ground.env(), stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            await_marks(marks)
            paces = alternate([find_meter(ground.place)], marks[0], rounds, WINDOW)
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(60)
    title = f"Steps/s in {rounds} pairs of windows of {WINDOW:g} s, a sample a second"
    heads = ["", "median of pairs", "mean", "standard error"]
    row: list[Cell] = ["with samples ÷ without", *summarize_ratios(paces)]
    paces_table = build_pace_table(paces, ("with samples", "without"), title)
    return [paces_table, Table(heads, [row], "Their ratio", dict.fromkeys(heads, 4))]


def find_meter(place: Path) -> int:
    """The process that samples this machine for the run; its home lies in ``place``."""
    found = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if guard.SAMPLER.encode() in read_words(path)
        and any(word.startswith(b"HOME=%s/" % os.fsencode(place)) for word in read_words(path.with_name("environ")))
    ]
    if len(found) != 1:
        sys.exit(f"{len(found)} processes of the run call themselves {guard.SAMPLER}")
    return found[0]


if __name__ == "__main__":
    main()
