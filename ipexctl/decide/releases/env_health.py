"""Is what install made still what it was, and the same on all hosts? Pure, from facts that every verb has anyway."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping

from ipexctl.decide.planning.install import drift
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.facts import Facts
from ipexctl.model.text import printable

DEFAULT = ".local/share/ipexctl/env"  # below the home directory


def unsound(facts: Mapping[str, Facts]) -> list[Failure]:
    """One failure per host whose environment is missing, incomplete, changed by hand, or another than the head's."""
    failures: list[Failure] = []
    ids: dict[str, str] = {}
    for host, fact in facts.items():
        found = fact.installed
        if found is None or not found.exists or not found.marker:
            where = f" at {found.venv}" if found and found.venv else ""
            made = "no environment" if found is None or not found.exists else "an environment that ipexctl did not make"
            failures.append(Failure(host, Kind.STEP, f"{made}{where}", _install(fact), "no-env"))
            continue
        packages = found.marker.get("packages")
        lost = drift(packages, found.packages) if isinstance(packages, Mapping) else ["it does not say what it holds"]
        if lost:
            more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
            what = f"the environment was changed: {', '.join(lost[:3])}{more}"
            failures.append(Failure(host, Kind.STEP, what, _install(fact), "drift"))
            continue
        ids[host] = str(found.marker.get("id"))
    first = next(iter(ids.values()), "")
    head = next(iter(ids), "")
    failures += [
        Failure(host, Kind.STEP, f"its environment is {id}, that of {head} is {first}", _install(facts[host]), "mixed")
        for host, id in ids.items()
        if id != first
    ]
    return failures


def _install(fact: Facts) -> str:
    """What fills the environment that was looked for; the one install would make anyway goes without saying."""
    venv = fact.installed.venv if fact.installed else ""
    if not venv.startswith("/") or venv == posixpath.join(fact.home or "", DEFAULT):
        return "ipexctl install"
    return f"ipexctl install --venv {shlex.quote(printable(venv, 300))}"
