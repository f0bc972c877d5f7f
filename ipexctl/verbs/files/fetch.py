"""``ipexctl fetch``: bring results back. Look what the hosts have, decide what is new, bring only that."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit, each
from ipexctl.act.transfer import receive, rsync
from ipexctl.act.transfer.receive import ResultsDir, UnsafePathError
from ipexctl.act.transfer.send import ProgressReporter
from ipexctl.decide import parsing
from ipexctl.decide.planning import fetch as planning
from ipexctl.decide.planning.fetch import Item, Listing, Wanted
from ipexctl.decide.planning.ignore import ignoring
from ipexctl.decide.planning.sync import destination, format_bytes
from ipexctl.decide.planning.sync import unfit as unfit_place
from ipexctl.model.answers import FailedTransfer, FetchAnswer, FetchedHost
from ipexctl.model.errors import Failure, Kind, UsageError, worst
from ipexctl.model.events import Answer, Ended, Event, HostFailed, Message, Planned, Started, StepEnded
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.links import Link, LinkError
from ipexctl.model.tasks import Fetch
from ipexctl.model.text import printable

_STEP = "fetch"


def fetch(
    task: Fetch, inventory: Inventory, context: Context, *, ranks: Sequence[str] = (), dry: bool = False
) -> Generator[Event, None, dict[str, str | Failure]]:
    """Returns each host's directory here, or why there is none. ``ranks`` are the hosts of the ranks of the run whose
    results are wanted (empty: those of the last saved run). Raises `UsageError` before anything is contacted."""
    hosts = _from(task, inventory, ranks, context)
    into = Path(task.into).expanduser()
    if into.exists() and not into.is_dir():
        raise UsageError(f"{printable(task.into, 300)} is not a directory", hint="name another one with --into")
    root = Path(os.path.abspath(Path(task.source).expanduser()))  # noqa: PTH100 - links stay as they are written
    name = (root.parent if root.is_file() or root.suffix == ".py" else root).name
    wheres = {host.name: destination(task.workdir, host, name) for host in hosts}
    wrong = [f"{pattern!r} {why}" for pattern in task.paths if (why := planning.unfit(pattern))]
    wrong += [f"{host}: {where!r} {why}" for host, where in wheres.items() if (why := unfit_place(where))]
    if wrong:
        raise UsageError("what is to be fetched cannot be used", reasons=wrong)
    here = rsync.here() is not None
    if task.transfer == "rsync" and not here:
        raise UsageError("there is no rsync on this machine", hint="leave out --transfer rsync")
    patterns = [planning.asked(pattern) for pattern in task.paths]
    left_out, folded = ignoring(task.exclude), receive.folds(into)
    yield Started("fetch", f"{planning.some(task.paths)} of {_hosts(len(hosts))} into {printable(task.into, 200)}",
                  tuple(host.name for host in hosts))  # fmt: skip

    def ask(link: Link, _: Emit) -> Listing:
        try:
            data = receive.look(link, wheres[link.host.name], patterns)
            return planning.read_listing(data, left_out, folds=folded)
        except ValueError:
            what = "the host's list of files makes no sense"
            raise LinkError(Failure(link.host.name, Kind.STEP, what, code="malformed")) from None

    seen = yield from each(context, hosts, "look", ask)
    failures = {host: found for host, found in seen.items() if isinstance(found, Failure)}
    listings = {host: found for host, found in seen.items() if isinstance(found, Listing)}
    yield from _told(listings)
    missing = [pattern for number, pattern in enumerate(task.paths)
               if listings and not any(number in found.met for found in listings.values())]  # fmt: skip
    every = {host.name: _wanted(task, host, listings[host.name], into, here) for host in hosts if host.name in listings}
    plan = planning.text(every, task.into)
    yield Planned("fetch", plan)
    for pattern in missing:
        what = f"no host has {printable(pattern, 200)} in {printable(next(iter(listings.values())).path, 200)}"
        yield HostFailed(Failure("", Kind.STEP, what, "ipexctl fetch --workdir says where paths start", "missing"))
    if not dry:
        came = yield from _bring(hosts, every, listings, into, context, patterns)
        failures |= {host: found for host, found in came.items() if isinstance(found, Failure)}
    done = {host.name: failures.get(host.name) or str(into / host.name) for host in hosts}
    answers = {name: _fetched(result, every.get(name)) for name, result in done.items()}
    yield Answer(FetchAnswer(dry, answers, plan if dry else None))
    codes = [failure.kind.exit for failure in failures.values()]
    yield Ended("fetch", worst([*codes, *([Kind.STEP.exit] if missing else [])]))
    return done


def _wanted(task: Fetch, host: Host, listing: Listing, into: Path, here: bool) -> Wanted:
    have = receive.have(into, host.name)
    found = planning.wanted(listing, have)
    if task.transfer == "auto" and host.is_local:
        return found
    # rsync takes names below one directory, and those a pattern names through a link are no matter: it follows links.
    return planning.by_rsync(found, have, task.transfer, both=here and listing.rsync)


def _bring(
    hosts: Sequence[Host],
    every: dict[str, Wanted],
    listings: dict[str, Listing],
    into: Path,
    context: Context,
    patterns: Sequence[str],
) -> Generator[Event, None, dict[str, str | Failure]]:
    """Brings what is new; a host that has nothing new is not asked again."""
    for host in hosts:
        if host.name in every and not every[host.name].items:
            yield StepEnded(host.name, _STEP, "ok", every[host.name].said())
            if listings[host.name].refused:
                what = "not brought: " + planning.some(listings[host.name].refused)
                yield HostFailed(Failure(host.name, Kind.STEP, what, code="name"))
    behind = [host for host in hosts if host.name in every and every[host.name].items]

    def work(link: Link, emit: Emit) -> str | Failure:
        host = link.host.name
        found = every[host]
        teller = ProgressReporter(host, _STEP, found.size, emit)
        bad: list[str] = list(listings[host].refused)
        saved = 0
        try:
            with ResultsDir(into, host) as shelf:
                rest = list(found.items)
                if found.merged:
                    try:
                        saved = _by_rsync(link, found, shelf, teller, bad)
                        rest = [item for item in rest if item not in set(found.merged)]
                    except rsync.RsyncError as why:
                        emit(Message(f"{why}; brought whole instead", "warning", host))
                lost = _whole(link, found, rest, shelf, teller, bad)
                lost = _whole(link, found, lost, shelf, teller, bad, alone=True)
        except UnsafePathError as why:
            return Failure(host, Kind.RECORD, str(why), code="not-stored")
        teller.tell(always=True)
        for torn in _changed(link, found, patterns):
            emit(Message(f"{printable(torn, 200)} changed while it was read: fetch it again", "warning", host))
        if lost:
            bad += [f"{printable(item.local, 200)} could not be read there" for item in lost]
        if bad:
            return Failure(host, Kind.STEP, f"not brought: {planning.some(bad)}", code="name")
        return found.said() + (f" (rsync saved {format_bytes(saved)})" if saved else "")

    return (yield from each(context, behind, _STEP, work, outcome=lambda said: ("changed", said)))


def _whole(
    link: Link,
    found: Wanted,
    items: Sequence[Item],
    shelf: ResultsDir,
    teller: ProgressReporter,
    bad: list[str],
    *,
    alone: bool = False,
) -> list[Item]:
    """Brings files as they are; those that did not come. ``alone``: one by one (the second name of a file that has
    several may come as a mere reference to the first)."""
    missing: list[Item] = []
    for group in [[item] for item in items] if alone else [list(items)] if items else []:
        named = {item.name: item for item in group}
        for name, size, chunks in receive.receive(link, found.path, [*named]):
            item = named.pop(name)
            teller.detail = item.local
            try:
                came = shelf.put(item.local, _counted(chunks, teller), mtime=item.mtime, executable=item.executable)
            except UnsafePathError as why:
                if why.full:
                    raise
                bad.append(str(why))
                continue
            if came != size:
                raise LinkError(Failure(link.host.name, Kind.STEP, "what it sent was cut", code="damaged"))
        missing += named.values()
    return missing


def _counted(chunks: Iterator[bytes], teller: ProgressReporter) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        teller.count(len(chunk))


def _by_rsync(link: Link, found: Wanted, shelf: ResultsDir, teller: ProgressReporter, bad: list[str]) -> int:
    """Big files of which an old version is here; the bytes that did not have to travel. Raises `rsync.Unfit`."""
    below = [item for item in found.merged if not item.name.startswith("/")]
    if len(below) != len(found.merged):
        raise rsync.RsyncError("rsync is for files below the working directory")
    rsync.receive(link, [item.local for item in below], found.path, shelf.staging, teller.count)
    came = teller.done
    for item in below:
        try:
            shelf.adopt(item.local, item.local, mtime=item.mtime, executable=item.executable)
        except UnsafePathError as why:
            bad.append(str(why))
    teller.done = sum(item.size for item in below)
    return max(0, teller.done - came)


def _changed(link: Link, found: Wanted, patterns: Sequence[str]) -> list[str]:
    """Files that are not now as they were when they were listed."""
    now = planning.read_listing(receive.look(link, found.path, patterns), ignoring(()))
    there = {item.local: (item.size, item.mtime) for item in now.items}
    return [item.local for item in found.items if there.get(item.local) != (item.size, item.mtime)]


def _from(task: Fetch, inventory: Inventory, ranks: Sequence[str], context: Context) -> list[Host]:
    """The hosts of ``--from``. Raises `UsageError`."""
    if task.from_ == "all":
        return list(inventory)
    if not task.from_.startswith("rank:"):
        return list(parsing.limit(inventory, task.from_, "--from"))
    numbers = task.from_.removeprefix("rank:").split(",")
    if not all(number.isdigit() for number in numbers):
        raise UsageError(f"--from takes all, rank:0 or hosts, not {printable(task.from_)!r}")
    placed = list(ranks) or _last_ranks(context)
    if not placed:
        raise UsageError(f"--from {task.from_} needs a run, and none is saved here", hint="ipexctl fetch --from HOST")
    names = {placed[int(number)] for number in numbers if int(number) < len(placed)}
    unknown = [number for number in numbers if int(number) >= len(placed)]
    gone = sorted(names - set(inventory.names))
    if unknown or len(gone) == len(names):
        reasons = [f"the run had ranks 0 to {len(placed) - 1}, not {number}" for number in unknown]
        raise UsageError(
            f"--from {task.from_} does not fit", reasons=[*reasons, *(f"no host is called {n}" for n in gone)]
        )
    return [host for host in inventory if host.name in names]


def _last_ranks(context: Context) -> list[str]:
    """The hosts of the ranks of the last saved run."""
    from ipexctl.show.record import read_report, saved

    for directory in reversed(saved(context.state / "runs")):
        report = read_report(directory)
        if report and report.run:
            return [rank.host for rank in report.run.ranks]
    return []


def _told(listings: dict[str, Listing]) -> Generator[Event, None, None]:
    links = sorted({link for found in listings.values() for link in found.links})
    if links:
        yield Message(f"links below a directory are not followed: {planning.some(links)}")


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"


def _fetched(result: str | Failure, wanted: Wanted | None) -> FetchedHost | FailedTransfer:
    if isinstance(result, Failure):
        return FailedTransfer(result.what, result.code)
    assert wanted is not None
    return FetchedHost(result, len(wanted.items), wanted.size, wanted.same)
