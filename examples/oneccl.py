"""The oneCCL bindings for PyTorch, of either generation: ranks find each other and add up their numbers.

The module is `torch_ccl` before version 1.12 and `oneccl_bindings_for_pytorch` from there on; importing it makes
the backend ``ccl`` known to torch. Nothing has to be sourced before: ``ipexctl run --backend ccl`` sets on every host
what the bindings' setvars.sh would. A script only needs the import, and the backend's name.
"""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist

try:
    import oneccl_bindings_for_pytorch as binding
except ImportError:  # before 1.12
    import torch_ccl as binding

SETVARS = ("CCL_ROOT", "I_MPI_ROOT", "FI_PROVIDER_PATH", "LD_LIBRARY_PATH", "PATH")
GUIDE = ("MASTER_ADDR", "CCL_WORKER_COUNT", "CCL_WORKER_AFFINITY", "CCL_ATL_TRANSPORT", "OMP_NUM_THREADS")


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("ccl", rank=rank, world_size=size)
    number = torch.tensor([float(rank + 1)])
    dist.all_reduce(number)
    print(
        f"rank {rank} of {size} on {socket.gethostname()}: {binding.__name__} {getattr(binding, '__version__', '?')}, "
        f"backend {dist.get_backend()}, sum {number.item():.0f}"
    )
    for name in (*SETVARS, *GUIDE):
        print(f"{name}={os.environ.get(name, '')}")
    dist.destroy_process_group()
    if number.item() != size * (size + 1) / 2:
        raise SystemExit("the sum is wrong")


if __name__ == "__main__":
    main()
