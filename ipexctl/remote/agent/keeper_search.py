"""Where a guard finds the keeper of its run again: one rule for all runs (docs/survive.md).

It looks on the host where the keeper was, and on later ones in the order of leaders, to which it never goes back. It
gives up once no host can have a keeper any more, or after 15 minutes."""

import os
import socket
import time
from contextlib import suppress
from typing import Callable, Dict, List, Optional, Tuple

from ipexctl.protocol.paths import Role
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.remote.agent import procs, rpc

Address = Tuple[str, int]


class KeeperSearch:
    """``spec`` is that of the first attempt, ``address`` that of its keeper. ``start_keeper`` becomes one, in a process
    of its own."""

    def __init__(self, spec: "RunSpec", address: "Address", start_keeper: "Callable[[socket.socket], None]") -> None:
        self.spec, self.start_keeper = spec, start_keeper
        self.leader, self.address = next(iter(spec.leaders)), address  # the host with the keeper, and where that is
        self.former = self.leader, self.address  # of the keeper before
        self.ports: "Dict[str, int]" = {}  # of hosts that may take the leader's place
        self.standby: "Optional[socket.socket]" = None  # where this host would
        # Since when there has been no keeper that began an attempt or goes on with it, and when a host that may have
        # one was silent last; the others refused the connection. 0: there is one.
        self.lost_at = self.silent_at = 0.0
        self.process = 0  # the keeper of this host, if it has tried to take the leader's place
        with suppress(OSError):  # without a free port this host leads nothing
            if spec.reserve:
                self.standby = rpc.listen_on_free_port(spec.reserve.address, spec.reserve.ports, later=True)

    @property
    def port(self) -> int:
        return self.standby.getsockname()[1] if self.standby else 0

    def end(self) -> None:
        """An attempt begins: the leader is the one that leads it."""
        self.lost_at = self.silent_at = 0.0

    def go_back(self) -> None:
        """The leader could not take the place of the one before."""
        self.leader, self.address = self.former

    def list_later(self) -> "Dict[str, Address]":
        """Returns the hosts behind the leader that may take its place, in their order."""
        order = list(self.spec.leaders)
        later = order[order.index(self.leader) + 1 :]
        return {host: (self.spec.leaders[host], self.ports[host]) for host in later if host in self.ports}

    def connect(self, keepers: "Dict[str, Address]") -> "Tuple[Optional[rpc.Wire], List[str]]":
        """Returns a connection to the first keeper that is there, and before it the hosts that refused one."""
        refused = []
        for host, address in keepers.items():
            try:
                wire = rpc.connect(*address, self.spec.token, Role.GUARD, self.spec.host, self.spec.timings.reach)
            except ConnectionRefusedError:
                refused.append(host)
            except OSError:
                # Its own port listens from its first try to lead on.
                if host == self.spec.host and address[1] == self.port:
                    refused.append(host)
            else:
                if host == self.leader:
                    self.end()
                else:
                    self.former, self.leader, self.address = (self.leader, self.address), host, address
                return wire, refused
        return None, refused

    def await_keeper(self) -> "Optional[rpc.Wire]":
        """Returns a connection to the keeper or to one in its place; None once no host can have one any more."""
        timings, begun = self.spec.timings, time.monotonic()
        self.lost_at, self.silent_at = self.lost_at or begun, self.silent_at or begun
        while time.monotonic() < self.lost_at + timings.away:
            later = self.list_later()
            wire, refused = self.connect({self.leader: self.address, **later})
            if wire:
                return wire
            if len(refused) <= len(later):
                self.silent_at = time.monotonic()
            elif not later or time.monotonic() >= self.silent_at + timings.rejoin:
                return None
            self.take_turn(list(later), time.monotonic() - begun)
            time.sleep(timings.steady)
        return None

    def take_turn(self, later: "List[str]", away: float) -> None:
        """Starts a keeper here, if no host before this one has, which each has had some seconds to do."""
        procs.reap_children()
        host = self.spec.host
        due = host in later and away >= later.index(host) * self.spec.timings.turn
        if not due or self.standby is None or (self.process and procs.find_process(self.process)):
            return
        self.process = os.fork()
        if not self.process:
            try:
                self.start_keeper(self.standby)
            finally:
                os._exit(1)
