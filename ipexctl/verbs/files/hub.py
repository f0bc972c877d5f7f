"""``ipexctl sync hf:ORG/MODEL``: a snapshot of a Hugging Face hub, downloaded once, as a tree that is copied to hosts.

The tree is that of a cache of the hub with this snapshot alone, whose ``main`` it is."""

from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path

from ipexctl.act.hub import Snapshot, describe_snapshot, download_files
from ipexctl.act.threads import start_thread
from ipexctl.decide.planning.ignore import Ignored, compile_ignore
from ipexctl.model.events import Progress, StepEnded, StepStarted, Workflow
from ipexctl.model.hub import HubReference
from ipexctl.model.json_values import Record
from ipexctl.model.text import fold_names, format_size, group_pairs, pluralize
from ipexctl.store.private_files import make_private_directories, measure_tree, refuse_os_errors, remove_directories

_STEP = "download"
_INTERVAL = 0.2  # seconds between two looks at what has arrived
_OWN = ".cache"  # beside the files: what huggingface_hub notes of its downloads


class StagedSnapshot(Record):
    """A snapshot on its way into ``root``. ``names`` are its files without those that the user leaves out."""

    reference: HubReference
    snapshot: Snapshot
    root: Path
    names: tuple[str, ...]
    excluded: Ignored

    @property
    def title(self) -> str:
        return f"{self.reference.repository}@{self.snapshot.commit[:12]}"

    @property
    def place(self) -> str:
        return f"snapshots/{self.snapshot.commit}"

    @property
    def size(self) -> int:
        return sum(self.snapshot.files[name] for name in self.names)

    def is_ignored(self, path: str, directory: bool) -> bool:
        """Returns whether a path of the tree is no part of the snapshot, or left out."""
        name = path.removeprefix(f"{self.place}/")
        return name != path and (name == _OWN or bool(self.excluded(name, directory)))

    def format_plan(self, destinations: Mapping[str, str]) -> str:
        """Returns what is downloaded, and where it goes on hosts."""
        total = f"{pluralize(len(self.names), 'file')}, {format_size(self.size)}, from {self.snapshot.address}"
        lines = [f"{self.title}: {total}"]
        for place, hosts in group_pairs((place, host) for host, place in destinations.items()).items():
            lines.append(f"{fold_names(hosts)}: → {place}")
        return "\n".join(
            [*lines, *(f"  send {name} ({format_size(self.snapshot.files[name])})" for name in self.names)]
        )

    def download(self) -> Workflow[None]:
        """Downloads what is not there yet. Raises `UsageError`."""
        directory, refs = self.root / self.place, self.root / "refs"
        if not directory.is_dir():  # another commit than before
            with refuse_os_errors(self.root, "cannot be removed"), suppress(FileNotFoundError):
                remove_directories([self.root])
        make_private_directories(directory)
        yield StepStarted("", _STEP)
        done = start_thread(lambda: download_files(self.reference, self.snapshot, self.names, directory))
        while not wait([done], _INTERVAL).done:
            arrived, _ = measure_tree(directory)
            yield Progress("", _STEP, min(arrived, self.size), self.size, "B", f"from {self.snapshot.address}")
        done.result()
        for name in {"main", self.reference.revision} - {self.snapshot.commit}:
            path = refs / name
            make_private_directories(path.parent)
            if not path.is_file() or path.read_text() != self.snapshot.commit:
                path.write_text(self.snapshot.commit)
        yield StepEnded("", _STEP, "ok", f"{pluralize(len(self.names), 'file')}, {format_size(self.size)}")


def find_snapshot(reference: HubReference, exclude: Sequence[str], cache: Path) -> StagedSnapshot:
    """Asks the hub. Raises `UsageError`."""
    snapshot, excluded = describe_snapshot(reference), compile_ignore(exclude)

    def is_left_out(name: str) -> bool:
        parts = name.split("/")
        ends = range(1, len(parts) + 1)
        return parts[0] == _OWN or any(excluded("/".join(parts[:end]), end < len(parts)) for end in ends)

    names = tuple(name for name in sorted(snapshot.files) if not is_left_out(name))
    return StagedSnapshot(reference, snapshot, cache / "hub" / reference.folder, names, excluded)
