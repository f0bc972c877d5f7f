"""``ipexctl play``: a playbook's steps in order, over the same connections.

As in Ansible, a host that fails a step is left out of the later ones and the others go on. Steps whose hosts work
together (`run`) are begun only with all of them. ``any_errors_fatal`` and ``max_fail_percentage`` change this."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ipexctl.act.context import Context
from ipexctl.act.inputs import expand_local_paths
from ipexctl.decide import parsing, play_schedule
from ipexctl.decide.launch.environment import parse_user_env
from ipexctl.decide.launch.programs import is_program_name
from ipexctl.decide.parsing import validators
from ipexctl.decide.planning.sync import find_path_fault
from ipexctl.decide.releases.resolve import match_version
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.model import events as e
from ipexctl.model import tasks
from ipexctl.model.answers.play import ListedStep, PlayAnswer, PlayedStep, PlayListAnswer
from ipexctl.model.errors import Exit, UsageError, choose_exit
from ipexctl.model.events import Event, StepEnded, Workflow
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.hub import is_of_hub
from ipexctl.model.json_values import Record
from ipexctl.model.plays import TOGETHER, Play, Step
from ipexctl.model.reports import CommandReport
from ipexctl.model.text import join_names, pluralize, printable
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.common.select import list_flags
from ipexctl.verbs.files.project import find_project
from ipexctl.verbs.install.requirements import find_unfit_requirements
from ipexctl.verbs.run.request import check_options


class PlayOptions(Record):
    """Options of a play. With ``dry`` each step only makes its plan; with ``diff`` sync shows differences. ``hosts``
    are those of ``--limit`` (None: all). With ``again`` they are the hosts that failed in the last play: the other
    hosts still belong to this one, and a step that needs all hosts is not begun without them. ``command`` is the line
    of this play without ``--limit`` and ``--start-at``; empty: it has none."""

    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    start_at: str | None = None
    dry: bool = False
    diff: bool = False
    hosts: frozenset[str] | None = None
    again: bool = False
    command: str = ""

    def select_steps(self, book: Play) -> tuple[Step, ...]:
        """Returns the steps to run. Raises `UsageError` for a tag or a name that no step has, and if none is left."""
        return play_schedule.select_steps(book, tags=self.tags, skip_tags=self.skip_tags, start_at=self.start_at)

    def limit_hosts(self, hosts: Inventory) -> list[Host]:
        return [host for host in hosts if self.hosts is None or host.name in self.hosts]


@dataclass
class PlayState:
    """A play after some steps: facts by host, lost hosts with the reason, the host of each rank of the last run."""

    context: Context
    options: PlayOptions
    facts: dict[str, Facts] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    ranks: tuple[str, ...] = ()
    trained: bool = False  # an earlier step was a run, whether it was begun or not
    changed: bool = False
    installed: set[object] = field(default_factory=set)  # environments that a dry play would have installed by now


class StepResult(NamedTuple):
    """``exit`` None: not begun. ``stop``: why the play ends. ``ignored``: its failure does not count. ``left``: its run
    goes on without the play."""

    exit: Exit | None
    note: str | None = None
    stop: str = ""
    ignored: bool = False
    left: bool = False


def play(book: Play, inventory: Inventory, context: Context, options: PlayOptions | None = None) -> Workflow[Exit]:
    """Runs each step; returns the worst exit code of those that were not ignored. Raises `UsageError` before any host
    is contacted: for a tag, a name or a limit that selects nothing, and for missing scripts and directories."""
    options = options or PlayOptions()
    steps = keep_excluded(tuple(map(expand_step_paths, options.select_steps(book))))
    chosen = [_limit_hosts(step, inventory) for step in steps]
    if errors := [*find_errors(steps, context.environ)]:
        raise UsageError(f"{printable(book.source, 300)}: {pluralize(len(errors), 'error')}", reasons=errors)
    requested = tuple(host.name for host in options.limit_hosts(inventory))
    yield e.Started("play", book.name or book.source, requested, selection_flags=list_flags(inventory, None))
    for warning in book.warnings:
        yield e.Message(warning, "warning")
    state = PlayState(context, options)
    rows: list[PlayedStep] = []
    codes: list[Exit] = []
    for number, (step, hosts) in enumerate(zip(steps, chosen, strict=True), 1):
        yield e.Message(f"{'check ' if options.dry else ''}step {number} of {len(steps)}: {step.title}")
        result = yield from _run_step(step, hosts, state)
        state.trained |= step.action == "run"
        rows.append(PlayedStep(step.title, step.action, result.exit, result.note))
        if result.exit and not result.ignored:
            codes.append(result.exit)
        stop = result.stop or ("no host is left" if all(name in state.lost for name in requested) else "")
        if stop and number < len(steps):
            text = play_schedule.describe_end(stop, options.command if result.left else "", steps[number])
            yield e.Message(text, "warning", code=e.PLAY_LEFT if result.left else "play-ended")
        if stop:
            break
    rows += [PlayedStep(step.title, step.action, None) for step in steps[len(rows) :]]
    if not state.changed and not options.dry and not any(codes):
        yield e.Message("nothing was changed")
    again = None
    if options.command and state.lost and not options.dry:
        left = [step for step, row in zip(steps, rows, strict=True) if row.exit is not Exit.OK]
        again = play_schedule.format_repetition(options.command, options.start_at, left)
    name, dry = book.name or book.source, options.dry or None
    answer = PlayAnswer(name, tuple(rows), state.changed, state.lost, dry, again)
    yield from e.finish_verb("play", answer, choose_exit(codes))
    return choose_exit(codes)


def list_steps(book: Play, inventory: Inventory, options: PlayOptions) -> Workflow[None]:
    """Lists the selected steps with their hosts. Contacts no host."""
    rows: list[ListedStep] = []
    for number, step in enumerate(options.select_steps(book), 1):
        hosts = ",".join(host.name for host in options.limit_hosts(_limit_hosts(step, inventory)))
        tags, when = ",".join(step.tags) or None, step.when or None
        rows.append(ListedStep(number, step.title, step.action, hosts, tags, when))
    yield e.Started("play", "", ())
    yield from e.finish_verb("play", PlayListAnswer(tuple(rows)))


def expand_step_paths(step: Step) -> Step:
    """Returns the step with ``~`` replaced in its paths on this machine. Raises `UsageError`."""
    place = f"{printable(str(step.origin), 300)}: {step.action}"
    return step.model_copy(update={"task": expand_local_paths(step.task, place)})


def keep_excluded(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Returns the steps, of which a run, which sends its project, leaves out what a sync of it before did."""
    excluded: dict[Path, tuple[str, ...]] = {}
    kept: list[Step] = []
    for step in steps:
        task = step.task
        if isinstance(task, tasks.Sync) and task.exclude and not is_of_hub("source", task.source):
            root = find_project(task.source, task.project, task.exclude).root
            excluded[root] = (*excluded.get(root, ()), *task.exclude)
        elif isinstance(task, tasks.Run) and excluded:
            source = task.script if task.script and Path(task.script).is_file() else "."
            root = find_project(source, task.project, task.exclude).root
            task = replace(task, exclude=(*excluded.get(root, ()), *task.exclude))
            step = step.model_copy(update={"task": task})
        kept.append(step)
    return tuple(kept)


def find_errors(steps: Sequence[Step], environ: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yields one sentence for each file or directory of this machine that a step reads and that does not exist, or is
    of the wrong kind, for each ``venv`` or ``workdir`` that is no path of one, for each run whose options contradict
    each other or whose variables cannot be set (with ``environ``: or are not set here), for each ``torch`` that is no
    version, each path of a fetch that is none of a host, and each requirement that would have to be built. Steps after
    a fetch are not checked: it may bring their files."""
    for step in steps:
        task = step.task
        if isinstance(task, tasks.Fetch):
            faults = ((path, find_path_fault(path)) for path in task.paths)
            at = f"{step.locate('paths')}: {step.action}.paths"
            yield from (f"{at} {printable(path, 300)}: {why}" for path, why in faults if why)
            return
        if isinstance(task, tasks.Run):
            passed = task.pass_env if environ is not None else ()
            yield from _find_refusal(step, "run", check_options, task)
            yield from _find_refusal(step, "env", parse_user_env, task.env, {}, passed, environ or {})
        if isinstance(task, tasks.VersionFields):
            yield from _find_refusal(step, "torch", match_version, task.torch, "0")
        for key, find_fault in (("venv", validators.environment), ("workdir", find_path_fault)):
            if (place := getattr(task, key, None)) and (why := find_fault(place)):
                yield f"{step.locate(key)}: {step.action}.{key} {printable(place, 300)}: {why}"
        for key, path in _list_inputs(step.task):
            location = f"{step.locate(key)}: {step.action}.{key} {printable(path, 300)}"
            file = Path(path)
            if not file.exists():
                yield f"{location} does not exist"
            elif key == "script" and file.is_dir():
                yield f"{location} is a directory"
        if isinstance(step.task, tasks.Install):
            yield from find_unfit_requirements(step.task, f"{step.locate('with')}: {step.action}")


def _find_refusal(step: Step, key: str, check: Callable[..., object], *given: object) -> Iterator[str]:
    try:
        check(*given)
    except UsageError as error:
        reasons = [error.sentence, *error.reasons, *filter(None, [error.hint])]
        yield f"{step.locate(key)}: {step.action}: {'; '.join(reasons)}"


_INPUTS = ("script", "source", "project", "requirements", "wheels", "find_links", "env_file", "accelerate_config")


def _list_inputs(task: tasks.Task) -> Iterator[tuple[str, str]]:
    for key in _INPUTS:
        value = getattr(task, key, None) or ()
        for path in (value,) if isinstance(value, str) else value:
            if key == "script" and isinstance(task, tasks.Run):
                local = not (task.module or task.program or is_program_name(path))
            else:
                is_url = key == "find_links" and ":" in path.partition("/")[0]
                local = not (is_url or is_of_hub(key, path))
            if local:
                yield key, path


def _limit_hosts(step: Step, inventory: Inventory) -> Inventory:
    return inventory if step.limit is None else parsing.limit_inventory(inventory, step.limit)


def _run_step(step: Step, hosts: Inventory, state: PlayState) -> Workflow[StepResult]:
    options, requested = state.options, state.options.limit_hosts(hosts)
    active, codes, reason = yield from _choose_hosts(step, hosts, requested, state)
    if not active:
        return StepResult(choose_exit(codes)) if codes else StepResult(None, f"skipped: {reason}")
    missing = {host.name: "--limit @failed leaves it out" for host in hosts if options.again and host not in requested}
    missing |= state.lost
    needed = hosts.names if options.again else tuple(host.name for host in requested)
    if absent := play_schedule.find_missing_hosts(step, missing, needed):
        why = f"without {join_names(absent, 4)}: {missing[absent[0]]}"
        for host in active:
            yield StepEnded(host.name, step.title, "skipped", why)
        return StepResult(None, f"not begun {why}", "" if options.again else f"{step.action} does not begin {why}")
    stop = ""
    for batch in play_schedule.split_batches(active, step.serial, len(requested)):
        if step.serial and len(batch) < len(active):
            yield e.Message(f"{step.title}: {', '.join(host.name for host in batch)}")
        result = yield from _run_batch(step, Inventory(batch, hosts.source), state)
        if result.ignored or result.left:
            return result
        if result.exit:
            codes.append(result.exit)
        stop = result.stop
        if stop:
            break
    if options.dry and isinstance(step.task, tasks.Install) and not step.task.check and not codes:
        state.installed.add(step.task.venv)
    ignored = bool(codes and step.ignore_errors and not stop)
    return StepResult(choose_exit(codes), "ignored" if ignored else None, stop, ignored)


def _choose_hosts(
    step: Step, hosts: Inventory, requested: Sequence[Host], state: PlayState
) -> Workflow[tuple[list[Host], list[Exit], str]]:
    """Returns the hosts on which the step is done, the exits of those that failed in a probe, and why none is left."""
    active = [host for host in requested if host.name not in state.lost]
    if not active:
        return [], [], "its hosts are lost" if requested else "--limit leaves it no host"
    if isinstance(step.task, tasks.Fetch) and state.trained and step.task.from_.startswith("rank:"):
        active = [host for host in active if host.name in state.ranks]
        if not active:
            return [], [], "no run of this play says where its ranks are"
    if not step.when:
        return active, [], ""
    active, codes = yield from _filter_by_facts(step, active, hosts, state)
    return active, codes, "when is true of no host"


def _run_batch(step: Step, batch: Inventory, state: PlayState) -> Workflow[StepResult]:
    """Does a step on some of its hosts at once. Raises `UsageError` where it is refused and that is not ignored."""
    try:
        workflow = _make_workflow(step, batch, state)
        report = yield from _relay_events(workflow, state, getattr(step.task, "venv", "") in state.installed)
    except UsageError as refused:
        if not step.ignore_errors:
            for host in batch:  # of none of them it was done: the recap above the error counts it as failed
                yield StepEnded(host.name, step.title, "failed", refused.sentence)
            raise
        text = f"{step.title}: {refused.sentence}; ignored, as ignore_errors says"
        yield e.Message(text, "warning", code="ignored")
        return StepResult(refused.exit, "ignored", ignored=True)
    asked = report.exit is Exit.HUP or state.context.interrupts.detach.is_set()
    if asked and report.run and not report.run.reason:
        return StepResult(report.exit, "detached", f"{step.title} goes on without it", left=True)
    if report.exit is Exit.OK:
        return StepResult(Exit.OK)
    lost, stop = yield from _judge_failures(step, report, batch.names)
    state.lost |= dict.fromkeys(lost, f"failed in {step.title}")
    return StepResult(report.exit, stop=stop)


def _judge_failures(step: Step, report: CommandReport, batch: Sequence[str]) -> Workflow[tuple[tuple[str, ...], str]]:
    """Returns the hosts that are lost after a failed step, and why the play ends ("" if it goes on)."""
    unreachable = [host.host for host in report.hosts if host.unreachable]
    if step.ignore_errors:
        yield e.FailuresIgnored(step.title)
        yield e.Message(f"{step.title}: ignored, as ignore_errors says", "warning", code="ignored")
        return tuple(unreachable), play_schedule.find_stop_reason(step, unreachable, batch) if unreachable else ""
    errors = [finding for finding in report.findings if finding.level == "error"]
    for finding in errors:  # the recap counts hosts by their steps
        for name in finding.hosts:
            yield StepEnded(name, step.title, "failed", f"{finding.code}: {finding.title}")
    for rank in report.run.ranks if report.run else ():
        if rank.state == "failed":
            yield StepEnded(rank.host, step.title, "failed", f"rank {rank.rank} failed")
    failed = {host.host for host in report.hosts if not host.good} | {name for error in errors for name in error.hosts}
    lost = tuple(name for name in batch if name in failed)
    if step.action in TOGETHER or not lost:
        return lost, f"{step.title} failed"
    if isinstance(step.task, tasks.Install) and not step.task.partial:
        return lost, f"{step.title} failed, and without partial it is for all hosts or none"
    return lost, play_schedule.find_stop_reason(step, lost, batch)


def _filter_by_facts(
    step: Step, active: list[Host], hosts: Inventory, state: PlayState
) -> Workflow[tuple[list[Host], list[Exit]]]:
    """Returns the hosts for which ``when`` is true, and the exits of those that failed; the others are skipped. Probes
    hosts whose facts are not known yet."""
    from ipexctl.decide.parsing.conditions import UnknownFact, evaluate_condition, needs_host_facts
    from ipexctl.verbs.common.probe import probe_hosts

    unprobed = [host for host in active if host.name not in state.facts] if needs_host_facts(step.when) else []
    codes: list[Exit] = []
    if unprobed:
        facts, failures = yield from probe_hosts(Inventory(tuple(unprobed), hosts.source), state.context)
        codes = [choose_exit(failures.values())] if failures else []
        state.lost |= dict.fromkeys(failures, f"failed before {step.title}")
        state.facts |= facts
    matching: list[Host] = []
    for host in [host for host in active if host.name not in state.lost]:
        try:
            true, why = evaluate_condition(step.when, host, state.facts.get(host.name)), f"when: {step.when}"
        except UnknownFact as unknown:
            true, why = False, f"when: {unknown} is not known of this host"
        if true:
            matching.append(host)
        else:
            yield StepEnded(host.name, step.title, "skipped", why)
    return matching, codes


def _make_workflow(step: Step, inventory: Inventory, state: PlayState) -> Workflow[object]:
    """The workflow of the step's verb, as on the command line. Raises `ValueError` for a task that is no step's."""
    from ipexctl.verbs.bench import bench
    from ipexctl.verbs.doctor.doctor import doctor
    from ipexctl.verbs.files.fetch import fetch
    from ipexctl.verbs.files.sync import sync
    from ipexctl.verbs.install.install import install
    from ipexctl.verbs.play.execute import execute
    from ipexctl.verbs.run.run import run
    from ipexctl.verbs.tune import tune

    context, dry = replace(state.context, by_playbook=True), state.options.dry

    def change(**fields: bool) -> Any:
        return replace(step.task, **fields)

    match task := step.task:
        case tasks.Doctor():
            return doctor(change(fix=task.fix and not dry), inventory, context)
        case tasks.Install():
            return install(change(check=task.check or dry), inventory, context)
        case tasks.Sync():
            return sync(change(diff=task.diff or state.options.diff), inventory, context, dry=dry)
        case tasks.Tune():
            return tune(task, inventory, context, dry=dry)
        case tasks.Run():
            return run(task, inventory, context, dry=dry)
        case tasks.Execute():
            return execute(task, inventory, context, dry=dry)
        case tasks.Fetch():
            return fetch(task, inventory, context, ranks=state.ranks, dry=dry, early=dry and state.trained)
        case tasks.Bench():
            return bench(task, inventory, context, dry=dry)
    raise ValueError(f"no step has a task of type {type(step.task).__name__}")


def _relay_events(workflow: Workflow[object], state: PlayState, installed: bool = False) -> Workflow[CommandReport]:
    """Passes on a step's events except `Ended`; returns its report. Records facts, ranks and changes in ``state``. That
    an environment is not there yet is no failure where it would be ``installed`` by now."""
    fold, waiting = RunFold(), list[str]()

    def take(event: Event) -> bool:
        if installed and isinstance(event, e.HostFailed) and event.failure.code == "no-env":
            waiting.append(event.failure.host)
            return False
        if waiting and isinstance(event, e.Ended):
            event = e.Ended(event.verb, Exit.OK)
        fold.handle_event(e.Stamped(0.0, event))
        return not isinstance(event, e.Ended)

    try:
        yield from run_nested(workflow, take)
        if waiting:
            yield e.Message(f"{join_names(waiting, 4)}: planned once the environment is installed")
    finally:
        known = fold.state
        state.facts |= known.facts
        if known.last_attempt is not None:
            state.ranks = known.last_attempt.started.ranks
        steps = [step for host in known.hosts.values() for step in host.steps]
        state.changed |= known.last_attempt is not None or any(step.outcome == "changed" for step in steps)
    return make_report(known)
