"""``du``: the space that ipexctl takes on hosts and on this machine, and the removal of old projects from hosts, and of
old wheels here."""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.act.transfer.send import build_script_command, list_tree, read_listing
from ipexctl.decide.parsing.amounts import parse_span
from ipexctl.decide.planning.sync import RemoteTree, parse_remote_tree
from ipexctl.model.answers.hosts import UsageAnswer, UsedPlace
from ipexctl.model.errors import Failure, Hint, Kind, UsageError, advise, choose_exit, complete_hint
from ipexctl.model.events import Message, Workflow, finish_verb
from ipexctl.model.hosts import Inventory, Link, LinkError
from ipexctl.model.text import fold_names, format_size, group_pairs, parse_integer, printable
from ipexctl.protocol.paths import MANIFEST, RUNS, STATE
from ipexctl.store.private_files import claim_private_directory, measure_tree, remove_directories
from ipexctl.verbs.common.probe import VENV
from ipexctl.verbs.common.select import list_flags, make_started

UV_CACHE = "~/.cache/uv"  # of uv on a host
_LARGE_CACHE = 1 << 30  # bytes of it from which it is named
_KINDS = ("environment", "runs", "wheels")  # as remote/list_usage.sh names them
_LARGEST_PLACE = 1 << 50  # KiB
_PROJECT_LIMIT = 10_000  # of a host: each is listed by itself
# Bytes of the list of a host's places, of that of a project's files, and of those of all its projects.
_PLACES_SIZE_LIMIT, _PROJECT_SIZE_LIMIT, _PROJECTS_SIZE_LIMIT = 1 << 22, 1 << 27, 1 << 30
_DISK_TIMEOUT = 600.0  # seconds for the disk of a host


def show_usage(
    inventory: Inventory, context: Context, *, older_than: str | None = None, dry: bool = True
) -> Workflow[None]:
    """Measures; ``older_than`` ("30d") removes the projects, and the wheels of this machine, of which no file is newer,
    or in a dry run tells which those are. Raises `UsageError`."""
    yield make_started("du", "", inventory)
    limit = 0.0 if older_than is None else context.clock() - parse_span("--older-than", older_than)
    parsing = threading.Lock()

    def measure(link: Link, _: Emit) -> list[UsedPlace] | Failure:
        try:
            places = list(_list_places(link, parsing))
        except ValueError:
            return Failure(link.host.name, Kind.STEP, "malformed list of what is stored there", code="malformed")
        for number, place in enumerate(places):
            if place.kind == "project" and (place.changed or 0.0) < limit:
                places[number] = _remove_project(link, place, dry)
        return places

    found, failures = yield from run_on_hosts(context, inventory, "measure", measure)
    places = [place for result in found.values() for place in result]
    places += _measure_this_machine(context, limit, dry)
    sizes = {place.host: place.bytes for place in places if place.host and place.path.endswith(UV_CACHE[1:])}
    if hint := describe_uv_cache({host: size for host, size in sizes.items() if size >= _LARGE_CACHE}):
        yield Message(hint)
    removes = dry and any(place.removed for place in places)
    advice = advise("du", "--prune", "--older-than", older_than or "", "--yes")
    command = complete_hint(advice, list_flags(inventory, None)) if removes else None
    answer = UsageAnswer(tuple(found), tuple(places), (dry or None) if older_than else None, command)
    yield from finish_verb("du", answer, choose_exit(failures.values()))


def _remove_project(link: Link, place: UsedPlace, dry: bool) -> UsedPlace:
    try:
        words = (place.path, MANIFEST, RUNS, json.dumps(place.path)[1:-1], "dry" if dry else "")
        command = build_script_command(
            "remove_project.sh", *words, begins="target_directory.sh", patience=_DISK_TIMEOUT
        )
        stays = printable(os.fsdecode(read_listing(link, command, 1)), 200)
    except LinkError as error:
        if error.failure.kind is not Kind.STEP:
            raise
        stays = error.failure.what
    return replace(place, removed=not stays, stays=stays)


def _measure_this_machine(context: Context, limit: float, dry: bool) -> Iterator[UsedPlace]:
    """What is kept here; wheels of which no file is newer than ``limit`` are removed."""
    lab, counted = context.state / "lab", set[tuple[int, int]]()
    caches = [("wheels", path) for path in (context.cache, *lab.glob("*/home/.cache"))]  # before what has links to them
    for kind, path in (*caches, ("environment", lab), ("runs", context.state / "runs")):
        if not path.exists():
            continue
        size, changed = measure_tree(path, counted)
        old, stays = path == context.cache and changed < limit, ""
        if old and not dry:
            try:
                claim_private_directory(path)  # another user may have put a directory of ours there, or a link above
                remove_directories([path])
            except UsageError as refused:
                stays = refused.sentence
            except OSError as error:
                stays = (error.strerror or str(error)).lower()
        yield UsedPlace("", kind, str(path), size, changed if old else None, removed=old and not stays, stays=stays)


def describe_uv_cache(sizes: Mapping[str, int]) -> Hint | None:
    """Returns what uv's cache takes on each host, with the command that removes it: it stays for the next install, and
    may be the user's own. An install that was interrupted leaves there what it had downloaded."""
    pairs = ((format_size(size), host) for host, size in sizes.items() if size)
    each = ", ".join(f"{size} on {fold_names(hosts)}" for size, hosts in group_pairs(pairs).items())
    text = f"{UV_CACHE} stays ({each}): the next install takes its wheels, and your own uv may use it; to remove it:"
    return advise("exec", f"rm -rf {UV_CACHE}", text=text) if each else None


def make_no_age_error(inventory: Inventory) -> UsageError:
    hint = complete_hint(advise("du", "--prune", "--older-than", "30d"), list_flags(inventory, None))
    return UsageError("--prune needs --older-than: which projects to remove", hint=hint)


def _list_places(link: Link, parsing: threading.Lock) -> Iterator[UsedPlace]:
    """What is parsed of a list takes more memory than the list: it is that of one host at a time. Raises `LinkError`,
    and `ValueError` where the host's answer is none."""
    name, own = link.host.name, link.host.vars
    words = (STATE, own.get("venv") or VENV, own.get("workdir", ""))
    command = build_script_command("list_usage.sh", *words, patience=_DISK_TIMEOUT)
    *fields, _ = read_listing(link, replace(command, cap=_PLACES_SIZE_LIMIT), 2).split(b"\0")
    if len(fields) > 2 * _PROJECT_LIMIT:
        raise ValueError("more projects than can be listed")
    room = _PROJECTS_SIZE_LIMIT
    for field, path in zip(fields[::2], map(os.fsdecode, fields[1::2]), strict=True):
        kind, size = field.decode("ascii").split(" ")
        if kind != "project":
            kibibytes = parse_integer(size, _LARGEST_PLACE)
            if kind not in _KINDS or kibibytes is None:
                raise ValueError("a place without a kind or a size")
            yield UsedPlace(name, kind, path, kibibytes << 10)
            continue
        listed = list_tree(link, path, cap=_PROJECT_SIZE_LIMIT)
        room -= len(listed)
        if room < 0:
            raise LinkError(Failure(name, Kind.STEP, "more files than can be listed", code="refused-there"))
        with parsing:
            project = _measure_project(name, path, parse_remote_tree(listed))
        if project is not None:
            yield project


def _measure_project(host: str, path: str, tree: RemoteTree) -> UsedPlace | None:
    """None of a directory that no sync has made."""
    if tree.manifest is None:
        return None
    files = {path: entry for path, entry in tree.entries.items() if entry.kind == "f"}
    written = sum(entry.size for path, entry in files.items() if path not in {MANIFEST, *tree.manifest["files"]})
    newest = max(entry.mtime for entry in tree.entries.values())
    return UsedPlace(host, "project", path, sum(entry.size for entry in files.values()), float(newest), written)
