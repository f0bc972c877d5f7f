"""``ipexctl tune``: short runs of a script, each started in another way, in turn with the default; the best is then set
against the default once more."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from math import prod
from pathlib import Path
from time import localtime, strftime
from typing import Any

from ipexctl.act.context import Context
from ipexctl.decide.parsing.amounts import parse_span
from ipexctl.decide.saved_runs import RunFilter
from ipexctl.decide.tune.knobs import keep_batch, list_given, list_knobs, parse_arguments, parse_knobs, set_values
from ipexctl.decide.tune.search import ListSearch, OptunaSearch, import_optuna
from ipexctl.decide.tune.study import Study
from ipexctl.decide.tune.summary import MARK, build_playbook, summarize_study
from ipexctl.model.answers.plan import DryRun
from ipexctl.model.answers.tune import TuneAnswer
from ipexctl.model.errors import Exit, Failure, Kind, UsageError
from ipexctl.model.events import (
    Answer,
    CandidateTried,
    Ended,
    Event,
    HostFailed,
    Message,
    Planned,
    StudyStarted,
    Value,
    Values,
)
from ipexctl.model.facts import Facts
from ipexctl.model.hints import advise, complete_hint
from ipexctl.model.hosts import Inventory
from ipexctl.model.json_values import Record
from ipexctl.model.launch import NodePlan
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


class Compared(Record):
    """What a study has found: its ``answer``, the task of the best launch, and the exit code."""

    answer: TuneAnswer
    tuned: Run
    exit: Exit


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
    names, base = _read_task(task)
    into, arguments = Path(task.into), parse_arguments(task.arg)
    parse_span("--budget", task.budget)
    _check_target(into)
    import_optuna()
    prepared = yield from prepare_run("tune", read_request(base, environ, dry=dry, emit=None), inventory, context)
    if prepared is None:
        return
    knobs = {**list_knobs(base, make_attempt(prepared, context).launch, prepared.facts, names), **arguments}
    if knobs.get("ppn") and not task.keep_batch and not _names_ppn(task):
        del knobs["ppn"]
        text = "ranks per host are not varied, which would change the global batch; --keep-batch NAME keeps it"
        yield Message(text, code="batch-kept")
    found = yield from compare_launches("tune", task, prepared, knobs, context, dry=dry, earlier=earlier)
    if found is None:
        return
    answer = replace(found.answer, next=complete_hint(found.answer.next, list_flags(inventory, task.venv)))
    if answer.recommended:
        day = strftime("%Y-%m-%d", localtime(context.clock()))
        _write_playbook(into, build_playbook(found.tuned, answer.verdict, day))
        answer = replace(answer, playbook=str(into))
    yield Answer(answer)
    yield Ended("tune", found.exit)


def compare_launches(
    verb: str,
    task: Tune,
    prepared: Prepared,
    knobs: Mapping[str, Sequence[Value]],
    context: Context,
    *,
    dry: bool = False,
    earlier: tuple[CandidateTried, ...] = (),
    each_once: bool = False,
) -> Generator[Event, None, Compared | None]:
    """Tries launches with the values of ``knobs`` in turn with the prepared one; ``each_once``: each of them, instead
    of a search. Returns None after a dry run, where nothing can be varied, and where the prepared one fails at once."""
    from ipexctl.verbs.study import Launches, StudyRunner

    base, budget = prepared.request.task, parse_span("--budget", task.budget)
    default = make_attempt(prepared, context).launch
    launches = Launches(prepared, context, partial(_make_task, base, task.keep_batch, default.size, default.nodes))
    same = launches.identify({})
    knobs = {
        name: [value for value in values if launches.identify({name: value}) not in (None, same)]
        for name, values in knobs.items()
    }
    knobs = {name: values for name, values in knobs.items() if values}
    plan = _format_plan(task, default.size, knobs)
    yield Planned(verb, plan)
    if dry or not knobs:
        yield Answer(DryRun(plan))
        yield Ended(verb, Exit.OK)
        return None
    minimize, spent = task.direction == "min", max((each.at + each.seconds / 2 for each in earlier), default=0.0)
    budget += spent if task.budget != Tune.__dataclass_fields__["budget"].default or spent > budget else 0.0
    given = {name: value for name, value in list_given(task).items() if name != "budget"}
    started = {name: tuple(values) for name, values in knobs.items()}
    yield StudyStarted(started, given, task.metric or "", minimize, budget, task.seed, task.steps)
    search = ListSearch(knobs) if each_once else _make_search(task, base, prepared.facts, knobs)

    def scale(values: Values) -> float:
        """Of launches that keep a rank's batch, those with more ranks do more in a step."""
        launch = launches.find(values)
        return launch.size / default.size if launch and not task.keep_batch and not task.metric else 1.0

    def describe_changes(values: Values) -> str:
        changes = [f"global batch x{scale(values):g}"] if scale(values) != 1.0 else []
        changes += ["arguments of the script"] if not each_once and any(name[:2] == "--" for name in values) else []
        return ", ".join([*changes, *(["rounding, by its compiler"] if "compile" in values else [])])

    study = Study(
        search,
        launches.identify,
        budget,
        metric=task.metric or "",
        minimize=minimize,
        scale=scale,
        finals=not each_once,
    )
    for tried in earlier:
        study.add(replace(tried, purpose="search" if tried.values else "default"))
        yield tried
    begun = context.clock() - spent
    hurried = not each_once  # torch.compile takes its time
    runner = StudyRunner(study, launches, context, begun, budget, task.steps, describe_changes, hurried)
    yield from runner.run()
    exit = runner.interrupted.exit if runner.interrupted else Exit.OK
    if runner.failed:  # which says why; a table without a rate says nothing
        yield Ended(verb, exit)
        return None
    tuned = _make_task(base, task.keep_batch, default.size, default.nodes, study.judge().values) or base
    answer = summarize_study(study, base, tuned, runner.seconds, budget, interrupted=runner.interrupted is not None)
    if not any(each.outcome == "measured" for each in study.tried if not each.values) and exit is Exit.OK:
        why = next((each.why for each in study.tried if each.why), "it was not tried")
        yield HostFailed(Failure("", Kind.STEP, f"the default launch has no rate: {why}", code="no-rate"))
    return Compared(answer, tuned, exit)


def _make_search(
    task: Tune, base: Run, facts: Mapping[str, Facts], knobs: Mapping[str, Sequence[Value]]
) -> OptunaSearch:
    """A search that begins with what usually wins on such hosts."""
    wins = [win.values for win in list_wins(facts, base)]
    first = [dict(values) for values in wins if all(value in knobs.get(name, ()) for name, value in values.items())]
    together = {name: value for values in first for name, value in values.items()}
    return OptunaSearch(knobs, task.seed, task.steps, [together, *first] if len(first) > 1 else first)


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


def _read_task(task: Tune) -> tuple[tuple[str, ...], Run]:
    """The names of what is varied, and the default launch as a task. Raises `UsageError`."""
    if not task.script:
        raise UsageError("tune needs a script to run", hint=advise("tune", "train.py"))
    return parse_knobs(task.vary, task.fixed, Run(**{each.name: getattr(task, each.name) for each in fields(Run)}))


def _names_ppn(task: Tune) -> bool:
    return any("ppn" in words for words in task.vary)


def _make_task(base: Run, argument: str | None, size: int, nodes: Sequence[NodePlan], values: Values) -> Run | None:
    task = set_values(base, values)
    ranks = sum(int(values["ppn"]) for _ in nodes) if "ppn" in values else size
    return keep_batch(task, argument, size, ranks) if argument else task


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
