"""Operations in flight: one list for the whole process, moved on by whoever waits, or else by one thread.

An operation is a generator that starts MPI requests and yields a test ("is it there?"); when the test says yes the
generator goes on, and when it ends the operation is done. Nothing here blocks inside MPI, so a timeout can always be
told to the caller, and all MPI calls happen under one lock, so MPI_THREAD_SERIALIZED is enough.

A caller that waits polls by itself: a synchronous collective costs no change of thread. While nobody waits, the thread
`impi-progress` polls, so that communication goes on under the backward pass.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from datetime import timedelta
from typing import Any, Callable, Protocol

import torch
from torch.distributed import Work as TorchWork

from ._launch import ImpiError, mpi

Test = Callable[[], bool]
Operation = Generator[Test, None, None]
NO_TIMEOUT = timedelta(0)
# Before 2.8 torch's C++ side keeps only the C++ half of a Work, which without its Python half waits for ever.
KEEPS_HALF = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 8)
SLOW = 1.0  # seconds after which a waiting rank tells the others where it waits, and looks who has left
SHARED = 300e-6  # seconds; a yield that takes longer means that something else runs on this core
SHARED_FOR = 0.01  # seconds for which that is remembered
NAP = 10e-6  # seconds
LATE = 10e-3  # seconds without any movement after which a peer is late, and waiting for it should cost nothing
LATE_NAP = 50e-6  # seconds
# Seconds that the thread leaves to a computation on its core between two polls: the shortest when the computation has
# just been seen (it may be about to wait), doubled from poll to poll up to so many times as long as a poll takes (so
# that the computation loses three hundredths of its core), and never longer than the last.
COURTESY, SHARE, MOST = 50e-6, 30, 400e-6
MOVED = 50e-6  # seconds; a poll that takes longer has moved data, which is no loss
SPIN = 64  # looks at a short operation that the caller waits for, before it is treated like others
SLACK = 1000  # nanoseconds by which the kernel may make our naps longer (50000 by default)
LINGER = 1.0  # seconds that a rank with a timeout stays, so that the others can read where it stood


def nothing() -> Operation:
    """An operation that is over before it begins."""
    yield from ()


class ImpiTimeout(ImpiError):
    """An operation was not done in time; the text names the ranks that did not come."""


class Group(Protocol):
    """What the engine needs of a process group: its state, and what only the group knows about its ranks."""

    engine: Engine
    error: BaseException | None  # why it failed; nothing can be started any more
    seq: int  # number of the last collective
    queue: deque[Work]  # collectives that were started, in order; the first is in flight
    done: Work  # what a collective returns that ended at once

    def complaint(self, work: Work, timeout: float) -> str:
        """The text of a timeout: the ranks that `work` waits for, and where they are."""

    def gone(self, work: Work) -> str:
        """Which rank that `work` waits for has left, and why; "" while all are there."""

    def say_left(self) -> None:
        """Tell the other ranks that this process leaves."""


class Work(TorchWork):
    """One operation: what torch gets back from a collective and waits for."""

    def __init__(
        self,
        group: Group,
        name: str,
        operation: Operation,
        results: list[torch.Tensor],
        limit: float,
        peer: int | None = None,
    ) -> None:
        super().__init__()
        self.group, self.name, self.operation, self.results = group, name, operation, results
        self.limit, self.peer = limit, peer
        self.seq = 0
        self.begun = time.monotonic()
        self.test: Test | None = None
        self.done = False
        self.error: BaseException | None = None
        self.future: Any = None  # torch's Future, once somebody asks for it
        self.source = -1 if peer is None else peer

    def __str__(self) -> str:
        return f"{self.name} #{self.seq}" if self.peer is None else f"{self.name} {self.peer}"

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until it is done (moving it on meanwhile); raises what went wrong. `timeout` 0 is the group's."""
        if not self.done:
            self.group.engine.drive(self, timeout.total_seconds() if timeout else 0.0)
        if KEEPS_HALF:
            self.group.engine.unwaited.discard(self)
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self) -> bool:
        if not self.done:
            self.group.engine.turn()
        return self.done

    def is_success(self) -> bool:
        return self.done and self.error is None

    def exception(self) -> BaseException | None:
        return self.error

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self.results

    def source_rank(self) -> int:
        return self.source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        return self.group.engine.future_of(self)

    def settle(self) -> None:
        """Give the future its value; never under the engine's lock, since callbacks may start operations."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.results)


class Engine:
    """All operations in flight of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.active: list[Work] = []
        self.abandoned: list[Work] = []  # MPI may still write into their tensors: kept for ever
        self.unwaited: set[Work] = set()
        self.groups: list[Group] = []
        self.failed: BaseException | None = None
        self.pid = os.getpid()
        self._waiters = 0
        self._bell = threading.Semaphore(0)
        self._idle = True
        self._closing = False
        self._watched = 0.0
        self._shared_until = 0.0
        self._moved = 0.0
        self._watching = threading.Lock()
        short_naps()
        self._thread = threading.Thread(target=self._background, name="impi-progress", daemon=True)
        self._thread.start()
        self._hook = sys.excepthook
        sys.excepthook = self._uncaught
        atexit.register(self.goodbye)

    # --- starting and moving on ------------------------------------------------------------------------------------

    def start(self, work: Work, background: bool) -> Work:
        """Begin `work`, or line it up behind the collectives of its group; wake the thread if nobody will wait."""
        if self.pid != os.getpid():
            raise ImpiError("impi: a forked process cannot communicate; only the process that mpirun started can")
        group = work.group
        with self.lock:
            if group.error is not None:
                raise ImpiError(f"impi: {work.name}: this group failed before: {group.error}") from group.error
            if work.peer is None:
                group.seq += 1
                work.seq = group.seq
                group.queue.append(work)
                settled = self._begin(work) if len(group.queue) == 1 else ()
            else:
                settled = self._begin(work)
        self._settle(settled)
        if KEEPS_HALF:
            self.unwaited.add(work)
        if background and not work.done:
            self._ring()
        return work

    def _begin(self, work: Work) -> list[Work]:
        self.active.append(work)
        return self._advance(work)

    def _advance(self, work: Work) -> list[Work]:
        """Move one operation on as far as it goes now. Returns works whose future must be settled."""
        try:
            while work.test is None or work.test():
                work.test = work.operation.send(None)
                self._moved = time.perf_counter()
            return []
        except StopIteration:
            pass
        except Exception as error:  # MPI's and torch's own errors belong to the caller who waits
            work.error = error if isinstance(error, ImpiError) else ImpiError(f"impi: {work}: {error}")
            work.error.__cause__ = None if error is work.error else error
        return self._finish(work)

    def _finish(self, work: Work) -> list[Work]:
        work.done = True
        work.operation = nothing()  # lets go of the tensors
        self.active.remove(work)
        settled = [work] if work.future is not None else []
        if work.peer is None:
            queue = work.group.queue
            queue.popleft()
            if queue:
                settled += self._begin(queue[0])
        return settled

    def turn(self) -> None:
        """Move everything on once."""
        with self.lock:
            settled: list[Work] = []
            for work in self.active[:]:
                if not work.done:
                    settled += self._advance(work)
        self._settle(settled)

    @staticmethod
    def _settle(works: Iterable[Work]) -> None:
        for work in works:
            work.settle()

    def future_of(self, work: Work) -> torch.futures.Future:
        """The future of `work`; nobody need wait for the work itself then, so the thread moves it on."""
        self.unwaited.discard(work)
        with self.lock:
            fresh = work.future is None
            if fresh:
                work.future = torch.futures.Future()
            late = fresh and work.done
        if late:
            work.settle()
        elif not work.done:
            self._ring()
        return work.future

    def at_once(
        self, group: Group, begin: Callable[..., Any], words: Sequence[Any], later: Callable[[Any], Work]
    ) -> Work | None:
        """Begin a short collective that the caller is going to wait for, and look at it for a while: mostly it is done
        by then (`group.done`). None, with nothing begun, where something else is in flight.

        Most of what an operation costs here otherwise is the machinery for those that take longer. `begin` with `words`
        starts the request; `later` makes an operation of a request that takes longer.
        """
        with self.lock:
            if self.active or group.error is not None or self.pid != os.getpid():
                return None
            group.seq += 1
            try:
                test = (request := begin(*words)).Test
                for _ in range(SPIN):
                    if test():
                        return group.done
            except Exception as error:
                raise ImpiError(f"impi: collective #{group.seq}: {error}") from error
            work = later(request)
            work.seq = group.seq
            group.queue.append(work)
            self._begin(work)  # it has no future yet, so there is nothing to settle
        if KEEPS_HALF:
            self.unwaited.add(work)
        return work

    # --- waiting ---------------------------------------------------------------------------------------------------

    def drive(self, work: Work, timeout: float) -> None:
        """Poll until `work` is done, or raise ImpiTimeout after `timeout` seconds (0: only the operation's own)."""
        end = time.monotonic() + timeout if timeout > 0 else float("inf")
        with self.lock:
            self._waiters += 1
        try:
            turns = 0
            while not work.done:
                self.turn()
                turns += 1
                if turns > 4 and not work.done:
                    self._breathe()
                    if turns & 255 == 0:
                        now = time.monotonic()
                        if now - work.begun > SLOW:
                            time.sleep(0.0002)  # somebody is late: leave the core to who computes
                        self._watch(now)
                        if now > end and not work.done:
                            raise ImpiTimeout(work.group.complaint(work, timeout))
        finally:
            with self.lock:
                self._waiters -= 1
        if self.active:
            self._ring()

    def _breathe(self) -> None:
        """Let others have the core between two looks.

        Alone on a core, a yield costs nothing. Where yielding shows that the core is shared (it took long), or where
        nothing has moved for a while, sleeping is better: the peers that are waited for get the core at once, and who
        slept is woken before who computes.
        """
        before = time.perf_counter()
        still = before - self._moved
        if still > LATE:
            time.sleep(LATE_NAP)
        elif before < self._shared_until:
            time.sleep(NAP)
        else:
            os.sched_yield()
            if time.perf_counter() - before > SHARED:
                self._shared_until = before + SHARED_FOR

    def _ring(self) -> None:
        if self._idle:
            self._idle = False
            self._bell.release()

    def _background(self) -> None:
        cores = cores_of(os.environ.get("IMPI_TORCH_WORKER_CORES", ""))
        if cores:
            os.sched_setaffinity(threading.get_native_id(), cores)
        crowded = not cores and len(os.sched_getaffinity(0)) <= torch.get_num_threads()
        poll = 0.0  # seconds that a look takes which finds nothing, on average
        while not self._closing:
            self._idle = True
            if not self.active or self._waiters:
                self._bell.acquire()
            self._idle = False
            turns, nap, seen, own = 0, COURTESY, time.perf_counter(), time.thread_time()
            others = time.process_time() - own
            while self.active and not self._waiters and not self._closing:
                self.turn()
                turns += 1
                computing = False
                if crowded:  # the core is shared with the thread that computes: does it, just now?
                    now, mine, all_of_us = time.perf_counter(), time.thread_time(), time.process_time()
                    computing = all_of_us - mine - others > (now - seen) / 4
                    if mine - own < MOVED:
                        poll += (mine - own - poll) / 8
                    seen, own, others = now, mine, all_of_us - mine
                if computing:
                    time.sleep(nap)
                    nap = min(nap * 2, max(COURTESY, SHARE * poll), MOST)
                else:
                    nap = COURTESY
                    self._breathe()
                if turns & 63 == 63:
                    self._watch(time.monotonic())

    # --- watching over slow operations -----------------------------------------------------------------------------

    def _watch(self, now: float) -> None:
        """About once a second: tell the others what is slow here, fail what is too late or waits for who has left."""
        soonest = min((work.limit for work in self.active), default=SLOW)
        if now - self._watched < min(SLOW, soonest / 4) or not self._watching.acquire(blocking=False):
            return
        try:
            self._watched = now
            for work in self.active[:]:
                age = now - work.begun
                if work.done or age < min(SLOW, work.limit):
                    continue
                if age > work.limit:
                    self.fail(work.group, ImpiTimeout(work.group.complaint(work, work.limit)))
                    continue
                gone = work.group.gone(work)
                if gone:
                    self.fail(work.group, ImpiError(f"impi: {work}: {gone}"))
        finally:
            self._watching.release()

    def fail(self, group: Group, error: BaseException) -> None:
        """End everything of `group` with `error`; it can do nothing more."""
        settled = []
        with self.lock:
            group.error = group.error or error
            if not isinstance(error, Aborted):
                self.failed = self.failed or error
            works = [work for work in self.active if work.group is group]
            self.active = [work for work in self.active if work.group is not group]
            works += [work for work in group.queue if work not in works]
            group.queue.clear()
            for work in works:
                if not work.done:
                    work.error, work.done = error, True
                    self.abandoned.append(work)
                    if work.future is not None:
                        settled.append(work)
        self._settle(settled)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _uncaught(self, kind: type, error: BaseException, trace: Any) -> None:
        self.failed = self.failed or error
        self._hook(kind, error, trace)

    def goodbye(self) -> None:
        """At the end of the script: MPI_Finalize when all is well, MPI_Abort when this rank failed.

        A rank that failed must not wait for the others, and they cannot go on without it. A rank that is done says so
        (whoever still waits for it learns it within seconds) and waits quietly for the others.
        """
        if self.pid != os.getpid():
            return
        MPI = mpi()
        if MPI.Is_finalized():
            return
        world = MPI.COMM_WORLD
        if self.failed is None:
            for group in self.groups:
                group.say_left()
            farewell = world.Ibarrier()
            patience = 0.0001
            while self.failed is None:
                with self.lock:
                    if farewell.Test():
                        break
                self.turn()
                self._watch(time.monotonic())
                time.sleep(patience)
                patience = min(patience * 1.5, 0.01)
        self._closing = True
        self._bell.release()
        self._thread.join(1.0)
        if self.failed is None:
            MPI.Finalize()
            return
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            kind = type(self.failed).__name__
            print(
                f"impi: rank {world.Get_rank()} ended with {kind}; the other ranks are ended too",
                file=sys.stderr,
                flush=True,
            )
        world.Abort(1)


class Aborted(ImpiError):
    """The script itself aborted the group."""


def short_naps() -> None:
    """Let the calling thread's naps be as short as they are asked for (Linux makes them longer to save power)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(29, SLACK, 0, 0, 0)  # PR_SET_TIMERSLACK


def cores_of(text: str) -> set[int]:
    """The cores named in a list such as `3` or `0,4-7`; empty for an empty text."""
    spans = [part.partition("-") for part in text.split(",") if part.strip()]
    return {core for low, _, high in spans for core in range(int(low), int(high or low) + 1)}


_engine: Engine | None = None


def engine() -> Engine:
    """The process's engine, made on first use."""
    global _engine  # the one global: MPI itself is one per process
    if _engine is None or _engine.pid != os.getpid():
        _engine = Engine()
    return _engine
