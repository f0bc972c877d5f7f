"""Calls of a group in all of torch's spellings, what others see of them, and groups of another backend beside."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from common import main, refused, same

from impi_torch._dispatch import HAS_KERNELS
from impi_torch._engine import engine

LONG = timedelta(seconds=60)


def filled(rank: int, count: int = 2) -> torch.Tensor:
    return torch.full((count,), float(rank + 1))


def spelled(group: Any, rank: int, size: int) -> dict[str, Callable[[], list[torch.Tensor]]]:
    """A method called in each way that torch's binding knows, and the tensors that it writes."""
    one, whole, parts = filled(rank), filled(rank, 2 * size), [filled(rank) for _ in range(size)]
    empty, empties = torch.zeros(2), [torch.zeros(2) for _ in range(size)]
    gathered, at_root = torch.zeros(2 * size), rank == 0
    most = dist.ReduceOp.MAX

    def wait(work: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
        work.wait()
        return list(tensors)

    def alltoall(**more: Any) -> list[torch.Tensor]:
        words = {"output": gathered, "input": whole, "output_split_sizes": [], "input_split_sizes": []}
        return wait(group.alltoall_base(**words, **more), gathered)

    return {
        "broadcast": lambda: wait(group.broadcast(one, 1), one),
        "broadcast root": lambda: wait(group.broadcast(one, root=1, timeout=LONG), one),
        "broadcast tensor": lambda: wait(group.broadcast(tensor=one, root=1), one),
        "allreduce": lambda: wait(group.allreduce(one), one),
        "allreduce op": lambda: wait(group.allreduce(one, op=most), one),
        "allreduce tensors": lambda: wait(group.allreduce(tensors=[one], op=most, timeout=LONG), one),
        "allreduce coalesced": lambda: wait(group.allreduce_coalesced(tensors=[one, empty]), one),
        "reduce": lambda: wait(group.reduce(one, root=0, op=most), *([one] if at_root else [])),
        "allgather": lambda: wait(group.allgather(empties, one), *empties),
        "allgather words": lambda: wait(
            group.allgather(output_tensors=empties, input_tensor=one, timeout=LONG), *empties
        ),
        "allgather_base": lambda: wait(group._allgather_base(output=gathered, input=one), gathered),
        "gather": lambda: wait(group.gather(empties if at_root else [], one, root=0), *(empties if at_root else [])),
        "scatter": lambda: wait(group.scatter(empty, parts if at_root else [], root=0), empty),
        "reduce_scatter": lambda: wait(group.reduce_scatter(empty, parts, op=most), empty),
        "reduce_scatter_base": lambda: wait(group._reduce_scatter_base(outputTensor=empty, inputTensor=whole), empty),
        "alltoall": lambda: (
            wait(group.alltoall(output_tensors=empties, input_tensors=parts), *empties)
            if group.name() == "impi"
            else [filled(r) for r in range(size)]
        ),  # Gloo has none
        "alltoall_base": alltoall,
        "alltoall_base timeout": lambda: alltoall(timeout=LONG),
        "barrier": lambda: wait(group.barrier()),
        "barrier timeout": lambda: wait(group.barrier(timeout=LONG)),
        "send and recv": lambda: (
            wait(group.send(tensors=[one], dstRank=1, tag=3))
            if rank == 0
            else wait(group.recv(tensors=[empty], srcRank=0, tag=3), empty)
            if rank == 1
            else []
        ),
        "into many": lambda: wait(group.allgather_into_tensor_coalesced(outputs=[gathered], inputs=[one]), gathered),
        "scattered many": lambda: wait(group.reduce_scatter_tensor_coalesced(outputs=[empty], inputs=[whole]), empty),
    }


def spellings(rank: int, size: int) -> None:
    """Impi understands what Gloo does, to the same result, and refuses what Gloo refuses."""
    ours, theirs = dist.group.WORLD, dist.new_group(backend="gloo")
    if not HAS_KERNELS:
        return
    expected = spelled(theirs, rank, size)
    for name, call in spelled(ours, rank, size).items():
        for got, want in zip(call(), expected[name](), strict=True):
            same(got, want, name)
        dist.barrier()
    for group in (ours, theirs):
        refused(partial(group.broadcast, filled(0), base=0), "incompatible function arguments")
        refused(partial(group.send, filled(0)), "incompatible function arguments")
    assert ours.options.group_name == ours.group_name
    assert not engine().kept, engine().kept


def watched(rank: int, size: int) -> None:
    """Dispatch modes and profilers see what they see of Gloo, and the results are right."""
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.profiler import profile

    counts = []
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        total, out, part = filled(rank), torch.zeros(2 * size), torch.zeros(2)
        with CommDebugMode() as mode:
            dist.all_reduce(total, dist.ReduceOp.MAX, group=group)
            dist.all_gather_into_tensor(out, total, group=group)
            dist.reduce_scatter_tensor(part, out, group=group)
            dist.broadcast(total, 0, group=group)
        counts.append(dict(mode.get_comm_counts()))
        same(total, filled(size - 1), "all_reduce that is watched")
        same(part, filled(size * size - 1), "reduce_scatter that is watched")
        with profile() as profiler:
            dist.all_reduce(total, group=group)
            dist.barrier(group)
        keys = {event.key for event in profiler.key_averages()}
        assert not HAS_KERNELS or {"c10d::allreduce_", "c10d::barrier"} <= keys, keys
        assert not HAS_KERNELS or any("reduce" in key and "c10d" not in key for key in keys), keys
        same(total, filled(size * size - 1), "all_reduce under a profiler")
    assert not HAS_KERNELS or counts[0] == counts[1], counts
    assert not engine().kept, engine().kept


def profilers_that_stop(rank: int, size: int) -> None:
    """An operation lasts until it is done; nothing is written into what a profiler that stops earlier has freed."""
    from torch.profiler import ProfilerActivity, profile

    for waits in [True, False] * 15:
        begun = time.perf_counter()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            works = [dist.all_reduce(filled(rank), async_op=True) for _ in range(80)]
            for work in works if waits else ():
                work.get_future().wait()
        for work in works:
            work.wait()
        limit = (time.perf_counter() - begun) * 1e6
        times = [event.cpu_time_total for event in profiler.events() if event.key == "impi:allreduce"]
        assert len(times) == len(works) * HAS_KERNELS
        assert all(0 < spent < limit for spent in times), times


def premultiplied_under_a_profiler(rank: int, size: int) -> None:
    from torch.profiler import profile

    total = filled(rank)
    with profile():
        dist.all_reduce(total, dist._make_nccl_premul_sum(2.0))
    same(total, torch.full((2,), float(size * (size + 1))), "PREMUL_SUM")


def from_compiled_code(rank: int, size: int) -> None:
    """The operator that C++ calls for inductor goes to the group's backend without a method of ours between."""
    if not HAS_KERNELS:
        return
    out = torch.zeros(2 * size)
    group = dist.group.WORLD
    operators = torch.ops._c10d_functional
    done = operators.all_gather_into_tensor_out(filled(rank), size, group.group_name, out=out)
    operators.wait_tensor(done)
    same(out, torch.cat([filled(r) for r in range(size)]), "all_gather_into_tensor_out")
    assert not engine().kept, engine().kept


def own_classes(rank: int, size: int) -> None:
    """A tensor that another collective still writes is waited for; parameters are written as Gloo writes them."""
    import torch.distributed._functional_collectives as functional

    if HAS_KERNELS:
        in_flight = functional.all_reduce(filled(rank), "sum", dist.group.WORLD)
        assert type(in_flight) is functional.AsyncCollectiveTensor, type(in_flight)
        dist.all_reduce(in_flight)
        same(in_flight + 0, filled(size * size * (size + 1) // 2 - 1), "a tensor in flight")
    for dtype in (torch.float32, torch.bfloat16):
        for values in (torch.ones(4, 6), torch.ones(6, 4).t()):
            leaf = torch.nn.Parameter(values.to(dtype))
            dist.all_reduce(leaf, dist.ReduceOp.AVG)
            dist.broadcast(leaf, 0)
            (leaf * 2).sum().backward()
            dist.all_reduce(leaf.grad)
            assert (leaf == 1).all(), leaf
            assert (leaf.grad == 2 * size).all(), leaf.grad


def another_backend(rank: int, size: int) -> None:
    """A group of Gloo's beside ours works as ever, in all its operations."""
    group = dist.new_group(backend="gloo")
    out = torch.zeros(2 * size)
    with dist.distributed_c10d._coalescing_manager(group):
        dist.all_gather_into_tensor(out, filled(rank), group=group)
    same(out, torch.cat([filled(r) for r in range(size)]), "gathered by Gloo")
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (size,))
    dist.all_reduce(sparse, group=group)
    assert (sparse.to_dense() == 1).all(), sparse
    work = dist.all_reduce(total := filled(rank), group=group, async_op=True)
    work.get_future().wait()
    same(total, filled(size * (size + 1) // 2 - 1), "reduced by Gloo")
    dist.monitored_barrier(group)
    dist.monitored_barrier()


if __name__ == "__main__":
    main(
        spellings,
        watched,
        profilers_that_stop,
        premultiplied_under_a_profiler,
        from_compiled_code,
        own_classes,
        another_backend,
    )
