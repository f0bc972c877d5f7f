"""The launches of a study on real hosts: each is an ordinary run, ended once it was measured or is out of the race."""

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean
from typing import Literal

from ipexctl.act.context import Context
from ipexctl.decide.launch import instances
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.decide.tune.compare import RATES
from ipexctl.decide.tune.knobs import COMPILE, identify_launch, keep_batch, set_values
from ipexctl.decide.tune.rates import RateReader
from ipexctl.decide.tune.search import OptunaSearch
from ipexctl.decide.tune.study import DefaultFailed, Study
from ipexctl.model.errors import Failure, Kind, UsageError
from ipexctl.model.events import (
    CandidateTried,
    CleanupChecked,
    Event,
    FailuresIgnored,
    HostFailed,
    Output,
    Planned,
    Purpose,
    Stamped,
    StudyStarted,
    Values,
    describe_values,
)
from ipexctl.model.launch import Launch, Setting
from ipexctl.model.tasks import Run, Tune
from ipexctl.protocol.messages import StopRun
from ipexctl.verbs.common.nested import advise_without_share, run_nested
from ipexctl.verbs.common.select import make_started
from ipexctl.verbs.run.attempt import LaunchAttempt
from ipexctl.verbs.run.prepare import Prepared, make_attempt
from ipexctl.verbs.run.saved_runs import describe_cause

_LEASE = 60.0  # seconds that a launch outlives whoever watches it
_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
_PATIENCE = 3.0  # times as long as the default a launch may take,
_MORE_PATIENCE = 30.0  # and so many seconds


class Launches:
    """The launches of a study, computed from what was ``prepared`` for the default one."""

    def __init__(self, task: Tune, prepared: Prepared, context: Context) -> None:
        self._task, self._prepared, self._context = task, prepared, context
        self._known: dict[str, Launch | None] = {}
        self.default = make_attempt(prepared, context).launch

    def make_task(self, values: Values) -> Run | None:
        """Returns the task with these values; None where it cannot keep the global batch."""
        task, default, name = set_values(self._prepared.task, values), self.default, self._task.keep_batch
        size = int(values["ppn"]) * len(default.nodes) if "ppn" in values else default.size
        return keep_batch(task, name, default.size, size) if name else task

    def prepare(self, values: Values, limit: float | None = None) -> Prepared | None:
        """Returns what the launch with these values is computed from, which may take ``limit`` seconds."""
        task, request, starts = self.make_task(values), self._prepared.request, self._prepared.starts
        if task is None:
            return None
        task = replace(task, time_limit=limit, lease=task.lease or _LEASE, grace=min(task.grace, _GRACE))
        instances.check_options(task)
        settings = dict(request.settings)
        if COMPILE in task.env:
            settings.setdefault(COMPILE, Setting(task.env[COMPILE], "compile", by_user=True))
        starts = tuple(replace(start, args=task.args) for start in starts) if len(starts) == 1 else starts
        return replace(self._prepared, request=replace(request, task=task, settings=settings), starts=starts)

    def find(self, values: Values) -> Launch | None:
        """Returns the launch with these values; None where there is none."""
        key = describe_values(values)
        if key not in self._known:
            try:
                prepared = self.prepare(values)
                self._known[key] = make_attempt(prepared, self._context).launch if prepared else None
            except UsageError:
                self._known[key] = None
        return self._known[key]

    def identify(self, values: Values) -> str | None:
        """Returns what the launch with these values is, as `identify_launch`."""
        launch = self.find(values)
        return identify_launch(launch) if launch else None

    def scale(self, values: Values) -> float:
        """Returns how many times as much as the default's a step does: where a rank keeps its batch, more ranks do
        more."""
        launch = self.find(values)
        return (
            launch.size / self.default.size if launch and not self._task.keep_batch and not self._task.metric else 1.0
        )

    def describe_changes(self, values: Values) -> str:
        """Returns what of the mathematics these values change."""
        scale = self.scale(values)
        changes = [f"global batch x{scale:g}"] if scale != 1.0 else []
        changes += ["arguments of the script"] if self._task.arg and any(name[:2] == "--" for name in values) else []
        return ", ".join([*changes, *(["rounding, by its compiler"] if "compile" in values else [])])


class StudyRunner:
    """Tries the launches of a study that began ``begun`` by the context's clock. Without a ``search`` the ``listed``
    ones are tried, each of which may take as long as the study."""

    def __init__(
        self,
        started: StudyStarted,
        launches: Launches,
        context: Context,
        begun: float,
        search: OptunaSearch | None,
        listed: Sequence[Values],
        earlier: Sequence[CandidateTried],
    ) -> None:
        self._started, self._launches, self._context, self._begun = started, launches, context, begun
        self._patient = search is None
        self._unproved: list[LaunchAttempt] = []  # with hosts that could not be searched
        self.study = Study(started, search, launches.identify, self.watch, self._try_launch, listed, earlier)

    def watch(self) -> float:
        """Returns the seconds since the study began."""
        return self._context.clock() - self._begun

    def run(self) -> Generator[Event, None, None]:
        """Tries launches until the study has no more, or its default fails. Raises `Interrupted` at a signal, or when
        nobody watches."""
        with suppress(DefaultFailed):
            yield from self.study.run()
        for attempt in self._unproved:  # a host that was lost may be back
            yield from attempt.watcher.prove_ended()

    def _try_launch(self, purpose: Purpose, values: Values) -> Generator[Event, None, CandidateTried]:
        prepared = self._launches.prepare(values, self._choose_limit())
        assert prepared is not None  # or it had not been proposed
        attempt, since, scale = make_attempt(prepared, self._context), self.watch(), self._launches.scale(values)
        fold, reader, times = RunFold(every_line=True), RateReader(), [0.0, 0.0]
        metric, steps = self.study.comparison.metric, self._started.steps
        rungs = [steps // 4, steps // 2, steps]
        outcome: Literal["", "measured", "dropped"] = ""

        def measure() -> dict[str, float]:
            return {name: rate * scale for name, rate in reader.rates.items()}

        def take(event: Event) -> bool:
            nonlocal outcome
            fold.handle_event(Stamped(self._context.clock(), event))
            if isinstance(event, CleanupChecked) and event.unchecked:
                self._unproved.append(attempt)
            if outcome or not isinstance(event, Output):
                return True
            reader.read_state(fold.state, event.rank)
            times[:] = times[0] or self.watch(), self.watch()
            if metric and metric not in reader.rates:
                return True  # as one that a script prints at its end
            passed = [rungs.pop(0) for rung in tuple(rungs) if rung <= reader.steps]
            if passed and self.study.is_out(measure(), self.watch(), passed[-1]):
                outcome = "dropped"
            elif not rungs:
                outcome = "measured"
            if outcome:
                attempt.watcher.pending_order, attempt.watcher.retry_at = StopRun(outcome), 0.0
            return True

        title = f"{prepared.request.script.name or prepared.task.script}: {describe_values(values)}"
        yield make_started("run", title, prepared.inventory, prepared.task.venv)
        yield Planned("run", str(attempt.launch), attempt.launch.public())
        detached = yield from run_nested(attempt.execute(), take, advise_without_share)
        if attempt.watcher.interrupted:
            raise attempt.watcher.interrupted
        report, rates = make_report(fold.state), measure()
        ended_well = report.run is not None and report.run.good
        metric = metric or next((name for name in RATES if name in rates), "")
        if ended_well and metric in rates:
            outcome = outcome or "measured"
        why = ""
        if metric not in rates or not outcome:
            why = "nobody watches it any more" if detached else describe_cause(report)
            why = why or f"it printed no {metric or 'step and no rate'}"
        if self.study.tried or not why:
            yield FailuresIgnored(title)
        elif ended_well:  # else what failed says why the study ends
            yield HostFailed(Failure("", Kind.STEP, f"the default launch has no rate: {why}", code="no-rate"))
        return CandidateTried(
            purpose, values, "failed" if why else outcome or "failed", fmean(times) or since, self.watch() - since,
            rates, reader.steps, why, self._launches.describe_changes(values),
        )  # fmt: skip

    def _choose_limit(self) -> float:
        """Seconds that a launch may take: much more than the default did, and not much more than the budget has."""
        whole = [each.seconds for each in self.study.tried if not each.values and each.outcome == "measured"]
        left = max(self._started.budget - self.watch(), 0.0)
        if not whole or self._patient:
            return max(left, 60.0)
        return min(_PATIENCE * max(whole) + _MORE_PATIENCE, left + max(whole))
