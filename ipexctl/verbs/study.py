"""A study on real hosts: each candidate is an ordinary launch, ended once it was measured or is out of the race."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from math import exp
from statistics import fmean
from typing import Literal

from ipexctl.act.context import Context
from ipexctl.decide.launch import instances
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.decide.tune.knobs import COMPILE, identify_launch
from ipexctl.decide.tune.rates import PREFERRED, RateReader
from ipexctl.decide.tune.study import Candidate, Study
from ipexctl.model.errors import Interrupted, UsageError
from ipexctl.model.events import (
    CandidateTried,
    CleanupChecked,
    Event,
    FailuresIgnored,
    Output,
    Planned,
    Stamped,
    Values,
    describe_values,
)
from ipexctl.model.json_values import select_attributes
from ipexctl.model.launch import Launch, Setting
from ipexctl.model.tasks import Run
from ipexctl.protocol.messages import StopRun
from ipexctl.verbs.common.nested import advise_without_share, run_nested
from ipexctl.verbs.common.select import make_started
from ipexctl.verbs.run.attempt import LaunchAttempt
from ipexctl.verbs.run.prepare import Prepared, make_attempt
from ipexctl.verbs.run.saved_runs import describe_cause

_LEASE = 60.0  # seconds that a candidate outlives whoever watches it
_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
_PATIENCE = 3.0  # times as long as the default a candidate may take,
_MORE_PATIENCE = 30.0  # and so many seconds


class Launches:
    """The launches of a study, computed and not started. ``make_task`` returns a candidate's task, or None."""

    def __init__(self, prepared: Prepared, context: Context, make_task: Callable[[Values], Run | None]) -> None:
        self.prepared, self._context, self._make_task = prepared, context, make_task
        self._known: dict[str, Launch | None] = {}

    def prepare(self, values: Values, limit: float | None = None) -> Prepared | None:
        """Returns what the launch of a candidate is computed from, which may take ``limit`` seconds."""
        task = self._make_task(values)
        if task is None:
            return None
        task = replace(task, time_limit=limit, lease=task.lease or _LEASE, grace=min(task.grace, _GRACE))
        instances.check_options(task)
        request, starts = self.prepared.request, self.prepared.starts
        settings = dict(request.settings)
        if COMPILE in task.env:
            settings.setdefault(COMPILE, Setting(task.env[COMPILE], "compile", by_user=True))
        starts = tuple(replace(start, args=task.args) for start in starts) if len(starts) == 1 else starts
        return replace(self.prepared, request=replace(request, task=task, settings=settings), starts=starts)

    def find(self, values: Values) -> Launch | None:
        """Returns the launch of a candidate; None where it is none."""
        key = describe_values(values)
        if key not in self._known:
            try:
                prepared = self.prepare(values)
                self._known[key] = make_attempt(prepared, self._context).launch if prepared else None
            except UsageError:
                self._known[key] = None
        return self._known[key]

    def identify(self, values: Values) -> str | None:
        """Returns what a candidate's launch is, as `identify_launch`."""
        launch = self.find(values)
        return identify_launch(launch) if launch else None


@dataclass
class StudyRunner:
    """Runs a study. ``begun`` is when it began, by the context's clock; ``describe_changes`` says what a
    candidate changes in what is computed."""

    study: Study
    launches: Launches
    context: Context
    begun: float
    budget: float
    steps: int
    describe_changes: Callable[[Values], str] = lambda values: ""
    hurried: bool = True  # a launch that takes much longer than the default is ended
    interrupted: Interrupted | None = None
    failed: bool = False  # the default failed before it was ever measured; its failures stand
    unproved: list[LaunchAttempt] = field(default_factory=list)  # with hosts that could not be searched

    @property
    def seconds(self) -> float:
        """Since the study began."""
        return self.context.clock() - self.begun

    def run(self) -> Generator[Event, None, None]:
        """Tries launches until the study has no more, a signal arrives or nobody watches any more."""
        try:
            while self.interrupted is None and (candidate := self.study.choose(self.seconds)) is not None:
                tried = yield from self._try_candidate(candidate)
                if self.interrupted is None:
                    self.study.add(tried, candidate)
                    score = self.study.compare(tried)
                    yield replace(tried, ratio=exp(score) if score is not None and tried.values else None)
            for attempt in self.unproved:  # a host that was lost may be back
                yield from attempt.watcher.prove_ended()
        except Interrupted as interrupted:
            self.interrupted = interrupted

    def _try_candidate(self, candidate: Candidate) -> Generator[Event, None, CandidateTried]:
        prepared = self.launches.prepare(candidate.values, self._choose_limit())
        assert prepared is not None  # or it had not been proposed
        attempt, since = make_attempt(prepared, self.context), self.seconds
        fold, reader, times = RunFold(every_line=True), RateReader(), [0.0, 0.0]
        rungs = [self.steps // 4, self.steps // 2, self.steps]
        outcome: Literal["", "measured", "dropped"] = ""

        def take(event: Event) -> bool:
            nonlocal outcome
            fold.handle_event(Stamped(self.context.clock(), event))
            if isinstance(event, CleanupChecked) and event.unchecked:
                self.unproved.append(attempt)
            if outcome or not isinstance(event, Output):
                return True
            reader.read_state(fold.state, event.rank)
            times[:] = times[0] or self.seconds, self.seconds
            if self.study.metric and self.study.metric not in reader.rates:
                return True  # as one that a script prints at its end
            passed = [rungs.pop(0) for rung in tuple(rungs) if rung <= reader.steps and reader.lasted]
            if passed and self.study.is_out(candidate, reader.rates, passed[-1]):
                outcome = "dropped"
            elif not rungs:
                outcome = "measured"
            if outcome:
                attempt.watcher.pending_order, attempt.watcher.retry_at = StopRun(outcome), 0.0
            return True

        script = self.launches.prepared.request.script.name or prepared.task.script
        title = f"{script}: {describe_values(candidate.values)}"
        yield make_started("run", title, prepared.inventory, prepared.task.venv)
        yield Planned("run", str(attempt.launch), attempt.launch.public())
        detached = yield from run_nested(attempt.execute(), take, advise_without_share)
        self.interrupted = attempt.watcher.interrupted
        report = make_report(fold.state)
        metric = self.study.metric or next((name for name in PREFERRED if name in reader.rates), "")
        ended_well = report.run is not None and report.run.good
        if ended_well and metric in reader.rates and not outcome:
            outcome = "measured"
        why = ""
        if metric not in reader.rates or not outcome:
            why = "nobody watches it any more" if detached else describe_cause(report)
            why = why or f"it printed no {metric or 'step and no rate'}"
        low, high = reader.find_quartiles(metric)
        self.failed = not self.study.tried and not ended_well and not outcome
        if not self.failed:
            yield FailuresIgnored(title)
        return CandidateTried(
            **select_attributes(candidate, "number", "purpose", "values", "launch"),
            outcome="failed" if why else outcome or "failed",
            at=fmean(times) or since,
            seconds=self.seconds - since,
            rates=reader.rates,
            low=low,
            high=high,
            steps=reader.steps,
            why=why,
            changes=self.describe_changes(candidate.values),
        )

    def _choose_limit(self) -> float:
        """Seconds that a launch may take: much more than the default did, and not much more than the budget has."""
        whole = [each.seconds for each in self.study.tried if not each.values and each.outcome == "measured"]
        left = max(self.budget - self.seconds, 0.0)
        if not whole or not self.hurried:
            return max(left, 60.0)
        return min(_PATIENCE * max(whole) + _MORE_PATIENCE, left + max(whole))
