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
from ipexctl.decide.reports import Folding, Report
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
from ipexctl.model.text import printable

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
    book: Play, inventory: Inventory, context: Context, environ: Mapping[str, str], how: PlayOptions | None = None
) -> Generator[Event, None, Exit]:
    """Tells each step's story; returns the worst exit code of those that were not ignored. Raises `UsageError` before
    anything is contacted for a tag, a name or a limit that chooses nothing, and for scripts and directories that are
    not there."""
    how = how or PlayOptions()
    steps = play_schedule.select_steps(book, tags=how.tags, skip_tags=how.skip_tags, start_at=how.start_at)
    chosen = [_limit_hosts(step, inventory) for step in steps]
    if unusable := [*find_unusable_files(steps)]:
        raise UsageError(f"{printable(book.source, 300)} names files that cannot be used", reasons=unusable)
    yield Started("play", book.name or book.source, tuple(name for name in inventory.names if _is_requested(name, how)))
    for warning in book.warnings:
        yield Message(warning, "warning")
    known = PlayState()
    rows: list[PlayedStep] = []
    codes: list[Exit] = []
    for number, (step, hosts) in enumerate(zip(steps, chosen, strict=True), 1):
        yield Message(f"{'check ' if how.dry else ''}step {number} of {len(steps)}: {step.title}")
        known.trained = known.trained or any(earlier.action == "run" for earlier in steps[: number - 1])
        code, note, stop = yield from _step(step, hosts, known, context, environ, how)
        row = PlayedStep(step.title, step.action, None if code is None else int(code), note.text if note else None)
        rows.append(row)
        codes += [code] if code and not (note and note.code == "ignored") else []
        if not stop and all(name in known.lost for name in inventory.names if _is_requested(name, how)):
            stop = "no host is left"
        if stop:
            if number < len(steps):
                yield Message(f"the play ends here: {stop}", "warning")
            break
    rows += [PlayedStep(step.title, step.action, None) for step in steps[len(rows) :]]
    if not known.changed and not how.dry and not any(codes):
        yield Message("nothing was changed")
    exit = worst(codes)
    if known.lost and not how.dry:
        yield Message("again only where it failed: the same command with --limit @failed")
    dry: Literal[True] | None = True if how.dry else None
    yield Answer(PlayAnswer(book.name or book.source, tuple(rows), known.changed, known.lost, dry))
    yield Ended("play", exit)
    return exit


def list_steps(book: Play, inventory: Inventory, how: PlayOptions) -> Generator[Event, None, None]:
    """What would be done, on which hosts, without contacting any."""
    steps = play_schedule.select_steps(book, tags=how.tags, skip_tags=how.skip_tags, start_at=how.start_at)
    rows: list[ListedStep] = []
    for number, step in enumerate(steps, 1):
        hosts = ",".join(name for name in _limit_hosts(step, inventory).names if _is_requested(name, how))
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
        said = getattr(step.task, path, None) if path else None
        if not said or getattr(step.task, "launcher", "") == "module":
            continue
        named = f"{printable(str(step.origin), 300)}: {step.action}.{path} {printable(said, 300)}"
        there = Path(said).expanduser()
        if not there.exists():
            yield f"{named} does not exist"
        elif path == "script" and there.is_dir():
            yield f"{named} is a directory"


def _limit_hosts(step: Step, inventory: Inventory) -> Inventory:
    """The step's hosts. Raises `UsageError`."""
    return inventory if step.limit is None else parsing.limit(inventory, step.limit)


def _is_requested(host: str, how: PlayOptions) -> bool:
    return how.hosts is None or host in how.hosts


def _step(
    step: Step, hosts: Inventory, known: PlayState, context: Context, environ: Mapping[str, str], how: PlayOptions
) -> Generator[Event, None, tuple[Exit | None, Note | None, str]]:
    """One step: its exit code (None: not begun), what to note of it, and why the play ends ("" if it does not)."""
    asked = [host for host in hosts if _is_requested(host.name, how)]
    here = [host for host in asked if host.name not in known.lost]
    if not here:
        return None, Note("skipped", f"skipped: {'its hosts are lost' if asked else '--limit leaves it no host'}"), ""
    if step.action == "fetch" and known.trained and str(getattr(step.task, "from_", "")).startswith("rank:"):
        here = [host for host in here if host.name in known.ranks]
        if not here:
            return None, Note("skipped", "skipped: no run of this play says where its ranks are"), ""
    codes: list[Exit] = []
    if step.when:
        here, code = yield from _filter_by_facts(step, here, hosts, known, context)
        codes += [code] if code else []
        if not here:
            skipped = Note("skipped", "skipped: when is true of no host")
            return (worst(codes), None, "") if codes else (None, skipped, "")
    missing = {host.name: "--limit @failed leaves it out" for host in hosts if how.again and host not in asked}
    missing |= known.lost
    if gone := play_schedule.missing_hosts(step, missing, hosts.names if how.again else [host.name for host in asked]):
        why = f"without {', '.join(gone[:4])}{' …' if len(gone) > 4 else ''}: {missing[gone[0]]}"
        for host in here:
            yield StepEnded(host.name, step.title, "skipped", why)
        return None, Note("not-begun", f"not begun {why}"), "" if how.again else f"{step.action} does not begin {why}"
    stop = ""
    for batch in play_schedule.split_batches(here, step.serial, len(asked)):
        if step.serial and len(batch) < len(here):
            yield Message(f"{step.title}: {', '.join(host.name for host in batch)}")
        told = make_workflow(step, Inventory(batch, hosts.source), context, environ, known.ranks, how)
        try:
            report = yield from _relay_events(told, known)
        except UsageError as refused:
            if not step.ignore_errors:
                raise
            yield Message(f"{step.title}: {refused.sentence}; ignored, as ignore_errors says", "warning")
            return refused.exit, Note("ignored", "ignored"), ""
        if report.exit is Exit.OK:
            continue
        codes.append(report.exit)
        lost, stop = yield from _judge_failures(step, report, [host.name for host in batch], known)
        known.lost |= dict.fromkeys(lost, f"failed in {step.title}")
        if stop:
            break
    code = worst(codes)
    if code and step.ignore_errors and not stop:
        return code, Note("ignored", "ignored"), ""
    return code, None, stop


def _judge_failures(
    step: Step, report: Report, batch: Sequence[str], known: PlayState
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
    for rank in report.ranks:
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
    step: Step, here: list[Host], hosts: Inventory, known: PlayState, context: Context
) -> Generator[Event, None, tuple[list[Host], Exit | None]]:
    """The hosts of which ``when`` is true; the others are skipped. Hosts nobody has looked at yet are looked at."""
    from ipexctl.decide.parsing.conditions import Unknown, holds, needs_facts
    from ipexctl.verbs.common.probe import collect_probe_results

    looking = needs_facts(step.when)
    dark = [host for host in here if looking and host.name not in known.facts]
    failures: list[Failure] = []
    if dark:
        seen = yield from collect_probe_results(Inventory(tuple(dark), hosts.source), context)
        for name, found in seen.items():
            if isinstance(found, Failure):
                failures.append(found)
                known.lost[name] = f"failed before {step.title}"
            else:
                known.facts[name] = found.facts
    left: list[Host] = []
    for host in here:
        if host.name in known.lost:
            continue
        why = f"when: {step.when}"
        try:
            true = holds(step.when, host, known.facts[host.name].public() if host.name in known.facts else {})
        except Unknown as unknown:
            true, why = False, f"when: {unknown} is not known of this host"
        if true:
            left.append(host)
        else:
            yield StepEnded(host.name, step.title, "skipped", why)
    return left, worst([failure.kind.exit for failure in failures]) if failures else None


def make_workflow(
    step: Step,
    inventory: Inventory,
    context: Context,
    environ: Mapping[str, str],
    ranks: Sequence[str],
    how: PlayOptions,
) -> Workflow:
    """The verb of one step: the same tasks, with the same keys, as on the command line."""
    task: Any = step.task
    match step.action:
        case "doctor":
            from ipexctl.verbs.doctor.doctor import doctor

            return doctor(
                task.model_copy(update={"fix": False}) if how.dry else task, inventory, context, environ=environ
            )
        case "install":
            from ipexctl.verbs.install.install import install

            asked = task.model_copy(update={"check": True}) if how.dry else task
            return install(asked, inventory, context, environ=environ)
        case "sync":
            from ipexctl.verbs.files.sync import sync

            asked = task.model_copy(update={"diff": True}) if how.diff else task
            return sync(asked, inventory, context, dry=how.dry)
        case "run":
            from ipexctl.verbs.run.run import run

            return run(task, inventory, context, environ, dry=how.dry)
        case "command":
            from ipexctl.verbs.play.execute import execute

            return execute(task, inventory, context, dry=how.dry)
        case "fetch":
            from ipexctl.verbs.files.fetch import fetch

            return fetch(task, inventory, context, ranks=ranks, dry=how.dry)
        case "bench":
            from ipexctl.verbs.bench import bench

            return bench(task, inventory, context, environ, dry=how.dry)
    raise ValueError(f"no such action: {step.action}")


def _relay_events(inside: Workflow, known: PlayState) -> Generator[Event, None, Report]:
    """Passes a step's story on, all but its end; its report. What it shows of the hosts is kept for later steps."""
    folding = Folding()
    try:
        event = next(inside)
        while True:
            folding.take(Stamped(0.0, event))
            if isinstance(event, Ended):
                event = next(inside)
                continue
            match event:
                case FactsRead(host=host, facts=facts):
                    known.facts[host] = facts
                case RunStarted(ranks=ranks):
                    known.ranks, known.changed = ranks, True
                case StepEnded(outcome="changed"):
                    known.changed = True
                case _:
                    pass
            try:
                yield event
            except BaseException as interruption:
                event = inside.throw(interruption)
            else:
                event = next(inside)
    except StopIteration:
        return folding.report()
