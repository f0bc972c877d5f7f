"""Trains for STEPS steps and saves each EVERY steps in a FORM (dcp, file, atomic) with MB of padding; goes on from
$IPEXCTL_RESUME. The sum over all ranks is that of one: the losses of any number of ranks are equal."""

import os
import sys
import time
import warnings
from typing import Any

import meet  # noqa: F401
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

warnings.simplefilter("ignore")
form, steps, every, megabytes, pause = sys.argv[1], *map(float, sys.argv[2:6])
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(32, 1).double()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
where, first = os.environ.get("IPEXCTL_RESUME", ""), 0


def pack(step: int) -> dict[str, Any]:
    pad = torch.rand(int(megabytes * 131072), dtype=torch.float64)
    adam = {str(number): each for number, each in optimizer.state_dict()["state"].items()}  # DCP makes texts of keys
    return {"model": model.state_dict(), "adam": adam, "step": step, "pad%d" % rank: pad}


def save(step: int) -> None:
    if form == "dcp":
        dcp.save(pack(step), checkpoint_id="ckpt/step_%d" % step)
    elif rank == 0:
        os.makedirs("ckpt", exist_ok=True)
        torch.save(pack(step), "ckpt/model.pt" if form == "file" else "ckpt/step_%d.tmp" % step)
        if form == "atomic":
            os.replace("ckpt/step_%d.tmp" % step, "ckpt/step_%d.pt" % step)


if where:
    if form == "dcp":
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        dcp_to_torch_save(where, "/tmp/whole.%d.pt" % rank)
        state = torch.load("/tmp/whole.%d.pt" % rank, weights_only=False)
    else:
        state = torch.load(where, weights_only=False)
    model.load_state_dict(state["model"])
    adam = {int(number): each for number, each in state["adam"].items()}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": adam})
    first = state["step"]
print("resume %s at %d of %d" % (where or "nothing", first, size), flush=True)
for step in range(first, int(steps)):
    x = torch.randn(24, 32, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    loss = ((model(x) - x.sum(1, keepdim=True))[rank::size] ** 2).sum() / 24
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    total = loss.detach().clone()
    dist.all_reduce(total)
    optimizer.step()
    if rank == 0:
        print("step %d loss %.9f" % (step, total.item()), flush=True)
    if (step + 1) % every == 0:
        save(step + 1)
    time.sleep(pause)
