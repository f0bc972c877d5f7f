"""Which run has a host: the lock of an account on it. And the queue of runs that wait for it: a file each beside the
lock, with its order, owner and expiry. A run that has died is forgotten when its ticket is over."""

import fcntl
import os
import time
from contextlib import suppress
from typing import Callable, List, NamedTuple, Optional, Tuple

from ipexctl.protocol import paths
from ipexctl.protocol.codec import DamagedError, decode, encode
from ipexctl.protocol.messages import KINDS, HostBusy, HostWaits
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.remote.agent import files

LIFETIME = 30.0  # seconds for which a ticket holds that is not renewed
RENEWAL_INTERVAL = 1.0  # seconds between two renewals


class Ticket(NamedTuple):
    """``since`` is the order: when the run was started, by its controller's clock. ``until`` is by this host's."""

    since: float
    run: str
    owner: str
    until: float


def write_ticket(base: str, since: float, run: str, owner: str) -> None:
    """Takes a place in the queue, or keeps it. On a full disk it has none for now."""
    with suppress(OSError):
        files.write_json(base, _get_name(run), encode(Ticket(since, run, owner, time.time() + LIFETIME)))


def remove_ticket(base: str, run: str) -> None:
    """Leaves the queue."""
    with suppress(OSError):
        os.unlink(os.path.join(base, _get_name(run)))


def list_tickets(base: str) -> "List[Ticket]":
    """Returns the queue of this host, the first one first; what is over is removed."""
    queue, start = [], _get_name("")
    for name in os.listdir(base):
        if not name.startswith(start) or "." in name[len(start) :]:  # as it has while it is written
            continue
        with suppress(OSError, DamagedError):
            ticket = decode(Ticket, files.read_json(base, name))
            if ticket.until > time.time():
                queue.append(ticket)
            else:
                remove_ticket(base, ticket.run)
    return sorted(queue)


def _get_name(run: str) -> str:
    return "%s%s+%s" % (paths.TICKET, files.get_host_tag(), run)


def take_host(base: str, spec: "RunSpec") -> "Tuple[int, Optional[HostBusy]]":
    """Takes the host's lock for a run, unless another one holds it, or has waited longer for it: that one's record."""
    queue = list_tickets(base)
    if queue and queue[0].run != spec.run and not spec.share:
        return -1, HostBusy(queue[0].run, queue[0].owner, queue[0].since)
    return lock_host(os.path.join(base, paths.LOCK + files.get_host_tag()), spec)


def lock_host(path: str, spec: "RunSpec") -> "Tuple[int, Optional[HostBusy]]":
    """Takes the lock for as long as this process (not its children) lives, or its descriptor is open; its holder's
    record if it is taken. The kernel gives the lock back when the holder ends, however it ends: there are no stale
    locks."""
    door = os.open(path + ".door", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(door, fcntl.LOCK_EX)  # one at a time: nobody reads of a holder that has not written yet
        except OSError:  # a home without locks: nothing keeps two runs from one host
            return -1, None
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with os.fdopen(fd, "rb") as text:
                holder = KINDS.read(text.read())
            return -1, holder if isinstance(holder, HostBusy) else HostBusy()
        os.ftruncate(fd, 0)
        os.pwrite(fd, KINDS.write(HostBusy(spec.run, spec.owner, spec.started)), 0)
        return fd, None
    finally:
        os.close(door)


class HostQueue:
    """The place of a run that waits in the queue of this host. ``report`` gets how far it is."""

    def __init__(self, base: str, spec: "RunSpec", report: "Callable[[HostWaits], None]") -> None:
        self.base, self.spec, self.report = base, spec, report
        self.waits = spec.wait  # the host is another run's, or not all hosts are free
        self.renewed = 0.0  # when the ticket was
        self.lock = -1
        self.reported = HostWaits(True)

    def wait(self, now: float) -> None:
        if not self.waits or now < self.renewed + RENEWAL_INTERVAL:
            return
        self.renewed, spec = now, self.spec
        write_ticket(self.base, spec.started, spec.run, spec.owner)
        lock, holder = take_host(self.base, spec)
        if lock >= 0:  # for a moment: other hosts may not be free
            os.close(lock)
        before = sum(ticket[:2] < (spec.started, spec.run) for ticket in list_tickets(self.base))
        self._report(HostWaits(False, holder, before))

    def take(self) -> None:
        """All hosts are free for the run."""
        self.lock, holder = take_host(self.base, self.spec)
        self.waits = holder is not None
        if not self.waits:
            self.leave()
        self._report(HostWaits(not self.waits, holder))

    def go_back(self) -> None:
        """Another host was not free after all."""
        self.waits = True
        if self.lock >= 0:
            os.close(self.lock)

    def leave(self) -> None:
        remove_ticket(self.base, self.spec.run)

    def _report(self, waits: HostWaits) -> None:
        if waits != self.reported:
            self.reported = waits
            self.report(waits)
