"""Training over impi against training over Gloo: same seeds, same data, then the parameters are compared.

Two ranks must agree to the bit (a + b has one result). More ranks add in another order than Gloo's ring, so single
precision may differ in the last bits; the bound is in `agree`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from common import main
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

Parameters = Mapping[str, torch.Tensor]


class Net(nn.Module):
    """A little of everything: convolution, norm, embedding, linear layers, a branch that is not always used."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.conv = nn.Conv1d(8, 16, 3, padding=1)
        self.norm = nn.LayerNorm(16)
        self.body = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.GELU())))
        self.side = nn.Linear(16, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor, side: bool = False) -> torch.Tensor:
        h = self.conv(self.embed(x).transpose(1, 2)).transpose(1, 2)
        h = self.body(self.norm(h))
        if side:
            h = h + self.side(h)
        return self.head(h.mean(1))


def seeded(make: Callable[[], nn.Module] = Net, seed: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def batch(rank: int, step: int, count: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    maker = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, 50, (count, 12), generator=maker), torch.randint(0, 10, (count,), generator=maker)


def agree(ours: Parameters, theirs: Parameters, size: int, what: object) -> None:
    """To the bit for one and two ranks, else within 1e-5 of the largest value after the few steps made here."""
    for (name, a), (_, b) in zip(ours.items(), theirs.items()):
        if size <= 2:
            assert torch.equal(a, b), (what, name, (a - b).abs().max())
        else:
            assert (a - b).abs().max() <= 1e-5 * max(1.0, b.abs().max().item()), (what, name, (a - b).abs().max())
    flat = torch.cat([t.reshape(-1).float() for t in ours.values()])
    first = flat.clone()
    dist.broadcast(first, 0)
    assert torch.equal(first, flat), (what, "ranks have different parameters")


def train(
    group: Any,
    rank: int,
    steps: int = 4,
    side: Callable[[int], bool] = lambda step: True,
    accumulate: int = 1,
    words: Mapping[str, Any] | None = None,
    optim: Callable[..., Any] = torch.optim.SGD,
    hook: Any = None,
    seed: int = 7,
) -> Parameters:
    model = DDP(seeded(seed=seed), process_group=group, bucket_cap_mb=0.002, **(words or {}))
    if hook is not None:
        model.register_comm_hook(group, hook)
    optimizer = optim(model.parameters(), lr=0.05)
    for step in range(steps):
        for part in range(accumulate):
            quiet = model.no_sync() if part + 1 < accumulate else contextlib.nullcontext()
            with quiet:
                x, y = batch(rank, step * 10 + part)
                nn.functional.cross_entropy(model(x, side(step)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    state: Parameters = model.module.state_dict()
    return state


def both(size: int) -> tuple[Any, Any]:
    """An impi group and a Gloo group over all ranks."""
    return dist.group.WORLD, dist.new_group(list(range(size)), backend="gloo")


def ddp(rank: int, size: int) -> None:
    impi, gloo = both(size)
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    unused = {"find_unused_parameters": True}
    cases = {
        "plain": {},
        "adam": {"optim": torch.optim.AdamW},
        "accumulation": {"accumulate": 3},
        "unused parameters": {"side": lambda step: step % 2 == 0, "words": unused},
        "unused on one rank": {"side": lambda step: (step + rank) % 2 == 0, "words": unused},
        "static graph": {"words": {"static_graph": True}},
        "bucket views": {"words": {"gradient_as_bucket_view": True}},
        "own start on every rank": {"seed": 7 + rank},
        "hook allreduce": {"hook": default_hooks.allreduce_hook},
    }
    for name, words in cases.items():
        agree(train(impi, rank, **words), train(gloo, rank, **words), size, name)


def narrow_hooks(rank: int, size: int) -> None:
    """Gradients sent as 16-bit numbers: ours are rounded once, Gloo's at every hop, so only nearness is asked."""
    impi, gloo = both(size)
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    hook = default_hooks.fp16_compress_hook  # (torch refuses its bfloat16 hook without a GPU)
    ours, theirs = train(impi, rank, hook=hook), train(gloo, rank, hook=hook)
    for name in ours:
        assert (ours[name] - theirs[name]).abs().max() < 2e-2, name


def waiting_hooks(rank: int, size: int) -> None:
    """Hooks that wait for other operations in what hangs on a future (torch 2.13's batched PowerSGD refuses its own
    matrices, over Gloo too)."""
    impi, gloo = both(size)
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel as Parallel

    ended = []
    for group in (impi, gloo):
        for hook, state in (
            (powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(group, 1, start_powerSGD_iter=2)),
            (post_localSGD_hook.post_localSGD_hook, post_localSGD_hook.PostLocalSGDState(group, group, 2)),
        ):
            model = Parallel(seeded(), process_group=group)
            model.register_comm_hook(state, hook)
            for step in range(5):
                x, y = batch(rank, step)
                nn.functional.cross_entropy(model(x, True), y).backward()
            ended.append({name: value.grad for name, value in model.named_parameters()})
    for ours, theirs in zip(ended[:2], ended[2:]):
        for name, grad in ours.items():
            assert torch.allclose(grad, theirs[name], atol=1e-4), (name, (grad - theirs[name]).abs().max())


def uneven_inputs(rank: int, size: int) -> None:
    """Ranks with more batches than others, with the Join context."""
    from torch.distributed.algorithms.join import Join

    impi, gloo = both(size)
    ended = []
    for group in (impi, gloo):
        model = DDP(seeded(), process_group=group, bucket_cap_mb=0.002)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with Join([model]):
            for step in range(2 + rank):
                x, y = batch(rank, step)
                nn.functional.cross_entropy(model(x, True), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        ended.append(model.module.state_dict())
    agree(ended[0], ended[1], size, "uneven inputs")


def batch_norm(rank: int, size: int) -> None:
    """Buffers are broadcast from rank 0 before each forward pass."""
    impi, gloo = both(size)
    ended = []
    for group in (impi, gloo):
        torch.manual_seed(3)
        model = DDP(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + rank))
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        for buffer in model.module.buffers():
            dist.broadcast(buffer, 0, group=group)
        ended.append(model.module.state_dict())
    agree(ended[0], ended[1], size, "batch norm")


def post_local(rank: int, size: int) -> None:
    """ZeroRedundancyOptimizer: broadcasts of shards."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    impi, gloo = both(size)
    ended = []
    for group in (impi, gloo):
        model = DDP(seeded(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, process_group=group, lr=0.01)
        for step in range(3):
            x, y = batch(rank, step)
            nn.functional.cross_entropy(model(x, True), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        ended.append(model.module.state_dict())
    agree(ended[0], ended[1], size, "zero")


def fsdp(rank: int, size: int) -> None:
    """Fully sharded, the older API: gathers into parts of flat tensors, scattered reductions."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    impi, gloo = both(size)
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        for mixed in (None, MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)):
            ended = []
            for group in (impi, gloo):
                model = FSDP(
                    seeded(),
                    process_group=group,
                    sharding_strategy=strategy,
                    mixed_precision=mixed,
                    auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
                    device_id=torch.device("cpu"),
                    use_orig_params=True,
                )
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
                for step in range(3):
                    x, y = batch(rank, step)
                    nn.functional.cross_entropy(model(x, True), y).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                with FSDP.summon_full_params(model):
                    ended.append({n: p.detach().clone() for n, p in model.named_parameters()})
            agree(ended[0], ended[1], size, (strategy, mixed))


def gloo_averages(size: int) -> bool:
    """Whether this torch's Gloo heeds AVG in scattered reductions; in torch 2.8 it gives the sum."""
    out = torch.empty(1)
    dist.reduce_scatter_tensor(out, torch.ones(size), dist.ReduceOp.AVG, group=dist.new_group(backend="gloo"))
    return bool(out.item() == 1)


def fsdp2(rank: int, size: int) -> None:
    """Fully sharded over a mesh, also replicated across half of the ranks, against plain averages, and Gloo."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if not hasattr(torch.cpu.Stream, "record_event"):
        return  # torch 2.6: its FSDP2 records events on streams, which its CPUs do not have, whatever the backend

    def steps(model: nn.Module, between: Callable[[], None] = lambda: None) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(3):
            x, y = batch(rank, step)
            nn.functional.cross_entropy(model(x, True), y).backward()
            between()
            optimizer.step()
            optimizer.zero_grad()

    plain = seeded()

    def average() -> None:
        for parameter in plain.parameters():
            every = [torch.empty_like(parameter) for _ in range(size)]
            dist.all_gather(every, parameter.grad)
            parameter.grad = sum(every) / size

    steps(plain, average)
    expected = {n: p.detach() for n, p in plain.named_parameters()}
    backends = ("impi", "gloo") if gloo_averages(size) else ("impi",)
    shapes: list[tuple[torch.Tensor, tuple[str, ...]]] = [(torch.arange(size), ("shard",))]
    if size % 2 == 0 and size > 2:
        shapes.append((torch.arange(size).view(2, -1), ("replicate", "shard")))
    for ranks, names in shapes:
        for narrow in (False, True):
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if narrow else MixedPrecisionPolicy()
            ended = []
            for backend in backends:
                mesh = mesh_of(DeviceMesh, ranks, names, backend)
                model = seeded()
                for layer in model.body:
                    if isinstance(layer, nn.Linear):
                        fully_shard(layer, mesh=mesh, mp_policy=policy)
                fully_shard(model, mesh=mesh, mp_policy=policy)
                steps(model)
                ended.append({n: p.full_tensor().detach().clone() for n, p in model.named_parameters()})
            agree(ended[0], ended[-1], size, (names, "gloo", narrow))
            if not narrow:
                agree(ended[0], expected, size, (names, "averages"))


def mesh_of(mesh_class: Any, ranks: Any, names: tuple[str, ...], backend: str) -> Any:
    """A mesh over groups of the given backend."""
    size = ranks.numel()
    if ranks.dim() == 1:
        return mesh_class.from_group(dist.new_group(list(range(size)), backend=backend), "cpu", mesh_dim_names=names)
    columns = [dist.new_group(row.tolist(), backend=backend) for row in ranks.t()]
    rows = [dist.new_group(row.tolist(), backend=backend) for row in ranks]
    mine = [next(g for g in groups if g != dist.GroupMember.NON_GROUP_MEMBER) for groups in (columns, rows)]
    return mesh_class.from_group(mine, "cpu", mesh=ranks, mesh_dim_names=names)


def tensor_parallel(rank: int, size: int) -> None:
    """DTensor: a column-wise and a row-wise layer over a mesh of all ranks, against the layers in one piece."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16 * size), nn.ReLU(), nn.Linear(16 * size, 8))
    x = torch.randn(4, 8)
    want = model(x)
    parallelize_module(model, init_device_mesh("cpu", (size,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    got = model(x)
    assert torch.allclose(got, want, atol=1e-5), (got - want).abs().max()
    got.sum().backward()


def checkpoints(rank: int, size: int) -> None:
    """torch.distributed.checkpoint gathers its plans as objects over the group."""
    import shutil
    import tempfile

    import torch.distributed.checkpoint as dcp

    box: list[Any] = [tempfile.mkdtemp(prefix="impi-dcp-") if rank == 0 else None]
    dist.broadcast_object_list(box, 0)
    model = seeded()
    want = {n: t.clone() for n, t in model.state_dict().items()}
    dcp.save({"model": model.state_dict()}, checkpoint_id=box[0])
    other = seeded(seed=8)
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=box[0])
    for name, tensor in state["model"].items():
        assert torch.equal(tensor, want[name]), name
    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])


if __name__ == "__main__":
    main(
        ddp,
        narrow_hooks,
        waiting_hooks,
        uneven_inputs,
        batch_norm,
        post_local,
        fsdp,
        fsdp2,
        tensor_parallel,
        checkpoints,
    )
