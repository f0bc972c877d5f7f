"""``ipexctl install``: the same exact stack at the same path on every host, built beside the old one, checked, then
switched everywhere.

Observe the hosts, choose a row, lock its wheels here, look at the place on each host, plan; then build on one host per
file system, import on all, write the marker last, and switch when all are ready.
"""

from __future__ import annotations

import os
import posixpath
import socket
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from getpass import getuser
from importlib import resources
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from ipexctl import __version__
from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit, each
from ipexctl.act.packages.download import cache_path, download_wheels, measure_rate, read_unpacked_size
from ipexctl.act.packages.resolve import Tool, find_uv, find_uv_for_hosts, forget_lock
from ipexctl.act.packages.sources import Limits, redact_url
from ipexctl.act.packages.wheelhouse import opened
from ipexctl.act.sessions import Session
from ipexctl.data import read_data
from ipexctl.decide.checks.network import choose_interfaces
from ipexctl.decide.launch import mpi_launchers
from ipexctl.decide.planning.install import HostState, Plan, Rates, as_observed, origins, plan, pylock, unpacked
from ipexctl.decide.releases import parse, resolve, runtime
from ipexctl.decide.releases.env_health import DEFAULT
from ipexctl.decide.releases.resolve import minor, remedy, with_mpi
from ipexctl.decide.releases.runtime import Runtime, candidates, layout
from ipexctl.decide.releases.table import Table
from ipexctl.model.answers import ImportCheck, InstallAnswer
from ipexctl.model.commands import Command
from ipexctl.model.errors import Exit, Failure, Kind, UsageError, worst
from ipexctl.model.events import (
    Answer,
    Ended,
    Event,
    HostFailed,
    Message,
    Planned,
    Progress,
    Started,
    StepEnded,
    StepOutcome,
    StepStarted,
)
from ipexctl.model.facts import Facts, Python
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.json_values import to_json
from ipexctl.model.links import Link
from ipexctl.model.stack import Lock, MpiLauncher, Stack, StackRequest
from ipexctl.model.tasks import Install
from ipexctl.model.text import printable
from ipexctl.verbs.common.mpi import find_hosts_mpi
from ipexctl.verbs.common.probe import probe_hosts
from ipexctl.verbs.common.select import suggest_limit
from ipexctl.verbs.install.background import in_background
from ipexctl.verbs.install.distribute import WHEELS, Artifact, spread
from ipexctl.verbs.install.install_sessions import Ask, InstallSessions, Workflow
from ipexctl.verbs.install.lock import build_request, build_sources, choose_mpi, load_or_create_lock, read_lock

_BUILD = 3600.0  # seconds one host may take to unpack everything
_MOMENT, _SAMPLE = 2.0, 32 << 20  # seconds and bytes for which a download is tried, to see how fast it is
_LONG = 0.2  # seconds a sending must take for its speed to mean something
_IMPORT = 300.0  # seconds the import check may take: torch from a cold network file system is slow


def table() -> Table:
    """The version table that came with this ipexctl."""
    return parse(read_data("stacks.toml"))


def install(
    task: Install,
    inventory: Inventory,
    context: Context,
    *,
    environ: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    dry: bool = False,
) -> Generator[Event, None, InstallAnswer]:
    """Returns what `Answer` says. ``environ`` (default: the process's) is where pip's and uv's settings are read from.

    Raises `UsageError`: exit 2 before anything is contacted, exit 4 before anything is changed.
    """
    environ = os.environ if environ is None else environ
    limits = limits or Limits()
    rows = table()
    wish = _wish(task)
    _check_input(task, inventory)
    if task.locked:
        wish = build_request(lock := read_lock(task), wish)
        task = task.model_copy(update={"mpi": choose_mpi(lock, task.mpi)})
    resolve(wish, {}, rows)  # a combination that exists nowhere is refused before any host is contacted
    yield Started("install", f"install {wish}", inventory.names)
    if task.wheels and not Path(task.wheels).is_dir():
        task = task.model_copy(update={"wheels": str((yield from _unpacked(Path(task.wheels), context)))})
    failed: dict[str, Failure] = {}
    facts = yield from _facts(task, inventory, context, failed)
    if (failed and not (task.partial or task.check or dry)) or not facts:
        return (yield from _stopped("nothing was changed: some hosts could not be looked at", failed, len(inventory)))
    stack, engine = resolve(wish, facts, rows), None
    if task.mpi not in {"auto", "wheel"}:
        hosts = [inventory[name] for name in facts]
        found = yield from find_hosts_mpi(task.mpi, hosts, context, named=f"--mpi {task.mpi}")
        if not isinstance(found, MpiLauncher):
            return (yield from _stopped("nothing was changed", {**failed, **found}, len(inventory)))
        engine = found
        stack = with_mpi(stack, engine)
    venv = _venv(task, inventory, facts)
    stack, lock = yield from load_or_create_lock(task, stack, context, environ, limits, rows, facts)
    work = _Work(
        task=task,
        inventory=inventory,
        context=context,
        venv=venv,
        id=lock.id,
        failed=failed,
        environ=environ,
        limits=limits,
        stack=stack,
        engine=engine,
        lock=lock,
        facts=facts,
    )
    try:
        return (yield from work.story(dry=dry))
    finally:
        work.stop.set()
        work.close()


# ------------------------------------------------------------------------------------------------------- asking


def _wish(task: Install) -> StackRequest:
    python = task.python if task.python and "/" not in task.python else None
    return StackRequest(task.track, task.torch, task.ipex, task.oneccl, task.backend, minor(python) if python else None)


def _check_input(task: Install, inventory: Inventory) -> None:
    """All that can be known to be wrong without contacting anybody. Raises `UsageError` with every reason."""
    reasons = []
    named = [("--venv", task.venv)] + [(f"venv of {host.name}", host.vars.get("venv")) for host in inventory]
    for what, path in named:
        if path is None:
            continue
        if not path.startswith("/") or any(ord(char) < 32 for char in path) or posixpath.normpath(path) != path:
            reasons.append(f"{what}: {path!r} is not a plain absolute path")
        elif path.count("/") < 2:
            reasons.append(f"{what}: {path!r} is too near to the root directory")
    if task.wheels and not Path(task.wheels).is_dir() and not Path(task.wheels).is_file():
        reasons.append(f"--wheels: {task.wheels!r} is neither a directory nor an archive")
    for name in task.requirements:
        if not Path(name).is_file():
            reasons.append(f"--requirements: {name!r} is not a file")
    for text in task.with_:
        if not text.strip() or text.lstrip().startswith("-") or "\n" in text:
            reasons.append(f"--with: {text!r} is not a requirement")
    if reasons:
        raise UsageError("some of the input is wrong", reasons=reasons)


def _unpacked(archive: Path, context: Context) -> Workflow[Path]:
    """The directory of a wheelhouse that came as one file. Raises `UsageError`."""
    step = "open the wheelhouse"
    yield StepStarted("", step)
    house = yield from in_background(
        lambda tell: opened(
            archive, context.cache, lambda done, total, name: tell(Progress("", step, done, total, "B", name))
        ),
        threading.Event(),
    )
    yield StepEnded("", step, "ok", f"{len(list(house.iterdir()))} wheels of {archive.name}")
    return house


# ---------------------------------------------------------------------------------------------------- observing


def _facts(
    task: Install, inventory: Inventory, context: Context, failed: dict[str, Failure]
) -> Workflow[dict[str, Facts]]:
    seen = yield from probe_hosts(inventory, context, venv=task.venv)
    failed.update({name: found for name, found in seen.items() if isinstance(found, Failure)})
    facts = {name: found for name, found in seen.items() if isinstance(found, Facts)}
    named = {
        host.name: path for host in inventory if host.name in facts and (path := _interpreter(task, host)) is not None
    }
    if not named:
        return facts

    def ask(link: Link, _: Emit) -> Python:
        path = named[link.host.name]
        said = link.run(Command((path, "-I", "-c", "import platform; print(platform.python_version())")))
        if said.ok and said.text.strip():
            return Python(path, said.text.strip())
        return Python(path, None, False, f"does not run ({said.last_words(1) or f'status {said.status}'})")

    found = yield from each(context, [inventory[name] for name in named], "ask the interpreter", ask)
    for name, python in found.items():
        if isinstance(python, Failure):
            failed[name] = python
            del facts[name]
        else:
            facts[name] = replace(facts[name], pythons=(python,))
    return facts


def _interpreter(task: Install, host: Host) -> str | None:
    """The interpreter somebody named by path, for all hosts or for this one."""
    if task.python and "/" in task.python:
        return task.python
    return host.vars.get("python") if task.python is None else None


def _venv(task: Install, inventory: Inventory, facts: Mapping[str, Facts]) -> str:
    """The one absolute path: mpiexec starts its helper on every host by the path it has on the head.

    Raises `UsageError` (exit 4) if there is none.
    """
    if task.venv:
        return task.venv
    wanted = {
        host.name: host.vars.get("venv") or posixpath.join(facts[host.name].home or "", DEFAULT)
        for host in inventory
        if host.name in facts
    }
    paths = list(dict.fromkeys(wanted.values()))
    if len(paths) > 1 or not paths[0].startswith("/"):
        raise UsageError(
            "the environment must have the same absolute path on all hosts (Intel MPI starts its helpers by it)",
            reasons=[f"{', '.join(h for h, p in wanted.items() if p == path)}: {path}" for path in paths],
            hint="ipexctl install --venv /a/path/all/hosts/have",
            exit=Exit.STEP,
        )
    return paths[0]


# ------------------------------------------------------------------------------------------------------ working


@dataclass(kw_only=True)
class _Work(InstallSessions):
    """One install under way, and how far each host has come."""

    task: Install
    environ: Mapping[str, str]
    limits: Limits
    stack: Stack
    engine: MpiLauncher | None
    lock: Lock
    facts: Mapping[str, Facts]
    places: dict[str, Any] = field(default_factory=dict)  # the layout found, by group leader
    found: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # the import check's answer, by host
    tidied: set[str] = field(default_factory=set)  # group leaders where something was taken away
    stop: threading.Event = field(default_factory=threading.Event)

    # -- the story

    def story(self, *, dry: bool) -> Workflow[InstallAnswer]:
        names = [host.name for host in self.inventory if host.name in self.facts and host.name not in self.failed]
        ready_already = {
            name: there for name in names if (there := as_observed(self.facts[name], self.venv, self.lock))
        }
        tool, seen = _NO_TOOL, dict(ready_already)
        if others := [name for name in names if name not in ready_already]:
            sources = build_sources(self.task, self.environ)
            tool = find_uv_for_hosts(find_uv(), self.context.cache, sources, self.limits, self.environ)
            looked = yield from self.look(others, tool)
            seen = {name: (ready_already | looked)[name] for name in names if name in ready_already | looked}
        made, unfit = plan(self.stack, self.lock, self.venv, seen, self.task.wheels_from)
        if rates := (yield from self.measure(made, seen)):
            made, unfit = plan(self.stack, self.lock, self.venv, seen, self.task.wheels_from, rates)
        for failure in unfit:
            self.failed[failure.host] = failure
            yield HostFailed(failure)
        yield Planned("install", made.text)
        if dry or self.task.check:
            return (yield from self.answered(made, dry=True))
        if self.failed and not self.task.partial:
            return (yield from _stopped("nothing was changed", self.failed, len(self.inventory)))
        if made.nothing:
            return (yield from self.answered(made))
        for note in (*map(str, self.stack.notes), *self.lock.notes):
            yield Message(note)
        todo = [name for name, step in made.steps.items() if step.do != "nothing"]
        teams = yield from self.teams(todo, "installs")
        leaders = [team[0] for team in teams]
        if not (yield from self.locks(leaders)):
            return (yield from self.answered(made))
        builders = [name for name in leaders if made.steps[name].do == "build"]
        wheels = yield from self.wheels(builders, made, seen)
        if wheels is not None:
            addresses = {name: choice.address for name, choice in choose_interfaces(self.facts).items()}
            yield from spread(self, self.parcels(builders, seen, wheels, tool), addresses)
            yield from self.build([name for name in builders if name not in self.failed], made, seen, wheels, tool)
            yield from self.verify([team for team in teams if made.steps[team[0]].do != "tidy"])
        ready = [team for team in teams if not self.failed.keys() & set(team)]
        if wheels is not None and (ready if self.task.partial else not self.failed):
            yield from self.switch(ready, made)
        elif self.failed:
            yield Message("no host was switched: every host has the environment it had before", "warning")
        return (yield from self.answered(made))

    # -- its parts

    def look(self, names: Sequence[str], tool: Tool) -> Workflow[dict[str, HostState]]:
        files = [
            {"path": str(path), "size": wheel.size}
            for wheel in self.lock.wheels
            if wheel.size and (path := cache_path(self.context.cache, wheel)).is_file()
        ]
        program = resources.files("ipexctl.remote.session").joinpath("install.py").read_text("utf-8")
        wanted = {"version": tool.version, "path": tool.path, "size": tool.size, "sha256": tool.sha256}
        far = origins(self.lock) if self.task.wheels_from == "auto" else []

        def look(link: Link, _: Emit) -> HostState | Failure:
            name = link.host.name
            self.sessions[name] = Session.start(link, self.stack.interpreters[name], program)
            return self.done(name, lambda ask: HostState.read(ask("look", uv=wanted, files=files, origins=far)))

        return (yield from self.each(names, "look at the environment", look))

    def measure(self, made: Plan, seen: Mapping[str, HostState]) -> Workflow[Rates | None]:
        """Who gets the wheels faster, where that is open: the biggest one tried for a moment by every host at once, as
        they would all download; then how fast we send to one of them, and get what we lack. None: it is not open."""
        far = [wheel for wheel in self.lock.wheels if not wheel.local]
        names = [name for name in made.builders if not seen[name].unreachable]
        if self.task.wheels_from != "auto" or not names or sum(wheel.size for wheel in far) < self.limits.measured:
            return None
        sources = build_sources(self.task, self.environ)
        wheel = max(far, key=lambda wheel: wheel.size)
        login = unquote(sources.find_login(wheel.url, self.environ))
        asked = {"url": redact_url(wheel.url), "login": login, "seconds": _MOMENT, "most": _SAMPLE}
        found = yield from self.each(names, "measure the download", self.command("speed", lambda _: asked))
        rates = {name: float(said["rate"]) for name, said in found.items()}
        if not rates:
            return None

        def send(_: Link, __: Emit) -> float | Failure:
            def work(ask: Ask) -> float:
                rate = 0.0
                for size in (64 << 10, 512 << 10, 4 << 20):  # until one takes long enough to be believed
                    begun = time.monotonic()
                    ask("receive", data="x" * size)
                    rate = size / (time.monotonic() - begun)
                    if size / rate > _LONG:
                        break
                return rate

            return self.done(next(iter(rates)), work)

        up = yield from self.each([next(iter(rates))], "measure the sending", send)
        missing = sum(wheel.size for wheel in far if not cache_path(self.context.cache, wheel).is_file())
        down = 0.0
        if missing:
            down = yield from in_background(
                lambda _: measure_rate(wheel.url, sources, self.environ, self.limits, _MOMENT, _SAMPLE), self.stop
            )
        return Rates(rates, next(iter(up.values()), 0.0), down, missing)

    def locks(self, leaders: Sequence[str]) -> Workflow[bool]:
        """All or none, and in one order everywhere: of two installs at once, one gets the first lock."""
        owner = {"user": getuser(), "host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
        order = sorted(leaders)
        for some in (order[:1], order[1:]):
            if some:
                yield from self.each(some, "lock", self.command("lock", lambda _: {"owner": owner}))
            if self.failed.keys() & set(some) and not self.task.partial:
                return False
        alive = [name for name in leaders if name not in self.failed]
        cleaned = yield from self.each(alive, "clean", self.command("clean"), outcome=_cleaned)
        self.tidied |= {name for name, found in cleaned.items() if found["removed"]}
        return bool(alive)

    def wheels(
        self, builders: Sequence[str], made: Plan, seen: Mapping[str, HostState]
    ) -> Workflow[dict[str, dict[str, Path]] | None]:
        """What has to be sent to each builder, by package; downloaded here first. None if that failed."""
        sent = {
            name: [
                wheel
                for wheel in self.lock.wheels
                if (made.steps[name].wheels_from == "controller" or wheel.local)
                and str(cache_path(self.context.cache, wheel)) not in seen[name].visible
            ]
            for name in builders
        }
        wanted = list({wheel.name: wheel for wheels in sent.values() for wheel in wheels}.values())
        if not wanted:
            return {name: {} for name in builders}
        step = "fetch the wheels"
        yield StepStarted("", step)
        sources = build_sources(self.task, self.environ)
        try:
            paths = yield from in_background(
                lambda tell: download_wheels(
                    wanted,
                    self.context.cache,
                    sources,
                    self.environ,
                    self.limits,
                    lambda done, total, name: tell(Progress("", step, done, total, "B", name)),
                    self.stop,
                ),
                self.stop,
            )
        except UsageError as refusal:
            for reason in refusal.reasons:
                failure = Failure("", Kind.STEP, reason, code="wheel")
                self.failed[""] = failure
                yield HostFailed(failure)
            return None
        yield StepEnded("", step, "changed", f"{len(wanted)} wheels")
        return {name: {wheel.name: paths[wheel.name] for wheel in wheels} for name, wheels in sent.items()}

    def parcels(
        self,
        builders: Sequence[str],
        seen: Mapping[str, HostState],
        wheels: Mapping[str, Mapping[str, Path]],
        tool: Tool,
    ) -> dict[str, list[Artifact]]:
        """What has to get to each builder: wheels it cannot fetch, and uv."""
        known = {wheel.name: wheel for wheel in self.lock.wheels}
        uv = Artifact(_uv(tool), Path(tool.path), tool.sha256, tool.size, 0o755)
        return {
            name: [
                *([] if seen[name].uv else [uv]),
                *(
                    Artifact(f"{WHEELS}/{path.name}", path, known[package].sha256, path.stat().st_size)
                    for package, path in wheels[name].items()
                ),
            ]
            for name in builders
        }

    def build(
        self,
        builders: Sequence[str],
        made: Plan,
        seen: Mapping[str, HostState],
        wheels: Mapping[str, Mapping[str, Path]],
        tool: Tool,
    ) -> Workflow[None]:
        """uv, the wheels from here, and the environment itself, on one host of each file system."""
        sources = build_sources(self.task, self.environ)
        urls = [replace(wheel, url=sources.add_login(wheel.url, self.environ)) for wheel in self.lock.wheels]
        told = replace(self.lock, wheels=tuple(urls))  # with passwords: for the hosts' ears only
        sizes = {name: read_unpacked_size(path) for some in wheels.values() for name, path in some.items()}

        def build(link: Link, emit: Emit) -> Mapping[str, Any] | Failure:
            name, step = link.host.name, "install"

            def work(ask: Ask) -> Mapping[str, Any]:
                paths = {
                    wheel.name: str(place)
                    for wheel in self.lock.wheels
                    if str(place := cache_path(self.context.cache, wheel)) in seen[name].visible
                    and (made.steps[name].wheels_from == "controller" or wheel.local)
                }
                paths |= {package: f"{self.venv}.d/{WHEELS}/{path.name}" for package, path in wheels[name].items()}
                whole = {wheel.name for wheel in self.lock.wheels} == set(sizes) and all(sizes.values())
                size = int(sum(sizes.values()) * 1.02) + (16 << 20) if whole else unpacked(self.lock)
                return ask(
                    "build",
                    progress=lambda done, total: emit(Progress(name, step, done, total, "B", "unpacking")),
                    python=self.stack.interpreters[name],
                    uv=seen[name].uv or f"{self.venv}.d/{_uv(tool)}",
                    lock=pylock(told, paths),
                    need=size,
                    unpacked=size,
                    stall=self.limits.stall,
                    keep=made.steps[name].wheels_from == "hosts",
                    timeout=_BUILD,
                    repair=made.steps[name].repair,
                )

            return self.done(name, work)

        yield from self.each(builders, "install", build, outcome=lambda _: ("changed", "unpacked"))

    def verify(self, teams: Sequence[Sequence[str]]) -> Workflow[None]:
        """Every host imports, in a fresh process, with the very environment a rank will have."""
        script = resources.files("ipexctl.remote.session").joinpath("verify.py").read_text("utf-8")
        row = self.stack.row
        paths = candidates(self.stack)

        def verify(link: Link, _: Emit) -> Mapping[str, Any] | Failure:
            name = link.host.name

            def work(ask: Ask) -> Mapping[str, Any]:
                place = layout(self.stack, ask("present", id=self.lock.id, paths=paths)["seen"])
                self.places[name] = place
                ready = runtime(self.marker(place))
                if self.engine:
                    ready = mpi_launchers.switch_launcher(ready, self.engine, ccl=bool(row.oneccl))
                wanted = {
                    "torch": row.torch,
                    "ipex": row.ipex,
                    "oneccl": row.oneccl,
                    "module": row.module if row.oneccl else "",
                    "modules": ["mpi4py", "impi_torch"] if self.stack.backend == "impi" else [],
                    "mpiexec": ready.mpiexec,
                    "libmpi": ready.dialect == "impi",
                    "preload": self.preloads(name, ready),
                    "asked": ["iomp5"] if self.task.omp == "intel" else [],
                }
                env = {**ready.env, "LD_LIBRARY_PATH": ":".join(ready.library_path)}
                return ask("check", script=script, arguments=wanted, path=ready.path, env=env, timeout=_IMPORT)

            said = self.done(name, work)
            if isinstance(said, Failure):
                return said
            found = cast("Mapping[str, Any]", said["found"])
            if found["problems"]:
                what = printable("; ".join(found["problems"][:3]), 600)
                return Failure(name, Kind.STEP, what, remedy(what) or None, code="import")
            return found

        hosts = [name for team in teams for name in team if name not in self.failed and team[0] not in self.failed]
        self.found.update((yield from self.each(hosts, "verify", verify, outcome=_verified)))
        for name, found in self.found.items():
            for what, why in sorted((found.get("preload") or {}).items()):
                if why:  # a run goes without it, and says so, too
                    yield Message(printable(f"{name}: {what} cannot be loaded: {why}", 400), "warning")

    def preloads(self, name: str, ready: Runtime) -> list[list[str]]:
        """Libraries that ``run`` may load before all others on this host: name and path."""
        found = dict(self.facts[name].allocators)
        if self.task.omp == "intel":
            found["iomp5"] = f"{posixpath.dirname(posixpath.dirname(ready.python))}/lib/libiomp5.so"
        # Of the environment that is being replaced nothing counts.
        return [[what, path] for what, path in sorted(found.items()) if not path.startswith(f"{self.venv}/")]

    def switch(self, ready: Sequence[Sequence[str]], made: Plan) -> Workflow[None]:
        """The markers, then the links, everywhere; then what nobody uses any more is taken away."""
        leaders = [team[0] for team in ready if made.steps[team[0]].do != "tidy"]
        markers = {name: self.marker(self.places[name]) for name in leaders}
        yield from self.each(leaders, "mark", self.command("mark", lambda name: {"marker": markers[name]}))
        marked = [name for name in leaders if name not in self.failed]
        if self.failed and not self.task.partial:
            yield Message("no host was switched: every host has the environment it had before", "warning")
            return
        yield from self.each(
            marked, "switch", self.command("switch"), outcome=lambda _: ("changed", f"{self.venv} is {self.lock.id}")
        )
        alive = [name for team in ready for name in team if name not in self.failed]
        leaders = [team[0] for team in ready if team[0] in alive]
        used = yield from self.each(alive, "look for running jobs", self.command("used"))
        keep = sorted({self.lock.id}.union(*(found["used"] for found in used.values())))
        gone = yield from self.each(
            [name for name in leaders if name not in self.failed],
            "tidy",
            self.command("tidy", lambda _: {"keep": keep}),
            outcome=_tidied,
        )
        self.tidied |= {name for name, found in gone.items() if found["removed"]}
        self.tidied |= {name for team in ready if team[0] in self.tidied for name in team}

    def marker(self, place: Mapping[str, Any]) -> dict[str, Any]:
        """What `<venv>/ipexctl.json` says: enough for `run` to start a job without looking again."""
        return {
            "format": 1,
            "id": self.lock.id,
            "inputs": self.lock.inputs,
            "venv": self.venv,
            # Jobs use the directory behind the link: a later switch does not change what they load.
            "prefix": f"{self.venv}.d/{self.lock.id}",
            "python": self.stack.python,
            "stack": to_json(self.stack.summary),
            "packages": self.lock.packages,
            "layout": dict(place),
            "created": self.context.clock(),
            "by": f"{getuser()}@{socket.gethostname()}",
            "ipexctl": __version__,
        }

    def answered(self, made: Plan, *, dry: bool = False) -> Workflow[InstallAnswer]:
        if any(failure.code in {"hash", "index", "wheel"} for failure in self.failed.values()):
            forget_lock(self.context.cache, self.lock)
        changed = [
            name
            for name, step in made.steps.items()
            if step.do != "nothing" and (dry or step.do != "tidy" or name in self.tidied)
        ]
        switched = not self.failed or self.task.partial
        answer = InstallAnswer(
            venv=self.venv,
            id=self.lock.id,
            stack=self.stack.summary,
            check=dry,
            plan=made.text,
            changed=tuple(name for name in changed if name not in self.failed) if dry or switched else (),
            unchanged=tuple(name for name in made.steps if name not in changed),
            failed={name: failure.what for name, failure in self.failed.items() if failure.host},
            hosts={name: _import_check(found) for name, found in self.found.items()},
        )
        if made.nothing and not self.failed:
            has = "has" if len(made.steps) == 1 else "have"
            yield Message(f"{_hosts(len(made.steps))} {has} {self.stack.name} already: nothing to do, changed 0")
        yield Answer(answer)
        yield Ended("install", worst([failure.kind.exit for failure in self.failed.values()]))
        return answer


def _import_check(found: Mapping[str, Any]) -> ImportCheck:
    """``found`` is what a host wrote (``remote/session/verify.py``)."""
    optional = {key: found[key] for key in ("step_ms", "dtype", "mpi", "preload") if key in found}
    isa = found.get("isa")
    return ImportCheck(
        found["versions"],
        tuple(found["problems"]),
        found["python"],
        found["import_seconds"],
        isa=None if isa is None else str(isa),
        **optional,
    )


# ------------------------------------------------------------------------------------------------------- saying


def _stopped(what: str, failed: Mapping[str, Failure], of: int) -> Workflow[InstallAnswer]:
    yield Message(f"{what}; {suggest_limit([*failed])}, or --partial" if len(failed) < of else what, "warning")
    answer = InstallAnswer((), {name: failure.what for name, failure in failed.items()})
    yield Answer(answer)
    yield Ended("install", worst([failure.kind.exit for failure in failed.values()]))
    return answer


def _cleaned(found: Mapping[str, Any]) -> tuple[StepOutcome, str]:
    count = int(found["removed"])
    return ("changed", f"removed what was half-done ({count})") if count else ("ok", "")


def _tidied(found: Mapping[str, Any]) -> tuple[StepOutcome, str]:
    gone = printable(", ".join(map(str, found["removed"][:3])), 200)
    return ("changed", f"removed {gone}") if gone else ("ok", "")


def _verified(found: Mapping[str, Any]) -> tuple[StepOutcome, str]:
    parts = [str(found.get("isa") or "")]
    if found.get("step_ms") is not None:
        parts.append(f"{found.get('dtype')} step {found['step_ms']:g} ms")
    return "ok", " · ".join(part for part in parts if part)


_NO_TOOL = Tool("", "", 0, "")


def _uv(tool: Tool) -> str:
    return f"bin/uv-{tool.version}"


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"
