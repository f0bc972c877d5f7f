"""A script of PyTorch whose pace is measured in it: paced.py SAMPLES SCRIPT ARGUMENTS…

Rank 0 prints a line of JSON: samples per second of all ranks (``SAMPLES`` of each rank in a step) between the end
of the tenth step and the end of the last; the same by the step that is slower than a quarter of them, which shows the
pace where other work disturbs the measurement; CPU milliseconds of rank 0 per step; and the settings that it runs with.
Ranks that only mpirun has numbered get ``RANK`` and its companions here, as Accelerate does it.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from itertools import pairwise
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

WARM = 10  # steps
NAMES = {"RANK": "PMI_RANK", "WORLD_SIZE": "PMI_SIZE", "LOCAL_RANK": "MPI_LOCALRANKID"}
SETTINGS = ("OMP_", "KMP_", "I_MPI_PIN", "I_MPI_FABRICS", "FI_", "CCL_", "GLOO_", "IMPI_TORCH_", "LD_PRELOAD")


def main() -> None:
    _, samples, script, *words = sys.argv
    for name, launcher_name in NAMES.items():
        if launcher_name in os.environ:
            os.environ.setdefault(name, os.environ[launcher_name])
    moments: list[tuple[float, float]] = []

    def note_step(*_: Any) -> None:
        moments.append((time.perf_counter(), time.process_time()))

    register_optimizer_step_post_hook(note_step)
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")
    if os.environ.get("RANK", "0") == "0":
        # In one piece: ranks of torchrun share an output, and an unbuffered print writes a line and its end apart.
        sys.stdout.write(f"\n{json.dumps(summarize(moments[WARM - 1 :], int(samples)))}\n")
        sys.stdout.flush()


def summarize(moments: list[tuple[float, float]], samples: int) -> dict[str, object]:
    """The answer, from the wall and CPU time at the end of each measured step; the first is where measuring begins."""
    steps, ranks = len(moments) - 1, int(os.environ.get("WORLD_SIZE", "1"))
    (begun, cpu), (ended, cpu_end) = moments[0], moments[-1]
    times = sorted(after[0] - before[0] for before, after in pairwise(moments))
    return {
        "samples_per_second": ranks * samples * steps / (ended - begun),
        "by_quick_steps": ranks * samples / times[steps // 4],
        "cpu_ms_per_step": 1000 * (cpu_end - cpu) / steps,
        "ranks": ranks,
        "steps": steps,
        "threads": torch.get_num_threads(),
        "cores": sorted(os.sched_getaffinity(0)),
        "torch": str(torch.__version__),
        "settings": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(SETTINGS)},
    }


if __name__ == "__main__":
    main()
