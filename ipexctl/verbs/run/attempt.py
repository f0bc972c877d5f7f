"""A launch, from its directories on the hosts to the proof that no process of it is left. Whether it is started again
when it fails its keeper says."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ipexctl.act import run_control
from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.act.run_dir import RemoteRunDir, create_run_dir
from ipexctl.decide.launch.run_spec import Identity
from ipexctl.model.errors import Interrupted
from ipexctl.model.events import Event, HostFailed, Message, StepEnded, StepOutcome, StepStarted, Workflow
from ipexctl.model.hosts import Link
from ipexctl.model.launch import Launch
from ipexctl.model.tasks import Run
from ipexctl.protocol.messages import KillRun
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.run.watch import RunWatcher, describe_signal, wrap_internal_errors


@dataclass
class LaunchAttempt:
    """A launch and its run. ``run_dirs`` are the run's directories by host, ``specs`` each host's specification."""

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
            self.task.ready or "",
            self.task.on_split == "wait",
            timings=spec.timings,
            profile=spec.profile,
        )

    def execute(self) -> Workflow[bool]:
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
            from ipexctl.verbs.run.profile import make_profile

            self.watcher.profiled = yield from make_profile(self.watcher, saved)
        return detached

    def start(self) -> Workflow[bool]:
        """Makes the directories, starts the keeper on the head and a guard on every host; False when one failed."""
        run_dirs, run = self.run_dirs, self.launch.run
        head, keeper = self.launch.head.host, run_control.KeeperPort(self.launch.head.address)
        hosts = [run_dirs[plan.host].host for plan in self.launch.planned]

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

        _, failures = yield from run_on_hosts(self.context, hosts, "prepare", prepare)
        if failures:
            return False

        def give_up(event: Event) -> bool:
            """Ends the others at once where the head cannot be reached again: they need not wait for its keeper."""
            if isinstance(event, HostFailed) and event.failure.host == head:
                keeper.set_port(0)
            return True

        starting = run_on_hosts(self.context, hosts, "start guard", start, outcome=describe_outcome)
        try:
            _, failures = yield from run_nested(starting, give_up)
        finally:
            keeper.set_port(0)
        if not keeper.port:
            return False
        if failures:
            self.watcher.send_order(KillRun("a host could not take part"))
            self.watcher.wait_for_end()
            return False
        return True
