"""The verbs for runs that go on without us: ``ps``, ``attach``, ``stop``, ``logs``, ``reap``."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from ipexctl.act import run_control
from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit, each
from ipexctl.act.run_control import RemoteRunDir
from ipexctl.model.answers import ListedRun, OrphanDirectory, PsAnswer, ReapAnswer, RunAnswer, StopAnswer
from ipexctl.model.errors import Exit, Failure, Kind
from ipexctl.model.events import (
    Answer,
    CleanupChecked,
    Ended,
    Event,
    HostFailed,
    Message,
    Output,
    RunEnded,
    RunStarted,
    Started,
)
from ipexctl.model.hosts import Inventory
from ipexctl.model.links import Link, LinkError
from ipexctl.verbs.run.run_discovery import DiscoveredRun, RunSurvey, nothing, pick, survey, watching
from ipexctl.verbs.run.watch import RunWatcher

Workflow = Generator[Event, None, None]


def ps(inventory: Inventory, context: Context) -> Workflow:
    """The runs kept on these hosts: those that go on, and those that ended and were not fetched yet."""
    yield Started("ps", f"runs on {len(inventory)} hosts", inventory.names)
    seen = yield from survey(inventory, context)
    orphans = tuple(
        OrphanDirectory(host, str(row["run"]), str(row["directory"]))
        for host, rows in seen.stray.items()
        for row in rows
    )
    if orphans:
        yield Message("some hosts keep directories of runs that are over: ipexctl stop --orphans", "warning")
    runs = tuple(_listed(run) for run in seen.runs)
    yield Answer(PsAnswer(runs, orphans, inventory.names, seen.unreachable))
    yield Ended("ps", Exit.OK)


def _listed(discovered: DiscoveredRun) -> ListedRun:
    row = discovered.row
    return ListedRun(
        run=discovered.run,
        state=discovered.state,
        title=row["title"],
        ranks=row["size"],
        hosts=tuple(row["hosts"]),
        head=discovered.head,
        started=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(row["started"]))),
        owner=row["owner"],
        watchers=row["watchers"],
        reason=row.get("reason"),
    )


def attach(word: str | None, inventory: Inventory, context: Context) -> Workflow:
    """Watches a run from its first byte on, to its proved end or until let go."""
    yield Started("attach", word or "", inventory.names)
    watch = yield from _watching(word, inventory, context)
    if watch is None:
        yield Ended("attach", Exit.OK)
        return
    left_alone = yield from watch.follow()
    if not left_alone:
        yield from watch.prove()
    reason = watch.over.reason if watch.over else None
    yield Answer(RunAnswer(watch.running.run, reason, left_alone))
    yield Ended("attach", watch.exit)


def stop(word: str | None, inventory: Inventory, context: Context, *, kill: bool = False) -> Workflow:
    """Ends a run everywhere and proves it. What its ranks wrote stays on the head for ``attach`` and ``logs``."""
    yield Started("stop", word or "", inventory.names)
    watch = yield from _watching(word, inventory, context)
    if watch is None:
        yield Ended("stop", Exit.OK)
        return
    watch.order("kill" if kill else "stop", "ipexctl stop")
    yield Message(f"run {watch.running.run} was told to stop")
    reason = ""
    for event in _silently(watch):
        if isinstance(event, RunEnded):
            reason = event.reason
        elif isinstance(event, Message | HostFailed):
            yield event
    proof: CleanupChecked | None = None
    for event in watch.prove(keep=True):
        proof = event if isinstance(event, CleanupChecked) else proof
        yield event
    if proof is not None:
        yield Answer(StopAnswer(watch.running.run, reason, _proved(proof), proof.left, proof.unknown))
    yield Ended("stop", watch.exit)


def _proved(proof: CleanupChecked) -> tuple[str, ...]:
    return tuple(host for host in proof.hosts if host not in proof.unknown and host not in proof.left)


def _silently(watch: RunWatcher) -> Workflow:
    yield from watch.follow()


def logs(
    word: str | None,
    inventory: Inventory,
    context: Context,
    ranks: frozenset[int] | None = None,
    *,
    follow: bool = False,
) -> Workflow:
    """What ranks wrote so far, from the head's files; ``follow`` goes on to the end. Changes nothing."""
    yield Started("logs", word or "", inventory.names)
    watch = yield from _watching(word, inventory, context)
    if watch is not None:
        for event in watch.read(follow=follow):
            if isinstance(event, RunStarted | Message | HostFailed) or (
                isinstance(event, Output) and (ranks is None or event.rank in ranks)
            ):
                yield event
    yield Ended("logs", watch.exit if watch else Exit.OK)


def reap(word: str | None, inventory: Inventory, context: Context) -> Workflow:
    """Ends what is left of runs that nobody looks after (keeper gone, or ended), and removes their directories.

    With a run's id, that run, whatever its state. Proves what is left.
    """
    yield Started("reap", word or "", inventory.names)
    seen = yield from survey(inventory, context)
    doomed = _doomed(seen, word)
    if not doomed:
        yield Message("no orphans to end")
    left: dict[str, tuple[int, ...]] = {}
    unknown: list[str] = list(seen.unreachable)
    for run, directories in doomed.items():
        done = yield from each(context, inventory, "reap", _reaper(run, directories))
        for host, result in done.items():
            if isinstance(result, Failure):
                unknown.append(host)
            elif result.left:
                left[host] = left.get(host, ()) + result.left
        if not directories and not any(isinstance(one, Failure) or one.found for one in done.values()):
            raise nothing(run, seen)  # neither a directory nor a process
    proof = CleanupChecked(",".join(doomed) or "none", inventory.names, left, tuple(dict.fromkeys(unknown)))
    yield proof
    yield Answer(ReapAnswer(tuple(sorted(doomed)), _proved(proof), proof.left, proof.unknown))
    yield Ended("reap", Exit.OK)


def _doomed(seen: RunSurvey, word: str | None) -> dict[str, dict[str, str]]:
    """Run → host → its directory there."""
    doomed: dict[str, dict[str, str]] = {}
    chosen = [pick(seen, word)] if word and any(one.run.startswith(word) for one in seen.runs) else None
    for one in chosen or [one for one in seen.runs if one.state in {"ended", "gone"} and not word]:
        doomed.setdefault(one.run, {})[one.head] = str(one.row["directory"])
    for host, rows in seen.stray.items():
        for row in rows:
            if not word or row["run"].startswith(word):
                doomed.setdefault(row["run"], {})[host] = str(row["directory"])
    if word and not doomed:
        doomed[word] = {}  # its directories may be gone and its processes not
    return doomed


@dataclass(frozen=True, slots=True)
class _Reaped:
    """Whether there was a process of the run on a host, and the ids of those that could not be ended."""

    found: bool
    left: tuple[int, ...] = ()


def _reaper(run: str, directories: dict[str, str]) -> Callable[[Link, Emit], _Reaped]:
    def work(link: Link, _: Emit) -> _Reaped:
        directory = directories.get(link.host.name, "")
        site = RemoteRunDir(link.host, directory, "python3")
        found = bool(run_control.prove(link, site, run))
        left = run_control.prove(link, site, run, reap=True) if found else ()
        if directory and not left:
            run_control.remove(link, site)
        return _Reaped(found, left)

    return work


def _watching(word: str | None, inventory: Inventory, context: Context) -> Generator[Event, None, RunWatcher | None]:
    seen = yield from survey(inventory, context)
    found = pick(seen, word)
    try:
        return watching(found, inventory, context)
    except LinkError as error:
        yield HostFailed(Failure(found.head, Kind.UNREACHABLE, error.failure.what))
        return None
