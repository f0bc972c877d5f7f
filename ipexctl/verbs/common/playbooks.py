"""Reading playbooks, and what a stranger's one may use of this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipexctl.act.inputs import expand_home, read_input, refuse_planted
from ipexctl.data import read_data
from ipexctl.model.errors import UsageError, advise
from ipexctl.model.hosts import Inventory
from ipexctl.model.hub import is_of_hub
from ipexctl.model.json_values import Record
from ipexctl.model.text import printable
from ipexctl.verbs.common.select import read_hostfile, resolve_paths, select_hosts

if TYPE_CHECKING:
    from ipexctl.model.plays import Play


class Permits(Record):
    """What the user lets a playbook use on this machine, beside its own directory and the current one: directories, and
    variables of the environment."""

    paths: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


def read_playbook(
    path: str,
    *,
    environ: Mapping[str, str],
    cwd: Path,
    variables: Mapping[str, str] | None = None,
    strict: bool = True,
    permits: Permits = Permits(),
) -> Play:
    """Returns the playbook in a file, or the bundled one of this name; ``variables`` win over its own. ``strict``: it
    must know them. Raises `UsageError`, also where it uses more of this machine than ``permits``."""
    from ipexctl.decide.parsing.playbook import parse_playbook

    path = _find_playbook(path, cwd)
    file = read_input(path, cwd=cwd)
    base = str(file.path.parent.absolute())
    given, ansible = variables or {}, read_data("ansible.toml")
    play = parse_playbook(file.text, path, base=base, environ=environ, variables=given, strict=strict, ansible=ansible)
    _check_uses(play, Path(base), cwd, permits)
    inventory = resolve_paths(play.inventory, file.path.parent) if play.inventory else None
    return play.model_copy(update={"inventory": inventory, "warnings": file.warnings})


def _check_uses(play: Play, base: Path, cwd: Path, permits: Permits) -> None:
    """Refuses a playbook that names, or sends with a script, files of this machine outside of its directory, the
    current one and those that the user named, or variables that the user did not name: whoever wrote it chooses the
    hosts, too. Links are followed; a value of ``--var`` is the user's word. Raises `UsageError` with all."""
    from ipexctl.act.bundled_files import list_bundled_files

    folders = [base.resolve(), cwd.resolve(), *(resolve_path(path, cwd) for path in permits.paths)]
    if base.resolve() in {file.parent for file in list_bundled_files("playbooks")}:
        folders += {file.parent for file in list_bundled_files("examples")}
    refused = [*_list_refused_uses(play, base, cwd, permits, folders), *_list_refused_projects(play, cwd, folders)]
    if refused:
        options = dict.fromkeys(option for _, option in refused)
        hint = printable(shlex.join(word for option in options for word in option), 600)
        reasons = [reason for reason, _ in refused]
        what = f"{printable(play.source, 300)} uses more of this machine than you allowed"
        raise UsageError(*reasons, hint=hint) if len(refused) == 1 else UsageError(what, reasons=reasons, hint=hint)


def _list_refused_uses(
    play: Play, base: Path, cwd: Path, permits: Permits, folders: Sequence[Path]
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yields why a file or a variable that the playbook names is refused, and the option that permits it."""
    for use in play.uses:
        if use.kind == "env":
            if use.name not in {*permits.env, *use.given}:
                reason = f"{use.key} takes the environment variable {printable(use.name)}"
                yield f"{use.origin}: {reason}", ("--allow-env", use.name)
            continue
        path = resolve_path(use.name, cwd, f"{use.origin}: {use.key}")
        as_written = Path(os.path.realpath(cwd / use.name))  # who opens it may not know what ~ is
        given = [resolve_path(word, start) for word in use.given for start in (base, cwd)]
        if not all(any(map(each.is_relative_to, (*folders, *given))) for each in (path, as_written)):
            reason = f"{use.key} is outside of the playbook's directory: {printable(use.name, 300)}"
            yield f"{use.origin}: {reason}", ("--allow-path", str(path if path.is_dir() else path.parent))


def _list_refused_projects(play: Play, cwd: Path, folders: Sequence[Path]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yields why a project that goes to the hosts with a script is refused, and the option that permits it."""
    from ipexctl.model import tasks
    from ipexctl.verbs.files.project import find_project

    for step in play.steps:
        task = step.task
        if not isinstance(task, tasks.Run | tasks.Sync) or task.project is not None:
            continue
        if isinstance(task, tasks.Run) and not task.sync:
            continue
        name = task.source if isinstance(task, tasks.Sync) else task.script
        path = resolve_path(name, cwd)
        if isinstance(task, tasks.Sync) and (path.is_dir() or is_of_hub("source", name)):  # sent as it is
            continue
        if any(use.given and use.name == name for use in play.uses):  # by the user
            continue
        # A step before may bring the file; with what is none the current directory's project goes.
        roots = {find_project(each, None).root.resolve() for each in (path, *([] if path.is_file() else [cwd]))}
        for root in sorted(roots):
            if not any(map(root.is_relative_to, folders)):
                reason = f"{step.action} sends the project of its script: {printable(str(root), 300)}"
                yield f"{step.origin}: {reason}", ("--allow-path", str(root))


def resolve_path(path: str, start: Path, place: str = "") -> Path:
    """Returns the absolute path without symbolic links. ``place`` is where it was written. Raises `UsageError` where it
    cannot be one."""
    try:
        return (start.absolute() / expand_home(path, place)).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a NUL
        raise UsageError(f"{printable(path, 300)} is no path of this machine: {printable(str(error), 300)}") from None


def _find_playbook(path: str, cwd: Path) -> str:
    """Returns the path of a playbook. A word without a directory and an ending that is no file names a bundled one.
    Raises `UsageError`."""
    if not path or os.sep in path or path.endswith((".yaml", ".yml")):
        return path
    if (cwd / path).exists():
        refuse_planted(cwd / path)
        return path
    from difflib import get_close_matches

    from ipexctl.act.bundled_files import find_by_name, list_bundled_files

    bundled = find_by_name(path, "playbooks")
    if bundled is None:
        names = [each.stem for each in list_bundled_files("playbooks")]
        close = get_close_matches(path, names, n=1)
        what, reasons = f"there is no playbook {printable(path)}", [f"bundled playbooks: {', '.join(names)}"]
        raise UsageError(what, reasons=reasons, hint=advise("play", close[0] if close else "--list"))
    return str(bundled)


def select_play_hosts(play: Play, *, cwd: Path, **given: Any) -> Inventory:
    """The hosts of ``--hosts`` or ``--hostfile``, else the play's, else as `select_hosts`, whose arguments but the
    limit are ``given``. Raises `UsageError`."""
    own = read_play_hosts(play, cwd) if given["hosts"] is None and given["hostfile"] is None else None
    return own or select_hosts(**given, cwd=cwd, limit=None)


def read_play_hosts(play: Play, cwd: Path) -> Inventory | None:
    """Returns the hosts that a play brings itself; None where it has none. Raises `UsageError`."""
    if play.inventory:
        return replace(play.inventory, source="--hosts")  # no hostfile: another command gets them by that option
    if play.hostfile is None:
        return None
    if play.hosts_origin and not (cwd / play.hostfile).exists():
        place, shown = printable(str(play.hosts_origin), 300), printable(play.hostfile, 300)
        hint = "hosts: names a hostfile; hosts themselves are a list: hosts: [node0, node1]; limit: chooses a group"
        raise UsageError(f"{place}: hosts: {shown} does not exist", hint=hint)
    return read_hostfile(play.hostfile, cwd=cwd)
