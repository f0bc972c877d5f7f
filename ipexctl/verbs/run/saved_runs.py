"""The command ``runs``: saved runs are listed, and old ones removed."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ipexctl.decide.saved_runs import PrunePolicy, RunFilter, choose_runs_to_prune, classify_result
from ipexctl.model.answers.saved import PruneAnswer, RunsAnswer, SavedRun, SparedRun
from ipexctl.model.errors import Exit, Failure, Kind, UsageError, advise
from ipexctl.model.events import HostFailed, RunStarted, Started, Workflow, finish_verb
from ipexctl.model.reports import CommandReport
from ipexctl.model.text import printable
from ipexctl.show.run_screen import describe_rank_end
from ipexctl.store.masking import Masker
from ipexctl.store.private_files import claim_private_directory, measure_tree
from ipexctl.store.record import (
    is_directory_in_use,
    is_record_in_use,
    list_saved_runs,
    read_name,
    read_report,
    remove_record,
)
from ipexctl.verbs.run.replay import find_run, find_saved_run, read_saved_run


def list_runs(runs: Path, names: Sequence[str], chosen: RunFilter) -> Workflow[None]:
    """Lists saved runs, newest first: those ``names`` name, or all, as far as they match. The command that is advised
    is of the one run, else of the newest whose end nobody has watched. Raises `UsageError`."""
    yield Started("runs", "", ())
    directories = list_saved_runs(runs)
    listed = select_saved_runs(runs, names, chosen)
    unseen = next((run for run in listed if run.result == "detached"), None)
    advised = listed[0] if names and len(listed) == 1 else unseen
    command = _choose_next(advised) if advised else None
    yield from finish_verb("runs", RunsAnswer(str(runs), len(directories), listed, command))


def _choose_next(run: SavedRun) -> str:
    """Returns the command that shows more of a run, or goes on with it."""
    if not run.ranks:
        return str(advise("replay", run.name))
    if run.result in ("detached", "running"):
        return str(advise("attach", run.name))
    return str(advise("report", find_run(Path(run.directory), "")[1] or run.name))


def prune_runs(
    runs: Path, names: Sequence[str], chosen: RunFilter, policy: PrunePolicy, *, dry: bool, words: Sequence[str] = ()
) -> Workflow[None]:
    """Removes saved runs, or lists those that would be removed; ``words`` are the user's own, for the command that
    removes them. Raises `UsageError` where the policy names none."""
    if policy.is_empty and not names:
        raise UsageError(
            "--prune needs a rule: which runs to remove",
            reasons=["--older-than 30d or --keep 20"],
            hint=advise("runs", *(word for word in words if word != "--yes"), "--older-than", "30d"),
        )
    yield Started("runs", "", ())
    saved = select_saved_runs(runs, names, chosen)
    old, in_use = choose_runs_to_prune(saved, policy, time.time(), lambda run: is_record_in_use(Path(run.directory)))
    removed = []
    if old and not dry:
        claim_private_directory(runs)  # another user may have put a link there
    for run in old:
        try:
            if not dry:
                remove_record(Path(run.directory))
            removed.append(run)
        except OSError as error:
            what = f"{printable(run.name)} was not removed: {(error.strerror or str(error)).lower()}"
            yield HostFailed(Failure("", Kind.STEP, what, code="prune"))
    spared = tuple(SparedRun(run.name, why) for run, why in in_use)
    size = sum(run.bytes for run in removed)
    command = str(advise("runs", *words, "--yes")) if dry and removed else None
    yield from finish_verb("runs", PruneAnswer(str(runs), tuple(removed), spared, size, dry or None, command))


def select_saved_runs(runs: Path, names: Sequence[str], chosen: RunFilter) -> tuple[SavedRun, ...]:
    """Returns the saved runs that are named, or all, as far as they match, newest first. Raises `UsageError`."""
    directories = dict.fromkeys([find_saved_run(runs, name) for name in names] if names else list_saved_runs(runs))
    entries = map(_describe_saved_run, reversed(directories))
    described = sorted(entries, key=lambda run: -run.started)
    return tuple(run for run in described if chosen.matches(run))


def _describe_saved_run(directory: Path) -> SavedRun:
    """Returns the entry of a saved run without the secrets that its record has hashes of."""
    masker = Masker({})  # of one run: hashes of hundreds cost too much
    masker.add_kept(directory)
    run = _read_entry(directory, masker)
    verb, title, cause = map(masker.mask_text, (run.verb, run.title, run.cause))
    return replace(run, verb=verb, title=title, cause=cause)


def _read_entry(directory: Path, masker: Masker) -> SavedRun:
    """Returns the entry of a saved run, from its report; without one, from its first events."""
    size, changed = measure_tree(directory)
    name, report = read_name(directory), read_report(directory)
    if report is not None:
        run, verb = report.run, "run" if report.verb == "attach" else report.verb  # whoever watches it
        hosts = len({rank.host for rank in run.ranks}) if run else len(report.hosts)
        title = run.command if run and run.command and verb == "run" else report.title
        started, ended = report.started, report.ended
        if run and run.started and verb == "run":  # as in its card, also where somebody came later to watch it
            started, ended = run.started, run.ended
        return SavedRun(
            name, verb, title, classify_result(report), describe_cause(report),
            started, changed, max(ended - started, 0.0), len(run.ranks) if run else 0, hosts,
            size, str(directory), int(report.exit), run.loss if run else None,
        )  # fmt: skip
    verb, title, started, ranks, hosts = "", "", 0.0, 0, 0
    with suppress(UsageError):
        for count, stamped in enumerate(read_saved_run(directory, masker)):
            started = started or stamped.at
            match stamped.event:
                case Started() if not title:
                    verb, title = stamped.event.verb, stamped.event.title
                    hosts = len(stamped.event.hosts)
                case RunStarted(ranks=placed, command=title):
                    ranks, hosts = len(placed), len(set(placed))
            if ranks or count > _FIRST_EVENTS:
                break
    started = started or changed
    return SavedRun(
        name, verb, title, "running" if is_directory_in_use(directory) else "unfinished", "", started,
        changed, max(changed - started, 0.0), ranks, hosts, size, str(directory),
    )  # fmt: skip


_FIRST_EVENTS = 2000  # of a record without a report: by then mpirun has been started


def describe_cause(report: CommandReport) -> str:
    """Why a command did not end well, in one line; empty if it did."""
    run = report.run
    if report.exit is Exit.OK and run and run.lost_loss:
        return printable(run.lost_loss.text, _CAUSE_WIDTH)
    if report.exit is Exit.OK and not (run and run.reason in ("stopped", "limit")):
        return ""
    if run and run.first is not None:
        rank = next(rank for rank in run.ranks if rank.rank == run.first)
        error = f": {' '.join(rank.error.split())}" if rank.error and not rank.oom else ""
        line = f" at {rank.line or rank.where}" if rank.line or rank.where else ""
        return printable(f"rank {rank.rank} on {rank.host} {describe_rank_end(rank)}{line}{error}", _CAUSE_WIDTH)
    failure = next((failure for host in report.hosts for failure in host.failures), None)
    failure = next(iter(report.failures), failure)
    if run and run.detail:
        cause = run.detail
    elif failure:
        cause = f"{failure.host}: {failure.what}" if failure.host else failure.what
    else:
        errors = [
            f"{each.code} {', '.join(each.hosts)} {each.title}" for each in report.findings if each.level == "error"
        ]
        cause = report.refused or next(iter(errors), "")
    return printable(" ".join(cause.split()), _CAUSE_WIDTH)


_CAUSE_WIDTH = 200  # characters of a cause
