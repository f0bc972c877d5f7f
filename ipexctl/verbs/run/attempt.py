"""One start of one launch, from its directories on the hosts to the proof that nothing is left."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ipexctl.act import run_control
from ipexctl.act.context import Context
from ipexctl.act.fanout import each
from ipexctl.act.run_control import RemoteRunDir
from ipexctl.decide.launch.run_spec import Identity
from ipexctl.model.answers import RunAnswer
from ipexctl.model.errors import Failure, Interrupted
from ipexctl.model.events import Answer, Ended, Event
from ipexctl.model.hosts import Host
from ipexctl.model.launch import Launch
from ipexctl.model.tasks import Run
from ipexctl.verbs.run.watch import RunWatcher, naming_run


@dataclass
class Attempt:
    """One start of one launch, from its directories on the hosts to the proof that nothing is left."""

    task: Run
    launch: Launch
    identity: Identity
    sites: Mapping[str, RemoteRunDir]
    specs: Mapping[str, Mapping[str, Any]]
    context: Context
    watching: RunWatcher = field(init=False)

    def __post_init__(self) -> None:
        self.watching = RunWatcher(
            self.context, self.launch.running, self.identity.nonce, self.sites, detach=self.task.detach
        )

    @property
    def hosts(self) -> list[Host]:
        return [self.sites[seat.host].host for seat in self.launch.nodes]

    @property
    def head(self) -> RemoteRunDir:
        return self.sites[self.launch.head.host]

    def story(self) -> Generator[Event, None, None]:
        left_alone = yield from self.live()
        yield from self.answer(left_alone)

    def live(self) -> Generator[Event, None, bool]:
        """From the start to the proved end; True when the run was left to itself before that."""
        watching = self.watching
        left_alone = False
        try:
            with naming_run(self.launch.run):
                if (yield from self.start()):
                    left_alone = yield from watching.follow()
        except Interrupted as interrupted:
            watching.interrupted = interrupted
        if not left_alone:
            yield from watching.prove()
        return left_alone

    def answer(self, left_alone: bool) -> Generator[Event, None, None]:
        """The last words of the command."""
        watching = self.watching
        yield Answer(RunAnswer(self.launch.run, watching.over.reason if watching.over else None, left_alone))
        yield Ended("run", watching.exit)

    def start(self) -> Generator[Event, None, bool]:
        """Directories everywhere, the keeper on the head, a guard on every host. False when a host failed."""
        sites, specs, launch = self.sites, self.specs, self.launch
        prepared = yield from each(
            self.context,
            self.hosts,
            "prepare",
            lambda link, _: run_control.prepare(link, sites[link.host.name], specs[link.host.name]),
        )
        if any(isinstance(result, Failure) for result in prepared.values()):
            return False
        kept = yield from each(
            self.context,
            [self.head.host],
            "start keeper",
            lambda link, _: run_control.start_keeper(link, self.head, launch.run),
        )
        port = kept[self.head.host.name]
        if isinstance(port, Failure):
            return False
        guards = yield from each(
            self.context,
            self.hosts,
            "start guard",
            lambda link, _: run_control.start_guard(link, sites[link.host.name], launch.run, launch.head.address, port),
        )
        if any(isinstance(result, Failure) for result in guards.values()):
            self.watching.order("kill", "a host could not take part")
            self.watching.wait_for_end()
            return False
        return True
