"""Limits of the control groups: CPU quota, cpuset, memory. Versions 1, 2 and hybrid."""

import re
from collections.abc import Iterable
from itertools import product

from ipexctl.decide.facts.numbers import parse_cpu_list, parse_cpu_mask
from ipexctl.decide.facts.probe_output import ProbeOutput
from ipexctl.model.json_values import Record
from ipexctl.model.text import parse_integer

_ROOT = "/sys/fs/cgroup"
_PERIOD = "100000"  # microseconds, the kernel's default
# The best first. Before 2.6.24 files had no prefix, and may be mounted so to this day.
_CPUSET_FILES = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus", "cpus")
# Where cpusets are mounted: a line of /proc/self/mountinfo or of /proc/mounts.
_MOUNT = re.compile(
    r"^(?:[0-9]+ [0-9]+ \S+ \S+ (\S+) .* - |\S+ (\S+) )(?:cpuset |cgroup2 |cgroup .*\bcpuset\b)", re.MULTILINE
)
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
    for directory in _list_directories(bundle, paths):
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


def _list_directories(bundle: ProbeOutput, paths: Iterable[str]) -> list[str]:
    own_groups = _list_groups(paths)
    fits = re.compile(r"(/sys/fs/cgroup(?:/(?:cpu|cpu,cpuacct|cpuacct,cpu|memory))?)(|/.*)/[^/]+").fullmatch
    matches = (match for match in map(fits, bundle.files) if match and match[2] in own_groups)
    return list(dict.fromkeys(match[1] + match[2] for match in matches))


def _list_groups(paths: Iterable[str]) -> set[str]:
    """Groups and those above them. The root ("") always: inside a container a path may be that of the host; then the
    root is our own group."""
    parts = [path.strip("/").split("/") for path in paths]
    return {"", *("/" + "/".join(part[:depth]) for part in parts for depth in range(1, len(part) + 1) if part[0])}


def _read_cpuset(bundle: ProbeOutput, paths: Iterable[str]) -> tuple[int, ...] | None:
    """The CPUs the process may use: from its status, else from the files of its cpuset or the nearest one above it."""
    if allowed := bundle.search("/proc/self/status", r"^Cpus_allowed_list:\s*(\S+)"):
        return parse_cpu_list(allowed)
    if mask := bundle.search("/proc/self/status", r"^Cpus_allowed:\s*(\S+)"):  # before 2.6.26 no list
        return parse_cpu_mask(mask)
    mounts = "\n".join(bundle.files.get(path, "") for path in ("/proc/self/mountinfo", "/proc/mounts"))
    mounted = [in_mountinfo or in_mounts for in_mountinfo, in_mounts in _MOUNT.findall(mounts)]
    roots = dict.fromkeys([_ROOT, f"{_ROOT}/cpuset", "/dev/cpuset", *mounted])
    groups = _list_groups([bundle.file("/proc/self/cpuset") or "", *paths])
    for group in sorted(groups, key=lambda path: (-path.count("/"), path)):
        for root, name in product(roots, _CPUSET_FILES):
            if cpus := parse_cpu_list(bundle.file(f"{root}{group}/{name}")):
                return cpus
    return None
