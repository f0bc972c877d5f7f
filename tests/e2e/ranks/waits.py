"""All ranks train together; after a few steps one of them waits for data that never come, the others for it."""

import os
import sys
import time

import torch
import torch.distributed as dist


def read_batch() -> None:
    time.sleep(600)


dist.init_process_group("gloo")
for step in range(1000):
    if step == 3 and os.environ["RANK"] == sys.argv[1]:
        read_batch()
    dist.all_reduce(torch.ones(1 << 10))
