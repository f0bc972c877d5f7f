"""A script of PyTorch that notes the time at every so many optimizer steps: marked.py MARKS EVERY SCRIPT ARGUMENTS…

A line of ``MARKS.<rank>`` is the monotonic clock in seconds.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


def main() -> None:
    _, marks, every, script, *words = sys.argv
    steps = 0
    with Path(f"{marks}.{os.environ['RANK']}").open("w", buffering=1) as file:

        def mark(*_: Any) -> None:
            nonlocal steps
            steps += 1
            if steps % int(every) == 0:
                file.write(f"{time.monotonic()}\n")

        register_optimizer_step_post_hook(mark)
        sys.argv = [script, *words]
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
