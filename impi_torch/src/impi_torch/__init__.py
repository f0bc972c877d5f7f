"""Collectives of torch.distributed over MPI, for stock PyTorch on CPUs.

    mpirun -n 4 python train.py        # with init_process_group("impi") in it

torch finds this package by itself (entry point group `torch.backends`); `import impi_torch` does the same by hand.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

__version__ = "0.1.0"


def register() -> None:
    """Make "impi" a backend of torch.distributed, and take Gloo's place where IMPI_TORCH_OVERRIDE asks for it.

    MPI itself is not touched before the first process group.
    """
    import torch.distributed as dist

    if not dist.is_available() or "IMPI" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("impi", _create, extended_api=True, devices=["cpu"])
    # torch ≥ 2.15 would attach its C++ flight recorder, which a group written in Python has no place for
    recording: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recording.add("impi")
    from torch.distributed.rendezvous import register_rendezvous_handler

    register_rendezvous_handler("mpi", _rendezvous)
    _extend_monitored_barrier(dist.distributed_c10d)
    if os.environ.get("IMPI_TORCH_OVERRIDE", "") not in ("", "0"):
        from ._override import install

        install()


def _extend_monitored_barrier(c10d: Any) -> None:
    """Let `torch.distributed.monitored_barrier`, which takes only groups that say "gloo", take ours as well."""
    import torch.distributed as dist

    of_torch = c10d.monitored_barrier

    @functools.wraps(of_torch)
    def barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        if type(group or dist.group.WORLD).__name__ == "ImpiProcessGroup":
            monitored_barrier(group, timeout, wait_all_ranks)
        else:
            of_torch(group, timeout, wait_all_ranks)

    c10d.monitored_barrier = dist.monitored_barrier = barrier


def monitored_barrier(
    group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """`torch.distributed.monitored_barrier` for an impi group.

    Raises:
        impi_torch._engine.ImpiTimeout: on rank 0, naming the ranks that did not come; on the others, saying so.
    """
    import torch.distributed as dist

    (group or dist.group.WORLD).monitored_barrier(timeout, wait_all_ranks)


def record_works(record: Callable[[tuple[str, int, int]], object]) -> Callable[[], None]:
    """Call `record` with the name, begin and end (Unix nanoseconds) of each operation that ends from now on; returns
    what stops that."""
    from ._recording import record_works

    return record_works(record)


def _create(options: Any, _backend_options: Any) -> Any:
    from ._group import ImpiProcessGroup

    return ImpiProcessGroup(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        list(options.global_ranks_in_group),
        options.group_id,
    )


def _rendezvous(url: str, timeout: Any = None, **_words: Any) -> Iterator[Any]:
    from ._rendezvous import rendezvous

    yield rendezvous(timeout)


register()
