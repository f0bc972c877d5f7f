"""Checks of installed and installable software: Pythons, libraries, the stack, MPI."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ipexctl.decide.checks.cluster import CheckHit, Cluster, find_majority
from ipexctl.decide.launch.dialects import identify_dialect
from ipexctl.decide.releases.env_health import advise_packages, find_different_packages, find_env_fault
from ipexctl.decide.releases.table import get_minor_version, get_public_version, parse_version
from ipexctl.model.errors import advise
from ipexctl.model.facts import Facts, Installed
from ipexctl.model.reports import Level
from ipexctl.model.stack import StackRelease
from ipexctl.model.text import fold_names, group_pairs, join_names, printable

_IPEX, _ONECCL = "intel-extension-for-pytorch", "oneccl-bind-pt"
_STACK = {"torch": "torch", "ipex": _IPEX, "oneccl": _ONECCL, "impi-rt": "impi-rt"}

# What a run refuses an environment for.
_ENV_FINDINGS = {"untrusted": "STK008", "absent": "STK004", "changed": "STK010", "foreign": "STK011"}

# The command that installs tcmalloc, by the name of the distribution; the first that fits. Since Debian 13 and Ubuntu
# 24.04 the package of the library has another name (64-bit time_t). On Enterprise Linux it is in EPEL (8, 9 and 10);
# RHEL itself has no package that enables EPEL. Sources: the package pages of Debian, Ubuntu, and Fedora with EPEL;
# gperftools.spec of openSUSE.
_TCMALLOC_COMMANDS = (
    (r"Debian GNU/Linux ([0-9]|1[0-2])\b|Ubuntu (1[0-9]|2[0-3])\.", "sudo apt-get install libtcmalloc-minimal4"),
    (r"Debian GNU/Linux|Ubuntu", "sudo apt-get install libtcmalloc-minimal4t64"),
    (r"Fedora", "sudo dnf install gperftools-libs"),
    (
        r"(CentOS Stream|Rocky Linux|AlmaLinux) ([89]|10)\b",
        "sudo dnf install epel-release && sudo dnf install gperftools-libs",
    ),
    (r"Red Hat Enterprise Linux ([89]|10)\b", "sudo dnf install gperftools-libs  # in EPEL"),
    (r"openSUSE", "sudo zypper install libtcmalloc4"),
)
_ANY_DISTRIBUTION = "install tcmalloc (gperftools) or jemalloc from the packages of its distribution"


def check_system_libraries(cluster: Cluster) -> Iterator[CheckHit]:
    """Releases with IPEX that a host cannot install: its glibc or libstdc++ is too old, or a library is missing."""
    releases = [release for release in cluster.table.releases if release.ipex and not release.avoid]
    libraries = sorted({name for release in releases for name in release.libraries})
    for host, fact in cluster.facts.items():
        glibcxx = (fact.glibcxx or "").removeprefix("GLIBCXX_")
        for code, own, demands, words in (
            ("SYS002", fact.glibc, [release.glibc for release in releases], {"glibc": fact.glibc, "what": "glibc"}),
            ("SYS003", glibcxx, [release.glibcxx for release in releases], {"glibcxx": fact.glibcxx}),
        ):
            needed = max(demands, key=parse_version, default="")
            if own and parse_version(own) < parse_version(needed):
                pairs = zip(releases, demands, strict=True)
                lost = [release for release, demand in pairs if parse_version(own) < parse_version(demand)]
                yield _report_lost_releases(code, host, releases, lost, words, f"{needed} is needed")
        for library in libraries if fact.libraries else ():
            if library not in fact.libraries:
                lost = [release for release in releases if library in release.libraries]
                yield _report_lost_releases("SYS004", host, releases, lost, {"library": library})


def _report_lost_releases(
    code: str,
    host: str,
    releases: Sequence[StackRelease],
    lost: Sequence[StackRelease],
    values: Mapping[str, object],
    evidence: str = "",
) -> CheckHit:
    """Returns an error if no release is left, a warning if the newest is lost, else information."""
    left = [release for release in releases if release not in lost]
    level: Level = "error"
    remedy = "a newer system there"
    if left:
        level = "warning" if releases[-1] in lost else "info"
        remedy = advise("install", "--torch", left[-1].torch, text="an older release:")
    if level == "info":
        remedy = "nothing to do with the newest release (the default)"
    versions = list(dict.fromkeys(release.ipex for release in lost))
    rows = f"IPEX {', '.join(versions)}" if len(versions) < 4 else f"IPEX {versions[0]} to {versions[-1]}"
    placeholders = {**values, "rows": rows if left else "IPEX at all", "remedy": remedy}
    return CheckHit(code, host, placeholders, evidence, level, action=level != "info")


def check_allocators(cluster: Cluster) -> Iterator[CheckHit]:
    """Hosts whose ranks use glibc's malloc, because nothing better was found there. Their fix is one text, so that they
    are one finding."""
    commands: dict[str, str] = {}
    for host, fact in cluster.facts.items():
        # The list of libraries begins with glibc's version.
        known = fact.glibc is not None and fact.unread.keys().isdisjoint({"libraries", "venv", "probe"})
        if known and not fact.allocators.keys() & {"tcmalloc", "jemalloc"}:
            fitting = (command for name, command in _TCMALLOC_COMMANDS if re.match(name, fact.distribution or ""))
            commands[host] = next(fitting, _ANY_DISTRIBUTION)
    groups = group_pairs((command, host) for host, command in commands.items())
    several = [f"on {fold_names(hosts, 3)}: {command}" for command, hosts in groups.items()]
    remedy = "; ".join(groups if len(groups) == 1 else several)
    for host in commands:
        yield CheckHit("SYS010", host, {"remedy": f"for an administrator: {remedy}"})


def check_pythons(cluster: Cluster) -> Iterator[CheckHit]:
    """No interpreter that IPEX or plain torch exists for, or none that all hosts have."""
    known = {minor for release in cluster.table.releases if release.ipex for minor in release.pythons}
    plain_torch = {minor for release in cluster.table.releases for minor in release.torch_pythons}
    fit: dict[str, set[str]] = {}
    markers = (fact.installed.marker for fact in cluster.facts.values() if fact.installed)
    version = next((marker.python for marker in markers if marker), "3.11")
    for host, fact in cluster.facts.items():
        minors = {get_minor_version(python.version) for python in fact.pythons if python.usable and python.version}
        if minors & (known | plain_torch):
            fit[host] = minors & (known | plain_torch)
        if not minors & known and (fact.pythons or (cluster.live and not fact.unread)):
            words = ((python.usable and python.version) or f"{python.path}: {python.why}" for python in fact.pythons)
            found = ", ".join(dict.fromkeys(words)) or "none found"
            native = "; plain torch works (--track native)" if host in fit else ""
            needed = _describe_range("IPEX", known) if host in fit else _describe_range("torch", known | plain_torch)
            values = {"needed": needed, "version": version}
            yield CheckHit("PY001", host, values, found + native, "warning" if host in fit else None)
    if len(fit) < 2 or set.intersection(*fit.values()):
        return
    usual = find_majority({host: max(minors, key=parse_version) for host, minors in fit.items()})
    for host, minors in fit.items():
        if usual not in minors:
            yield CheckHit("PY002", host, {"found": ", ".join(sorted(minors, key=parse_version)), "version": usual})


def _describe_range(name: str, minors: Iterable[str]) -> str:
    ordered = sorted(minors, key=parse_version)
    return f"{name} (it exists for {ordered[0]} to {ordered[-1]})" if ordered else name


def check_installed_stack(cluster: Cluster) -> Iterator[CheckHit]:
    """Torch under the wrong IPEX or binding, half an environment or none, another stack than most hosts have."""
    stacks: dict[str, str] = {}
    installs = cluster.collect_known(lambda fact: fact.installed)
    some_exist = any(installed.exists for installed in installs.values())
    for host, installed in installs.items():
        packages = installed.packages
        torch, ipex, oneccl = (packages.get(name) for name in ("torch", _IPEX, _ONECCL))
        hit = _check_environment(host, installed, some_exist)
        if hit:
            yield hit
        if torch is None or (hit and hit.code not in {"STK010", "STK011"}):
            continue
        names = ((name, packages[package]) for name, package in _STACK.items() if package in packages)
        stacks[host] = " ".join(f"{name} {get_public_version(version)}" for name, version in names)
        if ipex is not None and get_minor_version(ipex) != get_minor_version(torch):
            wanted = [release.torch for release in cluster.table.releases if release.ipex == get_public_version(ipex)]
            values = {"torch": torch, "ipex": ipex, "wanted": [f"{get_minor_version(ipex)}.0", *wanted][-1]}
            yield CheckHit("STK001", host, values)
        elif oneccl is not None and get_minor_version(oneccl) != get_minor_version(torch):
            wanted = [r.torch for r in cluster.table.releases if r.oneccl == get_public_version(oneccl)]
            yield CheckHit("STK005", host, {"torch": torch, "oneccl": oneccl, "wanted": [torch, *wanted][-1]})
    usual = find_majority(stacks)
    markers = {host: marker for host in stacks if stacks[host] == usual and (marker := installs[host].marker)}
    usual_id = find_majority({host: marker.id for host, marker in markers.items()})
    for host, stack in stacks.items():
        if stack != usual:
            yield CheckHit("STK002", host, {"what": stack}, f"most: {usual}")
        elif host in markers and markers[host].id != usual_id:  # what a run refuses, too
            model = next(marker for marker in markers.values() if marker.id == usual_id)
            other = {name for name, _ in markers[host].packages.items() ^ model.packages.items()}
            what = f"other versions of {join_names(sorted(other), 3)}, or none" if other else markers[host].id
            yield CheckHit("STK002", host, {"what": what}, f"most: {usual_id}")


def _check_environment(host: str, installed: Installed, some_exist: bool) -> CheckHit | None:
    """Returns what is wrong with the environment of one host by itself."""
    fault = find_env_fault(installed)
    what = fault.what if fault else ""
    code = _ENV_FINDINGS.get(fault.kind, "STK006") if fault else ""
    if code == "STK004" and some_exist:
        code = "STK003"
    elif code in {"", "STK010", "STK011"} and "torch" not in installed.packages:
        code, what = "STK006", "no torch" if installed.packages else "no packages"
    return CheckHit(code, host, {"venv": installed.venv, "what": what}) if code else None


def check_added_packages(cluster: Cluster) -> Iterator[CheckHit]:
    """Hosts with other versions than most of packages that were added by hand to environments of ours."""
    different = find_different_packages(cluster.facts)
    remedy = advise_packages(different, "one version on all hosts, from the index:")
    held: dict[str, list[str]] = {}
    for name, versions in different.items():
        usual, *others = sorted(versions, key=lambda version: -len(versions[version]))
        for version in others:
            for host in versions[version]:
                held.setdefault(host, []).append(f"{name} {printable(version, 40)} (most: {printable(usual, 40)})")
    for host, texts in held.items():
        yield CheckHit("STK009", host, {"what": join_names(texts, 3), "remedy": remedy})


def needs_import_check(installed: Installed) -> bool:
    """Returns whether this stack is untested: not made by ipexctl, or changed since."""
    held = installed.packages
    torch = held.get("torch")
    others = [held[name] for name in (_IPEX, _ONECCL) if name in held]
    fits = torch is not None and {get_minor_version(version) for version in others} <= {get_minor_version(torch)}
    return not installed.marker or bool(others and not fits)


def check_imports(cluster: Cluster, problems: Mapping[str, Sequence[str]]) -> Iterator[CheckHit]:
    """``problems`` holds the import errors of each host, in Python's words."""
    for host, messages in problems.items():
        if messages:
            installed = cluster.facts[host].installed
            packages = installed.packages if installed else {}
            yield CheckHit("STK007", host, {"what": _explain_import_error(messages[0], packages)}, "\n".join(messages))


def _explain_import_error(message: str, packages: Mapping[str, str]) -> str:
    """Returns what an import error of this stack means; else its own words."""
    torch = packages.get("torch", "")
    if "undefined symbol" in message:
        for name in (_IPEX, _ONECCL):
            built = packages.get(name)
            if built and get_minor_version(built) != get_minor_version(torch):
                name = name.replace("-", "_")
                return f"torch {torch} under {name} {built}, which was built for torch {get_minor_version(built)}"
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


def check_environment(host: str, fact: Facts) -> Iterator[CheckHit]:
    """Yields what is installed or set beside the stack, and what the stack will miss."""
    packages, venv = (fact.installed.packages, fact.installed.venv) if fact.installed else ({}, "")
    torch, ipex = packages.get("torch"), packages.get(_IPEX)
    for text in fact.mpi:
        path, _, version_output = text.partition(": ")
        flavour = _detect_mpi_flavour(version_output)
        if flavour and path.endswith("/mpirun") and not (venv and path.startswith(venv)):
            yield CheckHit("MPI001", host, {"flavour": flavour}, path)
    if ipex:
        yield CheckHit("EOL001", host, {}, f"intel_extension_for_pytorch {ipex}")
    elif torch and parse_version(torch).major >= 2 and fact.tools and "g++" not in fact.tools:
        yield CheckHit("SYS007", host, {})
    if ignored := fact.ignored_settings:
        sources = any(word in name for name in ignored for word in ("/", "INDEX", "LINKS", "CONSTRAINT", "CONFIG"))
        yield CheckHit("PY003", host, {"settings": join_names(ignored, 4)}, "", None if sources else "info")


def _detect_mpi_flavour(version_output: str) -> str:
    known = identify_dialect(version_output)
    if known is None:
        return "another MPI" if version_output else ""
    dialect, _ = known
    return "" if dialect.name == "impi" else dialect.title
