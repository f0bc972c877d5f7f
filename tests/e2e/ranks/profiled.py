"""Trains a small model data-parallel in bf16; rank 1 comes a second late to three steps, which is
longer than a busy machine holds up the other. It knows of no profiler."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters())
filters = torch.randn(4, 1, 3, 3)
for step in range(10):
    if os.environ["RANK"] == "1" and 3 <= step < 6:
        time.sleep(1.0)
    # In float32, so that oneDNN computes it on every CPU: it computes bf16 on AVX-512 alone.
    inputs = torch.nn.functional.conv2d(torch.randn(64, 1, 8, 8), filters, padding=1).flatten(1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.3f}", flush=True)
dist.destroy_process_group()
