"""One thing goes wrong on one rank; what the others see is looked at by test_faults."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from common import init

import impi_torch


def late(rank: int, size: int) -> None:
    dist.barrier()
    if rank == size - 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(10))


def late_async(rank: int, size: int) -> None:
    """The same with nobody in wait(): the future gets the error."""
    if rank == size - 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(10), async_op=True).get_future().wait()


def late_caught(rank: int, size: int) -> None:
    """A script may catch the error and say what it wants; the group refuses everything after it."""
    if rank == size - 1:
        time.sleep(60)
    for _ in range(2):
        try:
            dist.all_reduce(torch.ones(10))
        except RuntimeError as error:
            print(f"caught on {rank}: {error}", flush=True)
    sys.exit(7)


def late_wait(rank: int, size: int) -> None:
    """wait(timeout) shorter than the group's: only the wait ends, the operation can still be done."""
    if rank == size - 1:
        time.sleep(4)
    work = dist.all_reduce(torch.ones(10), async_op=True)
    if rank != size - 1:
        try:
            work.wait(timedelta(seconds=0.5))
        except RuntimeError as error:
            print(f"caught on {rank}: {error}", flush=True)
    work.wait()
    dist.destroy_process_group()
    print(f"done on {rank}", flush=True)


def stopped(rank: int, size: int) -> None:
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(10))


def killed(rank: int, size: int) -> None:
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(10_000_000))
    time.sleep(60)


def raised(rank: int, size: int) -> None:
    dist.barrier()
    if rank == size - 1:
        raise ValueError("a mistake of the script")
    dist.all_reduce(torch.ones(10))


def left(rank: int, size: int) -> None:
    """One rank ends its script early, well behaved but wrong."""
    dist.barrier()
    if rank == size - 1:
        sys.exit(3)
    dist.all_reduce(torch.ones(10))


def unequal_ends(rank: int, size: int) -> None:
    """Ranks that are done wait for the last one, which saves a model meanwhile."""
    dist.barrier()
    if rank == 0:
        time.sleep(3)
        print("saved", flush=True)


def no_receiver(rank: int, size: int) -> None:
    if rank == 0:
        dist.recv(torch.zeros(1), 1)
    else:
        time.sleep(60)


def missing_member(rank: int, size: int) -> None:
    if rank == size - 1:
        time.sleep(60)
    dist.new_group(list(range(size)), timeout=timedelta(seconds=2))


def monitored(rank: int, size: int) -> None:
    dist.barrier()
    if rank >= size - 2:
        time.sleep(60)
    impi_torch.monitored_barrier(timeout=timedelta(seconds=2), wait_all_ranks="all" in sys.argv)


def quiet_end(rank: int, size: int) -> None:
    """No destroy_process_group, as in many scripts."""
    dist.all_reduce(torch.ones(10))


def work_left_behind(rank: int, size: int) -> None:
    """Operations that nobody waited for are finished before the end."""
    for _ in range(10):
        dist.all_reduce(torch.ones(1_000_000), async_op=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*init(seconds=float(os.environ.get("IMPI_TEST_TIMEOUT", "3"))))
