"""Runs of the keeper, guards and wrappers on hosts that are this machine, without SSH: how they are made and read."""

import os
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ipexctl.act.context import Context
from ipexctl.act.run_dir import RemoteRunDir
from ipexctl.act.ssh import Links
from ipexctl.decide.checks.network import InterfaceChoice
from ipexctl.decide.launch.build import build_launch
from ipexctl.decide.launch.environment import HostRuntime
from ipexctl.decide.launch.run_spec import Identity, build_run_specs
from ipexctl.decide.releases.runtime import Runtime
from ipexctl.model.errors import Interrupted, Note
from ipexctl.model.events import CleanupChecked, Event, Output, RankEnded, RankStage
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host
from ipexctl.model.tasks import Run
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import procs
from ipexctl.verbs.run.attempt import LaunchAttempt

RANKS = Path(__file__).parent / "ranks"
Start = Callable[..., LaunchAttempt]
OfRank = Output | RankEnded | RankStage  # what happens to one rank
T = TypeVar("T", bound=Event)
# A tenth of the clocks that beat. What limits a failure or a doubt is as users have it: the machine may be busy.
QUICK = Timings(tick=0.05, ping=0.2, idle=0.2, beat=0.2, poll=0.1)


@contextmanager
def starting(runtime: Runtime, place: Path) -> Iterator[Start]:
    """``start("say", ppn=2)``: an attempt on hosts a and b whose ranks play tests/integration/ranks/actor.py. Their
    processes end with it."""
    made: list[LaunchAttempt] = []
    context = Context(Links(config=None), place / "state", place / "cache")
    homes = {name: place / name for name in "ab"}
    for home in homes.values():
        home.mkdir(mode=0o700)

    def start(
        *args: str,
        script: str = "actor.py",
        shared_home: bool = False,
        facts: dict[str, object] | None = None,
        stdin: bytes = b"",
        timings: Timings = QUICK,
        **settings: object,
    ) -> LaunchAttempt:
        hosts = [Host(name, "localhost", vars={"lab": "test", "local": "yes"}) for name in homes]
        run = f"t{secrets.token_hex(3)}"
        user = "root" if os.geteuid() == 0 else "tester"
        known = {"cpus_online": tuple(sorted(os.sched_getaffinity(0))), "machine_id": "this", **(facts or {})}
        stations = {
            name: HostRuntime(
                Facts(home=str(home), user=user, **known),  # type: ignore[arg-type]
                InterfaceChoice("lo", "127.0.0.1", Note("test", "test")),
                runtime,
                f"{homes['a'] if shared_home else home}/runs/{run}-{name}",
                str(RANKS),
            )
            for name, home in homes.items()
        }
        options: dict[str, Any] = {"ppn": 1, "grace": 2.0, **settings}
        task = Run(script=script, args=args, **options)
        identity = Identity(secrets.token_hex(8), secrets.token_hex(16), "tester", time.time())
        launch = build_launch(task, run, hosts, stations, script, {})
        reported = build_run_specs(launch, task, identity, timings)
        sites = {host.name: RemoteRunDir(host, stations[host.name].directory, runtime.python) for host in hosts}
        made.append(LaunchAttempt(task, launch, identity, sites, reported, context, stdin))
        return made[-1]

    yield start
    for attempt in made:
        procs.kill_marked(procs.format_run_mark(attempt.launch.run), 0)
    context.links.close()


def run_alone(attempt: LaunchAttempt, *, clean: bool = True) -> Generator[Event, None, None]:
    """The whole of a run, from its start to the proof of its end; if ``clean``, nothing may be left of it then."""
    story, proofs = tell(attempt), []
    thrown: Interrupted | None = None
    with suppress(StopIteration):
        while True:
            event = story.throw(thrown) if thrown else next(story)
            thrown = None
            proofs += of(CleanupChecked, [event])
            try:
                yield event
            except Interrupted as interrupted:
                thrown = interrupted
    left = [find_left(attempt, proof) for proof in proofs[-1:]]
    assert left in ([], [[]]) or not clean


def tell(attempt: LaunchAttempt) -> Generator[Event, None, None]:
    detached = yield from attempt.execute()
    yield from attempt.watcher.report_end("run", detached)


def of(kind: type[T], events: Iterable[Event]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]


def until(
    attempt: LaunchAttempt, kind: type[OfRank], *, clean: bool = True
) -> tuple[Generator[Event, None, None], list[Event]]:
    """The story, told up to where every rank has had an event of this kind."""
    story = run_alone(attempt, clean=clean)
    events: list[Event] = []
    ranks: set[int] = set()
    for event in story:
        events.append(event)
        if isinstance(event, kind):
            ranks.add(event.rank)
            if len(ranks) == attempt.launch.size:
                break
    return story, events


def written(events: list[Event]) -> dict[tuple[int, str], bytes]:
    got: dict[tuple[int, str], bytes] = {}
    for event in of(Output, events):
        got[event.rank, event.stream] = got.get((event.rank, event.stream), b"") + event.data
    return got


def find_left(attempt: LaunchAttempt, proof: CleanupChecked) -> list[str]:
    """What is left of a run that has ended, and what its own proof says of that."""
    there = [site.directory for site in attempt.run_dirs.values() if os.path.exists(site.directory)]
    alive = [str(process) for process in procs.find_marked(procs.format_run_mark(attempt.launch.run))]
    unproved = [f"{host}: {pids}" for host, pids in proof.orphans.items()]
    return [*unproved, *proof.unchecked, *there, *alive]
