"""Attempts of a run whose hosts hypothesis cuts off, in one direction or both, for any time: never do ranks of two
attempts compute at once, and every history ends. The keeper's state machine is the real one; its clock, its connections
and the guards are played, by the rules of `keeper.Keeper.serve` and `guard.Guard.do_round`.

``IPEXCTL_HISTORIES=100000`` so many."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipexctl.protocol import journal, messages
from ipexctl.protocol.rank_records import RankEnded, RankStarted
from ipexctl.protocol.run_spec import NodeSpec, RankSpec
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import keeper_state as ks
from tests.unit.agent.runs import SPEC

HOSTS = "abc"  # a is the head: its guard shares the keeper's host
STEP, LEASE, PING = 0.5, 30.0, 2.0
NODES = {host: NodeSpec(f"h{at}.x", [at], "/d", "python") for at, host in enumerate(HOSTS)}
WORDS = [*("mpirun", "-n", "1", "-host", "h0.x", "rank"), *(":", "-n", "1", "-host", "h1.x", "rank")]
HEAD = SPEC.head_spec._replace(hosts=NODES, mpiexec=[*WORDS, ":", "-n", "1", "-host", "h2.x", "rank"], min_hosts=1)
THREE = SPEC._replace(size=3, ranks={0: RankSpec(0)}, head=HEAD, restarts=9, timings=Timings())


class Guard:
    """A host but for its ranks' work. ``computes`` is the attempt whose ranks are at work there."""

    def __init__(self, host: str) -> None:
        self.host, self.heard, self.attempt, self.kill_at = host, 0.0, 0, float("inf")
        self.computes: int | None = None
        self.connected = True


class Run:
    """Time goes on in steps. What is on its way waits while its direction is cut, in its order, as TCP's does."""

    def __init__(self, delays: list[float]) -> None:
        self.now, self.delays = 0.0, delays
        self.guards = {host: Guard(host) for host in HOSTS}
        self.cuts: set[tuple[str, bool]] = set()  # (host, towards it)
        self.to_guard: dict[str, list[tuple[float, Any]]] = {host: [] for host in HOSTS}
        self.to_keeper: dict[str, list[tuple[float, Any]]] = {host: [] for host in HOSTS}
        self.heard, self.ponged = dict.fromkeys(HOSTS, 0.0), dict.fromkeys(HOSTS, 0.0)
        self.wires = set(HOSTS)  # as the keeper sees them
        self.closed: list[journal.RunEnd] = []
        self.run, self.pinged = ks.create_run(THREE, ks.Moment(0.0, 1e6)), 0.0
        for host in HOSTS:
            self.feed(ks.GuardConnected(host, 1e6))

    def delay(self) -> float:
        self.delays.append(self.delays.pop(0))
        return self.delays[0]

    def feed(self, what: ks.Input) -> None:
        self.run, actions = ks.next_step(self.run, what, ks.Moment(self.now, 1e6 + self.now))
        for action in actions:
            if isinstance(action, ks.Send):
                for host in self.wires if not action.host else self.wires & {action.host}:
                    self.to_guard[host].append((self.now + self.delay(), action.message))
            elif isinstance(action, ks.StartLauncher):
                self.feed(ks.LauncherStarted(9, 4000))
                for host, node in self.run.spec.head_spec.hosts.items():
                    if node.ranks and host in self.wires:
                        self.to_guard[host].append((self.now + self.delay(), messages.StartProxy([])))
            elif isinstance(action, ks.Disconnect):
                self.wires.discard(action.host)
                self.to_guard[action.host].append((self.now + self.delay(), None))  # its end
                self.to_keeper[action.host].clear()
            elif isinstance(action, ks.Close):
                self.closed.append(action.end)

    def step(self) -> None:
        self.now += STEP
        for host, guard in self.guards.items():
            self.play_guard(host, guard)
        for host in HOSTS:
            mail = self.to_keeper[host]
            while mail and mail[0][0] <= self.now and (host, False) not in self.cuts and host in self.wires:
                message = mail.pop(0)[1]
                self.heard[host] = self.now
                if isinstance(message, messages.Pong):
                    self.ponged[host] = message.steady
                self.feed(ks.FromGuard(host, message))
        for host in sorted(self.wires):
            if self.now - self.heard[host] > LEASE:
                self.feed(ks.GuardLost(host, "silent", silent=self.now - self.heard[host]))
        if self.now - self.pinged >= PING:
            self.pinged = self.now
            for host in self.wires:
                self.to_guard[host].append((self.now + self.delay(), messages.Ping(self.now, self.ponged[host])))
        self.feed(ks.Tick(watched=False))
        computing = {guard.computes for guard in self.guards.values()} - {None}
        assert len(computing) <= 1, f"attempts {computing} compute at once"

    def play_guard(self, host: str, guard: Guard) -> None:
        mail = self.to_guard[host]
        while guard.connected and mail and mail[0][0] <= self.now and (host, True) not in self.cuts:
            self.answer(guard, mail.pop(0)[1])
        if guard.connected and self.now - guard.heard > LEASE:
            self.lose_keeper(guard)
        if self.now >= guard.kill_at:
            guard.computes, guard.kill_at = None, float("inf")
        free = not {(host, True), (host, False)} & self.cuts
        if not guard.connected and guard.computes is None and free and self.run.state is not ks.RunPhase.DONE:
            if host in self.wires:
                self.feed(ks.GuardLost(host, "is back"))
            guard.connected, guard.heard = True, self.now
            self.to_guard[host].clear()
            self.wires.add(host)
            self.heard[host], self.ponged[host] = self.now, 0.0
            self.feed(ks.GuardConnected(host, 1e6))
            self.say(guard, messages.Cleaned([]))

    def lose_keeper(self, guard: Guard) -> None:
        guard.connected, guard.kill_at = False, self.now + 1.0

    def say(self, guard: Guard, message: messages.Message) -> None:
        if guard.connected:
            self.to_keeper[guard.host].append((self.now + self.delay(), message))

    def answer(self, guard: Guard, message: messages.Message | None) -> None:
        if message is None:
            self.lose_keeper(guard)
        elif isinstance(message, messages.Ping):
            guard.heard = max(guard.heard, message.heard)
            self.say(guard, messages.Pong(message.sent, 1e6 + self.now, self.now))
        elif isinstance(message, messages.Begin):
            guard.attempt = message.world.number
            self.say(guard, messages.Begun(message.world.number))
        elif isinstance(message, messages.StartProxy):
            guard.computes = guard.attempt
            for rank in self.get_ranks(guard.host):
                self.say(guard, RankStarted(rank, guard.host, 1, 2, [], 1e6 + self.now))
        elif isinstance(message, (messages.Terminate, messages.Kill, messages.Finish)):
            if guard.computes is not None:
                guard.computes = None
                for rank in self.get_ranks(guard.host):
                    self.say(guard, RankEnded(rank, guard.host, signal=15, stopped=True, at=1e6 + self.now))
            if isinstance(message, messages.Finish):
                self.say(guard, messages.Cleaned([]))

    def get_ranks(self, host: str) -> list[int]:
        return self.run.spec.head_spec.hosts[host].ranks

    def fail(self) -> None:
        """A rank on the head fails."""
        if self.guards["a"].computes is not None and self.guards["a"].computes == self.run.restart:
            self.guards["a"].computes = None
            self.say(self.guards["a"], RankEnded(0, "a", status=1, at=1e6 + self.now))


events = st.one_of(
    st.tuples(st.just("cut"), st.sampled_from("bc"), st.booleans()),
    st.tuples(st.just("heal"), st.sampled_from("bc"), st.booleans()),
    st.tuples(st.just("fail"), st.just("a"), st.booleans()),
)


@settings(
    max_examples=int(os.environ.get("IPEXCTL_HISTORIES", settings.default.max_examples if settings.default else 100)),
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
@given(
    st.lists(st.tuples(st.integers(1, 120), events), max_size=12),
    st.lists(st.floats(0.0, 8.0), min_size=1, max_size=9),
)
def test_ranks_of_two_attempts_never_compute_at_once(history: list[tuple[int, Any]], delays: list[float]) -> None:
    played = Run(delays)
    for steps, (what, host, towards) in history:
        for _ in range(steps):
            played.step()
        if what == "fail":
            played.fail()
        elif what == "cut":
            played.cuts.add((host, towards))
        else:
            played.cuts.discard((host, towards))
    played.feed(messages.StopRun("enough"))
    for _ in range(600):
        played.step()
    assert [end.reason for end in played.closed] in ([reason] for reason in ("stopped", "rank", "lost", "launch"))


def test_a_lost_host_is_left_out_and_taken_back() -> None:
    played = Run([0.0])
    for _ in range(20):
        played.step()
    played.cuts = {("c", True), ("c", False)}
    while [guard.computes for guard in played.guards.values()] != [1, 1, None]:
        played.step()
        assert played.now < 60.0
    played.cuts.clear()
    for _ in range(20):
        played.step()
    played.fail()
    for _ in range(60):
        played.step()
    assert [guard.computes for guard in played.guards.values()] == [2, 2, 2]
    assert played.run.spec.size == 3
