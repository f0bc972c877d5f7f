"""Check that installed environments are unchanged and equal on all hosts, from facts alone."""

import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Literal

from packaging.utils import canonicalize_name, is_normalized_name

from ipexctl.decide.launch.dialects import find_wheel_dialect
from ipexctl.decide.planning.requirements import names_place
from ipexctl.decide.releases.table import get_public_version
from ipexctl.model.errors import Failure, Hint, Kind, Note, advise
from ipexctl.model.facts import Facts, HostFacts, Installed
from ipexctl.model.json_values import Record
from ipexctl.model.stack import InstallMarker
from ipexctl.model.text import fold_names, group_pairs, join_names, printable

DEFAULT_VENV = ".local/share/ipexctl/env"  # below the home directory


class Repair(Record):
    """Which hosts get the environment of ``model``; empty: all."""

    model: str
    hosts: tuple[str, ...]

    @property
    def hint(self) -> Hint:
        """The command."""
        return advise("install", "--like", self.model, *(["--limit", format_limit(self.hosts)] if self.hosts else []))


class EnvFault(Record):
    """Why a run refuses an environment. ``what``: the sentence about the host or its end; of a foreign one the path."""

    kind: Literal["untrusted", "busy", "absent", "partial", "foreign", "changed"]
    what: str = ""


def find_env_fault(env: Installed) -> EnvFault | None:
    """Returns why a run refuses this environment of a host; None where it is what an install of ours left."""
    if env.fault:
        return EnvFault("untrusted", env.fault)
    if env.locked and env.marker is None:
        return EnvFault("busy", f"an install of {env.venv} is under way there")
    if not env.exists:
        return EnvFault("absent", "no environment" + (f" at {env.venv}" if env.venv else ""))
    if env.marker is None and "tmp" in env.beside:  # where what is being installed is unpacked
        return EnvFault("partial", f"an install of {env.venv} is under way there, or was cut off")
    if env.marker is None:
        return EnvFault("foreign", env.venv)
    changes = describe_drift(env.marker.packages, env.packages)
    return EnvFault("changed", join_names(changes, 3)) if changes else None


def find_unhealthy_envs(facts: HostFacts) -> list[Failure]:
    """One failure per host whose environment is missing, incomplete, changed by hand, or another than the head's."""
    repair = find_repair(facts)
    installs = {host: repair.hint if repair else format_install_command(fact) for host, fact in facts.items()}
    failures: list[Failure] = []
    ids: dict[str, str] = {}
    for host, fact in facts.items():
        env = fact.installed or Installed("")
        if fault := find_env_fault(env):
            failures.append(_refuse(host, fault, installs[host], fact.home or ""))
        elif env.marker:
            ids[host] = env.marker.id
    head, first = next(iter(ids.items()), ("", ""))
    for host, id in ids.items():
        if id != first:
            what = f"its environment is {id}, that of {head} is {first}"
            failures.append(Failure(host, Kind.STEP, what, installs[host], "mixed"))
    return failures


def _refuse(host: str, fault: EnvFault, install: Hint, home: str) -> Failure:
    """Returns the failure of a host whose environment has this fault; ``install`` makes it anew."""
    match fault.kind:
        case "untrusted":
            away = "on it, move away what others may have put there (mv DIRECTORY.d DIRECTORY.d.untrusted), then:"
            what = f"nothing of its environment is executed: {fault.what}"
            return Failure(host, Kind.STEP, what, Hint(install.words, away), "untrusted")
        case "busy":
            return Failure(host, Kind.BUSY, f"busy: {fault.what}", "wait for it, or use another --venv", "busy")
        case "foreign":
            text = f"make one for its mpirun, with which --program {printable(fault.what, 300)}/bin/python SCRIPT runs:"
            hint = advise("install", "--venv", posixpath.join(home, DEFAULT_VENV), text=text)
            what = f"an environment that ipexctl did not make at {fault.what}"
            return Failure(host, Kind.STEP, what, hint, "no-env")
        case "changed":
            return Failure(host, Kind.STEP, f"the environment was changed: {fault.what}", install, "drift")
        case _:
            return Failure(host, Kind.STEP, fault.what, install, "no-env")


def find_repair(facts: HostFacts, broken: Collection[str] = ()) -> Repair | None:
    """Returns how hosts that lack it, and those that are ``broken``, get the environment of most hosts, and no other
    host is changed; None where no host has one that ipexctl made. A host whose environment alone has packages of places
    is no model for others."""
    envs = {host: fact.installed for host, fact in facts.items() if fact.installed}
    markers = {host: env.marker for host, env in envs.items() if env.marker}
    whole = {
        host: marker.id
        for host, marker in markers.items()
        if host not in broken and not describe_drift(marker.packages, envs[host].packages)
    }
    strange = _find_strange_hosts(markers)
    models = {host: marker.id for host, marker in markers.items() if host not in strange}
    ids = {host: id for host, id in models.items() if host in whole} or models
    if not ids:
        return None
    usual = Counter(ids.values()).most_common(1)[0][0]
    model = next(host for host, id in ids.items() if id == usual)
    others = tuple(host for host in facts if whole.get(host) != usual)
    return Repair(model, others if len(others) < len(facts) else ())


def _find_strange_hosts(markers: Mapping[str, InstallMarker]) -> set[str]:
    """Returns the hosts whose environment has packages or an MPI from places that that of no other host knows: as these
    say, who are no model for others that nobody has named."""
    places = {host: {*marker.requested, marker.stack.mpi.program or ""} for host, marker in markers.items()}
    counts = Counter(text for texts in places.values() for text in texts)
    alone = {text for text, count in counts.items() if text and count < min(2, len(markers)) and names_place(text)}
    return {host for host, texts in places.items() if not alone.isdisjoint(texts)}


def format_limit(hosts: Collection[str], sign: str = "") -> str:
    """Returns the value of ``--limit`` that chooses these hosts, or with the sign ``!`` all others."""
    patterns = hosts if any(":" in host for host in hosts) else fold_names(hosts, len(hosts)).split(", ")
    return ",".join(f"{sign}{pattern}" for pattern in patterns)


def describe_drift(packages: Mapping[str, str], held: Mapping[str, str]) -> list[str]:
    """What is missing or other than locked in an environment, in words. More packages than locked are the user's, but
    for one with an MPI: it overwrites files of the locked one."""
    versions = {canonicalize_name(name): version for name, version in held.items()}
    words = []
    for name, version in sorted(packages.items()):
        have = versions.get(canonicalize_name(name))
        if have is None:
            words.append(f"{name} is missing")
        elif get_public_version(have) != get_public_version(version):
            words.append(f"{name} is {have}, not {version}")
    mpis = sorted(filter(find_wheel_dialect, packages))
    added = sorted(filter(find_wheel_dialect, versions.keys() - packages.keys()))
    return [*words, *(f"{name} took the place of {mpi}" for mpi in mpis for name in added)]


def find_different_packages(facts: HostFacts) -> dict[str, dict[str, list[str]]]:
    """Returns the hosts of each version of the packages that were added by hand to environments of ours, in other
    versions on some hosts. An environment of the user's own has what that user chose on each host."""
    held: dict[str, list[tuple[str, str]]] = {}
    for host, fact in facts.items():
        if fact.installed and (marker := fact.installed.marker):
            for name in fact.installed.packages.keys() - marker.packages.keys():
                held.setdefault(name, []).append((get_public_version(fact.installed.packages[name]), host))
    groups = {name: group_pairs(versions) for name, versions in sorted(held.items()) if is_normalized_name(name)}
    return {name: hosts for name, hosts in groups.items() if len(hosts) > 1}


def describe_different_packages(facts: HostFacts) -> tuple[Note, ...]:
    """Warns of the packages that were added by hand in other versions on some hosts."""
    different = find_different_packages(facts)
    if not different:
        return ()
    texts = list[str]()
    for name, versions in different.items():
        places = [f"{printable(version, 40)} on {fold_names(hosts)}" for version, hosts in versions.items()]
        texts.append(f"{name} ({join_names(places, 3)})")
    text = f"the hosts have different versions of {join_names(texts, 3)}; one on all of them, from the index:"
    return (Note("different-packages", advise_packages(different, text)),)


def advise_packages(names: Iterable[str], text: str) -> Hint:
    """Returns the command that installs the same version of these packages on all hosts."""
    return Hint(["install", *chain.from_iterable(("--with", name) for name in names)], text)


def format_install_command(fact: Facts) -> Hint:
    """Returns the install command for the environment that was probed; the default path is left out."""
    venv = fact.installed.venv if fact.installed else ""
    if not venv.startswith("/") or venv == posixpath.join(fact.home or "", DEFAULT_VENV):
        return advise("install")
    return advise("install", "--venv", printable(venv, 300))
