"""torch.compile over impi: of collectives, of waiting for them, and of DistributedDataParallel."""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import main, same
from torch import nn


def collectives(rank: int, size: int) -> None:
    def reduced(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    def waited(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        return y + 1

    def sent(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        works = [dist.P2POp(dist.isend, x * 2, (rank + 1) % size), dist.P2POp(dist.irecv, y, (rank - 1) % size)]
        for work in dist.batch_isend_irecv(works):
            work.wait()
        dist.barrier()
        dist.broadcast(y, 0)
        return y + 1

    x = torch.full((4,), float(rank + 1))
    for run in (reduced, waited, sent):
        torch._dynamo.reset()
        same(torch.compile(run, backend="aot_eager")(x), run(x), run.__name__)


def data_parallel(rank: int, size: int) -> None:
    """DDP's hooks call the group from C++ while compiled code runs."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    model = nn.parallel.DistributedDataParallel(plain)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        compiled(torch.randn(3, 8)).square().sum().backward()
    grads = [parameter.grad.clone() for parameter in plain.parameters()]
    for grad in grads:
        first = grad.clone()
        dist.broadcast(first, 0)
        same(first, grad, "gradients of all ranks")


if __name__ == "__main__":
    main(collectives, data_parallel)
