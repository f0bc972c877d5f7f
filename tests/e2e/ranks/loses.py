"""Prints a loss that is no number from step 30 on, and goes on for two minutes."""

import time

for step in range(1200):
    print("step", step, "loss", 2.5 - step / 100 if step < 30 else float("nan"), flush=True)
    time.sleep(0.1)
