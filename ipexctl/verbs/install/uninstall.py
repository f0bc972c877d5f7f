"""``ipexctl uninstall``: remove what install made, and nothing else."""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.model.answers.install import UninstallAnswer
from ipexctl.model.answers.plan import DryRun
from ipexctl.model.errors import Failure, Kind, advise, choose_exit
from ipexctl.model.events import HostFailed, Message, Planned, Progress, StepOutcome, Workflow, finish_verb
from ipexctl.model.hosts import Command, Host, Inventory, Link
from ipexctl.model.tasks import Uninstall
from ipexctl.model.text import fold_names, group_pairs, join_names, parse_integer, pluralize, printable
from ipexctl.protocol.session import Removed, Used
from ipexctl.verbs.common.probe import probe_hosts
from ipexctl.verbs.common.select import make_started
from ipexctl.verbs.files.usage import UV_CACHE, describe_uv_cache
from ipexctl.verbs.install.install_sessions import InstallSessions

_MEASURE_CACHE = Command(("sh",), f"du -sk {UV_CACHE} 2>/dev/null", timeout=600.0)


def uninstall(task: Uninstall, inventory: Inventory, context: Context, *, dry: bool = False) -> Workflow[None]:
    """Removes what installs made at ``venv``, and nothing else; an environment a job still uses stays, and is named."""
    yield make_started("uninstall", "remove the environments", inventory, task.venv)
    facts, failed = yield from probe_hosts(inventory, context, venv=task.venv)
    places: dict[str, tuple[str, str]] = {}
    for name, fact in facts.items():
        venv = (fact.installed.venv if fact.installed else "") or task.venv or ""
        if venv.startswith("~/"):
            venv = posixpath.join(fact.home or "/", venv[2:])
        python = next((python.path for python in fact.pythons if python.usable and python.version), "")
        if not venv.startswith("/") or not python:
            failed[name] = Failure(name, Kind.STEP, "no Python to remove the environment with", code="python")
            yield HostFailed(failed[name])
            continue
        places[name] = (venv, python)
    installed = [name for name in places if (env := facts[name].installed) and (env.marker or env.beside)]
    work = (
        (f"remove {venv} and {venv}.d" if name in installed else f"nothing that ipexctl made at {venv}", name)
        for name, (venv, _) in places.items()
    )
    plan = "\n".join(f"{fold_names(names)}  {what}" for what, names in group_pairs(work).items())
    yield Planned("uninstall", plan)
    for venv in dict.fromkeys(venv for venv, _ in places.values()):
        pythons = {name: python for name, (where, python) in places.items() if where == venv}
        sessions = InstallSessions(inventory, context, failed, venv, "")
        try:
            yield from _remove_envs(sessions, pythons, installed, dry=dry)
        finally:
            sessions.close()
    changed = tuple(name for name in installed if name not in failed)
    if not dry and changed:
        yield from _report_cache(context, [host for host in inventory if host.name in installed])
    unchanged = tuple(name for name in places if name not in {*installed, *failed})
    done = UninstallAnswer(changed, {name: failure.what for name, failure in failed.items()}, unchanged)
    yield from finish_verb("uninstall", DryRun(plan) if dry else done, choose_exit(failed.values()))


def _report_cache(context: Context, hosts: Sequence[Host]) -> Workflow[None]:
    """Says what uv's cache takes, which stays."""

    def measure(link: Link, _: Emit) -> int:
        size = link.run(_MEASURE_CACHE).out.partition(b"\t")[0]
        return (parse_integer(size.decode("ascii", "replace"), 1 << 50) or 0) << 10

    sizes, _ = yield from run_on_hosts(context, hosts, "measure uv's cache", measure)
    if hint := describe_uv_cache(sizes):
        yield Message(hint)


def _remove_envs(
    sessions: InstallSessions, pythons: Mapping[str, str], installed: Sequence[str], *, dry: bool
) -> Workflow[None]:
    """From all hosts; ``dry`` only looks for jobs. Where hosts share a file system, a job on any of them keeps the
    environment, and one of them removes it for all."""

    def begin(link: Link, _: Emit) -> Used:
        sessions.open(link, pythons[link.host.name])
        return sessions.call(link.host.name, "find_used", Used)

    def remove(link: Link, emit: Emit) -> int | Failure:
        name = link.host.name
        progress = partial(Progress, name, "remove", unit="directories", local=True)
        answer = sessions.call(name, "remove", Removed, progress=lambda done, total: emit(progress(done, total)))
        if answer.used:
            return _describe_environment_use(sessions, name, name, Used(answer.used, []))
        return len(answer.removed)

    used = yield from sessions.run(list(pythons), "look for running jobs", begin)
    groups = [[name] for name in used if name in installed]
    if not dry:
        groups = yield from sessions.find_shared_fs_groups([name for group in groups for name in group], "removes")
    groups += [[name] for name in used if name not in installed]
    leaders = []
    for group in groups:
        working = [name for name in group if used[name].used]
        if not working:
            leaders.append(group[0])
        for name in group if working else ():
            sessions.failed[name] = _describe_environment_use(sessions, name, working[0], used[working[0]])
            yield HostFailed(sessions.failed[name])

    if dry:
        return

    def describe(count: int) -> tuple[StepOutcome, str]:
        return ("changed", pluralize(count, "environment")) if count else ("ok", "")

    yield from sessions.run(leaders, "remove", remove, outcome=describe)
    for group in groups:
        if group[0] in leaders and group[0] in sessions.failed:
            sessions.failed |= {name: replace(sessions.failed[group[0]], host=name) for name in group}


def _describe_environment_use(sessions: InstallSessions, host: str, worker: str, used: Used) -> Failure:
    job = f"run {printable(join_names(used.runs, 2), 80)}" if used.runs else "a job"
    job += "" if worker == host else f" on {worker}"
    what = f"{job} still uses {sessions.venv}.d/{printable(used.used[0], 80)}"
    return Failure(host, Kind.BUSY, what, advise("ps", text="wait for it, or stop it; this lists the runs:"), "used")
