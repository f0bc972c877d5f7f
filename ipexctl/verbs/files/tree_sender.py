"""Sends hosts what their plans name: large changed files by rsync, everything else as one tar stream."""

import hashlib
import logging
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from ipexctl.act.background import begin_in_background
from ipexctl.act.fanout import Emit
from ipexctl.act.transfer import rsync
from ipexctl.act.transfer import send as transfer
from ipexctl.act.transfer.recorded_delta import RecordedDelta, Recording
from ipexctl.act.transfer.send import ProgressReporter
from ipexctl.act.transfer.source_tree import Packer, SourceChangedError, find_changed_paths
from ipexctl.decide.planning import sync as planning
from ipexctl.decide.planning.sync import SyncPlan
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import Message
from ipexctl.model.links import Link, LinkError
from ipexctl.model.tasks import Transfer
from ipexctl.model.text import format_size, printable
from ipexctl.model.trees import Entry, Tree

STEP = "sync"
_MOST_RECORDED = 4 << 30  # bytes of all records of one sync: temporary files may lie in memory
_log = logging.getLogger(__name__)


class TreeSender(AbstractContextManager["TreeSender"]):
    """Sends one tree to many hosts, each in a thread of its own. Close it: it holds records of what rsync has sent."""

    def __init__(self, tree: Tree, plans: Mapping[str, SyncPlan], transfer: Transfer) -> None:
        """``plans`` by host name: of all hosts that will be sent something."""
        self._tree, self._plans, self._transfer = tree, plans, transfer
        self._packer, self._manifest = Packer(tree), planning.format_manifest(tree)
        self._ending = ExitStack()
        self._deltas = self._plan_records()
        self._closed = threading.Event()
        if any(plan.by_rsync for plan in plans.values()):
            begin_in_background(self._sum_ahead)

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._ending.close()

    def send(self, link: Link, emit: Emit) -> str | Failure:
        """Sends a host what it needs; returns what was sent, for the screen. Raises `LinkError`."""
        plan = self._plans[link.host.name]
        try:
            return self._send_planned(link, plan, emit)
        except rsync.RsyncError as why:
            return Failure(link.host.name, Kind.STEP, str(why), code="rsync")
        except SourceChangedError as change:
            names = ", ".join(printable(path) for path in change.paths[:5])
            return Failure(link.host.name, Kind.STEP, f"changed while it was sent: {names}", code="source-changed")

    def _sum_ahead(self) -> None:
        for by_rsync in dict.fromkeys(plan.by_rsync for plan in self._plans.values()):
            if self._closed.is_set():
                return
            self._packer.sum_files(by_rsync)

    def _plan_records(self) -> dict[tuple[object, ...], RecordedDelta]:
        """By old files: one for those that several hosts have. A record may become as large as the new files: none is
        made where it would take much of the space for temporary files."""
        hosts = Counter(plan.old_files for plan in self._plans.values() if plan.by_rsync)
        sizes = {plan.old_files: plan.rsync_size for plan in self._plans.values() if hosts[plan.old_files] > 1}
        if not sizes:
            return {}
        temporary = tempfile.TemporaryDirectory(prefix="ipexctl-", ignore_cleanup_errors=True)
        directory = Path(self._ending.enter_context(temporary))
        free, needed = shutil.disk_usage(directory).free, sum(sizes.values())
        if needed > min(_MOST_RECORDED, free // 4):
            _log.info("nothing is recorded for other hosts: up to %d bytes, %d free in %s", needed, free, directory)
            return {}
        return {old: RecordedDelta(directory / str(number), size) for number, (old, size) in enumerate(sizes.items())}

    def _send_planned(self, link: Link, plan: SyncPlan, emit: Emit) -> str:
        progress = ProgressReporter(link.host.name, STEP, plan.size, emit)
        if not plan.by_rsync:
            return self._send_stream(link, plan, progress)
        delta = self._deltas.get(plan.old_files)
        turn = delta.take_turn() if delta else None
        if isinstance(turn, Recording):
            with turn:
                return self._send_by_rsync(link, plan, progress, turn)
        if turn is not None:
            try:
                return self._send_stream(link, plan, progress, turn)
            except LinkError as error:
                if error.failure.code != transfer.UNFIT_RECORD:
                    raise
                _log.info("%s: rsync sends it the changes by itself: %s", link.host.name, error.failure.what)
                progress.done = 0
        return self._send_by_rsync(link, plan, progress, None)

    def _send_stream(self, link: Link, plan: SyncPlan, progress: ProgressReporter, record: Path | None = None) -> str:
        """Sends all files in the tar stream, or instead of large ones the record of their changes."""
        saved = 0

        def pack() -> Iterator[bytes]:
            nonlocal saved
            if record is None:
                yield from progress.count_chunks(self._pack_files(plan, ()))
                return
            yield from progress.count_chunks(self._packer.pack_record(record))
            saved = max(0, plan.rsync_size - progress.done)
            progress.done = plan.rsync_size
            yield from progress.count_chunks(self._pack_files(plan, plan.by_rsync))

        self._install(link, plan, pack())
        progress.report(always=True)
        return _format_outcome(plan, saved)

    def _send_by_rsync(
        self, link: Link, plan: SyncPlan, progress: ProgressReporter, recording: Recording | None
    ) -> str:
        """Sends large files by rsync, and the others in the tar stream."""
        saved = 0

        def pack(into: str) -> Iterator[bytes]:
            nonlocal saved
            rsynced = plan.by_rsync
            try:
                self._run_rsync(link, rsynced, into, progress, recording)
            except rsync.RsyncError as why:
                if changed := find_changed_paths(self._tree, rsynced):
                    raise SourceChangedError(changed) from None
                if self._transfer == "rsync":
                    raise
                progress.emit(Message(f"{why}; sent without rsync", "warning", link.host.name, "no-rsync"))
                progress.done = 0
                rsynced = ()
            else:
                saved = max(0, plan.rsync_size - progress.done)
                progress.done = plan.rsync_size
            yield from progress.count_chunks(self._pack_files(plan, rsynced))

        self._install(link, plan, pack)
        progress.report(always=True)
        return _format_outcome(plan, saved)

    def _run_rsync(
        self, link: Link, rsynced: tuple[Entry, ...], into: str, progress: ProgressReporter, recording: Recording | None
    ) -> None:
        """Sends these files by rsync, once more without a record if that fails. Raises `RsyncError`."""
        root, names = self._tree.root, [entry.path for entry in rsynced]
        if recording is None:
            rsync.send_files(link, root, names, into, progress.add_bytes)
            return

        def record(size: int) -> None:
            progress.add_bytes(size)
            recording.add_bytes(size)

        try:
            rsync.send_files(link, root, names, into, record, record=recording.path)
        except rsync.RsyncError as why:  # an old rsync may know no XXH128
            _log.info("%s: rsync cannot record: %s", link.host.name, why)
            progress.done = 0
            rsync.send_files(link, root, names, into, progress.add_bytes)
            recording.end(complete=False)  # if that works, it was the recording that did not
        else:
            recording.end(complete=True)

    def _pack_files(self, plan: SyncPlan, rsynced: tuple[Entry, ...]) -> Iterator[bytes]:
        """The tar stream of all files but those."""
        done = set(rsynced)
        entries = tuple(entry for entry in plan.send if entry not in done) if done else plan.send
        return self._packer.pack(entries, manifest=self._manifest, to_delete=plan.to_delete, by_rsync=rsynced)

    def _install(self, link: Link, plan: SyncPlan, archive: transfer.Archive) -> None:
        own = make_transfer_name(self._tree)
        transfer.install_tree(link, plan.path, archive, own=own, old=plan.parts, rebuilt=plan.rsync_size)


def make_transfer_name(tree: Tree) -> str:
    """The name of this sync's private directories on the hosts: a hash of the source, and the process id."""
    return f"{hashlib.sha256(os.fsencode(tree.origin)).hexdigest()[:12]}-{os.getpid()}"


def _format_outcome(plan: SyncPlan, saved: int) -> str:
    return plan.summary() + (f" (rsync saved {format_size(saved)})" if saved else "")
