"""The script of the pictures: trains nothing, and on rank 1 does what its argument says after a few steps.
Neither torch nor a network: `all_reduce` waits as the real one does for a rank that does not come.
"""

import os
import select
import sys
import time

RANK = int(os.environ["RANK"])
FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
STEPS = 40


def read_batch(step: int) -> float:
    if RANK == 1 and step == 12 and FAULT == "hang":
        with open("/tmp/features") as features:  # a pipe that nobody writes to
            features.read()
    return 1.0 / (step + 2)


def all_reduce() -> None:
    time.sleep(600)


def save(step: int) -> None:
    with open(f"/mnt/ckpt/step{step}.pt", "wb") as out:
        out.write(bytes(8 << 20))


def train() -> None:
    ballast = []
    for step in range(STEPS):
        loss = 2.3 * read_batch(step) + 0.2
        if FAULT and step == 12 and RANK != 1:
            all_reduce()
        if RANK == 1 and step == 12:
            if FAULT == "nan":
                raise ValueError(f"loss is NaN at step {step}")
            if FAULT == "disk":
                save(step)
            while FAULT == "memory" and select.select([], [], [], 0.2):  # after a pause
                ballast.append(b"x" * (1 << 24))
        time.sleep(0.25)
        print(f"step {step} loss {loss:.4f} 4.0 it/s", flush=True)


print("model with 110 M parameters", flush=True)
print("UserWarning: no GPU was found", file=sys.stderr, flush=True)
train()
