"""Place instances: independent processes of one script, each on its own cores, usually for inference.

They are started, watched and ended as ranks are, but there is no rendezvous: no RANK, no MASTER_ADDR. What the
launchers of IPEX and torch (``ipexrun``, ``torch.backends.xeon.run_cpu``) offer for one host is here for all."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ipexctl.decide.facts.numbers import parse_cpu_list
from ipexctl.decide.launch.placement import Cores, find_usable_cores, interleave
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host
from ipexctl.model.tasks import Run
from ipexctl.model.text import format_cpus, group_pairs, pluralize

LATENCY = 4  # cores of an instance in the launchers' latency mode
BACKEND = "none"
BECAUSE = "instances are independent of each other"
_LIBFABRIC = ("FI_TCP_IFACE", "FI_PROVIDER", "FI_TCP_PORT_LOW_RANGE", "FI_TCP_PORT_HIGH_RANGE")
_INTERFACES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", *_INTERFACES, "IPEXCTL_BACKEND", *_LIBFABRIC)


def check_options(task: Run) -> None:
    """Raise `UsageError` listing every combination of options that conflicts."""
    reasons: list[str] = []
    if task.per_host:
        clashes = {"--instances": task.independent, "--profile": task.profile, "--launcher": task.launcher != "script"}
        clashes |= {"--backend-override": task.backend_override}
        clashes[f"--backend {task.backend}"] = task.backend not in {"auto", "gloo"}
        own = f"--engine {task.engine}" if task.engine else "--per-host"
        reasons += [f"{flag} does not fit {own}: mpirun starts one process a host" for flag in clashes if clashes[flag]]
    if task.independent:
        clash = {"-n": task.n, "--ppn": task.ppn, "--port": task.port}
        reasons += [f"{flag} is for ranks: instances are counted per host" for flag, value in clash.items() if value]
        if task.backend not in {"auto", BACKEND}:
            reasons.append(f"--backend {task.backend}: instances do not communicate")
        if task.cores_per_instance and task.instances in {"per-node", "per-core", "throughput", "latency"}:
            reasons.append(f"--instances {task.instances} already sets the cores of an instance")
    else:
        only = {"instance": task.instance is not None, "fail-fast": task.fail_fast, "within-node": task.within_node}
        reasons += [f"--{flag} needs --instances or --cores-per-instance" for flag, given in only.items() if given]
    for flag, text in (("--cpus", task.cpus), ("--numa", task.numa)):
        if text is not None and not parse_cpu_list(text):
            reasons.append(f"{flag} takes numbers and ranges such as 0-3,8, not {text!r}")
    if task.cpus is not None and task.logical_cores:
        reasons.append("--logical-cores has no effect: --cpus names logical CPUs")
    if task.backend_override and task.backend not in {"auto", "impi"}:
        what = f"--backend-override puts impi in Gloo's place, and --backend {task.backend} asks for something else"
        raise UsageError(what, hint="--backend impi --backend-override")
    if reasons:
        raise UsageError("the options conflict", reasons=reasons)


def select_cores(task: Run, facts: Facts, host: str) -> Cores:
    """Returns the CPUs of this host for instances or ranks: the usable cores, restricted by ``--numa`` and ``--cpus``,
    or extended to all hardware threads by ``--logical-cores``. Raises `UsageError` for CPUs the host does not have."""
    cores = find_usable_cores(facts)
    nodes = {cpu: core.numa or 0 for core in facts.cores or () for cpu in core.cpus}
    allowed = set(facts.cpus_allowed or facts.cpus_online or ())
    if task.cpus is not None:
        wanted = parse_cpu_list(task.cpus) or ()
        message = f"--cpus {task.cpus}: {host} does not allow CPU"
        _require_known_cpus(wanted, allowed, message, f"this login may use CPUs {format_cpus(allowed) or 'unknown'}")
        cores = replace(cores, cpus=tuple((cpu, nodes.get(cpu, 0)) for cpu in wanted))
    elif task.logical_cores:
        first = dict(cores.cpus)
        whole = [sorted(allowed.intersection(core.cpus)) for core in facts.cores or () if first.keys() & set(core.cpus)]
        whole.sort(key=lambda cpus: (nodes.get(cpus[0], 0), cpus[0]))
        threads = tuple((cpu, nodes.get(cpu, 0)) for cpus in whole for cpu in cpus)
        cores = replace(cores, cpus=threads or cores.cpus)
    if task.numa is not None:
        requested, known = parse_cpu_list(task.numa) or (), {node for _, node in cores.cpus}
        message = f"--numa {task.numa}: {host} has no usable cores in NUMA node"
        where = format_cpus(tuple(known)) or "no known node"
        _require_known_cpus(requested, known, message, f"usable cores are in {where}")
        cores = replace(cores, cpus=tuple((cpu, node) for cpu, node in cores.cpus if node in requested))
    return cores


def _require_known_cpus(requested: Iterable[int], known: set[int], message: str, reason: str) -> None:
    if missing := tuple(number for number in requested if number not in known):
        raise UsageError(f"{message} {format_cpus(missing)}", reasons=[reason], exit=Exit.STEP)


def count_instances(task: Run, hosts: Sequence[Host], cores: Mapping[str, Cores]) -> tuple[tuple[str, int], ...]:
    """Returns the number of instances on each host. Raises `UsageError` listing every host on which they do not fit."""
    counts = tuple((host.name, _count_host_instances(task, cores[host.name])) for host in hosts)
    size = _choose_instance_size(task)
    short = [
        f"{host}: {pluralize(len(cores[host].cpus), 'core')}, room for {room}"
        for host, count in counts
        if cores[host].cpus
        and (room := len(_split_cores(task, cores[host], size)) if size else len(cores[host].cpus)) < count
    ]
    if short:
        if size:
            what = f"instances of {pluralize(size, 'core')} do not fit"
        else:
            what = f"{counts[0][1]} instances do not fit"
        raise UsageError(what, reasons=short, hint="ask for fewer --instances, or smaller ones", exit=Exit.STEP)
    if task.instance is not None and (few := [host for host, count in counts if count <= task.instance]):
        what = f"there is no instance {task.instance} on {', '.join(few)}"
        raise UsageError(what, hint="instances are counted from 0", exit=Exit.STEP)
    return counts


def _choose_instance_size(task: Run) -> int | None:
    """Cores per instance if the options fix it; None: equal shares."""
    return {"latency": LATENCY, "per-core": 1}.get(task.instances or "", task.cores_per_instance)


def _count_host_instances(task: Run, cores: Cores) -> int:
    if task.instances and task.instances.isdecimal() and len(task.instances) < 7:
        return int(task.instances)
    if task.instances in {"per-node", "throughput"}:
        return max(1, cores.nodes)
    return max(1, len(_split_cores(task, cores, _choose_instance_size(task) or 1)) if cores.cpus else 1)


def divide_cores(task: Run, cores: Cores, count: int) -> Sequence[Sequence[int]]:
    """The CPUs of ``count`` instances, or of fewer where the cores do not suffice; none known: one empty share."""
    if not cores.cpus:
        return [()]
    if task.instances in {"per-node", "throughput"}:
        return cores.cpus_by_node
    size = _choose_instance_size(task) or _find_equal_share(task, cores, count)
    chunks = _split_cores(task, cores, size) or [[cpu for cpu, _ in cores.cpus]]
    if len(chunks) <= count:
        return chunks
    nodes = dict(cores.cpus)  # few instances use the memory of all nodes
    return interleave(group_pairs((nodes[chunk[0]], chunk) for chunk in chunks).values())[:count]


def _find_equal_share(task: Run, cores: Cores, count: int) -> int:
    """Returns the most cores that each of ``count`` instances can have, inside a NUMA node if the numbers allow it."""
    size = max(1, len(cores.cpus) // count)
    inside = range(size, 0, -1) if task.within_node or count % cores.nodes == 0 else ()
    return next((s for s in inside if sum(len(node) // s for node in cores.cpus_by_node) >= count), size)


def _split_cores(task: Run, cores: Cores, size: int) -> list[list[int]]:
    """All parts of ``size`` CPUs; parts that would reach over two NUMA nodes are left out with ``--within-node``."""
    whole = cores.cpus_by_node
    if not task.within_node and any(len(node) % size for node in whole):
        whole = [[cpu for cpu, _ in cores.cpus]]
    return [node[at : at + size] for node in whole for at in range(0, len(node) - size + 1, size)]
