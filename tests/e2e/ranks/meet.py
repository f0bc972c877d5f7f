"""For scripts of ranks, beside torch: joins the process group of all ranks, and says when all have come."""

import os

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # without a warning that hosts of tests have no names

import torch
import torch.distributed as dist

backend = os.environ["IPEXCTL_BACKEND"]
if backend == "impi":
    import impi_torch  # noqa: F401
dist.init_process_group(backend)


def meet() -> None:
    dist.all_reduce(torch.ones(8))


meet()
