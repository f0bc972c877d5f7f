"""``ipexctl uninstall``: take away what install made, and nothing else."""

from __future__ import annotations

import posixpath
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit
from ipexctl.act.sessions import Session
from ipexctl.model.answers import DryRun, UninstallAnswer
from ipexctl.model.errors import Exit, Failure, Kind, worst
from ipexctl.model.events import Answer, Ended, Event, HostFailed, Planned, Started, StepOutcome
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Inventory
from ipexctl.model.links import Link
from ipexctl.model.tasks import Uninstall
from ipexctl.model.text import printable
from ipexctl.verbs.common.probe import probe_hosts
from ipexctl.verbs.install.install_sessions import InstallSessions, Workflow


def uninstall(
    task: Uninstall, inventory: Inventory, context: Context, *, dry: bool = False
) -> Generator[Event, None, None]:
    """Removes what installs made at ``venv``, and nothing else; an environment a job still uses stays, and is named."""
    yield Started("uninstall", "remove the environments", inventory.names)
    seen = yield from probe_hosts(inventory, context, venv=task.venv)
    failed = {name: found for name, found in seen.items() if isinstance(found, Failure)}
    places: dict[str, tuple[str, str]] = {}
    for name, fact in seen.items():
        if not isinstance(fact, Facts):
            continue
        venv = (fact.installed.venv if fact.installed else "") or task.venv or ""
        if venv.startswith("~/"):
            venv = posixpath.join(fact.home or "/", venv[2:])
        python = next((python.path for python in fact.pythons if python.usable and python.version), "")
        if not venv.startswith("/") or not python:
            failed[name] = Failure(name, Kind.STEP, "no Python to remove the environment with", code="python")
            yield HostFailed(failed[name])
            continue
        places[name] = (venv, python)
    plan = "\n".join(f"{name}  remove {venv} and {venv}.d" for name, (venv, _) in places.items())
    yield Planned("uninstall", plan)
    if dry:
        yield Answer(DryRun(plan))
        yield Ended("uninstall", worst([failure.kind.exit for failure in failed.values()]))
        return
    for venv in dict.fromkeys(venv for venv, _ in places.values()):
        pythons = {name: python for name, (where, python) in places.items() if where == venv}
        crew = InstallSessions(inventory, context, venv, "", failed)
        try:
            yield from _remove(crew, pythons, [name for name in pythons if _is_there(seen[name])])
        finally:
            crew.close()
    changed = tuple(name for name in places if name not in failed)
    yield Answer(UninstallAnswer(changed, {name: failure.what for name, failure in failed.items()}))
    yield Ended("uninstall", worst([failure.kind.exit for failure in failed.values()]) if failed else Exit.OK)


def _is_there(fact: Facts | Failure) -> bool:
    return (
        isinstance(fact, Facts)
        and fact.installed is not None
        and (fact.installed.exists or bool(fact.installed.beside))
    )


def _remove(crew: InstallSessions, pythons: Mapping[str, str], there: Sequence[str]) -> Workflow[None]:
    """From all hosts of a crew. Where hosts have one file system, a job on any of them keeps the environment, and one
    of them removes it for all."""
    program = resources.files("ipexctl.remote.session").joinpath("install.py").read_text("utf-8")

    def begin(link: Link, _: Emit) -> list[Any] | Failure:
        name = link.host.name
        crew.sessions[name] = Session.start(link, pythons[name], program)
        return crew.done(name, lambda ask: list(ask("used")["used"]))

    def remove(link: Link, _: Emit) -> int | Failure:
        name = link.host.name
        said = crew.done(name, lambda ask: ask("remove"))
        if isinstance(said, Failure):
            return said
        return _busy(crew, name, name, said["used"][0]) if said["used"] else len(said["removed"])

    used = yield from crew.each(list(pythons), "look for running jobs", begin)
    teams = yield from crew.teams([name for name in used if name in there], "removes")
    teams += [[name] for name in used if name not in there]
    leaders = []
    for team in teams:
        working = [name for name in team if used[name]]
        if not working:
            leaders.append(team[0])
        for name in team if working else ():
            crew.failed[name] = _busy(crew, name, working[0], used[working[0]][0])
            yield HostFailed(crew.failed[name])
    yield from crew.each(leaders, "remove", remove, outcome=_removed)
    for team in teams:
        if team[0] in leaders and team[0] in crew.failed:
            crew.failed |= {name: replace(crew.failed[team[0]], host=name) for name in team}


def _busy(crew: InstallSessions, host: str, where: str, id: object) -> Failure:
    job = "a job" if where == host else f"a job on {where}"
    return Failure(host, Kind.BUSY, f"{job} still uses {crew.venv}.d/{printable(str(id), 80)}", "stop it first", "used")


def _removed(count: int) -> tuple[StepOutcome, str]:
    return ("changed", "1 environment" if count == 1 else f"{count} environments") if count else ("ok", "")
