"""``ipexctl wheels fetch``: a wheelhouse of one release for some Pythons, to carry to where no index is reached."""

import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.act.packages.download import FETCH, fetch_wheels, hash_wheel, locate_wheel
from ipexctl.decide.releases.resolve import resolve_stack
from ipexctl.model.answers.install import WheelsAnswer
from ipexctl.model.errors import Failure, Hint, UsageError, advise
from ipexctl.model.events import Planned, Started, StepEnded, Workflow, finish_verb
from ipexctl.model.facts import Facts, Python
from ipexctl.model.stack import StackRequest
from ipexctl.model.tasks import Install, Wheels
from ipexctl.model.text import format_size, pluralize
from ipexctl.model.wheels import Wheel
from ipexctl.store.private_files import refuse_os_errors, replace_file, replace_name, sync_path
from ipexctl.verbs.common.probe import load_releases
from ipexctl.verbs.install.lock import LockRequest, load_or_create_lock, resolve_available
from ipexctl.verbs.install.requirements import fix_requirements


def wheels_fetch(task: Wheels, context: Context, *, dry: bool = False) -> Workflow[None]:
    """Fills ``task.directory``; wheels already present, byte for byte, are not fetched again. Raises `UsageError` as
    install does. ``ipexctl install --wheels DIRECTORY`` then needs no index."""
    task = fix_requirements(task)
    directory = Path(task.directory)
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{task.directory} is not a directory")
    rows = load_releases()
    same = ("index_url", "extra_index_url", "find_links", "requirements", "build", "backend", "omp")
    request = Install(**{name: getattr(task, name) for name in ("with_", *same)})
    wishes = [
        StackRequest(task.track, task.torch, task.ipex, task.oneccl, task.backend, python)
        for python in (task.python or (None,))
    ]
    yield Started("wheels", f"wheels of {wishes[0]}", ())
    stacks = []
    for wish in wishes:
        having = Python("python3", wish.python or resolve_stack(wish, {}, rows).python)
        host = {"host": Facts(glibc=task.glibc, pythons=(having,))}
        stacks.append((yield from resolve_available(wish, host, rows, request, context)))
    wanted: dict[str, Wheel] = {}
    for stack in stacks:
        _, lock = yield from load_or_create_lock(LockRequest(request, stack, context, verb="wheels"))
        wanted |= {wheel.filename: wheel for wheel in lock.wheels}
    # By file name: one wheel may serve several Pythons, and each may need its own torch.
    hashes = {name: hash_wheel(directory / name) for name in wanted}
    todo = [wheel for name, wheel in wanted.items() if hashes[name] != wheel.sha256]
    pythons = [stack.python for stack in stacks]
    plan = _format_plan(task, pythons, todo, f"{pluralize(len(wanted), 'wheel')} in {directory} already")
    yield Planned("wheels", plan)
    answer = WheelsAnswer(
        directory=str(directory),
        wheels=tuple(sorted(wanted)),
        fetched=tuple(wheel.filename for wheel in todo),
        python=tuple(pythons),
        bytes=sum(wheel.size for wheel in todo),
    )
    if dry:
        yield from finish_verb("wheels", replace(answer, dry=True, plan=plan))
        return
    sources = LockRequest(request, stacks[0], context).sources
    result = yield from fetch_wheels(todo, context.cache, sources, threading.Event())
    if isinstance(result, Failure):
        yield from finish_verb("wheels", replace(answer, fetched=()), result.kind.exit)
        return
    with refuse_os_errors(directory, "cannot be written"):
        directory.mkdir(parents=True, exist_ok=True)
        for wheel in todo:
            _link_or_copy(locate_wheel(context.cache, wheel), directory / wheel.filename)
    yield StepEnded("", FETCH, "changed" if todo else "ok", f"{pluralize(len(todo), 'wheel')} into {directory}")
    yield from finish_verb("wheels", replace(answer, next=_advise_install(task, stacks[0].release.torch)))


def _advise_install(task: Wheels, torch: str) -> Hint:
    """The command that installs these wheels from the directory."""
    words = ["--track", task.track] if task.track else []
    words += [word for name in ("ipex", "oneccl") if (value := getattr(task, name)) for word in (f"--{name}", value)]
    if task.backend != "auto":
        words += ["--backend", task.backend]
    words += [word for text in task.with_ for word in ("--with", text)]
    words += [word for path in task.requirements for word in ("-r", path)]
    return Hint([*advise("install", "--wheels", task.directory, "--torch", torch).words, *words])


def _format_plan(task: Wheels, pythons: Sequence[str], todo: Sequence[Wheel], nothing: str) -> str:
    """For which hosts, each wheel, and how much it is in all (some indexes tell no sizes)."""
    hosts = f"Python {', '.join(pythons)}" + ("" if task.python else ", the row's newest (--python names another)")
    lines = [f"for hosts with {hosts}; glibc {task.glibc} or newer"]
    lines += [f"{wheel.filename}  {format_size(wheel.size) if wheel.size else ''}".rstrip() for wheel in todo]
    unknown = sum(not wheel.size for wheel in todo)
    more = f", and {unknown} of unknown size" if unknown else ""
    total = f"{pluralize(len(todo), 'wheel')}, {format_size(sum(wheel.size for wheel in todo))}{more}"
    return "\n".join([*lines, total if todo else nothing])


def _link_or_copy(source: Path, target: Path) -> None:
    """By rename, so that a wheelhouse never has half a wheel; without a copy where the disk is the same."""
    try:
        with replace_name(target) as (part, at):  # nobody else can have put a link there
            os.link(source, part, dst_dir_fd=at)
            sync_path(source)
    except OSError:
        with replace_file(target) as copy, source.open("rb") as file:
            shutil.copyfileobj(file, copy)
