"""Works until /root/done is there (on the host of rank 0, where ranks meet); rank 0 fails where /root/fail is."""

import os
import time

group = "MEET" in os.environ
if group:  # the ranks are a process group (tests/stock.py)
    import meet  # noqa: F401
    import torch
    import torch.distributed as dist

start, rank, size = os.environ["IPEXCTL_RESTART"], os.environ["RANK"], os.environ["WORLD_SIZE"]
print(f"start {start}, rank {rank} of {size}, before {os.environ.get('IPEXCTL_WORLD_CHANGED')}", flush=True)
assert os.environ["GROUP_WORLD_SIZE"] == size, "a rank on each host"
assert os.environ["GROUP_RANK"] == rank
while True:
    time.sleep(0.2)
    done = float((rank == "0" or not group) and os.path.exists("/root/done"))
    if group:
        shared = torch.tensor([done])
        dist.all_reduce(shared)
        done = shared.item()
    if done:
        break
    if rank == "0" and os.path.exists("/root/fail"):
        os.unlink("/root/fail")
        raise SystemExit(3)
