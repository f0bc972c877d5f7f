"""Watching a run to its proved end: as the one who started it, or as one who came later."""

from __future__ import annotations

import signal
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from ipexctl.act import run_control
from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit, each
from ipexctl.act.run_control import Frame, RemoteRunDir, RunFollower
from ipexctl.decide.runlog import RunLog
from ipexctl.model.errors import Exit, Failure, Interrupted, IpexctlError, Kind, UnwatchedRunError
from ipexctl.model.events import CleanupChecked, Event, HostFailed, Message, RunEnded
from ipexctl.model.hosts import Host
from ipexctl.model.launch import Running
from ipexctl.model.links import Link, LinkError


@contextmanager
def naming_run(run: str) -> Iterator[None]:
    """A fault of ours that ends the watching of a run is reported with the run: it goes on without a watcher."""
    try:
        yield
    except IpexctlError:
        raise
    except Exception as error:
        raise UnwatchedRunError(run) from error


@dataclass
class RunWatcher:
    """A watcher of one run. ``sites`` are the run's places on the hosts we can reach, the head's among them; ``detach``
    lets go as soon as mpirun was started. Afterwards ``over`` and ``interrupted`` tell how it went."""

    context: Context
    running: Running
    nonce: str
    sites: Mapping[str, RemoteRunDir]
    detach: bool = False
    over: RunEnded | None = None
    interrupted: Interrupted | None = None
    silent: set[str] = field(default_factory=set)  # hosts that the keeper has lost
    lost: bool = False  # the link to the head is down
    undelivered: tuple[str, str] | None = None  # an order, and why it is given
    again: float = 0.0  # monotonic: not to be tried to deliver before

    @property
    def head(self) -> RemoteRunDir:
        return self.sites[self.running.head]

    @property
    def exit(self) -> Exit:
        """The code of the signal that ended the watch, if one did; the rest is judged from the events."""
        return self.interrupted.exit if self.interrupted else Exit.OK

    def follow(self) -> Generator[Event, None, bool]:
        """Follows the run to its end; True when it was left to itself (detached, closed terminal, link lost)."""
        watch = RunFollower(self.context, self.head)
        log = RunLog(self.nonce, self.running)
        try:
            with naming_run(self.running.run), self.context.interrupts.deferring():
                while self.over is None:
                    yield from self._interruption()
                    yield from self._deliver()
                    if self.interrupted and self.interrupted.number == signal.SIGHUP:
                        return True
                    frame = watch.take(0.2)
                    if frame is None:
                        if self.context.interrupts.detach.is_set():
                            return True
                        continue
                    if frame.kind == "gave-up":
                        yield HostFailed(self._gave_up(frame.data.decode()))
                        return True
                    yield from self._frame(frame, log)
                    if (self.detach and log.launched) or self.context.interrupts.detach.is_set():
                        return True
        finally:
            watch.close()
        return False

    def _interruption(self) -> Generator[Event, None, None]:
        """The first Ctrl-C asks the keeper to stop the run, the second to kill it."""
        again = self.interrupted is not None
        taken = self.context.interrupts.take()
        if taken is None:
            return
        self.interrupted = taken
        if taken.number != signal.SIGHUP:
            yield Message("killing" if again else "stopping (again to kill)", "warning")
            self.undelivered, self.again = ("kill" if again else "stop", signal.Signals(taken.number).name), 0.0
            if self.lost:
                yield Message("link is down: it is told once the link is back", "warning", self.head.host.name)

    def _deliver(self) -> Generator[Event, None, None]:
        """What the keeper could not be told is told again: when the link is back, and every few seconds."""
        if self.undelivered is None or self.lost or time.monotonic() < self.again:
            return
        if self.order(*self.undelivered):
            self.undelivered = None
        elif not self.again:  # it may just be ending
            self.again = time.monotonic() + 1.0
        else:
            yield Message("the run's keeper cannot be told; trying again", "warning", self.head.host.name)
            self.again = time.monotonic() + 5.0

    def _frame(self, frame: Frame, log: RunLog) -> Generator[Event, None, None]:
        if frame.kind == "lost":
            why, self.lost = frame.data.decode(), True
            yield Message(f"link lost ({why}), the run goes on; reconnecting", "warning", self.head.host.name)
        elif frame.kind == "back":
            self.lost, self.again = False, 0.0
            yield Message("link is back", host=self.head.host.name)
        elif frame.kind == "z":
            yield from log.end()
            self.over = log.over or RunEnded(self.running.run, "lost", "the run's keeper on the head died")
            yield self.over
        else:
            for event in log.read(frame.kind, frame.data):
                if isinstance(event, HostFailed) and event.failure.kind is Kind.LOST:
                    self.silent.add(event.failure.host)
                yield event

    def _gave_up(self, why: str) -> Failure:
        return Failure(
            self.head.host.name,
            Kind.LOST,
            f"link lost: {why}; run {self.running.run} may go on",
            hint=f"ipexctl attach {self.running.run}",
            code="watch",
        )

    def order(self, what: str, why: str) -> bool:
        """Tells the keeper; False when it could not be told: its host does not answer, or it is gone (which the watch
        finds out)."""
        try:
            return run_control.tell(self.context.links.open(self.head.host), self.head, what, why)
        except LinkError:
            return False

    def wait_for_end(self) -> None:
        """Without showing anything: for a run that never came to be."""
        watch = RunFollower(self.context, self.head)
        until = time.monotonic() + 20.0
        while time.monotonic() < until:
            frame = watch.take(0.5)
            if frame and frame.kind in {"z", "gave-up"}:
                break
        watch.close()

    def read(self, *, follow: bool) -> Generator[Event, None, None]:
        """What there is in the run's files, as events; ``follow`` goes on to its end. Gives no order to anyone."""
        watch = RunFollower(self.context, self.head, once=not follow)
        log = RunLog(self.nonce, self.running)
        try:
            while (frame := watch.take(0.2)) is None or frame.kind not in {"z", "gave-up"}:
                if frame is not None:
                    yield from self._frame(frame, log)
            yield from log.end()
        finally:
            watch.close()

    def prove(self, *, keep: bool = False) -> Generator[Event, None, None]:
        """Looks on every host for processes of the run, ends what is there, and removes the run's directories; with
        ``keep`` the head's stays, where its output is. A signal ends the looking, not the proof."""
        hosts: list[Host] = [site.host for site in self.sites.values()]
        at = {site.host.name: site for site in self.sites.values()}
        kept = self.head.host.name if keep else ""
        proved: dict[str, tuple[int, ...]] = {}

        def sweep(link: Link, _: Emit) -> None:
            proved[link.host.name] = self._sweep(link, at[link.host.name], kept)

        try:
            with closing(each(self.context, hosts, "sweep", sweep)) as story:
                for event in story:
                    if not isinstance(event, HostFailed):  # the proof tells of hosts that cannot be asked
                        yield event
        except Interrupted as interrupted:  # no more patience: what was not seen is said to be unknown
            self.interrupted = interrupted
        left = {name: pids for name, pids in proved.items() if pids}
        unknown = tuple(host for host in self.running.hosts_used if host not in proved)
        yield CleanupChecked(self.running.run, self.running.hosts_used, left, unknown)

    def _sweep(self, link: Link, site: RemoteRunDir, kept: str) -> tuple[int, ...]:
        patience = 10.0 if site.host.name in self.silent else 30.0  # it has been waited for once
        left = run_control.prove(link, site, self.running.run, patience=patience)
        if left:
            left = run_control.prove(link, site, self.running.run, reap=True)
        if not left and site.host.name != kept:
            run_control.remove(link, site)
        return left
