"""All ranks but one come to an all-reduce; that one to a broadcast, as of a checkpoint that only it has found."""

import os
import sys

import patience  # isort: skip
import torch
import torch.distributed as dist
from meet import meet

patience.loaded.set()
for _ in range(3):
    meet()
if os.environ["RANK"] == sys.argv[1]:
    dist.broadcast(torch.ones(8), int(sys.argv[1]) - 1)
else:
    dist.all_reduce(torch.ones(1 << 20))
