"""``ipexctl fetch``: copies results from the hosts; receives only new and changed files."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.act.inputs import expand_home
from ipexctl.act.transfer import receive
from ipexctl.act.transfer.receive import ResultsDir, UnsafePathError
from ipexctl.act.transfer.send import ProgressReporter
from ipexctl.decide import parsing
from ipexctl.decide.planning import fetch as planning
from ipexctl.decide.planning.fetch import Listing, RemoteFile
from ipexctl.decide.planning.ignore import compile_ignore
from ipexctl.decide.planning.sync import choose_destination, find_invalid_destinations, find_path_fault
from ipexctl.model.answers.files import FailedTransfer, FetchAnswer, FetchedHost
from ipexctl.model.errors import Exit, Failure, Kind, UsageError, advise, choose_exit
from ipexctl.model.events import HostFailed, Message, Planned, Started, StepEnded, Workflow, finish_verb
from ipexctl.model.hosts import Host, Inventory, Link, LinkError
from ipexctl.model.tasks import Fetch
from ipexctl.model.text import parse_integer, pluralize, printable
from ipexctl.verbs.common.select import list_flags
from ipexctl.verbs.files.project import find_project

_STEP = "fetch"
_ABSENT_LIMIT = 100  # files that did not come when they were asked for alone; then no other is asked for again
_WHERE = "a path begins in the directory of the project on the host, or with /"


def fetch(
    task: Fetch,
    inventory: Inventory,
    context: Context,
    *,
    ranks: Sequence[str] = (),
    dry: bool = False,
    early: bool = False,
) -> Workflow[None]:
    """Fills each host's local directory. ``ranks`` are the hosts of the run's ranks, in order (empty: those of the last
    saved run); ``early``: before the run that makes the files, so that none may be there yet. Raises `UsageError`
    before any host is contacted."""
    hosts = _select_hosts(task, inventory, ranks, context)
    into = expand_home(task.into)
    if into.exists() and not into.is_dir():
        raise UsageError(f"{printable(task.into, 300)} is not a directory", hint="name another one with --into")
    project = find_project(task.source, task.project)
    destinations = {host.name: choose_destination(task.workdir, host, project.name, project.part) for host in hosts}
    _check_paths(task.paths, destinations)
    patterns = [planning.anchor_pattern(pattern) for pattern in task.paths]
    folds = receive.is_case_insensitive(into)
    parse = partial(planning.parse_listing, ignored=compile_ignore(task.exclude), folds=folds)
    what = f"{planning.format_names(task.paths)} of {pluralize(len(hosts), 'host')} into {printable(task.into, 200)}"
    yield Started("fetch", what, tuple(host.name for host in hosts), selection_flags=list_flags(inventory, None))

    listings, failures = yield from run_on_hosts(
        context, hosts, "list files",
        lambda link, _: receive.list_files(link, destinations[link.host.name], patterns, parse),
    )  # fmt: skip
    if links := sorted({link for listing in listings.values() for link in listing.links}):
        yield Message(f"links below a directory are not followed: {planning.format_names(links)}")
    missing = [pattern for number, pattern in enumerate(task.paths)
               if listings and not any(number in listing.matched for listing in listings.values())]  # fmt: skip
    plans = {
        name: planning.plan_fetch(listing, partial(receive.stat_local_file, into / name))
        for name, listing in listings.items()
    }
    plan_text = planning.format_plans(plans, task.into)
    yield Planned("fetch", plan_text)
    places = {listing.path for listing in listings.values()}
    place = printable(places.pop(), 200) if len(places) == 1 else None
    for pattern in missing:
        if early:
            yield Message(f"{_describe_missing(pattern, place)} yet", code="not-there-yet")
        else:
            yield HostFailed(_explain_missing(pattern, place, inventory, task.into))
    lack = receive.describe_lack(into, sum(plan.size for plan in plans.values()))
    if lack and not dry:
        full = {name: Failure(name, Kind.RECORD, lack, code="no-space") for name, plan in plans.items() if plan.items}
        yield from map(HostFailed, full.values())
        failures |= full
    elif not dry:
        run, older = _find_last_run(context.state / "runs"), receive.read_fetched_run(into)
        fetched, failed = yield from _fetch_files(hosts, plans, into, "" if older == run else older, context, patterns)
        failures |= failed
        if run and fetched and not failures:
            receive.note_fetched_run(into, run)
    answers: list[FetchedHost | FailedTransfer] = []
    for name in (host.name for host in hosts):
        if failure := failures.get(name):
            answers.append(FailedTransfer(name, failure.what, failure.code))
        else:
            plan = plans[name]
            answers.append(FetchedHost(name, str(into / name), len(plan.items), plan.size, plan.unchanged))
    answer = FetchAnswer(dry, tuple(answers), plan_text if dry else None)
    yield from finish_verb("fetch", answer, choose_exit([*failures.values(), *[Exit.STEP] * len(missing)]))


def _check_paths(paths: Sequence[str], destinations: Mapping[str, str]) -> None:
    """Refuses what is no path on the hosts. Raises `UsageError`."""
    invalid = [f"{pattern!r} {why}" for pattern in paths if (why := find_path_fault(pattern))]
    if invalid := [*invalid, *find_invalid_destinations(destinations)]:
        raise UsageError("fetch has invalid paths", reasons=invalid)
    if paths[1:] and paths[-1] in (".", "./"):
        what = f"fetch copies the whole directory of the project for {paths[-1]}; --into names the local one"
        raise UsageError(what, meant=(paths[-1], f"--into={paths[-1]}"))


def _describe_missing(pattern: str, place: str | None) -> str:
    return f"no host has {printable(pattern, 200)} in {place or 'its working directory'}"


def _explain_missing(pattern: str, place: str | None, inventory: Inventory, into: str) -> Failure:
    """Returns the failure of a pattern that matches on no host, in ``place``, None where each has another one."""
    hint = advise("exec", "--", "ls", place, text=f"{_WHERE}; what is there:") if place else _WHERE
    host, _, path = pattern.partition(":")
    if path and host in {each.name for each in inventory}:
        hint = advise("fetch", path, "--from", host, "--into", into, text="--from takes the host:")
    return Failure("", Kind.STEP, _describe_missing(pattern, place), hint, "missing")


def _fetch_files(
    hosts: Sequence[Host], plans: dict[str, Listing], into: Path, older: str, context: Context, patterns: Sequence[str]
) -> Workflow[tuple[dict[str, str], dict[str, Failure]]]:
    """Receives the files of all hosts; those of the run ``older`` that they would replace are kept."""
    for name, plan in plans.items():
        if not plan.items:
            yield StepEnded(name, _STEP, "ok", plan.summary())
            if plan.refused:
                what = f"not fetched: {planning.format_names(plan.refused)}"
                yield HostFailed(Failure(name, Kind.STEP, what, code="name"))
    outdated = [host for host in hosts if host.name in plans and plans[host.name].items]
    if outdated:
        receive.make_results_directory(into)

    kept: list[int] = []

    def fetch_host(link: Link, emit: Emit) -> str | Failure:
        host = link.host.name
        plan = plans[host]
        progress = ProgressReporter(host, _STEP, plan.size, emit)
        bad = list(plan.refused)
        try:
            with ResultsDir(into, host, older) as results:
                absent: list[RemoteFile] = []
                for item in _fetch_tar(link, plan.path, plan.items, results, progress, bad):
                    # Alone: a second hard link may arrive as a reference to the first.
                    if len(absent) >= _ABSENT_LIMIT or _fetch_tar(link, plan.path, [item], results, progress, bad):
                        absent.append(item)
                results.sync()
                kept.append(results.kept)
        except UnsafePathError as why:
            return Failure(host, Kind.RECORD, str(why), code="not-stored")
        progress.report(always=True)
        listing = receive.list_files(link, plan.path, patterns, planning.parse_listing)
        current = {item.local: (item.size, item.mtime) for item in listing.items}
        for item in plan.items:
            if current.get(item.local) != (item.size, item.mtime):
                text = f"{printable(item.local, 200)} changed while it was read: fetch it again"
                emit(Message(text, "warning", host, "changed"))
        bad += [f"{printable(item.local, 200)} could not be read on the host" for item in absent]
        if bad:
            return Failure(host, Kind.STEP, f"not fetched: {planning.format_names(bad)}", code="name")
        return plan.summary()

    fetched = yield from run_on_hosts(
        context, outdated, _STEP, fetch_host, outcome=lambda summary: ("changed", summary)
    )
    if count := sum(kept):
        where = printable(str(into / older), 300)
        yield Message(f"{pluralize(count, 'file')} of run {older} went to {where}: newer ones came", code="kept")
    return fetched


def _fetch_tar(
    link: Link, where: str, items: Sequence[RemoteFile], results: ResultsDir, progress: ProgressReporter, bad: list[str]
) -> list[RemoteFile]:
    """Receives complete files by one request; returns those that did not arrive."""
    missing = {item.name: item for item in items}
    sizes = {item.name: item.size for item in items}
    for name, size, chunks in receive.receive_files(link, where, sizes) if sizes else ():
        item = missing.pop(name)
        progress.detail = item.local
        counted = progress.count_chunks(chunks)
        try:
            written = results.write_file(item.local, counted, mtime=item.mtime, executable=item.executable)
        except UnsafePathError as why:
            if why.full:
                raise
            bad.append(str(why))
            continue
        if written != size:
            raise LinkError(Failure(link.host.name, Kind.STEP, "the file stream is incomplete", code="damaged"))
    return list(missing.values())


def _select_hosts(task: Fetch, inventory: Inventory, ranks: Sequence[str], context: Context) -> list[Host]:
    """Returns the hosts of ``--from``. Raises `UsageError`."""
    if task.from_ == "all":
        return list(inventory)
    if not task.from_.startswith("rank:"):
        return list(parsing.limit_inventory(inventory, task.from_, "--from"))
    words = task.from_.removeprefix("rank:").split(",")
    numbers = [number for word in words if (number := parse_integer(word)) is not None]
    if len(numbers) < len(words):
        raise UsageError(f"--from takes all, rank:0 or hosts, not {printable(task.from_)!r}")
    rank_hosts = list(ranks) or _read_last_ranks(context)
    if not rank_hosts:
        raise UsageError(
            f"--from {task.from_} needs a run, and none is saved here",
            hint=advise("fetch", "--from", inventory.head.name, *task.paths),
        )
    names = {rank_hosts[number] for number in numbers if number < len(rank_hosts)}
    unknown = [number for number in numbers if number >= len(rank_hosts)]
    absent = sorted(names - set(inventory.names))
    if unknown or len(absent) == len(names):
        reasons = [f"the run had ranks 0 to {len(rank_hosts) - 1}, not {number}" for number in unknown]
        reasons += [f"no host is called {name}" for name in absent]
        raise UsageError(f"--from {task.from_} does not fit", reasons=reasons)
    return [host for host in inventory if host.name in names]


def _find_last_run(runs: Path) -> str:
    """Returns the last run that was started or watched here; "" where there is none."""
    from ipexctl.verbs.run.replay import find_saved_run, read_run_ids

    try:
        return next(read_run_ids(find_saved_run(runs, "last", with_ranks=True)), "")
    except UsageError:
        return ""


def _read_last_ranks(context: Context) -> list[str]:
    from ipexctl.store.record import list_saved_runs, read_report

    reports = (read_report(directory) for directory in reversed(list_saved_runs(context.state / "runs")))
    return next(([rank.host for rank in report.run.ranks] for report in reports if report and report.run), [])
