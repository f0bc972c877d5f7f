"""The lock of a stack: its exact wheels with URLs and hashes, resolved once, then saved and read again."""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import Version

from ipexctl.act.bundled_files import pack_impi_torch
from ipexctl.act.context import Context
from ipexctl.act.inputs import read_input
from ipexctl.act.packages import resolve as packages
from ipexctl.act.packages.download import get_local_wheel_path, measure_sizes, probe_index
from ipexctl.act.packages.sources import Sources, read_pip_settings
from ipexctl.act.transfer.send import hash_file
from ipexctl.data import read_data
from ipexctl.decide.planning.extend import pin_installed_release, read_package_name
from ipexctl.decide.releases.resolve import replace_impi_by_gloo, resolve_stack, suggest_sources
from ipexctl.decide.releases.table import ReleaseTable, get_public_version
from ipexctl.decide.releases.torch_builds import TorchBuilds, parse_torch_builds
from ipexctl.model.errors import Exit, Hint, UsageError
from ipexctl.model.events import Message, StepEnded, StepStarted, Workflow
from ipexctl.model.facts import HostFacts
from ipexctl.model.json_values import Record, parse_json, to_json
from ipexctl.model.secrets import find_passwords
from ipexctl.model.stack import Arch, BindingOffer, Index, InstallMarker, Stack, StackRequest
from ipexctl.model.tasks import Install
from ipexctl.model.text import format_size, join_names, pluralize, printable, strip_credentials
from ipexctl.model.wheels import Lock, Wheel
from ipexctl.store.private_files import refuse_os_errors, replace_file
from ipexctl.verbs.install.requirements import list_texts

# Passwords in URLs of requirements that are masked, whatever should have been quoted in them, and characters of one.
_PASSWORDS, _PASSWORD_LENGTH = 100, 1000
_IMPI, _BINDING = "impi-torch", "oneccl-bind-pt"
_BASE_HINT = "check the names; where they are right, name what has them: --index-url, --find-links or --wheels"
_UV_CAUSE = re.compile(r"Because (?!all of:)(.{1,2000}?)(?: and (?:you require|only the following)|, we can conclude)")
_NO_MPI4PY = "no mpi4py 4 was found for these hosts where their wheels come from"
ONLY_INTEL = {"1.10.0"}  # releases of IPEX that the default package index has not


def read_sources(task: Install, context: Context) -> Sources:
    """Returns the package sources of the user: flags before variables before files. Raises `UsageError`."""
    for url in (task.index_url or "", *task.extra_index_url, *task.find_links):
        try:
            urlsplit(url)
        except ValueError as error:
            raise UsageError(f"{printable(url, 200)} is no URL: {error}", exit=Exit.INPUT) from None
    environ, limits = context.environ, context.limits
    if task.wheels:
        return Sources(find_links=(str(Path(task.wheels).absolute()),), no_index=True, environ=environ, limits=limits)
    pip = read_pip_settings(environ)
    context.masker.add_words((*pip.named, task.index_url or "", *task.extra_index_url, *task.find_links))
    own = any(environ.get(name) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"))
    return replace(
        pip,
        index=task.index_url or (None if own else pip.index),
        extra=(*task.extra_index_url, *pip.extra),
        find_links=(*task.find_links, *pip.find_links),
        limits=limits,
    )


class LockRequest(Record):
    """All that decides which wheels a lock has."""

    task: Install
    stack: Stack
    context: Context
    base: InstallMarker | None = None  # the environment whose versions are kept
    verb: str = "install"  # the command

    @property
    def sources(self) -> Sources:
        task, sources = self.task, read_sources(self.task, self.context)
        if self.context.by_playbook:
            return sources
        named = (*sources.named, task.index_url or "", *task.extra_index_url, *task.find_links)
        variables = {name for _, text in list_texts(task) for name in re.findall(r"\$\{([A-Z0-9_]+)\}", text)}
        return replace(sources, named=named, variables=(*variables,))

    @property
    def target(self) -> packages.WheelTarget:
        return packages.WheelTarget(self.stack.python, self.stack.glibc, self.stack.arch)

    @property
    def release_sources(self) -> Sources:
        """Package sources of the user for the packages that the version table has indexes for: without the further
        indexes and pages of pip's settings. Those are for other packages, and pip would mix them all."""
        pip = Sources() if self.task.wheels else read_pip_settings(self.context.environ)
        pages = [link for link in pip.find_links if "://" in link and not link.startswith("file:")]
        every = self.sources
        return replace(
            every,
            extra=every.extra[: len(every.extra) - len(pip.extra)],
            find_links=tuple(link for link in every.find_links if link in self.task.find_links or link not in pages),
        )

    @property
    def pins(self) -> tuple[str, ...]:
        """What the stack requires, with the wheels that come with ipexctl and those of its options."""
        # By its path, so that no index can offer something else of that name.
        own: list[str] = []
        if self.stack.backend == "impi":
            own = [f"{_IMPI} @ {pack_impi_torch(self.context.cache).as_uri()}"]
        pins = pin_installed_release(self.stack.pins, self.base) if self.base else self.stack.pins
        return (*pins, *own, *(["intel-openmp"] if self.task.omp == "intel" else []))

    @property
    def requested(self) -> tuple[str, ...]:
        """What a later `install --with` keeps: the requirements beside the release."""
        texts = [read_input(name).text for name in self.task.requirements]
        lines = [line.partition(" #")[0].strip() for text in texts for line in text.splitlines()]
        openmp = ["intel-openmp"] if self.task.omp == "intel" else []
        return tuple(dict.fromkeys([*self.task.with_, *openmp, *filter(read_package_name, lines)]))

    @property
    def inputs(self) -> str:
        """The hash of this request."""
        task, stack, sources = self.task, self.stack, self.sources
        question = {
            "pins": self.pins,
            "python": stack.python,
            "platform": self.target.platform,
            "with": task.with_,
            "requirements": [text for _, text in list_texts(replace(task, with_=()))],
            "wheels": task.wheels and str(Path(task.wheels).absolute()),
            "local": _list_local_wheels([*sources.find_links, *task.with_]),
            "sources": [*map(strip_credentials, (sources.index or "", *sources.extra, *sources.find_links))],
            "indexes": [index.url for index in stack.indexes],
            **({"mpi": _format_mpi(stack)} if stack.launcher else {}),
            **({"base": self.base.packages, "upgrade": task.upgrade} if self.base else {}),
            **({"must": "impi"} if task.backend == "impi" else {}),  # Gloo's lock is no answer to this
            **({"build": task.build} if task.build else {}),
        }
        return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:24]

    def load(self) -> Lock | None:
        """The lock of an earlier equal request, if it may be used: also of the one that made the environment."""
        if self.task.upgrade or not self.task.remembered_lock:
            return None
        lock = packages.load_lock(self.context.cache, self.inputs)
        if lock is None and self.base:
            first = packages.load_lock(self.context.cache, replace(self, base=None).inputs)
            if first and first.id == self.base.id and not self.find_unremoved(first.packages):
                lock = first
        return lock

    def list_words(self) -> list[str]:
        """Returns the words of the command that asks for what was asked for now."""
        kept = self.base.requested if self.base else ()
        words = [self.verb, *(word for text in self.task.with_ if text not in kept for word in ("--with", text))]
        return [*words, *(word for each in self.task.build for word in ("--build", each))]

    def suggest_build(self, name: str) -> Hint:
        """Returns the hint to build the wheel of a package as well, with what was asked for now."""
        text = "a wheel of its sources is built here, by a program of its author:"
        return Hint([*self.list_words(), "--build", name], text)

    def suggest_without_bounds(self, errors: str) -> Hint | None:
        """Returns the hint to take back bounds of earlier requirements that uv's errors name: the bare package does."""
        earlier = {text: read_package_name(text) for text in self.base.requested} if self.base else {}
        bounds = [text for text, name in earlier.items() if text != name and text in self.task.with_ and name in errors]
        words = [word for text in bounds for word in ("--with", earlier[text])]
        advice = f"without what was asked for earlier ({join_names(bounds, 3)}):"
        return Hint([*self.list_words(), *words], advice) if bounds else None

    def find_unremoved(self, packages: Iterable[str]) -> list[str]:
        """Returns those of these packages that ``--without`` names."""
        return sorted({canonicalize_name(name) for name in self.task.without} & {*packages})

    def may_use_gloo(self, error: UsageError) -> bool:
        """Returns whether Gloo will do: impi was not requested, and the indexes answered that they have no mpi4py."""
        return error.code == "no-mpi4py" and self.stack.backend == "impi" and self.task.backend != "impi"


def declare_passwords(task: Install, context: Context) -> None:
    """From now on the passwords in URLs of what the task requires are secrets: of a playbook, and of files."""
    lines = (line for _, text in list_texts(task) for line in text.splitlines() if "://" in line)
    passwords = dict.fromkeys(each for line in lines for each in find_passwords(line) if len(each) <= _PASSWORD_LENGTH)
    context.masker.add_secrets([*passwords][:_PASSWORDS])


def load_or_create_lock(request: LockRequest) -> Workflow[tuple[Stack, Lock]]:
    """Returns the lock from the cache, or resolved now; and the stack, with the backend gloo if impi was not requested
    and the indexes have no mpi4py. Raises `UsageError` (exit 4). Writes ``task.lock`` if it is set."""
    task, stack, cache = request.task, request.stack, request.context.cache
    declare_passwords(task, request.context)
    try:
        lock = yield from _create_lock(request)
    except UsageError as error:
        if not request.may_use_gloo(error):
            raise
        lock = yield from _create_lock(replace(request, stack=replace_impi_by_gloo(stack, _NO_MPI4PY)))
        # Saved for the original request: the next install of it needs no index.
        packages.forget_lock(cache, lock)
        lock = replace(lock, inputs=request.inputs)
        packages.save_lock(cache, lock)
    if stack.backend == "impi" and _IMPI not in lock.packages:
        stack = replace_impi_by_gloo(stack, _NO_MPI4PY)
    if task.lock and not task.check:
        both = add_other_arch(_strip_logins(lock), stack.arch, task.lock)
        text = json.dumps({"stack": to_json(stack.summary), **to_json(both)}, indent=1)
        # A link of somebody else's project is not followed.
        with refuse_os_errors(task.lock, "cannot be written"), replace_file(Path(task.lock)) as file:
            file.write(f"{text}\n".encode())
    return stack, lock


def _strip_logins(lock: Lock) -> Lock:
    """Returns a lock as others may read it: uv takes logins of indexes from it, and not those of requirements."""
    wheels = tuple(replace(wheel, url=strip_credentials(wheel.url)) for wheel in lock.wheels)
    return replace(lock, wheels=wheels, requested=tuple(map(strip_credentials, lock.requested)))


def check_lock_place(task: Install) -> None:
    """Raises `UsageError` for a ``--lock`` that would replace a file which is no lock."""
    if not task.lock or not Path(task.lock).exists():
        return
    if (text := read_input(task.lock).text).strip():
        try:
            parse_json(Lock, text)
        except ValueError as error:
            what = f"{printable(task.lock, 300)} exists and is no lock file of ipexctl"
            raise UsageError(what, reasons=[str(error)], hint="name another file with --lock") from None


def add_other_arch(lock: Lock, arch: Arch, path: str) -> Lock:
    """Returns the lock with the wheels that the file at ``path`` has for another architecture, of the same release: a
    lock file that is written on each has the hashes of both."""
    try:
        other = parse_json(Lock, read_input(path).text)
    except (UsageError, ValueError):
        return lock
    versions = {get_public_version(held.packages.get("torch", "")) for held in (lock, other)}
    more = [wheel for wheel in other.wheels if arch not in wheel.archs]
    return replace(lock, wheels=(*lock.wheels, *more)) if other.python == lock.python and len(versions) == 1 else lock


def _list_local_wheels(places: Sequence[str]) -> list[tuple[str, int, int]]:
    """Returns the wheels in those of these places that are local. Another file under the same name has another time of
    change, whatever it says of its age; reading gigabytes for their hashes would take longer than resolving again."""
    paths = [Path(unquote(place.rpartition(" @ ")[2].removeprefix("file://"))) for place in places]
    wheels = [wheel for path in paths for wheel in (path.glob("*.whl") if path.is_dir() else [path]) if wheel.is_file()]
    found = []
    for wheel in wheels:
        with suppress(OSError):  # it has just gone
            info = wheel.stat()
            found.append((wheel.name, info.st_size, info.st_ctime_ns))
    return sorted(found)


def load_torch_builds() -> TorchBuilds:
    """Returns the table of packages that depend on the build of torch."""
    return parse_torch_builds(read_data("torch_builds.toml"))


def find_cpu_index(stack: Stack) -> str:
    """Returns the URL of the index that has the CPU builds of torch."""
    return next((index.url for index in stack.indexes if index.name == "torch-cpu"), "URL")


def _format_mpi(stack: Stack) -> str:
    return f"{stack.launcher.dialect} {stack.launcher.program}" if stack.launcher else ""


def read_lock(task: Install, environ: Mapping[str, str]) -> Lock:
    """Returns the user's lock file. Raises `UsageError` (exit 2), also where it would take a file of this machine that
    lies neither beside it nor in a directory that was named."""
    path = Path(task.lock or "ipexctl.lock")
    hint = f"the same command without --locked, and with --lock {shlex.quote(str(path))}, writes it"
    try:
        lock = parse_json(Lock, read_input(path, hint=hint).text)
    except ValueError as error:
        hint = "--locked reads what install --lock FILE has written"  # never over another program's lock
        raise UsageError(f"{path} is not a lock file of ipexctl", reasons=[str(error)], hint=hint) from None
    links = [task.wheels or "", *task.find_links, *read_pip_settings(environ).find_links]
    places = [path.absolute().parent, *(Path(unquote(link.removeprefix("file://"))) for link in links if link)]
    local = [get_local_wheel_path(wheel) for wheel in lock.wheels if wheel.local and wheel.name != _IMPI]
    folders, files = ([Path(os.path.realpath(path)) for path in each] for each in (places, local))  # links in a circle
    if outside := [file.name for file in files if not any(map(file.is_relative_to, folders))]:
        what = f"{path} takes files of this machine from outside its directory"
        raise UsageError(what, reasons=outside[:5], hint="name it: --find-links DIRECTORY")
    return lock


def adopt_lock(lock: Lock, stack: Stack, context: Context) -> Lock:
    """Returns the user's lock with this controller's own wheel of impi_torch. Raises `UsageError` (exit 4) if that is
    another version, or the hosts' MPI is another than that of the lock."""
    if lock.mpi != _format_mpi(stack):
        reasons = [f"the lock has {lock.mpi or 'that of the wheels'}, the hosts {_format_mpi(stack)}"]
        raise UsageError("the hosts' MPI is not that of the lock file", reasons=reasons, exit=Exit.STEP)
    local = next((wheel for wheel in lock.wheels if wheel.name == _IMPI and wheel.local), None)
    if local is None:
        return lock
    path = pack_impi_torch(context.cache)
    if hash_file(path) != local.sha256:
        hint = "use the ipexctl that wrote the lock, or lock anew: leave out --locked"
        what = f"the lock holds another impi_torch {local.version} than this ipexctl brings"
        raise UsageError(what, hint=hint, exit=Exit.STEP)
    bundled = replace(local, url=path.as_uri())
    return replace(lock, wheels=tuple(bundled if wheel is local else wheel for wheel in lock.wheels))


def resolve_available(
    request: StackRequest, facts: HostFacts, table: ReleaseTable, task: Install, context: Context
) -> Workflow[Stack]:
    """As `resolve_stack`; an oneccl_bind_pt that nobody named only if the user's indexes or those of the table have it.
    They are not asked if the lock of that release is remembered. Raises `UsageError`."""
    stack = resolve_stack(request, facts, table)
    lock = LockRequest(task, stack, context)
    if not stack.release.oneccl or request.backend != "auto" or request.oneccl or lock.load():
        return stack
    step, sources, down = "look for oneccl_bind_pt", lock.release_sources, list[Index]()
    yield StepStarted("", step)
    if not (task.index_url or task.wheels or sources.no_index):
        indexes = [index for index in table.indexes.values() if index.name != "torch-cpu"]
        sources, down = _add_answering_indexes(indexes, sources)
    usable = f"{_BINDING}<={stack.release.oneccl}"  # a newer one, as Intel has for GPUs, does not hide it
    newest = packages.find_newest_versions(packages.find_uv(), [usable], lock.target, sources).get(_BINDING, "")
    urls = [index.url for index in down]
    own = [index.url for index in stack.indexes if index.url in urls]
    why = f"its index does not answer: {own[0]}" if own else f"no package index in use has its {_BINDING}"
    yield StepEnded("", step, "ok", newest or "none can be had")
    return resolve_stack(request, facts, table, BindingOffer(newest, why))


class _Search(NamedTuple):
    """Where wheels are looked for: all sources, those indexes of the version table among them, and which are down."""

    sources: Sources
    indexes: Sequence[Index] = ()
    down: Sequence[Index] = ()


def _create_lock(request: LockRequest) -> Workflow[Lock]:
    if lock := request.load():
        yield Message("the wheels are those of an earlier equal install; --no-remembered-lock locks anew")
        return lock
    step, task, stack, base = "lock the wheels", request.task, request.stack, request.base
    yield StepStarted("", step)
    search = _choose_search(request)
    asked = [*request.pins, *task.with_, *(f"-r {Path(name).absolute()}" for name in task.requirements)]
    try:
        if task.build:
            search = _build_wheels(request, search, asked)
        wheels = _resolve_wheels(request, asked, search)
        if exact := _find_newer_allowed(request, search.sources, wheels):
            with suppress(UsageError):
                wheels = _resolve_wheels(request, [*asked, *exact], search)
    except UsageError as error:
        yield StepEnded("", step, "skipped" if request.may_use_gloo(error) else "failed")
        raise _explain_unresolved(request, search, error) from None
    if needed := request.find_unremoved(wheel.name for wheel in wheels):
        reasons = [f"{name} is needed by other packages of the environment" for name in needed]
        raise UsageError("not all of these packages can be removed", reasons=reasons, exit=Exit.STEP)
    unchanged = {*task.with_}.intersection(base.requested if base else ())  # asked for earlier as they are now
    if older := _find_downgrades(request, wheels, unchanged):
        kept = [f"{name}=={version}" for name, (version, _) in older.items()]
        try:
            wheels = _resolve_wheels(request, [*asked, *kept], search)
        except UsageError as error:
            yield StepEnded("", step, "failed")
            raise _explain_downgrades(request, older, error) from None
    wheels = measure_sizes(wheels, search.sources)
    confusion = search.sources.find_dependency_confusion()
    notes = [confusion] if confusion else []
    notes += _describe_old_releases(request, search.sources, wheels, asked)
    lock = Lock(wheels, stack.python, request.inputs, (), _format_mpi(stack), requested=request.requested)
    lock = replace(lock, notes=(*notes, *_describe_other_builds(lock, stack, search.down)))
    packages.save_lock(request.context.cache, lock)
    yield StepEnded("", step, "ok", f"{pluralize(len(wheels), 'wheel')}, {format_size(lock.size)}")
    return lock


def _choose_search(request: LockRequest) -> _Search:
    """Returns the user's sources with the indexes of the stack that answer, and the versions that are to stay."""
    task, stack, base, search = request.task, request.stack, request.base, _Search(request.sources)
    if not (task.index_url or task.wheels or request.sources.no_index):
        cpu = base is None or "+" in base.packages["torch"]  # else it would offer another build of the same torch
        intel = _needs_intel(stack)
        indexes = [index for index in stack.indexes if (cpu if index.name == "torch-cpu" else intel)]
        sources, down = _add_answering_indexes(indexes, request.sources)
        search = _Search(sources, indexes, down)
    renewed = set(map(canonicalize_name, task.upgrade))
    held = {name: version for name, version in base.packages.items() if name not in renewed} if base else {}
    links = (*search.sources.find_links, *_list_kept_directories(request))
    return search._replace(sources=replace(search.sources, preferred=held, find_links=links))


def _needs_intel(stack: Stack) -> bool:
    """Whether wheels of the stack are on an index of Intel; else they are on the default one."""
    return bool(stack.release.oneccl or stack.release.ipex in ONLY_INTEL)


def _build_wheels(request: LockRequest, search: _Search, asked: Sequence[str]) -> _Search:
    """Builds the wheels that ``--build`` names; returns the search with their directories. Raises `UsageError`."""
    names = [canonicalize_name(name) for name in request.task.build]
    sources = search.sources
    built = packages.build_sources(packages.find_uv(), names, asked, request.target, sources, request.context.cache)
    links = (*sources.find_links, *(str(path.parent) for path in built))
    return search._replace(sources=replace(sources, find_links=links))


def _explain_unresolved(request: LockRequest, search: _Search, error: UsageError) -> UsageError:
    """Returns the error of a lock that cannot be made, with the indexes that are down and what may help."""
    reasons = [*error.reasons, *(f"this index does not answer: {index.url}" for index in search.down)]
    hint = error.hint
    if search.down and _needs_intel(request.stack):
        hint = suggest_sources(request.stack.release)
    if isinstance(error.hint, Hint):
        hint = request.suggest_build(error.hint.words[-1])
    elif request.base and error.code != "build":
        hint = request.suggest_without_bounds(str(error)) or _BASE_HINT
    named = [name for name in map(read_package_name, request.requested) if name and name in str(error)]  # by uv
    for misfit in load_torch_builds().find_for_cuda(named)[:1]:
        reasons, hint = [*reasons, misfit.why], misfit.fix
    return UsageError(error.sentence, reasons=reasons, hint=hint, exit=Exit.STEP, code=error.code)


def _explain_downgrades(request: LockRequest, older: Mapping[str, tuple[str, str]], error: UsageError) -> UsageError:
    """Returns the error of packages that cannot keep their version: ``older`` has it, and the one to be taken."""
    reasons = [f"{name} {version} would become {taken}" for name, (version, taken) in older.items()]
    text = "an environment of its own: --venv PATH; where only wheels are missing: --find-links DIRECTORY; "
    words = [word for name, (_, version) in older.items() for word in ("--with", f"{name}=={version}")]
    hint = Hint([*request.list_words(), *words], f"{text}or, with the older ones:")
    what = "packages that stay would become older"
    return UsageError(what, reasons=[*reasons, *error.reasons], hint=hint, exit=Exit.STEP)


def _describe_other_builds(lock: Lock, stack: Stack, down: Sequence[Index]) -> list[str]:
    """Returns notes about a torch that is no CPU build, and packages that were made for another build of it."""
    notes, torch = list[str](), lock.packages.get("torch")
    if torch and "+" not in torch and any(name.startswith("nvidia-") for name in lock.packages):
        because = f"; the CPU build's index does not answer: {down[0].url}" if down else ""
        size = f"{format_size(lock.size)} instead of about 0.2 GiB"  # torch 2.8.0+cpu is 176 MiB
        note = f"torch {torch} comes with CUDA's libraries, {size}{because}; "
        notes.append(note + "for the CPU build: --extra-index-url MIRROR or --find-links DIRECTORY that has it")
    versions = {wheel.name: wheel.version for wheel in lock.wheels if wheel.name == "torch" or not wheel.local}
    other = load_torch_builds().find_other_builds(versions, find_cpu_index(stack))
    return notes + [f"{misfit.why}: {misfit.fix}" for misfit in other]


def _list_kept_directories(request: LockRequest) -> tuple[str, ...]:
    """The directories of wheels of this machine from which the environment whose versions are kept was made."""
    cache, id = request.context.cache, request.base.id if request.base else ""
    locks = (packages.load_lock(cache, path.stem) for path in (cache / "locks").glob("*.json") if id)
    made_by = next((lock for lock in locks if lock and lock.id == id), None)
    wheels = [wheel for wheel in made_by.wheels if wheel.local and wheel.name != _IMPI] if made_by else []
    return tuple(dict.fromkeys(str(get_local_wheel_path(wheel).parent) for wheel in wheels))


def _find_newer_allowed(request: LockRequest, sources: Sources, wheels: Sequence[Wheel]) -> list[str]:
    """Returns pins of what is named now with a bound and becomes older than the bound asks for: others that are there
    stay where an old release of it, which has no requirements yet, lets them."""
    older = _find_downgrades(request, wheels, request.task.with_)
    named = [text for text in request.task.with_ if read_package_name(text) in older]
    if not named:
        return []
    sources = replace(sources, preferred={})
    newest = packages.find_newest_versions(packages.find_uv(), named, request.target, sources)
    return [f"{name}=={version}" for name, version in newest.items() if Version(older[name][1]) < Version(version)]


def _find_downgrades(
    request: LockRequest, wheels: Sequence[Wheel], texts: Iterable[str]
) -> Mapping[str, tuple[str, str]]:
    """Returns the packages of these requirements that would become older, with the versions that are there and those
    that would be taken."""
    held = request.base.packages if request.base else {}
    taken = {wheel.name: wheel.version for wheel in wheels}
    names = [name for name in map(read_package_name, texts) if name in held and name in taken]
    return {name: (held[name], taken[name]) for name in sorted(names) if Version(taken[name]) < Version(held[name])}


def _has_wheels(requirement: str, request: LockRequest, sources: Sources) -> bool:
    """Whether this package, and what it needs, has wheels where nothing else is asked for."""
    try:
        return bool(packages.resolve_wheels(packages.find_uv(), [requirement], request.target, sources))
    except UsageError:
        return False


def _describe_old_releases(
    request: LockRequest, sources: Sources, wheels: Sequence[Wheel], asked: Sequence[str]
) -> list[str]:
    """Describes packages named without a version that are older than the newest wheel (uv's reason) or pre-releases,
    and packages that they need which are older because something has only sources. Raises `UsageError` (exit 4) for
    a named one of the latter."""
    tool, versions = packages.find_uv(), {wheel.name: wheel.version for wheel in wheels}
    names = [name for text in request.requested if (name := read_package_name(text)) == canonicalize_name(text)]
    names = [name for name in names if name in versions and name not in sources.preferred]
    if not names:
        return []
    drawn = [wheel.name for wheel in wheels if not wheel.local and wheel.name not in {*names, *sources.preferred}]
    newest = packages.find_newest_versions(tool, [*names, *drawn], request.target, sources)
    notes = []
    for name in [*names, *drawn]:
        taken, last = versions[name], newest.get(name, versions[name])
        early = Version(taken).is_prerelease
        if Version(taken) < Version(last) or (early and not Version(last).is_prerelease):
            exact = f"{name}=={last}"
            try:
                packages.resolve_wheels(tool, [*asked, exact], request.target, sources)
            except UsageError as error:
                kind = "a pre-release, and the newest release is" if early else "an older release than the newest,"
                what = f"{name} {taken} is {kind} {last}"
                # uv speaks of sources, too, where the others that are asked for do not go with it
                if isinstance(error.hint, Hint) and not _has_wheels(exact, request, sources):
                    needed = error.hint.words[-1]
                    because = f"{last} needs {needed}, of which there are only sources"
                    if name in names:
                        reasons, hint = [because, f"as it is: {name}=={taken}"], request.suggest_build(needed)
                        raise UsageError(what, reasons=reasons, hint=hint, exit=Exit.STEP) from None
                    notes.append(f"{what}: {because}; --build {needed} makes a wheel")
                elif name in names:
                    cause = _UV_CAUSE.search(" ".join(error.reasons))
                    notes.append(f"{what}, because {cause[1]}" if cause else what)
        elif name in names and early:
            notes.append(f"{name} {taken} is a pre-release: there is no other wheel of it; --build {name} makes one")
    return notes


def _resolve_wheels(request: LockRequest, asked: Sequence[str], search: _Search) -> tuple[Wheel, ...]:
    """Returns all wheels. Those of packages that the version table has indexes for come from these, or else from
    what the user named for them, also where another index offers a higher version. Raises `UsageError`."""
    tool, sources = packages.find_uv(), search.sources
    own = _resolve_release(request, search)
    hashes = {wheel.sha256 for wheel in own}
    try:
        wheels = packages.resolve_wheels(tool, asked, request.target, sources)
    except UsageError:
        if not own:
            raise
        wheels = ()
    if hashes <= {wheel.sha256 for wheel in wheels}:
        return wheels
    plain = {wheel: wheel.url.replace("${", "%24{") for wheel in own}  # an index says it, and uv would put variables in
    exact = {wheel.name: f"{wheel.name} @ {url}#sha256={wheel.sha256}" for wheel, url in plain.items()}
    asked = [exact.get(read_package_name(text), text) for text in asked]
    return packages.resolve_wheels(tool, asked, request.target, sources)


def _resolve_release(request: LockRequest, search: _Search) -> tuple[Wheel, ...]:
    """Returns the wheels of packages that the version table has indexes for, where another source could replace them;
    empty where none could. Raises `UsageError` (exit 4), also where none of the sources named for a package has it."""
    up = [index for index in search.indexes if index not in search.down]
    pages = [index for index in up if index.kind == "find-links"]
    if search.sources.no_index or not (pages or request.release_sources != request.sources):
        return ()
    named = {name for index in request.stack.indexes for name in index.packages}
    wheels: list[Wheel] = []
    for pin in request.pins:
        if (name := read_package_name(pin)) not in named:
            continue
        try:
            wheels += _resolve_pin(request, pin, up, [page.url for page in pages if name in page.packages])
        except UsageError as error:
            silent = next((index.url for index in search.down if name in index.packages), None)
            if silent is None:
                raise
            what, hint = f"{silent}, the index of {pin}, does not answer", suggest_sources(request.stack.release)
            raise UsageError(what, reasons=error.reasons, hint=hint, exit=Exit.STEP, code=error.code) from None
    return tuple(wheels)


def _resolve_pin(request: LockRequest, pin: str, indexes: Sequence[Index], pages: Sequence[str]) -> tuple[Wheel, ...]:
    """Returns the wheel of one package, from the table's ``pages`` or ``indexes`` or else from what the user named for
    it. Raises `UsageError`."""
    tool, sources = packages.find_uv(), request.release_sources
    if pages:  # alone: uv takes pages and indexes together, and the highest version of both
        page = replace(sources, index=None, extra=(), find_links=(*request.task.find_links, *pages), no_index=True)
        try:
            return packages.resolve_wheels(tool, [pin], request.target, page, deps=False)
        except UsageError as error:
            if error.code != "unresolved":  # the page does not answer
                raise
    sources = _add_indexes(indexes, sources)
    return packages.resolve_wheels(tool, [pin], request.target, sources, deps=False)


def _add_answering_indexes(wanted: Sequence[Index], sources: Sources) -> tuple[Sources, list[Index]]:
    """Returns the sources and those of these indexes that answer; and those that do not."""
    with ThreadPoolExecutor(max(1, len(wanted))) as pool:
        answers = [*pool.map(lambda index: probe_index(index.url, sources), wanted)]
    down = [index for index, answered in zip(wanted, answers, strict=True) if not answered]
    return _add_indexes([index for index in wanted if index not in down], sources), down


def _add_indexes(indexes: Sequence[Index], sources: Sources) -> Sources:
    return replace(
        sources,
        extra=(*(index.url for index in indexes if index.kind == "index"), *sources.extra),
        find_links=(*sources.find_links, *(index.url for index in indexes if index.kind == "find-links")),
    )
