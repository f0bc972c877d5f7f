"""All-reduce of float32 over impi, Gloo and nothing, turn and turn about in one job. Rank 0 prints a JSON line a size.

"Nothing" is torch's own "fake" backend, compiled, which sends and sums nothing: what a call of `dist.all_reduce` costs
before any backend has begun, and so the least that one can take. Run by run.py under mpirun. Times are in seconds, one
value a block, the longest over the ranks.
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers "fake"

torch.set_num_threads(1)
dist.init_process_group("impi", init_method="mpi://")
gloo = dist.new_group(backend="gloo")
groups = {"impi": None, "gloo": gloo, "nothing": dist.new_group(backend="fake")}
blocks = int(sys.argv[1])
for size in map(int, sys.argv[2:]):
    tensor = torch.zeros(size // 4)  # zeros stay zeros however often they are summed
    times: dict[str, list[float]] = {name: [] for name in groups}
    counts = {}
    for name, group in groups.items():
        dist.all_reduce(tensor, group=group)
        begun = time.perf_counter()
        for _ in range(3):
            dist.all_reduce(tensor, group=group)
        estimate = torch.tensor([(time.perf_counter() - begun) / 3])
        dist.all_reduce(estimate, dist.ReduceOp.MAX)
        counts[name] = max(1, min(500, int(0.06 / estimate.item())))
    for _ in range(blocks):
        for name, group in groups.items():
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(counts[name]):
                dist.all_reduce(tensor, group=group)
            taken = torch.tensor([(time.perf_counter() - begun) / counts[name]])
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            times[name].append(taken.item())
    if dist.get_rank() == 0:
        print("RESULT", json.dumps({"size": size, **times}), flush=True)
dist.destroy_process_group()
