"""Every collective × dtype × shape × operation against a reference that each rank calculates by itself."""

from __future__ import annotations

import functools
import operator
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from common import COMPLEX, EVERY, FLOATS, INTEGERS, SHAPES, SHORT, UNSIGNED, main, numbers, raw, refused, same, spread
from torch.distributed import ReduceOp

from impi_torch._engine import Work

WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex32: torch.complex128,
    **dict.fromkeys(SHORT, torch.float64),
    **dict.fromkeys([torch.float32], torch.float64),
    **dict.fromkeys([*UNSIGNED, torch.int8, torch.int16, torch.int32, torch.uint8], torch.int64),
    torch.bool: torch.int64,
}
BITS = {ReduceOp.BAND: operator.and_, ReduceOp.BOR: operator.or_, ReduceOp.BXOR: operator.xor}
OPS = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG, *BITS]


def applies(op: Any, dtype: torch.dtype) -> bool:
    if op in BITS:
        return not (dtype.is_floating_point or dtype.is_complex)
    if op in (ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT) and dtype.is_complex:
        return False  # torch itself refuses the product
    return not (op == ReduceOp.AVG and dtype in (torch.bool, torch.uint64))


def reduced(tensors: list[torch.Tensor], op: Any) -> torch.Tensor:
    """The reference: calculated wide, then rounded to the dtype once."""
    dtype = tensors[0].dtype
    if dtype == torch.bool:
        wide = [t.to(torch.int64) for t in tensors]
        fold = {
            ReduceOp.SUM: operator.or_,
            ReduceOp.PRODUCT: operator.and_,
            ReduceOp.MIN: operator.and_,
            ReduceOp.MAX: operator.or_,
            **BITS,
        }[op]
        return functools.reduce(fold, wide).to(dtype)
    wide = [t.to(WIDE.get(dtype, dtype)) for t in tensors]
    if op in BITS:
        total = functools.reduce(BITS[op], wide)
    elif op in (ReduceOp.SUM, ReduceOp.AVG):
        total = functools.reduce(operator.add, wide)
        if op == ReduceOp.AVG:
            exact = dtype.is_floating_point or dtype.is_complex
            total = total / len(wide) if exact else torch.div(total, len(wide), rounding_mode="trunc")
    else:
        fold = {ReduceOp.PRODUCT: operator.mul, ReduceOp.MIN: torch.minimum, ReduceOp.MAX: torch.maximum}[op]
        total = functools.reduce(fold, wide)
    return total.to(dtype)


def everybody(
    size: int, shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0, small: bool = False
) -> list[torch.Tensor]:
    return [numbers(r, shape, dtype, salt, small) for r in range(size)]


def close_or_same(got: torch.Tensor, want: torch.Tensor, op: Any, what: object) -> None:
    """Averages of single precision are rounded after a division: one last bit may differ. All else is exact."""
    if op == ReduceOp.AVG and got.dtype in (*FLOATS, *COMPLEX, torch.complex32, *SHORT):
        near = torch.complex128 if got.dtype.is_complex else torch.float64
        step = torch.finfo(got.dtype).eps
        assert torch.allclose(got.to(near), want.to(near), rtol=2 * step, atol=0), (what, got, want)
    else:
        same(got, want, what)


def reductions(rank: int, size: int) -> None:
    for dtype in EVERY:
        for op in OPS:
            if not applies(op, dtype):
                refused(functools.partial(dist.all_reduce, numbers(rank, (3,), dtype), op), "does not")
                continue
            for salt, shape in enumerate(SHAPES):
                small = op == ReduceOp.PRODUCT
                given = everybody(size, shape, dtype, salt, small)
                want = reduced(given, op)
                for kind in ("dense", "strided", "columns") if dtype in (torch.float32, torch.bfloat16) else ("dense",):
                    what = (dtype, op, shape, kind)
                    got = spread(given[rank], kind)
                    dist.all_reduce(got, op)
                    close_or_same(got, want, op, ("all_reduce", *what))
                    root = salt % size
                    got = spread(given[rank], kind)
                    dist.reduce(got, root, op)
                    close_or_same(got, want if rank == root else given[rank], op, ("reduce", *what))


def scattered_reductions(rank: int, size: int) -> None:
    for dtype in EVERY:
        for op in OPS:
            if not applies(op, dtype):
                continue
            for salt, shape in enumerate(SHAPES):
                small = op == ReduceOp.PRODUCT
                given = [everybody(size, shape, dtype, 50 + salt + 100 * r, small) for r in range(size)]
                want = reduced([given[r][rank] for r in range(size)], op)
                what = (dtype, op, shape)
                kept = [t.clone() for t in given[rank]]
                got = torch.empty_like(want)
                dist.reduce_scatter(got, given[rank], op)
                close_or_same(got, want, op, ("reduce_scatter", *what))
                flat = torch.stack(given[rank]).reshape(-1)
                got = torch.empty_like(want).reshape(-1)
                dist.reduce_scatter_tensor(got, flat, op)
                close_or_same(got, want.reshape(-1), op, ("reduce_scatter_tensor", *what))
                for before, after in zip(kept, given[rank]):
                    same(after, before, ("inputs stay", *what))
    lengths = [2 * r + 1 for r in range(size)]
    parts = [torch.full((n,), float(rank + 1)) for n in lengths]
    got = torch.zeros(lengths[rank])
    dist.reduce_scatter(got, parts)
    same(got, torch.full_like(got, size * (size + 1) / 2), "shares of unequal length")


def premultiplied(rank: int, size: int) -> None:
    from torch._C._distributed_c10d import _make_nccl_premul_sum

    for dtype in FLOATS:
        for factor in (0.5, torch.tensor(2.0)):
            op = _make_nccl_premul_sum(factor)
            for shape in ((5,), (70000,)):
                given = everybody(size, shape, dtype, 3)
                want = (sum(t.double() for t in given) * float(factor)).to(dtype)
                got = given[rank].clone()
                dist.all_reduce(got, op)
                same(got, want, ("premul all_reduce", dtype, factor))
                got = given[rank].clone()
                dist.reduce(got, 0, op)
                same(got, want if rank == 0 else given[rank], ("premul reduce", dtype))
                got = torch.empty(shape, dtype=dtype)
                dist.reduce_scatter_tensor(got, given[rank].repeat(size), op)
                same(got, want, ("premul reduce_scatter", dtype))


def moved(rank: int, size: int) -> None:
    """Broadcast, gathers, scatters and all-to-alls move bytes, so every dtype there is."""
    for dtype in EVERY:
        for salt, shape in enumerate(SHAPES):
            given = everybody(size, shape, dtype, 20 + salt)
            root = salt % size
            for kind in ("dense", "strided", "columns") if dtype in (torch.float32, torch.bool) else ("dense",):
                what = (dtype, shape, kind)
                mine = spread(given[rank], kind)

                def empty(shape: tuple[int, ...] = shape, dtype: torch.dtype = dtype, kind: str = kind) -> torch.Tensor:
                    return spread(torch.zeros(shape).to(dtype), kind)

                got = spread(given[rank], kind)
                dist.broadcast(got, root)
                same(got, given[root], ("broadcast", *what))
                outs = [empty() for _ in range(size)]
                dist.all_gather(outs, mine)
                for r in range(size):
                    same(outs[r], given[r], ("all_gather", *what))
                if shape:
                    out = spread(torch.zeros((size * shape[0], *shape[1:])).to(dtype), kind)
                    dist.all_gather_into_tensor(out, mine)
                    same(out, torch.cat(given), ("all_gather_into_tensor", *what))
                outs = [empty() for _ in range(size)] if rank == root else []
                dist.gather(mine, outs or None, root)
                for r in range(size) if rank == root else ():
                    same(outs[r], given[r], ("gather", *what))
                out = empty()
                dist.scatter(out, [spread(t, kind) for t in given] if rank == root else None, root)
                same(out, given[rank], ("scatter", *what))
                outs = [empty() for _ in range(size)]
                dist.all_to_all(outs, [spread(numbers(rank, shape, dtype, 300 + salt + r), kind) for r in range(size)])
                for r in range(size):
                    same(outs[r], numbers(r, shape, dtype, 300 + salt + rank), ("all_to_all", *what))
                source = torch.stack([numbers(rank, shape, dtype, 600 + salt + r) for r in range(size)])
                out = torch.stack([torch.zeros(shape).to(dtype) for _ in range(size)])
                dist.all_to_all_single(out, spread(source, kind))
                same(
                    out,
                    torch.stack([numbers(r, shape, dtype, 600 + salt + rank) for r in range(size)]),
                    ("all_to_all_single", *what),
                )


def uneven(rank: int, size: int) -> None:
    """Lengths that differ from rank to rank."""
    for columns in (1, 3000):
        send = [(rank + r) % 3 for r in range(size)]
        source = torch.cat([torch.full((n, columns), 10.0 * rank + r) for r, n in enumerate(send)])
        receive = [(r + rank) % 3 for r in range(size)]
        out = torch.zeros(sum(receive), columns)
        dist.all_to_all_single(out, source, receive, send)
        want = torch.cat([torch.full((n, columns), 10.0 * r + rank) for r, n in enumerate(receive)])
        same(out, want, "all_to_all_single with splits")
        outs = [torch.zeros(r * columns) for r in range(size)]
        dist.all_gather(outs, torch.full((rank * columns,), float(rank)))
        for r in range(size):
            same(outs[r], torch.full((r * columns,), float(r)), "all_gather of unequal lengths")
    refused(
        lambda: dist.all_to_all_single(torch.zeros(size + 1), torch.zeros(size + 1)), "alltoall", "multiple"
    ) if size > 1 else None
    dist.barrier()


def in_place_gather(rank: int, size: int) -> None:
    """FSDP gathers into the tensor of which the input is a part."""
    whole = torch.full((size * 1000,), -1.0)
    whole[rank * 1000 : (rank + 1) * 1000] = rank
    dist.all_gather_into_tensor(whole, whole[rank * 1000 : (rank + 1) * 1000])
    same(whole, torch.arange(size, dtype=torch.float32).repeat_interleave(1000), "gather in place")
    whole[:1000] = rank
    if size > 1:
        dist.all_gather_into_tensor(whole, whole[:1000])  # right on rank 0, overlapping elsewhere
        same(whole, torch.arange(size, dtype=torch.float32).repeat_interleave(1000), "overlapping gather")


def shared_memory(rank: int, size: int) -> None:
    """What is sent may lie where something is received."""
    for count in (3, 50_000):
        rows = torch.arange(size, dtype=torch.float32).add(10.0 * rank).repeat_interleave(count)
        want = torch.arange(size, dtype=torch.float32).mul(10).add(rank).repeat_interleave(count)
        whole = rows.clone()
        dist.all_to_all_single(whole, whole)
        same(whole, want, "all_to_all_single in place")
        lists = list(rows.clone().split(count))
        dist.all_to_all(lists, lists)
        same(torch.cat(lists), want, "all_to_all in place")
        for place in range(size):
            whole = rows.clone()
            dist.reduce_scatter_tensor(whole[place * count : (place + 1) * count], whole)
            total = float(10 * sum(range(size)) + rank * size)
            same(whole[place * count : (place + 1) * count], torch.full((count,), total), "reduce_scatter in place")
            outs = list(rows.clone().split(count))
            dist.all_gather(outs, outs[place])
            every = torch.arange(size, dtype=torch.float32).mul(10).add(place).repeat_interleave(count)
            same(torch.cat(outs), every, "all_gather in place")
            outs = list(rows.clone().split(count))
            dist.scatter(outs[place], outs if rank == 0 else None)
            same(outs[place], torch.full((count,), float(rank)), "scatter in place")


def coalesced(rank: int, size: int) -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    group = dist.distributed_c10d._get_default_group()
    mixed = [torch.full((n,), float(rank), dtype=t) for n in (1, 5, 20000) for t in (torch.float32, torch.int64)]
    group.allreduce_coalesced([*mixed, torch.empty(0)]).wait()
    for tensor in mixed:
        assert (tensor == sum(range(size))).all(), tensor
    many = [torch.full((3,), float(rank)), torch.full((4, 2), float(rank))]
    with _coalescing_manager(group) as manager:
        for tensor in many:
            dist.all_reduce(tensor)
    del manager
    outs = [torch.zeros(3 * size), torch.zeros(4 * size, 2)]
    with _coalescing_manager(group):
        for out, tensor in zip(outs, many):
            dist.all_gather_into_tensor(out, tensor)
    for out in outs:
        assert (out == sum(range(size))).all(), out
    with _coalescing_manager(group, torch.device("cpu"), async_ops=True) as manager:
        for tensor in many:
            group.allreduce([tensor])
    manager.wait()
    assert all((t == size * sum(range(size))).all() for t in many), many
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    group.allgather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), float(rank))]).wait()
    assert all((t == r).all() for r in range(size) for t in lists[r])


def objects(rank: int, size: int) -> None:
    got: list[Any] = [None] * size
    dist.all_gather_object(got, {"rank": rank, "text": "x" * rank})
    assert got == [{"rank": r, "text": "x" * r} for r in range(size)]
    box: list[Any] = [{"from": rank}]
    dist.broadcast_object_list(box, size - 1)
    assert box == [{"from": size - 1}]
    got = [None] * size if rank == 0 else []
    dist.gather_object(rank, got or None)
    assert rank or got == list(range(size))
    box = [None]
    dist.scatter_object_list(box, list(range(size)) if rank == 0 else None)
    assert box == [rank]


def futures(rank: int, size: int) -> None:
    tensors = [torch.full((1000 * (i + 1),), float(rank)) for i in range(20)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    then = works[3].get_future().then(lambda future: future.value()[0] * 2)
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    assert all((t == sum(range(size))).all() for t in tensors)
    assert (then.wait() == 2 * sum(range(size))).all()
    late = works[0].get_future()
    assert late.done()

    def chained(future: Any) -> torch.Tensor:
        """What hangs on a future may itself wait for other operations, as PowerSGD's hook does."""
        total = future.value()[0]
        later = dist.all_reduce(total, async_op=True).get_future()
        return later.then(lambda f: dist.all_reduce(f.value()[0], async_op=True).get_future().wait()[0]).wait()

    chains = [dist.all_reduce(torch.ones(5), async_op=True).get_future().then(chained) for _ in range(4)]
    dist.barrier()
    assert all((chain.wait() == size**3).all() for chain in chains), [chain.wait() for chain in chains]
    nobody_waits = dist.all_reduce(torch.ones(5), async_op=True).get_future()  # the thread must do it
    assert (nobody_waits.wait()[0] == size).all()
    for _ in range(40):
        dist.all_reduce(torch.ones(5), async_op=True).get_future().wait()
    leaders = [thread for thread in threading.enumerate() if thread.name == "impi-progress"]
    assert len(leaders) < 20, "one more only where all are busy with what hangs on futures"


def late_future(rank: int, size: int) -> None:
    """What a callback starts has the place where the callback was attached, also where its work has ended already."""
    settle = Work.settle

    def settle_late(work: Work) -> None:
        time.sleep(0.5 * (rank == size - 1))
        settle(work)

    Work.settle = settle_late  # type: ignore[method-assign, assignment]
    first, second = torch.ones(3), torch.ones(3)
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    time.sleep(0.25)
    done = future.then(lambda _: dist.all_reduce(first, async_op=True).get_future().wait())
    dist.broadcast(second, 0)
    done.wait()
    Work.settle = settle  # type: ignore[method-assign]
    assert (first == size).all(), first
    assert (second == 1).all(), second


def functional(rank: int, size: int) -> None:
    """Functional collectives (DTensor, FSDP2, compiled code) come in from C++."""
    import torch.distributed._functional_collectives as funcol

    group = dist.distributed_c10d._get_default_group()
    mine = torch.full((2, 3), float(rank))
    in_order = torch.arange(size, dtype=torch.float32).repeat_interleave(2)[:, None].expand(-1, 3).contiguous()
    total = funcol.all_reduce(mine, "sum", group)
    same(
        torch.ops._c10d_functional.wait_tensor(total) if not hasattr(total, "wait") else total.wait(),
        torch.full((2, 3), float(sum(range(size)))),
        "functional all_reduce",
    )
    same(funcol.all_gather_tensor(mine, 0, group) + 0, in_order, "functional all_gather")
    same(
        funcol.reduce_scatter_tensor(mine.repeat(size, 1), "sum", 0, group) + 0,
        torch.full((2, 3), float(sum(range(size)))),
        "functional reduce_scatter",
    )
    same(funcol.all_to_all_single(mine.repeat(size, 1), None, None, group) + 0, in_order, "functional all_to_all")
    same(funcol.broadcast(mine, size - 1, group) + 0, torch.full((2, 3), size - 1.0), "functional broadcast")


def sparse(rank: int, size: int) -> None:
    def of_rank(r: int, count: int) -> torch.Tensor:
        indices = torch.tensor([[r + i for i in range(count)]], dtype=torch.int64).reshape(1, count)
        return torch.sparse_coo_tensor(indices, torch.ones(count, 2), (size + 3, 2))

    for count in (0, 3):
        tensor = of_rank(rank, count)
        want = sum(of_rank(r, count).to_dense() for r in range(size))
        dist.all_reduce(tensor)
        same(tensor.to_dense(), want, "sparse")


def equal_bits(rank: int, size: int) -> None:
    """Sums of rounding numbers may differ from a reference in the last bits, never between ranks."""
    for dtype in FLOATS:
        for count in (1, 17, 5000, 300_001):
            given = [torch.randn(count, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(size)]
            got = given[rank].clone()
            dist.all_reduce(got)
            want = sum(t.double() for t in given)
            scale = sum(t.double().abs() for t in given)
            # one rounding to the dtype, plus those of a sum of `size` single-precision numbers
            roundings = size if dtype in (torch.float32, torch.float64) else 1
            step = torch.finfo(dtype).eps / 2 * roundings + 2.0**-23 * size
            assert ((got.double() - want).abs() <= step * scale + 1e-30).all(), (dtype, count)
            first = got.clone()
            dist.broadcast(first, 0)
            assert torch.equal(raw(first), raw(got)), (dtype, count, "ranks differ")


def wrong_use(rank: int, size: int) -> None:
    group = dist.distributed_c10d._get_default_group()
    refused(lambda: group._allgather_base(torch.empty(5 * size + 1), torch.empty(5)).wait(), "allgather")
    refused(lambda: group._allgather_base(torch.empty(5 * size, dtype=torch.int64), torch.empty(5)).wait(), "allgather")
    refused(lambda: group._reduce_scatter_base(torch.empty(5), torch.empty(5 * size + 1)).wait(), "reduce_scatter")
    refused(lambda: group.send([torch.empty(1)], rank, 0), "itself")
    refused(lambda: group.send([torch.empty(1)], size + 4, 0), "no rank")
    refused(lambda: group.recv([torch.empty(1)], (rank + 1) % size, -5), "tag" if size > 1 else "itself")
    refused(lambda: dist.all_reduce(torch.empty(3, device="meta")), "meta")


if __name__ == "__main__":
    assert INTEGERS
    main(
        reductions,
        scattered_reductions,
        premultiplied,
        moved,
        uneven,
        in_place_gather,
        shared_memory,
        coalesced,
        objects,
        futures,
        late_future,
        functional,
        sparse,
        equal_bits,
        wrong_use,
    )
