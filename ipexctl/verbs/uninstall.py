"""``ipexctl uninstall``: take away what install made, and nothing else."""

from __future__ import annotations

import posixpath
from collections.abc import Generator
from importlib import resources
from typing import Any

from ipexctl.act.fanout import Emit, each
from ipexctl.act.sessions import Session, Trouble
from ipexctl.act.world import World
from ipexctl.model.errors import Exit, Failure, Kind, worst
from ipexctl.model.events import Answer, Ended, Event, HostFailed, Planned, Started, StepOutcome
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Inventory
from ipexctl.model.links import Link
from ipexctl.model.tasks import Uninstall
from ipexctl.model.text import printable
from ipexctl.verbs.crew import worded
from ipexctl.verbs.observe import observe


def uninstall(
    task: Uninstall, inventory: Inventory, world: World, *, dry: bool = False
) -> Generator[Event, None, dict[str, Any]]:
    """Removes what installs made at ``venv``, and nothing else; an environment a job still uses stays, and is named."""
    yield Started("uninstall", "remove the environments", inventory.names)
    seen = yield from observe(inventory, world, venv=task.venv)
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
    yield Planned("uninstall", "\n".join(f"{name}  remove {venv} and {venv}.d" for name, (venv, _) in places.items()))
    if dry:
        yield Answer({"dry": True})
        yield Ended("uninstall", worst([failure.kind.exit for failure in failed.values()]))
        return {}
    program = resources.files("ipexctl.remote").joinpath("install.py").read_text("utf-8")

    def remove(link: Link, _: Emit) -> int | Failure:
        venv, python = places[link.host.name]
        with Session.start(link, python, program) as session:
            try:
                said = session.ask("remove", venv=venv)
            except Trouble as trouble:
                return worded(link.host.name, trouble, venv)
            session.end()
        if said["used"]:
            what = f"a job still uses {venv}.d/{printable(str(said['used'][0]), 80)}"
            return Failure(link.host.name, Kind.BUSY, what, "stop it first", "used")
        return len(said["removed"])

    results = yield from each(world, [inventory[name] for name in places], "remove", remove, outcome=_removed)
    failed |= {name: result for name, result in results.items() if isinstance(result, Failure)}
    value = {
        "changed": [name for name in places if name not in failed],
        "failed": {name: failure.what for name, failure in failed.items()},
    }
    yield Answer(value)
    yield Ended("uninstall", worst([failure.kind.exit for failure in failed.values()]) if failed else Exit.OK)
    return value


def _removed(count: int) -> tuple[StepOutcome, str]:
    return ("changed", "1 environment" if count == 1 else f"{count} environments") if count else ("ok", "")
