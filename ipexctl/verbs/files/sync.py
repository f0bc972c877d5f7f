"""Carry a directory to all hosts: look what is there, decide what has changed, send only that."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit, each
from ipexctl.act.transfer import rsync
from ipexctl.act.transfer import send as transfer
from ipexctl.act.transfer.receive import receive
from ipexctl.act.transfer.send import ProgressReporter
from ipexctl.act.transfer.source_tree import Packer, SourceChangedError, changed, read_tree
from ipexctl.decide.planning import diff
from ipexctl.decide.planning.ignore import DEFAULT, ignoring
from ipexctl.decide.planning.sync import (
    Delta,
    State,
    by_rsync,
    delta,
    destination,
    format_bytes,
    mark_of,
    read_state,
    stale_parts,
    text,
    unfit,
)
from ipexctl.model import tasks
from ipexctl.model.answers import FailedTransfer, SyncAnswer, SyncedHost
from ipexctl.model.errors import Failure, Kind, UsageError, worst
from ipexctl.model.events import Answer, Ended, Event, HostFailed, Message, Planned, Started, StepEnded
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.links import Link, LinkError
from ipexctl.model.text import printable
from ipexctl.model.trees import Tree

_STEP = "sync"
_IGNORE = ".ipexctlignore"  # patterns of the project itself, read from the top of the source


def sync(
    task: tasks.Sync, inventory: Inventory, context: Context, *, dry: bool = False
) -> Generator[Event, None, dict[str, str | Failure]]:
    """Returns each host's absolute directory, or why it has none. Raises `UsageError` before anything is contacted."""
    root = _source(task)
    ignored = ignoring([*DEFAULT, *_patterns(root), *task.exclude])
    wheres = _destinations(task, inventory, root)
    here = rsync.here() is not None
    if task.transfer == "rsync" and not here:
        raise UsageError("there is no rsync on this machine", hint="leave out --transfer rsync")
    tree = read_tree(root, ignored)
    if task.delete and not tree.entries:
        raise UsageError(f"{task.source} is empty, and --delete would remove everything on the hosts")
    yield Started(
        "sync",
        f"{printable(str(root), 200)} to {len(inventory)} host{'' if len(inventory) == 1 else 's'}",
        inventory.names,
    )
    if tree.skipped:
        names = ", ".join(printable(name) for name in tree.skipped[:5])
        yield Message(f"not carried, because they are no files: {names}", "warning")

    states = yield from each(context, inventory, "compare", lambda link, _: _look(link, wheres[link.host.name]))
    failures = {name: found for name, found in states.items() if isinstance(found, Failure)}
    deltas: dict[str, Delta] = {}
    for host in inventory:
        if isinstance(state := states[host.name], State):
            found = delta(tree, state, delete=task.delete, kept=ignored, stale=_stale(state, tree))
            deltas[host.name] = by_rsync(found, state, task.transfer, here=here, near=host.is_local)
    plan = text(deltas, str(root))
    yield Planned("sync", plan)
    if task.diff:
        yield from _differences(tree, deltas, states, inventory, context)
    for name, found in deltas.items():
        if found.blocked:
            failures[name] = Failure(name, Kind.STEP, "; ".join(found.blocked), code="blocked")
            yield HostFailed(failures[name])
        elif found.before:
            yield Message(f"{printable(found.path, 200)} was filled from {found.before} before", "warning", name)
    going = [host for host in inventory if host.name in deltas and host.name not in failures]
    paths = {host.name: deltas[host.name].path for host in going}
    if not dry:
        sent = yield from _carry(task, tree, deltas, going, context)
        failures |= {name: found for name, found in sent.items() if isinstance(found, Failure)}
    done = {host.name: failures.get(host.name) or paths[host.name] for host in inventory}
    hosts = {name: _synced(result, deltas.get(name)) for name, result in done.items()}
    yield Answer(SyncAnswer(dry, hosts, plan if dry else None))
    yield Ended("sync", worst([failure.kind.exit for failure in failures.values()]))
    return done


def _carry(
    task: tasks.Sync, tree: Tree, deltas: dict[str, Delta], going: Sequence[Host], context: Context
) -> Generator[Event, None, dict[str, str | Failure]]:
    """Sends each host what it needs; a host that needs nothing is not asked again."""
    packer, mark = Packer(tree), mark_of(tree)
    behind = [host for host in going if not deltas[host.name].nothing]
    for host in going:
        if deltas[host.name].nothing:
            yield StepEnded(host.name, _STEP, "ok", deltas[host.name].said())

    def work(link: Link, emit: Emit) -> str:
        found = deltas[link.host.name]
        teller = ProgressReporter(link.host.name, _STEP, found.size, emit)
        saved = 0

        def parcel(into: str) -> Iterator[bytes]:
            """What is left for the stream, once rsync has done its part."""
            nonlocal saved
            rest, merged = found.send, found.merged
            try:
                rsync.send(link, tree.root, [entry.path for entry in merged], into, teller.count)
            except rsync.RsyncError as why:
                if gone := changed(tree, merged):
                    raise SourceChangedError(gone) from None
                if task.transfer == "rsync":
                    raise
                emit(Message(f"{why}; sent whole instead", "warning", link.host.name))
                merged = ()
            else:
                whole = sum(entry.size for entry in merged)
                saved = max(0, whole - teller.done)
                teller.done = whole
                by = set(merged)
                rest = tuple(entry for entry in rest if entry not in by)
            yield from teller.counting(packer.parcel(rest, mark=mark, doomed=found.doomed, merged=merged))

        try:
            if found.merged:
                transfer.merge(link, found.path, parcel, own=_own(tree), old=found.parts)
            else:
                pieces = teller.counting(packer.parcel(found.send, mark=mark, doomed=found.doomed))
                transfer.place(link, found.path, pieces, own=_own(tree), old=found.parts)
        except rsync.RsyncError as why:
            raise LinkError(Failure(link.host.name, Kind.STEP, str(why), code="rsync")) from None
        except SourceChangedError as change:
            names = ", ".join(printable(path) for path in change.paths[:5])
            raise LinkError(
                Failure(link.host.name, Kind.STEP, f"changed while it was sent: {names}", code="source-changed")
            ) from None
        return found.said() + (f" (rsync saved {format_bytes(saved)})" if saved else "")

    return (yield from each(context, behind, _STEP, work, outcome=lambda said: ("changed", said)))


def _differences(
    tree: Tree, deltas: dict[str, Delta], states: Mapping[str, State | Failure], inventory: Inventory, context: Context
) -> Generator[Event, None, None]:
    """Says how the text files that are to be sent differ from those there. A host that cannot tell is no failure."""
    every = {
        name: {f"./{entry.path}": entry for entry in diff.comparable(found, state)}
        for name, found in deltas.items()
        if isinstance(state := states[name], State)
    }
    asked = [host for host in inventory if every.get(host.name)]

    def read(link: Link, _: Emit) -> list[str]:
        mine = every[link.host.name]
        told = []
        for name, size, chunks in receive(link, deltas[link.host.name].path, [*mine]):
            if size <= diff.LARGEST:
                entry = mine[name]
                told.append(diff.difference(entry.path, b"".join(chunks), (tree.root / entry.path).read_bytes()))
        return told

    told = yield from each(context, asked, "compare texts", read)
    for names, said in diff.grouped({name: found for name, found in told.items() if not isinstance(found, Failure)}):
        yield Message(f"{', '.join(names)}:\n{said}")


def _look(link: Link, where: str) -> State:
    try:
        return read_state(transfer.look(link, where))
    except ValueError:
        what = f"the host's list of files in {printable(where)} makes no sense"
        raise LinkError(Failure(link.host.name, Kind.STEP, what, code="malformed")) from None


def _source(task: tasks.Sync) -> Path:
    """The directory to carry: the source itself, or that of the script it names."""
    said = Path(task.source).expanduser()
    if not said.exists():
        raise UsageError(f"the source {printable(task.source, 200)} does not exist")
    root = directory_of(said)
    if root.resolve() in {Path("/"), Path.home().resolve()}:
        raise UsageError(
            f"{printable(str(root), 200)} would be carried whole to every host",
            reasons=["it is the home directory or the root directory"],
            hint="put the script into a directory of its own",
        )
    return root


def directory_of(said: Path) -> Path:
    """A directory itself, or that of a file, absolute; its name is that of its place on the hosts."""
    return Path(os.path.abspath(said if said.is_dir() else said.parent))  # noqa: PTH100 - links stay as they are written


def _patterns(root: Path) -> list[str]:
    try:
        return (root / _IGNORE).read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []


def _destinations(task: tasks.Sync, inventory: Inventory, root: Path) -> dict[str, str]:
    wheres = {host.name: destination(task.workdir, host, root.name) for host in inventory}
    reasons = [f"{name}: {where!r} {why}" for name, where in wheres.items() if (why := unfit(where))]
    if reasons:
        raise UsageError(
            "the working directory on the hosts cannot be used", reasons=reasons, hint="name another one with --workdir"
        )
    return wheres


def _own(tree: Tree) -> str:
    """Names our private directories on the hosts: this source, and this process."""
    return f"{hashlib.sha256(os.fsencode(tree.origin)).hexdigest()[:12]}-{os.getpid()}"


def _stale(state: State, tree: Tree) -> tuple[str, ...]:
    me, _, own = _own(tree).partition("-")
    writers = {int(name.split("-")[-2]) for name in state.parts if name.split("-")[-2].isdigit()} - {int(own)}
    return stale_parts(state, me, frozenset(pid for pid in writers if Path(f"/proc/{pid}").exists()))


def _synced(result: str | Failure, delta: Delta | None) -> SyncedHost | FailedTransfer:
    if isinstance(result, Failure):
        return FailedTransfer(result.what, result.code)
    assert delta is not None
    return SyncedHost(result, not delta.nothing, delta.files, delta.size, len(delta.doomed))
