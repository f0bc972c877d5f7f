"""The lock of the environments before they are changed, and the switch to the new ones behind it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from getpass import getuser

from ipexctl.decide.planning.install import Plan
from ipexctl.model.events import Message, StepOutcome
from ipexctl.model.json_values import to_json
from ipexctl.model.text import printable
from ipexctl.protocol.session import Cleaned, LockOwner, Nothing, Removed, Switched, Used
from ipexctl.verbs.install.build import VerifiedEnv, build_marker
from ipexctl.verbs.install.install_sessions import InstallJob, Workflow

NOT_SWITCHED = Message(
    "no host was switched: every host has the environment it had before", "warning", code="not-switched"
)


def lock_environments(job: InstallJob, leaders: Sequence[str]) -> Workflow[set[str] | None]:
    """Locks all or none, in the same order for every install: of two at once, one gets the first lock. Returns the
    hosts where incomplete environments were removed; None if the install cannot go on."""
    owner = LockOwner(getuser(), socket.gethostname(), os.getpid(), time.time())._asdict()
    order = sorted(leaders)
    for names in (order[:1], order[1:]):
        if names:
            yield from job.sessions.request(names, "lock", "lock", Nothing, lambda _: {"owner": owner})
        if job.failed.keys() & set(names) and not job.task.partial:
            return None
    alive = [name for name in leaders if name not in job.failed]
    answers = yield from job.sessions.request(alive, "clean", "clean", Cleaned, outcome=_describe_cleaned)
    return {name for name, answer in answers.items() if answer.removed} if alive else None


def switch_environments(
    job: InstallJob, groups: Sequence[Sequence[str]], plan: Plan, verified: Mapping[str, VerifiedEnv]
) -> Workflow[set[str]]:
    """Writes the markers, then switches the links, everywhere; then removes what is not used any more. Returns the
    hosts where that removed something."""
    leaders = [group[0] for group in groups if plan.steps[group[0]].do != "tidy"]
    markers = {name: build_marker(job, verified[name].layout) for name in leaders}
    yield from job.sessions.request(leaders, "mark", "mark", Nothing, lambda name: {"marker": to_json(markers[name])})
    if job.failed and not job.task.partial:
        yield NOT_SWITCHED
        return set()
    switched: tuple[StepOutcome, str] = ("changed", f"{job.venv} is {job.lock.id}")
    marked = [name for name in leaders if name not in job.failed]
    yield from job.sessions.request(marked, "switch", "switch", Switched, outcome=lambda _: switched)
    alive = [name for group in groups for name in group if name not in job.failed]
    used = yield from job.sessions.request(alive, "look for running jobs", "find_used", Used)
    keep = sorted({job.lock.id}.union(*(answer.used for answer in used.values())))
    leaders = [group[0] for group in groups if group[0] in alive and group[0] not in job.failed]
    answers = yield from job.sessions.request(
        leaders, "tidy", "remove_unused", Removed, lambda _: {"keep": keep}, outcome=_describe_removed
    )
    return {name for name, answer in answers.items() if answer.removed}


def _describe_cleaned(answer: Cleaned) -> tuple[StepOutcome, str]:
    return ("changed", f"removed what was half-done ({answer.removed})") if answer.removed else ("ok", "")


def _describe_removed(answer: Removed) -> tuple[StepOutcome, str]:
    names = printable(", ".join(answer.removed[:3]), 200)
    return ("changed", f"removed {names}") if names else ("ok", "")
