"""``ipexctl run``: look at the hosts, carry the script over, compute the launch, start it, watch it to its proved end.

The run belongs to its keeper on the head. This verb is a watcher: Ctrl-C is an order to the keeper, a closed terminal
is not.
"""

from __future__ import annotations

import posixpath
import secrets
import socket
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from getpass import getuser
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.act.inputs import read_input
from ipexctl.act.run_control import RUNS, RemoteRunDir
from ipexctl.decide.checks.network import Choice, choose_interfaces
from ipexctl.decide.launch import accelerate, build_launch, instances, mpi_launchers
from ipexctl.decide.launch.build import HostRuntime
from ipexctl.decide.launch.emit import write_launch
from ipexctl.decide.launch.run_spec import Identity, specs
from ipexctl.decide.launch.user_env import parse_user_env
from ipexctl.decide.planning.sync import destination
from ipexctl.decide.releases.env_health import unsound
from ipexctl.decide.releases.runtime import runtime
from ipexctl.model.answers import EmitAnswer, RunPlanAnswer
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Answer, Ended, Event, HostFailed, Message, Planned, Started
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.launch import Launch, Setting
from ipexctl.model.notes import Note
from ipexctl.model.stack import MpiLauncher
from ipexctl.model.tasks import Run, Sync
from ipexctl.verbs.common.framework_options import options
from ipexctl.verbs.common.mpi import hosts_mpi, wish_of
from ipexctl.verbs.common.nested import inner
from ipexctl.verbs.common.probe import observe
from ipexctl.verbs.common.select import without
from ipexctl.verbs.files.sync import directory_of, sync
from ipexctl.verbs.run.attempt import Attempt
from ipexctl.verbs.run.restart import restarting


def run(
    task: Run,
    inventory: Inventory,
    context: Context,
    environ: Mapping[str, str],
    *,
    dry: bool = False,
    emit: str | None = None,
) -> Generator[Event, None, None]:
    """The story of one run. ``environ`` is this machine's, for ``--pass-env``. ``dry`` ends after the plan; ``emit``
    instead of it answers with the launch written for another program, in ``text``."""
    script = _script(task)
    if task.restarts and task.detach:
        raise UsageError(
            "--restarts needs somebody who watches", hint="leave out --detach; a detached run is not restarted"
        )
    if task.min_hosts is not None and not task.restarts:
        raise UsageError("--min-hosts says how to start again without a lost host", hint="add --restarts 1")
    instances.check_options(task)
    wished = parse_user_env(task.env, {name: read_input(name).text for name in task.env_file}, task.pass_env, environ)
    config = _configuration(task, emit)
    yield Started("run", script.name or task.script, inventory.names)
    facts = yield from _facts(task, inventory, context)
    if facts is None:
        yield Ended("run", Exit.OK)
        return
    workdirs = yield from _carry(task, script, inventory, context, facts, dry)
    if workdirs is None:
        yield Ended("run", Exit.OK)
        return
    choices = choose_interfaces(facts)
    engine = None
    wish, named = wish_of(task.mpi, facts)
    if wish:
        found = yield from hosts_mpi(wish, inventory.hosts, context, named=named)
        if not isinstance(found, MpiLauncher):
            yield Ended("run", Exit.OK)
            return
        engine = found

    def make(count: int, without: frozenset[str]) -> tuple[Launch, Callable[[], Attempt]]:
        """The launch of one attempt, and the attempt itself: with a name, a nonce and directories of its own."""
        name = f"{time.strftime('%m%d-%H%M%S', time.localtime(context.clock()))}-{secrets.token_hex(2)}"
        nonce = secrets.token_hex(8)
        hosts = tuple(host for host in inventory if host.name not in without)
        stations = {
            # A home directory may be shared by all hosts: each has a place of its own in it.
            host.name: _station(
                task, host, facts[host.name], choices.get(host.name), workdirs[host.name], f"{name}-h{number}", engine
            )
            for number, host in enumerate(hosts)
        }
        told = {"IPEXCTL_RESTART": Setting(str(count), "starts before this one")} if task.restarts else {}
        launch = build_launch(
            task,
            name,
            nonce,
            hosts,
            stations,
            _remote_name(task, script),
            {**wished, **told},
            config=config,
            options=options(),
        )

        def attempt() -> Attempt:
            identity = Identity(nonce, secrets.token_hex(32), f"{getuser()}@{socket.gethostname()}", context.clock())
            pythons = {name: station.runtime.python for name, station in stations.items()}
            every = specs(launch, task, identity, pythons, launch.rank_env)
            sites = {
                seat.host: RemoteRunDir(inventory[seat.host], seat.directory, pythons[seat.host])
                for seat in launch.nodes
            }
            return Attempt(task, launch, identity, sites, every, context)

        return launch, attempt

    launch, first = make(0, frozenset())
    if emit:
        yield Answer(EmitAnswer(write_launch(launch, emit), launch.public()))
        yield Ended("run", Exit.OK)
        return
    yield Planned("run", str(launch))
    for warning in launch.warnings:
        yield Message(str(warning), "warning")
    if dry:
        yield Answer(RunPlanAnswer(str(launch), launch.public()))
        yield Ended("run", Exit.OK)
        return

    def attempt(count: int, without: frozenset[str]) -> Generator[Event, None, Attempt]:
        if not count:
            return first()
        launch, begin = make(count, without)
        yield Planned("run", str(launch))
        return begin()

    yield from restarting(attempt, task.restarts, task.min_hosts)


def _script(task: Run) -> Path:
    """The script here; of a module, which is looked for from the current directory on, that directory."""
    if task.launcher == "module":
        base = Path(*task.script.split("."))
        if not base.with_suffix(".py").is_file() and not (base / "__main__.py").is_file():
            raise UsageError(
                f"the module {task.script} does not exist",
                reasons=[f"neither {base}.py nor {base}/__main__.py is below {Path.cwd()}"],
                hint="start ipexctl in the directory that holds it",
            )
        return Path()
    script = Path(task.script)
    if not script.is_file():
        what = f"{task.script} is {'a directory' if script.is_dir() else 'not a regular file'}"
        raise UsageError(
            what if script.exists() else f"the script {task.script} does not exist",
            hint="give the path of a Python file on this machine",
        )
    return script


def _configuration(task: Run, emit: str | None) -> accelerate.AccelerateConfig | None:
    """The configuration given for Accelerate. What is written for other programs starts mpirun as those do."""
    if task.accelerate_config is None:
        return None
    if task.launcher != "accelerate":
        raise UsageError(
            "--accelerate-config is read with --launcher accelerate only", hint="add --launcher accelerate"
        )
    config = accelerate.read_config(read_input(task.accelerate_config).text, task.accelerate_config)
    return replace(config, hostfile="") if emit else config


def _remote_name(task: Run, script: Path) -> str:
    """The script below the working directory. Where nothing is carried and the directory is named, that is what the
    user says; a path from the root is the same on the hosts."""
    as_said = not task.sync and (task.workdir is not None or script.is_absolute())
    return task.script if as_said or task.launcher == "module" else script.name


def _facts(task: Run, inventory: Inventory, context: Context) -> Generator[Event, None, dict[str, Facts] | None]:
    """The gate: every host must answer and hold the environment as install made it, the same on all."""
    seen = yield from observe(inventory, context, venv=task.venv)
    facts = {host: found for host, found in seen.items() if isinstance(found, Facts)}
    failures = unsound(facts)
    for failure in failures:
        yield HostFailed(failure)
    bad = [name for name in inventory.names if name not in facts or name in {failure.host for failure in failures}]
    if 0 < len(bad) < len(inventory):
        yield Message(f"nothing was started; {without(bad)}", "warning")
    return None if bad else facts


def _carry(
    task: Run, script: Path, inventory: Inventory, context: Context, facts: Mapping[str, Facts], dry: bool
) -> Generator[Event, None, dict[str, str] | None]:
    """The script's directory on every host; each host's working directory."""
    if not task.sync or dry:
        folder = directory_of(script).name
        return {host.name: _absolute(destination(task.workdir, host, folder), facts[host.name]) for host in inventory}
    done = yield from inner(sync(Sync(source=str(script), workdir=task.workdir), inventory, context))
    workdirs = {host: where for host, where in done.items() if isinstance(where, str)}
    return workdirs if len(workdirs) == len(inventory) else None


def _absolute(path: str, facts: Facts) -> str:
    return posixpath.join(facts.home or "/", path.removeprefix("~/"))


def _station(
    task: Run, host: Host, facts: Facts, choice: Choice | None, workdir: str, name: str, engine: MpiLauncher | None
) -> HostRuntime:
    if task.iface and (choice is None or choice.name != task.iface):
        choice = _named(host, facts, task.iface)
    if choice is None:
        raise UsageError(f"{host.name} has no usable network address", hint="name one with --iface", exit=Exit.STEP)
    assert facts.installed is not None  # the gate has seen it
    found = runtime(facts.installed.marker)
    if engine is not None:
        found = mpi_launchers.switch_launcher(found, engine, ccl=task.backend in {"auto", "ccl"} and bool(found.module))
    return HostRuntime(facts, choice, found, f"{facts.home}/{RUNS}/{name}", workdir)


def _named(host: Host, facts: Facts, name: str) -> Choice:
    for interface in facts.interfaces:
        if interface.name == name and interface.addresses:
            return Choice(name, interface.addresses[0].partition("/")[0], Note("option", "--iface"))
    have = ", ".join(interface.name for interface in facts.interfaces) or "none"
    raise UsageError(
        f"{host.name} has no interface {name} with an address", reasons=[f"it has: {have}"], exit=Exit.STEP
    )
