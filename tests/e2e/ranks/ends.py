"""A rank of a job that goes well for 40 steps, and then one of them, or all, end in a way of the test's choice.

``ends.py BACKEND WAY``: the ranks meet over gloo, impi, mpi4py, or not at all (none). Rank 1 is the one that fails.
Each line is counted, so that the test knows which are missing."""

import atexit
import os
import signal
import sys
import threading
import time

backend, way = sys.argv[1:3]
rank = int(os.environ["RANK"])
guilty = rank == 1 or way == "all"


def fail_before() -> None:
    if guilty and way == "before-init":
        raise ValueError("wrong before init")


def meet() -> "object":
    """A function that waits for all ranks."""
    if backend in ("gloo", "impi"):
        import torch
        import torch.distributed as dist

        if backend == "impi":
            import impi_torch  # noqa: F401
        dist.init_process_group(backend)
        one = torch.ones(8)
        return lambda: dist.all_reduce(one)
    if backend == "mpi4py":
        from mpi4py import MPI

        return MPI.COMM_WORLD.Barrier
    return lambda: time.sleep(0.02)


def leave() -> None:
    """Takes the rank out of its group, in order."""
    if backend in ("gloo", "impi"):
        import torch.distributed as dist

        dist.destroy_process_group()
    if backend == "mpi4py":
        from mpi4py import MPI

        MPI.Finalize()


def fail() -> None:
    if way in ("one", "all", "flood"):
        raise KeyError(f"record {rank}")
    if way == "thread":
        failing = threading.Thread(target=lambda: [][9])
        failing.start()
        failing.join()
        sys.exit(9)
    if way == "worker":
        from torch.utils.data import DataLoader

        class Broken:
            def __len__(self) -> int:
                return 4

            def __getitem__(self, index: int) -> int:
                raise OSError(f"record {index} cannot be read")

        list(DataLoader(Broken(), num_workers=1))
    if way == "abort":
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(7)
    if way == "exit-3":
        sys.exit(3)
    if way == "slow-exit":  # its peers see that it has left, and fail before it has ended
        atexit.register(time.sleep, 1)
        atexit.register(leave)
        sys.exit(3)
    if way == "os-exit":
        os._exit(4)
    if way == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "memory":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        bytearray(1 << 31)


fail_before()
wait_for_all = meet()
for step in range(40):
    wait_for_all()  # type: ignore[operator]
    print(f"rank {rank} step {step}", flush=True)
if way == "after-finalize":
    leave()
if way == "well":
    os._exit(0)  # as C++ that ends the process: MPI is not finalised
if guilty:
    for number in range(20_000 if way == "flood" else 200):
        print(f"rank {rank} line {number}")
    sys.stdout.flush()
    print(f"rank {rank} last words", file=sys.stderr, flush=True)
    if way == "after-finalize":
        raise RuntimeError("wrong after finalize")
    fail()
for _ in range(3000):  # the others wait for it, until somebody ends them
    if way != "after-finalize":
        wait_for_all()  # type: ignore[operator]
    time.sleep(0.02)
