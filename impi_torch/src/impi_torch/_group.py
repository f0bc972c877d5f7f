"""The process group: what torch calls, turned into operations of the engine.

A collective takes torch's lists of tensors and an options object, whichever way it was called (`_dispatch`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch
from torch._C._distributed_c10d import Backend
from torch.distributed import DistNetworkError, PrefixStore, ProcessGroup, ReduceOp

from . import _calls, _collectives, _dispatch, _engine, _launch
from . import _collectives as c
from ._calls import (
    Account,
    Calls,
    count_bytes,
    describe_caller,
    describe_difference,
    find_caller,
    read_snapshot,
    write_snapshot,
)
from ._dispatch import OwnClass, hide_modules, take_calls
from ._engine import LINGER, Aborted, ImpiTimeout, Place, Work, engine, nothing
from ._launch import ImpiError, check_launch, check_world, mpi

TO_SUM = ReduceOp.RedOpType.SUM
NUMBERS = {kind: int(kind) for kind in ReduceOp.RedOpType.__members__.values()}
PLAIN = (torch.Tensor, torch.nn.Parameter)
KINDS = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}  # others: as we name them
NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
Tensors = Sequence[torch.Tensor]
Lists = Sequence[Tensors]


@take_calls
class ImpiProcessGroup(ProcessGroup):
    """A torch.distributed process group over an MPI communicator of its own."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    made: ClassVar[Counter[str]] = Counter()  # by name and members: a new one reads no keys of a destroyed one

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, ranks: Sequence[int] = (), name: str = ""
    ) -> None:
        """Come together with the other members.

        Args:
            store: torch's key-value store of this group.
            rank: this process's rank in the group.
            size: how many members.
            timeout: for each operation, and for coming together here.
            ranks: the members' ranks in the default group; empty for the default group itself.
            name: torch's name of the group.

        Raises:
            ImpiError: no mpirun, another size than mpirun's, another MPI than mpirun's.
            ImpiTimeout: members that did not come, named.
        """
        super().__init__(rank, size)
        self._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        if not ranks:
            check_launch(size, os.environ)
        self._rank, self._size = rank, size
        self.ranks = list(ranks) or list(range(size))
        members = f"{name} {self.ranks}"
        self._key = f"{members} {self.made[members]}"
        self.store = PrefixStore(self._key, clone_of(store))
        self._world = not ranks
        self._name, self._desc = name or "world", ""
        self.backend_name = "impi"  # another where the group stands in its place
        self.timeout = timeout
        self.error: BaseException | None = None
        self.seq = 0
        self.queue: list[Work | Place] = []
        self.last = ""
        self.calls = Calls()
        self.label = self.called([rank])
        self._roots: dict[tuple[str, int], str] = {}
        self._together: list[c.Operation] | None = None
        if not ranks:
            check_world(size, os.environ)
        self.channel = c.Channel(self._meet(), c.Sizes.of(os.environ))
        self.made[members] += 1
        self.engine = engine()
        self.engine.groups.append(self)
        self.done = Work(self, "done", nothing(), [], 0.0)  # for what is over before it is waited for
        self.done.done = True

    # --- members ---------------------------------------------------------------------------------------------------

    def _meet(self) -> Any:
        """Wait until all members are here (MPI's own way would wait for ever), then make the communicator."""
        MPI = mpi()
        world = MPI.COMM_WORLD
        self.store.set(f"here/{self._rank}", str(world.Get_rank()))
        end = time.monotonic() + self.timeout.total_seconds()
        keys = [f"here/{r}" for r in range(self._size)]
        missing = list(range(self._size))
        nap = 0.0005
        while missing:
            missing = [r for r in missing if not self.store.check([keys[r]])]
            if missing and time.monotonic() > end:
                raise ImpiTimeout(
                    f"impi: {self.called(missing)} did not come to make the group of "
                    f"{self.called(range(self._size))} within {self.timeout.total_seconds():g} s"
                )
            if missing:
                time.sleep(nap)
                nap = min(nap * 2, 0.05)
        order = [int(self.store.get(key)) for key in keys]
        if len(set(order)) != self._size:
            raise ImpiError(
                f"impi: two members of a group have the same MPI rank ({order}); RANK must differ between processes"
            )
        group = world.Get_group()
        members = group.Incl(order)
        tag = zlib.crc32(self._name.encode()) % 30000
        try:
            return world.Create_group(members, tag)
        finally:
            members.Free()
            group.Free()

    def called(self, members: Sequence[int]) -> str:
        """Members in words, by their ranks in the default group: `rank 2`, `ranks 0, 3`."""
        ranks = sorted(self.ranks[r] for r in members)
        return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"

    # --- slow operations -------------------------------------------------------------------------------------------

    def gone(self, work: Work) -> str:
        """Publish that this rank waits at `work`; say who has left the group and so will never come, if anybody, or
        which other collective was called."""
        members = range(self._size) if work.peer is None else self._peers(work)
        try:
            self._note_wait(work)
            for member in members:
                if member != self._rank and self.store.check([f"left/{member}"]):
                    seq, _, why = self.store.get(f"left/{member}").decode().partition(" ")
                    if why:
                        return f"{work}: {self._compare_with_ended(member)}{self.called([member])} ended with {why}"
                    if work.peer is None and int(seq) < work.seq:
                        different = self._compare_with_ended(member, failed=False)
                        return f"{work}: {different}{self.called([member])} left the group without it"
                    if work.peer is not None and time.monotonic() - work.begun > 5 * LINGER:
                        return f"{work}: {self.called([member])} left the group"
            return self._compare_waits()
        except DistNetworkError:
            if any(self.ranks[member] == 0 for member in members):
                return f"{work}: rank 0, which keeps the store, has ended or destroyed its groups"
        except RuntimeError:
            pass  # then nothing is known
        return ""

    def _note_wait(self, work: Work) -> None:
        self.store.set(f"waits/{self._rank}", f"{work.seq} {work}|{describe_caller(work.caller)}")

    def _peers(self, work: Work) -> Sequence[int]:
        return [work.peer] if work.peer is not None and work.peer >= 0 else []

    def say_left(self, why: str = "") -> None:
        """Tell the others that this rank's script is at its end, or destroys the group, after so many collectives."""
        if self.error is None or why:
            with contextlib.suppress(RuntimeError):
                self.store.set(f"calls/ended/{self._rank}", write_snapshot(self.calls.look()))
                self.store.set(f"left/{self._rank}", f"{self.seq} {why}")

    def _compare_calls(self) -> None:
        """Compare what is due with what rank 0 of the group has called.

        Raises:
            ImpiError: it has called other collectives. The group can do nothing more.
        """
        if different := self._compare_due():
            error = ImpiError(f"impi: {different}")
            self.engine.fail(self, error)
            raise error

    def _compare_due(self) -> str:
        """How what is due differs from what rank 0 of the group has called; what it has not called yet stays due."""
        due, self.calls.due = self.calls.due, []
        different = ""
        with contextlib.suppress(RuntimeError):  # rank 0 has ended
            for snapshot in due:
                key = f"calls/{snapshot.number}"
                if self._rank == 0:
                    self.store.set(key, write_snapshot(snapshot))
                elif self.store.check([key]):
                    first = read_snapshot(self.store.get(key))
                    different = different or describe_difference({self.called([0]): first, self.label: snapshot})
                else:
                    self.calls.due.append(snapshot)
        return different

    def _compare_waits(self) -> str:
        """How what this rank has called differs from what rank 0 of the group had, when it waited itself."""
        own = self.calls.look()
        if self._rank == 0:
            self.store.set("calls/waiting", write_snapshot(own))
        elif self.store.check(["calls/waiting"]):
            first = read_snapshot(self.store.get("calls/waiting"))
            return describe_difference({self.called([0]): first, self.label: own}, ended=False)
        return ""

    def _compare_with_ended(self, member: int, *, failed: bool = True) -> str:
        """How what this rank has called differs from what a member had that failed or left: MPI may have given it bytes
        of another collective, on which its script then failed, or with which it went on to its end."""
        key = f"calls/ended/{member}"
        if not self.store.check([key]):
            return ""
        ended = read_snapshot(self.store.get(key))
        if not failed:  # its last call may be the barrier behind the loop that it ended first
            ended = ended._replace(number=ended.number - 1, calls=ended.calls[:-1])
        different = describe_difference({self.called([member]): ended, self.label: self.calls.look()}, ended=False)
        return f"{different}; " if different else ""

    def account(self, waiting: Sequence[Work]) -> Account:
        """What this rank has called, with those that wait for their turn."""
        snapshot = self.calls.look([(work.name + work.detail, work.size, work.caller) for work in waiting])
        return Account(self._key, self._rank, self.label, self._size, snapshot)

    @property
    def has_peers(self) -> bool:
        """Whether other members may wait for this one, which has met them."""
        return self._size > 1 and self.seq > 0

    def failed(self) -> bool:
        """Whether another member said that it failed."""
        others = [f"left/{member}" for member in range(self._size) if member != self._rank]
        with contextlib.suppress(RuntimeError):
            return any(self.store.check([key]) and self.store.get(key).partition(b" ")[2] for key in others)
        return False

    def describe_collective(self) -> dict[str, Any]:
        """The collective in flight, or the last: its number in the group, torch's name of its kind, its bytes (0
        once it has ended)."""
        first = next((entry for entry in self.queue[:] if isinstance(entry, Work)), None)
        name = first.name if first else self.last
        size = count_bytes(first.results) if first else 0
        number = first.seq if first else self.seq
        return {"number": number, "kind": KINDS.get(name, name), "size": size, "done": first is None} if name else {}

    def complaint(self, work: Work, timeout: float) -> str:
        """Why `work` is too late: which members did not come."""
        where = "" if self._world else f" in the group of {self.called(range(self._size))}"
        text = f"impi: Timed out waiting {timeout:g} s for {work}{where}"
        if work.peer is not None:
            return f"{text}: {self.called(self._peers(work)) if work.peer >= 0 else 'no rank'} did not answer"
        try:
            seen = self._exchange_notes(work, LINGER / 2)  # the others' own clocks may be a little behind
            time.sleep(LINGER / 2)
        except RuntimeError:
            return f"{text}: the store of rank 0 is gone, so the late rank is not known"
        late = [member for member, (seq, _) in seen.items() if seq < work.seq]
        there = [member for member in range(self._size) if member not in late]
        if mismatch := self._describe_mismatch(work, seen):
            return f"{text}: {mismatch}"
        if not late:
            return f"{text}: all ranks came, the network or a rank is too slow"
        return f"{text}: {self.called(late)} did not come; {self.called(there)} waited"

    def explain(self, work: Work) -> str:
        """What MPI's error in `work` may come from: ranks in different collectives, which MPI does not look for."""
        with contextlib.suppress(RuntimeError):
            return self._describe_mismatch(work, self._exchange_notes(work, 2 * LINGER)) or self._compare_due()
        return ""

    def _exchange_notes(self, work: Work, seconds: float) -> dict[int, tuple[int, str]]:
        """Note that this rank is in `work`; where the others are so long after, by number and name."""
        self._note_wait(work)
        time.sleep(seconds)
        seen = {}
        for member in range(self._size):
            if member != self._rank:
                key = f"waits/{member}"
                number, _, name = (self.store.get(key).decode() if self.store.check([key]) else "0").partition(" ")
                seen[member] = int(number), name
        return seen

    def _describe_mismatch(self, work: Work, seen: dict[int, tuple[int, str]]) -> str:
        calls: dict[str, list[int]] = {str(work): [self._rank]}
        places = {str(work): describe_caller(work.caller)}  # of the first rank in each
        for member, (number, call) in seen.items():
            name, _, place = call.partition("|")
            if number == work.seq:
                calls.setdefault(name, []).append(member)
                places.setdefault(name, place)
        if len(calls) == 1:
            return ""
        words = ", ".join(f"{name}{places[name]} on {self.called(members)}" for name, members in calls.items())
        return f"the ranks called different collectives: {words}"

    # --- what torch asks -------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return "impi"  # torch's C++ asks here, and takes a group that says "gloo" for an object of its own

    def name(self) -> str:
        return self.backend_name

    _get_backend_name = name

    def getRank(self) -> int:
        return self._rank

    def getSize(self) -> int:
        return self._size

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc

    def get_group_store(self) -> Any:
        return self.store

    @property
    def options(self) -> Any:
        """What torch's groups tell of themselves; here to be read only."""
        told = Backend.Options("impi", self.timeout)
        told.global_ranks_in_group, told.group_name = self.ranks, self._name
        return told

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> ImpiProcessGroup:
        if torch.device(device).type != "cpu":
            raise ImpiError(f"impi: there is no {torch.device(device).type} here, only cpu")
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def _has_hooks(self) -> bool:
        return False

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self.seq

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout

    _set_default_timeout = set_timeout

    # --- life ------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Give up all operations; the group can do nothing more, and nobody is waited for."""
        self.engine.fail(self, Aborted("impi: the script aborted this group"))

    def shutdown(self) -> None:
        """Finish what is in flight and let go of the communicator."""
        if self in self.engine.groups:
            self.engine.groups.remove(self)
        if self.error is None:
            self.say_left()
            for work in [
                *(w for w in self.queue if isinstance(w, Work)),
                *(w for w in self.engine.active if w.group is self),
            ]:
                work.wait()
            if self._world and self._rank == 0:
                self._keep_store()
            self.engine.close(self)
            self.error = ImpiError("impi: the script destroyed this group")
            with self.engine.lock:
                self.channel.comm.Free()

    def _keep_store(self) -> None:
        """Stay for a moment if others have not come so far: the store goes with rank 0, and with it who left."""
        keys = [f"left/{member}" for member in range(self._size)]
        end, nap = time.monotonic() + 3 * LINGER, 0.0005
        with contextlib.suppress(RuntimeError):
            while not self.store.check(keys) and time.monotonic() < end:
                time.sleep(nap)
                nap = min(nap * 2, 0.05)

    # --- starting an operation -------------------------------------------------------------------------------------

    def _start(
        self,
        name: str,
        operation: c.Operation,
        results: list[torch.Tensor],
        options: Any = None,
        timeout: timedelta | None = None,
        peer: int | None = None,
        alike: Sequence[torch.Tensor] | None = None,
        detail: str = "",
    ) -> Work:
        """Begins one. ``alike``: of which all ranks must have as many bytes, where these are not the results.
        ``detail``: what else they must give alike."""
        if self._together is not None and peer is None:
            self._together.append(operation)
            return Work(self, name, nothing(), results, 0.0)
        size = count_bytes(results if alike is None else alike)
        work = Work(self, name, operation, results, self._limit(options, timeout), peer, size)
        work.detail, work.caller = detail, find_caller() if peer is None else None
        self.engine.start(work, getattr(options, "asyncOp", True))
        if self.calls.due:
            self._compare_calls()
        return work

    def _detail(self, op: int, tensors: Tensors) -> str:
        return self.channel.reduction(op, tensors[0].dtype).detail if tensors else ""

    def _root(self, way: str, root: int) -> str:
        if (detail := self._roots.get((way, root))) is None:  # to write it costs as much as to note the call
            rank = self.ranks[root] if root < self._size else root
            detail = self._roots[way, root] = f" {way} rank {rank}"
        return detail

    def _limit(self, options: Any, timeout: timedelta | None = None) -> float:
        """Seconds that an operation may take: its own, or the group's (torch says "not given" by a negative time)."""
        given = timeout or getattr(options, "timeout", None)
        if isinstance(given, timedelta) and given.total_seconds() > 0:
            return given.total_seconds()
        return self.timeout.total_seconds()

    def _start_coalescing(self, device: Any = None) -> None:
        """What is called until `_end_coalescing` becomes one operation (point-to-point calls start at once)."""
        self._together = []

    def _end_coalescing(self, device: Any = None) -> Work:
        together, self._together = self._together or [], None
        return self._start("coalesced", c.in_turn(together), [])

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    # --- collectives: `_dispatch` makes torch's methods of them ------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any) -> Work:
        op, factor = reduction(opts)
        if len(tensors) == 1 and factor is None and getattr(opts, "asyncOp", True) is False:
            short = self._short_allreduce(tensors[0], op, opts)
            if short is not None:
                return short
        many = [on_cpu(t) for t in tensors]
        steps = [c.allreduce(self.channel, t, self.channel.reduction(op, t.dtype, factor)) for t in many]
        operation = steps[0] if len(steps) == 1 else c.in_turn(steps)
        return self._start("allreduce", operation, many, opts, detail=self._detail(op, many))

    def _short_allreduce(self, tensor: torch.Tensor, op: int, opts: Any) -> Work | None:
        """One that the caller waits for, of a tensor that MPI can take as it is; None where that is not so. Every
        tenth of a microsecond counts here."""
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            return None
        nbytes, dtype = tensor.nbytes, tensor.dtype
        channel = self.channel
        if (
            not 0 < nbytes <= channel.sizes.piece
            or not tensor.is_cpu
            or not tensor.is_contiguous()
            or tensor.requires_grad
            or tensor.is_neg()
            or (dtype.is_complex and tensor.is_conj())
            or self._together is not None
        ):
            return None
        words = channel.short(op, dtype)
        if words is None:
            return None
        how, kind, operation = words
        data = [channel.memory(tensor.data_ptr(), nbytes), tensor.numel(), kind]

        def later(request: Any) -> Work:
            return Work(self, "allreduce", c.going_on(channel, request, tensor, how), [tensor], self._limit(opts))

        given = (channel.MPI.IN_PLACE, data, operation)
        work = self.engine.at_once(self, channel.comm.Iallreduce, given, (how.detail, nbytes), later)
        if self.calls.due:
            self._compare_calls()
        if work is self.done and op == c.AVG:
            how.after(tensor, self._size)
        return work

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> Work:
        many = [on_cpu(t) for t in tensors]
        op, factor = reduction(opts)
        for tensor in many:
            self.channel.reduction(op, tensor.dtype, factor)
        operation = c.allreduce_coalesced(self.channel, many, op, factor)
        return self._start("allreduce_coalesced", operation, many, opts, detail=self._detail(op, many))

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        many = [on_cpu(t) for t in tensors]
        op, factor = reduction(opts)
        root = opts.rootRank
        steps = [c.reduce(self.channel, t, root, self.channel.reduction(op, t.dtype, factor)) for t in many]
        detail = self._detail(op, many) + self._root("to", root)
        return self._start("reduce", c.in_turn(steps), many, opts, detail=detail)

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        many = [on_cpu(t) for t in tensors]
        steps = [c.broadcast(self.channel, t, opts.rootRank) for t in many]
        return self._start("broadcast", c.in_turn(steps), many, opts, detail=self._root("from", opts.rootRank))

    def allgather(self, output_lists: Lists, inputs: Tensors, opts: Any) -> Work:
        outputs = [self._as_many_as_ranks("allgather", tensors) for tensors in output_lists]
        steps = [c.allgather(self.channel, out, on_cpu(t)) for out, t in zip(outputs, inputs)]
        return self._start("allgather", c.in_turn(steps), [t for out in outputs for t in out], opts)

    def allgather_coalesced(self, output_lists: Lists, inputs: Tensors, opts: Any) -> Work:
        """`output_lists[r][i]` becomes rank r's `inputs[i]`."""
        outputs = [[on_cpu(t) for t in tensors] for tensors in output_lists]
        steps = [
            c.allgather(self.channel, [of_rank[i] for of_rank in outputs], on_cpu(tensor))
            for i, tensor in enumerate(inputs)
        ]
        return self._start("allgather_coalesced", c.in_turn(steps), [t for out in outputs for t in out], opts)

    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> Work:
        output = on_cpu(output)
        return self._start("allgather", c.allgather_into(self.channel, output, on_cpu(source)), [output], opts)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        many = [on_cpu(t) for t in outputs]
        steps = [c.allgather_into(self.channel, out, on_cpu(t)) for out, t in zip(many, inputs)]
        return self._start("allgather_coalesced", c.in_turn(steps), many, opts)

    def gather(self, output_lists: Lists, inputs: Tensors, opts: Any) -> Work:
        root, tensor, outputs = opts.rootRank, on_cpu(inputs[0]), []
        if self._rank == root:
            outputs = self._as_many_as_ranks("gather", output_lists[0])
            self._as_long_as("gather", outputs, tensor)
        operation = c.gather(self.channel, outputs, tensor, root)
        return self._start("gather", operation, outputs, opts, alike=[tensor], detail=self._root("to", root))

    def scatter(self, outputs: Tensors, input_lists: Lists, opts: Any) -> Work:
        root, tensor, inputs = opts.rootRank, on_cpu(outputs[0]), []
        if self._rank == root:
            inputs = self._as_many_as_ranks("scatter", input_lists[0])
            self._as_long_as("scatter", inputs, tensor)
        operation = c.scatter(self.channel, tensor, inputs, root)
        return self._start("scatter", operation, [tensor], opts, detail=self._root("from", root))

    def reduce_scatter(self, outputs: Tensors, input_lists: Lists, opts: Any) -> Work:
        many = [on_cpu(t) for t in outputs]
        op, factor = reduction(opts)
        inputs = [self._as_many_as_ranks("reduce_scatter", tensors) for tensors in input_lists]
        steps = [
            c.reduce_scatter_list(self.channel, out, parts, self.channel.reduction(op, out.dtype, factor))
            for out, parts in zip(many, inputs)
        ]
        parts = [part for parts in inputs for part in parts]
        return self._start("reduce_scatter", c.in_turn(steps), many, opts, alike=parts, detail=self._detail(op, many))

    def _reduce_scatter_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> Work:
        output = on_cpu(output)
        op, factor = reduction(opts)
        how = self.channel.reduction(op, output.dtype, factor)
        operation = c.reduce_scatter(self.channel, output, on_cpu(source), how)
        return self._start("reduce_scatter", operation, [output], opts, alike=[source], detail=how.detail)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        many = [on_cpu(t) for t in outputs]
        op, factor = reduction(opts)
        steps = [
            c.reduce_scatter(self.channel, out, on_cpu(t), self.channel.reduction(op, out.dtype, factor))
            for out, t in zip(many, inputs)
        ]
        detail = self._detail(op, many)
        return self._start("reduce_scatter_coalesced", c.in_turn(steps), many, opts, detail=detail)

    def alltoall_base(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any,
    ) -> Work:
        output = on_cpu(output)
        operation = c.alltoall_into(self.channel, output, on_cpu(source), output_splits, input_splits)
        return self._start("alltoall", operation, [output], opts, alike=())

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        targets = self._as_many_as_ranks("alltoall", outputs)
        sources = self._as_many_as_ranks("alltoall", inputs)
        return self._start("alltoall", c.exchange(self.channel, sources, targets), targets, opts, alike=())

    def barrier(self, opts: Any) -> Work:
        return self._start("barrier", c.barrier(self.channel), [], opts)

    # --- point to point --------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int) -> Work:
        tensor = on_cpu(tensors[0])
        self._check_peer("send", dst, tag)
        return self._start("send to rank", c.send(self.channel, tensor, dst, tag), [tensor], peer=dst)

    def recv(self, tensors: Tensors, src: int, tag: int) -> Work:
        tensor = on_cpu(tensors[0])
        self._check_peer("recv", src, tag)
        return self._receive("recv from rank", tensor, src, tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        self._check_peer("recv", -1, tag)
        return self._receive("recv from any rank", on_cpu(tensors[0]), -1, tag)

    def _receive(self, name: str, tensor: torch.Tensor, src: int, tag: int) -> Work:
        work: Work | None = None
        found = src

        def note(source: int) -> None:
            nonlocal found
            found = source
            if work is not None:
                work.source = source

        work = self._start(name, c.receive(self.channel, tensor, src, tag, note), [tensor], peer=src)
        work.source = found
        return work

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that rank 0 checks: it names the ranks that do not come in time (all, or the first of them). A
        number is seconds, as torch's binding of Gloo has it."""
        asked = self.timeout if timeout is None else timeout
        seconds = asked.total_seconds() if isinstance(asked, timedelta) else asked
        limit = max(1e-3, seconds)
        token = torch.zeros(1, dtype=torch.uint8)
        tag = self.channel.tag - 1

        def begin(operation: c.Operation, peer: int, seconds: float = limit) -> Work:
            return self.engine.start(
                Work(self, "monitored_barrier with rank", operation, [], seconds, peer), background=True
            )

        if self._rank:
            begin(c.send(self.channel, token, 0, tag), 0).wait()
            begin(c.receive(self.channel, token, 0, tag, int), 0).wait()
            if token.item():
                raise ImpiTimeout(
                    f"impi: Rank {self.ranks[self._rank]} successfully reached monitoredBarrier, but received "
                    f"errors while waiting for send/recv from rank {self.ranks[0]}: some rank did not come"
                )
            return
        end = time.monotonic() + limit
        calls = {r: begin(c.receive(self.channel, token, r, tag, int), r, limit + 86400) for r in range(1, self._size)}
        while time.monotonic() < end and not all(work.is_completed() for work in calls.values()):
            time.sleep(0.0005)
        late = [r for r, work in calls.items() if not work.is_completed()]
        token.fill_(bool(late))
        for r, work in calls.items():
            if work.done:
                begin(c.send(self.channel, token, r, tag), r).wait()
        if late:
            what = f"{self.called(late if wait_all_ranks else late[:1]).capitalize()} failed to pass monitoredBarrier"
            if seconds <= 0:
                what = f"Rank {self.ranks[0]} timed out in monitoredBarrier"
            error = ImpiTimeout(f"impi: {what} within {limit:g} s")
            self.engine.fail(self, error)
            raise error

    # --- checks ----------------------------------------------------------------------------------------------------

    def _check_peer(self, what: str, peer: int, tag: int) -> None:
        if not -1 <= peer < self._size or (peer == -1 and what == "send"):
            raise ImpiError(f"impi: {what}: there is no rank {peer} in a group of {self._size}")
        if peer == self._rank:
            raise ImpiError(f"impi: {what}: rank {peer} is this rank itself")
        if not 0 <= tag < self.channel.tag - 1:
            raise ImpiError(f"impi: {what}: the tag {tag} is not between 0 and {self.channel.tag - 2}")

    def _as_many_as_ranks(self, what: str, tensors: Tensors) -> list[torch.Tensor]:
        if len(tensors) != self._size:
            raise ImpiError(f"impi: {what}: {len(tensors)} tensors for a group of {self._size}")
        return [on_cpu(tensor) for tensor in tensors]

    def _as_long_as(self, what: str, tensors: Sequence[torch.Tensor], other: torch.Tensor) -> None:
        if any(t.numel() != other.numel() or t.dtype != other.dtype for t in tensors):
            raise ImpiError(
                f"impi: {what}: the tensors of the list are not all like the single one "
                f"({tuple(other.shape)}, {other.dtype})"
            )


# --- reading torch's arguments ---------------------------------------------------------------------------------------


def reduction(options: Any) -> tuple[int, Any]:
    """The number of the reduce operation in an options object, and PREMUL_SUM's factor."""
    op = options.reduceOp
    if op == TO_SUM:  # nearly all; to ask for the number of the others costs as much as a short message
        return c.SUM, None
    number = NUMBERS[op.op]
    return number, op.__getstate__()[1] if number == c.PREMUL else None


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as a plain tensor, to read and write behind autograd's back as torch's own backends do.

    Raises:
        OwnClass: torch must ask the tensor's class first.
        ImpiError: it is not in host memory, or not written out.
    """
    if type(tensor) not in PLAIN and type(tensor).__torch_dispatch__ is not NO_DISPATCH:
        raise OwnClass
    if tensor.device.type != "cpu":
        raise ImpiError(f"impi: the tensor is on {tensor.device}; this backend talks about tensors in host memory")
    if tensor.is_conj() or tensor.is_neg():
        raise ImpiError("impi: the tensor is a lazy conjugate or negative; call resolve_conj() or resolve_neg() first")
    return tensor.data if tensor.requires_grad else tensor


def clone_of(store: Any) -> Any:
    """A connection of one's own to the store, so that asking never waits behind the script's own calls."""
    try:
        return store.clone()
    except (AttributeError, RuntimeError, NotImplementedError):
        return store


hide_modules(_calls, _collectives, _dispatch, _engine, _launch, sys.modules[__name__])
