"""``ipexctl tune``: short runs of a script, each started in another way, in turn with the default; the best is then set
against the default once more. Each is an ordinary run, ended once it was measured or is out of the race."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from math import prod
from pathlib import Path
from time import localtime, strftime
from typing import Any, Literal

from ipexctl.act.context import Context
from ipexctl.act.inputs import read_input, read_script
from ipexctl.data import read_data
from ipexctl.decide.launch import instances
from ipexctl.decide.parsing.amounts import parse_span
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.decide.saved_runs import RunFilter
from ipexctl.decide.tune import knobs as k
from ipexctl.decide.tune.ranking import RATES
from ipexctl.decide.tune.rates import RateReader
from ipexctl.decide.tune.search import import_optuna
from ipexctl.decide.tune.study import DefaultFailed, Study
from ipexctl.decide.tune.summary import PAIRS, is_tuned_playbook, write_playbook
from ipexctl.decide.tune.wins import read_wins
from ipexctl.model import events as e
from ipexctl.model.answers.plan import DryRun
from ipexctl.model.answers.tune import TuneAnswer
from ipexctl.model.errors import Exit, Failure, Interrupted, Kind, UsageError
from ipexctl.model.events import CandidateTried, Event, Purpose, Value, Values, describe_values
from ipexctl.model.hints import Hint, advise, complete_hint
from ipexctl.model.hosts import Inventory
from ipexctl.model.launch import Launch, Setting
from ipexctl.model.run_state import Attempt
from ipexctl.model.tasks import Run, Tune
from ipexctl.model.text import pluralize, printable
from ipexctl.protocol.messages import StopRun
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
    if task.keep_batch:
        k.keep_batch(base, task.keep_batch, 1, 1)
    check_destination(into)
    if into.exists() and not is_tuned_playbook(read_input(into).text):
        raise UsageError(f"--into {printable(str(into), 300)} would replace a file that tune did not write")
    import_optuna()
    request = read_request(base, environ, dry=dry, emit=None)
    text = f"import {base.script}" if base.module else read_script(request.script)[0]
    if not k.imports_accelerate(text) and not any("compile" in words for words in task.vary):
        names = tuple(name for name in names if name != "compile")
    prepared = yield from prepare_run("tune", request, inventory, context)
    if prepared is None:
        return
    knobs = {**k.list_knobs(base, make_attempt(prepared, context).launch, prepared.facts, names), **arguments}
    if knobs.get("ppn") and not task.keep_batch and not any("ppn" in words for words in task.vary):
        del knobs["ppn"]
        text = "ranks per host are not varied, which would change the global batch; --keep-batch NAME keeps it"
        yield e.Message(text, code="batch-kept")
    study = HostStudy(task, prepared, context, knobs, earlier)
    varied = study.started.knobs
    wins = {name: value for win in read_wins(read_data("tuning.toml")) for name, value in win.values.items()}
    wins = {name: value for name, value in wins.items() if value in varied.get(name, ())}
    study.listed += [wins, *({name: value} for name, value in wins.items())]
    answer = yield from run_study("tune", study, dry=dry)
    if answer is None:
        return
    if answer.recommended and study.best is not None:
        tuned = study.make_task(study.best.values)
        day = strftime("%Y-%m-%d", localtime(context.clock()))
        write_page(into, write_playbook(tuned, answer.verdict, day), 0o644)
        command = complete_hint(Hint(k.list_run_words(tuned)), list_flags(inventory, task.venv))
        answer = replace(answer, playbook=str(into), next=command)
    elif answer.interrupted or (answer.best is not None and answer.pairs < PAIRS[0]):
        words = ["tune", "--resume"] if answer.interrupted else ["tune", "--resume", "--budget", task.budget]
        answer = replace(answer, next=complete_hint(Hint(words), list_flags(inventory, None)))
    yield e.Answer(replace(answer, script=base.script))
    yield e.Ended("tune", study.exit)


def run_study(verb: str, study: "HostStudy", *, dry: bool) -> Generator[Event, None, TuneAnswer | None]:
    """Performs a study and returns what it found; None where the command has ended: after a dry run, with nothing to
    vary, and where the default launch has no rate."""
    plan = study.describe_plan()
    yield e.Planned(verb, plan)
    if dry or not study.started.knobs:
        yield e.Answer(DryRun(plan))
        yield e.Ended(verb, Exit.OK)
        return None
    yield study.started
    yield from study.run()
    if study.exit is Exit.OK and not any(each.outcome == "measured" for each in study.tried if not each.values):
        yield e.Ended(verb, Exit.OK)  # a failure says why; a table without a rate says nothing
        return None
    return study.judge(interrupted=study.exit is not Exit.OK)


class HostStudy(Study):
    """A study of ``task``; its launches are computed from what was ``prepared`` for the default one."""

    def __init__(
        self,
        task: Tune,
        prepared: Prepared,
        context: Context,
        knobs: Mapping[str, Sequence[Value]],
        earlier: Sequence[CandidateTried] = (),
    ) -> None:
        self._task, self._prepared, self._context = task, prepared, context
        self._launches: dict[str, Launch | None] = {}
        self._unproved: list[LaunchAttempt] = []  # with hosts that could not be searched
        self.exit = Exit.OK
        self.default = make_attempt(prepared, context).launch
        same = self.identify({})
        varied: dict[str, tuple[Value, ...]] = {}
        for name, values in knobs.items():
            if kept := tuple(value for value in values if self.identify({name: value}) not in (None, same)):
                varied[name] = kept
        spent = max((each.at + each.seconds / 2 for each in earlier), default=0.0)
        self._begun, budget = context.clock() - spent, spent + parse_span("--budget", task.budget)
        given = {name: value for name, value in k.list_given(task).items() if name != "budget"}
        minimize = task.direction == "min"
        started = e.StudyStarted(varied, given, task.metric or "", minimize, budget, task.seed, task.steps)
        super().__init__(started, earlier)

    def describe_plan(self) -> str:
        """Returns what is varied, as lines."""
        knobs = self.started.knobs
        count = pluralize(prod(len(values) + 1 for values in knobs.values()), "launch")
        lines = [f"{self._task.script}: {pluralize(self.default.size, 'rank')} by default, {count} to choose from"]
        for name, values in knobs.items():
            lines.append(f"  {name}: {', '.join('yes' if value is True else str(value) for value in values)}")
        if not knobs:
            lines.append("  nothing that could be varied would change the launch on these hosts")
        return "\n".join([*lines, f"within {self._task.budget}, {pluralize(self._task.steps, 'step')} of each"])

    def watch(self) -> float:
        return self._context.clock() - self._begun

    def make_task(self, values: Values) -> Run:
        """Returns the task with these values. Raises `UsageError` where it cannot keep the global batch."""
        task, default, name = k.set_values(self._prepared.task, values), self.default, self._task.keep_batch
        size = int(values["ppn"]) * len(default.nodes) if "ppn" in values else default.size
        return k.keep_batch(task, name, default.size, size) if name else task

    def prepare(self, values: Values, limit: float | None = None) -> Prepared:
        """Returns what the launch with these values is computed from, which may take ``limit`` seconds. Raises
        `UsageError`."""
        task, request, starts = self.make_task(values), self._prepared.request, self._prepared.starts
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
        if key not in self._launches:
            self._launches[key] = None
            with suppress(UsageError):
                self._launches[key] = make_attempt(self.prepare(values), self._context).launch
        return self._launches[key]

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
        return ", ".join([*changes, *(["rounding"] if "compile" in values else [])])

    def run(self) -> Generator[Event, None, None]:
        """Tries launches until no more are worth it, the budget ends, the default fails, or the user interrupts it."""
        try:
            yield from super().run()
        except DefaultFailed:
            pass
        except Interrupted as interruption:
            self.exit = interruption.exit
            return
        for attempt in self._unproved:  # a host that was lost may be back
            yield from attempt.watcher.prove_ended()

    def measure(self, purpose: Purpose, values: Values) -> Generator[Event, None, CandidateTried]:
        prepared = self.prepare(values, self.choose_limit())
        attempt, begun = make_attempt(prepared, self._context), self.watch()
        fold, reader = RunFold(every_line=True), RateReader(self.scale(values))
        rungs = [self.started.steps // 4, self.started.steps // 2, self.started.steps]
        outcome: Literal["", "measured", "dropped"] = ""

        def take(event: Event) -> bool:
            nonlocal outcome
            fold.handle_event(e.Stamped(self._context.clock(), event))
            if isinstance(event, e.CleanupChecked) and event.unchecked:
                self._unproved.append(attempt)
            if isinstance(event, e.Output) and not outcome:
                reader.read_state(fold.state, event.rank)
                outcome = self._judge_progress(reader, rungs)
                if outcome:
                    attempt.watcher.pending_order, attempt.watcher.retry_at = StopRun(outcome), 0.0
            return True

        title = f"{prepared.request.script.name or prepared.task.script}: {describe_values(values)}"
        yield make_started("run", title, prepared.inventory, prepared.task.venv)
        yield e.Planned("run", str(attempt.launch), attempt.launch.public())
        detached = yield from run_nested(attempt.execute(), take, advise_without_share)
        if attempt.watcher.interrupted:
            raise attempt.watcher.interrupted
        report = make_report(fold.state)
        ended_well = report.run is not None and report.run.good
        metric = self.ranking.metric or next((name for name in RATES if name in reader.rates), "")
        yield from self._note_backend(fold.state.last_attempt, attempt.launch)
        why = ""
        if metric not in reader.rates or not (outcome or ended_well):
            why = "nobody watches it any more" if detached else describe_cause(report)
            why = why or f"it printed no {metric or 'step and no rate'}"
        elif self.own_backend and "backend" in values:
            why = f"the script itself chooses {self.own_backend}"
        if self.tried or not why:
            yield e.FailuresIgnored(title)
        elif not report.failures:  # which say why the study ends
            yield e.HostFailed(Failure("", Kind.STEP, f"the default launch has no rate: {why}", code="no-rate"))
        return CandidateTried(
            purpose, values, "failed" if why else outcome or "measured", (begun + self.watch()) / 2,
            self.watch() - begun, reader.rates, why, self.describe_changes(values),
        )  # fmt: skip

    def _note_backend(self, attempt: Attempt | None, launch: Launch) -> Generator[Event, None, None]:
        """Notes whether the script has chosen another backend than the planned one."""
        used = attempt.backend if attempt else ""
        if self.own_backend or used in ("", launch.backend) or self._task.backend_override:
            return
        self.leave_backends_out(used)
        if "backend" in self.started.knobs:
            text = f"the backend is not varied: the script itself chooses {used}, whatever is planned"
            yield e.Message(text, code="backend-kept")

    def _judge_progress(self, reader: RateReader, rungs: list[int]) -> Literal["", "measured", "dropped"]:
        """Whether the launch that is being measured can be ended now; takes the ``rungs`` that it has passed."""
        metric = self.ranking.metric
        if metric and metric not in reader.rates:
            return ""  # as one that a script prints at its end
        passed = [rung for rung in rungs if rung <= reader.steps]
        del rungs[: len(passed)]
        if passed and self.is_out(reader.rates, self.watch(), passed[-1]):
            return "dropped"
        return "" if rungs else "measured"

    def choose_limit(self) -> float:
        """Returns the seconds that a launch may take: much more than the default did, and not much more than the budget
        has."""
        whole = [each.seconds for each in self.tried if not each.values and each.outcome == "measured"]
        left = max(self.started.budget - self.watch(), 0.0)
        return min(_PATIENCE * max(whole) + _MORE_PATIENCE, left + max(whole)) if whole else max(left, 60.0)


def read_study(runs: Path, word: str) -> tuple[Tune, tuple[CandidateTried, ...]]:
    """Returns the task of a saved study, with what is left of its budget, and what was tried. Raises `UsageError`."""
    studies = select_saved_runs(runs, (), RunFilter("tune")) if word == "last" else ()
    directory = Path(studies[0].directory) if studies else find_saved_run(runs, word)
    events = [stamped.event for stamped in read_saved_run(directory)]
    started = next((event for event in events if isinstance(event, e.StudyStarted)), None)
    if started is None:
        what = f"{printable(read_name(directory))} is no study that can be resumed"
        raise UsageError(what, hint=advise("runs", "--verb", "tune"))
    tried = tuple(event for event in events if isinstance(event, CandidateTried))
    left = started.budget - max((each.at + each.seconds / 2 for each in tried), default=0.0)
    if left <= 0:
        left = started.budget
    given: Any = dict(started.task)
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return Tune(**given, budget=f"{max(round(left), 1)}s"), tried
