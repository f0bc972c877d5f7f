"""``ipexctl tune``: short runs of a script, each started in another way, in turn with the default; the best is then set
against the default once more. Each is an ordinary run, ended once it was measured or is out of the race."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from math import prod
from pathlib import Path
from statistics import fmean
from time import localtime, strftime
from typing import Any, Literal

from ipexctl.act.context import Context
from ipexctl.data import read_data
from ipexctl.decide.launch import instances
from ipexctl.decide.parsing.amounts import parse_span
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.decide.saved_runs import RunFilter
from ipexctl.decide.tune import knobs as k
from ipexctl.decide.tune.ranking import RATES
from ipexctl.decide.tune.rates import RateReader
from ipexctl.decide.tune.search import OptunaSearch, import_optuna
from ipexctl.decide.tune.study import DefaultFailed, Study
from ipexctl.decide.tune.summary import MARK, describe_verdict, write_playbook
from ipexctl.decide.tune.wins import find_wins
from ipexctl.model import events as e
from ipexctl.model.answers.plan import DryRun
from ipexctl.model.answers.tune import TuneAnswer
from ipexctl.model.errors import Exit, Failure, Interrupted, Kind, UsageError
from ipexctl.model.events import CandidateTried, Event, Purpose, Value, Values, describe_values
from ipexctl.model.hints import Hint, advise, complete_hint
from ipexctl.model.hosts import Inventory
from ipexctl.model.launch import Launch, Setting
from ipexctl.model.tasks import Run, Tune
from ipexctl.model.text import pluralize, printable
from ipexctl.protocol.messages import StopRun
from ipexctl.store.private_files import describe_error
from ipexctl.store.record import read_name
from ipexctl.verbs.common.nested import advise_without_share, run_nested
from ipexctl.verbs.common.pages import check_destination, write_page
from ipexctl.verbs.common.select import list_flags, make_started
from ipexctl.verbs.run.attempt import LaunchAttempt
from ipexctl.verbs.run.prepare import Prepared, make_attempt
from ipexctl.verbs.run.replay import find_saved_run, read_saved_run
from ipexctl.verbs.run.request import read_request
from ipexctl.verbs.run.run import prepare_run
from ipexctl.verbs.run.saved_runs import describe_cause, select_saved_runs

_LEASE = 60.0  # seconds that a launch outlives whoever watches it
_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
_PATIENCE = 3.0  # times as long as the default a launch may take,
_MORE_PATIENCE = 30.0  # and so many seconds


def tune(
    task: Tune,
    inventory: Inventory,
    context: Context,
    environ: Mapping[str, str],
    *,
    dry: bool = False,
    earlier: tuple[CandidateTried, ...] = (),
) -> Generator[Event, None, None]:
    """Tries launches and yields a `TuneAnswer`. ``earlier`` are those of a study that this one goes on with. Raises
    `UsageError`, before the first event where this machine alone can tell."""
    if not task.script:
        raise UsageError("tune needs a script to run", hint=advise("tune", "train.py"))
    base = Run(**{each.name: getattr(task, each.name) for each in fields(Run)})
    names, base = k.parse_knobs(task.vary, task.fixed, base)
    into, arguments = Path(task.into), k.parse_arguments(task.arg)
    parse_span("--budget", task.budget)
    _check_target(into)
    import_optuna()
    prepared = yield from prepare_run("tune", read_request(base, environ, dry=dry, emit=None), inventory, context)
    if prepared is None:
        return
    knobs = {**k.list_knobs(base, make_attempt(prepared, context).launch, prepared.facts, names), **arguments}
    if knobs.get("ppn") and not task.keep_batch and not any("ppn" in words for words in task.vary):
        del knobs["ppn"]
        text = "ranks per host are not varied, which would change the global batch; --keep-batch NAME keeps it"
        yield e.Message(text, code="batch-kept")
    wins = [win.values for win in find_wins(read_data("tuning.toml"), prepared.facts, base)]
    listed = [values for values in wins if all(value in knobs.get(name, ()) for name, value in values.items())]
    if len(listed) > 1:
        listed.insert(0, {name: value for values in listed for name, value in values.items()})
    found = yield from run_study("tune", task, prepared, knobs, listed, context, dry=dry, earlier=earlier)
    if found is None:
        return
    answer, tuned, exit = found
    answer = replace(answer, next=complete_hint(answer.next, list_flags(inventory, task.venv)))
    if answer.recommended:
        day = strftime("%Y-%m-%d", localtime(context.clock()))
        write_page(into, write_playbook(tuned, answer.verdict, day), 0o644)
        answer = replace(answer, playbook=str(into))
    yield e.Answer(answer)
    yield e.Ended("tune", exit)


def run_study(
    verb: str,
    task: Tune,
    prepared: Prepared,
    knobs: Mapping[str, Sequence[Value]],
    listed: Sequence[Values],
    context: Context,
    *,
    dry: bool = False,
    earlier: tuple[CandidateTried, ...] = (),
    search: bool = True,
) -> Generator[Event, None, tuple[TuneAnswer, Run, Exit] | None]:
    """Tries launches with values of ``knobs`` in turn with the prepared one: the ``listed`` ones, then what a
    ``search`` proposes. Returns the answer, the task of the best launch, and the exit code; None where the command has
    ended: after a dry run, with nothing to vary, and where the prepared one has no rate."""
    study = HostStudy(task, prepared, context, knobs, listed, earlier, search=search)
    plan = _format_plan(task, study.default.size, study.started.knobs)
    yield e.Planned(verb, plan)
    if dry or not study.started.knobs:
        yield e.Answer(DryRun(plan))
        yield e.Ended(verb, Exit.OK)
        return None
    yield study.started
    exit = Exit.OK
    try:
        yield from study.run()
    except Interrupted as interruption:
        exit = interruption.exit
    if exit is Exit.OK and not any(each.outcome == "measured" for each in study.tried if not each.values):
        yield e.Ended(verb, exit)  # a failure says why; a table without a rate says nothing
        return None
    tuned = (study.make_task(study.best.values) if study.best else None) or prepared.task
    answer = replace(study.judge(), script=prepared.task.script, interrupted=exit is not Exit.OK)
    words = Hint(k.list_run_words(tuned)) if answer.recommended else None
    return replace(answer, verdict=describe_verdict(answer), next=words), tuned, exit


class HostStudy(Study):
    """A study of ``task``; its launches are computed from what was ``prepared`` for the default one. Without a
    ``search`` one may take as long as the study."""

    def __init__(
        self,
        task: Tune,
        prepared: Prepared,
        context: Context,
        knobs: Mapping[str, Sequence[Value]],
        listed: Sequence[Values],
        earlier: Sequence[CandidateTried],
        *,
        search: bool,
    ) -> None:
        self._task, self._prepared, self._context = task, prepared, context
        self._known: dict[str, Launch | None] = {}
        self._unproved: list[LaunchAttempt] = []  # with hosts that could not be searched
        self.default = make_attempt(prepared, context).launch
        same = self.identify({})
        varied: dict[str, tuple[Value, ...]] = {}
        for name, values in knobs.items():
            if kept := tuple(value for value in values if self.identify({name: value}) not in (None, same)):
                varied[name] = kept
        spent = max((each.at + each.seconds / 2 for each in earlier), default=0.0)
        self._begun, budget = context.clock() - spent, parse_span("--budget", task.budget)
        if task.budget != Tune.__dataclass_fields__["budget"].default or spent > budget:
            budget += spent
        given = {name: value for name, value in k.list_given(task).items() if name != "budget"}
        minimize = task.direction == "min"
        started = e.StudyStarted(varied, given, task.metric or "", minimize, budget, task.seed, task.steps)
        super().__init__(started, OptunaSearch(started) if search else None, listed, earlier)

    def watch(self) -> float:
        return self._context.clock() - self._begun

    def make_task(self, values: Values) -> Run | None:
        """Returns the task with these values; None where it cannot keep the global batch."""
        task, default, name = k.set_values(self._prepared.task, values), self.default, self._task.keep_batch
        size = int(values["ppn"]) * len(default.nodes) if "ppn" in values else default.size
        return k.keep_batch(task, name, default.size, size) if name else task

    def prepare(self, values: Values, limit: float | None = None) -> Prepared | None:
        """Returns what the launch with these values is computed from, which may take ``limit`` seconds."""
        task, request, starts = self.make_task(values), self._prepared.request, self._prepared.starts
        if task is None:
            return None
        task = replace(task, time_limit=limit, lease=task.lease or _LEASE, grace=min(task.grace, _GRACE))
        instances.check_options(task)
        settings = dict(request.settings)
        if k.COMPILE in task.env:
            settings.setdefault(k.COMPILE, Setting(task.env[k.COMPILE], "compile", by_user=True))
        starts = tuple(replace(start, args=task.args) for start in starts) if len(starts) == 1 else starts
        return replace(self._prepared, request=replace(request, task=task, settings=settings), starts=starts)

    def find(self, values: Values) -> Launch | None:
        """Returns the launch with these values; None where there is none."""
        key = describe_values(values)
        if key not in self._known:
            self._known[key] = None
            with suppress(UsageError):
                prepared = self.prepare(values)
                self._known[key] = make_attempt(prepared, self._context).launch if prepared else None
        return self._known[key]

    def identify(self, values: Values) -> str | None:
        launch = self.find(values)
        return k.identify_launch(launch) if launch else None

    def scale(self, values: Values) -> float:
        """Returns how many times as much as the default's a step does: where a rank keeps its batch, more ranks do
        more."""
        launch, kept = self.find(values), self._task.keep_batch or self._task.metric
        return launch.size / self.default.size if launch and not kept else 1.0

    def describe_changes(self, values: Values) -> str:
        """Returns what of the mathematics these values change."""
        scale = self.scale(values)
        changes = [f"global batch x{scale:g}"] if scale != 1.0 else []
        changes += ["arguments of the script"] if self._task.arg and any(name[:2] == "--" for name in values) else []
        return ", ".join([*changes, *(["rounding, by its compiler"] if "compile" in values else [])])

    def run(self) -> Generator[Event, None, None]:
        """Tries launches until no more are worth it, the budget ends, or the default fails. Raises `Interrupted`."""
        with suppress(DefaultFailed):
            yield from super().run()
        for attempt in self._unproved:  # a host that was lost may be back
            yield from attempt.watcher.prove_ended()

    def measure(self, purpose: Purpose, values: Values) -> Generator[Event, None, CandidateTried]:
        prepared = self.prepare(values, self._choose_limit())
        assert prepared is not None  # or it had not been proposed
        attempt, since, scale = make_attempt(prepared, self._context), self.watch(), self.scale(values)
        fold, reader, times = RunFold(every_line=True), RateReader(scale), [0.0, 0.0]
        metric, steps = self.ranking.metric, self.started.steps
        rungs = [steps // 4, steps // 2, steps]
        outcome: Literal["", "measured", "dropped"] = ""

        def take(event: Event) -> bool:
            nonlocal outcome
            fold.handle_event(e.Stamped(self._context.clock(), event))
            if isinstance(event, e.CleanupChecked) and event.unchecked:
                self._unproved.append(attempt)
            if outcome or not isinstance(event, e.Output):
                return True
            reader.read_state(fold.state, event.rank)
            times[:] = times[0] or self.watch(), self.watch()
            if metric and metric not in reader.rates:
                return True  # as one that a script prints at its end
            passed = [rungs.pop(0) for rung in tuple(rungs) if rung <= reader.steps]
            if passed and self.is_out(reader.rates, self.watch(), passed[-1]):
                outcome = "dropped"
            elif not rungs:
                outcome = "measured"
            if outcome:
                attempt.watcher.pending_order, attempt.watcher.retry_at = StopRun(outcome), 0.0
            return True

        title = f"{prepared.request.script.name or prepared.task.script}: {describe_values(values)}"
        yield make_started("run", title, prepared.inventory, prepared.task.venv)
        yield e.Planned("run", str(attempt.launch), attempt.launch.public())
        detached = yield from run_nested(attempt.execute(), take, advise_without_share)
        if attempt.watcher.interrupted:
            raise attempt.watcher.interrupted
        report, rates = make_report(fold.state), reader.rates
        ended_well = report.run is not None and report.run.good
        metric = metric or next((name for name in RATES if name in rates), "")
        why = ""
        if metric not in rates or not (outcome or ended_well):
            why = "nobody watches it any more" if detached else describe_cause(report)
            why = why or f"it printed no {metric or 'step and no rate'}"
        if self.tried or not why:
            yield e.FailuresIgnored(title)
        elif ended_well:  # else what failed says why the study ends
            yield e.HostFailed(Failure("", Kind.STEP, f"the default launch has no rate: {why}", code="no-rate"))
        return CandidateTried(
            purpose, values, "failed" if why else outcome or "measured", fmean(times) or since, self.watch() - since,
            rates, reader.steps, why, self.describe_changes(values),
        )  # fmt: skip

    def _choose_limit(self) -> float:
        """Seconds that a launch may take: much more than the default did, and not much more than the budget has."""
        whole = [each.seconds for each in self.tried if not each.values and each.outcome == "measured"]
        left = max(self.started.budget - self.watch(), 0.0)
        if not whole or self.search is None:
            return max(left, 60.0)
        return min(_PATIENCE * max(whole) + _MORE_PATIENCE, left + max(whole))


def read_study(runs: Path, word: str) -> tuple[Tune, tuple[CandidateTried, ...]]:
    """Returns the task of a saved study, and what was tried. Raises `UsageError`."""
    studies = select_saved_runs(runs, (), RunFilter("tune")) if word == "last" else ()
    directory = Path(studies[0].directory) if studies else find_saved_run(runs, word)
    events = [stamped.event for stamped in read_saved_run(directory)]
    started = next((event for event in events if isinstance(event, e.StudyStarted)), None)
    if started is None:
        what = f"{printable(read_name(directory))} is no study that can be resumed"
        raise UsageError(what, hint=advise("runs", "--verb", "tune"))
    given: Any = dict(started.task)
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    budget = f"{max(round(started.budget), 1)}s"
    return Tune(**given, budget=budget), tuple(event for event in events if isinstance(event, CandidateTried))


def _format_plan(task: Tune, size: int, knobs: Mapping[str, Sequence[Value]]) -> str:
    count = prod(len(values) + 1 for values in knobs.values())
    lines = [f"{task.script}: {pluralize(size, 'rank')} by default, {pluralize(count, 'launch')} to choose from"]
    words = {name: ["yes" if value is True else str(value) for value in values] for name, values in knobs.items()}
    lines += [f"  {name}: {', '.join(each)}" for name, each in words.items()]
    lines += [] if knobs else ["  nothing that could be varied would change the launch on these hosts"]
    return "\n".join([*lines, f"within {task.budget}, {pluralize(task.steps, 'step')} of each"])


def _check_target(into: Path) -> None:
    """Raises `UsageError` for a file that somebody else wrote, or that cannot be."""
    check_destination(into)
    try:
        foreign = into.exists() and not into.read_text("utf-8", "replace").startswith(MARK)
    except OSError as error:
        raise UsageError(f"--into {printable(str(into), 300)}: {describe_error(error)}") from None
    if foreign:
        raise UsageError(f"--into {printable(str(into), 300)} would replace a file that tune did not write")
