"""The collectives: generators over non-blocking MPI calls, each yielding the test of what it waits for.

Contiguous tensors are handed to MPI where they lie. Long ones go in pieces of about a megabyte: MPI's own way with long
in-place buffers allocates a second one and pays for every fresh page of it (README, "Measured").
"""

from __future__ import annotations

import functools
import os
import zlib
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

import torch

from ._launch import ImpiError, mpi

Operation = Generator[Callable[[], bool], None, None]


@dataclass(frozen=True)
class Sizes:
    """Where ways of working change, in bytes."""

    piece: int = 1 << 20  # a long reduction is cut into pieces of this
    window: int = 1  # pieces in flight
    narrow: int = 1 << 16  # 16-bit tensors up to this are reduced as float32; longer ones by exchanging shares
    lists: int = 1 << 16  # lists of tensors up to this (each) travel through one packed buffer
    message: int = 1 << 30  # no single MPI message is longer (counts are C ints)

    @classmethod
    def of(cls, env: os._Environ[str] | dict[str, str]) -> Sizes:
        """The sizes in IMPI_TORCH_PIECE, _WINDOW, _NARROW, _LISTS and _MESSAGE. They must be equal on all ranks."""
        given = {
            name: int(env[key]) for name in cls.__dataclass_fields__ if (key := f"IMPI_TORCH_{name.upper()}") in env
        }
        return cls(**given)


class Channel:
    """A communicator with what operations on it share. Collectives of one group run one after the other."""

    def __init__(self, comm: Any, sizes: Sizes) -> None:
        self.comm, self.sizes = comm, sizes
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.MPI = mpi()
        self.memory = self.MPI.memory.fromaddress
        self.tag = min(self.MPI.COMM_WORLD.Get_attr(self.MPI.TAG_UB), 2**30)  # ours; those below are the user's
        self._scratch: dict[str, torch.Tensor] = {}
        self._reductions: dict[tuple[int, torch.dtype], Reduction] = {}
        self._words: dict[tuple[int, torch.dtype], tuple[Any, Any]] = {}
        self._short: dict[tuple[int, torch.dtype], tuple[Reduction, Any, Any] | None] = {}

    def reduction(self, op: int, dtype: torch.dtype, factor: Any = None) -> Reduction:
        """What `op` is on `dtype`; remembered, since it is asked at every call."""
        how = self._reductions.get((op, dtype))
        if how is None or factor is not None:
            how = Reduction(op, dtype, factor)
            if factor is None:
                self._reductions[op, dtype] = how
        return how

    def words(self, how: Reduction) -> tuple[Any, Any]:
        """MPI's datatype and operation for a reduction that MPI can do."""
        key = (how.op, how.dtype)
        found = self._words.get(key)
        if found is None:
            found = self._words[key] = (getattr(self.MPI, str(how.native)), how.mpi_op(self.MPI))
        return found

    def short(self, op: int, dtype: torch.dtype) -> tuple[Reduction, Any, Any] | None:
        """The same with the reduction itself; None where MPI cannot do it."""
        key = (op, dtype)
        if key not in self._short:
            how = self.reduction(op, dtype)
            self._short[key] = None if how.wide is not None else (how, *self.words(how))
        return self._short[key]

    def bytes_of(self, tensor: torch.Tensor) -> Any:
        return self.memory(tensor.data_ptr(), tensor.numel() * tensor.element_size())

    def scratch(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A buffer that stays: fresh pages cost more than what is done with them."""
        count = 1
        for side in shape:
            count *= side
        need = count * dtype.itemsize
        kept = self._scratch.get(name)
        if kept is None or kept.numel() < need:
            kept = torch.empty(need, dtype=torch.uint8)
            if need <= 8 * self.sizes.piece:
                self._scratch[name] = kept
        return kept[:need].view(dtype).view(shape)


# --- reductions ------------------------------------------------------------------------------------------------------

SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL = range(9)
NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
MPI_NAMES = ("SUM", "SUM", "PROD", "MIN", "MAX", "BAND", "BOR", "BXOR", "SUM")
BOOLEAN = {SUM: "BOR", PRODUCT: "BAND", MAX: "BOR", MIN: "BAND", BAND: "BAND", BOR: "BOR", BXOR: "BXOR"}
TYPES = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.int8: "INT8_T",
    torch.int16: "INT16_T",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
    torch.uint8: "UINT8_T",
    torch.uint16: "UINT16_T",
    torch.uint32: "UINT32_T",
    torch.uint64: "UINT64_T",
    torch.complex64: "C_FLOAT_COMPLEX",
    torch.complex128: "C_DOUBLE_COMPLEX",
    torch.bool: "UINT8_T",
}
IN_TORCH: dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    SUM: lambda a, b: a.add_(b),
    AVG: lambda a, b: a.add_(b),
    PREMUL: lambda a, b: a.add_(b),
    PRODUCT: lambda a, b: a.mul_(b),
    MIN: lambda a, b: torch.minimum(a, b, out=a),
    MAX: lambda a, b: torch.maximum(a, b, out=a),
}


@dataclass(frozen=True)
class Reduction:
    """A reduce operation on one dtype: how MPI does it, or that it must be done in a wider type."""

    op: int
    dtype: torch.dtype
    factor: Any = None

    def __post_init__(self) -> None:
        name, dtype = NAMES[self.op], self.dtype
        bits = self.op in (BAND, BOR, BXOR)
        if bits and (dtype.is_floating_point or dtype.is_complex):
            raise ImpiError(f"impi: {name} does not apply to {dtype}")
        if dtype.is_complex and self.op in (MIN, MAX):
            raise ImpiError(f"impi: {name} does not apply to {dtype}: complex numbers have no order")
        if dtype in (torch.bool, torch.uint64) and self.op in (AVG, PREMUL):  # torch cannot divide them
            raise ImpiError(f"impi: {name} does not apply to {dtype}")
        if self.native is None and self.wide is None:
            raise ImpiError(f"impi: {name} cannot be done on {dtype}")

    @functools.cached_property
    def detail(self) -> str:
        """What all ranks must call for alike."""
        return f" ({NAMES[self.op]}, {str(self.dtype).removeprefix('torch.')})"

    @property
    def native(self) -> str | None:
        """The name of MPI's type, or None where MPI cannot calculate in it."""
        return TYPES.get(self.dtype)

    @property
    def wide(self) -> torch.dtype | None:
        """The type to calculate in for types shorter than 32 bits: they are rounded once, at the end."""
        if self.dtype.is_floating_point and self.dtype.itemsize <= 2:
            return torch.float32
        return torch.complex64 if self.dtype == torch.complex32 else None

    def mpi_op(self, MPI: Any) -> Any:
        return getattr(MPI, BOOLEAN[self.op] if self.dtype == torch.bool else MPI_NAMES[self.op])

    def before(self, tensor: torch.Tensor) -> None:
        """What is done to each rank's own values first."""
        if self.op == PREMUL:
            tensor.mul_(self.factor)

    def after(self, tensor: torch.Tensor, ranks: int) -> None:
        """What is done to the sum."""
        if self.op == AVG:
            if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                tensor.div_(ranks)
            else:  # torch divides no unsigned numbers of more than 8 bits
                tensor.copy_(torch.div(tensor.to(torch.int64), ranks, rounding_mode="trunc"))


def pieces(channel: Channel, count: int, itemsize: int, call: Callable[[int, int], Any], limit: int) -> Operation:
    """`call(start, length)` begins an MPI request on elements; long ranges go in pieces of `limit` bytes."""
    step = max(1, limit // itemsize)
    if count * 2 <= step * 3:
        yield call(0, count).Test
        return
    flight: deque[Any] = deque()
    start = 0
    while start < count or flight:
        if start < count and len(flight) < channel.sizes.window:
            length = min(step, count - start)
            flight.append(call(start, length))
            start += length
        else:
            yield flight[0].Test
            flight.popleft()


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself when its elements lie in order, else a copy that does."""
    return tensor.contiguous() if tensor.layout == torch.strided else tensor


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Where the memory of a contiguous tensor begins and ends."""
    begin = tensor.data_ptr()
    return begin, begin + tensor.numel() * tensor.element_size()


def apart(source: torch.Tensor, targets: Sequence[torch.Tensor]) -> torch.Tensor:
    """A contiguous tensor, or a copy of it where one of `targets`, which are written meanwhile, shares its memory."""
    begin, end = extent(source)
    shared = any(begin < stop and start < end for start, stop in map(extent, targets))
    return source.clone() if shared else source


def allreduce(channel: Channel, tensor: torch.Tensor, how: Reduction) -> Operation:
    """Every rank gets the reduction of all ranks' tensors, in place; the same bits on every rank."""
    if tensor.layout != torch.strided:
        yield from sparse_allreduce(channel, tensor, how)
        return
    count = tensor.numel()
    if count == 0:
        return
    data = dense(tensor)
    if how.wide is not None:
        yield from narrow_allreduce(channel, data.view(-1), how, how.wide)
    else:
        how.before(data)
        MPI, comm, memory = channel.MPI, channel.comm, channel.memory
        kind, op = channel.words(how)
        start, size = data.data_ptr(), data.element_size()

        def call(at: int, length: int) -> Any:
            return comm.Iallreduce(MPI.IN_PLACE, [memory(start + at * size, length * size), length, kind], op)

        yield from pieces(channel, count, size, call, channel.sizes.piece)
        how.after(data, channel.size)
    if data is not tensor:
        tensor.copy_(data)


def going_on(channel: Channel, request: Any, tensor: torch.Tensor, how: Reduction) -> Operation:
    """What is left of an all-reduce whose request has begun."""
    yield request.Test
    how.after(tensor, channel.size)


def narrow_allreduce(channel: Channel, data: torch.Tensor, how: Reduction, wide: torch.dtype) -> Operation:
    """A reduction of 16- or 8-bit numbers, calculated wide and rounded once.

    Short ones are converted. Of long ones each rank gets everybody's numbers for its share, reduces them wide and hands
    the rounded share to all: as few bytes on the wire as the short type allows.
    """
    ranks, size = channel.size, data.element_size()
    if data.numel() * size <= channel.sizes.narrow or ranks == 1:
        yield from widened_allreduce(channel, data, how, wide)
        return
    MPI, comm = channel.MPI, channel.comm
    step = max(1, channel.sizes.piece // size // ranks)
    at, count = 0, data.numel()
    while count - at >= ranks:
        share = min(step, (count - at) // ranks)
        piece = data[at : at + share * ranks]
        theirs = channel.scratch("theirs", (ranks, share), data.dtype)
        result = channel.scratch("result", (share,), data.dtype)
        nbytes = share * size
        yield comm.Ialltoall(
            [channel.bytes_of(piece), nbytes, MPI.BYTE], [channel.bytes_of(theirs), nbytes, MPI.BYTE]
        ).Test
        narrow_sum(channel, theirs, result, how, wide)
        yield comm.Iallgather(
            [channel.bytes_of(result), nbytes, MPI.BYTE], [channel.bytes_of(piece), nbytes, MPI.BYTE]
        ).Test
        at += share * ranks
    if at < count:
        yield from widened_allreduce(channel, data[at:], how, wide)


def narrow_sum(channel: Channel, theirs: torch.Tensor, result: torch.Tensor, how: Reduction, wide: torch.dtype) -> None:
    """Reduce the rows of `theirs` in the type `wide` into `result`, rounding once."""
    total = channel.scratch("total", result.shape, wide)
    total.copy_(theirs[0])
    how.before(total)
    plain = theirs.dtype in (torch.bfloat16, torch.float16) and how.op != PREMUL
    for row in theirs[1:]:
        if not plain:
            row = row.to(wide)
            how.before(row)
        IN_TORCH[how.op](total, row)
    how.after(total, channel.size)
    result.copy_(total)


def widened_allreduce(channel: Channel, data: torch.Tensor, how: Reduction, wide: torch.dtype) -> Operation:
    total = data.to(wide)
    yield from allreduce(channel, total, channel.reduction(how.op, wide, how.factor))
    data.copy_(total)


def sparse_allreduce(channel: Channel, tensor: torch.Tensor, how: Reduction) -> Operation:
    """The sum of sparse COO tensors, as Gloo does it: everybody gathers everybody's entries."""
    if tensor.layout != torch.sparse_coo or how.op not in (SUM, AVG, PREMUL):
        raise ImpiError(f"impi: {NAMES[how.op]} does not apply to {tensor.layout} tensors")
    own = tensor.coalesce()
    MPI, comm = channel.MPI, channel.comm
    # Indices of a larger tensor would be written to behind the end of this one.
    kind = zlib.crc32(f"{own.dtype} {own.sparse_dim()} {[*own.shape]}".encode())
    mine, heads = torch.tensor([own._nnz(), kind]), torch.empty(channel.size, 2, dtype=torch.int64)
    yield comm.Iallgather([channel.bytes_of(mine), 16, MPI.BYTE], [channel.bytes_of(heads), 16, MPI.BYTE]).Test
    if not bool((heads[:, 1] == kind).all()):
        raise ImpiError("impi: allreduce: the sparse tensors of the ranks differ in their shapes or types")
    counts = heads[:, 0].tolist()
    indices, values = own.indices().contiguous(), own.values().contiguous()
    all_indices = [indices.new_empty((indices.shape[0], n)) for n in counts]
    all_values = [values.new_empty((n, *values.shape[1:])) for n in counts]
    yield from exchange(channel, [indices] * channel.size, all_indices)
    yield from exchange(channel, [values] * channel.size, all_values)
    for part in all_values:
        how.before(part)
    wide = how.wide or values.dtype
    total = torch.sparse_coo_tensor(torch.cat(all_indices, 1), torch.cat(all_values).to(wide), tensor.shape).coalesce()
    how.after(total.values(), channel.size)
    tensor.copy_(total.to(tensor.dtype))


def reduce(channel: Channel, tensor: torch.Tensor, root: int, how: Reduction) -> Operation:
    """The root's tensor becomes the reduction; the others' stay as they are."""
    if tensor.numel() == 0:
        return
    data = dense(tensor)
    at_root = channel.rank == root
    if how.wide is not None:
        data = data.to(how.wide)
    elif how.op == PREMUL and not at_root:
        data = data.clone()
    calc = channel.reduction(how.op, data.dtype, how.factor)
    calc.before(data)
    MPI, comm, memory = channel.MPI, channel.comm, channel.memory
    kind, op = channel.words(calc)
    start, size = data.data_ptr(), data.element_size()

    def call(at: int, length: int) -> Any:
        part = [memory(start + at * size, length * size), length, kind]
        return comm.Ireduce(MPI.IN_PLACE if at_root else part, part if at_root else None, op, root)

    yield from pieces(channel, data.numel(), size, call, channel.sizes.piece)
    if at_root:
        calc.after(data, channel.size)
        if data is not tensor:
            tensor.copy_(data)


def reduce_scatter(channel: Channel, output: torch.Tensor, source: torch.Tensor, how: Reduction) -> Operation:
    """`output` becomes this rank's share of the reduction of `source`, which is as long as all shares."""
    ranks, share = channel.size, output.numel()
    if source.numel() != share * ranks:
        raise ImpiError(f"impi: reduce_scatter: the input has {source.numel()} elements, not {ranks} × {share}")
    if share == 0:
        return
    result = output if output.is_contiguous() else output.new_empty(output.shape)
    rows = dense(source).view(ranks, share)
    target = result.view(-1)
    size = rows.element_size()
    step = max(1, channel.sizes.piece // size // ranks)
    MPI, comm = channel.MPI, channel.comm
    copies = share * 2 > step * 3 or how.op == PREMUL
    if not copies or target.data_ptr() != rows[channel.rank].data_ptr():  # piece by piece it may lie in its own place
        rows = apart(rows, [target])
    at = 0
    while at < share:
        length = min(step, share - at) if copies else share
        part = rows
        if copies:
            part = channel.scratch("rows", (ranks, length), rows.dtype)
            part.copy_(rows[:, at : at + length])
        into = target[at : at + length]
        if how.wide is not None:
            theirs = channel.scratch("theirs", (ranks, length), rows.dtype)
            yield comm.Ialltoall(
                [channel.bytes_of(part), length * size, MPI.BYTE], [channel.bytes_of(theirs), length * size, MPI.BYTE]
            ).Test
            narrow_sum(channel, theirs, into, how, how.wide)
        else:
            how.before(part)
            kind, op = channel.words(how)
            yield comm.Ireduce_scatter_block(
                [channel.bytes_of(part), length, kind], [channel.bytes_of(into), length, kind], op
            ).Test
            how.after(into, ranks)
        at += length
    if result is not output:
        output.copy_(result)


def reduce_scatter_list(
    channel: Channel, output: torch.Tensor, parts: Sequence[torch.Tensor], how: Reduction
) -> Operation:
    """`output` becomes the reduction of all ranks' `parts[rank]`; the parts may differ in length."""
    if all(part.numel() == output.numel() for part in parts):
        yield from reduce_scatter(channel, output, torch.cat([part.reshape(-1) for part in parts]), how)
        return
    for root, part in enumerate(parts):  # one reduction each
        data = part.clone(memory_format=torch.contiguous_format)
        yield from reduce(channel, data, root, how)
        if root == channel.rank:
            output.copy_(data.view(output.shape))


# --- moving data -----------------------------------------------------------------------------------------------------


def messages(channel: Channel, tensor: torch.Tensor, call: Callable[..., Any], **words: Any) -> list[Any]:
    """Begin to send or receive a contiguous tensor, in as many messages as its length needs."""
    start, left, most = tensor.data_ptr(), tensor.numel() * tensor.element_size(), channel.sizes.message
    requests = []
    while True:
        length = min(left, most)
        requests.append(call([channel.memory(start, length), length, channel.MPI.BYTE], **words))
        start, left = start + length, left - length
        if not left:
            return requests


def exchange(
    channel: Channel, sources: Sequence[torch.Tensor | None], targets: Sequence[torch.Tensor | None]
) -> Operation:
    """Send `sources[r]` to rank r and receive `targets[r]` from it, for every r that is not None. Any lengths."""
    comm, tag, own = channel.comm, channel.tag, channel.rank
    requests: list[Any] = []
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    own_stays = targets[own] is not None and is_same(targets[own], sources[own])
    written = [t for r, t in enumerate(targets) if t is not None and t.is_contiguous() and not (own_stays and r == own)]
    sent = {id(source): apart(dense(source), written) for source in sources if source is not None}
    for step in range(1, channel.size):  # everybody begins with another peer
        peer = (own - step) % channel.size
        target = targets[peer]
        if target is not None and target.numel():
            into = target if target.is_contiguous() else target.new_empty(target.shape)
            if into is not target:
                copies.append((target, into))
            requests += messages(channel, into, comm.Irecv, source=peer, tag=tag)
        peer = (own + step) % channel.size
        source = sources[peer]
        if source is not None and source.numel():
            requests += messages(channel, sent[id(source)], comm.Isend, dest=peer, tag=tag)
    if targets[own] is not None and sources[own] is not None:
        _copy(targets[own], sent[id(sources[own])])
    if requests:
        yield partial(channel.MPI.Request.Testall, requests)
    for target, into in copies:
        target.copy_(into)


def is_same(target: torch.Tensor, source: torch.Tensor | None) -> bool:
    """Whether both are the same memory, laid out alike."""
    return source is not None and target.data_ptr() == source.data_ptr() and target.stride() == source.stride()


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    if not is_same(target, source):
        target.copy_(source.reshape(target.shape))


def broadcast(channel: Channel, tensor: torch.Tensor, root: int) -> Operation:
    if tensor.layout != torch.strided:
        raise ImpiError(f"impi: broadcast does not apply to {tensor.layout} tensors")
    if tensor.numel() == 0:
        return
    data = dense(tensor)
    MPI, comm, memory = channel.MPI, channel.comm, channel.memory
    start = data.data_ptr()

    def call(at: int, length: int) -> Any:
        return comm.Ibcast([memory(start + at, length), length, MPI.BYTE], root)

    yield from pieces(channel, data.numel() * data.element_size(), 1, call, channel.sizes.piece)
    if data is not tensor and channel.rank != root:
        tensor.copy_(data)


def allgather_into(channel: Channel, output: torch.Tensor, source: torch.Tensor) -> Operation:
    """`output` becomes all ranks' tensors one after the other. `source` may lie in `output`, in its place."""
    ranks, count = channel.size, source.numel()
    if output.numel() != ranks * count:
        raise ImpiError(f"impi: allgather: the output has {output.numel()} elements, which is not {ranks} × {count}")
    if output.dtype != source.dtype:
        raise ImpiError(f"impi: allgather: the output is {output.dtype} and the input {source.dtype}")
    if count == 0:
        return
    result = output if output.is_contiguous() else output.new_empty(output.shape)
    data = dense(source)
    MPI, comm = channel.MPI, channel.comm
    nbytes = count * data.element_size()
    begin = result.data_ptr()
    in_place = data.data_ptr() == begin + channel.rank * nbytes
    if not in_place:
        data = apart(data, [result])
    if nbytes * ranks > channel.sizes.message:
        yield from exchange(channel, [data] * ranks, list(result.view(ranks, count).unbind()))
    else:
        sendbuf = MPI.IN_PLACE if in_place else [channel.bytes_of(data), nbytes, MPI.BYTE]
        yield comm.Iallgather(sendbuf, [channel.bytes_of(result), nbytes, MPI.BYTE]).Test
    if result is not output:
        output.copy_(result)


def packed(channel: Channel, tensors: Sequence[torch.Tensor], name: str) -> torch.Tensor:
    """A buffer with room for equally long tensors, one a row."""
    return channel.scratch(name, (len(tensors), tensors[0].numel()), tensors[0].dtype)


def equally_long(tensors: Sequence[torch.Tensor], limit: int) -> bool:
    count = tensors[0].numel()
    return 0 < count * tensors[0].element_size() <= limit and all(
        t.numel() == count and t.dtype == tensors[0].dtype for t in tensors
    )


def allgather(channel: Channel, outputs: Sequence[torch.Tensor], source: torch.Tensor) -> Operation:
    """`outputs[r]` becomes rank r's tensor; lengths may differ between ranks."""
    if equally_long(outputs, channel.sizes.lists):
        rows = packed(channel, outputs, "rows")
        yield from allgather_into(channel, rows, source)
        for output, row in zip(outputs, rows):
            output.copy_(row.view(output.shape))
    else:
        yield from exchange(channel, [dense(source)] * channel.size, outputs)


def gather(channel: Channel, outputs: Sequence[torch.Tensor], source: torch.Tensor, root: int) -> Operation:
    """The root's `outputs[r]` becomes rank r's tensor; lengths are equal."""
    at_root = channel.rank == root
    data = dense(source)
    nbytes = data.numel() * data.element_size()
    if nbytes > channel.sizes.lists or nbytes == 0:
        nothing: list[torch.Tensor | None] = [None] * channel.size
        yield from exchange(
            channel, [data if r == root else None for r in range(channel.size)], list(outputs) if at_root else nothing
        )
        return
    MPI, comm = channel.MPI, channel.comm
    rows = packed(channel, outputs, "rows") if at_root else None
    into = [channel.bytes_of(rows), nbytes, MPI.BYTE] if rows is not None else None
    yield comm.Igather([channel.bytes_of(data), nbytes, MPI.BYTE], into, root).Test
    if rows is not None:
        for output, row in zip(outputs, rows):
            output.copy_(row.view(output.shape))


def scatter(channel: Channel, output: torch.Tensor, sources: Sequence[torch.Tensor], root: int) -> Operation:
    """Rank r's `output` becomes the root's `sources[r]`; lengths are equal."""
    at_root = channel.rank == root
    nbytes = output.numel() * output.element_size()
    if nbytes > channel.sizes.lists or nbytes == 0:
        targets = [output if r == root else None for r in range(channel.size)]
        nothing: list[torch.Tensor | None] = [None] * channel.size
        yield from exchange(channel, list(sources) if at_root else nothing, targets)
        return
    MPI, comm = channel.MPI, channel.comm
    rows = None
    if at_root:
        rows = packed(channel, sources, "rows")
        for source, row in zip(sources, rows):
            row.copy_(source.reshape(-1))
    into = output if output.is_contiguous() else output.new_empty(output.shape)
    yield comm.Iscatter(
        [channel.bytes_of(rows), nbytes, MPI.BYTE] if rows is not None else None,
        [channel.bytes_of(into), nbytes, MPI.BYTE],
        root,
    ).Test
    if into is not output:
        output.copy_(into)


def alltoall_into(
    channel: Channel,
    output: torch.Tensor,
    source: torch.Tensor,
    output_splits: Sequence[int],
    input_splits: Sequence[int],
) -> Operation:
    """Rows of `source` go to the ranks in order, rows of `output` come from them; empty splits are equal ones."""
    ranks = channel.size
    result = output if output.is_contiguous() else output.new_empty(output.shape)
    data = apart(dense(source), [result])
    nbytes = data.numel() * data.element_size()
    if not output_splits and not input_splits:
        for what, tensor in (("input", data), ("output", result)):
            if tensor.dim() == 0 or tensor.shape[0] % ranks:
                raise ImpiError(
                    f"impi: alltoall: the first side of the {what} {tuple(tensor.shape)} is not a multiple "
                    f"of the group's size {ranks}"
                )
        if nbytes and nbytes <= channel.sizes.message:
            MPI = channel.MPI
            yield channel.comm.Ialltoall(
                [channel.bytes_of(data), nbytes // ranks, MPI.BYTE],
                [channel.bytes_of(result), nbytes // ranks, MPI.BYTE],
            ).Test
            if result is not output:
                output.copy_(result)
            return
    for what, splits, tensor in (("input", input_splits, data), ("output", output_splits, result)):
        if splits and (len(splits) != ranks or sum(splits) != tensor.shape[0]):
            raise ImpiError(
                f"impi: alltoall: the {what} splits {list(splits)} do not cut {tensor.shape[0]} rows for {ranks} ranks"
            )
    cuts = [
        list(splits) or [tensor.shape[0] // ranks] * ranks
        for splits, tensor in ((input_splits, data), (output_splits, result))
    ]
    yield from exchange(channel, list(data.split(cuts[0])), list(result.split(cuts[1])))
    if result is not output:
        output.copy_(result)


def send(channel: Channel, tensor: torch.Tensor, to: int, tag: int) -> Operation:
    data = dense(tensor)
    yield partial(channel.MPI.Request.Testall, messages(channel, data, channel.comm.Issend, dest=to, tag=tag))


def receive(channel: Channel, tensor: torch.Tensor, sender: int, tag: int, note: Callable[[int], object]) -> Operation:
    """Receive from rank `sender`, or where that is -1 from whoever sends with this tag first; `note` is told who."""
    MPI, comm, memory = channel.MPI, channel.comm, channel.memory
    into = tensor if tensor.is_contiguous() else tensor.new_empty(tensor.shape)
    start, left, most = into.data_ptr(), into.numel() * into.element_size(), channel.sizes.message
    source = MPI.ANY_SOURCE if sender < 0 else sender
    while True:
        length = min(left, most)
        status = MPI.Status()
        request = comm.Irecv([memory(start, length), length, MPI.BYTE], source, tag)
        yield partial(request.Test, status)
        source = status.Get_source()
        if status.Get_count(MPI.BYTE) != length:
            raise ImpiError(
                f"impi: recv: rank {source} sent {status.Get_count(MPI.BYTE)} bytes where {length} were expected"
            )
        start, left = start + length, left - length
        if not left:
            break
    note(source)
    if into is not tensor:
        tensor.copy_(into)


def barrier(channel: Channel) -> Operation:
    yield channel.comm.Ibarrier().Test


def in_turn(operations: Sequence[Operation]) -> Operation:
    """Several collectives as one operation."""
    for operation in operations:
        yield from operation


def allreduce_coalesced(channel: Channel, tensors: Sequence[torch.Tensor], op: int, factor: Any) -> Operation:
    """Reduce many tensors; short ones of one dtype travel together."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor)
    for dtype, some in by_type.items():
        how = channel.reduction(op, dtype, factor)
        most = channel.sizes.lists
        short = [t for t in some if t.layout == torch.strided and 0 < t.numel() * t.element_size() <= most]
        if len(short) > 1:
            flat = torch.cat([t.reshape(-1) for t in short])
            yield from allreduce(channel, flat, how)
            for tensor, part in zip(short, flat.split([t.numel() for t in short])):
                tensor.copy_(part.view(tensor.shape))
        else:
            short = []
        done = {id(t) for t in short}
        for tensor in some:
            if id(tensor) not in done:
                yield from allreduce(channel, tensor, how)
