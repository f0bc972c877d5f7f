"""All ranks train together; after a few steps one of them raises, and the others wait for it in a collective."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(1000):
    if step == 3 and os.environ["RANK"] == sys.argv[1]:
        raise RuntimeError("the data of this rank are rotten")
    dist.all_reduce(torch.ones(1 << 10))
