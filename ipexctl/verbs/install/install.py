"""``ipexctl install``: the same exact stack at the same path on every host, built beside the old one, checked, then
switched everywhere.

Observe the hosts, choose a release, lock its wheels, inspect each host, plan; then build on one host of each file
system, import on all, write the marker last, and switch when all are ready."""

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.act.packages.download import locate_wheel
from ipexctl.act.packages.resolve import Tool, find_uv, find_uv_for_hosts, forget_lock
from ipexctl.act.packages.sources import is_unencrypted
from ipexctl.decide.checks.network import select_interfaces
from ipexctl.decide.parsing.input_errors import suggest_nearest
from ipexctl.decide.planning import extend
from ipexctl.decide.planning import install as planning
from ipexctl.decide.releases.mpi_choice import DEFAULT, require_one_mpi, use_host_mpi, use_wheel_mpi
from ipexctl.decide.releases.resolve import resolve_stack
from ipexctl.decide.releases.table import ReleaseTable, get_minor_version
from ipexctl.model import events
from ipexctl.model.answers.install import ImportCheck, InstallAnswer
from ipexctl.model.errors import Exit, Failure, UsageError, advise, choose_exit, complete_hint
from ipexctl.model.events import Workflow
from ipexctl.model.facts import Facts, HostFacts, Python
from ipexctl.model.hosts import Command, Host, Inventory, Link
from ipexctl.model.stack import InstallMarker, MpiLauncher, Stack, StackRequest
from ipexctl.model.tasks import Install
from ipexctl.model.text import join_names, pluralize, printable, strip_credentials
from ipexctl.model.wheels import Lock
from ipexctl.protocol.session import Inspection, RoomyPlaces
from ipexctl.verbs.common.mpi import find_hosts_mpi
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.common.probe import load_releases, probe_hosts
from ipexctl.verbs.common.relay import distribute_artifacts
from ipexctl.verbs.common.select import list_flags, make_started, suggest_limit
from ipexctl.verbs.install import build, lock
from ipexctl.verbs.install.build import NOT_SWITCHED, switch_environments, tidy_environments
from ipexctl.verbs.install.install_sessions import InstallJob, PlannedInstall
from ipexctl.verbs.install.requirements import build_projects, fix_requirements, list_packages

_FURTHER = re.compile(r"[\r\n]|\s--?(?!hash\b)[a-zA-Z]")  # to uv a line or an option of its own, such as -r
_FIRST_PHASE = "look at the hosts"  # its first phase


class InstallStopped(Exception):
    """Nothing was changed, and why; the hosts that failed are in the answer."""

    def __init__(self, sentence: str, failed: Mapping[str, Failure]) -> None:
        super().__init__(sentence)
        self.sentence, self.failed = sentence, failed


class InstallOutcome(NamedTuple):
    """Hosts that have the new environment now, those that may have it, and what their imports reported."""

    changed: Collection[str] = ()
    unknown: Collection[str] = ()
    verified: Mapping[str, build.VerifiedEnv] = MappingProxyType({})


class RequestedInstall(NamedTuple):
    """What was asked for, read as far as this machine can."""

    task: Install
    request: StackRequest
    locked: Lock | None  # the user's lock file


def install(
    task: Install, inventory: Inventory, context: Context, *, builds: bool = False, model: InstallMarker | None = None
) -> Workflow[InstallAnswer]:
    """Returns what `Answer` holds. ``builds``: wheels of local projects may be built on this machine, which a playbook
    of somebody else must not do. ``model``: the environment of ``task.like``, where it was read before. Raises
    `UsageError`: exit 2 before anything is contacted, exit 4 before anything is changed."""
    lock.declare_passwords(task, context)
    requested = _read_request(task, inventory, context.environ, builds)
    table, request = load_releases(), requested.request
    resolve_stack(request, {}, table)  # a combination that exists nowhere is refused before any host is contacted
    yield make_started("install", _make_title(requested.task, request), inventory, requested.task.venv)
    yield events.PhaseStarted(1, 0, _FIRST_PHASE)
    sources = lock.read_sources(requested.task, context)
    requested = requested._replace(task=(yield from build_projects(requested.task, context.cache, sources)))
    try:
        job = yield from _choose_wheels(requested, inventory, context, table, model)
        try:
            return (yield from _install_stack(job))
        finally:
            job.stop.set()
            job.close()
    except InstallStopped as stopped:
        sentence, failed = stopped.sentence, stopped.failed
        if len(failed) < len(inventory):
            sentence += f"; {suggest_limit([*failed])}, or --partial"
        yield events.Message(sentence, "warning")
        answer = InstallAnswer((), {name: failure.what for name, failure in failed.items()})
        return (yield from _end(answer, failed))


def _make_title(task: Install, request: StackRequest) -> str:
    if request != StackRequest():
        return f"install {request}"
    parts = [f"install what {printable(task.like)} has"] if task.like else []
    if task.requirements:
        parts.append(f"add what {printable(join_names(task.requirements, 2))} lists")
    for verb, names in (("add", task.with_), ("remove", task.without), ("upgrade", task.upgrade)):
        if names:
            parts.append(f"{verb} {join_names(names, 3)}")
    return ", ".join(parts) or "install torch"


def _read_request(task: Install, inventory: Inventory, environ: Mapping[str, str], builds: bool) -> RequestedInstall:
    """Raises `UsageError` (exit 2)."""
    task = fix_requirements(task, builds=builds)
    python = get_minor_version(task.python) if task.python and "/" not in task.python else None
    request = StackRequest(task.track, task.torch, task.ipex, task.oneccl, task.backend, python)
    _check_input(task, inventory)
    if not task.locked:
        lock.check_lock_place(task)
        return RequestedInstall(task, request, None)
    locked = lock.read_lock(task, environ)
    request, mpi = extend.build_release_request(locked.packages, locked.python, locked.mpi, request, task.mpi)
    return RequestedInstall(replace(task, mpi=mpi), request, locked)


def _choose_wheels(
    requested: RequestedInstall,
    inventory: Inventory,
    context: Context,
    table: ReleaseTable,
    model: InstallMarker | None,
) -> Workflow[InstallJob]:
    """Observes the hosts, and chooses the release and its wheels. Raises `InstallStopped`, `UsageError`."""
    task, request, locked = requested
    failed: dict[str, Failure] = {}
    facts = yield from _collect_facts(task, inventory, context, failed)
    if (failed and not (task.partial or task.check)) or not facts:
        raise InstallStopped("nothing was changed: some hosts could not be probed", failed)
    base = None
    listed = list_packages(task.requirements)
    if task.like:
        model = model or (yield from _read_model(task.like, inventory, facts, context, task.venv))
        venv = model.venv
        base, request = extend.follow_model(model, task, request)
        task, facts = extend.keep_requirements(model, task, model=True), extend.use_env_python(model, facts)
    else:
        venv = planning.choose_venv(task.venv, inventory, facts)
    if not (locked or model) and (found := extend.find_environment(task, request, venv, facts)):
        base, request = found
        task, facts = extend.keep_requirements(base, task, listed), extend.use_env_python(base, facts)
    elif not (locked or model) and (marker := extend.find_marker(venv, facts, task)):
        asked = request
        base, task, request = extend.keep_environment(task, request, marker, listed)
        facts = extend.use_env_python(base, facts) if base else facts
        if request != asked:
            text = f"torch {request.torch} stays, as it is installed; --torch or --track asks for another release"
            yield events.Message(text, code="keeps-release")
    if base and not model:
        _check_input(task, inventory)  # a host wrote what the environment has
    if locked or base:
        stack = resolve_stack(request, facts, table)
    else:
        stack = yield from lock.resolve_available(request, facts, table, task, context)
    stack = yield from _choose_mpi(task, stack, [inventory[name] for name in facts], context, table, failed)
    wanted = lock.LockRequest(task, stack, context, base)
    if locked:
        chosen = lock.adopt_lock(locked.select(stack.arch), stack, context)
    else:
        stack, chosen = yield from lock.load_or_create_lock(wanted)
    require_one_mpi(chosen.packages)
    if model and chosen.id != model.id and task.like not in inventory.names:
        what = f"the environment of {task.like} cannot be made again: hosts left out would keep another one"
        reasons = [*filter(None, [planning.describe_changes(model, chosen)])]
        raise UsageError(what, reasons=reasons, hint="for all hosts: without --limit", exit=Exit.STEP)
    return InstallJob(inventory, context, failed, venv, chosen.id, task, wanted.sources, stack, chosen, facts)


def _read_model(
    name: str, inventory: Inventory, facts: HostFacts, context: Context, venv: str | None
) -> Workflow[InstallMarker]:
    """Returns the environment of a host, which ``--limit`` may have left out. Raises `UsageError` (exit 4)."""
    reasons: list[str] = []
    if name not in facts:
        left_out = tuple(host for host in inventory.left_out if host.name == name)
        facts, failures = yield from probe_hosts(Inventory(left_out), context, venv=venv)
        reasons = [failure.what for failure in failures.values()]
    installed = facts[name].installed if name in facts else None
    if not installed or not installed.marker:
        what = f"--like {name}: it has no environment that ipexctl made"
        raise UsageError(what, reasons=reasons, hint=advise("doctor", "--verify"), exit=Exit.STEP)
    return installed.marker


def _choose_mpi(
    task: Install,
    stack: Stack,
    hosts: Sequence[Host],
    context: Context,
    table: ReleaseTable,
    failed: Mapping[str, Failure],
) -> Workflow[Stack]:
    """Returns the stack with the MPI of ``--mpi``: a wheel's by its name, the hosts' own by its path."""
    if task.mpi in {"auto", DEFAULT}:
        return stack
    if "/" not in task.mpi:
        return use_wheel_mpi(stack, task.mpi, table)
    result = yield from find_hosts_mpi(task.mpi, hosts, context, named=f"--mpi {task.mpi}")
    if not isinstance(result, MpiLauncher):
        raise InstallStopped("nothing was changed", {**failed, **result})
    return use_host_mpi(stack, result, task.backend)


def _check_input(task: Install, inventory: Inventory) -> None:
    """All that can be known to be wrong without contacting anybody. Raises `UsageError` with every reason."""
    reasons = []
    for what, path in [("--venv", task.venv)] + [(f"venv of {host.name}", host.vars.get("venv")) for host in inventory]:
        if path is None:
            continue
        path = f"/~{path[1:]}" if path.startswith("~/") else path  # as deep as in a home directory
        if not path.startswith("/") or any(ord(char) < 32 for char in path) or posixpath.normpath(path) != path:
            reasons.append(f"{what}: {path!r} is not a plain absolute path, nor one from ~/")
        elif path.count("/") < 2:
            reasons.append(f"{what}: {path!r} must be at least two levels deep")
    if task.wheels and not Path(task.wheels).is_dir():
        reasons.append(f"--wheels: {task.wheels!r} is not a directory")
    links = [link for link in task.find_links if ":" not in link.partition("/")[0]]
    reasons += [f"--find-links: {link!r} is not a directory" for link in links if not Path(link).is_dir()]
    known = [*inventory.names, *(host.name for host in inventory.left_out)]
    if task.like and task.like not in known:
        where = "among the hosts of this command"
        reasons.append(f"--like: {printable(task.like)!r} is not {where}{suggest_nearest(task.like, known)}")
    if task.like and task.locked:
        reasons.append("--like and --locked exclude each other")
    reasons += [f"--requirements: {name!r} is not a file" for name in task.requirements if not Path(name).is_file()]
    for text in task.with_:
        if not text.strip() or text.lstrip().startswith("-") or _FURTHER.search(text):
            reasons.append(f"--with: {text!r} is not a requirement")
    if reasons:
        raise UsageError("invalid arguments", reasons=reasons)


def _collect_facts(
    task: Install, inventory: Inventory, context: Context, failed: dict[str, Failure]
) -> Workflow[dict[str, Facts]]:
    facts, unprobed = yield from probe_hosts(inventory, context, venv=task.venv)
    failed.update(unprobed)
    # An interpreter that somebody named by its path, for all hosts or for this one.
    asked = {name: inventory[name].vars.get("python") if task.python is None else task.python for name in facts}
    named = {name: path for name, path in asked.items() if path and (task.python is None or "/" in path)}
    if not named:
        return facts

    def ask(link: Link, _: Emit) -> Python:
        path = named[link.host.name]
        completed = link.run(Command((path, "-I", "-c", "import platform; print(platform.python_version())")))
        if completed.ok and completed.text.strip():
            return Python(path, completed.text.strip())
        return Python(path, None, False, f"does not run ({completed.get_tail(1) or f'status {completed.status}'})")

    pythons, silent = yield from run_on_hosts(context, [inventory[name] for name in named], "ask the interpreter", ask)
    failed.update(silent)
    facts |= {name: replace(facts[name], pythons=(python,)) for name, python in pythons.items()}
    return {name: fact for name, fact in facts.items() if name not in silent}


def _install_stack(job: InstallJob) -> Workflow[InstallAnswer]:
    """Inspects the hosts, plans, builds, verifies and switches. Raises `InstallStopped`, `UsageError`."""
    planned = yield from _plan_steps(job)
    steps, outcome = planned.steps, InstallOutcome()
    if job.task.check:
        changing = {name for name, step in steps.steps.items() if step.do != "nothing"}
        outcome = InstallOutcome(changing - job.failed.keys())
    elif job.failed and not job.task.partial:
        raise InstallStopped("nothing was changed", job.failed)
    elif not steps.changes_nothing:
        outcome = yield from _change_hosts(job, planned)
    return (yield from _report_result(job, steps, outcome))


def _plan_steps(job: InstallJob) -> Workflow[PlannedInstall]:
    names = [host.name for host in job.inventory if host.name in job.facts and host.name not in job.failed]
    addresses = choose_addresses(job)
    job.task = replace(job.task, wheels_from=(yield from choose_downloader(job)))
    states = {name: state for name in names if (state := planning.read_state(job.facts[name], job.venv, job.lock))}
    tool = Tool("", "", 0, "")
    if others := [name for name in names if name not in states]:
        tool = find_uv_for_hosts(find_uv(), job.context.cache, job.sources, job.stack.arch)
        states |= yield from _inspect_hosts(job, others, tool)
        states = {name: states[name] for name in names if name in states}
    envs = [fact.installed.marker for fact in job.facts.values() if fact.installed and fact.installed.marker]
    markers = {marker.id: marker for marker in envs}
    steps, unfit = planning.plan_install(job.stack, job.lock, job.venv, states, job.task.wheels_from, markers)
    hint: str | None = None
    if unfit:  # where all hosts have room, if any host tells
        asking = job.request([*job.sessions], "look for another place", "find_places", RoomyPlaces)
        places = yield from run_nested(asking, lambda event: not isinstance(event, events.HostFailed))
        roomy = [answer.places for answer in places.values()]
        hint = planning.advise_place(roomy, job.lock) if roomy else None
    for failure in unfit:
        job.failed[failure.host] = replace(failure, hint=hint or failure.hint)
        yield events.HostFailed(job.failed[failure.host])
    yield events.Planned("install", steps.text)
    return PlannedInstall(steps, states, tool, addresses)


def _change_hosts(job: InstallJob, planned: PlannedInstall) -> Workflow[InstallOutcome]:
    """Locks the environments, builds them on one host of each file system, and switches to them."""
    steps = planned.steps
    for note in (*map(str, job.stack.notes), *job.lock.notes):
        yield events.Message(note)
    changed = [name for name, step in steps.steps.items() if step.do != "nothing"]
    does = {step.do for step in steps.steps.values()}
    checks = ["send the wheels", "unpack"] * ("build" in does) + ["check", "switch"] * bool(does & {"build", "switch"})
    job.phases = (_FIRST_PHASE, "lock", *checks, "tidy")
    yield from job.start_phase("lock")
    groups = yield from job.find_shared_fs_groups(changed, "installs")
    cleaned = yield from build.lock_environments(job, [group[0] for group in groups])
    if cleaned is None:
        return InstallOutcome()
    verified = yield from _build_environments(job, planned, groups)
    return (yield from _switch_hosts(job, planned, groups, cleaned, verified))


def _build_environments(
    job: InstallJob, planned: PlannedInstall, groups: Sequence[Sequence[str]]
) -> Workflow[Mapping[str, build.VerifiedEnv] | None]:
    """Returns what the new environments' imports reported; None where the wheels could not be had."""
    steps = planned.steps
    leaders = [group[0] for group in groups if group[0] not in job.failed]
    builders = [name for name in leaders if steps.steps[name].do == "build"]
    for group in groups if builders else ():
        yield from (events.Progress(name, "install", 0, 0, "B", f"waits for {group[0]}") for name in group[1:])
    yield from job.start_phase("send the wheels")
    wheels = yield from build.download_missing_wheels(job, builders, planned)
    if wheels is None:
        return None
    yield from distribute_artifacts(job, build.list_artifacts(job, builders, planned, wheels), planned.addresses)
    builders = [name for name in builders if name not in job.failed]
    yield from build.build_environments(job, builders, planned, wheels)
    built = [group for group in groups if steps.steps[group[0]].do != "tidy"]
    return (yield from build.verify_environments(job, built, steps))


def _switch_hosts(
    job: InstallJob,
    planned: PlannedInstall,
    groups: Sequence[Sequence[str]],
    cleaned: set[str],
    verified: Mapping[str, build.VerifiedEnv] | None,
) -> Workflow[InstallOutcome]:
    """Switches all hosts, or those that are ready with ``--partial``; then removes what is not used."""
    steps = planned.steps.steps
    ready = [group for group in groups if not job.failed.keys() & set(group)]
    switched, unknown = set[str](), set[str]()
    if verified is not None and (ready if job.task.partial else not job.failed):
        leaders = [group[0] for group in ready if steps[group[0]].do != "tidy"]
        markers = {name: build.build_marker(job, verified[name].layout) for name in leaders}
        switched, unknown = yield from switch_environments(job, markers, planned.states, planned.addresses)
        if job.task.partial or switched.issuperset(leaders):
            cleaned |= yield from tidy_environments(job, ready)
    elif job.failed:
        yield NOT_SWITCHED
    changed = _add_shared_fs_hosts(groups, {name for name in cleaned if steps[name].do == "tidy"} | switched)
    return InstallOutcome(changed, _add_shared_fs_hosts(groups, unknown), verified or {})


def choose_downloader(job: InstallJob) -> Workflow[Literal["auto", "controller", "hosts"]]:
    """Who downloads. The controller does where hosts do not get the login that they would need. Raises `UsageError`
    (exit 4) if the hosts are to download all the same."""
    way, sources = job.task.wheels_from, job.sources
    urls = [wheel.url for wheel in job.lock.wheels if not wheel.local]
    url = next((url for url in urls if is_unencrypted(url) and sources.find_login(url)), "")
    if way == "controller" or not url:
        return way
    what = f"hosts would send the login of {urlsplit(url).netloc.rpartition('@')[2]} unencrypted"
    if way == "hosts":
        raise UsageError(what, reasons=[strip_credentials(url)], hint="--wheels-from controller", exit=Exit.STEP)
    yield events.Message(f"{what}: the wheels are downloaded here and sent")
    return "controller"


def choose_addresses(job: InstallJob) -> dict[str, str]:
    """Returns where each host listens for the others. A host without a usable address fetches, but serves nothing.
    Raises `UsageError` (exit 4) if a host has not the interface that the hostfile names."""
    choices, problems = select_interfaces(job.inventory, job.facts)
    for problem in problems.values():
        if problem.code == "no-interface":
            raise problem
    return {name: choice.address for name, choice in choices.items()}


def _add_shared_fs_hosts(groups: Sequence[Sequence[str]], names: Collection[str]) -> set[str]:
    """Hosts, and those for which they work."""
    return {name for group in groups if group[0] in names for name in group}


def _inspect_hosts(job: InstallJob, names: Sequence[str], tool: Tool) -> Workflow[dict[str, Inspection]]:
    paths = [(wheel, locate_wheel(job.context.cache, wheel)) for wheel in job.lock.wheels if wheel.size]
    files = [{"path": str(path), "size": wheel.size} for wheel, path in paths if path.is_file()]
    origins = planning.list_download_origins(job.lock) if job.task.wheels_from == "auto" else []

    def inspect(link: Link, _: Emit) -> Inspection:
        name = link.host.name
        job.open(link, job.stack.interpreters[name])
        return job.call(name, "inspect", Inspection, uv=asdict(tool), files=files, origins=origins)

    return (yield from job.run(names, "look at the environment", inspect))


def _report_result(job: InstallJob, steps: planning.Plan, outcome: InstallOutcome) -> Workflow[InstallAnswer]:
    if any(failure.code in {"hash", "index", "wheel"} for failure in job.failed.values()):
        forget_lock(job.context.cache, job.lock)
    changed, unknown, verified = outcome
    next_command = None
    if not job.task.check and not job.failed:
        script = planning.choose_next_script([path.name for path in Path().glob("*.py")])
        advice = advise("run", script) if script else advise("examples")
        mended = replace(job.inventory, limit="") if job.task.like else job.inventory  # the others have it
        next_command = complete_hint(advice, list_flags(mended, job.task.venv))
    answer = InstallAnswer(
        venv=job.venv,
        id=job.lock.id,
        stack=job.stack.summary,
        check=job.task.check,
        plan=steps.text,
        changed=tuple(name for name in steps.steps if name in changed),
        unchanged=tuple(name for name in steps.steps if name not in changed and name not in unknown),
        failed={name: failure.what for name, failure in job.failed.items() if failure.host},
        hosts=tuple(
            ImportCheck(name, **{**env.report._asdict(), "problems": tuple(env.report.problems)})
            for name, env in verified.items()
        ),
        next=next_command,
    )
    if steps.changes_nothing and not job.failed:
        has = "has" if len(steps.steps) == 1 else "have"
        yield events.Message(
            f"{pluralize(len(steps.steps), 'host')} {has} {job.stack.name} already: nothing to do, changed 0"
        )
    return (yield from _end(answer, job.failed))


def _end(answer: InstallAnswer, failed: Mapping[str, Failure]) -> Workflow[InstallAnswer]:
    yield from events.finish_verb("install", answer, choose_exit(failed.values()))
    return answer
