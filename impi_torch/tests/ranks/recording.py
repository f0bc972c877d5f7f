"""Operations are recorded while somebody wants that, short and long ones, and not before or after."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import impi_torch

dist.init_process_group("impi", init_method="mpi://")
rank = dist.get_rank()
works: list[tuple[str, int, int]] = []
dist.all_reduce(torch.ones(4))
stop = impi_torch.record_works(works.append)
before = time.time_ns()
if rank == 1:
    time.sleep(0.2)
dist.all_reduce(torch.ones(4))
many = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(3)]
dist.broadcast(torch.ones(7), 0)
for work in many:
    work.wait()
dist.barrier()
stop()
after = time.time_ns()
dist.all_reduce(torch.ones(4))
names = [name for name, _, _ in works]
assert names.count("allreduce") == 4, names
assert names.count("broadcast") == 1, names
assert names.count("barrier") == 1, names
assert all(before - 2_000_000 <= begin <= end <= after for _, begin, end in works), (before, works, after)
first = min(works, key=lambda work: work[1])
if rank == 0:  # it waited for the other
    assert first[2] - first[1] > 100_000_000, first
dist.destroy_process_group()
