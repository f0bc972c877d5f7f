"""The commands for runs that were started: ``ps``, ``attach``, ``stop``, ``logs``, ``reap``."""

import secrets
import shlex
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from ipexctl.act import run_control
from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.act.run_dir import RemoteRunDir
from ipexctl.decide.run.figures import read_figures
from ipexctl.model import events as e
from ipexctl.model.answers.manage import ListedRun, PsAnswer, ReapAnswer, StopAnswer
from ipexctl.model.errors import Exit, Failure, Kind, UsageError, advise, complete_hint
from ipexctl.model.hosts import Inventory, Link, LinkError
from ipexctl.model.json_values import select_attributes
from ipexctl.model.text import fold_names, format_cpus, format_time, pluralize, printable
from ipexctl.protocol.messages import KillRun, StopRun
from ipexctl.store.record import list_saved_runs, read_name, read_report
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.common.select import list_flags, make_started
from ipexctl.verbs.run import run_discovery
from ipexctl.verbs.run.profile import fetch_profile, make_profile
from ipexctl.verbs.run.replay import read_left_play, read_preparation, read_run_ids
from ipexctl.verbs.run.saved_logs import check_ranks, compare_stacks
from ipexctl.verbs.run.watch import RunRemovedError, RunWatcher, make_removed_error


def ps(inventory: Inventory, context: Context) -> e.Workflow[None]:
    """Lists the runs kept on these hosts: those that go on, and those that ended and were not fetched yet."""
    yield make_started("ps", f"runs on {pluralize(len(inventory), 'host')}", inventory)
    survey = yield from run_discovery.find_runs(inventory, context)
    if survey.removable:
        text = advise("stop", "--orphans", text="some hosts keep directories of runs that are over:")
        yield e.Message(text, "warning", code="orphans")
    records = list_records(context.state / "runs") if any(run.has_lost_others for run in survey.runs) else {}
    runs = tuple(_describe_run(add_saved_end(run, records)) for run in survey.runs)
    yield from e.finish_verb("ps", PsAnswer(runs, survey.orphans, inventory.names, survey.unreachable))


def list_records(runs: Path) -> dict[str, Path]:
    """The newest record of each run that is saved, by the run's name."""
    every = list_saved_runs(runs)
    return {next(read_run_ids(each), ""): each for each in every} | {read_name(each): each for each in every}


def add_saved_end(run: run_discovery.DiscoveredRun, records: Mapping[str, Path]) -> run_discovery.DiscoveredRun:
    """The run with its end as this machine saw it, where its host does not know that: it was cut off or started anew,
    and others went on."""
    record = records.get(run.row.run, records.get(run.row.run.partition(".")[0]))
    if record is None or not run.has_lost_others:
        return run
    report = read_report(record)
    if report and report.run and report.run.run == run.row.run and report.run.reason:
        end = report.run
        row = run.row._replace(state="ended", reason=end.reason, seconds=end.ended - end.started, output="")
        return replace(run, head=end.head, row=row._replace(restart=len(end.restarts)))
    return run


def _describe_run(run: run_discovery.DiscoveredRun) -> ListedRun:
    row = run.row
    figures = {name: value for line in row.output.splitlines() for name, value in read_figures(line).items()}
    return ListedRun(
        **select_attributes(row, "run", "state", "title", "owner", "watchers", "restart", "restarts"),
        ranks=row.size,
        hosts=tuple(row.hosts),
        head=run.head,
        started=format_time(row.started, "%Y-%m-%d %H:%M:%S"),
        reason=row.reason or None,
        elapsed=row.seconds or None,
        step=int(figures["step"]) if "step" in figures else None,
        pace=figures.get("pace"),
        command=shlex.join(row.command),
        ready=row.ready if row.ready >= 0 else None,
    )


def attach(prefix: str | None, inventory: Inventory, context: Context) -> e.Workflow[None]:
    """Watches a run from its first byte on, to its proved end or until it is detached from."""
    _, watcher = yield from find_watcher("attach", prefix, inventory, context)
    if watcher is not None:
        yield from read_preparation(context.state / "runs", watcher.running.run, context.masker)
        yield from watcher.read_earlier()
        detached = yield from watcher.follow()
        if not detached:
            saved = yield from fetch_profile(watcher)
            yield from watcher.prove_ended()
            if saved is not None:
                watcher.profiled = yield from make_profile(watcher, saved)
            yield from read_left_play(context.state / "runs", watcher.running.run, context.masker)
        yield from watcher.report_end("attach", detached)


def stop(prefix: str | None, inventory: Inventory, context: Context, *, kill: bool = False) -> e.Workflow[None]:
    """Ends a run everywhere and proves it. The ranks' output stays on the head for ``attach`` and ``logs``."""
    discovered, watcher = yield from find_watcher("stop", prefix, inventory, context)
    if discovered.row.state == run_discovery.LEADERLESS:
        yield from _stop_leaderless(discovered, inventory, context)
    if watcher is None:
        return
    watcher.ending = True
    run, order = watcher.running.run, KillRun("ipexctl stop") if kill else StopRun("ipexctl stop")
    if not discovered.is_over:
        if watcher.send_order(order):
            yield e.Message(f"stop request sent to run {run}")
        else:  # sent again while the run is followed
            watcher.pending_order = order
    unwatched: e.Message | None = None
    try:
        for event in watcher.follow():
            if isinstance(event, e.HostFailed) and event.failure.kind is Kind.LOST:  # the proof says what that means
                lost = e.Message(event.failure.what, "warning", event.failure.host, event.failure.code)
                if event.failure.code == "watch":
                    unwatched = lost
                else:
                    yield lost
            elif isinstance(event, e.Message | e.HostFailed):
                yield event
    except RunRemovedError as removed:
        yield e.Message(removed.sentence, code="ended-before")
    ended = watcher.run_ended
    if discovered.is_over:
        at = f" at {format_time(ended.at, '%Y-%m-%d %H:%M:%S')}" if ended and ended.at else ""
        yield e.Message(f"run {run} had ended already{at}", code="ended-before")
    proof: e.CleanupChecked | None = None
    for event in watcher.prove_ended(keep=True):
        if isinstance(event, e.CleanupChecked):
            proof = event
            if unwatched and (proof.orphans or proof.unchecked):  # else nothing of it is running any more
                yield unwatched
        yield event
    if proof is not None:
        output = complete_hint(advise("attach", run), list_flags(inventory, None)) if ended else None
        reason = ended.reason if ended else ""
        yield e.Answer(StopAnswer(proof.clean, proof.orphans, proof.unchecked, run, reason, output))
    yield e.Ended("stop", watcher.exit)


def _stop_leaderless(
    discovered: run_discovery.DiscoveredRun, inventory: Inventory, context: Context
) -> e.Workflow[None]:
    """Ends the parts of a run between two leaders: no host takes the place of the last one then."""
    run = discovered.row.run
    what = f"no host that leads run {run} can be reached: its parts are ended, so that no other takes its place"
    yield e.Message(what, code="leaderless")
    cleaned, unknown = yield from _clean_up(run, discovered.away, inventory, context)
    left = {host: done.left for host, done in cleaned.items() if done.left}
    proof = e.CleanupChecked(run, inventory.names, left, tuple(unknown))
    yield proof
    yield from e.finish_verb("stop", StopAnswer(proof.clean, proof.orphans, proof.unchecked, run, "stopped"))


def logs(
    prefix: str | None, inventory: Inventory, context: Context, ranks: Collection[int] = (), *, follow: bool = False
) -> e.Workflow[None]:
    """Prints what ranks wrote so far, from the head's files; ``follow`` goes on to the end. Changes nothing. Raises
    `UsageError` where the run has no such rank."""
    finding = find_watcher("logs", prefix, inventory, context, newest=True)
    discovered, watcher = yield from run_nested(
        finding, lambda event: not isinstance(event, e.StepStarted | e.StepEnded)
    )
    if watcher is None:
        return
    run = discovered.row.run
    check_ranks(run, ranks, discovered.row.size)
    for event in watcher.read_files(follow=follow, samples=False):
        if isinstance(event, e.RunStarted | e.Message | e.HostFailed) or (
            isinstance(event, e.Output) and (not ranks or event.rank in ranks)
        ):
            yield event
    if not follow and not discovered.is_over:
        chosen, text = format_cpus(ranks), f"run {run} goes on; to follow it:"
        follow_it = advise("logs", run, "--follow", *(["--rank", chosen] if ranks else []), text=text)
        yield e.Message(follow_it, code="goes-on")
    yield e.Ended("logs", watcher.exit)


def print_stacks(
    prefix: str | None, inventory: Inventory, context: Context, ranks: Collection[int] = ()
) -> e.Workflow[None]:
    """Prints where the ranks of a run stand at this moment, those at the same place together. The run goes on. Raises
    `UsageError` where the run is over, or has no such rank."""
    discovered, watcher = yield from find_watcher("logs", prefix, inventory, context)
    if watcher is None:
        return
    run, head = discovered.row.run, watcher.head
    if discovered.row.state != "running":
        state = {"gone": "over: its keeper is gone", "ended": "over"}.get(discovered.row.state, discovered.row.state)
        hint = advise("logs", run) if discovered.is_over else None
        raise UsageError(
            f"run {run} is {state}", reasons=["only ranks that run have stacks"], hint=hint, exit=Exit.STEP
        )
    check_ranks(run, ranks, discovered.row.size)
    request = secrets.token_hex(8)
    answers, _ = yield from run_on_hosts(
        context, [head.host], "collect stacks",
        lambda link, _: run_control.collect_stacks(link, head, request, watcher.timings),
    )  # fmt: skip
    for records, missing in answers.values():
        stacks = tuple(
            e.RankStack(**select_attributes(record, "rank", "host", "pid", "state", "wchan", "text"))
            for record in records
            if not ranks or record.rank in ranks
        )
        for host in missing:
            yield e.Message("did not report the stacks of its ranks in time", "warning", host, "stacks-missing")
        yield e.Answer(compare_stacks(run, stacks, missing, stalled=False))
    yield e.Ended("logs", Exit.OK)


def reap(prefix: str | None, inventory: Inventory, context: Context) -> e.Workflow[ReapAnswer]:
    """Ends what is left of runs without a keeper (gone, or ended), and removes their directories; the output of a run
    that ended in order stays on its head, where perhaps nobody has read it. With a run's name, all of it, whatever its
    state. Reports what could not be ended, and returns what `Answer` holds."""
    yield make_started("reap", prefix or "", inventory)
    survey = yield from run_discovery.find_runs(inventory, context)
    to_remove = choose_directories(survey, prefix)
    if not to_remove:
        yield e.Message("no orphans to end")
    left: dict[str, tuple[int, ...]] = {}
    unknown, removed = list(survey.unreachable), list[str]()
    for run, directories in to_remove.items():
        cleaned, silent = yield from _clean_up(run, directories, inventory, context)
        was_running = any(done.was_running for done in cleaned.values())
        unknown += silent
        for host, done in cleaned.items():
            if done.left:
                left[host] = (*left.get(host, ()), *done.left)
        if not (was_running or silent or directories) and prefix:
            raise run_discovery.no_run_error(run, survey)
        if not any(done.stays for done in cleaned.values()) and (
            directories.keys() - {*silent} or (prefix and was_running)
        ):
            removed.append(run)
    fetchable = sorted({run.row.run for run in survey.runs if run.row.state == "ended"} & {*to_remove})
    if fetchable and not prefix:
        what = f"the output of {pluralize(len(fetchable), 'ended run')} stays for attach and logs; this removes it:"
        yield e.Message(advise("stop", "--orphans", fetchable[0], text=what), code="fetchable")
    proof = e.CleanupChecked(",".join(to_remove) or "none", inventory.names, left, tuple(dict.fromkeys(unknown)))
    yield proof
    answer = ReapAnswer(proof.clean, proof.orphans, proof.unchecked, tuple(sorted(removed)))
    yield from e.finish_verb("reap", answer)
    return answer


def choose_directories(survey: run_discovery.RunSurvey, prefix: str | None) -> dict[str, dict[str, str]]:
    """Run → host → the directory to remove on it. Without a ``prefix`` the head of a run that ended keeps its own. What
    is the name of one is no prefix of others: a host may keep a directory with any name."""
    chosen: dict[str, dict[str, str]] = {}
    names = {*(run.row.run for run in survey.runs), *(orphan.run for orphan in survey.orphans)}
    meant = {prefix} & names or {name for name in names if prefix and name.startswith(prefix)}
    runs = [run for run in survey.runs if run.is_over and not prefix]
    if prefix and any(run.row.run in meant for run in survey.runs):
        runs = [run_discovery.choose_run(survey, prefix)]
    for run in runs:
        directories = chosen.setdefault(run.row.run, {})
        if prefix or run.row.state != "ended":  # whoever watches a run to its end takes its directory away
            directories[run.head] = run.row.directory
    for orphan in survey.orphans if prefix else survey.removable:
        if not prefix or orphan.run in meant:
            chosen.setdefault(orphan.run, {})[orphan.host] = orphan.directory
    if prefix and not chosen:
        chosen[prefix] = {}  # its directories may be gone and its processes not
    return chosen


def _clean_up(
    run: str, directories: Mapping[str, str], inventory: Inventory, context: Context
) -> e.Workflow[tuple[dict[str, run_control.HostCleanup], list[str]]]:
    """Ends what is left of a run on all hosts, and names those on which its directory alone stays. Returns what became
    of it on each host, and silent hosts."""

    def end(link: Link, _: Emit) -> run_control.HostCleanup:
        run_dir = RemoteRunDir(link.host, directories.get(link.host.name, ""), "python3")
        return run_control.end_run_on_host(link, run_dir, run)

    reaped, silent = yield from run_on_hosts(context, inventory, "reap", end)
    for host in (name for name, done in reaped.items() if done.stays and not done.left):
        what = f"the directory of run {run} could not be removed: {printable(directories[host], 300)}"
        yield e.HostFailed(Failure(host, Kind.RESIDUE, what, code="residue"))
    return reaped, [*silent]


def find_watcher(
    verb: str, prefix: str | None, inventory: Inventory, context: Context, *, newest: bool = False
) -> e.Workflow[tuple[run_discovery.DiscoveredRun, RunWatcher | None]]:
    """Begins a command; the run that ``prefix`` names, and a watcher of it. Where its head cannot be reached, that is
    reported, the command ends and there is none."""
    yield make_started(verb, "" if verb == "logs" or prefix in (None, "last") else prefix, inventory)
    survey, place = (yield from run_discovery.find_runs(inventory, context)), list_flags(inventory, None)
    discovered = run_discovery.choose_run(survey, prefix, verb=verb, place=place, newest=newest)
    context.masker.add_kept(context.state / "runs" / discovered.row.run.partition(".")[0])  # where it was started here
    if discovered.row.state == run_discovery.LEADERLESS and verb != "stop":
        discovered = yield from run_discovery.await_leader(discovered, inventory, context)
    if discovered.row.state == run_discovery.LEADERLESS:
        if verb == "stop":
            return discovered, None
        what = f"no host that leads run {discovered.row.run} can be reached"
        reasons = [f"it has parts on {fold_names(tuple(discovered.away))}, of which one may lead it later"]
        raise UsageError(what, reasons=reasons, hint=advise("ps"), exit=Exit.UNREACHABLE, code="leaderless")
    try:
        return discovered, run_discovery.make_watcher(discovered, inventory, context)
    except LinkError as error:
        if error.failure.code == run_control.REMOVED:
            raise make_removed_error(discovered.row.run, context.state / "runs") from None
        yield e.HostFailed(Failure(discovered.head, Kind.UNREACHABLE, error.failure.what))
        yield e.Ended(verb, Exit.OK)
        return discovered, None
