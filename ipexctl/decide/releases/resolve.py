"""Choose a stack: select the releases that match the request (else exit 2), then the newest one that all hosts support
(else exit 4). Exact versions are never changed; a default may be, with a note."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from ipexctl.decide.releases.table import ReleaseTable, get_minor_version, get_public_version, parse_version
from ipexctl.model.errors import Exit, Note, UsageError, advise
from ipexctl.model.facts import Facts, HostFacts
from ipexctl.model.stack import Arch, BindingOffer, MpiKind, Stack, StackRelease, StackRequest
from ipexctl.model.text import group_pairs, join_names

# What IPEX asks of a CPU at import (csrc/cpu/isa/cpu_feature.cpp). Flags decide; where none were read, the level does.
_FLAGS = {"AVX2": {"avx2", "fma"}, "AVX512": {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}}
# What impi_torch, packed here, asks for (impi_torch/pyproject.toml).
_IMPI_TORCH, _MPI4PY = "2.6", "mpi4py>=4"
# Which package holds it, of Debian and of Red Hat's family.
_PACKAGES = {
    "libzstd.so.1": ("libzstd1", "libzstd"),
    "libz.so.1": ("zlib1g", "zlib"),
    "libgomp.so.1": ("libgomp1", "libgomp"),
}
_BELOW = {"AVX2": {"below"}, "AVX512": {"below", "AVX2", "AVX2_VNNI"}}


def resolve_stack(
    request: StackRequest, facts: HostFacts, table: ReleaseTable, offer: BindingOffer | None = None
) -> Stack:
    """Choose the stack for these hosts (in the order of ``facts``; none: regardless of hosts). Releases with a newer
    oneccl_bind_pt than the ``offer`` are passed over. Raises `UsageError`: exit 2 for a combination that does not
    exist, exit 4 if the hosts do not support it."""
    require_one_architecture(facts)
    releases = _select_releases(request, table)
    fitting = [release for release in releases if request.python in {None, *release.pythons}]
    if not fitting:
        raise UsageError(
            f"there are no wheels of {releases[0].name} for Python {request.python}",
            reasons=(f"it has wheels for Python {_join_words(releases[0].pythons)}",),
            hint=_suggest_release_for_python(request, table),
        )
    refusals: list[tuple[StackRelease, tuple[Note, ...]]] = []
    for release in fitting:
        reasons, python = check_release(release, request, facts)
        if not reasons and offer and parse_version(release.oneccl) > parse_version(offer.newest):
            reasons = (Note("not-offered", offer.why),)
        if not reasons:
            stack = _build_stack(release, request, python, facts, table)
            if not refusals:
                return stack
            skipped, because = refusals[0]
            text = f"not {skipped.name}: {'; '.join(map(str, because))}; taking {release.name}"
            return replace(stack, notes=(Note("older-release", text), *stack.notes))
        refusals.append((release, reasons))
    release, reasons = refusals[0]
    if request.python and not check_release(release, replace(request, python=None), facts)[0]:
        raise _make_python_error(request.python, facts)
    raise UsageError(
        f"these hosts do not support {release.name}",
        reasons=[str(reason) for reason in reasons],
        hint=_suggest_alternative(request, facts, table),
        exit=Exit.STEP,
    )


def require_one_architecture(facts: HostFacts) -> None:
    """Raises `UsageError` (exit 4) for hosts of several architectures: a run and an environment are for one."""
    archs = group_pairs((fact.arch, host) for host, fact in facts.items() if fact.arch)
    if len(archs) > 1:
        least = min(archs.values(), key=len)
        raise UsageError(
            "these hosts are of several architectures, and an environment and a run are for one",
            reasons=[f"{join_names(hosts, 6)}: {arch}" for arch, hosts in archs.items()],
            hint=f"one at a time; without {join_names(least, 2)}: --limit '{','.join(f'!{host}' for host in least)}'",
            exit=Exit.STEP,
        )


def _make_python_error(wanted: str, facts: HostFacts) -> UsageError:
    unusable = {
        host: any(get_minor_version(python.version or "") == wanted for python in fact.pythons)
        for host, fact in facts.items()
        if wanted not in _list_usable_pythons(fact)
    }
    what = f"usable Python {wanted}" if any(unusable.values()) else f"Python {wanted}"
    sentence = f"{_join_words([*unusable])} {'has' if len(unusable) == 1 else 'have'} no {what}"
    if len(unusable) == len(facts):
        sentence = f"no host has {'a ' if any(unusable.values()) else ''}{what}"
    hosts_by_pythons = group_pairs((_describe_pythons(facts[host]), host) for host in unusable)
    reasons = [f"{_join_words(hosts)}: {pythons}" for pythons, hosts in hosts_by_pythons.items()]
    return UsageError(sentence, reasons=reasons, hint="leave out --python", exit=Exit.STEP)


def explain_request(request: StackRequest, table: ReleaseTable) -> tuple[str, ...]:
    """Explain in sentences how the request is met, or why it cannot be. Never raises."""
    try:
        stack = resolve_stack(request, {}, table)
    except UsageError as refusal:
        return (refusal.sentence, *refusal.reasons)
    release = stack.release
    sentences = [f"{stack.name} go together ({release.source})", *map(str, stack.notes)]
    if release.isa:
        glibcxx = f", GLIBCXX_{release.glibcxx}" if release.glibcxx else ""
        sentences.append(f"IPEX {release.ipex} needs {release.isa} or better, glibc {release.glibc}{glibcxx}")
    return tuple(dict.fromkeys(sentences))


def _select_releases(request: StackRequest, table: ReleaseTable) -> list[StackRelease]:
    """The releases that match the request, best first. Raises `UsageError` with every reason if there are none."""
    matching = _match_torch(request, table)
    _refuse_contradiction(request)
    for word, wanted, member in (
        ("intel_extension_for_pytorch", request.ipex, "ipex"),
        ("oneccl_bind_pt", request.oneccl, "oneccl"),
    ):
        if wanted is None:
            continue
        having = [release for release in matching if getattr(release, member) == get_public_version(wanted)]
        if not having:
            raise _make_pair_error(word, member, wanted, matching, request, table)
        matching = having
    if (request.track == "ipex" or request.ipex) and not any(release.ipex for release in matching):
        last = _find_newest_version(table, "ipex")
        raise UsageError(
            f"there is no intel_extension_for_pytorch for torch {request.torch}",
            reasons=(f"it ended with {last.ipex}, for torch {last.torch}",),
            hint=advise("install", "--track", "native", "--torch", request.torch or last.torch),
        )
    matching = _match_backend(matching, request, table)
    if request.track == "native":
        native = {release.torch: _remove_members(release, "ipex", "oneccl") for release in matching}
        return sorted(native.values(), key=lambda release: parse_version(release.torch), reverse=True)
    return _rank_releases(matching, request)


def _match_torch(request: StackRequest, table: ReleaseTable) -> list[StackRelease]:
    """The releases of the torch that is asked for. Raises `UsageError` for none, and for a oneCCL that does not fit."""
    torch = get_public_version(request.torch) if request.torch else None
    if torch == "latest":
        of_track = (release.torch for release in table.releases if release.ipex or request.track != "ipex")
        torch = max(of_track, key=parse_version)
    for mismatch in table.wrong:
        if request.oneccl and (torch, get_public_version(request.oneccl)) == (mismatch.torch, mismatch.oneccl):
            hint = advise("install", "--torch", mismatch.torch, "--oneccl", mismatch.instead)
            raise UsageError(mismatch.why, hint=hint)
    matching = [release for release in table.releases if match_version(torch, release.torch)]
    if not matching:
        minor = get_minor_version(torch or "")
        family = list(dict.fromkeys(r.torch for r in table.releases if get_minor_version(r.torch) == minor))
        reason = f"it goes from torch {table.releases[0].torch} to {table.releases[-1].torch}"
        if family:
            reason = f"of {minor} it has {_join_words(sorted(family, key=parse_version))}"
        raise UsageError(f"torch {request.torch} is not in the version table", reasons=(reason,), hint=advise("stacks"))
    return matching


def _refuse_contradiction(request: StackRequest) -> None:
    """Raises `UsageError` for a track or a backend that has no use for what else is asked for."""
    if request.track == "native" and (request.ipex or request.oneccl or request.backend == "ccl"):
        word = "intel_extension_for_pytorch" if request.ipex else "oneccl_bind_pt"
        raise UsageError(f"track native is plain torch: it has no {word}", hint="leave out --track, or the versions")
    if request.backend in {"gloo", "impi"} and request.oneccl:
        what = f"backend {request.backend} does not use oneccl_bind_pt, and --oneccl asks for it"
        raise UsageError(what, hint="leave out one of the two")


def _match_backend(matching: list[StackRelease], request: StackRequest, table: ReleaseTable) -> list[StackRelease]:
    """Those of these releases that have the backend. Raises `UsageError` if there are none."""
    if request.backend == "ccl" and not any(release.oneccl for release in matching):
        last = _find_newest_version(table, "oneccl")
        raise UsageError(
            f"backend ccl needs oneccl_bind_pt, and there is none for CPUs for {matching[-1].name}",
            reasons=(f"the last one is {last.oneccl}, for torch {last.torch}",),
            hint=f"--torch {last.torch}, or --backend {'impi' if _supports_impi(matching[-1]) else 'gloo'}",
        )
    if request.backend != "impi":
        return matching
    supporting = [release for release in matching if _supports_impi(release)]
    if not supporting:
        what = f"backend impi needs torch {_IMPI_TORCH} or newer, and there is none in {matching[-1].name}"
        raise UsageError(what, hint=advise("install", "--backend", "ccl" if matching[-1].oneccl else "gloo"))
    return supporting


def match_version(wanted: str | None, version: str) -> bool:
    """Returns whether an exact version meets a request: None and "latest" are any, "2.7.0" (and "2.7.0+cpu") is this
    one, "2.7" every 2.7.x, ">=2.6,<2.8" is a specifier of packaging. Raises `UsageError` (exit 2) for other texts."""
    if wanted in {None, "latest"}:
        return True
    try:
        parsed = Version(wanted)
    except ValueError:
        try:
            return SpecifierSet(wanted.strip() or "none").contains(version)
        except InvalidSpecifier:
            hint = "a version is written 2.7.0, 2.7, '>=2.6,<2.8' or latest"
            raise UsageError(f"torch {wanted!r} is not a version", hint=hint) from None
    if len(parsed.release) < 3:
        return Version(version).release[: len(parsed.release)] == parsed.release
    return parsed.public == version


def _rank_releases(releases: Sequence[StackRelease], request: StackRequest) -> list[StackRelease]:
    """Returns the releases with as many of torch, IPEX and binding as the request permits, best first; then, where
    nothing demands the binding, those without it, and last plain torch where no version is named."""
    every = releases
    if request.backend in {"gloo", "impi"}:
        if request.torch is None and request.ipex is None:
            releases = [release for release in releases if release.ipex]
        releases = [_remove_members(release, "oneccl") for release in releases]
    elif (request.torch is None and request.ipex is None) or request.backend == "ccl" or request.oneccl:
        # Without a version: the newest that holds all three together.
        releases = [release for release in releases if release.oneccl]
    if request.track == "ipex":
        releases = [release for release in releases if release.ipex]

    def rate(release: StackRelease) -> tuple[object, ...]:
        return (
            request.torch is not None and bool(release.ipex),
            not release.unconfirmed,
            not release.avoid,
            parse_version(release.torch),
            parse_version(release.ipex),
            parse_version(release.oneccl),
        )

    ranked = sorted(releases, key=rate, reverse=True)
    if request.backend == "auto" and request.oneccl is None:
        without = [_remove_members(release, "oneccl") for release in every if release.ipex]
        ranked += sorted(without, key=rate, reverse=True)
        if request.torch is None and request.ipex is None and request.track is None:
            ranked += sorted((_remove_members(release, "ipex") for release in every), key=rate, reverse=True)
    return list(dict.fromkeys(ranked))


def _make_pair_error(
    word: str, member: str, wanted: str, releases: Sequence[StackRelease], request: StackRequest, table: ReleaseTable
) -> UsageError:
    versions = sorted({getattr(release, member) for release in releases} - {""}, key=parse_version)
    having = {release.torch for release in table.releases if getattr(release, member) == get_public_version(wanted)}
    elsewhere = sorted(having, key=parse_version)
    reasons = []
    subject = f"torch {request.torch}" if request.torch else ""
    if not subject and request.ipex and member == "oneccl":
        subject = f"intel_extension_for_pytorch {request.ipex}"
    if subject:
        goes = f"goes with {_join_words(versions)}" if versions else f"has no {word} for CPUs"
        reasons.append(f"{subject} {goes}")
    goes = f"goes with torch {_join_words(elsewhere)}" if elsewhere else "is not in the version table"
    return UsageError(
        f"{word} {wanted} does not go with {subject}" if subject and elsewhere else f"{word} {wanted} is not known",
        reasons=[*reasons, f"{word} {wanted} {goes}"],
        hint=advise("stacks", "--for-torch", request.torch or (elsewhere or ["2.7.0"])[-1]),
    )


def check_release(release: StackRelease, request: StackRequest, facts: HostFacts) -> tuple[tuple[Note, ...], str]:
    """Returns every reason why some host cannot hold the release (an unknown fact is no reason), and the
    Python that all of them have."""
    reasons: dict[tuple[str, str], list[str]] = {}
    ipex = f"intel_extension_for_pytorch {release.ipex}"

    def add_reason(host: str, code: str, text: str) -> None:
        reasons.setdefault((code, text), []).append(host)

    for host, fact in facts.items():
        if fact.arch not in {None, *get_args(Arch)}:
            add_reason(host, "arch", f"{fact.arch}, and wheels of torch with an MPI are for x86_64 and aarch64 only")
            continue
        if fact.arch == "aarch64" and not (release.aarch64_pythons and not release.ipex):
            what = ipex if release.ipex else f"torch {release.torch}"
            add_reason(host, "arch", f"aarch64, and wheels of {what} are for x86_64 only")
            continue
        if release.isa and not _has_isa(fact, release.isa):
            level = "a CPU without AVX2" if fact.isa_level == "below" else f"a CPU of level {fact.isa_level}"
            add_reason(host, "isa", f"{level}, {ipex} needs {release.isa}")
        if release.glibc and fact.glibc and parse_version(fact.glibc) < parse_version(release.glibc):
            add_reason(host, "glibc", f"glibc {fact.glibc}, the wheels need {release.glibc}")
        have = (fact.glibcxx or "").removeprefix("GLIBCXX_")
        if release.glibcxx and have and parse_version(have) < parse_version(release.glibcxx):
            what = f"libstdc++ ends at GLIBCXX_{have}, {ipex} needs GLIBCXX_{release.glibcxx}"
            add_reason(host, "glibcxx", f"{what}: {suggest_library_package('libstdc++.so.6')}")
        for library in release.libraries:
            if fact.libraries and library not in fact.libraries:
                what = f"{library} is missing, {ipex} loads it"
                add_reason(host, "library", f"{what}: {suggest_library_package(library)}")
    python, unsuitable = _choose_python(release, request, facts)
    for host, text in unsuitable:
        add_reason(host, "python", text)
    order = list(facts)
    notes = [Note(code, text, tuple(hosts)) for (code, text), hosts in reasons.items()]
    return tuple(sorted(notes, key=lambda note: order.index(note.hosts[0]))), python


def suggest_library_package(message: str) -> str:
    """The package that provides the library named by a reason or a loader error; empty for an unknown library."""
    if "GLIBCXX_" in message or "libstdc++.so.6" in message:
        return "libstdc++ of GCC 12 or newer has it (Debian 12, Ubuntu 22.04)"
    for library, (debian, redhat) in _PACKAGES.items():
        if library in message:
            return f"apt install {debian}, or dnf install {redhat}"
    return ""


def _has_isa(fact: Facts, isa: str) -> bool:
    if fact.flags:
        return _FLAGS[isa] <= fact.flags
    return fact.isa_level not in _BELOW[isa]  # None: unknown: no reason against the release


def _choose_python(release: StackRelease, request: StackRequest, facts: HostFacts) -> tuple[str, list[tuple[str, str]]]:
    """Returns the newest Python of the release that every host has; otherwise what each host has instead."""
    arm = any(fact.arch == "aarch64" for fact in facts.values())
    wanted = {request.python} if request.python else set(release.aarch64_pythons if arm else release.pythons)
    usable = {host: _list_usable_pythons(fact) for host, fact in facts.items()}
    if common := wanted.intersection(*usable.values()):
        # The distribution's own Python before others: it has the same path on all hosts and is not removed by users.
        own = [{minor for minor, path in pythons.items() if _is_system_python(path)} for pythons in usable.values()]
        return max(common.intersection(*own) or common, key=parse_version), []
    needed = _join_words(sorted(wanted, key=parse_version))
    missing = [host for host in facts if not usable[host].keys() & wanted]
    if missing:
        return "", [(host, f"{_describe_pythons(facts[host])}; needed is Python {needed}") for host in missing]
    have = {host: _join_words(sorted(usable[host].keys() & wanted, key=parse_version)) for host in facts}
    return "", [(host, f"has Python {pythons}; all hosts need the same") for host, pythons in have.items()]


def _list_usable_pythons(fact: Facts) -> dict[str, str]:
    """Returns the usable Pythons of a host: minor version → path, the distribution's own where it has one."""
    pythons = [python for python in fact.pythons if python.usable and python.version]
    pythons.sort(key=lambda python: not _is_system_python(python.path))
    return {get_minor_version(python.version or ""): python.path for python in reversed(pythons)}


def _is_system_python(path: str) -> bool:
    return path.startswith("/usr/bin/")


def _describe_pythons(fact: Facts) -> str:
    seen = [
        f"{python.path} is {python.version}"
        if python.usable and python.version
        else f"{python.path} {python.why or 'does not work'}"
        for python in fact.pythons
    ]
    return ", ".join(seen[:4]) or "no Python found"


def _build_stack(
    release: StackRelease, request: StackRequest, python: str, facts: HostFacts, table: ReleaseTable
) -> Stack:
    glibc = min([fact.glibc for fact in facts.values() if fact.glibc], key=parse_version, default="")
    arch: Arch = "aarch64" if any(fact.arch == "aarch64" for fact in facts.values()) else "x86_64"
    mpi: MpiKind = "ipex" if release.ipex_mpi else "impi-rt"
    if release.oneccl:
        mpi = "binding"
    if arch == "aarch64":  # Intel's has no wheel
        mpi = "mpich"
    old = bool(glibc) and parse_version(glibc) < parse_version(table.impi["newest_glibc"])
    impi = table.impi["older" if old else "newest"]
    mpich = table.mpis["mpich"]["newest"]
    version = {"binding": release.binding_mpi, "ipex": release.ipex_mpi, "impi-rt": impi, "mpich": mpich}[mpi]
    packages = {
        "torch": release.torch,
        "intel-extension-for-pytorch": release.ipex,
        "oneccl-bind-pt": release.oneccl and (request.oneccl or release.oneccl),  # 2.7.0+own: exactly that build
        "impi-rt": version if mpi == "impi-rt" else "",
        "mpich": version if mpi == "mpich" else "",
    }
    pins = [*(f"{name}=={pinned}" for name, pinned in packages.items() if pinned), *release.requires]
    if not any(pin.startswith("numpy") for pin in pins):  # torch does not require it, but works badly without it
        pins.append("numpy")
    notes: list[Note] = []
    if release.unconfirmed:
        words = {"ipex": f"IPEX {release.ipex}", "oneccl": f"oneccl_bind_pt {release.oneccl or '(none)'}"}
        members = " and ".join(words[member] for member in release.unconfirmed)
        text = f"unconfirmed: no source of Intel lists {members} with torch {release.torch}"
        notes.append(Note("unconfirmed", text))
    if release.yanked:
        text = f"intel_extension_for_pytorch {release.ipex} is yanked ({release.yanked}): only an exact pin gets it"
        notes.append(Note("yanked", text))
    if mpi == "mpich":
        notes.append(Note("mpi-wheel", f"MPICH {version}: Intel MPI has no wheel for {arch}"))
    if mpi == "impi-rt" and old:
        text = f"impi-rt {version}, because glibc {glibc} is older than {table.impi['newest_glibc']}"
        notes.append(Note("older-impi-rt", text))
    backend: Literal["ccl", "impi", "gloo"] = "ccl" if release.oneccl else "gloo"
    if request.backend in {"auto", "impi"} and not release.oneccl and _supports_impi(release):
        backend = "impi"
        pins.append(_MPI4PY)
        if request.backend == "auto":
            notes.append(Note("backend-impi", f"backend impi: there is no oneccl_bind_pt in {release.name}"))
    return Stack(
        release=release,
        backend=backend,
        mpi=mpi,
        mpi_version=version,
        python=python,
        pins=tuple(pins),
        indexes=tuple(table.indexes[name] for name in release.indexes),
        interpreters={host: _list_usable_pythons(fact)[python] for host, fact in facts.items()},
        arch=arch,
        glibc=glibc,
        notes=(*notes, *(Note("release", text) for text in release.notes)),
    )


def _supports_impi(release: StackRelease) -> bool:
    return parse_version(release.torch) >= parse_version(_IMPI_TORCH)


def replace_impi_by_gloo(stack: Stack, why: str) -> Stack:
    """Returns the same stack with Gloo where impi_torch is not available; ``why`` goes into its notes."""
    pins = tuple(pin for pin in stack.pins if pin != _MPI4PY)
    notes = tuple(note for note in stack.notes if note.code != "backend-impi")
    gloo = Note("backend-gloo", f"backend gloo, not impi: {why}")
    return replace(stack, backend="gloo", pins=pins, notes=(*notes, gloo))


def _remove_members(release: StackRelease, *members: str) -> StackRelease:
    """Returns the release without these members; without IPEX it is plain torch, without the requirements of IPEX."""
    if "ipex" in members:
        return StackRelease(
            torch=release.torch,
            pythons=release.torch_pythons,
            torch_pythons=release.torch_pythons,
            aarch64_pythons=release.aarch64_pythons,
            glibc=release.glibc,
            requires=tuple(pin for pin in release.requires if not pin.startswith("setuptools")),
            indexes=("torch-cpu",),
            source=release.source,
        )
    return replace(
        release, oneccl="", binding_mpi="", unconfirmed=tuple(name for name in release.unconfirmed if name != "oneccl")
    )


def _suggest_release_for_python(request: StackRequest, table: ReleaseTable) -> str | None:
    releases = [
        release.torch
        for release in table.releases
        if request.python in release.pythons and not release.unconfirmed and (release.ipex or request.track == "native")
    ]
    return f"for Python {request.python}: --torch {releases[-1]}" if releases else None


def _suggest_alternative(request: StackRequest, facts: HostFacts, table: ReleaseTable) -> str | None:
    """Suggest a release that these hosts support when the requested versions are given up."""
    ways = (
        StackRequest(backend=request.backend, track=request.track),
        StackRequest(backend="gloo"),
        StackRequest(track="native"),
    )
    with_python = [replace(other, python=request.python) for other in ways] if request.python else []
    for other in (*with_python, *ways):
        if other == request:
            continue
        for release in _select_releases(other, table):
            if not check_release(release, other, facts)[0]:
                words = [f"--torch {release.torch}"]
                if other.backend == "gloo":
                    words.append("--backend gloo")
                if not release.ipex:
                    words.append("--track native")
                if request.python and not other.python:
                    words.append("without --python")
                return f"these hosts support {release.name}: {' '.join(words)}"
    return None


def suggest_sources(release: StackRelease) -> str:
    """Returns how a release can be installed whose own index does not answer, best first."""
    other = f", or --backend {'impi' if _supports_impi(release) else 'gloo'}" if release.oneccl else ""
    return f"--extra-index-url MIRROR, --find-links DIRECTORY or --wheels WHEELHOUSE with its wheels{other}"


def _find_newest_version(table: ReleaseTable, member: str) -> StackRelease:
    having = [release for release in table.releases if getattr(release, member) and not release.unconfirmed]
    return max(having, key=lambda release: parse_version(release.torch))


def _join_words(words: Sequence[str]) -> str:
    if len(words) > 4 and all(word.startswith("3.") for word in words):
        return f"{words[0]}–{words[-1]}"
    return ", ".join(words)
