"""From the facts of all hosts to a launch: environments are compared, the project is sent, MPI and interfaces chosen.

A module of its own, imported while the hosts answer: nothing of it is needed before."""

import logging
import os
import posixpath
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from getpass import getuser
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.act.inputs import read_script, read_script_text
from ipexctl.act.run_control import make_busy_failure
from ipexctl.act.run_dir import RemoteRunDir
from ipexctl.act.transfer.send import hash_file
from ipexctl.data import read_data
from ipexctl.decide import script_imports
from ipexctl.decide.checks.network import InterfaceChoice, select_interfaces
from ipexctl.decide.launch import accelerate, mpi_launchers
from ipexctl.decide.launch.build import build_launch, identify_machines
from ipexctl.decide.launch.environment import HostRuntime
from ipexctl.decide.launch.programs import Start, wrap_start
from ipexctl.decide.launch.run_spec import Identity, build_run_specs, read_timings_from_environ
from ipexctl.decide.launch.script_arguments import describe_rank_argument, describe_unread_checkpoint
from ipexctl.decide.migration import describe_gpu_needs, parse_rules
from ipexctl.decide.planning.sync import choose_destination, join_part
from ipexctl.decide.releases.env_health import describe_different_packages, find_unhealthy_envs
from ipexctl.decide.releases.framework_options import parse_options
from ipexctl.decide.releases.resolve import require_one_architecture
from ipexctl.decide.releases.runtime import build_runtime
from ipexctl.model.errors import Note, advise, complete_notes
from ipexctl.model.events import HostFailed, Message, Workflow
from ipexctl.model.facts import HostFacts
from ipexctl.model.hosts import Command, Host, Inventory, LinkError
from ipexctl.model.json_values import Record
from ipexctl.model.launch import Setting
from ipexctl.model.stack import MpiLauncher
from ipexctl.model.tasks import Run, Sync
from ipexctl.model.text import join_names, printable
from ipexctl.protocol.paths import RUNS
from ipexctl.protocol.run_spec import RunSpec
from ipexctl.protocol.timings import Timings
from ipexctl.verbs.common.mpi import choose_mpi, find_hosts_mpi
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.common.select import list_flags, suggest_limit
from ipexctl.verbs.files.project import follow_script, make_finder
from ipexctl.verbs.files.sync import choose_destinations, sync
from ipexctl.verbs.run.attempt import LaunchAttempt
from ipexctl.verbs.run.programs import find_local_module, find_programs
from ipexctl.verbs.run.request import RunRequest
from ipexctl.verbs.run.run_discovery import DiscoveredRun, find_runs

_log = logging.getLogger(__name__)
_SHELLS = {"sh", "bash", "dash", "ksh", "zsh"}
_INTERPRETER_TIMEOUT = 20.0  # seconds: the first start of an interpreter from a cold network file system


class Prepared(Record):
    """What a launch is computed from: what was asked, and what was found on every host."""

    request: RunRequest
    starts: tuple[Start, ...]  # with what the hosts say of them
    inventory: Inventory
    facts: HostFacts
    places: Mapping[str, str]  # each host's directory of the project
    interfaces: Mapping[str, InterfaceChoice]
    launcher: MpiLauncher | None  # the hosts' own; None: that of the environment
    timings: Timings
    notes: tuple[Note, ...]  # what the script will fail of

    @property
    def task(self) -> Run:
        return self.request.task


def _join_workdir(request: RunRequest, place: str) -> str:
    """Returns where ranks work on a host with the project in ``place``. A directory that is given and not sent to is
    that itself."""
    as_given = request.task.workdir is not None and not request.task.sync
    return place if as_given else join_part(place, request.project.part)


def prepare_launch(
    request: RunRequest, inventory: Inventory, facts: HostFacts, context: Context
) -> Workflow[Prepared | None]:
    """Sends the project and looks for what the launch needs; None where a host cannot take part. ``facts`` are
    those of hosts that answered. Raises `UsageError` where the hosts do not fit what was asked."""
    task = request.task
    if not (yield from _check_environments(inventory, facts)):
        return None
    identify_machines(inventory.hosts, facts, task.allow_duplicates)  # refused before anything is sent
    engine = request.engine
    programs = wrap_start(engine, request.starts[0]) if engine else request.starts
    starts = yield from find_programs(programs, request.project, inventory, context, facts)
    if starts is None:
        return None
    if not request.dry and not (yield from _check_other_runs(request, inventory, context, facts)):
        return None
    places = yield from _sync_project(request, inventory, context, facts)
    if places is None:
        return None
    notes = find_start_notes(task, context.environ, facts, dry=request.dry)
    script = _find_script(request)
    text = read_script_text(script) if script else ""
    notes = (*script_imports.describe_emptiness(text, str(script)), *notes)
    if not task.per_host:
        notes = (*_describe_launches(request.starts[0]), *notes)
    if script and (not engine or engine.program != "deepspeed"):
        list_modules = partial(_list_modules, request, script, text)
        notes = (*describe_rank_argument(text, str(script), task.args, list_modules), *notes)
    if task.keep and (task.resume == "auto" or task.restarts) and not request.resume:
        notes = (*describe_unread_checkpoint(str(script), task.args, text), *notes)
    if script and not any(map(accelerate.has_accelerator, facts.values())):
        find = make_finder(script.parent, request.project)
        notes = (*describe_gpu_needs(text, str(script), parse_rules(read_data("migrate.toml")), find), *notes)
    if script and "PYTHONPATH" not in request.settings:
        notes = (*_check_imports(request, script, inventory.head, facts, places, context), *notes)
        paths = [request.project.root / path for path in request.project.list_import_paths()]
        files = [file.name for path in paths if path != script.resolve().parent for file in path.glob("*.py")]
        notes = (*script_imports.describe_hiding_modules(files), *notes)
    wanted, asked_by = choose_mpi(task.mpi, facts)
    launcher = (yield from find_hosts_mpi(wanted, inventory.hosts, context, named=asked_by)) if wanted else None
    if isinstance(launcher, dict):  # some hosts have none
        return None
    interfaces, problems = select_interfaces(inventory, facts, task.iface)
    for problem in problems.values():
        raise problem
    _log.debug("interfaces: %s; MPI of the hosts: %s; directories: %s", interfaces, launcher, places)
    timings = read_timings_from_environ(context.environ)
    starts = request.starts if engine else starts
    return Prepared(request, starts, inventory, facts, places, interfaces, launcher, timings, notes)


def _check_environments(inventory: Inventory, facts: HostFacts) -> Workflow[bool]:
    """Returns whether every host has answered and holds the same environment, as install made it."""
    require_one_architecture(facts)
    failures = find_unhealthy_envs(facts)
    for failure in failures:
        yield HostFailed(failure)
    bad = [name for name in inventory.names if name not in facts or name in {failure.host for failure in failures}]
    if 0 < len(bad) < len(inventory):
        rest = f"; {suggest_limit(bad)}" if failures else ""  # the end names the run without hosts out of reach
        yield Message(f"nothing was started{rest}", "warning", code="not-started")
    return not bad


def _check_other_runs(request: RunRequest, inventory: Inventory, context: Context, facts: HostFacts) -> Workflow[bool]:
    """Whether files may be sent: not to hosts on which another run goes on, whose ranks may read them yet, unless this
    one waits for it, or starts beside it. The guards decide who has the hosts."""
    survey = yield from run_nested(find_runs(inventory, context), lambda _: False)
    going = [run for run in survey.runs if run.row.state in {"starting", "running", "restarting"}]
    if request.task.wait or request.task.share:
        if request.task.sync and (text := describe_shared_files(going, _find_places(request, inventory, facts))):
            yield Message(text, "warning", code="shared-files")
        return True
    for run in going:
        for name in inventory.names:
            if name in {run.head, *run.row.hosts}:
                yield HostFailed(make_busy_failure(name, run.row))
    return not going


def describe_shared_files(runs: Sequence[DiscoveredRun], places: Mapping[str, str]) -> str:
    """Returns a warning of runs of the project that is in these ``places`` of hosts, whose files are sent anew."""
    rows = [run.row for run in runs if f"{run.row.workdir}/".startswith(f"{places[run.head]}/")]
    names = join_names([f"run {row.run} of {row.owner}" for row in rows], 3)
    what = "what their ranks import later is of the files that are sent now"
    return names and f"the project on these hosts is in use by {names}: {what}"


def find_start_notes(task: Run, environ: Mapping[str, str], facts: HostFacts, *, dry: bool = False) -> tuple[Note, ...]:
    """Warnings: sudo, and no hostfile's user, makes the ranks run as root; other users, whose runs no run of this
    account waits for, compute there; packages differ; a plan does not read standard input."""
    notes = [*describe_different_packages(facts)]
    roots = [name for name, fact in facts.items() if "SUDO_UID" in environ and fact.user == "root"]
    if roots:
        notes.append(Note("root", f"under sudo the login is root, and so are the ranks, on {join_names(roots, 3)}"))
    others = {
        name: [each for each in fact.busy if not each.startswith(f"{fact.user} ")] for name, fact in facts.items()
    }
    shared = [name for name, processes in others.items() if processes]
    if shared:
        text = f"other users compute on {join_names(shared, 3)}, and the ranks share cores with them"
        notes.append(Note("shared", f"{text}: {others[shared[0]][0]}"))
    if dry and task.stdin is not None:
        stdin = f"rank 0 reads {printable(task.stdin, 200)}, which is not looked at before the start"
        notes.append(Note("stdin", stdin))
    return tuple(notes)


def make_attempt(prepared: Prepared, context: Context) -> LaunchAttempt:
    """Returns the run, named, with a nonce and directories of its own, not started. Raises `UsageError` where the ranks
    do not fit or the hosts cannot reach each other."""
    request, task, now = prepared.request, prepared.task, context.clock()
    name = context.saved.name_run(now)
    identity = Identity(secrets.token_hex(8), secrets.token_hex(32), f"{getuser()}@{socket.gethostname()}", now)
    hosts = tuple(prepared.inventory)
    # A home directory may be shared by all hosts: each has a directory of its own in it.
    runtimes = {host.name: _make_runtime(prepared, host, f"{name}-h{number}") for number, host in enumerate(hosts)}
    restarts = {"IPEXCTL_RESTART": Setting("0", "starts before this one")} if task.restarts else {}
    settings = {**request.settings, **restarts}
    starts = [replace(each, name=_get_remote_name(request, each)) for each in prepared.starts]
    script, command = starts[0].name, starts[0].command
    if request.engine:
        command = (request.engine.program, *command)
        starts = [*wrap_start(request.engine, starts[0])]
    config, options = request.config, parse_options(read_data("options.toml"))
    launch = build_launch(task, name, hosts, runtimes, script, settings, config=config, options=options, starts=starts)
    sha256 = hash_file(request.script) if request.starts[0].is_file else ""
    warnings = complete_notes([*prepared.notes, *launch.warnings], list_flags(prepared.inventory, task.venv))
    launch = replace(launch, command=command, warnings=warnings, script_sha256=sha256)
    run_dirs = {
        plan.host: RemoteRunDir(prepared.inventory[plan.host], plan.directory, plan.python) for plan in launch.planned
    }
    host_specs = build_run_specs(launch, task, identity, prepared.timings, resume=request.resume)
    if task.host_notify:
        host_specs = {host: _add_secrets(spec, context) for host, spec in host_specs.items()}
    return LaunchAttempt(task, launch, identity, run_dirs, host_specs, context, request.stdin)


def _add_secrets(spec: RunSpec, context: Context) -> RunSpec:
    """Gives the host that may call a command of the user's the values that are secret."""
    found = context.masker.find_declared("\n".join([*spec.env.values(), *spec.argv]))
    heads = {name: head for name in ("head", "reserve") if (head := getattr(spec, name))}
    return spec._replace(**{name: head._replace(secrets=found) for name, head in heads.items()})


def _get_remote_name(request: RunRequest, start: Start) -> str:
    """Returns a file's path below the working directory on hosts. Without ``--sync`` it is what the user wrote if a
    working directory is given or the path is absolute. Of what is no file its name."""
    task, script, project = request.task, Path(start.name), request.project
    as_written = not task.sync and (task.workdir is not None or script.is_absolute())
    if as_written or not start.is_file:
        return start.name
    script = follow_script(script)
    return os.path.relpath(script.parent.resolve() / script.name, (project.root / project.part).resolve())


def _sync_project(
    request: RunRequest, inventory: Inventory, context: Context, facts: HostFacts
) -> Workflow[dict[str, str] | None]:
    """Sends the project to every host; each host's directory of it, None where one has not got it."""
    task, project = request.task, request.project
    if not request.starts[0].is_file and project.root in {Path.home(), Path("/")}:  # which nobody wants to copy
        return {host.name: task.workdir or facts[host.name].home or "/" for host in inventory}
    if not task.sync or request.dry:
        return _find_places(request, inventory, facts)
    root = str(project.root)
    sending = Sync(source=root, project=root, workdir=task.workdir, exclude=task.exclude)
    results = yield from run_nested(sync(sending, inventory, context, facts=facts))
    places = {host: place for host, place in results.items() if isinstance(place, str)}
    return places if len(places) == len(inventory) else None


def _find_places(request: RunRequest, inventory: Inventory, facts: HostFacts) -> dict[str, str]:
    """Returns each host's directory of the project, as it is or will be."""
    task, name = request.task, request.project.name
    if task.sync:
        paths = choose_destinations(task.workdir, inventory, name)
    else:
        paths = {host.name: choose_destination(task.workdir, host, name) for host in inventory}
    return {host: posixpath.join(facts[host].home or "/", path.removeprefix("~/")) for host, path in paths.items()}


def _find_script(request: RunRequest) -> Path | None:
    """Returns the Python file of this machine that the ranks start."""
    start = request.starts[0]
    if start.kind == "module":
        return find_local_module(start.name, request.project)
    return request.script if start.kind == "python" else None


def _get_package(start: Start) -> str:
    """Returns the package whose relative imports the script may write."""
    return start.name.rpartition(".")[0] if start.kind == "module" else ""


def _list_modules(request: RunRequest, script: Path, text: str) -> list[script_imports.Module]:
    """Returns the files of the project that the script imports under whatever conditions."""
    module = script_imports.Module("", _get_package(request.starts[0]), text)
    table = script_imports.parse_import_table(read_data("imports.toml"))
    return script_imports.list_project_modules(module, make_finder(script.parent, request.project), table)


def _describe_launches(start: Start) -> tuple[Note, ...]:
    """Warns of a shell file that starts ranks by itself."""
    from ipexctl.verbs.migrate import LaunchLines

    if start.kind != "file" or posixpath.basename(start.program) not in _SHELLS:
        return ()
    for launch in LaunchLines().find(read_script_text(Path(start.name)), start.name):
        what = f"{printable(start.name)}:{launch.line} starts ranks by itself ({printable(launch.name)})"
        text = f"{what}, and is started once for each rank, with --per-host once a host; the command in its place:"
        return (Note("launch-line", advise("migrate", start.name, text=text)),)
    return ()


def _check_imports(
    request: RunRequest, script: Path, head: Host, facts: HostFacts, places: Mapping[str, str], context: Context
) -> tuple[Note, ...]:
    """Returns a warning of modules that the script certainly imports and the environment lacks. Its interpreter on the
    head is asked only about names that are not known to be there."""
    project, start = request.project, request.starts[0]
    paths = project.list_import_paths()
    text, own = read_script(script, *(project.root / path for path in paths))
    installed = facts[head.name].installed
    table = script_imports.parse_import_table(read_data("imports.toml"))
    if installed is None or installed.marker is None:
        return ()
    module, find = script_imports.Module("", _get_package(start), text), make_finder(script.parent, project)
    imported = script_imports.find_doubtful_imports(module, own, installed.packages, table, find)
    if not imported:
        return ()
    place = places[head.name]
    directory = posixpath.join(_join_workdir(request, place), posixpath.dirname(_get_remote_name(request, start)))
    searched = ":".join([directory, *(join_part(place, path) for path in paths)])
    words = (build_runtime(installed.marker).python, "-c", script_imports.FIND_MISSING, searched, *imported)
    try:
        printed = context.links.open(head).run(Command(words, timeout=_INTERPRETER_TIMEOUT)).text
    except LinkError:  # the start says more of it
        return ()
    missing = script_imports.select_missing(imported, printed)
    local = {name: place for name, place in missing.items() if Path(name).is_dir() or Path(f"{name}.py").is_file()}
    name = request.task.script
    if local and script.resolve().is_relative_to(Path.cwd()):
        return script_imports.describe_local_modules(local, name)
    missing = {name: place for name, place in missing.items() if name not in local}
    return script_imports.describe_missing_modules(
        missing, name, table, head.name, accelerate.has_ipex(installed.packages)
    )


def _make_runtime(prepared: Prepared, host: Host, directory: str) -> HostRuntime:
    task, facts = prepared.task, prepared.facts[host.name]
    assert facts.installed is not None  # or `prepare_launch` had refused the host
    python = build_runtime(facts.installed.marker)
    if prepared.launcher is not None:
        with_ccl = task.backend in {"auto", "ccl"} and bool(python.module)
        python = mpi_launchers.switch_launcher(python, prepared.launcher, ccl=with_ccl)
    place, project = prepared.places[host.name], prepared.request.project
    return HostRuntime(
        facts,
        prepared.interfaces[host.name],
        python,
        f"{facts.home}/{RUNS}/{directory}",
        _join_workdir(prepared.request, place),
        tuple(join_part(place, path) for path in project.list_import_paths()),
    )
