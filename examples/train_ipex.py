"""Training with ``ipex.optimize`` and its optimizer: ResNet-50 or BERT, fp32 or bf16; the throughput as a JSON line.

    python train_ipex.py --model resnet50 --dtype fp32 --channels-last
    python train_ipex.py --model bert --dtype bf16
    python train_ipex.py --model bert --dtype bf16 --compile      # without IPEX: what took its place

Without intel_extension_for_pytorch the same file is stock PyTorch. As ranks of a run (``ipexctl run``, ``torchrun``)
it trains data-parallel, and rank 0 prints the samples per second of all ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time

import torch
import torch.distributed as dist
from models import job
from torch import nn

try:
    import intel_extension_for_pytorch as ipex
except ImportError:  # the native track: stock PyTorch
    ipex = None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["resnet50", "bert"], default="resnet50")
    parser.add_argument("--size", choices=["tiny", "small", "base"], default="base", help="base is the real one")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--engine", choices=["auto", "ipex", "stock"], default="auto", help="auto: IPEX where it is")
    parser.add_argument("--compile", action="store_true", help="torch.compile; it needs a C++ compiler on the host")
    parser.add_argument("--channels-last", action="store_true", help="images as oneDNN likes them")
    parser.add_argument("--batch", type=int, default=16, help="samples per rank and step")
    parser.add_argument("--steps", type=int, default=10, help="measured ones")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them")
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    if args.engine == "ipex" and ipex is None:
        parser.error("--engine ipex: intel_extension_for_pytorch is not in this environment")
    return args


def main() -> None:
    args = arguments()
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        dist.init_process_group("gloo")
    with_ipex = ipex is not None and args.engine != "stock"
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype]

    torch.manual_seed(args.seed)  # the same first weights on every rank
    work = job(args.model, args.size, args.batch, channels_last=args.channels_last)
    model: nn.Module = work.model.train()
    rate = {"resnet50": 0.001, "bert": 0.01}[args.model]  # from the first step on; ten times that, ResNet-50 runs away
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    if with_ipex:
        # Fused optimizer steps, weights in oneDNN's layout; in bf16 the master weights are split into two halves.
        model, optimizer = ipex.optimize(model, optimizer=optimizer, dtype=dtype)
    if size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    if args.compile:
        model = torch.compile(model)
    criterion = nn.CrossEntropyLoss()

    torch.manual_seed(args.seed + 1 + rank)  # from here on every rank sees its own data
    inputs, labels = work.batch()  # one batch, learned by heart: the loss must fall
    times, losses = [], []
    for step in range(args.warmup + args.steps):
        began = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss = criterion(model(*inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step >= args.warmup:
            times.append(time.perf_counter() - began)

    seconds = statistics.median(times)
    if rank == 0:
        measured = {
            "model": args.model,
            "size": args.size,
            "mode": "train",
            "engine": "ipex" if with_ipex else "stock",
            "how": "compile" if args.compile else "eager",
            "dtype": args.dtype,
            "channels_last": args.channels_last,
            "batch": args.batch,
            "ranks": size,
            "samples_per_s": round(size * args.batch / seconds, 2),
            "median_ms": round(1000 * seconds, 2),
            "steps": args.steps,
            "loss": [round(losses[0], 4), round(losses[-1], 4)],
            "threads": torch.get_num_threads(),
            "host": platform.node(),
            "torch": torch.__version__,
            "ipex": ipex.__version__ if with_ipex else None,
        }
        print(json.dumps(measured))
    if size > 1:
        dist.destroy_process_group()
    if not losses[-1] < losses[0]:
        raise SystemExit("the loss did not fall")


if __name__ == "__main__":
    main()
