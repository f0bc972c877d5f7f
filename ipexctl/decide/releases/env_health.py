"""Check that installed environments are unchanged and equal on all hosts, from facts alone."""

import posixpath
from collections.abc import Mapping

from packaging.utils import canonicalize_name

from ipexctl.decide.releases.table import get_public_version
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.facts import Facts
from ipexctl.model.hints import Hint, advise
from ipexctl.model.text import join_names, printable

DEFAULT_VENV = ".local/share/ipexctl/env"  # below the home directory


def find_unhealthy_envs(facts: Mapping[str, Facts]) -> list[Failure]:
    """One failure per host whose environment is missing, incomplete, changed by hand, or another than the head's."""
    failures: list[Failure] = []
    ids: dict[str, str] = {}

    def add_failure(host: str, what: str, code: str) -> None:
        failures.append(Failure(host, Kind.STEP, what, format_install_command(facts[host]), code))

    for host, fact in facts.items():
        env = fact.installed
        if env is None or not env.exists or env.marker is None:
            where = f" at {env.venv}" if env and env.venv else ""
            made = "an environment that ipexctl did not make"
            if env is None or not env.exists:
                made = "no environment"
            add_failure(host, f"{made}{where}", "no-env")
        elif changes := describe_drift(env.marker.packages, env.packages):
            add_failure(host, f"the environment was changed: {join_names(changes, 3)}", "drift")
        else:
            ids[host] = env.marker.id
    head, first = next(iter(ids.items()), ("", ""))
    for host, id in ids.items():
        if id != first:
            add_failure(host, f"its environment is {id}, that of {head} is {first}", "mixed")
    return failures


def describe_drift(packages: Mapping[str, str], held: Mapping[str, str]) -> list[str]:
    """What is missing or other than locked in an environment, in words. More packages than locked are the user's."""
    versions = {canonicalize_name(name): version for name, version in held.items()}
    words = []
    for name, version in sorted(packages.items()):
        have = versions.get(canonicalize_name(name))
        if have is None:
            words.append(f"{name} is missing")
        elif get_public_version(have) != get_public_version(version):
            words.append(f"{name} is {have}, not {version}")
    return words


def format_install_command(fact: Facts) -> Hint:
    """Returns the install command for the environment that was probed; the default path is left out."""
    venv = fact.installed.venv if fact.installed else ""
    if not venv.startswith("/") or venv == posixpath.join(fact.home or "", DEFAULT_VENV):
        return advise("install")
    return advise("install", "--venv", printable(venv, 300))
