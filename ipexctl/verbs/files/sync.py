"""``ipexctl sync``: copies a directory to all hosts; sends only what has changed."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.act.transfer import send as transfer
from ipexctl.act.transfer.receive import receive_files
from ipexctl.act.transfer.send import ProgressReporter
from ipexctl.act.transfer.source_tree import Packer, SourceChangedError, find_lfs_pointers, read_tree
from ipexctl.decide.planning import sync as planning
from ipexctl.decide.planning.ignore import DEFAULT, Ignored, compile_ignore
from ipexctl.decide.planning.sync import RemoteTree, SyncPlan
from ipexctl.model import tasks
from ipexctl.model.answers.files import FailedTransfer, SyncAnswer, SyncedHost
from ipexctl.model.errors import Failure, Kind, UsageError, choose_exit
from ipexctl.model.events import FilesLeftOut, HostFailed, Message, Planned, StepEnded, Workflow, finish_verb
from ipexctl.model.facts import HostFacts
from ipexctl.model.hosts import Host, Inventory, Link
from ipexctl.model.hub import parse_hub_reference
from ipexctl.model.json_values import Record
from ipexctl.model.text import join_names, pluralize, printable
from ipexctl.model.trees import FileTree
from ipexctl.protocol.paths import HUB
from ipexctl.store.private_files import open_regular_file
from ipexctl.verbs.common.select import make_started
from ipexctl.verbs.files.hub import find_snapshot
from ipexctl.verbs.files.project import compile_project_ignore, find_project, is_home_or_root, make_absolute
from ipexctl.verbs.files.relay import describe_change, relay_tree

_STEP = "sync"
_NAMED_LIMIT = 1000  # paths that a report looks at


class SyncSource(Record):
    """What is copied, and to where on each host. What is ``ignored`` is not: of the user's what ``left_out`` names, and
    ``own``, which is ipexctl's."""

    title: str
    tree: FileTree
    destinations: Mapping[str, str]
    ignored: Ignored
    own: tuple[str, ...] = ()
    left_out: Sequence[str] = ()
    is_project: bool = True


def sync(
    task: tasks.Sync, inventory: Inventory, context: Context, *, dry: bool = False, facts: HostFacts | None = None
) -> Workflow[dict[str, str | Failure]]:
    """Returns each host's absolute directory, or its failure. ``facts`` are those of the hosts, where they are known.
    Raises `UsageError` before any host is contacted."""
    reference = parse_hub_reference(task.source)
    if reference is None:
        source = _read_project(task, inventory, context)
        yield make_started("sync", f"{source.title} to {pluralize(len(inventory), 'host')}", inventory)
    else:
        destinations = choose_destinations(f"{task.workdir or HUB}/{reference.folder}", inventory)
        yield make_started("sync", f"{task.source} to {pluralize(len(inventory), 'host')}", inventory)
        snapshot = find_snapshot(reference, task.exclude, context.cache)
        if dry:
            plan = snapshot.format_plan(destinations)
            yield Planned("sync", plan)
            yield from finish_verb("sync", SyncAnswer(True, (), plan))
            return {}
        yield from snapshot.download()
        tree = read_tree(snapshot.root, snapshot.is_ignored)
        variables = f"--env HF_HUB_CACHE={task.workdir} --env HF_HUB_OFFLINE=1"
        text = f"ranks find it with {variables}" if task.workdir else "later runs there look for models in it alone"
        yield Message(text if task.workdir else f"{text}; --env HF_HUB_OFFLINE=0 lets them download", code="hub")
        source = SyncSource(snapshot.title, tree, destinations, snapshot.is_ignored, is_project=False)
    return (yield from _copy(source, task, inventory, context, dry=dry, facts=facts))


def _read_project(task: tasks.Sync, inventory: Inventory, context: Context) -> SyncSource:
    source = make_absolute(task.source)
    if not source.exists():
        raise UsageError(f"the source {printable(task.source, 200)} does not exist")
    project = find_project(task.source, task.project, task.exclude)
    root = source if source.is_dir() else project.root  # of a script
    if is_home_or_root(root):
        reasons, hint = ["it is the home directory or the root directory"], "put the script into a directory of its own"
        raise UsageError(f"{printable(str(root), 200)} would be copied to every host", reasons=reasons, hint=hint)
    part = "" if root == project.root else project.part
    excluded, own = compile_project_ignore(root, task.exclude), _find_own_paths(root, context)
    default, left_out = compile_ignore(DEFAULT), list[str]()

    def ignored(path: str, directory: bool) -> bool:
        return path in own or bool(excluded(path, directory))

    def note_ignored(path: str, directory: bool) -> bool:
        is_out = ignored(path, directory)
        if is_out and not default(path, directory):
            left_out.append(f"{path}/" if directory else path)
        return is_out

    destinations = choose_destinations(task.workdir, inventory, project.name, part)
    tree = read_tree(root, note_ignored)
    if task.delete and not tree.entries:
        raise UsageError(f"{task.source} is empty, and --delete would remove everything on the hosts")
    return SyncSource(printable(str(root), 200), tree, destinations, ignored, own, left_out)


def choose_destinations(workdir: str | None, inventory: Inventory, name: str = "", part: str = "") -> dict[str, str]:
    """Returns where each host gets the files. Raises `UsageError` for what is no directory to write to."""
    destinations = {host.name: planning.choose_destination(workdir, host, name, part) for host in inventory}
    if reasons := planning.find_invalid_destinations(destinations):
        what, hint = "the working directory on the hosts cannot be used", "name another one with --workdir"
        raise UsageError(what, reasons=reasons, hint=hint)
    return destinations


def _copy(
    source: SyncSource, task: tasks.Sync, inventory: Inventory, context: Context, *, dry: bool, facts: HostFacts | None
) -> Workflow[dict[str, str | Failure]]:
    tree, destinations = source.tree, source.destinations
    if tree.skipped:
        names = ", ".join(printable(name) for name in tree.skipped[:5])
        yield Message(f"not copied, because they are not files: {names}", "warning", code="no-file")

    remote_trees, failures = yield from run_on_hosts(
        context, inventory, "compare", lambda link, _: _inspect_destination(link, destinations[link.host.name])
    )
    plans: dict[str, SyncPlan] = {}
    sender = _hash_origin(tree)
    for name, remote_tree in remote_trees.items():
        stale = planning.find_stale_directories(remote_tree, sender, _is_other_process)
        plans[name] = planning.plan_sync(tree, remote_tree, delete=task.delete, ignored=source.ignored, stale=stale)
    plan_text = planning.format_plans(plans, source.title, source.own)
    yield Planned("sync", plan_text)
    if source.left_out:
        yield FilesLeftOut({path: os.path.relpath(tree.root / path) for path in source.left_out[:_NAMED_LIMIT]})
    if task.diff:
        yield from _report_differences(tree, plans, remote_trees, inventory, context)
    for name, plan in plans.items():
        if plan.blocked:
            failures[name] = Failure(name, Kind.STEP, "; ".join(plan.blocked), code="blocked")
            yield HostFailed(failures[name])
        elif plan.previous_source:
            yield Message(planning.describe_other_source(plan), "warning", name, "other-source")
    reachable = [host for host in inventory if host.name in plans and host.name not in failures]
    for text in planning.describe_transfer(plans, source.title, source.left_out):
        yield Message(text, code="transfer")
    if source.is_project and (large := planning.describe_large_transfer(plans)):
        yield Message(large, "warning", code="large")
    if pointers := find_lfs_pointers(tree, {entry for plan in plans.values() for entry in plan.send}):
        names = join_names([printable(path, 100) for path in pointers], 3)
        text = f"without its data, a pointer of Git LFS: {names}; git lfs pull gets it"
        yield Message(text, "warning", code="lfs")
    if not dry:
        failures |= yield from _send_trees(tree, plans, reachable, context, facts)
    done = {host.name: failures.get(host.name) or plans[host.name].path for host in inventory}
    answers: list[SyncedHost | FailedTransfer] = []
    for name, result in done.items():
        if isinstance(result, Failure):
            answers.append(FailedTransfer(name, result.what, result.code))
        else:
            plan = plans[name]
            answers.append(SyncedHost(name, result, not plan.is_empty, plan.files, plan.size, len(plan.to_delete)))
    answer = SyncAnswer(dry, tuple(answers), plan_text if dry else None)
    yield from finish_verb("sync", answer, choose_exit(failures.values()))
    return done


def _find_own_paths(root: Path, context: Context) -> tuple[str, ...]:
    """Returns the directories of ipexctl itself in the tree, relative to ``root``: they change while it is sent."""
    top, own = root.resolve(), [Path(os.path.realpath(each)) for each in (context.state, context.cache)]
    return tuple(path.relative_to(top).as_posix() for path in own if top in path.parents and path.is_dir())


def _send_trees(
    tree: FileTree, plans: dict[str, SyncPlan], reachable: Sequence[Host], context: Context, facts: HostFacts | None
) -> Workflow[dict[str, Failure]]:
    """Sends each host its changed files; returns why some have not got them. Does not contact hosts that are up to date
    and have no remains of a sync."""
    outdated = [host for host in reachable if plans[host.name].parts or not plans[host.name].is_empty]
    for host in reachable:
        if host not in outdated:
            yield StepEnded(host.name, _STEP, "ok", plans[host.name].summary())
    packer, manifest = Packer(tree), planning.format_manifest(tree)
    own = f"{_hash_origin(tree)}-{os.getpid()}"
    relayed = yield from relay_tree(tree, plans, Inventory(tuple(outdated)), context, facts, own)
    outdated = [host for host in outdated if host.name not in relayed]

    def send_tree(link: Link, emit: Emit) -> str | Failure:
        plan = plans[link.host.name]
        progress = ProgressReporter(link.host.name, _STEP, plan.size, emit)
        pieces = progress.count_chunks(packer.pack(plan.send, manifest=manifest, to_delete=plan.to_delete))
        try:
            transfer.install_tree(link, plan.path, pieces, own=own, old=plan.parts)
        except SourceChangedError as change:
            return describe_change(link.host.name, change)
        progress.report(always=True)
        return plan.summary()

    done = SyncPlan("").summary()
    _, failures = yield from run_on_hosts(
        context, outdated, _STEP, send_tree, outcome=lambda text: ("ok" if text == done else "changed", text)
    )
    return failures | {name: failure for name, failure in relayed.items() if failure}


def _hash_origin(tree: FileTree) -> str:
    """Begins the names of all syncs of this source for their private directories on hosts; a process id follows."""
    return hashlib.sha256(os.fsencode(tree.origin)).hexdigest()[:12]


def _report_differences(
    tree: FileTree,
    plans: dict[str, SyncPlan],
    remote_trees: Mapping[str, RemoteTree],
    inventory: Inventory,
    context: Context,
) -> Workflow[None]:
    """Shows how the text files to be sent differ from those on the hosts. A host that cannot say is no failure."""
    entries = {
        name: {f"./{entry.path}": entry for entry in planning.select_comparable_files(plan, remote_trees[name])}
        for name, plan in plans.items()
    }
    hosts = [host for host in inventory if entries.get(host.name)]

    def compare_texts(link: Link, _: Emit) -> list[str]:
        wanted = entries[link.host.name]
        texts = []
        most = dict.fromkeys(wanted, planning.DIFFABLE + 1)
        for name, size, chunks in receive_files(link, plans[link.host.name].path, most):
            if size <= planning.DIFFABLE:
                entry, theirs = wanted[name], b"".join(chunks)
                with suppress(OSError):  # it has gone, or become a link or a pipe, meanwhile: the transfer says so
                    with open_regular_file(tree.root / entry.path) as file:
                        ours = file.read(planning.DIFFABLE + 1)
                    texts.append(planning.format_diff(entry.path, theirs, ours))
        return texts

    differences, _ = yield from run_on_hosts(context, hosts, "compare texts", compare_texts)
    for names, text in planning.group_by_hosts(differences):
        yield Message(f"{', '.join(names)}:\n{text}")


def _inspect_destination(link: Link, where: str) -> RemoteTree | Failure:
    try:
        return planning.parse_remote_tree(transfer.list_tree(link, where, send=True))
    except ValueError:
        what = f"malformed file list of {printable(where)} from the host"
        return Failure(link.host.name, Kind.STEP, what, code="malformed")


def _is_other_process(pid: int) -> bool:
    return pid != os.getpid() and Path(f"/proc/{pid}").exists()
