"""Prints a loss that is no number from step 30 on, and goes on for two minutes, or for so many steps at once."""

import sys
import time

steps = int(sys.argv[1]) if sys.argv[1:] else 1200
for step in range(steps):
    print("step", step, "loss", 2.5 - step / 100 if step < 30 else float("nan"), flush=True)
    time.sleep(0.1 if steps == 1200 else 0)
