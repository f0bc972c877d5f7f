"""An installed environment that gets, loses or renews packages: its release, MPI, interpreter and the rest stay."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from packaging.requirements import InvalidRequirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ipexctl.decide.planning.requirements import Requirement, names_place, parse_package
from ipexctl.decide.releases.mpi_choice import DEFAULT, find_wheel_mpi
from ipexctl.decide.releases.resolve import match_version
from ipexctl.decide.releases.table import get_public_version
from ipexctl.model.errors import Exit, UsageError, advise
from ipexctl.model.facts import Facts, HostFacts, Python
from ipexctl.model.stack import InstallMarker, StackRequest, Track
from ipexctl.model.tasks import Install

_RELEASE = ("torch", "intel-extension-for-pytorch", "oneccl-bind-pt", "impi-rt", "mpi4py", "impi-torch")


def find_environment(
    task: Install, request: StackRequest, venv: str, facts: HostFacts
) -> tuple[InstallMarker, StackRequest] | None:
    """Returns the environment that ``task`` changes, and the request for its release: that of the first host that has
    one at ``venv``. None where ``task`` describes a new one, or asks for another release. Raises `UsageError` (exit 4)
    if packages are to be removed or renewed that it has not, or that are its release."""
    if not (task.with_ or task.without or task.upgrade):
        return None
    marker, kept = find_marker(venv, facts, task), None
    if marker:
        with suppress(UsageError):  # another release is asked for
            kept = _keep_release(marker, request, task.mpi)
    held = marker.packages if marker else {}
    release = list_release_packages(marker) if marker else {*_RELEASE}
    reasons = [
        f"--{word} {name}: it is " + ("of the release, which --torch changes" if name in release else f"not in {venv}")
        for word, names in (("without", task.without), ("upgrade", task.upgrade))
        for name in map(canonicalize_name, names)
        if name in release or name not in held
    ]
    if reasons:
        raise UsageError("the environment cannot be changed in this way", reasons=reasons, exit=Exit.STEP)
    return (marker, kept) if marker and kept else None


def find_marker(venv: str, facts: HostFacts, task: Install) -> InstallMarker | None:
    """Returns the environment at ``venv`` of the first host that has one. Raises `UsageError` (exit 4) where that alone
    says from which URL or file a package was asked for that ``task`` does not name, or where an MPI lies: a host
    chooses no program for the others."""
    envs = {host: fact.installed for host, fact in facts.items() if fact.installed and fact.installed.venv == venv}
    markers = {host: env.marker for host, env in envs.items() if env.marker}
    if not markers:
        return None
    first, marker = next(iter(markers.items()))
    named = set(map(read_package_name, (*task.with_, *task.without)))
    places = [text for text in marker.requested if names_place(text) and read_package_name(text) not in named]
    if task.mpi == "auto" and marker.stack.mpi.program:  # which is asked on all hosts for its version
        places.append(marker.stack.mpi.program)
    for other, held in markers.items():
        known = {*held.requested, held.stack.mpi.program}
        if alone := [text for text in places if text not in known]:
            what = (
                f"the environment of {first} has packages or an MPI from places that are not known to that of {other}"
            )
            hint = advise("install", "--like", first, text="if they are yours:")
            raise UsageError(what, reasons=alone[:5], hint=hint, exit=Exit.STEP)
    return marker


def keep_environment(
    task: Install, request: StackRequest, marker: InstallMarker, listed: Collection[str] = ()
) -> tuple[InstallMarker | None, Install, StackRequest]:
    """What stays of an environment in whose place ``task`` installs: its release, unless one is asked for, and packages
    that were asked for earlier, but for those ``listed`` in its files. Returns the environment whose versions are kept,
    if any, the task and the request."""
    base, kept = None, request
    if replace(request, backend="auto", python=None) == StackRequest() and not task.wheels:
        base, kept = follow_model(marker, task, replace(request, python=None))
    if task.python or task.requirements:
        base, kept = None, replace(kept, python=request.python)
    if base:
        return base, keep_requirements(base, task, model=True), kept
    return None, replace(task, with_=_add_earlier(marker, task, listed)), kept


def follow_model(
    model: InstallMarker, task: Install, request: StackRequest
) -> tuple[InstallMarker | None, StackRequest]:
    """Returns the environment whose versions are kept for ``--like``, and the request for its release, with the
    collectives that were asked for. Where another release is asked for, only the model's requirements are kept."""
    asked, has_ccl = request.backend, "oneccl-bind-pt" in model.packages
    try:
        kept = _keep_release(model, replace(request, backend="auto"), "auto")
    except UsageError:
        return None, request
    if asked == "auto" or asked == kept.backend:
        return model, kept
    if asked == "ccl" and not has_ccl:
        return None, request
    return model, replace(kept, backend=asked, oneccl=None)


def _keep_release(marker: InstallMarker, request: StackRequest, asked_mpi: str) -> StackRequest:
    try:
        _ = [Version(version) for version in (marker.packages["torch"], *marker.packages.values())]
    except (KeyError, ValueError):  # a host says what they are
        raise UsageError("the environment has no torch, or versions that are none", exit=Exit.STEP) from None
    mpi = f"{marker.stack.mpi.dialect} {marker.stack.mpi.program}" if marker.stack.mpi.program else ""
    return build_release_request(marker.packages, marker.python, mpi, request, asked_mpi)[0]


def build_release_request(
    packages: Mapping[str, str], python: str, mpi: str, request: StackRequest, asked_mpi: str
) -> tuple[StackRequest, str]:
    """The request for exactly the release of a lock or an environment with these packages, and its MPI (``mpi``:
    dialect and program of the hosts' own). Raises `UsageError` (exit 2) for a request that asks for something else."""
    members = ("torch", "intel-extension-for-pytorch", "oneccl-bind-pt")
    torch, ipex, oneccl = (get_public_version(packages.get(package, "")) or None for package in members)
    track: Track = "ipex" if ipex else "native"
    backend: Literal["ccl", "impi", "gloo"] = "impi" if "impi-torch" in packages else "gloo"
    if oneccl:
        backend = "ccl"
    release = StackRequest(track, torch, ipex, oneccl, backend, python)
    reasons = []
    for word in ("track", "torch", "ipex", "oneccl", "backend", "python"):
        asked, have = getattr(request, word), getattr(release, word)
        version = have if word not in {"track", "backend"} else None
        if asked not in {None, "auto", have} and not (version and match_version(get_public_version(asked), version)):
            reasons.append(f"{word} {asked} is asked for, the lock has {have or 'none'}")
    dialect, _, program = mpi.partition(" ")
    own = program or find_wheel_mpi(packages)
    if asked_mpi not in {"auto", own, dialect} and (asked_mpi, own) != ("impi", DEFAULT):
        wheel = "the Intel MPI of the wheels" if own == DEFAULT else f"the wheel of {own}"
        reasons.append(f"--mpi {asked_mpi} is asked for, the lock has {mpi or wheel}")
    if reasons:
        raise UsageError("the lock file is of another stack", reasons=reasons, hint="leave out --locked, or the rest")
    return release, own


def keep_requirements(
    marker: InstallMarker, task: Install, listed: Collection[str] = (), *, model: bool = False
) -> Install:
    """Returns the task with the MPI and the requirements that an environment then has, but for packages ``listed`` in
    its files; of a ``model``, the backend and the MPI unless others are asked for."""
    backend, mpi = marker.stack.backend, marker.stack.mpi.program or find_wheel_mpi([marker.stack.mpi.kind])
    if model:
        backend = backend if task.backend == "auto" else task.backend
        mpi = mpi if task.mpi == "auto" else task.mpi
    return replace(task, with_=_add_earlier(marker, task, listed), backend=backend, mpi=mpi)


def _add_earlier(marker: InstallMarker, task: Install, listed: Collection[str]) -> tuple[str, ...]:
    """Requirements of earlier and of now, of which those of now count."""
    changed = {*listed, *map(read_package_name, (*task.with_, *task.without))} - {""}
    kept = [text.strip() for text in marker.requested if read_package_name(text) not in changed]
    # A host says what they are: uv obeys an option (an index, a project to build here), and puts variables into URLs.
    if strange := [text for text in kept if text.startswith("-") or "${" in text or Requirement(text, "").kind]:
        what = "the environment was asked for what is not taken from a host's word: options, variables or projects"
        hint = "name these packages anew, or take an environment of its own: --venv PATH"
        raise UsageError(what, reasons=strange[:5], hint=hint, exit=Exit.STEP)
    return tuple(dict.fromkeys([*kept, *task.with_]))


def list_release_packages(marker: InstallMarker) -> set[str]:
    """Returns packages that belong to the release of an environment, among them the wheel of its MPI."""
    return {*_RELEASE, marker.stack.mpi.kind}


def use_env_python(marker: InstallMarker, facts: HostFacts) -> dict[str, Facts]:
    """Returns the facts with the environment's own interpreter as that of each host that has the environment and it."""
    python = Python(f"{marker.prefix}/bin/python", f"{marker.python}.0")
    whole = {name: fact.installed for name, fact in facts.items() if fact.installed and fact.installed.exists}
    having = {name for name, state in whole.items() if state.marker and state.marker.id == marker.id}
    return {name: replace(fact, pythons=(python,)) if name in having else fact for name, fact in facts.items()}


def read_package_name(requirement: str) -> str:
    """Returns the package that a requirement names; empty where it names none (a path, an option)."""
    try:
        return canonicalize_name(parse_package(requirement).name)
    except InvalidRequirement:
        return ""


def pin_installed_release(pins: Sequence[str], marker: InstallMarker) -> tuple[str, ...]:
    """Returns the pins of a release at exactly the versions of an environment, builds with a local version included."""
    release = list_release_packages(marker)
    held = {name: version for name, version in marker.packages.items() if name in release}
    return tuple(f"{name}=={held[name]}" if (name := read_package_name(pin)) in held else pin for pin in pins)
