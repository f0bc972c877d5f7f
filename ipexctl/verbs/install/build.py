"""The environment on each host: locked, its wheels downloaded and sent, unpacked on one host of each file system,
verified on all, and switched to, on all hosts or none, wherever that is cut short: marked complete, switched with the
old one kept, confirmed, each on all hosts before the next."""

import posixpath
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from getpass import getuser
from pathlib import Path
from urllib.parse import urlsplit

from ipexctl import __version__
from ipexctl.act.agent import read_source
from ipexctl.act.context import Emit
from ipexctl.act.packages.download import FETCH, fetch_wheels, locate_wheel, read_unpacked_size
from ipexctl.act.packages.resolve import Tool
from ipexctl.decide.launch import mpi_launchers
from ipexctl.decide.launch.dialects import get_dialect
from ipexctl.decide.planning.extend import read_package_name
from ipexctl.decide.planning.install import Plan, estimate_unpacked, format_pylock
from ipexctl.decide.releases.resolve import suggest_library_package
from ipexctl.decide.releases.runtime import Runtime, build_runtime, detect_layout, list_layout_paths
from ipexctl.model.errors import Failure, Kind, advise
from ipexctl.model.events import Message, Progress, StepEnded, StepOutcome, Workflow
from ipexctl.model.hosts import Link
from ipexctl.model.json_values import Record, to_json
from ipexctl.model.stack import InstallMarker, MpiLayout
from ipexctl.model.text import join_names, pluralize, printable
from ipexctl.protocol import session as protocol
from ipexctl.protocol.paths import PART
from ipexctl.protocol.session import Inspection, Nothing, Offer, Removed, Used
from ipexctl.verbs.common.relay import Artifact
from ipexctl.verbs.install.install_sessions import InstallJob, PlannedInstall
from ipexctl.verbs.install.lock import find_cpu_index, load_torch_builds

WHEELS = "wheels"  # below the store of environments on a host
_IMPORT_TIMEOUT = 300.0  # seconds the import check may take: torch from a cold network file system is slow


def download_missing_wheels(
    job: InstallJob, builders: Sequence[str], planned: PlannedInstall
) -> Workflow[dict[str, dict[str, Path]] | None]:
    """Returns the wheels that the controller must send to each host, by package, downloaded. None if that failed."""
    sent = {}
    for name in builders:
        step, visible = planned.steps.steps[name], {*planned.states[name].visible}
        local = [wheel for wheel in step.wheels if step.wheels_from == "controller" or wheel.local]
        sent[name] = [wheel for wheel in local if str(locate_wheel(job.context.cache, wheel)) not in visible]
    wanted = list({wheel.name: wheel for wheels in sent.values() for wheel in wheels}.values())
    if not wanted:
        return {name: {} for name in builders}
    paths = yield from fetch_wheels(wanted, job.context.cache, job.sources, job.stop)
    if isinstance(paths, Failure):
        job.failed[""] = paths
        return None
    yield StepEnded("", FETCH, "changed", pluralize(len(wanted), "wheel"))
    return {name: {wheel.name: paths[wheel.name] for wheel in wheels} for name, wheels in sent.items()}


def list_artifacts(
    job: InstallJob, builders: Sequence[str], planned: PlannedInstall, wheels: Mapping[str, Mapping[str, Path]]
) -> dict[str, list[Artifact]]:
    """Returns the files to send to each host: wheels that it cannot fetch, and uv."""
    tool, known = planned.tool, {wheel.name: wheel for wheel in job.lock.wheels}
    artifacts = {}
    for name in builders:
        artifacts[name] = [
            Artifact(f"{WHEELS}/{path.name}", path, known[package].sha256, path.stat().st_size)
            for package, path in wheels[name].items()
        ]
        if not planned.states[name].uv:
            uv = Artifact(_build_uv_target(tool), Path(tool.path), tool.sha256, tool.size, 0o755)
            artifacts[name].insert(0, uv)
    return artifacts


def _build_uv_target(tool: Tool) -> str:
    """Returns where uv goes, below the store of environments."""
    return f"bin/uv-{tool.version}"


def build_environments(
    job: InstallJob, builders: Sequence[str], planned: PlannedInstall, wheels: Mapping[str, Mapping[str, Path]]
) -> Workflow[None]:
    """Unpacks the environment on one host of each file system."""
    yield from job.start_phase("unpack")
    sizes = {name: read_unpacked_size(path) for files in wheels.values() for name, path in files.items()}

    def build(link: Link, emit: Emit) -> protocol.Nothing:
        name = link.host.name
        step, state = planned.steps.steps[name], planned.states[name]
        known, visible = [sizes.get(wheel.name, 0) for wheel in step.wheels], {*state.visible}
        total = size = estimate_unpacked(step.wheels)
        if all(known):
            total, size = sum(known), int(sum(known) * 1.02) + (16 << 20)
        urls = [replace(wheel, url=job.sources.add_login(wheel.url)) for wheel in step.wheels]
        paths = {
            wheel.name: str(path)
            for wheel in step.wheels
            if str(path := locate_wheel(job.context.cache, wheel)) in visible
            and (step.wheels_from == "controller" or wheel.local)
        }
        paths |= {package: f"{job.venv}.d/{WHEELS}/{path.name}" for package, path in wheels[name].items()}
        fetched = [wheel for wheel in step.wheels if wheel.name not in paths]
        largest = max(fetched, key=lambda wheel: wheel.size, default=None)
        detail = f"from {urlsplit(largest.url).hostname}" if largest else "unpacking"
        return job.call(
            name,
            "build",
            protocol.Nothing,
            progress=lambda done, of: emit(Progress(name, "install", done, of, "B", detail, not fetched)),
            origin=step.base or job.stack.interpreters[name],
            uv=state.uv or f"{job.venv}.d/{_build_uv_target(planned.tool)}",
            lock=format_pylock(urls, paths) if urls else "",  # with logins: for the host only
            removed=step.removed,
            unpacked=size,
            total=total,
            stall=job.sources.limits.stall,
            keep=step.wheels_from == "hosts",
            repair=step.repair,
        )

    yield from job.run(builders, "install", build, outcome=lambda _: ("changed", "unpacked"))


class VerifiedEnv(Record):
    """An environment that imports on a host: where its MPI lies (`layout`), and what the import check saw."""

    layout: MpiLayout
    report: protocol.ImportReport


def verify_environments(
    job: InstallJob, groups: Sequence[Sequence[str]], plan: Plan
) -> Workflow[dict[str, VerifiedEnv]]:
    """Every host imports, in a fresh process, in the environment variables that a rank will have; of an environment
    that is another one with more packages only these, unless one of them takes the place of another release."""
    yield from job.start_phase("check")
    script = read_source("remote.session.verify")
    row, modules = job.stack.release, ["mpi4py", "impi_torch"] if job.stack.backend == "impi" else []
    paths = list_layout_paths(job.stack)
    requested = set(map(read_package_name, job.lock.requested))

    def verify(link: Link, _: Emit) -> VerifiedEnv | Failure:
        name = link.host.name
        place = detect_layout(job.stack, job.call(name, "list_present", protocol.Present, paths=paths).paths)
        step, ready = plan.steps[name], build_runtime(build_marker(job, place))
        new = {wheel.name for wheel in step.wheels}
        if job.stack.launcher:
            ready = mpi_launchers.switch_launcher(ready, job.stack.launcher, ccl=bool(row.oneccl))
        dialect = get_dialect(ready.dialect, ready.version)
        wanted = {
            "torch": row.torch,
            "ipex": row.ipex,
            "oneccl": row.oneccl,
            "module": row.module if row.oneccl else "",
            "modules": modules,
            "mpiexec": ready.mpiexec,
            "single_rank": dialect.single_rank,
            "library": dialect.library if modules or dialect.library == dialect.system_library else "",
            "preload": _list_preloads(job, name, ready),
            "asked": ["iomp5"] if job.task.omp == "intel" else [],
            "base": f"{job.venv}.d/{step.base}" if step.base else "",
            "added": sorted(requested if new & {*step.removed} else requested & new),  # what stays may need the other
        }
        env = {**ready.env, **dialect.single_rank_env, "LD_LIBRARY_PATH": ":".join(ready.library_path)}
        request = {"script": script, "arguments": wanted, "path": ready.path, "env": env, "timeout": _IMPORT_TIMEOUT}
        report = job.call(name, "check_imports", protocol.ImportReport, **request)
        if report.problems:
            what, failed = printable("; ".join(report.problems[:3]), 600), report.failed or []
            hint = suggest_library_package(what)
            builds, index = load_torch_builds(), find_cpu_index(job.stack)
            for misfit in builds.find_misfits(job.lock.packages, failed, index)[:1]:
                what, hint = f"{what} ({misfit.why})", hint or misfit.fix
                failed = [misfit.name] if misfit.name in failed else failed  # the others may fail because of it alone
            return Failure(name, Kind.STEP, what, _suggest_others(job, name, failed, hint), code="import")
        return VerifiedEnv(place, report)

    hosts = [name for group in groups for name in group if name not in job.failed and group[0] not in job.failed]
    verified = yield from job.run(hosts, "verify", verify, outcome=_describe_verified)
    for name, env in verified.items():
        for what, why in sorted((env.report.preload or {}).items()):
            if why:  # a run goes without it, and reports that, too
                yield Message(printable(f"{name}: {what} cannot be loaded: {why}", 400), "warning")
    return verified


def _suggest_others(job: InstallJob, host: str, failed: Sequence[str], fix: str) -> str | None:
    """Returns the command that installs what was asked for without the packages that cannot be imported, after ``fix``;
    that alone where nothing else was asked for."""
    env = job.facts[host].installed
    kept: Sequence[str] = ()
    if env and env.marker:
        kept = env.marker.requested
    words, left = ["install"], list[str]()
    named = {*map(read_package_name, job.task.with_)}
    for text in [*job.task.with_, *(text for text in kept if read_package_name(text) not in named)]:
        name = read_package_name(text)
        if name in failed:
            left.append(name)
            if text in kept:
                words += ["--without", name]
        elif text not in kept:
            words += ["--with", text]
    if not (words[1:] and left):
        return fix or None
    if not any(read_package_name(text) in left for text in job.task.with_ if text not in kept):
        fix = f"{fix}; an environment of its own for what is new: --venv PATH"  # which broke what was there
    return advise(*words, text=f"{fix}; without {join_names(left, 3)}:".removeprefix("; "))


def _list_preloads(job: InstallJob, name: str, ready: Runtime) -> list[list[str]]:
    """Libraries that ``run`` may preload on this host: name and path."""
    paths = dict(job.facts[name].allocators)
    if job.task.omp == "intel":
        paths["iomp5"] = f"{posixpath.dirname(posixpath.dirname(ready.python))}/lib/libiomp5.so"
    # Those of the environment that is being replaced do not count.
    return [[what, path] for what, path in sorted(paths.items()) if not path.startswith(f"{job.venv}/")]


def build_marker(job: InstallJob, layout: MpiLayout) -> InstallMarker:
    """Returns the content of `<venv>/ipexctl.json`."""
    return InstallMarker(
        id=job.lock.id,
        venv=job.venv,
        prefix=f"{job.venv}.d/{job.lock.id}",
        python=job.stack.python,
        stack=job.stack.summary,
        packages=job.lock.packages,
        layout=layout,
        inputs=job.lock.inputs,
        created=job.context.clock(),
        by=f"{getuser()}@{socket.gethostname()}",
        ipexctl=__version__,
        requested=job.lock.requested,
        wheels={wheel.name: wheel.sha256 for wheel in job.lock.wheels},
    )


def _describe_verified(env: VerifiedEnv) -> tuple[StepOutcome, str]:
    report = env.report
    parts = [report.isa or "", f"as before: {pluralize(report.same, 'file', ',')}" if report.same else ""]
    if report.step_ms is not None:
        parts.append(f"{report.dtype} step {report.step_ms:g} ms")
    return "ok", printable(" · ".join(part for part in parts if part), 200)


def lock_environments(job: InstallJob, leaders: Sequence[str]) -> Workflow[set[str] | None]:
    """Locks all or none, in the same order for every install: of two at once, one gets the first lock. Returns the
    hosts where incomplete environments were removed; None if the install cannot go on."""
    order = sorted(leaders)
    for names in (order[:1], order[1:]):
        yield from job.run(names, "lock", lambda link, _: job.take_lock(link.host.name))
        if job.failed.keys() & set(names) and not job.task.partial:
            return None
    alive = [name for name in leaders if name not in job.failed]
    kept = [name for wheel in job.lock.wheels for name in (wheel.filename, PART + wheel.sha256)]
    answers = yield from job.request(
        alive, "clean", "clean", protocol.Cleaned, lambda _: {"wheels": kept}, outcome=_describe_cleaned
    )
    return {name for name, answer in answers.items() if answer.removed} if alive else None


def _describe_cleaned(answer: protocol.Cleaned) -> tuple[StepOutcome, str]:
    if answer.removed:
        return ("changed", f"removed what was half-done ({answer.removed})")
    return ("ok", "")


NOT_SWITCHED = Message(
    "no host was switched: every host has the environment it had before", "warning", code="not-switched"
)


def switch_environments(
    job: InstallJob,
    markers: Mapping[str, InstallMarker],
    states: Mapping[str, Inspection],
    addresses: Mapping[str, str],
) -> Workflow[tuple[set[str], set[str]]]:
    """Switches the hosts of ``markers``, one of each file system. Returns the hosts that are on the new environment,
    and those of which that is not known. Until the first host is confirmed, all go back if one fails; from then on all
    go forward. A host that has lost the controller between the two asks that first one."""
    yield from job.start_phase("switch")
    partial, names = job.task.partial, [*markers]
    yield from job.request(names, "mark", "mark", Nothing, lambda name: {"marker": to_json(markers[name])})
    if job.failed and not partial:
        yield NOT_SWITCHED
        return set(), set()
    marked = [name for name in names if name not in job.failed]
    first, others = marked[:1], marked[1:]
    address = addresses.get(first[0], "") if others else ""
    offers = yield from job.request(first, "switch", "switch", Offer, lambda _: {"ask": None, "address": address})
    host = f"[{address}]" if ":" in address else address
    ask = next(({"base": f"http://{host}:{o.port}", "token": o.token} for o in offers.values() if address), None)
    if offers or partial:
        offers |= yield from job.request(others, "switch", "switch", Offer, lambda _: {"ask": ask, "address": ""})
    switched, confirmed = [*offers], set[str]()

    def describe(_: Nothing) -> tuple[StepOutcome, str]:
        return "changed", f"{job.venv} is {job.lock.id}"

    for turn in (switched[:1], switched[1:]):
        if partial or (switched == marked and (confirmed or turn == first)):
            confirmed |= (yield from job.request(turn, "confirm", "confirm", Nothing, outcome=describe)).keys()
    if confirmed or partial:
        lost = {name for name in switched if name not in confirmed}
        unknown = yield from _confirm_or_go_back(job, sorted(lost), states, forward=True)
        return confirmed | lost - unknown, unknown
    unknown = yield from _confirm_or_go_back(job, marked, states, forward=False)
    what = "may have switched and did not get the order to go back: install again when it answers"
    text = f"{join_names(sorted(unknown), 8)} {what}"
    yield Message(text, "warning", code="not-switched") if unknown else NOT_SWITCHED
    return set(), unknown


def _confirm_or_go_back(
    job: InstallJob, names: Sequence[str], states: Mapping[str, Inspection], *, forward: bool
) -> Workflow[set[str]]:
    """Makes hosts stay with the new environment, or go back; one that has lost its session gets another. Those of which
    it is not known what they have done. The first failure of a host stays."""
    causes = dict(job.failed)

    def settle(link: Link, _: Emit) -> Nothing:
        name = link.host.name
        if name in causes and causes[name].kind is Kind.UNREACHABLE:
            job.reopen(link)
        if not forward:
            return job.call(name, "go_back", Nothing, before=states[name].active or "")
        job.call(name, "switch", Offer, ask=None, address="")
        return job.call(name, "confirm", Nothing)

    answers = yield from job.run(names, "finish the switch" if forward else "go back", settle)
    job.failed.update(causes)
    return set(names) - answers.keys()


def tidy_environments(job: InstallJob, groups: Sequence[Sequence[str]]) -> Workflow[set[str]]:
    """Removes what no job uses any more, on one host of each file system; the hosts where that removed something."""
    yield from job.start_phase("tidy")
    alive = [name for group in groups for name in group if name not in job.failed]
    used = yield from job.request(alive, "look for running jobs", "find_used", Used)
    keep = sorted({job.lock.id}.union(*(answer.used for answer in used.values())))
    leaders = [group[0] for group in groups if group[0] in alive and group[0] not in job.failed]
    answers = yield from job.request(
        leaders, "tidy", "remove_unused", Removed, lambda _: {"keep": keep}, outcome=_describe_removed
    )
    return {name for name, answer in answers.items() if answer.removed}


def _describe_removed(answer: Removed) -> tuple[StepOutcome, str]:
    names = printable(", ".join(answer.removed[:3]), 200)
    return ("changed", f"removed {names}") if names else ("ok", "")
