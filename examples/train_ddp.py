"""Data-parallel training on CPUs: the smallest script that uses all of it.

The same file runs under ``ipexctl run``, ``mpirun``, ``torchrun`` and plain ``python``: it only reads RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT. With intel_extension_for_pytorch it calls ``ipex.optimize``; without, it is stock PyTorch.
The data are made here: a small teacher network labels random points, a student learns its answers.
"""

from __future__ import annotations

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
from torch import nn

try:
    import intel_extension_for_pytorch as ipex
except ImportError:  # the native track: stock PyTorch
    ipex = None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=256, help="samples per rank and step")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--dtype", choices=["auto", "bf16", "fp32"], default="auto", help="auto: bf16 where it is fast")
    parser.add_argument("--backend", default=os.environ.get("IPEXCTL_BACKEND", "gloo"), help="gloo or ccl")
    parser.add_argument("--seed", type=int, default=20)
    return parser.parse_args()


def level() -> str:
    """The instruction set that the kernels will use."""
    if ipex is not None:
        return str(ipex._C._get_current_isa_level())
    return str(torch.backends.cpu.get_cpu_capability())


def network(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def main() -> None:
    args = arguments()
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if args.backend == "ccl":
        import oneccl_bindings_for_pytorch  # noqa: F401 - registers the backend
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group(args.backend, rank=rank, world_size=size)

    bf16 = args.dtype == "bf16" or (args.dtype == "auto" and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    dtype = torch.bfloat16 if bf16 else torch.float32
    print(
        f"rank {rank} of {size} on {socket.gethostname()}: torch {torch.__version__.split('+')[0]}, "
        f"ipex {ipex.__version__.split('+')[0] if ipex else 'none'}, {level()}, {str(dtype).split('.')[1]}, "
        f"{torch.get_num_threads()} threads, {args.backend}"
    )

    torch.manual_seed(args.seed)  # the teacher, and the student's first weights, are the same on every rank
    teacher = network(64)
    model = network(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    if ipex is not None:
        model, optimizer = ipex.optimize(model, optimizer=optimizer, dtype=dtype)
    model = nn.parallel.DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()

    torch.manual_seed(args.seed + 1 + rank)  # from here on every rank sees its own data
    began, first = time.perf_counter(), 0.0
    for step in range(1, args.steps + 1):
        inputs = torch.randn(args.batch, 32)
        with torch.no_grad():
            labels = teacher(inputs).argmax(dim=1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = criterion(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or loss.item()
        if step == 1 or step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")

    seconds = time.perf_counter() - began
    mean = loss.detach().float().clone()
    dist.all_reduce(mean)
    print(f"rank {rank}: loss {first:.4f} → {loss.item():.4f}, {args.steps * args.batch / seconds:.0f} samples/s")
    if rank == 0:
        print(f"mean loss of {size} ranks {mean.item() / size:.4f}")
    dist.destroy_process_group()
    if not loss.item() < first:
        raise SystemExit("the loss did not fall")


if __name__ == "__main__":
    main()
