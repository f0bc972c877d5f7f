"""What must be sent to a host, decided from the source and the host's listing; how text files there differ."""

import difflib
import json
import os
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ipexctl.decide.planning.ignore import Ignored
from ipexctl.model.hosts import Host
from ipexctl.model.json_values import Record
from ipexctl.model.text import fold_names, format_size, group_pairs, join_names, pluralize, printable
from ipexctl.model.trees import FileTree, TreeEntry
from ipexctl.protocol.paths import MANIFEST, PART

_VERSION = 1
_SYSTEM = {
    "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "media", "mnt", "opt",
    "proc", "root", "run", "sbin", "srv", "sys", "tmp", "usr", "var",
}  # fmt: skip
_MANIFEST_ITEMS = 5_000_000  # commas of a manifest: a file has four, and a list of files at most 1,000,000
PATH_LIMIT = 4096  # bytes of a path that a system takes
_SHOWN_OBSTACLES = 20  # obstacles named in one failure
_LARGE_TRANSFER = 100 << 20  # bytes for one host, from which on the user is warned before they are sent
DIFFABLE = 256 << 10  # bytes of a file that is compared line by line
DIFF_FILES = 20  # compared per host
_LINE_LIMIT = 10_000  # of both files: the comparison takes the square of them
_SHOWN_LINES = 200  # shown per file
_SHOWN_WIDTH = 200  # characters shown of a line
_MODULES = (".py", ".so")  # what Python would import still


class RemoteEntry(Record):
    kind: str  # f d l, or another letter of find
    mode: int
    size: int
    mtime: int
    target: str = ""


class RemoteTree(Record):
    """A destination as its host describes it. ``manifest`` is what the last sync left there: None without one."""

    path: str
    manifest: Mapping[str, Any] | None
    entries: Mapping[str, RemoteEntry]
    parts: tuple[str, ...] = ()  # private directories of pushes that were interrupted, or go on right now


class SyncPlan(Record):
    """What one host needs. ``blocked`` says why nothing may be sent there."""

    path: str
    send: tuple[TreeEntry, ...] = ()
    to_delete: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    needs_manifest: bool = False  # no usable one yet: it is written even if nothing is sent
    previous_source: str = ""  # another directory, of which the destination was a copy

    @property
    def files(self) -> int:
        return sum(entry.kind != "d" for entry in self.send)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.send if entry.kind == "f")

    @property
    def is_empty(self) -> bool:
        return not (self.send or self.to_delete or self.needs_manifest)

    def summary(self) -> str:
        """For the screen: ``12 files, 34 KiB``."""
        words = []
        if self.send:
            words.append(f"{pluralize(self.files, 'file')}, {format_size(self.size)}" if self.files else "directories")
        if self.to_delete:
            words.append(f"{len(self.to_delete)} removed")
        return ", ".join(words) or "nothing to do"


def choose_destination(task_workdir: str | None, host: Host, name: str, part: str = "") -> str:
    """Where ``part`` of the project ``name`` goes on a host: absolute, or relative to the home directory there. What
    the command or the playbook says comes before what the hostfile says, as for ``venv``, and is the place itself."""
    where = task_workdir
    if where is None:
        where = join_part(host.vars.get("workdir", f"ipexctl/{name}"), part)
    return where[2:] if where.startswith("~/") else where


def join_part(place: str, part: str) -> str:
    """Returns where a part of the project ("": all of it) is on a host that has the project in ``place``."""
    return f"{place}/{part}" if part else place


def find_invalid_destinations(destinations: Mapping[str, str]) -> list[str]:
    """Returns which hosts' destinations are refused before anything is contacted, and why."""
    faults = {host: validate_destination(where) for host, where in destinations.items()}
    return [f"{host}: {destinations[host]!r} {why}" for host, why in faults.items() if why]


def validate_destination(where: str) -> str:
    """Why a destination is refused before anything is contacted; "" for a good one."""
    if where.startswith("~"):
        return "has something unexpanded in it"
    if why := find_path_fault(where):
        return why
    if posixpath.normpath(where) in {"/", ".", "//"}:
        return "is not a directory of its own"
    if posixpath.normpath(where).strip("/") in _SYSTEM:
        return "is a directory of the system"
    return ""


def find_path_fault(path: str) -> str:
    """Why no path on a host may look like this, whatever it is for; "" for a good one."""
    if not path.strip():
        return "is empty"
    if "\0" in path or "\n" in path:
        return "has a control character in it"
    if "$" in path or (path.startswith("~") and not path.startswith("~/")):
        return "has something unexpanded in it"
    return "has '..' in it" if ".." in path.split("/") else ""


_STATUS = re.compile(rb"(\S) ([0-7]{1,7}) ([0-9]{1,18}) (-?[0-9]{1,19})")


def parse_status(words: bytes) -> tuple[str, int, int, int]:
    """Returns kind, mode, size and time (whole seconds) as a host lists a file. Raises `ValueError` for what no file
    system has."""
    match = _STATUS.fullmatch(words)
    if match is None:
        raise ValueError("a file without a size or a time")
    return match[1].decode("ascii"), int(match[2], 8), int(match[3]), int(match[4])


def parse_remote_tree(data: bytes) -> RemoteTree:
    """Parses the output of `act.transfer.send.list_tree`. Raises `ValueError` if it is malformed."""
    path, has_manifest, manifest, *records = data.split(b"\0")
    if not records or records.pop() or len(records) % 3:
        raise ValueError("a list of files was cut")
    entries: dict[str, RemoteEntry] = {}
    parts: list[str] = []
    for words, name, target in zip(records[::3], records[1::3], records[2::3], strict=True):
        kind, mode, size, mtime = parse_status(words)
        if len(name) > PATH_LIMIT or name.startswith(b"/"):
            raise ValueError("a path that no system takes")
        if kind == "p" and not mode:
            parts.append(os.fsdecode(name))
        else:
            entries[os.fsdecode(name)] = RemoteEntry(kind, mode, size, mtime, os.fsdecode(target))
    if not entries.keys() >= {*map(posixpath.dirname, entries)} - {""}:
        raise ValueError("a file in a directory that is not there")
    return RemoteTree(os.fsdecode(path), _parse_manifest(manifest) if has_manifest else None, entries, tuple(parts))


def _parse_manifest(data: bytes) -> Mapping[str, Any] | None:
    if data.count(b",") > _MANIFEST_ITEMS:
        return None
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError):
        return None
    good = isinstance(manifest, dict) and manifest.get("ipexctl") == _VERSION
    links = manifest.get("links", []) if good else None
    if not isinstance(links, list) or not all(isinstance(link, str) for link in links):
        return None
    return manifest if isinstance(manifest.get("files"), dict) else None


def format_manifest(tree: FileTree) -> bytes:
    """Returns what a sync leaves in the destination: what was sent, so that the next one can tell what has changed."""
    files = {entry.path: [*entry.stamp[:3], entry.executable] for entry in tree.entries if entry.kind == "f"}
    links = [entry.path for entry in tree.entries if entry.kind == "l"]
    return json.dumps(
        {"ipexctl": _VERSION, "from": tree.origin, "files": files, "links": links}, separators=(",", ":")
    ).encode()


def plan_sync(
    tree: FileTree, remote_tree: RemoteTree, *, delete: bool, ignored: Ignored, stale: tuple[str, ...] = ()
) -> SyncPlan:
    """Returns what must be sent, and what goes: modules that an earlier sync brought and the source has no more; with
    ``delete`` all that is not in it; never what ``ignored`` says is left out of syncs. ``stale`` are those of
    ``remote_tree.parts`` that nobody writes any more."""
    manifest = remote_tree.manifest or {}
    same_source = manifest.get("from") == tree.origin
    stamps = manifest.get("files", {}) if same_source else {}
    links = set(manifest.get("links", ()))
    path = printable(remote_tree.path)
    blocked: list[str] = []
    send: list[TreeEntry] = []
    for entry in tree.entries:
        remote = remote_tree.entries.get(entry.path)
        stamp = [*entry.stamp[:3], entry.executable]
        if remote is None:
            send.append(entry)
        elif entry.kind == "d":
            if remote.kind != "d":
                blocked.append(_describe_conflict(remote_tree, entry.path, remote, "a directory"))
        elif remote.kind == "d" and not delete:
            blocked.append(_describe_conflict(remote_tree, entry.path, remote, "a file"))
        elif remote.kind == "d":
            send.append(entry)
        elif remote.kind == "l" and entry.path not in links:
            blocked.append(f"{path}/{printable(entry.path)} is a symbolic link that ipexctl did not make")
        elif entry.kind == "l":
            if remote.kind != "l" or remote.target != entry.target:
                send.append(entry)
        elif (
            remote.kind != "f"
            or stamps.get(entry.path) != stamp
            or (remote.size, remote.mtime, bool(remote.mode & 0o100)) != (entry.size, entry.mtime, entry.executable)
        ):
            send.append(entry)
    to_delete = () if delete else _find_removed_modules(remote_tree, tree, stamps, ignored)
    if delete and not blocked:
        if remote_tree.manifest is None and any(name != MANIFEST for name in remote_tree.entries):
            blocked.append(f"{path} has files and no manifest of an earlier sync: --delete is refused")
        else:
            to_delete = _find_deletions(remote_tree, tree, ignored)
        if to_delete and remote_tree.manifest is not None and not same_source:
            blocked.append(
                f"{path} was last synced from {_format_manifest_source(manifest)}: run sync once without --delete first"
            )
    if blocked:
        more = len(blocked) - _SHOWN_OBSTACLES
        return SyncPlan(
            remote_tree.path, blocked=(*blocked[:_SHOWN_OBSTACLES], *([f"and {more} more"] if more > 0 else []))
        )
    return SyncPlan(
        remote_tree.path,
        _add_parent_directories(tree, send),
        to_delete,
        stale,
        needs_manifest=not same_source,
        previous_source="" if remote_tree.manifest is None or same_source else _format_manifest_source(manifest),
    )


def _format_manifest_source(manifest: Mapping[str, Any]) -> str:
    return printable(str(manifest.get("from", "elsewhere")), 200)


def _describe_conflict(remote_tree: RemoteTree, path: str, remote: RemoteEntry, local_kind: str) -> str:
    kind = {"d": "a directory", "f": "a file", "l": "a symbolic link"}.get(remote.kind, "something else")
    return f"{printable(remote_tree.path)}/{printable(path)} is {kind} there, {local_kind} here"


def _add_parent_directories(tree: FileTree, send: list[TreeEntry]) -> tuple[TreeEntry, ...]:
    """Returns the directories of what is sent come along, because it is unpacked beside them first."""
    paths = {entry.path for entry in send}
    for path in [*paths]:
        while path := posixpath.dirname(path):
            paths.add(path)
    return tuple(entry for entry in tree.entries if entry.path in paths)


def _find_removed_modules(
    remote_tree: RemoteTree, tree: FileTree, stamps: Mapping[str, object], ignored: Ignored
) -> tuple[str, ...]:
    """Returns the modules that are as an earlier sync of this source left them (``stamps``), and are in it no more."""
    candidates = {path for path in stamps if path.endswith(_MODULES)} & remote_tree.entries.keys()
    modules = list[str]()
    for path in candidates - {entry.path for entry in tree.entries}:
        remote = remote_tree.entries[path]
        match stamps[path]:
            case [int(size), int(time), *_]:
                is_ours = (remote.kind, remote.size, remote.mtime) == ("f", size, max(0, time // 10**9))
                if is_ours and not ignored(path, False):
                    modules.append(path)
    return tuple(sorted(modules))


def _find_deletions(remote_tree: RemoteTree, tree: FileTree, ignored: Ignored) -> tuple[str, ...]:
    """Returns the topmost things to remove: a directory only if everything in it goes."""
    sent = {entry.path for entry in tree.entries}
    safe, untouched = {MANIFEST}, {MANIFEST} - sent  # of what is untouched all that is below it is safe
    files = {entry.path for entry in tree.entries if entry.kind != "d"}
    for path in sorted(remote_tree.entries):  # directories come before what is in them
        is_directory = remote_tree.entries[path].kind == "d"
        below_safe = posixpath.dirname(path) in untouched
        wrong_kind = is_directory and path in files
        if below_safe or (path in sent and not wrong_kind) or ignored(path, is_directory):
            safe.add(path)
            if below_safe or path not in sent:
                untouched.add(path)
    holding = set[str]()
    for path in safe:
        while (path := posixpath.dirname(path)) and path not in holding:
            holding.add(path)
    gone = {path for path in remote_tree.entries if path not in safe and path not in holding}
    return tuple(sorted(path for path in gone if posixpath.dirname(path) not in gone))


def find_stale_directories(remote_tree: RemoteTree, sender: str, is_alive: Callable[[int], bool]) -> tuple[str, ...]:
    """Private directories of ``sender`` whose process has ended. A name is PART, sender, its pid, the host's."""
    names = re.compile(re.escape(PART) + r"([0-9a-f]+)-([0-9]{1,18})-([0-9]+)")
    matches = [match for name in remote_tree.parts if (match := names.fullmatch(name))]
    return tuple(match[0] for match in matches if match[1] == sender and not is_alive(int(match[2])))


def format_plans(plans: Mapping[str, SyncPlan], source: str, own: Sequence[str] = ()) -> str:
    """Returns what is sent where, hosts with the same work together. The dry run prints it. ``own`` are paths in the
    source that are left out because they are ipexctl's."""
    works = (((p.path, p.send, p.to_delete, p.blocked), name) for name, p in plans.items())
    lines: list[str] = []
    for (path, send, to_delete, blocked), names in group_pairs(works).items():
        lines.append(f"{printable(fold_names(names), 400)}: {printable(source, 200)} → {printable(path, 200)}")
        lines += [f"  refused: {why}" for why in blocked]
        lines += [f"  send {printable(entry.path, 400)}{_describe_entry(entry)}" for entry in send if entry.kind != "d"]
        lines += [f"  remove {printable(name, 400)}" for name in to_delete]
        if not (send or to_delete or blocked):
            lines.append("  nothing to do")
    lines += [f"not sent: {printable(path, 200)}/, where ipexctl itself stores files" for path in own]
    return "\n".join(lines)


def describe_transfer(plans: Mapping[str, SyncPlan], source: str, left_out: Sequence[str]) -> list[str]:
    """Returns what is sent, and what is left out of it; nothing where every host is up to date."""
    if all(plan.is_empty for plan in plans.values()):
        return []
    plan = max(plans.values(), key=lambda plan: plan.size)
    lines = [f"{printable(source, 200)} to {pluralize(len(plans), 'host')}: {plan.summary()}"]
    if left_out:
        names = sorted(left_out, key=lambda path: (path.count("/", 0, -1), path))
        shown = join_names([printable(name, 100) for name in names], 5)
        lines.append(f"left out: {shown} (.gitignore, .ipexctlignore, --exclude)")
    return lines


def describe_other_source(plan: SyncPlan) -> str:
    """Returns what becomes of the files that came from elsewhere."""
    text = (
        f"{printable(plan.path, 200)} was last synced from {plan.previous_source}: files of the same names are replaced"
    )
    return f"{text}, the others stay; --workdir DIRECTORY keeps the two apart"


def describe_large_transfer(plans: Mapping[str, SyncPlan]) -> str:
    """Returns what is big in more than `_LARGE_TRANSFER` bytes for one host, and how to leave it out; "" for less."""
    plan = max(plans.values(), key=lambda plan: plan.size, default=None)
    if plan is None or plan.size <= _LARGE_TRANSFER:
        return ""
    sizes = Counter[str]()
    for entry in plan.send:
        top, slash, _ = entry.path.partition("/")
        sizes[top + slash] += entry.size if entry.kind == "f" else 0
    biggest = sizes.most_common(3)
    named = [(name, size) for name, size in biggest if size * 20 > biggest[0][1]]
    names = join_names([f"{printable(name, 100)} ({format_size(size)})" for name, size in named], 3)
    pattern = "/" + re.sub(r"([][*?\\!#])", r"\\\1", biggest[0][0])
    option = shlex.quote(printable(pattern, 100))
    return f"{format_size(plan.size)} for each host, most of it {names}; to leave out the first: --exclude {option}"


def _describe_entry(entry: TreeEntry) -> str:
    if entry.kind == "l":
        return f" → {printable(entry.target, 200)}"
    return f" ({format_size(entry.size)})"


def select_comparable_files(plan: SyncPlan, remote_tree: RemoteTree) -> tuple[TreeEntry, ...]:
    """Of what is to be sent: files that are there in an old version, and small enough to be compared."""

    def fits(entry: TreeEntry) -> bool:
        remote = remote_tree.entries.get(entry.path)
        return (
            entry.kind == "f" and remote is not None and remote.kind == "f" and max(entry.size, remote.size) <= DIFFABLE
        )

    return tuple(entry for entry in plan.send if fits(entry))[:DIFF_FILES]


def format_diff(path: str, old: bytes, new: bytes) -> str:
    """As ``diff -u`` says it, every line escaped; one sentence for a file that is no text, "" where nothing differs."""
    if old == new:
        return ""
    try:
        before, after = _split_lines(old), _split_lines(new)
    except UnicodeDecodeError:
        return f"{printable(path, 300)} differs, and is no text"
    shown = printable(path, 300)
    if len(before) + len(after) > _LINE_LIMIT:
        return f"{shown} differs, and has too many lines to compare"
    lines = [*difflib.unified_diff(before, after, f"{shown} (there)", f"{shown} (here)", lineterm="")]
    if not lines:
        return f"{shown} differs in how its last line ends"
    more = [f"… and {pluralize(len(lines) - _SHOWN_LINES, 'more line')}"] if len(lines) > _SHOWN_LINES else []
    return "\n".join([*(printable(line.replace("\t", "    "), _SHOWN_WIDTH) for line in lines[:_SHOWN_LINES]), *more])


def _split_lines(data: bytes) -> list[str]:
    if b"\0" in data:
        raise UnicodeDecodeError("utf-8", data, 0, 1, "a NUL")
    return data.decode("utf-8").splitlines()


def group_by_hosts(differences: Mapping[str, Sequence[str]]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields each difference once, with the hosts of which it is true."""
    for text, names in group_pairs((text, name) for name, texts in differences.items() for text in texts).items():
        if text:
            yield tuple(names), text
