"""What the scripts of the ranks share: the group, numbers that every rank can calculate for every other, and checks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
SHORT = [
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
]
EVERY = [*FLOATS, *INTEGERS, *UNSIGNED, *COMPLEX, torch.bool, torch.complex32, *SHORT]
SHAPES = [(), (1,), (7,), (3, 5), (0,), (2, 0, 3), (4099,), (33, 1031)]


def init(backend: str = "impi", seconds: float = 120.0) -> tuple[int, int]:
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method="mpi://", timeout=timedelta(seconds=seconds))
    return dist.get_rank(), dist.get_world_size()


def numbers(rank: int, shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0, small: bool = False) -> torch.Tensor:
    """Rank `rank`'s numbers: whole and so small that sums and products are exact in every order and every dtype."""
    maker = torch.Generator().manual_seed(1000 * salt + rank)
    low, high = (1, 3) if small else (0, 5)
    whole = torch.randint(low, high, shape, generator=maker)
    if dtype == torch.bool:
        return whole > (low + high - 1) // 2
    if dtype.is_complex:
        other = torch.randint(low, high, shape, generator=maker)
        return torch.complex(whole.double(), other.double()).to(dtype)
    if dtype == getattr(torch, "float8_e8m0fnu", None):
        return torch.pow(2.0, whole % 2).to(dtype)  # powers of two are all it has
    return whole.to(dtype)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1)).view(torch.uint8)


def same(got: torch.Tensor, want: torch.Tensor, what: object) -> None:
    """Equal to the bit (zeros of either sign are equal)."""
    assert got.shape == want.shape, (what, got.shape, want.shape)
    assert got.dtype == want.dtype, (what, got.dtype, want.dtype)
    if not torch.equal(raw(got), raw(want)):
        exact = torch.complex128 if got.dtype.is_complex else torch.float64
        assert torch.equal(got.to(exact), want.to(exact)), (what, got, want)


def spread(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """The same numbers, laid out otherwise: every second element of a longer row, or columns first."""
    if kind == "strided":
        wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
        wide[..., 0] = tensor
        return wide[..., 0]
    if kind == "columns" and tensor.dim() == 2:
        return tensor.t().contiguous().t()
    return tensor.clone()


def refused(call: Callable[[], object], *words: str) -> None:
    """`call` raises an error that has all `words` in it."""
    said = None
    try:
        call()
    except Exception as error:
        said = str(error)
    assert said is not None, f"not refused: {words}"
    assert all(word in said for word in words), (words, said)


def main(*cases: Callable[[int, int], None]) -> None:
    """Run the cases, all or those named on the command line, and end the group."""
    rank, size = init()
    chosen = sys.argv[1:]
    for case in cases:
        if not chosen or case.__name__ in chosen:
            case(rank, size)
            dist.barrier()
            if rank == 0 and "IMPI_TEST_QUIET" not in os.environ:
                print("ok", case.__name__, flush=True)
    dist.destroy_process_group()
