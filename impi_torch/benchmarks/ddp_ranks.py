"""DDP steps over impi and over Gloo, turn and turn about in one job, for three shapes of model."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def mlp() -> tuple[nn.Module, torch.Tensor]:
    """Twelve wide layers: 3.1 million parameters, little to calculate."""
    return nn.Sequential(*(part for _ in range(12) for part in (nn.Linear(512, 512), nn.ReLU()))), torch.randn(16, 512)


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    """Few parameters (0.3 million), much to calculate."""
    sides = (3, 32, 64, 128, 128)
    parts = [
        part for a, b in zip(sides, sides[1:]) for part in (nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
    ]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)), torch.randn(8, 3, 64, 64)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    """Four encoder layers of width 256: 3.2 million parameters, as much to calculate as to send."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(4, 32, 256)


torch.set_num_threads(1)
dist.init_process_group("impi", init_method="mpi://")
groups = {"impi": None, "gloo": dist.new_group(backend="gloo")}
blocks = int(sys.argv[1])
for make in (mlp, convolutions, transformer):
    steps = {}
    for name, group in groups.items():
        torch.manual_seed(0)
        model, batch = make()
        model = DDP(model, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(model: Any = model, batch: Any = batch, optimizer: Any = optimizer) -> None:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        steps[name] = step
    times: dict[str, list[float]] = {name: [] for name in groups}
    for step in steps.values():
        for _ in range(3):
            step()
    for _ in range(blocks):
        for name, step in steps.items():
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(10):
                step()
            taken = torch.tensor([(time.perf_counter() - begun) / 10])
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            times[name].append(taken.item())
    if dist.get_rank() == 0:
        print("RESULT", json.dumps({"model": make.__name__, **times}), flush=True)
dist.destroy_process_group()
