"""Trains a little over impi; then the rank in argv[1] is killed while the others wait for it in a collective."""

import os
import signal
import sys

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("impi")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
for _step in range(3):
    model(torch.randn(4, 64)).sum().backward()
print(f"rank {rank} has trained over {type(dist.group.WORLD).__name__}", flush=True)
if rank == int(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(4))
print("this cannot be", flush=True)
