"""``ipexctl tune``: short runs of a script, each started in another way, in turn with the default; the best is then set
against the default once more. Each is an ordinary run, ended once it was measured or is out of the race."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from ipexctl.act.context import Context
from ipexctl.act.inputs import read_input, read_script_text
from ipexctl.data import read_data
from ipexctl.decide.parsing.amounts import parse_span
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.decide.saved_runs import RunFilter
from ipexctl.decide.tune import knobs as k
from ipexctl.decide.tune.ranking import RATES, RateReader
from ipexctl.decide.tune.study import PAIRS, DefaultFailed, Study, import_optuna
from ipexctl.model import events as e
from ipexctl.model.answers.plan import DryRun
from ipexctl.model.answers.tune import TuneAnswer
from ipexctl.model.errors import Exit, Failure, Hint, Interrupted, Kind, UsageError, advise, complete_hint
from ipexctl.model.events import CandidateTried, Event, Value, Values, describe_values
from ipexctl.model.hosts import Inventory
from ipexctl.model.reports import CommandReport
from ipexctl.model.run_words import list_given, list_run_words
from ipexctl.model.secrets import MASK
from ipexctl.model.tasks import LOCAL_PATHS, Run, Tune
from ipexctl.model.text import join_names, pluralize, printable
from ipexctl.model.toml import parse_toml
from ipexctl.protocol.messages import StopRun
from ipexctl.store.record import read_name
from ipexctl.verbs.common.known_errors import read_known_errors
from ipexctl.verbs.common.nested import advise_without_share, run_nested
from ipexctl.verbs.common.pages import check_destination, write_page
from ipexctl.verbs.common.playbooks import resolve_path
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
    task: Tune, inventory: Inventory, context: Context, *, dry: bool = False, resume: str | None = None
) -> Generator[Event, None, None]:
    """Tries launches and yields a `TuneAnswer`; ``resume`` names a saved study to go on with. Raises `UsageError`."""
    earlier: Sequence[CandidateTried] = ()
    if resume is not None:
        task, earlier = _read_study(context, resume, task)
    if not task.script:
        raise UsageError("tune needs a script to run", hint=advise("tune", "train.py"))
    base = Run(**{each.name: getattr(task, each.name) for each in fields(Run)})
    names, base = k.parse_knobs(task.vary, task.fixed, base)
    into, arguments = Path(task.into), k.parse_arguments(task.arg)
    context.masker.add_words(
        [str(word) for name, values in arguments.items() for each in values for word in (name, each)]
    )
    parse_span("--budget", task.budget)
    if task.keep_batch:
        k.keep_batch(base, task.keep_batch, 1, 1)
    check_destination(into)
    if into.exists() and k.MARK not in read_input(into).text.splitlines():
        raise UsageError(f"--into {printable(str(into), 300)} would replace a file that tune did not write")
    import_optuna()
    request = read_request(base, context.environ, dry=dry, emit=None)
    text = base.script if base.module else read_script_text(request.script)
    prepared = yield from prepare_run("tune", request, inventory, context)
    if prepared is None:
        return
    wasted = set() if task.vary or k.ACCELERATED.search(text) else {"compile"}
    wasted |= set() if task.vary or task.keep_batch else {"ppn"}  # which would change the global batch
    names = tuple(name for name in names if name not in wasted)
    knobs = k.list_knobs(base, make_attempt(prepared, context).launch, prepared.facts, names)
    study = HostStudy(task, prepared, context, {**knobs, **arguments}, earlier)
    wins, varied = parse_toml(read_data("tuning.toml")), study.started.knobs
    usual = {name: values[0] for name, values in varied.items() if name in wins}
    study.listed += [usual, *({name: value} for name, value in usual.items())]

    def finish(answer: TuneAnswer, interrupted: bool) -> TuneAnswer:
        words, venv = [], None
        if answer.recommended and study.best is not None:
            tuned = study.make_task(study.best.values)
            text = k.write_playbook(tuned, answer.verdict)
            write_page(into, text, 0o644 if context.masker.mask_text(text) == text else 0o600)
            answer, words, venv = replace(answer, playbook=str(into)), list_run_words(tuned), task.venv
        elif interrupted or (answer.best is not None and answer.pairs < PAIRS[0]):
            words = ["tune", "--resume", "--budget", task.budget]
        if words:
            answer = replace(answer, next=complete_hint(Hint(words), list_flags(inventory, venv)))
        return replace(answer, script=base.script)

    yield from run_study("tune", study, finish, dry=dry)


def run_study(
    verb: str, study: "HostStudy", finish: Callable[[TuneAnswer, bool], TuneAnswer], *, dry: bool
) -> Generator[Event, None, None]:
    """Performs a study to the end of the command, which has no answer where the default launch has no rate."""
    plan, exit_code = study.describe_plan(), Exit.OK
    yield e.Planned(verb, plan)
    if dry or not study.started.knobs:
        yield from e.finish_verb(verb, DryRun(plan))
        return
    yield study.started
    try:
        yield from study.run()
    except DefaultFailed:
        pass
    except Interrupted as interruption:
        exit_code = interruption.exit
    for attempt in study.unproved if exit_code is Exit.OK else ():  # a host that was lost may be back
        yield from attempt.watcher.prove_ended()
    if exit_code is not Exit.OK or any(each.rates for each in study.tried if not each.values):
        yield e.Answer(finish(study.judge(), exit_code is not Exit.OK))
    yield e.Ended(verb, exit_code)


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
        self._messages: dict[str, LaunchAttempt] = {}  # with the launch that had each first
        self.unproved: list[LaunchAttempt] = []  # with hosts that could not be searched
        self.default = make_attempt(prepared, context).launch
        varied: dict[str, tuple[Value, ...]] = {}
        for name, values in knobs.items():
            others = (None, self.identify({}))
            if kept := tuple(value for value in values if self.identify({name: value}) not in others):
                varied[name] = kept
        self._begun = context.clock() - max((each.at + each.seconds / 2 for each in earlier), default=0.0)
        given, budget, minimize = list_given(task), parse_span("--budget", task.budget), task.direction == "min"
        started = e.StudyStarted(varied, given, task.metric or "", minimize, budget, task.seed, task.steps)
        super().__init__(started, earlier)

    def describe_plan(self) -> str:
        """Returns what is varied, as lines."""
        ranks, steps = pluralize(self.default.size, "rank"), pluralize(self._task.steps, "step")
        lines = [f"{self._task.script}: {ranks} by default; {steps} of each launch, within {self._task.budget}"]
        for name, values in self.started.knobs.items():
            lines.append(f"  {name}: {', '.join('yes' if value is True else str(value) for value in values)}")
        if not self.started.knobs:
            lines.append("  nothing that could be varied would change the launch on these hosts")
        return "\n".join(lines)

    def watch(self) -> float:
        return self._context.clock() - self._begun

    def count_ranks(self, values: Values) -> int:
        return int(values["ppn"]) * len(self.default.nodes) if "ppn" in values else self.default.size

    def make_task(self, values: Values) -> Run:
        """Returns the task with these values. Raises `UsageError` where it cannot keep the global batch."""
        task, name = k.set_values(self._prepared.task, values), self._task.keep_batch
        return k.keep_batch(task, name, self.default.size, self.count_ranks(values)) if name else task

    def prepare(self, values: Values, limit: float | None = None) -> Prepared:
        """Returns what the launch with these values is computed from, ended after ``limit`` s. Raises `UsageError`."""
        task, starts = self.make_task(values), self._prepared.starts
        task = replace(task, time_limit=limit, lease=task.lease or _LEASE, grace=min(task.grace, _GRACE))
        request = read_request(task, self._context.environ, dry=False, emit=None)
        starts = tuple(replace(start, args=task.args) for start in starts)
        return replace(self._prepared, request=request, starts=starts)

    def identify(self, values: Values) -> str | None:
        try:
            return k.identify_launch(make_attempt(self.prepare(values), self._context).launch)
        except UsageError:
            return None

    def measure(self, values: Values) -> Generator[Event, None, CandidateTried]:
        prepared = self.prepare(values, self.choose_limit())
        attempt, begun = make_attempt(prepared, self._context), self.watch()
        # Where a rank keeps its batch, a step of more ranks does more.
        kept = self._task.keep_batch or self._task.metric
        scale = 1.0 if kept else self.count_ranks(values) / self.default.size
        fold, reader = RunFold(every_line=True), RateReader(scale)
        rungs = [self.started.steps // 4, self.started.steps // 2, self.started.steps]
        outcome: Literal["", "measured", "dropped"] = ""
        waits_since = 0.0  # for hosts that another run has

        def take(event: Event) -> bool:
            nonlocal outcome, waits_since
            fold.handle_event(e.Stamped(self._context.clock(), event))
            if isinstance(event, e.CleanupChecked) and event.unchecked:
                self.unproved.append(attempt)
            if isinstance(event, e.Message) and event.code == "waiting":
                waits_since = waits_since or self.watch()
            elif isinstance(event, e.RunStarted) and waits_since:
                self._begun += self.watch() - waits_since  # to wait is no part of the budget
                waits_since = 0.0
            if isinstance(event, e.Output) and not outcome:
                reader.read_state(fold.state, event.rank)
                outcome = self._judge(values, reader, rungs)
                if outcome:
                    attempt.watcher.pending_order, attempt.watcher.retry_at = StopRun(outcome), 0.0
            # A message of every launch comes once.
            return not isinstance(event, e.Message) or self._messages.setdefault(event.text, attempt) is attempt

        title = f"{prepared.request.script.name or prepared.task.script}: {describe_values(values)}"
        yield make_started("run", title, prepared.inventory, prepared.task.venv)
        yield e.Planned("run", str(attempt.launch), attempt.launch.public())
        yield from run_nested(attempt.execute(), take, advise_without_share)
        if attempt.watcher.interrupted:
            raise attempt.watcher.interrupted
        report, last = make_report(fold.state, read_known_errors), fold.state.last_attempt
        if last and last.backend not in ("", attempt.launch.backend) and not self._task.backend_override:
            # The script itself chooses its backend, whatever is planned.
            self.started = replace(self.started, knobs={**self.started.knobs, "backend": ()})
        why = self._explain_failure(reader, outcome, report)
        if self.tried or not why:
            yield e.FailuresIgnored(title)
        elif not report.failures:  # which say why the study ends
            yield e.HostFailed(Failure("", Kind.STEP, f"the default launch has no rate: {why}", code="no-rate"))
        return CandidateTried(
            values, "failed" if why else outcome or "measured", (begun + self.watch()) / 2, self.watch() - begun,
            {} if why else reader.rates, why, ", ".join(self._list_changes(values, scale)),
        )  # fmt: skip

    def _explain_failure(self, reader: RateReader, outcome: str, report: CommandReport) -> str:
        """Why a launch has no rate; empty where it has one."""
        metric = self.ranking.metric or next((name for name in RATES if name in reader.rates), "")
        if metric in reader.rates and (outcome or (report.run and report.run.good)):
            return ""
        return describe_cause(report) or f"it printed no {metric or 'step and no rate'}"

    def _list_changes(self, values: Values, scale: float) -> Iterator[str]:
        """What a launch computes in another way than the default."""
        if "compile" in values:
            yield "rounding"
        if scale != 1.0:
            yield f"global batch x{scale:g}"
        if self._task.arg and any(name[:2] == "--" for name in values):
            yield "arguments of the script"

    def _judge(self, values: Values, reader: RateReader, rungs: list[int]) -> Literal["", "measured", "dropped"]:
        """Whether the launch that is being measured can be ended now; takes the ``rungs`` that it has passed."""
        if not reader.has_any([self.ranking.metric] if self.ranking.metric else RATES):
            return ""  # as one that a script prints at its end
        while rungs and rungs[0] <= reader.steps:
            if self.is_out(values, reader.rates, self.watch(), rungs.pop(0)):
                return "dropped"
        return "" if rungs else "measured"

    def choose_limit(self) -> float:
        """Returns the seconds that a launch may take: more than the default did, not much more than the budget has."""
        whole = [each.seconds for each in self.tried if not each.values and each.outcome == "measured"]
        left = max(self.started.budget - self.watch(), 0.0)
        return min(_PATIENCE * max(whole) + _MORE_PATIENCE, left + max(whole)) if whole else max(left, 60.0)


def _read_study(context: Context, word: str, task: Tune) -> tuple[Tune, Sequence[CandidateTried]]:
    """Returns the task of a saved study, to whose budget that of ``task`` is added, and what was tried. Raises
    `UsageError`, also for other options of ``task``."""
    more = list_given(task)
    if set(more) - {"budget"}:
        raise UsageError("--resume takes --budget alone: the study has its own script and options")
    runs = context.state / "runs"
    studies = select_saved_runs(runs, (), RunFilter("tune")) if word == "last" else ()
    if word == "last" and not studies:
        raise UsageError("no study is saved", hint="tune SCRIPT begins one")
    directory = Path(studies[0].directory) if studies else find_saved_run(runs, word)
    events = [stamped.event for stamped in read_saved_run(directory, context.masker)]
    started = next((event for event in events if isinstance(event, e.StudyStarted)), None)
    if started is None or not isinstance(started.task, Mapping):
        what = f"{printable(read_name(directory))} is no study that can be resumed"
        raise UsageError(what, hint=advise("runs", "--verb", "tune"))
    tried = [event for event in events if isinstance(event, CandidateTried)]
    given: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in started.task.items()}
    if directory.parent.resolve() != runs.resolve():
        _check_uses(directory, given)
    if MASK.decode() in str(given):
        what = f"{printable(read_name(directory))} had secrets among its arguments or variables, which no record has"
        raise UsageError(what, hint="begin it anew: with --env-file or --pass-env in their place it can be resumed")
    if more:
        spent = max((each.at + each.seconds / 2 for each in tried), default=0.0)
        given["budget"] = f"{spent + parse_span('--budget', task.budget):.0f}s"
    from ipexctl.model.task_schemas import check_fields  # the record may be another's

    return check_fields(Tune, given), tried


def _check_uses(directory: Path, given: Mapping[str, object]) -> None:
    """Refuses a study of somebody else that uses more of this machine than the current directory. Raises
    `UsageError`."""
    paths = LOCAL_PATHS - ({"script"} if given.get("program") or given.get("module") else set())
    places = {name: resolve_path(str(given[name]), Path()) for name in sorted(paths) if given.get(name)}
    outside = {name for name, path in places.items() if not path.is_relative_to(Path().resolve())}
    taken = {name for name in ("env_file", "pass_env", "stdin") if given.get(name)}
    if taken or outside:
        where, names = printable(str(directory), 300), join_names(sorted(taken | outside), 5)
        what = f"the study in {where} is not saved here, and uses more of this machine than this directory: {names}"
        raise UsageError(what, hint=advise("runs", "--verb", "tune"))
