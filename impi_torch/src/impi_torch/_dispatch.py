"""How a call reaches an impi group.

`dist.all_reduce` and its like call the group with an options object; such a call is carried out at once. Every other
spelling (keywords, bare values), a tensor that is a class of its own, and any call while somebody watches (a profiler,
a dispatch mode) goes through torch: its binding reads the arguments, as for any backend, and calls the operator
`c10d::…`, which everybody sees. The kernels here stand where that operator goes to for tensors on CPUs: a call on an
impi group is carried out, one on another group goes on to its own backend, as in torch's own kernels.

Before torch 2.10 a kernel in Python cannot read the reduce operation. There the binding reads the arguments of the most
common methods and calls ours again; nobody sees an operator.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import _C
from torch._C import _distributed_c10d as c10d
from torch.autograd import profiler
from torch.distributed import ProcessGroup, ReduceOp

from ._engine import KEEPS_HALF, VERSION, Work

Run = Callable[..., Work]
OPTIONS = {
    "broadcast": c10d.BroadcastOptions,
    "allreduce": c10d.AllreduceOptions,
    "allreduce_coalesced": c10d.AllreduceCoalescedOptions,
    "reduce": c10d.ReduceOptions,
    "allgather": c10d.AllgatherOptions,
    "allgather_coalesced": c10d.AllgatherOptions,
    "allgather_into_tensor_coalesced": c10d.AllgatherOptions,
    "_allgather_base": c10d.AllgatherOptions,
    "gather": c10d.GatherOptions,
    "scatter": c10d.ScatterOptions,
    "reduce_scatter": c10d.ReduceScatterOptions,
    "reduce_scatter_tensor_coalesced": c10d.ReduceScatterOptions,
    "_reduce_scatter_base": c10d.ReduceScatterOptions,
    "alltoall": c10d.AllToAllOptions,
    "alltoall_base": c10d.AllToAllOptions,
    "barrier": c10d.BarrierOptions,
    "send": None,
    "recv": None,
    "recv_anysource": None,
}
NEWER = {
    "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "alltoall_base": "all_to_all_single",
}  # what newer torch calls them; there the older names lead to the newer ones
OPERATORS = {"recv_anysource": "recv_any_source_", "barrier": "barrier", "send": "send"}  # others: the name and "_"
# What an operator's arguments are called in the options objects; all others are arguments of the method.
FIELDS = {
    "reduce_op": "reduceOp",
    "root_rank": "rootRank",
    "root_tensor": "rootTensor",
    "async_op": "asyncOp",
    "asyncOp": "asyncOp",
    "timeout": "timeout",
    "device_ids": "device_ids",
}
PREMUL = ReduceOp.RedOpType.PREMUL_SUM
HAS_KERNELS = VERSION >= (2, 10)
in_flight = getattr(c10d, "_allow_inflight_collective_as_graph_input", lambda: False)
modes = _C._len_torch_dispatch_stack
LIBRARIES: list[torch.library.Library] = []  # registrations last as long as these


class OwnClass(Exception):
    """A tensor has a class of its own (DTensor, one in flight), which says itself what a collective does with it."""


def watched(given: Sequence[Any]) -> bool:
    """Whether somebody wants to see the operators that are called: a profiler, a dispatch mode, a compiler. (They
    would not pass on the factor of PREMUL_SUM, so it stays between us.)"""
    if not (profiler._is_profiler_enabled or modes() > 0 or in_flight()):
        return False
    op = getattr(given[-1], "reduceOp", None)
    return HAS_KERNELS and (op is None or op.op != PREMUL)


def take_calls(group: type) -> type:
    """Make the methods that torch calls out of those of `group` that take all arguments and an options object."""
    for name, kind in OPTIONS.items():
        run = group.__dict__[name]
        delattr(group, name)
        newer = NEWER.get(name, name)
        seen = newer if hasattr(ProcessGroup, newer) else name
        setattr(group, seen, method(seen, run, kind))
        if HAS_KERNELS:
            stand_in(name, run, group)
    return group


def method(name: str, run: Run, kind: type | None) -> Run:
    """The method `name` of a group: `run` itself, or the way through torch."""
    base = getattr(ProcessGroup, name)
    words = list(inspect.signature(run).parameters)[1:]
    first = {"opts": kind, "output": torch.Tensor}.get(words[0], list)
    last = kind or int

    def call(self: Any, *given: Any, **named: Any) -> Work:
        if (
            len(given) == len(words)
            and type(given[-1]) is last
            and type(given[0]) is first
            and not named
            and not watched(given)
        ):
            try:
                return run(self, *given)
            except OwnClass:
                pass
        work: Work = base(self, *given, **named)
        if not KEEPS_HALF:
            self.engine.kept.discard(work)  # the caller has it now
        return work

    if HAS_KERNELS:  # pybind11 knows by the caller's name that the base itself is wanted, not its override
        call.__code__ = call.__code__.replace(co_name=name)
    call.__name__ = call.__qualname__ = name
    return call


def stand_in(name: str, run: Run, impi: type) -> None:
    """Put our kernel in the place of torch's."""
    word = OPERATORS.get(name, f"{name}_")
    ours = kernel(name, run, getattr(torch.ops.c10d, word).default._schema, impi)
    hide(ours)
    library = torch.library.Library("c10d", "IMPL")
    LIBRARIES.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is one already
        for key in ("CPU", "SparseCPU") if name == "allreduce" else ("CPU",):
            library.impl(word, ours, key)


def kernel(name: str, run: Run, schema: Any, impi: Any) -> Callable[..., Any]:
    """What an operator does with tensors on CPUs. Arguments that have their default value do not come."""
    names = [argument.name for argument in schema.arguments]
    kind = OPTIONS[name]

    def call(*given: Any) -> Any:
        words: list[Any] = []
        group: Any = None
        options = kind() if kind else None
        for argument, value in zip(names, given):
            if argument == "process_group":
                group = ProcessGroup.unbox(value)
            elif options is not None and argument in FIELDS:
                set_field(options, FIELDS[argument], value)
            elif argument not in ("sparse_indices", "tensor"):
                words.append(value)
        if options is not None:
            words.append(options)
        if isinstance(group, impi):
            work = shown(name, run, group, words)
            group.engine.kept.add(work)  # C++ keeps one half of it only
        else:
            work = by_backend(group._get_backend(torch.device("cpu")), name, words)
        return (words[0], work.boxed()) if len(schema.returns) == 2 else work.boxed()

    return call


def by_backend(backend: Any, name: str, words: Sequence[Any]) -> Any:
    """Let a backend that is not ours do it. Its methods for many tensors have no way in from Python."""
    if hasattr(backend, name):
        return getattr(backend, name)(*words)
    outputs, inputs, options = words
    single = backend._allgather_base if name == "allgather_into_tensor_coalesced" else backend._reduce_scatter_base
    works = [single(output, source, options) for output, source in zip(outputs, inputs)]
    for work in works[:-1]:
        work.wait()
    return works[-1]


def set_field(options: Any, field: str, value: Any) -> None:
    if field == "reduceOp":
        value = ReduceOp(ReduceOp.RedOpType(value.op()))
    elif field == "timeout":
        value = timedelta(milliseconds=value)
    setattr(options, field, value)


def shown(name: str, run: Run, group: Any, words: Sequence[Any]) -> Work:
    """Carry it out; to a profiler it lasts until it is done."""
    if not profiler._is_profiler_enabled:
        return run(group, *words)
    with profiler.record_function(f"impi:{name}") as record:
        work = run(group, *words)
        end = torch.futures.Future()
        record._call_end_callbacks_on_future(end)
        group.engine.show_end(work, end)
    return work


def hide_modules(*modules: types.ModuleType) -> None:
    """Keep torch.compile from tracing our own code, where a script calls it or C++ does within compiled code."""
    for module in modules:
        for thing in vars(module).values():
            if getattr(thing, "__module__", None) == module.__name__:
                for function in functions(thing):
                    hide(function)


def hide(function: Any) -> None:
    function._torchdynamo_disable = True
    frames = _C._dynamo.eval_frame
    if hasattr(frames, "_FrameExecStrategy"):  # not in torch 2.6
        skip = frames._FrameAction.SKIP  # this code, and all that it calls
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


def functions(thing: Any) -> Iterator[types.FunctionType]:
    """A function itself, or all those of a class."""
    if isinstance(thing, types.FunctionType):
        yield thing
    elif isinstance(thing, (staticmethod, property)):
        yield from functions(thing.__func__ if isinstance(thing, staticmethod) else thing.fget)
    elif isinstance(thing, type):
        for member in vars(thing).values():
            yield from functions(member)
