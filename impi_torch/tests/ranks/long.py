"""Tensors over 2 GiB, where counts no longer fit a C int."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from common import init

rank, size = init(seconds=600)
count = (2**31 + 4096) if "bytes" in sys.argv else 2**29 + 1024  # elements: bytes, or float32 of as many bytes
dtype = torch.uint8 if "bytes" in sys.argv else torch.float32
tensor = torch.ones(count, dtype=dtype)
dist.all_reduce(tensor)
assert tensor[0] == tensor[-1] == size
assert (tensor == size).all()
if rank == 0:
    tensor[-1] = 9
dist.broadcast(tensor, 0)
assert tensor[-1] == 9
if rank == 0:
    tensor[-2] = 8
    dist.send(tensor, 1)
else:
    dist.recv(tensor, 0)
    assert tensor[-2] == 8
tensor.fill_(rank)
half = tensor[: count // 2 // size * size]
out = torch.empty_like(half)
dist.all_to_all_single(out, half)
assert out[0] == 0
assert out[-1] == size - 1
del out
whole = torch.empty(half.numel() * size, dtype=dtype)
dist.all_gather_into_tensor(whole, half)
assert whole[-1] == size - 1
dist.destroy_process_group()
