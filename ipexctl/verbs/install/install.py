"""``ipexctl install``: the same exact stack at the same path on every host, built beside the old one, checked, then
switched everywhere.

Observe the hosts, choose a release, lock its wheels, inspect each host, plan; then build on one host of each file
system, import on all, write the marker last, and switch when all are ready."""

import os
import posixpath
import threading
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from urllib.parse import unquote, urlsplit

from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit, run_on_hosts
from ipexctl.act.packages.download import locate_wheel, measure_download_rate
from ipexctl.act.packages.resolve import Tool, find_uv, find_uv_for_hosts, forget_lock
from ipexctl.act.packages.sources import Limits, redact_url
from ipexctl.act.packages.wheelhouse import unpack_wheelhouse
from ipexctl.decide.checks.network import select_interfaces
from ipexctl.decide.planning.extend import build_release_request, find_environment, keep_requirements, use_env_python
from ipexctl.decide.planning.install import Plan, Rates, choose_venv, list_download_origins, plan_install, read_state
from ipexctl.decide.releases.resolve import resolve_stack, use_host_mpi
from ipexctl.decide.releases.table import get_minor_version
from ipexctl.model import events
from ipexctl.model.answers.install import ImportCheck, InstallAnswer
from ipexctl.model.commands import Command
from ipexctl.model.errors import Exit, Failure, UsageError, choose_exit
from ipexctl.model.facts import Facts, Python
from ipexctl.model.hints import advise, complete_hint
from ipexctl.model.hosts import Inventory
from ipexctl.model.links import Link
from ipexctl.model.stack import MpiLauncher, StackRequest
from ipexctl.model.tasks import Install
from ipexctl.model.text import pluralize
from ipexctl.protocol.session import DownloadRate, Inspection, Nothing
from ipexctl.verbs.common.mpi import find_hosts_mpi
from ipexctl.verbs.common.probe import load_releases, probe_hosts
from ipexctl.verbs.common.select import list_flags, suggest_limit
from ipexctl.verbs.install import build, lock
from ipexctl.verbs.install.background import run_in_background
from ipexctl.verbs.install.distribute import distribute_artifacts
from ipexctl.verbs.install.install_sessions import InstallJob, Workflow
from ipexctl.verbs.install.switch import NOT_SWITCHED, switch_environments, tidy_environments

_MOMENT, _SAMPLE = 2.0, 32 << 20  # seconds and bytes for which a download is tried, to see how fast it is
_LOOK = "look at the hosts"  # its first phase
_LONG = 0.2  # seconds a sending must take for its speed to mean something


def install(
    task: Install,
    inventory: Inventory,
    context: Context,
    *,
    environ: Mapping[str, str] = os.environ,
    limits: Limits = Limits(),
    dry: bool = False,
) -> Generator[events.Event, None, InstallAnswer]:
    """Returns what `Answer` holds. ``environ`` has pip's and uv's settings.

    Raises `UsageError`: exit 2 before anything is contacted, exit 4 before anything is changed."""
    releases = load_releases()
    python = get_minor_version(task.python) if task.python and "/" not in task.python else None
    request = StackRequest(task.track, task.torch, task.ipex, task.oneccl, task.backend, python)
    _check_input(task, inventory)
    locked = lock.read_lock(task, environ) if task.locked else None
    if locked:
        request, mpi = build_release_request(locked.packages, locked.python, locked.mpi, request, task.mpi)
        task = replace(task, mpi=mpi)
    resolve_stack(request, {}, releases)  # a combination that exists nowhere is refused before any host is contacted
    yield events.Started("install", f"install {request}", inventory.names, place=list_flags(inventory, task.venv))
    yield events.PhaseStarted(1, 0, _LOOK)
    if task.wheels and not Path(task.wheels).is_dir():
        task = replace(task, wheels=str((yield from _open_wheelhouse(Path(task.wheels), context))))
    failed: dict[str, Failure] = {}
    facts = yield from _collect_facts(task, inventory, context, failed)
    if (failed and not (task.partial or task.check or dry)) or not facts:
        return (yield from _give_up("nothing was changed: some hosts could not be probed", failed, len(inventory)))
    venv = choose_venv(task.venv, inventory, facts)
    base = None
    if not locked and (found := find_environment(task, request, venv, facts)):
        base, request = found
        task, facts = keep_requirements(base, task), use_env_python(base, facts)
        _check_input(task, inventory)  # a host wrote what the environment has
    if locked or base:
        stack = resolve_stack(request, facts, releases)
    else:
        stack = yield from lock.resolve_available(request, facts, releases, task, context, environ, limits)
    if task.mpi not in {"auto", "wheel"}:
        hosts = [inventory[name] for name in facts]
        result = yield from find_hosts_mpi(task.mpi, hosts, context, named=f"--mpi {task.mpi}")
        if not isinstance(result, MpiLauncher):
            return (yield from _give_up("nothing was changed", {**failed, **result}, len(inventory)))
        stack = use_host_mpi(stack, result)
    wanted = lock.LockRequest(task, stack, context, environ, limits, base)
    if locked:
        chosen = lock.adopt_lock(locked, stack, context)
    else:
        stack, chosen = yield from lock.load_or_create_lock(wanted)
    job = InstallJob(inventory, context, venv, chosen.id, failed, task, wanted.sources, stack, chosen, facts)
    try:
        return (yield from _install_stack(job, dry=dry))
    finally:
        job.stop.set()
        job.close()


def _check_input(task: Install, inventory: Inventory) -> None:
    """All that can be known to be wrong without contacting anybody. Raises `UsageError` with every reason."""
    reasons = []
    for what, path in [("--venv", task.venv)] + [(f"venv of {host.name}", host.vars.get("venv")) for host in inventory]:
        if path is None:
            continue
        if not path.startswith("/") or any(ord(char) < 32 for char in path) or posixpath.normpath(path) != path:
            reasons.append(f"{what}: {path!r} is not a plain absolute path")
        elif path.count("/") < 2:
            reasons.append(f"{what}: {path!r} is too near to the root directory")
    if task.wheels and not Path(task.wheels).is_dir() and not Path(task.wheels).is_file():
        reasons.append(f"--wheels: {task.wheels!r} is neither a directory nor an archive")
    reasons += [f"--requirements: {name!r} is not a file" for name in task.requirements if not Path(name).is_file()]
    for text in task.with_:
        if not text.strip() or text.lstrip().startswith("-") or "\n" in text:
            reasons.append(f"--with: {text!r} is not a requirement")
    if reasons:
        raise UsageError("some of the input is wrong", reasons=reasons)


def _open_wheelhouse(archive: Path, context: Context) -> Workflow[Path]:
    """The directory of a wheelhouse that came as one file. Raises `UsageError`."""
    step = "open the wheelhouse"
    yield events.StepStarted("", step)
    house = yield from run_in_background(
        step, lambda tell: unpack_wheelhouse(archive, context.cache, tell), threading.Event()
    )
    yield events.StepEnded("", step, "ok", f"{pluralize(len(list(house.iterdir())), 'wheel')} of {archive.name}")
    return house


def _collect_facts(
    task: Install, inventory: Inventory, context: Context, failed: dict[str, Failure]
) -> Workflow[dict[str, Facts]]:
    results = yield from probe_hosts(inventory, context, venv=task.venv)
    failed.update({name: result for name, result in results.items() if isinstance(result, Failure)})
    facts = {name: result for name, result in results.items() if isinstance(result, Facts)}
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

    pythons = yield from run_on_hosts(context, [inventory[name] for name in named], "ask the interpreter", ask)
    for name, python in pythons.items():
        if isinstance(python, Failure):
            failed[name] = python
            del facts[name]
        else:
            facts[name] = replace(facts[name], pythons=(python,))
    return facts


def _install_stack(job: InstallJob, *, dry: bool) -> Workflow[InstallAnswer]:
    """Inspects the hosts, plans, builds, verifies and switches."""
    names = [host.name for host in job.inventory if host.name in job.facts and host.name not in job.failed]
    addresses = choose_addresses(job)
    job.task = replace(job.task, wheels_from=(yield from choose_downloader(job)))
    states = {name: state for name in names if (state := read_state(job.facts[name], job.venv, job.lock))}
    tool = Tool("", "", 0, "")
    if others := [name for name in names if name not in states]:
        tool = find_uv_for_hosts(find_uv(), job.context.cache, job.sources)
        states |= yield from _inspect_hosts(job, others, tool)
        states = {name: states[name] for name in names if name in states}
    envs = [fact.installed.marker for fact in job.facts.values() if fact.installed and fact.installed.marker]
    markers = {marker.id: marker for marker in envs}
    wanted = job.stack, job.lock, job.venv, states, job.task.wheels_from
    steps, unfit = plan_install(*wanted, markers=markers)
    if rates := (yield from _measure_rates(job, steps, states)):
        steps, unfit = plan_install(*wanted, rates, markers)
    for failure in unfit:
        job.failed[failure.host] = failure
        yield events.HostFailed(failure)
    yield events.Planned("install", steps.text)
    if dry or job.task.check:
        return (yield from _report_result(job, steps, dry=True))
    if job.failed and not job.task.partial:
        return (yield from _give_up("nothing was changed", job.failed, len(job.inventory)))
    if steps.changes_nothing:
        return (yield from _report_result(job, steps))
    for note in (*map(str, job.stack.notes), *job.lock.notes):
        yield events.Message(note)
    changed = [name for name, step in steps.steps.items() if step.do != "nothing"]
    does = {step.do for step in steps.steps.values()}
    checks = ["send the wheels", "unpack"] * ("build" in does) + ["check", "switch"] * bool(does & {"build", "switch"})
    job.phases = (_LOOK, "lock", *checks, "tidy")
    yield from job.start_phase("lock")
    groups = yield from job.find_shared_fs_groups(changed, "installs")
    leaders = [group[0] for group in groups]
    cleaned = yield from build.lock_environments(job, leaders)
    if cleaned is None:
        return (yield from _report_result(job, steps))
    builders = [name for name in leaders if name not in job.failed and steps.steps[name].do == "build"]
    for group in groups if builders else ():
        yield from (events.Progress(name, "install", 0, 0, "B", f"waits for {group[0]}") for name in group[1:])
    yield from job.start_phase("send the wheels")
    wheels = yield from build.download_missing_wheels(job, builders, steps, states)
    verified: dict[str, build.VerifiedEnv] = {}
    if wheels is not None:
        yield from distribute_artifacts(job, build.list_artifacts(job, builders, states, wheels, tool), addresses)
        builders = [name for name in builders if name not in job.failed]
        yield from build.build_environments(job, builders, steps, states, wheels, tool)
        built = [group for group in groups if steps.steps[group[0]].do != "tidy"]
        verified = yield from build.verify_environments(job, built, steps)
    ready = [group for group in groups if not job.failed.keys() & set(group)]
    switched, unknown = set[str](), set[str]()
    if wheels is not None and (ready if job.task.partial else not job.failed):
        leaders = [group[0] for group in ready if steps.steps[group[0]].do != "tidy"]
        markers = {name: build.build_marker(job, verified[name].layout) for name in leaders}
        switched, unknown = yield from switch_environments(job, markers, states, addresses)
        if job.task.partial or switched.issuperset(leaders):
            cleaned |= yield from tidy_environments(job, ready)
    elif job.failed:
        yield NOT_SWITCHED
    active = _add_shared_fs_hosts(groups, {name for name in cleaned if steps.steps[name].do == "tidy"} | switched)
    unknown = _add_shared_fs_hosts(groups, unknown)
    return (yield from _report_result(job, steps, changed=active, unknown=unknown, verified=verified))


def choose_downloader(job: InstallJob) -> Workflow[Literal["auto", "controller", "hosts"]]:
    """Who downloads. The controller does where hosts would send a login unencrypted: it has sent it already, as the
    user's own index wants it. Raises `UsageError` (exit 4) if the hosts are to download all the same."""
    way, sources = job.task.wheels_from, job.sources
    urls = [wheel.url for wheel in job.lock.wheels if not wheel.local]
    url = next((url for url in urls if sources.find_login(url) and not sources.find_host_login(url)), "")
    if way == "controller" or not url:
        return way
    what = f"hosts would send the login of {urlsplit(url).netloc.rpartition('@')[2]} unencrypted"
    if way == "hosts":
        raise UsageError(what, reasons=[redact_url(url)], hint="--wheels-from controller", exit=Exit.STEP)
    yield events.Message(f"{what}: the wheels are downloaded here and sent")
    return "controller"


def choose_addresses(job: InstallJob) -> dict[str, str]:
    """Where each host listens for the others. A host without a usable address fetches, but serves nothing.

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
    """The state of the environment on each host; starts the sessions."""
    paths = [(wheel, locate_wheel(job.context.cache, wheel)) for wheel in job.lock.wheels if wheel.size]
    files = [{"path": str(path), "size": wheel.size} for wheel, path in paths if path.is_file()]
    origins = list_download_origins(job.lock) if job.task.wheels_from == "auto" else []

    def inspect(link: Link, _: Emit) -> Inspection:
        name = link.host.name
        job.open(link, job.stack.interpreters[name])
        return job.call(name, "inspect", Inspection, uv=asdict(tool), files=files, origins=origins)

    return (yield from job.run(names, "look at the environment", inspect))


def _measure_rates(job: InstallJob, steps: Plan, states: Mapping[str, Inspection]) -> Workflow[Rates | None]:
    """Download rates, where hosts and the controller could both download: the biggest wheel tried for a moment by every
    host at once, as they would all download; then the upload to one of them, and the controller's own download. None
    where there is no choice."""
    remote_wheels = {wheel for step in steps.steps.values() for wheel in step.wheels if not wheel.local}
    names = [name for name in steps.builders if not states[name].unreachable]
    size = sum(wheel.size for wheel in remote_wheels)
    if job.task.wheels_from != "auto" or not names or size < job.sources.limits.measured:
        return None
    wheel = max(remote_wheels, key=lambda wheel: wheel.size)
    login = unquote(job.sources.find_host_login(wheel.url))
    request = {"url": redact_url(wheel.url), "login": login, "seconds": _MOMENT, "most": _SAMPLE}
    answers = yield from job.request(names, "measure the download", "measure_rate", DownloadRate, lambda _: request)
    rates = {name: answer.rate for name, answer in answers.items()}
    if not rates:
        return None

    def upload(link: Link, _: Emit) -> float:
        rate = 0.0
        for size in (64 << 10, 512 << 10, 4 << 20):  # until one takes long enough to be believed
            begun = time.monotonic()
            job.call(link.host.name, "echo", Nothing, data="x" * size)
            rate = size / (time.monotonic() - begun)
            if size / rate > _LONG:
                break
        return rate

    uploads = yield from job.run([next(iter(rates))], "measure the sending", upload)
    missing = sum(wheel.size for wheel in remote_wheels if not locate_wheel(job.context.cache, wheel).is_file())
    down = 0.0
    if missing:
        down = yield from run_in_background(
            "", lambda _: measure_download_rate(wheel.url, job.sources, _MOMENT, _SAMPLE), job.stop
        )
    return Rates(rates, next(iter(uploads.values()), 0.0), down, missing)


def _report_result(
    job: InstallJob,
    steps: Plan,
    *,
    dry: bool = False,
    changed: Collection[str] = (),
    unknown: Collection[str] = (),
    verified: Mapping[str, build.VerifiedEnv] = MappingProxyType({}),
) -> Workflow[InstallAnswer]:
    if any(failure.code in {"hash", "index", "wheel"} for failure in job.failed.values()):
        forget_lock(job.context.cache, job.lock)
    if dry:
        changed = {name for name, step in steps.steps.items() if step.do != "nothing" and name not in job.failed}
    place = list_flags(job.inventory, job.task.venv)
    answer = InstallAnswer(
        venv=job.venv,
        id=job.lock.id,
        stack=job.stack.summary,
        check=dry,
        plan=steps.text,
        changed=tuple(name for name in steps.steps if name in changed),
        unchanged=tuple(name for name in steps.steps if name not in changed and name not in unknown),
        failed={name: failure.what for name, failure in job.failed.items() if failure.host},
        hosts={
            name: ImportCheck(**{**env.report._asdict(), "problems": tuple(env.report.problems)})
            for name, env in verified.items()
        },
        next=None if dry or job.failed else complete_hint(advise("run", "train.py"), place),
    )
    if steps.changes_nothing and not job.failed:
        has = "has" if len(steps.steps) == 1 else "have"
        yield events.Message(
            f"{pluralize(len(steps.steps), 'host')} {has} {job.stack.name} already: nothing to do, changed 0"
        )
    yield events.Answer(answer)
    yield events.Ended("install", choose_exit([failure.kind.exit for failure in job.failed.values()]))
    return answer


def _give_up(what: str, failed: Mapping[str, Failure], of: int) -> Workflow[InstallAnswer]:
    yield events.Message(f"{what}; {suggest_limit([*failed])}, or --partial" if len(failed) < of else what, "warning")
    answer = InstallAnswer((), {name: failure.what for name, failure in failed.items()})
    yield events.Answer(answer)
    yield events.Ended("install", choose_exit([failure.kind.exit for failure in failed.values()]))
    return answer
