"""What a training loses to `--keep`: its pace while the processes that carry checkpoints go on ÷ while they are stopped
(windows.py). Rank 0 saves so often that they have something to copy, at the limit of 32 MiB/s, most of the time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from ground import arguments, conditions, hosts, read_load
from launch import as_installed, ours
from tables import Measurement, Table, publish
from windows import MARK, alternate, await_marks, read_words, summarize_ratios

WINDOW = 4.0  # seconds
SIZE, EVERY = 96, 3.7  # MiB of a checkpoint, seconds between two
SCRIPT = f"""
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model, inputs = torch.nn.Linear(256, 256), torch.randn(64, 256)
optimizer, saved = torch.optim.SGD(model.parameters()), time.monotonic()
weights = torch.zeros({SIZE} << 18)
os.makedirs("ckpt", exist_ok=True)
for step in range(10**9):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if dist.get_rank() == 0 and time.monotonic() > saved + {EVERY}:
        weights[0] = step
        torch.save(weights, "ckpt/part.tmp")
        os.rename("ckpt/part.tmp", f"ckpt/step_{{step}}.pt")
        for old in sorted(os.listdir("ckpt"), key=lambda name: os.stat("ckpt/" + name).st_mtime)[:-2]:
            os.unlink("ckpt/" + old)
        saved = time.monotonic()
"""


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--stack", type=Path, required=True, help="environment that peers.py --stack has made")
    given = parser.parse_args()
    machine, loads = conditions(), [read_load()]
    paces = measure(given.stack.absolute(), given.rounds)
    heads = ["", "median of pairs", "mean", "standard error"]
    rows = [["all_reduce over Gloo", *summarize_ratios(paces)]]
    title = "Pace while checkpoints are copied ÷ while they are not"
    subject = f"2 hosts, a rank each; {SIZE} MiB each {EVERY:g} s; {given.rounds} pairs of windows of {WINDOW:g} s"
    tables = [Table(heads, rows, title, dict.fromkeys(heads, 3))]
    publish(Measurement("copying", subject, machine, tables, loads), given)


def measure(stack: Path, rounds: int) -> list[tuple[float, float]]:
    (stack / "ipexctl.json").write_text(json.dumps(as_installed(stack, {"torch": "2.13.0"})))
    with hosts(2, homes=True) as ground:
        project = ground.place / "project"
        project.mkdir()
        for number in range(2):
            (ground.place / f"hosts/h{number:03}").mkdir(parents=True, mode=0o700)
        (project / "first.py").write_bytes(Path(__file__).with_name("marked.py").read_bytes())
        script = project / "saves.py"
        script.write_text(SCRIPT)
        words = ours(ground, stack, project, "--backend", "gloo", "--restarts", "1", "--keep", "ckpt")
        words += [str(ground.place / "marks"), str(MARK), str(script)]
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "start_new_session": True, "cwd": "/"}
        run = subprocess.Popen(words, env=ground.env(), **options)  # type: ignore[call-overload]
        marks = [ground.place / f"marks.{rank}" for rank in range(2)]
        try:
            await_marks(marks, 200)
            return alternate(find_carriers(str(ground.place)), marks[0], rounds, WINDOW)
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(60)


def find_carriers(place: str) -> list[int]:
    """The processes of the run that carry checkpoints, one on each host."""
    found = {int(path.parent.name): read_words(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
    return [pid for pid, words in found.items() if b"carry" in words and any(place in os.fsdecode(w) for w in words)]


if __name__ == "__main__":
    main()
