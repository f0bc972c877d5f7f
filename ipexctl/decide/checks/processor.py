"""Checks of processors, their use, and memory."""

from collections.abc import Iterator
from dataclasses import replace

from ipexctl.decide.checks.cluster import CheckHit, Cluster, find_majority
from ipexctl.decide.facts.cpu import find_numa_domains
from ipexctl.decide.facts.isa import ARM_LEVELS, BELOW, find_isa_level, get_order, has_bf16
from ipexctl.decide.launch.placement import find_usable_cores
from ipexctl.decide.releases.env_health import format_limit
from ipexctl.model.facts import Facts
from ipexctl.model.text import format_cpus, format_size, pluralize

_KIB = 1024
_WITH_WHEELS = (None, "x86_64", "aarch64")


def find_common_level(cluster: Cluster) -> str | None:
    """Returns the highest level that all hosts share; None unless it is known of all of them, of one architecture."""
    facts = [fact for fact in cluster.facts.values() if fact.isa_level is not None]
    if not facts or len(facts) < len(cluster.facts) or len({fact.arch for fact in facts}) > 1:
        return None
    flags = frozenset.intersection(*(fact.flags for fact in facts))
    refused = any(note.code == "no-tiles" for fact in facts for note in fact.isa_refused.values())
    return find_isa_level(flags, tiles="refused" if refused else "")[0]


def check_instruction_sets(host: str, fact: Facts) -> Iterator[CheckHit]:
    """Too few of them, or fewer than the processor has."""
    if fact.isa_level == BELOW:
        where = " (virtual machine)" if fact.is_vm else ""
        yield CheckHit("CPU001", host, {"level": "below AVX2"}, f"{fact.model_name or 'unknown model'}{where}")
    if fact.arch not in _WITH_WHEELS:
        yield CheckHit("CPU012", host, {"arch": fact.arch}, fact.model_name or "")
    amx = fact.isa_refused.get("AMX")
    if amx and amx.code == "no-tiles":
        yield CheckHit("CPU004", host, {"answer": amx.text}, f"kernel {fact.kernel or 'unknown'}")
    # Above the table's level is a newer stepping. Kernels before 6.13 hide AMX_FP16, and all hide AMX_FP8; libraries
    # ask the processor itself.
    own, silicon, order = fact.isa_level, fact.silicon, get_order(fact.silicon)
    hidden = own and silicon and order.index(silicon) < order.index(own)
    if own and silicon and own.startswith("AMX") and silicon.startswith("AMX"):
        hidden = False
    note = fact.isa_refused.get(silicon or "")
    if hidden and not (note and note.code == "no-tiles"):
        remedy = "look into the BIOS and at the kernel's age and boot parameters (cat /proc/cmdline)"
        if fact.is_vm:
            remedy = 'another instance type, or CPU model "host" in the hypervisor'
        values = {"silicon": silicon, "level": own, "remedy": remedy}
        yield CheckHit("CPU003", host, values, note.text if note else "")


def check_mixed_isa(cluster: Cluster) -> Iterator[CheckHit]:
    """Yields the hosts that hold the others back: those below the best level that is there."""
    levels = cluster.collect_known(lambda fact: fact.isa_level)
    if len(set(levels.values())) < 2 or find_common_level(cluster) is None:
        return
    best = min(levels.values(), key=get_order(next(iter(levels.values()))).index)
    best_flags = next(cluster.facts[host].flags for host, level in levels.items() if level == best)
    for host, level in levels.items():
        if level in (best, BELOW):
            continue
        if has_bf16(best) and not has_bf16(level):
            cost, grave = "bf16 would be emulated there", True
        elif best.startswith("AMX") and not level.startswith("AMX"):
            cost, grave = f"no matrix units, which {best} hosts have", False
        elif best.startswith("AVX512") and not level.startswith("AVX512"):
            cost, grave = "vectors half as wide", True
        else:
            cost, grave = f"others have {best}", False
        fact, note = cluster.facts[host], cluster.facts[host].isa_refused.get(best)
        evidence = f"{level}, {fact.uarch or fact.model_name or 'unknown'}{f'; {note.text}' if note else ''}"
        values = {"common": find_isa_level(best_flags & fact.flags)[0], "cost": cost}
        yield CheckHit("CPU002", host, values, evidence, None if grave else "warning")


def check_architectures(cluster: Cluster) -> Iterator[CheckHit]:
    """Yields the hosts that are not of the architecture of most."""
    archs = cluster.collect_known(lambda fact: fact.arch)
    usual = find_majority(archs)
    for host, arch in archs.items():
        if arch != usual and {arch, usual} <= {*_WITH_WHEELS}:
            yield CheckHit("CPU014", host, {"arch": arch, "usual": usual})


def check_usable_cpus(host: str, fact: Facts) -> Iterator[CheckHit]:
    """Yields what keeps a run from using all CPUs of a host, or from using them all alike."""
    allowed, online = fact.cpus_allowed, fact.logical_online
    if allowed is not None and online and len(allowed) < online:
        yield CheckHit("CPU005", host, {"allowed": len(allowed), "online": online}, f"allowed: {format_cpus(allowed)}")
    usable = len(allowed or fact.cpus_online or ())
    if (quota := fact.cgroup_cpus) is not None and (not usable or quota < usable):
        values = {"quota": f"{quota:g}", "online": usable or "more", "threads": max(1, int(quota))}
        yield CheckHit("CPU006", host, values, "", "error" if quota < 1 else None)
    if fact.governor in ("powersave", "conservative"):
        yield CheckHit("CPU007", host, {"governor": fact.governor})
    if fact.cpus_offline:
        yield CheckHit("CPU008", host, {}, format_cpus(fact.cpus_offline))
    if fact.hybrid:
        fast, slow = format_cpus(fact.hybrid["p_cpus"]), format_cpus(fact.hybrid["e_cpus"])
        yield CheckHit("CPU009", host, {}, f"performance CPUs {fast}, efficiency CPUs {slow}")
    if len(nodes := fact.numa or ()) > 1:
        details = [f"node {node.id} has no CPUs" for node in nodes if not node.cpus]
        details += [f"node {node.id} has no memory" for node in nodes if node.mem_total_kb == 0]
        if fact.sockets and len(nodes) > fact.sockets:
            details.append(f"on {pluralize(fact.sockets, 'socket')}")
        domains = find_numa_domains(nodes)
        if len(domains) < sum(len(node.cpus) for node in nodes):
            details.append("nodes overlap")
        detail = f" ({', '.join(details)})" if details else ""
        values = {"count": len(nodes), "detail": detail, "ppn": len(set(domains.values()))}
        yield CheckHit("CPU010", host, values)
    if (load := fact.load) is not None and online:
        few = online <= 2 * len(fact.busy)
        if load >= max(2.0, 0.25 * online) or (load >= 1 and fact.busy and few):
            yield CheckHit("CPU011", host, {}, ", ".join([f"load {load:g} on {online} CPUs", *fact.busy]))


def check_host_sizes(cluster: Cluster) -> Iterator[CheckHit]:
    """Smaller hosts that make stragglers; needs three hosts to know which one differs."""
    if len(cluster.facts) < 3:
        return
    cores = cluster.collect_known(lambda fact: fact.physical_cores)
    usual = find_majority(cores)
    if usual is not None and 2 * list(cores.values()).count(usual) > len(cores):
        for host, count in cores.items():
            if count < usual:
                yield CheckHit("CPU013", host, {"what": f"{pluralize(count, 'core')}, most have {usual}"})
    memory = cluster.collect_known(lambda fact: fact.mem_total_kb)
    middle = sorted(memory.values())[len(memory) // 2] if memory else 0
    for host, total in memory.items():
        if total < 0.8 * middle:
            what = f"{format_size(total * _KIB)} of memory, most have {format_size(middle * _KIB)}"
            yield CheckHit("CPU013", host, {"what": what})


def check_memory(host: str, fact: Facts) -> Iterator[CheckHit]:
    """Limits of the control group, memory in use, huge pages, /dev/shm."""
    total, available, limit = fact.mem_total_kb, fact.mem_available_kb, fact.mem_limit_kb
    if limit and total and limit < 0.95 * total:
        yield CheckHit("MEM001", host, {"limit": format_size(limit * _KIB), "total": format_size(total * _KIB)})
    if total and available is not None and (available < 0.25 * total or available < 2 << 20):
        yield CheckHit("MEM002", host, {}, f"{format_size(available * _KIB)} of {format_size(total * _KIB)}")
    if fact.thp == "never":
        yield CheckHit("MEM003", host)
    if fact.shm_free is not None and fact.shm_free < 1 << 30:
        yield CheckHit("MEM004", host, {}, f"{format_size(fact.shm_free)} free")


def recommend_settings(cluster: Cluster) -> tuple[str, ...]:
    """Recommend a number format and a number of ranks per host, in sentences. A few hosts that have less than most do
    not turn the advice for all: it is that for the others, and says how to leave them out."""
    if weak := _find_weak_hosts(cluster):
        rest = replace(cluster, facts={host: fact for host, fact in cluster.facts.items() if host not in weak})
        first = f"{format_limit(weak)}: less than most; with --limit '{cluster.leave_out(weak)}' the common level is"
        return (f"{first} {find_common_level(rest)}, and then:", *recommend_settings(rest))
    sentences = []
    common = find_common_level(cluster)
    if common == BELOW:
        sentences.append("plain torch in float32: IPEX needs AVX2")
    elif common is not None and has_bf16(common):
        sentences.append(f"bf16: every host has {common}, its processors compute in it")
        if common in ARM_LEVELS:
            sentences.append(
                "float32 models that bear it: --env ONEDNN_DEFAULT_FPMATH_MODE=BF16 multiplies matrices in bf16"
            )
    elif common is not None:
        fast = [host for host, fact in cluster.facts.items() if has_bf16(fact.isa_level)]
        only = f"; {len(fast)} of {len(cluster.facts)} hosts could do bf16" if fast else ""
        sentences.append(f"float32: bf16 is emulated on {common}, and slower there{only}")
    shapes = {_count_numa_nodes_and_cores(fact) for fact in cluster.facts.values()}
    if len(shapes) == 1 and (shape := shapes.pop()) is not None:
        nodes, cores = shape
        cores_per_rank = max(1, cores // nodes)
        threads = pluralize(max(1, cores_per_rank - 1), "thread")
        of_rank = pluralize(cores_per_rank, "core")
        per = f"one per NUMA node, {of_rank} each" if nodes > 1 else of_rank
        sentences.append(f"--ppn {nodes} ({per}; {threads} and 1 core for oneCCL where it is used)")
    elif len(shapes) > 1 and None not in shapes:
        sentences.append("hosts differ in cores or NUMA nodes: one rank per NUMA node of each is the default")
    return tuple(sentences)


def _find_weak_hosts(cluster: Cluster) -> list[str]:
    """The hosts, fewer than half, without which the others compute in bf16, or have IPEX at all."""
    levels = cluster.collect_known(lambda fact: fact.isa_level)
    usual, common = find_majority(levels), find_common_level(cluster)
    if common != BELOW and (common is None or has_bf16(common) or not has_bf16(usual)):
        return []
    order = get_order(usual)
    weak = [host for host, level in levels.items() if order.index(level) > order.index(usual or BELOW)]
    return weak if 2 * len(weak) < len(levels) else []


def _count_numa_nodes_and_cores(fact: Facts) -> tuple[int, int] | None:
    """Nodes that can hold ranks, and cores that this login may use."""
    cores = find_usable_cores(fact)
    return (cores.nodes, len(cores.cpus)) if cores.cpus else None
