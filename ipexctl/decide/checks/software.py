"""Checks of installed and installable software: Pythons, libraries, the stack, MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ipexctl.decide.checks.cluster import CheckHit, Cluster, find_majority
from ipexctl.decide.releases.table import ReleaseTable, minor_version, parse_version, public_version
from ipexctl.model.facts import Facts, Installed
from ipexctl.model.findings import Level
from ipexctl.model.stack import StackRelease

_STACK = {"torch": "torch", "intel-extension-for-pytorch": "ipex", "oneccl-bind-pt": "oneccl", "impi-rt": "impi-rt"}


def _recommended_releases(table: ReleaseTable) -> list[StackRelease]:
    """Releases with IPEX that the table does not advise against."""
    return [release for release in table.releases if release.ipex and not release.avoid]


def check_glibc(cluster: Cluster) -> Iterator[CheckHit]:
    yield from _check_requirement(
        cluster,
        "SYS002",
        lambda fact: fact.glibc,
        lambda release: release.glibc,
        lambda own: {"glibc": own, "what": "glibc"},
    )


def check_glibcxx(cluster: Cluster) -> Iterator[CheckHit]:
    yield from _check_requirement(
        cluster,
        "SYS003",
        lambda fact: fact.glibcxx.removeprefix("GLIBCXX_") if fact.glibcxx else None,
        lambda release: release.glibcxx,
        lambda own: {"glibcxx": f"GLIBCXX_{own}"},
    )


def _check_requirement(
    cluster: Cluster,
    code: str,
    own: Callable[[Facts], str | None],
    demand: Callable[[StackRelease], str],
    values: Callable[[str], dict[str, object]],
) -> Iterator[CheckHit]:
    for host, fact in cluster.facts.items():
        version = own(fact)
        if version is None:
            continue
        lost = [
            release
            for release in _recommended_releases(cluster.table)
            if demand(release) and parse_version(version) < parse_version(demand(release))
        ]
        if lost:
            yield _report_lost_releases(
                cluster, code, host, lost, values(version), f"{max(map(demand, lost), key=parse_version)} is needed"
            )


def check_libraries(cluster: Cluster) -> Iterator[CheckHit]:
    for host, fact in cluster.facts.items():
        if not fact.libraries:
            continue
        for library in sorted({name for release in _recommended_releases(cluster.table) for name in release.libraries}):
            if library not in fact.libraries:
                lost = [release for release in _recommended_releases(cluster.table) if library in release.libraries]
                yield _report_lost_releases(cluster, "SYS004", host, lost, {"library": library}, "")


def _report_lost_releases(
    cluster: Cluster, code: str, host: str, lost: Sequence[StackRelease], values: dict[str, object], evidence: str
) -> CheckHit:
    """An error if no release is left, a warning if the newest is lost, else information."""
    releases = _recommended_releases(cluster.table)
    left = [release for release in releases if release not in lost]
    newest = left[-1].torch if left else ""
    level: Level = "error" if not left else "warning" if releases[-1] in lost else "info"
    remedy = f"install an older release: ipexctl install --torch {newest}" if left else "a newer system there"
    if level == "info":
        remedy = "nothing to do with the newest release (the default)"
    placeholders = {**values, "rows": _name_releases(lost, releases), "remedy": remedy}
    return CheckHit(code, host, placeholders, evidence, level, action=level != "info")


def _name_releases(lost: Sequence[StackRelease], releases: Sequence[StackRelease]) -> str:
    if len(lost) == len(releases):
        return "IPEX at all"
    versions = list(dict.fromkeys(release.ipex for release in lost))
    return f"IPEX {', '.join(versions)}" if len(versions) < 4 else f"IPEX {versions[0]} to {versions[-1]}"


def check_pythons(cluster: Cluster) -> Iterator[CheckHit]:
    known = {minor for release in cluster.table.releases if release.ipex for minor in release.pythons}
    plain_torch = {minor for release in cluster.table.releases for minor in release.torch_pythons}
    have = {host: _python_versions(fact) & known for host, fact in cluster.facts.items() if fact.pythons}
    if cluster.live:
        have.update({host: set() for host, fact in cluster.facts.items() if not fact.pythons and not fact.unread})
    for host, minors in have.items():
        if not minors:
            usable = _python_versions(cluster.facts[host]) & plain_torch
            native = "; plain torch works: ipexctl install --track native" if usable else ""
            evidence = f"{_describe_pythons(cluster.facts[host])}{native}"
            yield CheckHit("PY001", host, {"needed": _describe_range(known)}, evidence, "warning" if usable else None)
    fit = {host: minors for host, minors in have.items() if minors}
    if len(fit) < 2 or set.intersection(*fit.values()):
        return
    usual = find_majority({host: max(minors, key=parse_version) for host, minors in fit.items()})
    for host, minors in fit.items():
        if usual not in minors:
            yield CheckHit("PY002", host, {"found": ", ".join(sorted(minors, key=parse_version)), "version": usual})


def _python_versions(fact: Facts) -> set[str]:
    return {minor_version(python.version) for python in fact.pythons if python.usable and python.version}


def _describe_pythons(fact: Facts) -> str:
    words = [
        python.version if python.usable and python.version else f"{python.path}: {python.why}"
        for python in fact.pythons
    ]
    return ", ".join(dict.fromkeys(words)) or "none found"


def _describe_range(minors: set[str]) -> str:
    ordered = sorted(minors, key=parse_version)
    return f"it exists for {ordered[0]} to {ordered[-1]}" if ordered else "it exists for none"


# --- the stack that is there -----------------------------------------------------------------------------------------


def check_installed_stack(cluster: Cluster) -> Iterator[CheckHit]:
    """Torch under the wrong IPEX or binding, half an environment, no environment."""
    exists = {host for host, fact in cluster.facts.items() if fact.installed and fact.installed.exists}
    for host, fact in cluster.facts.items():
        if fact.installed is None:
            continue
        if host not in exists:
            yield CheckHit("STK003" if exists else "STK004", host, {"venv": fact.installed.venv})
            continue
        packages = fact.installed.packages
        torch, ipex, oneccl = (packages.get(name) for name in list(_STACK)[:3])
        if torch is None:
            what = "no torch" if packages else "no packages"
            yield CheckHit("STK006", host, {"venv": fact.installed.venv, "what": what})
        elif ipex is not None and minor_version(ipex) != minor_version(torch):
            wanted = _find_torch_for(cluster.table, "ipex", ipex) or f"{minor_version(ipex)}.0"
            yield CheckHit("STK001", host, {"torch": torch, "ipex": ipex, "wanted": wanted})
        elif oneccl is not None and minor_version(oneccl) != minor_version(torch):
            wanted = _find_torch_for(cluster.table, "oneccl", oneccl) or torch
            yield CheckHit("STK005", host, {"torch": torch, "oneccl": oneccl, "wanted": wanted})


def _find_torch_for(table: ReleaseTable, member: str, version: str) -> str:
    torches = (release.torch for release in table.releases[::-1] if getattr(release, member) == public_version(version))
    return next(torches, "")


def needs_import_check(installed: Installed) -> bool:
    """Whether this stack is untested: not made by ipexctl, or changed since."""
    held = installed.packages
    torch = held.get("torch")
    others = [held[name] for name in ("intel-extension-for-pytorch", "oneccl-bind-pt") if name in held]
    return not installed.marker or any(
        torch is None or minor_version(other) != minor_version(torch) for other in others
    )


def check_imports(cluster: Cluster, problems: Mapping[str, Sequence[str]]) -> Iterator[CheckHit]:
    """``problems`` holds the import errors of each host, in Python's words."""
    for host, messages in problems.items():
        if messages:
            installed = cluster.facts[host].installed
            packages = installed.packages if installed else {}
            yield CheckHit("STK007", host, {"what": _explain_import_error(messages[0], packages)}, "\n".join(messages))


def _explain_import_error(message: str, packages: Mapping[str, str]) -> str:
    """What an import error of this stack means; else its own words."""
    torch = packages.get("torch", "")
    if "undefined symbol" in message:
        for name in ("intel-extension-for-pytorch", "oneccl-bind-pt"):
            built = packages.get(name)
            if built and minor_version(built) != minor_version(torch):
                name = name.replace("-", "_")
                return f"torch {torch} under {name} {built}, which was built for torch {minor_version(built)}"
        return f"parts of it were built for another torch than {torch}"
    for word, meaning in (
        ("GLIBCXX_", "its libstdc++ is too old"),
        ("GLIBC_", "its glibc is too old"),
        ("executable stack", "its kernel or glibc refuses libraries that ask for an executable stack"),
        ("cannot open shared object", "a library is missing"),
        ("No module named", "a package is missing"),
    ):
        if word in message:
            return meaning
    return "it ends with an error"


def check_stack_drift(cluster: Cluster) -> Iterator[CheckHit]:
    stacks = {
        host: tuple(
            (short, public_version(version))
            for name, short in _STACK.items()
            if (version := _package_version(fact, name))
        )
        for host, fact in cluster.facts.items()
        if fact.installed and fact.installed.exists and _package_version(fact, "torch")
    }
    usual = find_majority(stacks)
    for host, own in stacks.items():
        if usual is not None and own != usual:
            words = " ".join(f"{name} {version}" for name, version in own)
            yield CheckHit(
                "STK002", host, {"what": words}, f"most: {' '.join(f'{name} {version}' for name, version in usual)}"
            )


def _package_version(fact: Facts, name: str) -> str | None:
    return fact.installed.packages.get(name) if fact.installed else None


def check_end_of_life(cluster: Cluster) -> Iterator[CheckHit]:
    for host, fact in cluster.facts.items():
        if ipex := _package_version(fact, "intel-extension-for-pytorch"):
            yield CheckHit("EOL001", host, {}, f"intel_extension_for_pytorch {ipex}")


def check_compiler(cluster: Cluster) -> Iterator[CheckHit]:
    for host, fact in cluster.facts.items():
        torch = _package_version(fact, "torch")
        native = (
            torch is not None
            and not _package_version(fact, "intel-extension-for-pytorch")
            and parse_version(torch).major >= 2
        )
        if native and fact.tools and "g++" not in fact.tools:
            yield CheckHit("SYS007", host, {})


def check_other_mpi(cluster: Cluster) -> Iterator[CheckHit]:
    for host, fact in cluster.facts.items():
        for text in fact.mpi:
            path, _, version_output = text.partition(": ")
            venv = fact.installed.venv if fact.installed else ""
            flavour = _detect_mpi_flavour(version_output)
            if flavour and path.endswith("/mpirun") and not (venv and path.startswith(venv)):
                yield CheckHit("MPI001", host, {"flavour": flavour}, path)


def _detect_mpi_flavour(version_output: str) -> str:
    for word, flavour in (
        ("Open MPI", "Open MPI"),
        ("OpenRTE", "Open MPI"),
        ("prte", "Open MPI"),
        ("Intel", ""),
        ("HYDRA", "MPICH"),
    ):
        if word in version_output:
            return flavour
    return "another MPI" if version_output else ""
