"""Attempts of a run whose hosts hypothesis cuts off, freezes or kills, its head among them where others may take its
place: never do ranks of two attempts compute at once, whichever hosts lead. The keepers' state machines are the real
ones; clocks, connections and guards are played, by the rules of `keeper.Keeper.serve` and of `guard.Guard`.

``IPEXCTL_HISTORIES=100000`` so many."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ipexctl.protocol import journal, messages
from ipexctl.protocol.rank_layout import RankLayout
from ipexctl.protocol.rank_records import RankEnded, RankStarted
from ipexctl.protocol.run_spec import NodeSpec, RankSpec
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import keeper_state as ks
from ipexctl.remote.agent.keeper_steps import next_step
from tests.unit.agent.runs import SPEC

HOSTS = "abcde"
SPLIT = ("ab", "abcd", "abc")  # hosts of runs with --on-split wait
STEP, LEASE, PING = 0.5, 30.0, 2.0
TIMINGS = Timings()
NODES = {host: NodeSpec(f"h{at}.x", [at], "/d", "python") for at, host in enumerate(HOSTS)}


def make_spec(leader: str, used: int, leaders: str, hosts: str) -> Any:
    """What this host has when it leads: it is the first of all. Without ``leaders`` any host goes on alone."""
    order = sorted(hosts, key=lambda host: host != leader)
    size = len(hosts)
    words = ["mpirun", "-ppn", "1", "-hosts", ",".join(f"{NODES[host].label}:1" for host in order)]
    words += ["-n", str(size), "rank"]
    least, nodes = size // 2 + 1 if leaders else 1, {host: NODES[host] for host in order}
    split = (size + 1) // 2 if hosts in SPLIT else 0
    head = SPEC.head_spec._replace(hosts=nodes, mpiexec=words, min_hosts=least, used=used, split_hosts=split)
    more: dict[str, Any] = {"size": used or size, "ranks": {0: RankSpec(0)}, "restarts": 99}
    return SPEC._replace(
        host=leader, head=head, timings=TIMINGS, leaders=dict.fromkeys(leaders or "a", "10.0.0.1"), **more
    )


class Keeper:
    def __init__(self, host: str, run: ks.KeeperRun, now: float) -> None:
        self.host, self.run = host, run
        self.asked: dict[str, float] = {}  # connected guards → when a ping was sent that it answered
        self.answers: dict[str, ks.LastPong] = {}
        self.hangs = False  # the process alone
        self.pinged = self.last = now


class Guard:
    """A host but for its ranks' work. ``computes`` is the attempt whose ranks are at work there, and who leads it."""

    def __init__(self, host: str) -> None:
        self.host, self.leader, self.former = host, "a", "a"
        self.keeper: Keeper | None = None
        self.heard = self.word = self.left = self.last = 0.0  # ``word``: when the keeper's last one came
        self.dead = False  # the process alone: its wrappers end the ranks
        self.layout, self.kill_at = RankLayout(0, {}), float("inf")
        self.computes: tuple[str, int] | None = None


class Cluster:
    """Time goes on in steps. What is on its way waits while its direction is cut, in its order, as TCP's does."""

    def __init__(self, delays: list[float], used: int, leaders: str = "abcd", hosts: str = HOSTS) -> None:
        self.now, self.delays, self.used, self.leaders, self.hosts = 0.0, delays, used, leaders, hosts
        self.cuts: set[tuple[str, str]] = set()  # from, to
        self.frozen: set[str] = set()
        self.mail: dict[tuple[Keeper, str, bool], list[tuple[float, Any]]] = {}  # (keeper, guard's host, to the guard)
        self.keepers = {"a": Keeper("a", ks.KeeperRun(self.make_spec("a"), self.clock), 0.0)}
        self.closed: list[journal.RunEnd] = []
        self.votes: list[tuple[float, str]] = []  # on their way, with when they arrive at the earliest
        self.elected = ""  # the one host that has got any
        self.guards = {host: Guard(host) for host in hosts}
        for guard in self.guards.values():
            self.connect(guard, self.keepers["a"], "")
        self.worlds: list[tuple[str, int]] = []

    def make_spec(self, leader: str) -> Any:
        return make_spec(leader, self.used, self.leaders, self.hosts)

    @property
    def clock(self) -> ks.Moment:
        return ks.Moment(self.now, 1e6 + self.now)

    def delay(self) -> float:
        self.delays.append(self.delays.pop(0))
        return self.delays[0]

    def post(self, keeper: Keeper, host: str, to_guard: bool, message: Any) -> None:
        self.mail.setdefault((keeper, host, to_guard), []).append((self.now + self.delay(), message))

    def collect(self, keeper: Keeper, host: str, to_guard: bool) -> Iterator[Any]:
        way = (keeper.host, host) if to_guard else (host, keeper.host)
        waiting = self.mail.setdefault((keeper, host, to_guard), [])
        while waiting and waiting[0][0] <= self.now and way not in self.cuts:
            yield waiting.pop(0)[1]

    def reaches(self, one: str, other: str) -> bool:
        return not self.frozen & {one, other} and not {(one, other), (other, one)} & self.cuts

    # -- keepers ----------------------------------------------------------------------------------------------------

    def connect(self, guard: Guard, keeper: Keeper, lost: str) -> None:
        if guard.host in keeper.asked:
            self.feed(keeper, ks.GuardLost(guard.host, "its guard had lost node0"))
        for to_guard in (True, False):
            self.mail[keeper, guard.host, to_guard] = []
        guard.keeper, guard.heard, keeper.asked[guard.host] = keeper, self.now, self.now
        keeper.answers.pop(guard.host, None)
        self.feed(keeper, ks.GuardConnected(guard.host, 1e6))
        self.post(keeper, guard.host, False, self.introduce(guard, lost))
        guard.word, guard.kill_at = self.now, float("inf")

    def introduce(self, guard: Guard, lost: str) -> messages.Joined:
        away, layout = self.now - guard.word, guard.layout
        return messages.Joined(layout.number, list(layout.ranks), lost, away, self.now, 4000)

    def feed(self, keeper: Keeper, what: ks.Input) -> None:
        for action in next_step(keeper.run, what, self.clock):
            if isinstance(action, ks.Send):
                for host in list(keeper.asked) if not action.host else {action.host} & set(keeper.asked):
                    self.post(keeper, host, True, action.message)
            elif isinstance(action, ks.StartLauncher):
                self.feed(keeper, ks.LauncherStarted(9, 4000))
                for host, node in keeper.run.spec.head_spec.hosts.items():
                    if node.ranks and host in keeper.asked:
                        self.post(keeper, host, True, messages.StartProxy([]))
            elif isinstance(action, ks.Disconnect):
                keeper.asked.pop(action.host, None)
                self.post(keeper, action.host, True, None)  # its end
            elif isinstance(action, ks.Close):
                self.closed.append(action.end)
        if keeper.run.state is ks.RunPhase.DONE:
            for host in list(keeper.asked):
                self.post(keeper, host, True, None)
            keeper.asked.clear()

    def play_keeper(self, keeper: Keeper) -> None:
        stood = self.now - keeper.last > LEASE
        for host in list(keeper.asked):
            if stood and host in keeper.asked:
                self.feed(keeper, ks.GuardLost(host, "node0 stood still", silent=self.now - keeper.last))
        keeper.last = self.now
        for host in self.hosts:
            for message in self.collect(keeper, host, False):
                if host not in keeper.asked:
                    break
                if message is None:
                    self.feed(keeper, ks.GuardLost(host, "its guard ended"))
                    keeper.asked.pop(host, None)
                    break
                if isinstance(message, messages.Pong):
                    keeper.asked[host] = message.asked
                    keeper.answers[host] = ks.LastPong(message.asked, message.steady, self.now)
                self.feed(keeper, ks.FromGuard(host, message))
        for host in list(keeper.asked):
            if self.now - keeper.asked.get(host, self.now) > LEASE:
                self.feed(keeper, ks.GuardLost(host, "silent", silent=self.now - keeper.asked[host]))
        if self.now - keeper.pinged >= PING:
            keeper.pinged = self.now
            answers = {host: answer for host, answer in keeper.answers.items() if host in keeper.asked}
            heard = ks.find_heard(keeper.run, answers)
            for host in keeper.asked:
                self.post(keeper, host, True, messages.Ping(self.now, heard.get(host, 0.0), self.now))
        self.feed(keeper, ks.Tick(watched=False))

    # -- guards -----------------------------------------------------------------------------------------------------

    def play_guard(self, guard: Guard) -> None:
        if guard.dead:
            guard.computes = guard.computes if self.now < guard.kill_at else None
            return
        stood, guard.last = self.now - guard.last > LEASE, self.now
        if stood:
            guard.computes = None
            self.lose_keeper(guard)
        keeper = guard.keeper
        if keeper is not None:
            for message in self.collect(keeper, guard.host, True):
                guard.word = self.now
                self.answer(guard, keeper, message)
                if guard.keeper is not keeper:
                    break
        if guard.keeper is not None and self.now - guard.heard > LEASE:
            self.lose_keeper(guard)
        if self.now >= guard.kill_at:
            guard.computes, guard.kill_at = None, float("inf")
        if guard.keeper is None and guard.computes is None:
            self.look_for_keeper(guard)

    def lose_keeper(self, guard: Guard) -> None:
        if guard.keeper is not None:
            self.post(guard.keeper, guard.host, False, None)
            guard.keeper, guard.left, guard.kill_at = None, self.now, self.now + 1.0

    def look_for_keeper(self, guard: Guard) -> None:
        later = [host for host in self.leaders if host > guard.leader]
        if self.join_one(guard, [guard.leader, *later]):
            return
        own = self.keepers.get(guard.host)
        free = own is None or own.run.state is ks.RunPhase.DONE
        if guard.host in later and free and self.now - guard.left >= later.index(guard.host) * TIMINGS.turn:
            run = ks.KeeperRun(self.make_spec(guard.host), self.clock, takes_over=True)
            self.keepers[guard.host] = Keeper(guard.host, run, self.now)

    # -- the command that started the run, which reaches each host after some time ----------------------------------

    def vote(self, host: str) -> None:
        """For a host that has a keeper, or has had one, unless another one has got a vote."""
        if host in self.keepers and self.elected in ("", host):
            self.elected = host
            self.votes.append((self.now + 10 * self.delay(), host))

    def deliver_votes(self) -> None:
        due = [vote for vote in self.votes if vote[0] <= self.now]
        self.votes = [vote for vote in self.votes if vote not in due]
        for _, host in due:
            if host in self.keepers and host not in self.frozen and not self.keepers[host].hangs:
                self.feed(self.keepers[host], messages.Vote())

    def join_one(self, guard: Guard, leaders: list[str]) -> bool:
        for host in leaders:
            keeper = self.keepers.get(host)
            serves = keeper and not keeper.hangs and keeper.run.state is not ks.RunPhase.DONE
            if keeper and serves and self.reaches(guard.host, host):
                lost = guard.leader
                if host != guard.leader:
                    guard.former, guard.leader = guard.leader, host
                self.connect(guard, keeper, lost)
                return True
        return False

    def answer(self, guard: Guard, keeper: Keeper, message: Any) -> None:
        def say(answer: Any) -> None:
            self.post(keeper, guard.host, False, answer)

        if message is None:
            self.lose_keeper(guard)
        elif isinstance(message, messages.Release):
            guard.leader = guard.former
            self.lose_keeper(guard)
        elif isinstance(message, messages.Ping):
            guard.heard = max(guard.heard, message.heard)
            say(messages.Pong(message.sent, 1e6 + self.now, self.now, message.steady))
        elif isinstance(message, messages.Begin):
            guard.layout = message.layout
            say(messages.Begun(message.layout.number))
        elif isinstance(message, messages.StartProxy):
            guard.computes = (keeper.host, guard.layout.number)
            self.worlds.append(guard.computes)
            for rank in keeper.run.spec.head_spec.hosts[guard.host].ranks:
                say(RankStarted(rank, guard.host, 1, 2, [], 1e6 + self.now))
        elif isinstance(message, (messages.Kill, messages.Finish)):  # ranks do not care for the polite stop
            if guard.computes is not None:
                guard.computes = None
                for rank in keeper.run.spec.head_spec.hosts[guard.host].ranks:
                    say(RankEnded(rank, guard.host, signal=9, stopped=True, at=1e6 + self.now))
            if isinstance(message, messages.Finish):
                say(messages.Cleaned([]))
        elif isinstance(message, messages.FindLeader):
            later = [host for host in self.leaders if host > guard.leader]
            if not self.join_one(guard, later):
                reached = [host for host in later if self.reaches(guard.host, host)]
                say(messages.NoLeader(reached))

    def fail(self, host: str) -> None:
        """A rank of this host fails."""
        guard = self.guards[host]
        if guard.computes is not None and guard.keeper is not None:
            guard.computes = None
            for rank in guard.keeper.run.spec.head_spec.hosts[host].ranks:
                self.post(guard.keeper, host, False, RankEnded(rank, host, status=1, at=1e6 + self.now))

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += STEP
            self.deliver_votes()
            for guard in self.guards.values():
                if guard.host not in self.frozen:
                    self.play_guard(guard)
            for keeper in list(self.keepers.values()):
                alive = keeper.host not in self.frozen and not keeper.hangs
                if alive and keeper.run.state is not ks.RunPhase.DONE:
                    self.play_keeper(keeper)
            computing = {guard.computes for guard in self.guards.values() if guard.host not in self.frozen} - {None}
            assert len(computing) <= 1, f"{computing} compute at once, at {self.now}"

    def cut(self, host: str) -> None:
        self.cuts |= {pair for other in self.hosts if other != host for pair in ((host, other), (other, host))}

    def play(self, history: "Histories") -> None:
        for steps, event in history:
            self.step(steps)
            self.harm(*event)

    def harm(self, what: str, one: str, other: str) -> None:
        """One event of a history, or its mending."""
        if what == "cut" and one != other:
            self.cuts.add((one, other))
        elif what == "heal":
            self.cuts.discard((one, other))
        elif what == "isolate":
            self.cut(one)
        elif what == "heal all":
            self.cuts.clear()
        elif what == "freeze":
            self.frozen.add(one)
        elif what == "thaw":
            self.frozen.discard(one)
        elif what == "fail":
            self.fail(one)
        elif what == "vote":
            self.vote(one)
        elif what == "orphan" and not self.guards[one].dead:
            guard = self.guards[one]
            self.lose_keeper(guard)
            guard.dead, guard.kill_at = True, self.now + 1.5
        elif what in ("hang", "go on") and one in self.keepers:
            self.keepers[one].hangs = what == "hang"
        elif what == "crash" and one in self.keepers:
            keeper = self.keepers.pop(one)  # its mpirun's proxies end with their guards
            for host in keeper.asked:
                self.post(keeper, host, True, None)


HARMS = ("cut", "heal", "isolate", "heal all", "freeze", "thaw", "fail", "orphan")
Histories = list[tuple[int, tuple[str, str, str]]]


def list_histories(harms: tuple[str, ...], hosts: str, others: str = HOSTS) -> st.SearchStrategy[Histories]:
    """What happens to these hosts, each after so many steps."""
    event = st.tuples(st.sampled_from(harms), st.sampled_from(hosts), st.sampled_from(others))
    return st.lists(st.tuples(st.integers(1, 200), event), max_size=14)


DELAYS = st.lists(st.floats(0.0, 8.0), min_size=1, max_size=9)
many_histories = settings(
    max_examples=int(os.environ.get("IPEXCTL_HISTORIES", settings.default.max_examples if settings.default else 100)),
    suppress_health_check=list(HealthCheck),
    deadline=None,
)


@many_histories
@example([(1, ("isolate", "b", "")), (64, ("isolate", "c", ""))], [0.0], 0)  # c never hears of the hard stop
@example([(10, ("isolate", "a", "")), (56, ("orphan", "a", ""))], [0.0], 0)  # its wrappers must not wait for a lease
@example([(10, ("isolate", "a", "")), (56, ("hang", "a", ""))], [0.0], 0)
@given(list_histories((*HARMS, "crash", "hang", "go on"), HOSTS), DELAYS, st.sampled_from((0, 3, 4)))
def test_ranks_of_two_attempts_never_compute_at_once(history: Histories, delays: list[float], used: int) -> None:
    played = Cluster(delays, used)
    played.play(history)
    played.step(300)


@many_histories
@given(list_histories(HARMS, "bcde"), DELAYS)
def test_without_another_leader_every_history_ends(history: Histories, delays: list[float]) -> None:
    played = Cluster(delays, 0, leaders="")
    played.play(history)
    played.feed(played.keepers["a"], messages.StopRun("enough"))
    played.step(600)
    assert [end.reason for end in played.closed] in ([reason] for reason in ("stopped", "rank", "lost", "launch"))


def test_a_lost_host_is_left_out_and_taken_back() -> None:
    played = Cluster([0.0], 0, leaders="")
    played.step(20)
    played.cut("e")
    while [guard.computes for guard in played.guards.values()] != [*[("a", 1)] * 4, None]:
        played.step()
        assert played.now < 60.0
    played.cuts.clear()
    played.step(20)
    played.fail("a")
    played.step(60)
    assert [guard.computes for guard in played.guards.values()] == [("a", 2)] * 5
    assert played.keepers["a"].run.spec.size == 5


@pytest.mark.parametrize("used", [0, 3, 4])
def test_the_next_host_leads_when_the_head_is_cut_off_and_again_the_next(used: int) -> None:
    played = Cluster([0.0], used)
    played.step(20)
    for lost, leader in ("a", "b"), ("b", "c"):
        played.cut(lost)
        since = played.now
        while played.worlds[-1][0] != leader:
            played.step()
            assert played.now < since + LEASE + TIMINGS.fence + 2.0
    assert played.guards["e"].computes == ("c", 2)
    played.cuts.clear()  # the hosts that led are spares now
    played.step(200)
    played.fail("c")
    played.step(60)
    assert [guard.computes for guard in played.guards.values()].count(("c", 3)) == (used or 5)


def test_a_host_that_is_alone_takes_nothing_over_and_comes_back() -> None:
    played = Cluster([0.0], 4)
    played.step(20)
    played.cut("b")
    played.step(200)
    assert played.worlds[-1] == ("a", 1)
    played.cuts.clear()
    played.step(120)
    assert played.guards["b"].keeper is played.keepers["a"]


@st.composite
def list_splits(draw: st.DrawFn) -> tuple[str, Histories]:
    hosts = draw(st.sampled_from(SPLIT))
    harms = (*HARMS, "crash", "hang", "go on", "vote", "vote")
    return hosts, draw(list_histories(harms, hosts, hosts))


@many_histories
@example(("ab", [(20, ("isolate", "a", "")), (70, ("vote", "b", "")), (1, ("vote", "a", ""))]), [0.0])
@given(list_splits(), DELAYS)
def test_the_halves_of_a_split_run_never_compute_at_once(split: tuple[str, Histories], delays: list[float]) -> None:
    hosts, history = split
    played = Cluster(delays, 0, hosts[:4], hosts)
    played.play(history)
    played.step(300)


def list_computing(played: Cluster) -> list[tuple[str, int] | None]:
    return [guard.computes for guard in played.guards.values()]


@pytest.mark.parametrize("hosts", ["ab", "abcd"])
def test_halves_wait_for_each_other_and_begin_again_together(hosts: str) -> None:
    played = Cluster([0.0], 0, hosts, hosts)
    played.step(20)
    for one in hosts[: len(hosts) // 2]:
        for other in hosts[len(hosts) // 2 :]:
            played.cuts |= {(one, other), (other, one)}
    played.step(100)
    assert not any(list_computing(played))
    played.step(1000)
    played.cuts.clear()
    played.step(200)
    assert list_computing(played).count(("a", 1)) > len(hosts) / 2


def test_a_half_that_waits_in_vain_ends() -> None:
    played = Cluster([0.0], 0, "ab", "ab")
    played.step(20)
    played.frozen.add("b")
    played.step(int((TIMINGS.away + 200.0) / STEP))
    assert [end.reason for end in played.closed] == ["lost"]
    assert "b not back within 900 s" in played.closed[0].detail


@pytest.mark.parametrize("leader", "ab")
def test_the_half_that_gets_the_vote_goes_on_and_takes_the_other_one_back(leader: str) -> None:
    played = Cluster([0.0], 0, "ab", "ab")
    other = "b" if leader == "a" else "a"
    played.step(20)
    played.cut(other)
    while (leader, 1) not in played.worlds:
        played.vote(leader)
        played.step()
        assert played.now < 60.0 + LEASE
    played.vote(other)
    played.step(200)
    assert [computing for computing in list_computing(played) if computing] == [played.worlds[-1]]
    played.cuts.clear()
    played.step(200)
    played.fail(leader)
    played.step(60)
    assert list_computing(played) == [(leader, played.worlds[-1][1])] * 2
