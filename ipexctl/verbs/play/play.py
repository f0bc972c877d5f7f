"""``ipexctl play``: a playbook's steps in order, over the same connections.

A host that fails a step is left out of the later ones, the others go on, as in Ansible. Steps whose hosts work together
(`run`) need all of them, so they are not begun without; ``any_errors_fatal`` and ``max_fail_percentage`` say otherwise.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ipexctl.act.context import Context
from ipexctl.decide import parsing, play_schedule
from ipexctl.decide.reports import Folding
from ipexctl.model.answers import ListedStep, PlayAnswer, PlayedStep, PlayListAnswer
from ipexctl.model.errors import Exit, Failure, UsageError, worst
from ipexctl.model.events import (
    Answer,
    Ended,
    Event,
    FactsRead,
    FailuresIgnored,
    Message,
    RunStarted,
    Stamped,
    Started,
    StepEnded,
)
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.notes import Note
from ipexctl.model.plays import TOGETHER, Play, Step
from ipexctl.model.reports import CommandReport
from ipexctl.model.text import printable
from ipexctl.verbs.common.nested import forward_events

Workflow = Generator[Event, None, Any]


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """How a play is played. ``dry`` asks every step for its plan only, ``diff`` makes sync show differences.

    ``hosts`` are those of ``--limit`` (None: all). With ``again`` they are those that failed the last time: then the
    others belong to the play as well, and what needs all hosts is not begun without them.
    """

    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    start_at: str | None = None
    dry: bool = False
    diff: bool = False
    hosts: frozenset[str] | None = None
    again: bool = False


@dataclass
class PlayState:
    """What the steps so far have shown: facts of hosts, who is lost and why, where the ranks of the last run were."""

    facts: dict[str, Facts] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    ranks: tuple[str, ...] = ()
    trained: bool = False  # there was a step that starts a run, whether it began or not
    changed: bool = False


def play(
    book: Play, inventory: Inventory, context: Context, environ: Mapping[str, str], options: PlayOptions | None = None
) -> Generator[Event, None, Exit]:
    """Runs each step; returns the worst exit code of those that were not ignored. Raises `UsageError` before
    anything is contacted for a tag, a name or a limit that chooses nothing, and for scripts and directories that are
    not there."""
    options = options or PlayOptions()
    steps = play_schedule.select_steps(book, tags=options.tags, skip_tags=options.skip_tags, start_at=options.start_at)
    chosen = [_limit_hosts(step, inventory) for step in steps]
    if unusable := [*find_unusable_files(steps)]:
        raise UsageError(f"{printable(book.source, 300)} names files that cannot be used", reasons=unusable)
    requested = tuple(name for name in inventory.names if _is_requested(name, options))
    yield Started("play", book.name or book.source, requested)
    for warning in book.warnings:
        yield Message(warning, "warning")
    state = PlayState()
    rows: list[PlayedStep] = []
    codes: list[Exit] = []
    for number, (step, hosts) in enumerate(zip(steps, chosen, strict=True), 1):
        yield Message(f"{'check ' if options.dry else ''}step {number} of {len(steps)}: {step.title}")
        state.trained = state.trained or any(earlier.action == "run" for earlier in steps[: number - 1])
        code, note, stop = yield from _step(step, hosts, state, context, environ, options)
        row = PlayedStep(step.title, step.action, None if code is None else int(code), note.text if note else None)
        rows.append(row)
        codes += [code] if code and not (note and note.code == "ignored") else []
        if not stop and all(name in state.lost for name in requested):
            stop = "no host is left"
        if stop:
            if number < len(steps):
                yield Message(f"the play ends here: {stop}", "warning")
            break
    rows += [PlayedStep(step.title, step.action, None) for step in steps[len(rows) :]]
    if not state.changed and not options.dry and not any(codes):
        yield Message("nothing was changed")
    exit = worst(codes)
    if state.lost and not options.dry:
        yield Message("again only where it failed: the same command with --limit @failed")
    dry: Literal[True] | None = True if options.dry else None
    yield Answer(PlayAnswer(book.name or book.source, tuple(rows), state.changed, state.lost, dry))
    yield Ended("play", exit)
    return exit


def list_steps(book: Play, inventory: Inventory, options: PlayOptions) -> Generator[Event, None, None]:
    """What would be done, on which hosts, without contacting any."""
    steps = play_schedule.select_steps(book, tags=options.tags, skip_tags=options.skip_tags, start_at=options.start_at)
    rows: list[ListedStep] = []
    for number, step in enumerate(steps, 1):
        hosts = ",".join(name for name in _limit_hosts(step, inventory).names if _is_requested(name, options))
        tags, when = ",".join(step.tags) or None, step.when or None
        rows.append(ListedStep(number, step.title, step.action, hosts, tags, when))
    yield Started("play", "", ())
    yield Answer(PlayListAnswer(tuple(rows)))
    yield Ended("play", Exit.OK)


def find_unusable_files(steps: Sequence[Step]) -> Iterator[str]:
    """Scripts and directories of this machine that steps name and that are not there (and no fetch could bring), and
    scripts that are directories."""
    for step in steps:
        if step.action == "fetch":
            return
        path = {"run": "script", "sync": "source"}.get(step.action)
        value = getattr(step.task, path, None) if path else None
        if not value or getattr(step.task, "launcher", "") == "module":
            continue
        named = f"{printable(str(step.origin), 300)}: {step.action}.{path} {printable(value, 300)}"
        file = Path(value).expanduser()
        if not file.exists():
            yield f"{named} does not exist"
        elif path == "script" and file.is_dir():
            yield f"{named} is a directory"


def _limit_hosts(step: Step, inventory: Inventory) -> Inventory:
    """The step's hosts. Raises `UsageError`."""
    return inventory if step.limit is None else parsing.limit_inventory(inventory, step.limit)


def _is_requested(host: str, options: PlayOptions) -> bool:
    return options.hosts is None or host in options.hosts


def _step(
    step: Step, hosts: Inventory, state: PlayState, context: Context, environ: Mapping[str, str], options: PlayOptions
) -> Generator[Event, None, tuple[Exit | None, Note | None, str]]:
    """One step: its exit code (None: not begun), what to note of it, and why the play ends ("" if it does not)."""
    asked = [host for host in hosts if _is_requested(host.name, options)]
    active = [host for host in asked if host.name not in state.lost]
    if not active:
        return None, Note("skipped", f"skipped: {'its hosts are lost' if asked else '--limit leaves it no host'}"), ""
    if step.action == "fetch" and state.trained and str(getattr(step.task, "from_", "")).startswith("rank:"):
        active = [host for host in active if host.name in state.ranks]
        if not active:
            return None, Note("skipped", "skipped: no run of this play says where its ranks are"), ""
    codes: list[Exit] = []
    if step.when:
        active, code = yield from _filter_by_facts(step, active, hosts, state, context)
        codes += [code] if code else []
        if not active:
            skipped = Note("skipped", "skipped: when is true of no host")
            return (worst(codes), None, "") if codes else (None, skipped, "")
    missing = {host.name: "--limit @failed leaves it out" for host in hosts if options.again and host not in asked}
    missing |= state.lost
    needed = hosts.names if options.again else tuple(host.name for host in asked)
    if gone := play_schedule.missing_hosts(step, missing, needed):
        why = f"without {', '.join(gone[:4])}{' …' if len(gone) > 4 else ''}: {missing[gone[0]]}"
        for host in active:
            yield StepEnded(host.name, step.title, "skipped", why)
        stop = "" if options.again else f"{step.action} does not begin {why}"
        return None, Note("not-begun", f"not begun {why}"), stop
    stop = ""
    for batch in play_schedule.split_batches(active, step.serial, len(asked)):
        if step.serial and len(batch) < len(active):
            yield Message(f"{step.title}: {', '.join(host.name for host in batch)}")
        workflow = make_workflow(step, Inventory(batch, hosts.source), context, environ, state.ranks, options)
        try:
            report = yield from _relay_events(workflow, state)
        except UsageError as refused:
            if not step.ignore_errors:
                raise
            yield Message(f"{step.title}: {refused.sentence}; ignored, as ignore_errors says", "warning")
            return refused.exit, Note("ignored", "ignored"), ""
        if report.exit is Exit.OK:
            continue
        codes.append(report.exit)
        lost, stop = yield from _judge_failures(step, report, [host.name for host in batch], state)
        state.lost |= dict.fromkeys(lost, f"failed in {step.title}")
        if stop:
            break
    code = worst(codes)
    if code and step.ignore_errors and not stop:
        return code, Note("ignored", "ignored"), ""
    return code, None, stop


def _judge_failures(
    step: Step, report: CommandReport, batch: Sequence[str], state: PlayState
) -> Generator[Event, None, tuple[tuple[str, ...], str]]:
    """Which hosts a failed step has cost, and why the play ends ("" if it goes on)."""
    away = [host.host for host in report.hosts if host.unreachable]
    if step.ignore_errors:
        yield FailuresIgnored(step.title)
        yield Message(f"{step.title}: ignored, as ignore_errors says", "warning")
        return tuple(away), play_schedule.stop_reason(step, away, batch) if away else ""
    found = [finding for finding in report.findings if finding.level == "error"]
    for finding in found:  # the recap counts hosts by their steps
        for name in finding.hosts:
            yield StepEnded(name, step.title, "failed", f"{finding.code}: {finding.title}")
    for rank in report.run.ranks if report.run else ():
        if rank.state == "failed":
            yield StepEnded(rank.host, step.title, "failed", f"rank {rank.rank} failed")
    bad = {host.host for host in report.hosts if not host.good} | {name for one in found for name in one.hosts}
    lost = tuple(name for name in batch if name in bad)
    if step.action in TOGETHER or not lost:
        return lost, f"{step.title} failed"
    if step.action == "install" and not getattr(step.task, "partial", False):
        return lost, f"{step.title} failed, and without partial it is for all hosts or none"
    return lost, play_schedule.stop_reason(step, lost, batch)


def _filter_by_facts(
    step: Step, active: list[Host], hosts: Inventory, state: PlayState, context: Context
) -> Generator[Event, None, tuple[list[Host], Exit | None]]:
    """The hosts of which ``when`` is true; the others are skipped. Hosts nobody has looked at yet are looked at."""
    from ipexctl.decide.parsing.conditions import UnknownFact, evaluate, needs_facts
    from ipexctl.verbs.common.probe import collect_probe_results

    looking = needs_facts(step.when)
    unprobed = [host for host in active if looking and host.name not in state.facts]
    failures: list[Failure] = []
    if unprobed:
        results = yield from collect_probe_results(Inventory(tuple(unprobed), hosts.source), context)
        for name, found in results.items():
            if isinstance(found, Failure):
                failures.append(found)
                state.lost[name] = f"failed before {step.title}"
            else:
                state.facts[name] = found.facts
    matching: list[Host] = []
    for host in active:
        if host.name in state.lost:
            continue
        why = f"when: {step.when}"
        try:
            true = evaluate(step.when, host, state.facts[host.name].public() if host.name in state.facts else {})
        except UnknownFact as unknown:
            true, why = False, f"when: {unknown} is not known of this host"
        if true:
            matching.append(host)
        else:
            yield StepEnded(host.name, step.title, "skipped", why)
    return matching, worst([failure.kind.exit for failure in failures]) if failures else None


def make_workflow(
    step: Step,
    inventory: Inventory,
    context: Context,
    environ: Mapping[str, str],
    ranks: Sequence[str],
    options: PlayOptions,
) -> Workflow:
    """The verb of one step: the same tasks, with the same keys, as on the command line."""
    task: Any = step.task
    match step.action:
        case "doctor":
            from ipexctl.verbs.doctor.doctor import doctor

            return doctor(
                task.model_copy(update={"fix": False}) if options.dry else task, inventory, context, environ=environ
            )
        case "install":
            from ipexctl.verbs.install.install import install

            asked = task.model_copy(update={"check": True}) if options.dry else task
            return install(asked, inventory, context, environ=environ)
        case "sync":
            from ipexctl.verbs.files.sync import sync

            asked = task.model_copy(update={"diff": True}) if options.diff else task
            return sync(asked, inventory, context, dry=options.dry)
        case "run":
            from ipexctl.verbs.run.run import run

            return run(task, inventory, context, environ, dry=options.dry)
        case "command":
            from ipexctl.verbs.play.execute import execute

            return execute(task, inventory, context, dry=options.dry)
        case "fetch":
            from ipexctl.verbs.files.fetch import fetch

            return fetch(task, inventory, context, ranks=ranks, dry=options.dry)
        case "bench":
            from ipexctl.verbs.bench import bench

            return bench(task, inventory, context, environ, dry=options.dry)
    raise ValueError(f"no such action: {step.action}")


def _relay_events(workflow: Workflow, state: PlayState) -> Generator[Event, None, CommandReport]:
    """Passes a step's events on, all but its end; returns its report. What they say of hosts is kept."""
    folding = Folding()

    def take(event: Event) -> bool:
        folding.take(Stamped(0.0, event))
        match event:
            case FactsRead(host=host, facts=facts):
                state.facts[host] = facts
            case RunStarted(ranks=ranks):
                state.ranks, state.changed = ranks, True
            case StepEnded(outcome="changed"):
                state.changed = True
            case _:
                pass
        return not isinstance(event, Ended)

    yield from forward_events(workflow, take)
    return folding.report()
