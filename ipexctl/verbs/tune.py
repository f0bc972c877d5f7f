"""``ipexctl tune``: short runs of a script, each started in another way, in turn with the default; the best is then set
against the default once more."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import fields, replace
from math import prod
from pathlib import Path
from time import localtime, strftime
from typing import Any

from ipexctl.act.context import Context
from ipexctl.decide.parsing.amounts import parse_span
from ipexctl.decide.saved_runs import RunFilter
from ipexctl.decide.tune.knobs import list_given, list_knobs, parse_arguments, parse_knobs
from ipexctl.decide.tune.search import OptunaSearch, import_optuna
from ipexctl.decide.tune.summary import MARK, build_playbook, summarize_study
from ipexctl.model.answers.plan import DryRun
from ipexctl.model.answers.tune import TuneAnswer
from ipexctl.model.errors import Exit, Interrupted, UsageError
from ipexctl.model.events import (
    Answer,
    CandidateTried,
    Ended,
    Event,
    Message,
    Planned,
    StudyStarted,
    Value,
    Values,
)
from ipexctl.model.hints import advise, complete_hint
from ipexctl.model.hosts import Inventory
from ipexctl.model.tasks import Run, Tune
from ipexctl.model.text import pluralize, printable
from ipexctl.store.private_files import describe_error, write_private_file
from ipexctl.store.record import read_name
from ipexctl.verbs.common.select import list_flags
from ipexctl.verbs.common.wins import list_wins
from ipexctl.verbs.run.prepare import Prepared, make_attempt
from ipexctl.verbs.run.replay import find_saved_run, read_saved_run
from ipexctl.verbs.run.request import read_request
from ipexctl.verbs.run.run import prepare_run
from ipexctl.verbs.run.saved_runs import select_saved_runs


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
    names, base = parse_knobs(task.vary, task.fixed, base)
    into, arguments = Path(task.into), parse_arguments(task.arg)
    parse_span("--budget", task.budget)
    _check_target(into)
    import_optuna()
    prepared = yield from prepare_run("tune", read_request(base, environ, dry=dry, emit=None), inventory, context)
    if prepared is None:
        return
    knobs = {**list_knobs(base, make_attempt(prepared, context).launch, prepared.facts, names), **arguments}
    if knobs.get("ppn") and not task.keep_batch and not any("ppn" in words for words in task.vary):
        del knobs["ppn"]
        text = "ranks per host are not varied, which would change the global batch; --keep-batch NAME keeps it"
        yield Message(text, code="batch-kept")
    wins = [win.values for win in list_wins(prepared.facts, base)]
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
        _write_playbook(into, build_playbook(tuned, answer.verdict, day))
        answer = replace(answer, playbook=str(into))
    yield Answer(answer)
    yield Ended("tune", exit)


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
    from ipexctl.verbs.study import Launches, StudyRunner

    launches = Launches(task, prepared, context)
    same = launches.identify({})
    varied: dict[str, tuple[Value, ...]] = {}
    for name, values in knobs.items():
        if kept := tuple(value for value in values if launches.identify({name: value}) not in (None, same)):
            varied[name] = kept
    plan = _format_plan(task, launches.default.size, varied)
    yield Planned(verb, plan)
    if dry or not varied:
        yield Answer(DryRun(plan))
        yield Ended(verb, Exit.OK)
        return None
    budget, spent = (
        parse_span("--budget", task.budget),
        max((each.at + each.seconds / 2 for each in earlier), default=0),
    )
    if task.budget != Tune.__dataclass_fields__["budget"].default or spent > budget:
        budget += spent
    given = {name: value for name, value in list_given(task).items() if name != "budget"}
    started = StudyStarted(varied, given, task.metric or "", task.direction == "min", budget, task.seed, task.steps)
    yield started
    optuna = OptunaSearch(started) if search else None
    runner = StudyRunner(started, launches, context, context.clock() - spent, optuna, listed, earlier)
    study, exit = runner.study, Exit.OK
    try:
        yield from runner.run()
    except Interrupted as interruption:
        exit = interruption.exit
    if exit is Exit.OK and not any(each.outcome == "measured" for each in study.tried if not each.values):
        yield Ended(verb, exit)  # a failure says why; a table without a rate says nothing
        return None
    best = study.judge().best
    tuned = (launches.make_task(best.values) if best else None) or prepared.task
    interrupted = exit is not Exit.OK
    return summarize_study(study, prepared.task, tuned, runner.watch(), budget, interrupted=interrupted), tuned, exit


def read_study(runs: Path, word: str) -> tuple[Tune, tuple[CandidateTried, ...]]:
    """Returns the task of a saved study, and what was tried. Raises `UsageError`."""
    studies = select_saved_runs(runs, (), RunFilter("tune")) if word == "last" else ()
    directory = Path(studies[0].directory) if studies else find_saved_run(runs, word)
    events = [stamped.event for stamped in read_saved_run(directory)]
    started = next((event for event in events if isinstance(event, StudyStarted)), None)
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
    """Raises `UsageError` for a file that somebody else wrote."""
    try:
        foreign = into.exists() and not into.read_text("utf-8", "replace").startswith(MARK)
    except OSError as error:
        raise UsageError(f"--into {printable(str(into), 300)}: {describe_error(error)}") from None
    if foreign or not into.parent.is_dir():
        what = f"--into {printable(str(into), 300)} would replace a file that tune did not write"
        raise UsageError(what if foreign else f"--into {printable(str(into), 300)}: its directory does not exist")


def _write_playbook(path: Path, value: Mapping[str, object]) -> None:
    """Raises `UsageError` where the file cannot be written."""
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    try:
        write_private_file(path, f"{MARK}\n{text}".encode(), 0o644)
    except OSError as error:
        what = f"{printable(str(path), 300)} cannot be written: {describe_error(error)}"
        raise UsageError(what, exit=Exit.RECORD) from None
