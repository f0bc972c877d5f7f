"""The lock of a stack: its exact wheels with URLs and hashes, resolved once, then saved and read again."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ipexctl.act.bundled_files import build_impi_torch
from ipexctl.act.context import Context
from ipexctl.act.packages.download import hash_file, measure_sizes, probe_index
from ipexctl.act.packages.resolve import (
    find_uv,
    forget_lock,
    load_lock,
    manylinux_platform,
    resolve_wheels,
    save_lock,
)
from ipexctl.act.packages.sources import Limits, Sources, read_pip_settings, redact_url
from ipexctl.decide.planning.install import mib
from ipexctl.decide.releases import resolve
from ipexctl.decide.releases.resolve import replace_impi_by_gloo
from ipexctl.decide.releases.table import ReleaseTable, public_version
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Event, StepEnded, StepStarted
from ipexctl.model.facts import Facts
from ipexctl.model.json_values import to_json
from ipexctl.model.stack import Lock, Stack, StackRequest, Track
from ipexctl.model.tasks import Install

_IMPI = "impi-torch"
_NO_MPI4PY = "no mpi4py 4 was found for these hosts where their wheels come from"
ONLY_INTEL = {"1.10.0"}  # releases of IPEX that the default package index has not


def load_or_create_lock(
    task: Install,
    stack: Stack,
    context: Context,
    environ: Mapping[str, str],
    limits: Limits,
    table: ReleaseTable,
    facts: Mapping[str, Facts],
) -> Generator[Event, None, tuple[Stack, Lock]]:
    """The lock from the user's lock file, from the cache, or resolved now; and the stack, with the backend gloo if impi
    was not requested and the indexes have no mpi4py.

    Raises `UsageError` (exit 4). Writes ``task.lock`` if it is set.
    """
    if task.locked:
        lock = _adopt_impi_torch(read_lock(task), context)
        if lock.mpi != _format_mpi(stack):
            reasons = [f"the lock has {lock.mpi or 'that of the wheels'}, the hosts {_format_mpi(stack)}"]
            raise UsageError("the hosts' MPI is not that of the lock file", reasons=reasons, exit=Exit.STEP)
        return stack, lock
    try:
        lock = yield from _create_lock(task, stack, context, environ, limits, table, facts)
    except UsageError as error:
        if not _can_use_gloo(task, stack, error):
            raise
        inputs, gloo = _hash_inputs(task, stack, context, environ), replace_impi_by_gloo(stack, _NO_MPI4PY)
        lock = yield from _create_lock(task, gloo, context, environ, limits, table, facts)
        # Saved for the original request: the next install of it needs no index.
        forget_lock(context.cache, lock)
        lock = replace(lock, inputs=inputs)
        save_lock(context.cache, lock)
    if stack.backend == "impi" and _IMPI not in lock.packages:
        stack = replace_impi_by_gloo(stack, _NO_MPI4PY)
    if task.lock and not task.check:
        text = json.dumps({"ipexctl": "lock", "stack": to_json(stack.summary), **to_json(lock)}, indent=1) + "\n"
        Path(task.lock).write_text(text, encoding="utf-8")
    return stack, lock


def _format_mpi(stack: Stack) -> str:
    return f"{stack.launcher.dialect} {stack.launcher.program}" if stack.launcher else ""


def _can_use_gloo(task: Install, stack: Stack, error: UsageError) -> bool:
    """Whether Gloo will do: impi was not requested, and the indexes answered that they have no mpi4py."""
    return error.code == "no-mpi4py" and stack.backend == "impi" and task.backend != "impi"


def _adopt_impi_torch(lock: Lock, context: Context) -> Lock:
    """The lock with this controller's own wheel of impi_torch. Raises `UsageError` if its version differs."""
    local = next((wheel for wheel in lock.wheels if wheel.name == _IMPI), None)
    if local is None or not local.local:
        return lock
    path = build_impi_torch(context.cache)
    if hash_file(path) != local.sha256:
        raise UsageError(
            f"the lock holds another impi_torch {local.version} than this ipexctl brings",
            hint="use the ipexctl that wrote the lock, or lock anew: leave out --locked",
            exit=Exit.STEP,
        )
    bundled = replace(local, url=path.as_uri())
    return replace(lock, wheels=tuple(bundled if wheel is local else wheel for wheel in lock.wheels))


def read_lock(task: Install) -> Lock:
    """The user's lock file. Raises `UsageError` (exit 2)."""
    name = task.lock or "ipexctl.lock"
    hint = f"ipexctl install --lock {name}"
    try:
        data = json.loads(Path(name).read_text("utf-8"))
        if data["ipexctl"] != "lock":
            raise ValueError
        return Lock.read(data)
    except OSError as error:
        raise UsageError(f"the lock file {name} cannot be read: {error.strerror}", hint=hint) from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{name} is not a lock file of ipexctl", hint=hint) from None


def choose_mpi(lock: Lock, asked: str) -> str:
    """The value of ``--mpi`` that the lock needs. Raises `UsageError` (exit 2) if ``asked`` is another."""
    dialect, _, program = lock.mpi.partition(" ")
    if asked not in {"auto", dialect, program} and (asked != "wheel" or lock.mpi):
        raise UsageError(
            "the lock file is of another MPI",
            reasons=[f"--mpi {asked} is asked for, the lock has {lock.mpi or 'the Intel MPI of the wheels'}"],
            hint="leave out --locked, or --mpi",
        )
    return program or "wheel"


def build_request(lock: Lock, request: StackRequest) -> StackRequest:
    """What a lock asks of the table. Raises `UsageError` (exit 2) for a request that asks for something else."""
    packages = lock.packages
    known = {
        "torch": packages.get("torch"),
        "ipex": packages.get("intel-extension-for-pytorch"),
        "oneccl": packages.get("oneccl-bind-pt"),
        "python": lock.python,
    }
    reasons = [
        f"{word} {asked} is asked for, the lock has {have or 'none'}"
        for word, have in known.items()
        if (asked := getattr(request, word)) and public_version(asked) != public_version(have or "")
    ]
    if reasons:
        raise UsageError(
            "the lock file is of another stack", reasons=reasons, hint="leave out --locked, or the versions"
        )
    torch, ipex, oneccl = (public_version(known[word] or "") or None for word in ("torch", "ipex", "oneccl"))
    track: Track = "ipex" if ipex else "native"
    backend: Literal["ccl", "impi", "gloo"] = "ccl" if oneccl else "impi" if _IMPI in packages else "gloo"
    return StackRequest(track, torch, ipex, oneccl, backend, lock.python)


def _create_lock(
    task: Install,
    stack: Stack,
    context: Context,
    environ: Mapping[str, str],
    limits: Limits,
    table: ReleaseTable,
    facts: Mapping[str, Facts],
) -> Generator[Event, None, Lock]:
    sources = build_sources(task, environ)
    own = _extra_requirements(task, stack, context)
    inputs = _hash_inputs(task, stack, context, environ)
    if lock := load_lock(context.cache, inputs):
        return lock
    tool = find_uv()
    yield StepStarted("", "lock the wheels")
    notes: list[str] = []
    down: list[str] = []
    if not (task.index_url or task.wheels or sources.no_index):
        sources, down = _add_release_indexes(stack, sources, environ, limits)
    asked = [*stack.pins, *own, *task.with_, *(f"-r {Path(name).absolute()}" for name in task.requirements)]
    try:
        wheels = resolve_wheels(tool, asked, stack.python, stack.glibc, sources, limits, environ)
    except UsageError as error:
        yield StepEnded("", "lock the wheels", "skipped" if _can_use_gloo(task, stack, error) else "failed")
        raise _add_missing_indexes(error, stack, down, table, facts) from None
    wheels = measure_sizes(wheels, sources, environ, limits)
    lock = Lock(wheels, stack.python, inputs, mpi=_format_mpi(stack))
    torch = next((wheel for wheel in wheels if wheel.name == "torch"), None)
    if torch and "+" not in torch.version and any(wheel.name.startswith("nvidia-") for wheel in wheels):
        because = f"; the CPU build's index does not answer: {down[0]}" if down else ""
        notes.append(f"torch {torch.version} is the build for CUDA, with its libraries {mib(lock.size)}{because}")
    lock = replace(lock, notes=tuple(notes))
    save_lock(context.cache, lock)
    yield StepEnded("", "lock the wheels", "ok", f"{len(wheels)} wheels, {mib(lock.size)}")
    return lock


def _extra_requirements(task: Install, stack: Stack, context: Context) -> list[str]:
    """What is asked for beyond the row."""
    # By its path, so that no index can offer something else of that name.
    own = [f"{_IMPI} @ {build_impi_torch(context.cache).as_uri()}"] if stack.backend == "impi" else []
    return own + (["intel-openmp"] if task.omp == "intel" else [])


def _hash_inputs(task: Install, stack: Stack, context: Context, environ: Mapping[str, str]) -> str:
    """The hash of all that decides which wheels it will be."""
    sources = build_sources(task, environ)
    own = _extra_requirements(task, stack, context)
    files = {name: Path(name).read_text("utf-8", "replace") for name in task.requirements}
    question = {
        "pins": (*stack.pins, *own),
        "python": stack.python,
        "platform": manylinux_platform(stack.glibc),
        "with": task.with_,
        "requirements": list(files.values()),
        "wheels": task.wheels and str(Path(task.wheels).absolute()),
        "sources": [redact_url(place) for place in (sources.index or "", *sources.extra, *sources.find_links)],
        "indexes": [found.url for found in stack.indexes],
        **({"mpi": _format_mpi(stack)} if stack.launcher else {}),
        **({"must": "impi"} if task.backend == "impi" else {}),  # Gloo's lock is no answer to this
    }
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:24]


def build_sources(task: Install, environ: Mapping[str, str]) -> Sources:
    """Package sources of the user: flags before variables before files."""
    if task.wheels:
        return Sources(find_links=(str(Path(task.wheels).absolute()),), no_index=True)
    pip = read_pip_settings(environ)
    own = any(environ.get(name) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"))
    return replace(
        pip,
        index=task.index_url or (None if own else pip.index),
        extra=(*task.extra_index_url, *pip.extra),
        find_links=(*task.find_links, *pip.find_links),
    )


def _add_release_indexes(
    stack: Stack, sources: Sources, environ: Mapping[str, str], limits: Limits
) -> tuple[Sources, list[str]]:
    """The indexes of the row too, as far as they answer; and those that do not."""
    wanted = [
        found
        for found in stack.indexes
        if found.name == "torch-cpu"
        or stack.release.oneccl
        or stack.release.ipex in ONLY_INTEL  # the rest is on the default one
    ]
    results: dict[str, bool] = {}
    threads = [
        threading.Thread(
            target=lambda found=found: results.update({found.url: probe_index(found.url, sources, environ, limits)})
        )
        for found in wanted
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    up = [found for found in wanted if results.get(found.url)]
    return replace(
        sources,
        extra=(*(found.url for found in up if found.kind == "index"), *sources.extra),
        find_links=(*sources.find_links, *(found.url for found in up if found.kind == "find-links")),
    ), [found.url for found in wanted if not results.get(found.url)]


def _add_missing_indexes(
    error: UsageError, stack: Stack, down: Sequence[str], table: ReleaseTable, facts: Mapping[str, Facts]
) -> UsageError:
    """The same error, with the indexes that were down and the table that do without them. None of these is taken by
    itself: somebody must ask for it."""
    if not down:
        return error
    reasons = [*(f"this index does not answer: {url}" for url in down), *error.reasons]
    hint = error.hint
    others: dict[str, str] = {}
    for request in (
        StackRequest(torch=stack.release.torch, backend="gloo"),
        StackRequest(backend="gloo"),
        StackRequest(track="native"),
    ):
        try:
            row = resolve(request, facts, table).release
        except UsageError:
            continue
        words = f"--torch {row.torch} " + ("--backend gloo" if row.ipex else "--track native")
        if row != stack.release and not row.oneccl and row.ipex not in ONLY_INTEL:
            others.setdefault(row.name, words)
    if others:
        reasons += [f"{name} does without it: {words}" for name, words in others.items()]
        hint = f"another row: {next(iter(others.values()))}"
    return UsageError(error.sentence, reasons=reasons, hint=hint, exit=Exit.STEP, code=error.code)
