"""One thing goes wrong on one rank; what the others see is looked at by test_faults."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
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
    """A script may catch the error and say what it wants; the group refuses everything after it, and ends alone."""
    if rank == size - 1:
        time.sleep(60)
    for _ in range(2):
        try:
            dist.all_reduce(torch.ones(10))
        except RuntimeError as error:
            print(f"caught on {rank}: {error}", flush=True)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.destroy_process_group()
    print(f"destroyed on {rank} after {backend.error}", flush=True)
    sys.exit(7)


def mismatch(rank: int, size: int) -> None:
    """One rank broadcasts, as of a checkpoint that only it has found, while the others add up gradients."""
    dist.barrier()
    if rank == size - 1:
        dist.broadcast(torch.ones(8), rank - 1)
    else:
        dist.all_reduce(torch.ones(1 << 20))


def mismatch_late(rank: int, size: int) -> None:
    if rank == size - 1:
        dist.all_gather([torch.ones(2) for _ in range(size)], torch.ones(2))
    else:
        dist.barrier()


def mismatch_skipped(rank: int, size: int) -> None:
    """One rank leaves out a barrier; MPI lets the others through theirs, and each waits in its next reduction."""
    for step in range(20):
        dist.all_reduce(torch.ones(4000))
        if step != 9 or rank != size - 1:
            dist.barrier()


def mismatch_quiet(rank: int, size: int) -> None:
    """MPI takes both for the same: rank 1 adds up what rank 0 broadcasts."""
    for step in range(int(os.environ["STEPS"])):
        tensor = torch.full((3,), float(rank + 1))
        if step == 4 and rank == 0:
            dist.broadcast(tensor, 0)
        else:
            dist.all_reduce(tensor)


def mismatch_lengths(rank: int, size: int) -> None:
    """Rank 1 gathers another number of elements; MPI fills what it gets."""
    length = 4 + (rank == 1)
    tensor = torch.full((length,), float(rank))
    if os.environ["CALL"] == "all_gather":
        dist.all_gather([torch.zeros(length) for _ in range(size)], tensor)
    elif os.environ["CALL"] == "all_gather_into_tensor":
        dist.all_gather_into_tensor(torch.zeros(size * length), tensor)
    elif os.environ["CALL"] == "reduce_scatter_tensor":
        dist.reduce_scatter_tensor(tensor, torch.ones(size * length))
    elif os.environ["CALL"] == "broadcast":  # the first one's is the longer, and it does not notice
        dist.broadcast(torch.zeros(2 * (9 - length)), 0)
    elif os.environ["CALL"] == "sparse":  # the second one's index is behind the end of the first one's
        dist.all_reduce(torch.sparse_coo_tensor([[0 if rank == 0 else 3_999_999]], [1.0], (4_000_000**rank,)))
    elif os.environ["CALL"] == "uneven":  # as all of them may
        dist.all_gather([torch.zeros(4), torch.zeros(5)], tensor)
        dist.reduce_scatter(tensor, [torch.ones(4), torch.ones(5)])
        dist.all_to_all_single(torch.zeros(2 * length), torch.ones(9), [length, length], [4, 5])


def mismatch_detail(rank: int, size: int) -> None:
    """The same call with the same bytes, but for what MPI does not compare."""
    tensor, call = torch.ones(2, dtype=torch.int64 if rank else torch.float64), os.environ["CALL"]
    if call == "root":
        dist.broadcast(tensor, rank)
    elif call in ("group", "destroyed"):
        dist.new_group(list(range(size))[:1])
        group = dist.new_group()
        time.sleep(0 if rank else 1)  # nobody can compare, then, before the end
        dist.broadcast(tensor, rank, group=group)
        if call == "destroyed":
            dist.destroy_process_group(group)
    else:
        other = call == "op" and rank == 1
        dist.all_reduce(tensor if call == "dtype" else torch.ones(4), dist.ReduceOp.MAX if other else dist.ReduceOp.SUM)


def backward(rank: int, size: int) -> None:
    """A rank fails while the others wait for its gradients in torch's C++, which takes the value of the future."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 1))
    if os.environ.get("HOOK"):
        model.register_comm_hook(None, lambda _, bucket: _reduce(bucket))
    for step in range(6):
        loss = model(torch.rand(8, 20)).mean()
        if rank == size - 1 and step == 3:
            raise ValueError("a mistake of the script")
        loss.backward()


def _reduce(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


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


def fails(rank: int, size: int, how: Callable[[], object]) -> None:
    """The last rank fails in the way of `how`, after much output; the others wait for it."""
    atexit.register(lambda: print(f"the last word of rank {rank}", flush=True))
    if rank == size - 1:
        for _ in range(2000):
            print(f"a line of rank {rank}")
        how()
    dist.all_reduce(torch.ones(10))


def mixed(rank: int, size: int) -> None:
    """The last rank has a batch less, gives others the bytes of what it calls then, and fails on what it gets."""
    for _ in range(4 if rank == size - 1 else 9):
        dist.all_reduce(torch.ones(10))
    if rank == size - 1:
        dist.broadcast(torch.ones(10), rank, async_op=True)
        mistake()


def mistake() -> None:
    raise ValueError("a mistake of the script")


def raised(rank: int, size: int) -> None:
    fails(rank, size, mistake)


def no_utf8(rank: int, size: int) -> None:
    def fail() -> None:
        raise ValueError("caf\udce9.jpg")

    fails(rank, size, fail)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def unprintable(rank: int, size: int) -> None:
    def fail() -> None:
        raise Unprintable

    fails(rank, size, fail)


def hook(rank: int, size: int) -> None:
    sys.excepthook = lambda *_: None
    fails(rank, size, mistake)


def hook_exits(rank: int, size: int) -> None:
    sys.excepthook = lambda *_: sys.exit(5)
    fails(rank, size, mistake)


def exits(rank: int, size: int) -> None:
    with open(os.devnull):  # code on the way that Python runs before it leaves
        fails(rank, size, lambda: sys.exit(3))


def interrupted(rank: int, size: int) -> None:
    fails(rank, size, lambda: signal.raise_signal(signal.SIGINT))


def left(rank: int, size: int) -> None:
    """One rank ends its script early, well behaved but wrong."""
    dist.barrier()
    if rank == size - 1:
        raise SystemExit(3)
    dist.all_reduce(torch.ones(10))


def destroys(rank: int, size: int) -> None:
    """One rank has fewer batches, and destroys its group as the others will."""
    for _ in range(5 if rank == size - 1 else 8):
        dist.all_reduce(torch.ones(10))
    dist.destroy_process_group()


def destroys_store(rank: int, size: int) -> None:
    """Rank 0, which keeps the store, has fewer batches; its barrier is taken for a reduction of the others."""
    for _ in range(5 if rank == 0 else 8):
        dist.all_reduce(torch.ones(10))
    dist.barrier()
    dist.destroy_process_group()


def mismatch_extra(rank: int, size: int) -> None:
    """One rank alone calls a barrier, which MPI ends with a reduction of another: that one comes to its end."""
    for step in range(8):
        dist.all_reduce(torch.ones(5))
        if step == 3 and rank == 0:
            dist.barrier()
    dist.destroy_process_group()


def goes_on(rank: int) -> None:
    dist.all_reduce(torch.ones(10))
    sys.stdout.write(f"done on {rank}\n")


def caught_exit(rank: int, size: int) -> None:
    with contextlib.suppress(SystemExit):
        sys.exit(3)
    goes_on(rank)


def thread_fails(rank: int, size: int) -> None:
    thread = threading.Thread(target=mistake)
    thread.start()
    thread.join()
    goes_on(rank)


def exit_in_atexit(rank: int, size: int) -> None:
    atexit.register(lambda: sys.exit(9))
    goes_on(rank)


def exit_0(rank: int, size: int) -> None:
    goes_on(rank)
    sys.exit(0)


def caught_timeout(rank: int, size: int) -> None:
    """An operation that only one rank began, and then the end of the script."""
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=1))
    if rank == 0:
        with contextlib.suppress(RuntimeError):
            dist.all_reduce(torch.ones(3), group=group)
    goes_on(rank)


class Fails(torch.utils.data.Dataset[int]):  # type: ignore[misc]
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 2:
            mistake()
        return index


def worker(rank: int, size: int) -> None:
    """A forked worker of a DataLoader ends by an exception, and never calls MPI."""
    with contextlib.suppress(ValueError):
        list(torch.utils.data.DataLoader(Fails(), num_workers=1, multiprocessing_context="fork"))
    goes_on(rank)


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


def no_taker(rank: int, size: int) -> None:
    if rank == 0:
        dist.send(torch.ones(4), 1)


def missing_member(rank: int, size: int) -> None:
    if rank == size - 1:
        time.sleep(60)
    dist.new_group(list(range(size)), timeout=timedelta(seconds=2))


def monitored(rank: int, size: int) -> None:
    dist.barrier()
    if rank >= size - 2:
        time.sleep(60)
    impi_torch.monitored_barrier(timeout=timedelta(seconds=2), wait_all_ranks="all" in sys.argv)


def monitored_at_once(rank: int, size: int) -> None:
    dist.barrier()
    if rank == 1:
        time.sleep(60)
    dist.monitored_barrier(timeout=timedelta(0))


def quiet_end(rank: int, size: int) -> None:
    """No destroy_process_group, as in many scripts."""
    dist.all_reduce(torch.ones(10))


def work_left_behind(rank: int, size: int) -> None:
    """Operations that nobody waited for are finished before the end."""
    dist.barrier()
    time.sleep(2 * (rank == 1))  # the others are at their end by then, with all but the first still in line
    for _ in range(100):
        dist.all_reduce(torch.ones(300_000), async_op=True)


if __name__ == "__main__":
    if "IMPI_TEST_MPI4PY" in os.environ:
        from mpi4py import MPI

        assert MPI
    globals()[sys.argv[1]](*init(seconds=float(os.environ.get("IMPI_TEST_TIMEOUT", "3"))))
