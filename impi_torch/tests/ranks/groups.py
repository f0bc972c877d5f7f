"""Point to point, sub-groups, barriers and the life of groups."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from common import EVERY, main, numbers, refused, same

import impi_torch


def point_to_point(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    if size == 1:
        return
    for salt, dtype in enumerate(EVERY):
        for shape in ((), (5,), (0,), (3, 70), (200_001,)):
            out = torch.zeros(shape).to(dtype)
            mine = numbers(rank, shape, dtype, salt)
            sent = dist.isend(mine, right, tag=salt)  # everybody sends first: long ones must not lock up
            source = dist.recv(out, left, tag=salt)
            sent.wait()
            assert source == left
            same(out, numbers(left, shape, dtype, salt), ("send/recv", dtype, shape))
    columns = torch.zeros(6, 4).t()
    sent = dist.isend(torch.arange(24.0).view(6, 4).t(), right)
    dist.recv(columns, left)
    sent.wait()
    same(columns, torch.arange(24.0).view(6, 4).t(), "columns first")


def tags_and_any_source(rank: int, size: int) -> None:
    if size == 1:
        return
    if rank == 0:
        got = {}
        for _ in range(size - 1):
            box = torch.zeros(3)
            source = dist.recv(box, tag=7)
            got[source] = box
        assert sorted(got) == list(range(1, size)), got
        assert all((box == source).all() for source, box in got.items()), got
        for source in range(1, size):  # later tags first
            second, first = torch.zeros(1), torch.zeros(100_000)
            dist.recv(second, source, tag=2)
            dist.recv(first, source, tag=1)
            assert second.item() == 2
            assert (first == 1).all()
    else:
        dist.send(torch.full((3,), float(rank)), 0, tag=7)
        works = [dist.isend(torch.ones(100_000), 0, tag=1), dist.isend(torch.full((1,), 2.0), 0, tag=2)]
        for work in works:
            work.wait()


def batches(rank: int, size: int) -> None:
    if size == 1:
        return
    right, left = (rank + 1) % size, (rank - 1) % size
    out, mine = torch.zeros(50_000), torch.full((50_000,), float(rank))
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, out, left)]):
        work.wait()
    assert (out == left).all()


def wrong_length(rank: int, size: int) -> None:
    if size == 1:
        return
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.send(torch.ones(3), 1, group=group)
    elif rank == 1:
        refused(lambda: dist.recv(torch.zeros(5), 0, group=group), "sent 12 bytes", "20")
    if rank < 2:  # torch names later groups by how many a rank is in
        dist.destroy_process_group(group)


def subgroups(rank: int, size: int) -> None:
    """Every kind of sub-group, in other orders, at once, and nested."""
    evens = dist.new_group(list(range(0, size, 2)))
    odds = dist.new_group(list(range(1, size, 2))) if size > 1 else None
    mine = evens if rank % 2 == 0 else odds
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=mine)
    assert total.item() == sum(range(rank % 2, size, 2)), total
    backwards = dist.new_group(list(range(size))[::-1])
    outs = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(outs, torch.tensor([float(dist.get_rank(backwards))]), group=backwards)
    assert [t.item() for t in outs] == list(range(size))
    dist.broadcast(total, size - 1, group=backwards)  # torch's source rank is the global one
    assert total.item() == sum(range((size - 1) % 2, size, 2))
    alone = [dist.new_group([r]) for r in range(size)]
    one = torch.ones(3)
    for call in (dist.all_reduce, partial(dist.broadcast, src=0)):  # under the name of the group that was destroyed
        again = dist.new_group(use_local_synchronization=True)
        call(torch.ones(3), group=again)
        dist.destroy_process_group(again)
    dist.all_reduce(one, group=alone[rank])
    assert (one == 1).all()
    works = [dist.all_reduce(torch.ones(1000), group=g, async_op=True) for g in (mine, None, backwards, mine)]
    for work in reversed(works):
        work.wait()
    if size > 2:
        last = dist.new_group([size - 1, 0])
        if rank in (0, size - 1):
            box = torch.full((2,), float(rank))
            if rank == 0:
                dist.send(box, size - 1, group=last)
            else:
                dist.recv(box, 0, group=last)
                assert (box == 0).all()
            dist.barrier(group=last)
    for group in (evens, odds, backwards):
        if group is not None and group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def many_groups(rank: int, size: int) -> None:
    """Groups come and go; communicators are given back."""
    for _ in range(60):
        group = dist.new_group(list(range(size)))
        one = torch.ones(1)
        dist.all_reduce(one, group=group)
        assert one.item() == size
        dist.destroy_process_group(group)


def meshes(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    if size % 2:
        return
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    assert dist.get_backend(mesh.get_group("shard")) == "impi", dist.get_backend(mesh.get_group("shard"))
    one = torch.tensor([float(rank)])
    dist.all_reduce(one, group=mesh.get_group("shard"))
    half = size // 2
    first = rank // half * half
    assert one.item() == sum(range(first, first + half))


def tensors_over_a_mesh(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(size * 6.0 * 4).view(size * 6, 4)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    same(sharded.full_tensor(), whole, "DTensor gathered")
    other = sharded.redistribute(mesh, [Shard(1)]) if size in (1, 2, 4) else sharded.redistribute(mesh, [Replicate()])
    same(other.full_tensor(), whole, "DTensor redistributed")
    assert sharded.sum().full_tensor().item() == whole.sum().item()
    assert Partial


def barriers(rank: int, size: int) -> None:
    begun = time.monotonic()
    if rank == size - 1:
        time.sleep(0.5)
    dist.barrier()
    assert rank == size - 1 or time.monotonic() - begun > 0.4
    impi_torch.monitored_barrier()
    impi_torch.monitored_barrier(timeout=30.0, wait_all_ranks=True)


def two_threads(rank: int, size: int) -> None:
    """Operations of two groups from two threads (DataLoader threads, checkpointing) do not lock each other up."""
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    failures = []

    def work(group: Any, salt: int) -> None:
        shuffle = random.Random(salt)
        try:
            for _ in range(50):
                total = torch.full((shuffle.choice([1, 100, 50_000]),), float(rank))
                dist.all_reduce(total, group=group)
                assert (total == sum(range(size))).all()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(group, salt)) for salt, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def aborted(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    if size > 1 and rank == 0:
        work = dist.all_reduce(torch.ones(5), group=group, async_op=True)  # nobody else comes
        group.abort()
        refused(work.wait, "aborted")
    elif size > 1:
        group.abort()
    refused(lambda: dist.barrier(group=group), "aborted") if size > 1 else None


if __name__ == "__main__":
    main(
        point_to_point,
        tags_and_any_source,
        batches,
        wrong_length,
        subgroups,
        many_groups,
        meshes,
        tensors_over_a_mesh,
        barriers,
        two_threads,
        aborted,
    )
