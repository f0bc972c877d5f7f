"""Everything known about the hosts and asked of the run → one `Launch`, per host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ipexctl.decide.checks.network import Choice
from ipexctl.decide.launch import accelerate, environment, instances, mpi_launchers, openmpi, placement, tuning
from ipexctl.decide.releases.framework_options import Option, misfits
from ipexctl.decide.releases.runtime import Runtime
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host
from ipexctl.model.launch import Launch, NodePlan, RankPlacement, Setting
from ipexctl.model.notes import Note
from ipexctl.model.stack import MPI_NAMES
from ipexctl.model.tasks import Run

# Cores left to a rank that gives one to impi's thread: on fewer, computing would lose more than overlap gains.
_LEAST = 3


@dataclass(frozen=True, slots=True)
class HostRuntime:
    """What was observed and prepared on one host."""

    facts: Facts
    choice: Choice
    runtime: Runtime
    directory: str  # of the run, there
    workdir: str


def compute(
    task: Run,
    run: str,
    nonce: str,
    hosts: Sequence[Host],
    stations: Mapping[str, HostRuntime],
    script: str,
    asked: Mapping[str, Setting],
    *,
    config: accelerate.Config | None = None,
    options: Sequence[Option] = (),
) -> Launch:
    """The launch of ``task`` on ``hosts`` (the first is the head).

    ``script`` is its path below each host's workdir; ``asked`` are the user's variables; ``config`` is the one given
    for Accelerate, ``options`` say which words its versions know. Raises `UsageError`: exit 2 when
    the ranks do not fit, exit 4 when hosts are one machine, have no common MPI or no network between them.
    """
    task = accelerate.applied(config, task)
    cores = {host.name: instances.pool(task, stations[host.name].facts, host.name) for host in hosts}
    alone = task.independent
    counts = instances.spread(task, hosts, cores) if alone else placement.spread(hosts, cores, task.n, task.ppn)
    used = [host for host in hosts if host.name in dict(counts)]
    machines = _machines(used, stations, task.allow_duplicates)
    backend, because, workers = instances.BACKEND, instances.BECAUSE, 0
    if alone:
        ranks, warnings = instances.seat(task, counts, cores, machines)
    else:
        backend, because = choose(task, [stations[host.name].runtime for host in used])
        workers = {"ccl": task.ccl_workers, "impi": 1}.get(backend, 0)
        ranks, warnings = placement.seat(counts, cores, machines, workers, _LEAST if backend == "impi" else 1)
    head = stations[used[0].name]
    capped, more = tuning.cap(
        task, {host.name: stations[host.name].facts for host in used}, accelerate.has_ipex(_packages(head.facts))
    )
    rdma = environment.has_rdma(stations[host.name].facts for host in used)
    common = _Common(task, head, len(used), backend, workers, capped, asked, rdma)
    seats: list[NodePlan] = []
    said = [*warnings, *more]
    for number, host in enumerate(used):
        mine = tuple(place for place in ranks if place.host == host.name)
        shared = list(machines.values()).count(machines[host.name]) > 1
        seat, of_host = _seat(common, number, host.name, stations[host.name], mine, shared=shared)
        seats.append(seat)
        said += of_host
    dialect, ready = head.runtime.dialect, head.runtime
    packages = _packages(head.facts)
    said += [*accelerate.differs(config, len(used), len(ranks)), *misfits(options, packages, task.args)]
    by_mpirun = task.launcher == "accelerate" and not (config and config.hostfile)
    before = accelerate.each(config, packages, _values(asked), options) if by_mpirun else ("-u",)
    path = ":".join(dict.fromkeys([*ready.path, "/usr/bin", "/bin"]))
    launch = Launch(
        run=run,
        title=script,
        backend=backend,
        because=because,
        seats=tuple(seats),
        argv=(ready.python, *_words(task, script, before)),
        mpiexec=mpi_launchers.line(ready, f"{head.directory}/shim", head.choice.name, nonce, seats),
        mpiexec_env={"PATH": path, "IPEXCTL_RUN": run, **_libraries(ready), **seats[0].proxy_env},
        port=task.port or 0,
        warnings=tuple(dict.fromkeys(said)),
        dialect=dialect,
        engine=f"{MPI_NAMES[dialect]} {ready.version}".rstrip(),
        framed=mpi_launchers.framed(dialect),
        membind=task.membind,
        independent=alone,
    )
    if config is None or task.launcher != "accelerate" or by_mpirun:
        return launch
    return accelerate.itself(launch, config, packages, _values(asked), options, workers)


@dataclass(frozen=True, slots=True)
class _Common:
    """What is the same for all hosts of a launch."""

    task: Run
    head: HostRuntime
    hosts: int
    backend: str
    workers: int
    capped: Mapping[str, Setting]
    asked: Mapping[str, Setting]
    rdma: bool


def _seat(
    common: _Common, number: int, host: str, here: HostRuntime, mine: tuple[RankPlacement, ...], *, shared: bool
) -> tuple[NodePlan, list[Note]]:
    """One host's part, and warnings. ``shared``: other hosts of the run are the same machine."""
    task, backend, asked = common.task, common.backend, common.asked
    dialect = here.runtime.dialect
    preload, missing = tuning.preloads(task, here.facts, host)
    preload = () if "LD_PRELOAD" in asked else preload  # the user's own, as it is
    tuned, more = tuning.of_host(task, here.facts, preload, host)
    if dialect == "openmpi" and shared:
        tuned |= {name: Setting(value, "hosts that are one machine") for name, value in openmpi.ONE_MACHINE.items()}
    env = environment.for_host(
        here.facts,
        here.choice,
        common.head.choice,
        here.runtime,
        backend,
        mine,
        common.workers,
        task.port,
        {**common.capped, **tuned, **accelerate.device(_packages(here.facts))},
        asked,
        rdma=common.rdma,
        override=task.backend_override,
    )
    if task.independent:
        env = instances.alone(env, asked)
    own = backend == "ccl" and dialect == "openmpi"
    ranks = (
        replace(place, env=environment.for_rank(place, len(mine), task.threads, asked, preload, own, backend))
        for place in mine
    )
    return NodePlan(
        host=host,
        label=mpi_launchers.label(number),
        interface=here.choice.name,
        address=here.choice.address,
        reason=here.choice.reason,
        directory=here.directory,
        workdir=here.workdir,
        env=env,
        ranks=tuple(ranks),
        python=here.runtime.python,
        preload=preload,
        proxy_env=mpi_launchers.environment(dialect, common.hosts, here.directory, here.facts.user),
    ), [*missing, *more, *(_confusing(host, here) if backend == "ccl" else ())]


def rank_environment(launch: Launch, task: Run, asked: Mapping[str, Setting]) -> dict[int, dict[str, str]]:
    """What each rank sees beyond its host's environment."""
    return {place.rank: dict(place.env) for place in launch.places}


def _words(task: Run, script: str, before: Sequence[str]) -> tuple[str, ...]:
    """What the interpreter is given; ``before`` a script: its own flags, or Accelerate."""
    if task.launcher == "module":
        return ("-u", "-m", script, *task.args)
    return (*before, f"./{script}" if script.startswith("-") else script, *task.args)


def _values(asked: Mapping[str, Setting]) -> dict[str, str]:
    return {name: setting.value for name, setting in asked.items()}


def _confusing(host: str, station: HostRuntime) -> tuple[Note, ...]:
    """oneCCL takes the first interface whose name *contains* the word it was given."""
    name = station.choice.name
    others = [one.name for one in station.facts.interfaces if name in one.name and one.name != name]
    if not others:
        return ()
    text = f"oneCCL may take {' or '.join(others)} for {name}: it compares parts of names"
    return (Note("ccl-interface", text, (host,)),)


def _libraries(runtime: Runtime) -> dict[str, str]:
    """A system's MPI that lies outside of the loader's own directories."""
    return {} if runtime.dialect == "impi" or not runtime.library_path else {
        "LD_LIBRARY_PATH": ":".join(runtime.library_path)
    }  # fmt: skip


def _packages(facts: Facts) -> Mapping[str, str]:
    return facts.installed.packages if facts.installed else {}


def _machines(hosts: Sequence[Host], stations: Mapping[str, HostRuntime], allowed: bool) -> dict[str, str]:
    """Host → what names its machine. Hosts of one lab are one machine on purpose; others are refused unless allowed."""
    machines = {host.name: stations[host.name].facts.machine_id or f"host {host.name}" for host in hosts}
    groups: dict[str, list[Host]] = {}
    for host in hosts:
        groups.setdefault(machines[host.name], []).append(host)
    twice = [
        group
        for group in groups.values()
        if len(group) > 1 and not allowed and len({host.vars.get("lab", host.name) for host in group}) > 1
    ]
    if twice:
        raise UsageError(
            "some entries are one machine, so their ranks would share it",
            reasons=[" = ".join(f"{host.name} ({host.origin or host.address})" for host in group) for group in twice],
            hint="remove all but one of them, or use --allow-duplicates",
            exit=Exit.STEP,
        )
    return machines


def choose(task: Run, runtimes: Sequence[Runtime]) -> tuple[str, str]:
    """The backend, and why. Raises `UsageError` (exit 4) where the environment has not what was asked for."""
    ccl, impi = all(one.module for one in runtimes), all(one.impi for one in runtimes)
    if task.backend == "ccl" and not ccl:
        raise UsageError(
            "the environment has no oneccl_bind_pt, which the backend ccl needs",
            hint="ipexctl install --backend ccl, or run with --backend gloo",
            exit=Exit.STEP,
        )
    if (task.backend == "impi" or task.backend_override) and not impi:
        raise UsageError(
            "the environment has no impi_torch, which the backend impi needs"
            if runtimes[0].dialect != "mpich"
            else "the hosts' MPICH has no library of the name that mpi4py asks for, so the backend impi cannot use it",
            hint="ipexctl install --backend impi, or run with --backend gloo"
            if runtimes[0].dialect != "mpich"
            else "run without --mpi, or with --backend gloo",
            exit=Exit.STEP,
        )
    if task.backend_override:
        return "impi", "--backend-override: also for scripts that say gloo or nothing"
    if task.backend != "auto":
        return task.backend, "--backend"
    if ccl:
        return "ccl", "the environment has oneccl_bind_pt"
    return ("impi", "the environment has impi_torch, and no oneccl_bind_pt") if impi else (
        "gloo", "the environment has neither oneccl_bind_pt nor impi_torch")  # fmt: skip
