"""A large sync to several hosts: over this machine's uplink once, then from host to host."""

import fcntl
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from ipexctl.act.context import Context, Emit
from ipexctl.act.sessions import RemoteError
from ipexctl.act.transfer.send import ARCHIVE, TREE_END, hash_file, install_stored_tree
from ipexctl.act.transfer.source_tree import SMALL_FILE_LIMIT, Packer, SourceChangedError, check_unchanged
from ipexctl.decide.checks.network import select_interfaces
from ipexctl.decide.planning.sync import SyncPlan, format_manifest
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import HostFailed, Message, StepEnded, Workflow
from ipexctl.model.facts import HostFacts
from ipexctl.model.hosts import Inventory, Link, LinkError
from ipexctl.model.text import format_size, group_pairs, pluralize, printable
from ipexctl.model.trees import FileTree
from ipexctl.protocol.paths import PART
from ipexctl.protocol.session import Nothing
from ipexctl.store.private_files import make_private_directories, remove_directories
from ipexctl.store.record import is_directory_in_use
from ipexctl.verbs.common.probe import probe_hosts
from ipexctl.verbs.common.relay import Artifact, RelaySessions, distribute_artifacts, order_by_delay
from ipexctl.verbs.doctor.host_sessions import find_pythons

_RELAY_SIZE = 64 << 20  # bytes for one host from which on they go from host to host


@dataclass
class SyncRelay(RelaySessions):
    """Sends ``tree``, of which each host needs its plan. ``own`` begins the names of this sync's directories there."""

    tree: FileTree
    plans: Mapping[str, SyncPlan]
    own: str
    program: ClassVar = "relay"
    step: ClassVar = "send"

    @property
    def store(self) -> str:
        """Returns the store's name in the destination: like that of any private directory, but for the process on the
        host (0), which a store outlives, so that the next sync takes it over or removes it."""
        return f"{PART}{self.own}-0"

    def locate_store(self, host: str) -> str:
        return f"{self.plans[host].path}/{self.store}"

    def begin(self, link: Link, python: str) -> bool:
        """Opens the store of a host; False where there can be none."""
        host = link.host.name
        earlier = [name for name in self.plans[host].parts if name.endswith("-0")]
        try:
            self.open(link, python)
            self.call(host, "open_store", Nothing, store=self.locate_store(host), earlier=earlier)
        except (LinkError, RemoteError):
            return False
        return True

    def list_artifacts(self, names: Sequence[str], spool: Path) -> dict[str, list[Artifact]]:
        """Returns the files of each host: an archive of what is small, and each large file. Raises `OSError`,
        `SourceChangedError`."""
        packer, sums, artifacts = Packer(self.tree), dict[str, str](), dict[str, list[Artifact]]()
        works = (((self.plans[name].send, self.plans[name].to_delete), name) for name in names)
        for (entries, to_delete), hosts in group_pairs(works).items():
            large = [entry for entry in entries if entry.kind == "f" and entry.size > SMALL_FILE_LIMIT]
            paths = {entry.path: self.tree.root / entry.path for entry in large}
            sums |= {name: hash_file(path) for name, path in paths.items() if name not in sums}
            stored = {name: hashlib.sha256(os.fsencode(name)).hexdigest() for name in paths}
            archive = spool / f"small-files-{len(artifacts)}"
            with archive.open("wb") as file:
                manifest = format_manifest(self.tree)
                file.writelines(packer.pack(entries, manifest=manifest, to_delete=to_delete, stored=stored))
                file.write(TREE_END)
            files = [Artifact(stored[it.path], paths[it.path], sums[it.path], it.size) for it in large]
            files.append(Artifact(ARCHIVE, archive, hash_file(archive), archive.stat().st_size))
            artifacts |= dict.fromkeys(hosts, files)
        return artifacts

    def install_tree(self, link: Link, _: Emit) -> str | Failure:
        """Puts what has arrived on a host into place."""
        plan = self.plans[link.host.name]
        try:
            check_unchanged(self.tree, plan.send)
        except SourceChangedError as change:
            return describe_change(link.host.name, change)
        install_stored_tree(link, plan.path, self.store, plan.size, own=self.own, old=plan.parts)
        return plan.summary()


def relay_tree(
    tree: FileTree,
    plans: Mapping[str, SyncPlan],
    inventory: Inventory,
    context: Context,
    facts: HostFacts | None,
    own: str,
) -> Workflow[dict[str, Failure | None]]:
    """Sends to those hosts that get much and can take part: returns them, with why it failed. A transfer that was
    interrupted goes on where it was."""
    large = Inventory(tuple(host for host in inventory if plans[host.name].size > _RELAY_SIZE))
    if len(large) < 2:
        return {}
    if facts is None:
        facts, _ = yield from probe_hosts(large, context)
    facts = {name: facts[name] for name in large.names if name in facts}
    pythons, addresses = find_pythons(facts), select_interfaces(large, facts)[0]
    relay = SyncRelay(large, context, {}, tree, plans, own)
    with make_spool(context.cache) as spool:
        try:
            artifacts = relay.list_artifacts([*pythons], spool)
        except (OSError, SourceChangedError):  # no room here; or sending it to each host says what has changed
            return {}
        try:
            return (
                yield from _run_relay(relay, artifacts, pythons, {name: it.address for name, it in addresses.items()})
            )
        finally:
            relay.close()


@contextmanager
def make_spool(cache: Path) -> Iterator[Path]:
    """Makes a directory for archives; those of syncs that were killed on this machine are removed. Containers may have
    one home and one name, and know nothing of each other's processes: each holds its own."""
    make_private_directories(cache)
    prefix = f"sync-{socket.gethostname()}-"
    for other in cache.glob(f"{prefix}*"):
        try:
            os.kill(int(other.name.removeprefix(prefix).partition("-")[0]), 0)
        except ProcessLookupError:
            if not is_directory_in_use(other):
                with suppress(OSError):
                    remove_directories([other])
        except (OSError, ValueError):  # another user's process, or a name that is not of a sync
            continue
    with tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-", dir=cache) as spool:
        held = os.open(spool, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # a home without locks
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield Path(spool)
        finally:
            os.close(held)


def _run_relay(
    relay: SyncRelay,
    artifacts: Mapping[str, Sequence[Artifact]],
    pythons: Mapping[str, str],
    addresses: Mapping[str, str],
) -> Workflow[dict[str, Failure | None]]:
    opened = yield from relay.run([*pythons], "open", lambda link, _: relay.begin(link, pythons[link.host.name]))
    names = order_by_delay(relay, [name for name, is_open in opened.items() if is_open])
    if len(names) < 2:
        yield from relay.request(names, "tidy", "remove_store", Nothing)
        return {}
    size = format_size(max(relay.plans[name].size for name in names))
    text = f"{size} for each of {pluralize(len(names), 'host')}: sent once, to {names[0]}, then host to host"
    yield Message(text, code="relay")
    groups = yield from relay.find_shared_fs_groups(names, "receives")
    sent = {group[0]: artifacts[group[0]] for group in groups}
    yield from distribute_artifacts(relay, sent, addresses)
    leaders = [name for name in sent if name not in relay.failed]
    done = yield from relay.run(leaders, "sync", relay.install_tree, outcome=lambda summary: ("changed", summary))
    yield from relay.request([*done], "tidy", "remove_store", Nothing)
    failures: dict[str, Failure | None] = {}
    for leader, *others in groups:
        failure = failures[leader] = None if leader in done else relay.failed[leader]
        for name in others:
            failures[name] = same = failure and replace(failure, host=name)
            yield HostFailed(same) if same else StepEnded(name, "sync", "changed", done[leader])
    return failures


def describe_change(host: str, change: SourceChangedError) -> Failure:
    """Returns the failure of a host whose files changed while they were sent."""
    names = ", ".join(printable(path) for path in change.paths[:5])
    return Failure(host, Kind.STEP, f"changed while it was sent: {names}", code="source-changed")
