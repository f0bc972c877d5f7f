"""The queue of runs that wait for a host: a file each beside the host's lock, with its order, owner and expiry. A run
that has died is forgotten when its ticket is over."""

import os
import time
from contextlib import suppress
from typing import List, NamedTuple

from ipexctl.protocol import paths
from ipexctl.protocol.codec import DamagedError, decode, encode
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
