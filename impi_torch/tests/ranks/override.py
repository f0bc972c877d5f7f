"""A script that knows nothing of impi: it says gloo, ccl, mpi or nothing, as its argument asks."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

words = {} if sys.argv[1] == "nothing" else {"backend": sys.argv[1]}
dist.init_process_group(init_method="mpi://", **words)
rank, size = dist.get_rank(), dist.get_world_size()
one = torch.ones(3)
dist.all_reduce(one)
assert (one == size).all()
part = dist.new_group(list(range(size)), backend=words.get("backend", "gloo").removeprefix("cpu:"))
dist.all_reduce(one, group=part)
dist.monitored_barrier(part)  # torch checks that the group says "gloo"
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))  # its C++ looks into a group that says "gloo"
model(one).sum().backward()
kinds = [type(group).__name__ for group in (dist.group.WORLD, part)]
line = " ".join([str(rank), dist.get_backend(), dist.get_backend(part), *kinds])
sys.stdout.write(f"{line}\n")  # in one piece, whatever the other ranks write
sys.stdout.flush()
dist.destroy_process_group()
