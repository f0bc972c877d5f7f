"""One host's text → Facts, with the limits of its control groups (versions 1, 2 and hybrid)."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, product

from ipexctl.decide.facts import cpu, system
from ipexctl.decide.facts.isa import exceeds_level, find_isa_level
from ipexctl.decide.facts.numbers import parse_cpu_list, parse_cpu_mask
from ipexctl.decide.facts.probe_output import ProbeOutput, hash_text
from ipexctl.decide.facts.uarch import ArmCores, Uarchs, read_arm_cores
from ipexctl.model.errors import Note
from ipexctl.model.facts import Facts
from ipexctl.model.json_values import Record, select_attributes
from ipexctl.model.text import group_pairs, parse_integer

_ARM = ("aarch64", "arm64")
_X86 = ("x86_64", "i686", "i586", "i386")
_VECTOR_LENGTH = "/proc/sys/abi/sve_default_vector_length"  # bytes
# Processors that only a hypervisor has: their family and model are those of some old one, and mean nothing.
_EMULATED_MODELS = ("QEMU Virtual CPU", "Common KVM processor", "Common 32-bit KVM processor")


def parse_facts(bundle: ProbeOutput, uarchs: Uarchs) -> Facts:
    """Parse the facts of a host. Never raises: unreadable values are None, and named in ``unread`` for a fault."""
    processors = cpu.parse_cpuinfo(bundle.files.get("/proc/cpuinfo", ""))
    first = processors[0] if processors else {}
    fields = cpu.parse_lscpu(bundle.command("lscpu"), bundle.command("lscpu -J -B") or bundle.command("lscpu -J"))
    # interned: hundreds of hosts have the same words
    flags = frozenset(
        map(sys.intern, (first.get("flags") or first.get("Features") or fields.get("Flags") or "").split())
    )
    vendor = first.get("vendor_id") or _get_field(fields, "Vendor ID")
    model_name = first.get("model name") or _get_field(fields, "Model name") or first.get("cpu")  # the last on POWER
    names = ("CPU family", "Model", "Stepping")
    family, model, stepping = (parse_integer(first.get(name.lower()) or fields.get(name)) for name in names)
    invented = (model_name or "").startswith(_EMULATED_MODELS)
    arch = _detect_arch(bundle, fields, processors, flags)
    foreign = invented or arch in _ARM
    hypervisor = _detect_hypervisor(bundle, fields)
    is_vm = _detect_vm(flags, hypervisor, fields)
    uarch = None if foreign else uarchs.find(vendor, family, model, stepping, flags, model_name or "")
    if uarch and is_vm and exceeds_level(flags, uarch.level):  # guests may be shown the model number of another one
        uarch = None
    silicon, name = (uarch.level or None, uarch.name) if uarch else (None, None)
    usual_threads = 2 if arch == "x86_64" and not invented else cpu.MAX_THREADS
    topology = cpu.read_topology(bundle, processors, fields, uarch.threads if uarch else usual_threads)
    sockets = group_pairs((str(core.socket), cpu) for core in topology.cores for cpu in core.cpus)
    arm = read_arm_cores(bundle, processors, fields, topology.online or (), uarchs.arm) if arch in _ARM else ArmCores()
    if arm.core:
        silicon, name, model_name = arm.core.level or None, arm.core.uarch, arm.core.name
    level: str | None = None
    refused: Mapping[str, Note] = {}
    if flags and arch in (_ARM if "asimd" in flags else _X86):
        who = f"the hypervisor{f' ({hypervisor})' if hypervisor else ''}" if is_vm else "the BIOS or the kernel"
        level, refused = find_isa_level(flags, silicon, who, bundle.command("amx").strip())
    groups = read_cgroup(bundle)
    allowed = groups.cpuset
    if allowed is not None and topology.online is not None:
        allowed = tuple(sorted(set(allowed) & set(topology.online)))
    environ = system.read_environment_variables(bundle)
    marks = (line for line in bundle.command("env").splitlines() if line.startswith("there="))
    path_marks = frozenset(line.removeprefix("there=") for line in marks)
    paths = system.read_library_paths(bundle)
    tools = system.read_tools(bundle)
    disks = system.read_disks(bundle)
    login = group_pairs(line.partition("\t")[::2] for line in dict.fromkeys(bundle.lines("login")[:64]))
    load = bundle.search("/proc/loadavg", r"^([0-9]{1,6}\.[0-9]{1,3}) ")
    hostname = bundle.file("/proc/sys/kernel/hostname")
    boot = hash_text(text) if (text := bundle.file("/proc/sys/kernel/random/boot_id")) else None
    network = re.search(r"net:\[([0-9]+)\]", bundle.command("ls -l /proc/self/ns"))
    resolved = system.read_resolved_names(bundle)
    return Facts(
        arch=arch,
        vendor=arm.vendor or vendor,
        model_name=model_name,
        uarch=name,
        isa_level=level,
        **select_attributes(topology, "sockets", "cores_per_socket", "threads_per_core", "physical_cores", "cores"),
        logical_online=len(topology.online) if topology.online is not None else None,
        cpus_online=topology.online,
        cpus_offline=topology.offline,
        numa=cpu.read_numa_nodes(bundle, fields),
        hybrid=arm.hybrid or cpu.read_hybrid_cpus(bundle, uarch is not None and uarch.hybrid, topology),
        is_vm=is_vm,
        mem_total_kb=system.read_meminfo(bundle, "MemTotal"),
        cgroup_cpus=groups.quota,
        flags=flags,
        vector_bits=8 * size if (size := parse_integer(bundle.file(_VECTOR_LENGTH), 1 << 10)) else None,
        isa_refused=refused,
        cpus_allowed=allowed,
        hypervisor=hypervisor,
        mem_available_kb=system.read_meminfo(bundle, "MemAvailable"),
        mem_limit_kb=groups.memory >> 10 if groups.memory is not None else None,
        shm_free=next((disk.free for disk in disks if disk.path == "/dev/shm"), None),
        hostname=hostname,
        self_addresses=resolved.get(hostname or "", ()),
        names=resolved,
        interfaces=system.read_interfaces(bundle),
        ssh_address=system.parse_own_ssh_address(environ.get("SSH_CONNECTION")),
        user=environ.get("user"),
        home=environ.get("HOME"),
        shell=environ.get("SHELL"),
        # One booted kernel and one network of its own: two entries with the same are the same machine to a run. (Clones
        # of one image share /etc/machine-id, containers of one computer share the boot.)
        machine_id=hash_text(f"{boot} {network[1] if network else ''}") if boot else None,
        boot_id=boot,
        kernel=bundle.file("/proc/sys/kernel/osrelease") or bundle.search("/proc/version", r"^Linux version (\S+)"),
        distribution=system.read_distribution(bundle),
        glibc=system.read_glibc(bundle),
        glibcxx=system.find_glibcxx(paths),
        libraries=system.find_libraries(paths),
        limits=system.read_resource_limits(bundle),
        clock=system.read_clock(bundle),
        load=float(load) if load else None,
        governor=bundle.file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        thp=bundle.search("/sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]"),
        hugepages=system.read_hugepages(bundle),
        busy=system.read_busy_processes(bundle),
        pythons=system.read_pythons(bundle),
        installed=system.read_installed_environment(bundle),
        mpi=system.read_launchers(bundle),
        allocators=system.find_allocators(paths),
        tools=tools,
        scheduler=system.find_scheduler(environ, path_marks, tools),
        # NVIDIA's, AMD's, those of the kernel's accel subsystem, Huawei's, and render nodes, which graphics beside a
        # processor have as well.
        accelerators=tuple(sorted(path for path in path_marks if path.startswith("/dev/"))),
        disks=disks,
        hub=system.find_hub_cache(path_marks),
        silicon=silicon,
        container=system.find_container(bundle, path_marks),
        numa_balancing={"0": False, "1": True, "2": True}.get(bundle.file("/proc/sys/kernel/numa_balancing") or ""),
        ports=system.read_ephemeral_ports(bundle),
        path=environ.get("PATH"),
        open_directories=tuple(login.get("open", ())),
        socket_cpus={socket: tuple(sorted(cpus)) for socket, cpus in sorted(sockets.items())},
        ignored_settings=tuple(login.get("ignored", ())),
        unread={**bundle.unread, **{f"{path}/cpu.max": "malformed" for path in groups.malformed}},
    )


def _get_field(fields: Mapping[str, str], name: str) -> str | None:
    value = fields.get(name, "").strip()
    return value if value not in ("", "-") else None


def _detect_arch(
    bundle: ProbeOutput, fields: Mapping[str, str], processors: list[dict[str, str]], flags: frozenset[str]
) -> str | None:
    known = bundle.file("/proc/sys/kernel/arch") or _get_field(fields, "Architecture")
    if known := known or bundle.command("uname -m").strip():
        return known
    if flags & {"lm", "tsc", "sse", "avx2"}:  # ARM, s390x and LoongArch have flags too
        return "x86_64" if "lm" in flags else "i686"
    versions = [block.get("CPU architecture", "") for block in processors if block.get("CPU implementer")]
    if versions:
        return "aarch64" if versions[0].startswith(("8", "9", "AArch64")) else "arm"
    return None


_BOARDS = {  # words on virtual mainboards, the first that fits: whose hypervisor it is
    "VMware": "VMware",
    "VirtualBox": "Oracle",
    "Virtual Machine": "Microsoft",
    "Xen": "Xen",
    **dict.fromkeys(("QEMU", "KVM", "Google Compute Engine", "OpenStack", "Bochs", "Firecracker"), "KVM"),
}


def _detect_hypervisor(bundle: ProbeOutput, fields: Mapping[str, str]) -> str | None:
    """Who, where lscpu, Xen or the (virtual) mainboard says so."""
    if vendor := _get_field(fields, "Hypervisor vendor"):
        return vendor
    if bundle.file("/sys/hypervisor/type") == "xen":
        return "Xen"
    board = " ".join(bundle.files.get(f"/sys/class/dmi/id/{name}", "") for name in ("sys_vendor", "product_name"))
    return next((name for word, name in _BOARDS.items() if word in board), None)


def _detect_vm(flags: frozenset[str], hypervisor: str | None, fields: Mapping[str, str]) -> bool | None:
    """The flag is the processor's own word; without flags (not x86), who the hypervisor is. The mainboard alone
    proves nothing on x86: clouds write their name on bare metal too."""
    if "hypervisor" in flags:
        return True
    if _get_field(fields, "Hypervisor vendor"):
        return fields.get("Virtualization type", "").strip() not in ("container", "none")
    if "lm" in flags or "tsc" in flags:  # x86 says so in each virtual machine; others need not
        return False
    return True if hypervisor else None


_ROOT = "/sys/fs/cgroup"
_PERIOD = "100000"  # microseconds, the kernel's default
# The best first. Before 2.6.24 files had no prefix, and may be mounted so to this day.
_CPUSET_FILES = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus", "cpus")
_CPUSET_MOUNT = re.compile(r"cpuset |cgroup2 |cgroup .*\bcpuset\b")
_MAX_GROUPS, _MAX_DEPTH, _MAX_MOUNTS = 64, 64, 16  # groups of a process, groups above one, file systems of cpusets
_MAX_PATH = 1024  # characters of a group, and of where cpusets are mounted
_UNLIMITED = 1 << 60  # bytes; version 1 writes "no limit" as a huge number


class CgroupLimits(Record):
    """``quota`` in CPUs and ``memory`` in bytes are None without a limit."""

    quota: float | None = None
    cpuset: tuple[int, ...] | None = None
    memory: int | None = None
    malformed: tuple[str, ...] = ()


def read_cgroup(bundle: ProbeOutput) -> CgroupLimits:
    """Limits of parent groups apply too: the lowest one counts."""
    memberships = (line.split(":", 2) for line in bundle.files.get("/proc/self/cgroup", "").splitlines())
    paths = [words[2].strip() for words in memberships if len(words) == 3]
    quotas: list[float] = []
    memory: list[int] = []
    malformed: list[str] = []
    own_groups = _list_groups(paths)
    fits = re.compile(r"(/sys/fs/cgroup(?:/(?:cpu|cpu,cpuacct|cpuacct,cpu|memory))?)(|/.*)/[^/]+").fullmatch
    matches = (match for match in map(fits, bundle.files) if match and match[2] in own_groups)
    for directory in dict.fromkeys(match[1] + match[2] for match in matches):
        period = bundle.file(f"{directory}/cpu.cfs_period_us") or ""
        for text in (bundle.file(f"{directory}/cpu.max"), bundle.file(f"{directory}/cpu.cfs_quota_us")):
            words = (text or "max").split()
            if words[0] == "max" or words[0].startswith("-"):
                continue
            quota, per = parse_integer(words[0]), parse_integer([*words, period or _PERIOD][1])
            if quota and per:
                quotas.append(quota / per)
            else:
                malformed.append(directory)
        limits = (parse_integer(bundle.file(f"{directory}/{name}")) for name in ("memory.max", "memory.limit_in_bytes"))
        memory += [limit for limit in limits if limit is not None and limit < _UNLIMITED]
    cpuset = _read_cpuset(bundle, paths)
    return CgroupLimits(min(quotas, default=None), cpuset, min(memory, default=None), tuple(malformed))


def _list_groups(paths: Iterable[str]) -> set[str]:
    """Groups and those above them. The root ("") always: inside a container a path may be that of the host; then the
    root is our own group."""
    known = (path.strip("/") for path in islice(paths, _MAX_GROUPS) if len(path) <= _MAX_PATH)
    parts = [path.split("/", _MAX_DEPTH)[:_MAX_DEPTH] for path in known]
    return {"", *("/" + "/".join(part[:depth]) for part in parts for depth in range(1, len(part) + 1) if part[0])}


def _read_cpuset(bundle: ProbeOutput, paths: Iterable[str]) -> tuple[int, ...] | None:
    """The CPUs the process may use: from its status, else from the files of its cpuset or the nearest one above it."""
    if allowed := bundle.search("/proc/self/status", r"^Cpus_allowed_list:\s*(\S+)"):
        return parse_cpu_list(allowed)
    if mask := bundle.search("/proc/self/status", r"^Cpus_allowed:\s*(\S+)"):  # before 2.6.26 no list
        return parse_cpu_mask(mask)
    mounts = "\n".join(bundle.files.get(path, "") for path in ("/proc/self/mountinfo", "/proc/mounts"))
    mounted = islice(_find_cpuset_mounts(mounts.splitlines()), _MAX_MOUNTS)
    roots = dict.fromkeys([_ROOT, f"{_ROOT}/cpuset", "/dev/cpuset", *mounted])
    groups = _list_groups([bundle.file("/proc/self/cpuset") or "", *paths])
    for group in sorted(groups, key=lambda path: (-path.count("/"), path)):
        for root, name in product(roots, _CPUSET_FILES):
            if cpus := parse_cpu_list(bundle.file(f"{root}{group}/{name}")):
                return cpus
    return None


def _find_cpuset_mounts(lines: Iterable[str]) -> Iterator[str]:
    """Where cpusets are mounted: lines of /proc/self/mountinfo have more before the place than /proc/mounts has."""
    for line in lines:
        before, dash, after = line.partition(" - ")
        place = 4 if dash else 1
        words = before.split(" ", place + 1)
        if len(words) > place + 1 and len(words[place]) <= _MAX_PATH and _CPUSET_MOUNT.match(after or words[-1]):
            yield words[place]
