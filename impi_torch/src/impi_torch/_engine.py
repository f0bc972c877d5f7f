"""Operations in flight: one list for the whole process, moved on by whoever waits, or else by one thread.

An operation is a generator that starts MPI requests and yields a test ("is it there?"); when the test says yes the
generator goes on, and when it ends the operation is done. Nothing here blocks inside MPI, so a timeout can always be
told to the caller, and all MPI calls happen under one lock, so MPI_THREAD_SERIALIZED is enough.

A caller that waits polls by itself: a synchronous collective costs no change of thread. While nobody waits, a thread
`impi-progress` polls, so that communication goes on under the backward pass. Whoever finds an operation done calls what
hangs on its future; since that may wait for other operations, it gives the polling to another thread before.

The collectives of a group run in the order in which they were started, which must be that of all ranks. When a callback
on a future runs is nowhere fixed, but when it was attached is: the collectives that it starts (hooks of DDP) have their
place there, and what was started later waits until it has returned.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from datetime import timedelta
from typing import Any, Callable, Protocol

import torch
from torch.autograd import profiler
from torch.distributed import Work as TorchWork

from ._calls import SHOWN, Account, Caller, Calls, compare_accounts, find_caller
from ._exits import Exits, leave
from ._launch import ImpiError, mpi

Test = Callable[[], bool]
Operation = Generator[Test, None, None]
NO_TIMEOUT = timedelta(0)
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
# Before 2.8 torch's C++ side keeps only the C++ half of a Work, which without its Python half waits for ever.
KEEPS_HALF = VERSION < (2, 8)
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
FAREWELL = 0.2  # seconds between two looks of a rank that is done, whether another has failed
WORDS = 2 * SLOW  # seconds that a rank which failed stays, so that those who wait for it can say what they know
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
    last: str  # its name
    queue: list[Work | Place]  # collectives that were started, in order, and places of others; the first is in flight
    calls: Calls
    done: Work  # what a collective returns that ended at once

    def complaint(self, work: Work, timeout: float) -> str:
        """The text of a timeout: the ranks that `work` waits for, and where they are."""

    def explain(self, work: Work) -> str:
        """Why MPI may have failed in `work`; "" where that is not known."""

    def gone(self, work: Work) -> str:
        """Which rank that `work` waits for has left, and why, or what else keeps it; "" while nothing does."""

    def say_left(self, why: str = "") -> None:
        """Tell the other ranks that this process leaves; `why` where it failed."""

    def account(self, waiting: Sequence[Work]) -> Account:
        """What it has called, with those that wait for their turn."""

    @property
    def has_peers(self) -> bool:
        """Whether it has other members, which may wait for this one."""

    def failed(self) -> bool:
        """Whether another rank said that it failed."""


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
        size: int = 0,
    ) -> None:
        super().__init__()
        self.group, self.name, self.operation, self.results = group, name, operation, results
        self.limit, self.peer = limit, peer
        self.detail = ""  # what else they must give alike: the root, or the operation and its dtype
        self.size = size  # bytes of what all ranks must give or get as much of; 0 where they may differ
        self.seq = 0
        self.caller: Caller | None = None  # of a collective
        self.begun = time.monotonic()
        self.test: Test | None = None
        self.started = self.done = False
        self.error: BaseException | None = None
        self.future: Result | None = None  # once somebody asks for it
        self.shown: torch.futures.Future | None = None  # ends what a profiler sees of it
        self.source = -1 if peer is None else peer

    def __str__(self) -> str:
        return f"{self.name} #{self.seq}" if self.peer is None else f"{self.name} {self.peer}"

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until it is done (moving it on meanwhile); raises what went wrong. `timeout` 0 is the group's."""
        if not self.done:
            self.group.engine.drive(self, timeout.total_seconds() if timeout else 0.0)
        self.group.engine.kept.discard(self)
        if self.error is not None:
            raise self._explained(self.error)
        return True

    def _explained(self, error: BaseException) -> BaseException:
        """MPI's own error in a collective, with what the other ranks were in where that was another one."""
        if self.peer is not None or not isinstance(error.__cause__, mpi().Exception):
            return error
        why = self.group.explain(self)
        if why:
            self.error = ImpiError(f"impi: {self}: {why}; MPI says: {error.__cause__}")
        return self.error or error

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

    def finish(self) -> None:
        """Mark it as done. What a profiler sees of it ends before: who waits for it may stop the profiler then, which
        frees what the end is written into; so nothing is written either once none is on."""
        shown, self.shown = self.shown, None
        if shown is not None and profiler._is_profiler_enabled:
            shown.set_result(None)
        self.done = True

    def settle(self) -> None:
        """Give the future its value; never under the engine's lock, since callbacks may start operations."""
        assert self.future is not None
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.results)


class Place:
    """Where in a group's queue the collectives stand that a callback starts."""


class Failure:
    """What a future that failed holds. torch's C++ (DDP's reducer) looks for tensors in it by pickling it and takes the
    first one, without a look at whether there is any: it must meet the error there."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"

    def __reduce_ex__(self, _: Any) -> Any:
        raise self.error

    def unwrap(self) -> None:
        raise self.error


class Result(torch.futures.Future):
    """The future of a work, and what follows from it."""

    def __init__(self, group: Group, collective: bool) -> None:
        super().__init__()
        self._group, self._collective = group, collective

    def set_exception(self, error: BaseException) -> None:
        self._set_unwrap_func(Failure.unwrap)
        self.set_result(Failure(error))

    def then(self, callback: Callable[[Any], Any]) -> Result:
        after = Result(self._group, self._collective)
        place = self._reserve()

        def follow(_: Any) -> None:
            try:
                value = self._group.engine.call_at(self._group, place, callback, self)
            except Exception as error:
                after.set_exception(error)
            else:
                after.set_result(value)

        super().add_done_callback(follow)
        return after

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        place = self._reserve()
        super().add_done_callback(lambda _: self._group.engine.call_at(self._group, place, callback, self))

    def _reserve(self) -> Place | None:
        return self._group.engine.reserve(self._group, self) if self._collective else None


class Role(threading.local):
    """What the calling thread is, besides a caller."""

    waits = 0  # it counts as so many waiters
    leads = False  # it polls while nobody waits
    places: tuple[tuple[Group, Place], ...] = ()  # it calls what has these, the innermost last


class Engine:
    """All operations in flight of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.active: list[Work] = []
        self.abandoned: list[Work] = []  # MPI may still write into their tensors: kept for ever
        self.kept: set[Work] = set()
        self.groups: list[Group] = []
        self.former: deque[Account] = deque(maxlen=SHOWN)  # of groups that were destroyed
        self._sum = 0  # of the shares of all of them
        self.pid = os.getpid()
        self._role = Role()
        self._waiters = 0
        self._bell = threading.Semaphore(0)
        self._idle = True  # no thread leads, and none was called to
        self._threads: list[threading.Thread] = []
        self._busy = 0  # those that call what hangs on a future
        self._poll = 0.0  # seconds that a look takes which finds nothing, on average
        self._closing = False
        self._differs = False  # the ranks have called different collectives
        self._watched = 0.0
        self._shared_until = 0.0
        self._moved = 0.0
        self._watching = threading.Lock()
        short_naps()
        self._hire()
        self._exits = Exits()
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
                work.seq, group.last = group.seq, work.name
                self._line_up(group, work)
                settled = self._begin_first(group)
            else:
                settled = self._begin(work)
        self._settle(settled)
        if KEEPS_HALF:
            self.kept.add(work)
        if background and not work.done:
            self._ring()
        return work

    def _line_up(self, group: Group, entry: Work | Place) -> None:
        """Put `entry` where a callback that this thread calls has its place, else at the end."""
        places = [place for _, place in self._role.places if place in group.queue]
        group.queue.insert(group.queue.index(places[-1]) if places else len(group.queue), entry)

    def _begin_first(self, group: Group) -> list[Work]:
        first = group.queue[0] if group.queue else None
        if not isinstance(first, Work) or first.started:
            return []
        group.calls.note(first.name + first.detail, first.size, first.caller)
        return self._begin(first)

    def _begin(self, work: Work) -> list[Work]:
        work.started = True
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
        work.finish()
        work.operation = nothing()  # lets go of the tensors
        self.active.remove(work)
        settled = [work] if work.future is not None else []
        if work.peer is None:
            work.group.queue.remove(work)
            settled += self._begin_first(work.group)
        return settled

    def reserve(self, group: Group, future: torch.futures.Future) -> Place:
        """The place of the collectives that a callback will start which is attached to `future` now."""
        place = Place()
        with self.lock:
            if group.queue or not future.done():  # else nothing is behind which it had to stand
                self._line_up(group, place)
        return place

    def call_at(self, group: Group, place: Place | None, callback: Callable[[Any], Any], future: Any) -> Any:
        """Call `callback` with `future`; its collectives stand at `place`, which is then given up."""
        role = self._role
        outer = role.places
        if place is not None:
            role.places = (*outer, (group, place))
        try:
            return callback(future)
        finally:
            role.places = outer
            self._give_up(group, place)

    def _give_up(self, group: Group, place: Place | None) -> None:
        settled: list[Work] = []
        with self.lock:
            if place in group.queue:
                group.queue.remove(place)
                settled = self._begin_first(group)
        self._settle(settled)
        if self.active:
            self._ring()

    def _go_past_places(self, work: Work) -> None:
        """Give up the places of this thread behind which `work` stands, for which one of its callbacks waits."""
        for group, place in self._role.places:
            queue = group.queue
            if group is work.group and place in queue and work in queue and queue.index(place) < queue.index(work):
                self._give_up(group, place)

    def turn(self) -> None:
        """Move everything on once."""
        with self.lock:
            settled: list[Work] = []
            for work in self.active[:]:
                if not work.done:
                    settled += self._advance(work)
        self._settle(settled)

    def _settle(self, works: Sequence[Work]) -> None:
        """Give futures their values. What hangs on them may wait for other operations, so this thread neither leads
        nor counts as one that waits meanwhile."""
        if not works:
            return
        role = self._role
        waits, leads = role.waits, role.leads
        role.waits, role.leads = 0, False
        with self.lock:
            self._waiters -= waits
            self._busy += leads
            self._idle = self._idle or leads
        try:
            if self.active:
                self._ring()
            for work in works:
                work.settle()
        finally:
            role.waits = waits
            with self.lock:
                self._waiters += waits
                self._busy -= leads

    def future_of(self, work: Work) -> torch.futures.Future:
        """The future of `work`; nobody need wait for the work itself then, so the thread moves it on."""
        self.kept.discard(work)
        with self.lock:
            fresh = work.future is None
            if fresh:
                work.future = Result(work.group, work.peer is None)
            late = fresh and work.done
        if late:
            work.settle()
        elif not work.done:
            self._ring()
        return work.future

    def show_end(self, work: Work, end: torch.futures.Future) -> None:
        """Give `end` its value as soon as `work` is done."""
        with self.lock:
            work.shown = end
            if work.done:
                work.finish()

    def at_once(
        self,
        group: Group,
        begin: Callable[..., Any],
        words: Sequence[Any],
        alike: tuple[str, int],
        later: Callable[[Any], Work],
    ) -> Work | None:
        """Begin a short collective that the caller is going to wait for, and look at it for a while: mostly it is done
        by then (`group.done`). None, with nothing begun, where something else is in flight.

        Most of what an operation costs here otherwise is the machinery for those that take longer. `begin` with `words`
        starts the request for what is `alike` on all ranks, a detail and bytes; `later` makes an operation of a request
        that takes longer.
        """
        with self.lock:
            if self.active or group.queue or group.error is not None or self.pid != os.getpid():
                return None
            group.seq += 1
            group.last = "allreduce"  # the only one that is begun so
            group.calls.note(group.last + alike[0], alike[1], caller := find_caller())
            try:
                test = (request := begin(*words)).Test
                for _ in range(SPIN):
                    if test():
                        return group.done
            except Exception as error:
                raise ImpiError(f"impi: collective #{group.seq}: {error}") from error
            work = later(request)
            work.seq, work.caller = group.seq, caller
            group.queue.append(work)
            self._begin(work)  # it has no future yet, so there is nothing to settle
        if KEEPS_HALF:
            self.kept.add(work)
        return work

    # --- waiting ---------------------------------------------------------------------------------------------------

    def drive(self, work: Work, timeout: float) -> None:
        """Poll until `work` is done, or raise ImpiTimeout after `timeout` seconds (0: only the operation's own)."""
        end = time.monotonic() + timeout if timeout > 0 else float("inf")
        self._go_past_places(work)
        self._role.waits += 1
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
            self._role.waits -= 1
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
        """Call a thread to lead, if none does."""
        if self._idle:
            self._idle = False
            if self._busy == len(self._threads):
                self._hire()
            self._bell.release()

    def _hire(self) -> None:
        self._threads.append(threading.Thread(target=self._background, name="impi-progress", daemon=True))
        self._threads[-1].start()

    def _background(self) -> None:
        cores = cores_of(os.environ.get("IMPI_TORCH_WORKER_CORES", ""))
        if cores:
            os.sched_setaffinity(threading.get_native_id(), cores)
        crowded = not cores and len(os.sched_getaffinity(0)) <= torch.get_num_threads()
        role = self._role
        while not self._closing:
            self._bell.acquire()
            role.leads = True
            self._lead(role, crowded)
            if role.leads:
                role.leads = False
                self._idle = True
                if self.active and not self._waiters:
                    self._ring()

    def _lead(self, role: Role, crowded: bool) -> None:
        """Poll until nothing is left, somebody waits by himself, or another thread leads."""
        turns, nap, seen, own = 0, COURTESY, time.perf_counter(), time.thread_time()
        others = time.process_time() - own
        while role.leads and self.active and not self._waiters and not self._closing:
            self.turn()
            turns += 1
            computing = False
            if crowded:  # the core is shared with the thread that computes: does it, just now?
                now, mine, all_of_us = time.perf_counter(), time.thread_time(), time.process_time()
                computing = all_of_us - mine - others > (now - seen) / 4
                if mine - own < MOVED:
                    self._poll += (mine - own - self._poll) / 8
                seen, own, others = now, mine, all_of_us - mine
            if computing:
                time.sleep(nap)
                nap = min(nap * 2, max(COURTESY, SHARE * self._poll), MOST)
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
                    self.fail(work.group, ImpiError(f"impi: {gone}"))
        finally:
            self._watching.release()

    def fail(self, group: Group, error: BaseException) -> None:
        """End everything of `group` with `error`; it can do nothing more."""
        settled = []
        with self.lock:
            group.error = group.error or error
            works = [work for work in self.active if work.group is group]
            self.active = [work for work in self.active if work.group is not group]
            works += [work for work in group.queue if isinstance(work, Work) and work not in works]
            group.queue.clear()
            for work in works:
                if not work.done:
                    work.error = error
                    work.finish()
                    self.abandoned.append(work)
                    if work.future is not None:
                        settled.append(work)
        self._settle(settled)

    # --- the end ---------------------------------------------------------------------------------------------------

    def goodbye(self) -> None:
        """At the end of the script: MPI_Finalize when all ranks have come to theirs.

        A rank that is done says so (whoever still waits for it learns it within seconds) and waits quietly for the
        others; it fails where they have called other collectives than it. A rank that failed must not wait, and the
        others cannot go on without it: it tells them why and leaves without MPI_Finalize, with the exit status that
        Python gives it. The launcher ends the others.
        """
        if self.pid != os.getpid():
            return
        MPI = mpi()
        if MPI.Is_finalized():
            return
        ended = self._exits.ending()
        world, accounts = MPI.COMM_WORLD, [each for group in self.groups if (each := self._account_for(group))]
        if ended is None and self._wait_for_others(world, accounts):
            self._stop_threads()
            different = compare_accounts([*self.former, *accounts], world.allgather) if self._differs else ""
            MPI.Finalize()
            if different:
                sys.stdout.flush()
                print(f"impi: {different}", file=sys.stderr, flush=True)
                os._exit(1)  # the script's own status is known by now, and nothing else changes it
            return
        self._stop_threads()
        if ended is not None:
            for group in self.groups:
                group.say_left(ended.words)
            if ended.of_script:
                self._wait_for_words()
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                print(f"impi: rank {MPI.COMM_WORLD.Get_rank()} ended with {ended.words}", file=sys.stderr, flush=True)
        leave(ended)

    def _account_for(self, group: Group) -> Account | None:
        """What the script has called in a group; None where a callback may still call more, and where the group failed:
        what ranks call after an error is their own affair."""
        with self.lock:
            waiting = [entry for entry in group.queue if not (isinstance(entry, Work) and entry.started)]
            works = [entry for entry in waiting if isinstance(entry, Work)]
            return group.account(works) if group.error is None and len(works) == len(waiting) else None

    def close(self, group: Group) -> None:
        """Take leave of a group that is destroyed; what was called in it counts at the end."""
        if account := self._account_for(group):
            self.former.append(account)
            self._sum += account.share

    def _wait_for_others(self, world: Any, accounts: Sequence[Account]) -> bool:
        """Whether all ranks have come to the end of their scripts; not, as soon as one says that it failed."""
        for group in self.groups:
            group.say_left()
        shares = array.array("Q", [(self._sum + sum(each.share for each in accounts)) % 2**64])
        total = array.array("Q", [0])
        farewell = world.Iallreduce(shares, total, mpi().SUM)
        patience, asked = 0.0001, time.monotonic()
        while True:
            with self.lock:
                if farewell.Test():
                    self._differs = total[0] != 0
                    return True
            self.turn()
            now = time.monotonic()
            self._watch(now)
            if now - asked > FAREWELL:
                asked = now
                if any(group.failed() for group in self.groups):
                    return False
            time.sleep(patience)
            patience = min(patience * 1.5, 0.01)

    def _wait_for_words(self) -> None:
        """Waits until another rank has said how it ends, too: it may know that the ranks called different collectives,
        on the bytes of which this one failed. Whoever starts the ranks ends the others with this one."""
        end = time.monotonic() + WORDS
        while time.monotonic() < end and any(group.has_peers and not group.failed() for group in self.groups):
            time.sleep(FAREWELL / 4)

    def _stop_threads(self) -> None:
        self._closing = True
        self._bell.release(len(self._threads))
        for thread in self._threads:
            thread.join(1.0 / len(self._threads))


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
