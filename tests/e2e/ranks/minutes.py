"""All ranks train together; after some steps one of them, or its host, meets what the first argument says."""

import os
import sys
import time

import torch
from meet import meet

RANK, FAULT = int(os.environ["RANK"]), sys.argv[1]
BEGIN = 12  # steps until then


def read_batch(step: int) -> torch.Tensor:
    if FAULT == "loader" and RANK == 1 and step == BEGIN:
        time.sleep(600)
    if FAULT == "exception" and RANK == 1 and step == BEGIN:
        raise KeyError(f"label 812 of sample {step} is not in the vocabulary")
    return torch.ones(8)


def compute() -> None:
    until = time.thread_time() + 0.03
    while time.thread_time() < until:
        torch.ones(64, 64) @ torch.ones(64, 64)


def save(step: int) -> None:
    torch.save(torch.zeros(4 << 20), f"/mnt/ckpt/step{step}.pt")


ballast = []
for step in range(3000):
    batch = read_batch(step)
    compute()
    meet()
    loss = 2.5 - step / 100 if FAULT != "nan" or step < BEGIN else float("nan")
    print(f"step {step} loss {loss}", flush=True)
    time.sleep(0.15)
    if FAULT == "disk" and RANK == 0 and step == BEGIN:
        save(step)
    while FAULT == "memory" and RANK == 1 and step >= BEGIN:
        ballast.append(bytearray(b"x" * (1 << 24)))
        time.sleep(0.4)
    if FAULT == "flood" and RANK == 1 and step == BEGIN:
        print("x" * 10_000_000)
        raise ValueError("label " + "y" * 10_000_000)
