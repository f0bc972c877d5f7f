"""One start of one launch, from its directories on the hosts to the proof that no process of it is left; and starting
again when a run failed: the script goes on from its own checkpoint (``$IPEXCTL_RESTART`` counts)."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

from ipexctl.act import run_control
from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit, run_on_hosts
from ipexctl.act.run_dir import RemoteRunDir, create_run_dir
from ipexctl.decide.launch.run_spec import Identity
from ipexctl.model.errors import Failure, Interrupted
from ipexctl.model.events import Event, HostFailed, Message, Planned, StepEnded, StepOutcome, StepStarted
from ipexctl.model.launch import Launch
from ipexctl.model.links import Link
from ipexctl.model.tasks import Run
from ipexctl.protocol.messages import KillRun
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.run.watch import RunWatcher, describe_signal, wrap_internal_errors


@dataclass
class LaunchAttempt:
    """One start of one launch. ``run_dirs`` are the run's directories by host, ``specs`` each host's specification."""

    task: Run
    launch: Launch
    identity: Identity
    run_dirs: Mapping[str, RemoteRunDir]
    specs: Mapping[str, RunSpec]
    context: Context
    stdin: bytes = b""  # of rank 0
    watcher: RunWatcher = field(init=False)

    def __post_init__(self) -> None:
        launch, nonce, spec = self.launch, self.identity.nonce, self.specs[self.launch.head.host]
        self.watcher = RunWatcher(
            self.context,
            launch.running,
            nonce,
            self.run_dirs,
            self.task.detach,
            self.task.stop_on_nan,
            self.task.ready is not None,
            timings=spec.timings,
            profile=spec.profile,
        )

    def execute(self) -> Generator[Event, None, bool]:
        """From the start to the proved end; True when the run goes on without us (detached, terminal closed)."""
        detached, starting, saved = False, True, None
        stopped_by = ""
        try:
            with wrap_internal_errors(self.launch.run):
                started = yield from self.start()
                starting = False
                if started:
                    detached = yield from self.watcher.follow()
                if not detached and self.watcher.profile:
                    from ipexctl.verbs.run.profile import fetch_profile

                    saved = yield from fetch_profile(self.watcher)
        except Interrupted as interrupted:
            self.watcher.interrupted = interrupted
            stopped_by = describe_signal(interrupted.number) if starting else ""
        finally:
            self.watcher.close()
        if not detached:
            yield from self.watcher.prove_ended()
        if stopped_by:  # not before the proof: a second signal may be thrown at whatever is yielded
            yield Message(f"{stopped_by} while the run was being started", "warning", code="interrupted")
        if saved is not None:
            from ipexctl.verbs.run.profile import merge_profile

            self.watcher.profiled = yield from merge_profile(self.watcher, saved)
        return detached

    def start(self) -> Generator[Event, None, bool]:
        """Makes the directories, starts the keeper on the head and a guard on every host; False when one failed."""
        run_dirs, run = self.run_dirs, self.launch.run
        head, keeper = self.launch.head.host, run_control.KeeperPort(self.launch.head.address)
        hosts = [run_dirs[plan.host].host for plan in self.launch.nodes]

        def prepare(link: Link, _: Emit) -> None:
            create_run_dir(link, run_dirs[link.host.name], self.specs[link.host.name], self.stdin)

        def start(link: Link, emit: Emit) -> bool:
            run_dir = run_dirs[link.host.name]
            if link.host.name != head:
                return run_control.start_guard(link, run_dir, run, keeper)

            def on_listening() -> None:
                emit(StepEnded(head, "start keeper"))
                self.watcher.begin()

            emit(StepStarted(head, "start keeper"))
            run_control.start_head(link, run_dir, run, keeper, on_listening)
            return True

        def describe_outcome(started: bool) -> tuple[StepOutcome, str]:
            return "ok" if started else "skipped", ""

        prepared = yield from run_on_hosts(self.context, hosts, "prepare", prepare)
        if any(isinstance(result, Failure) for result in prepared.values()):
            return False

        def give_up(event: Event) -> bool:
            """Ends the others at once where the head cannot be reached again: they need not wait for its keeper."""
            if isinstance(event, HostFailed) and event.failure.host == head:
                keeper.set_port(0)
            return True

        starting = run_on_hosts(self.context, hosts, "start guard", start, outcome=describe_outcome)
        try:
            guards = yield from run_nested(starting, give_up)
        finally:
            keeper.set_port(0)
        if not keeper.port:
            return False
        if any(isinstance(result, Failure) for result in guards.values()):
            self.watcher.send_order(KillRun("a host could not take part"))
            self.watcher.wait_for_end()
            return False
        return True


def run_attempts(
    attempt: LaunchAttempt,
    make_attempt: Callable[[int, frozenset[str]], LaunchAttempt],
    restarts: int,
    min_hosts: int | None,
) -> Generator[Event, None, None]:
    """Runs attempts, ``attempt`` first, until one ends well, is stopped, or no restart is left. ``make_attempt`` is
    given the number of the restart and the hosts to leave out: hosts that were lost, if at least ``min_hosts`` others
    remain; without ``min_hosts`` none is left out."""
    without: frozenset[str] = frozenset()
    for restart in range(1, restarts + 2):
        detached = yield from attempt.execute()
        watcher = attempt.watcher
        ended, lost = watcher.run_ended, watcher.lost_hosts if min_hosts is not None else set()
        remaining = {plan.host for plan in attempt.launch.nodes} - lost
        too_few = bool(lost) and len(remaining) < (min_hosts or 0)
        failed = ended is not None and ended.reason in {"rank", "lost"} and watcher.interrupted is None
        if detached or not failed or too_few or restart > restarts:
            yield from watcher.report_end("run", detached)
            return
        if lost:
            without |= lost
            yield Message(f"going on without {', '.join(sorted(lost))}", "warning", code="hosts-left-out")
        why = ended.detail if ended and ended.detail else "the run failed"
        text = f"{why}: starting again ({restart} of {restarts}) from the script's own checkpoint"
        yield Message(text, "warning", code="restart")
        attempt = make_attempt(restart, without)
        yield Planned("run", str(attempt.launch), attempt.launch.public())
