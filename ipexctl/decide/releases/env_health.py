"""Check that installed environments are unchanged and equal on all hosts, from facts alone."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping

from ipexctl.decide.planning.install import DEFAULT_VENV, drift
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.facts import Facts
from ipexctl.model.text import printable


def find_unhealthy_envs(facts: Mapping[str, Facts]) -> list[Failure]:
    """One failure per host whose environment is missing, incomplete, changed by hand, or another than the head's."""
    failures: list[Failure] = []
    ids: dict[str, str] = {}
    for host, fact in facts.items():
        env = fact.installed
        if env is None or not env.exists or env.marker is None:
            where = f" at {env.venv}" if env and env.venv else ""
            made = "no environment" if env is None or not env.exists else "an environment that ipexctl did not make"
            failures.append(Failure(host, Kind.STEP, f"{made}{where}", _format_install_command(fact), "no-env"))
            continue
        if changes := drift(env.marker.packages, env.packages):
            more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
            what = f"the environment was changed: {', '.join(changes[:3])}{more}"
            failures.append(Failure(host, Kind.STEP, what, _format_install_command(fact), "drift"))
            continue
        ids[host] = env.marker.id
    head, first = next(iter(ids.items()), ("", ""))
    for host, id in ids.items():
        if id != first:
            what = f"its environment is {id}, that of {head} is {first}"
            failures.append(Failure(host, Kind.STEP, what, _format_install_command(facts[host]), "mixed"))
    return failures


def _format_install_command(fact: Facts) -> str:
    """The install command for the environment that was probed; the default path is left out."""
    venv = fact.installed.venv if fact.installed else ""
    if not venv.startswith("/") or venv == posixpath.join(fact.home or "", DEFAULT_VENV):
        return "ipexctl install"
    return f"ipexctl install --venv {shlex.quote(printable(venv, 300))}"
