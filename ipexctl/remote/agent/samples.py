"""What a host and the ranks on it use: counters of the kernel, read every few seconds, and their differences
between two readings. Counters that a host does not have, or does not let this account read, are None or left out.

Formats: proc(5); Documentation/ABI/stable/sysfs-class-infiniband, testing/sysfs-class-powercap, hwmon/sysfs-interface
and accounting/psi of the kernel's own documentation."""

import os
import re
import time
from glob import glob
from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ipexctl.protocol.samples import HostSample, RankSample
from ipexctl.remote.agent.memory_watch import (
    UNLIMITED,
    find_memory_group,
    list_groups,
    parse_memory,
    parse_number,
    read_statistic,
)
from ipexctl.remote.agent.procs import Process, find_process, read_file

TICKS = os.sysconf("SC_CLK_TCK")
SECTOR = 512  # bytes, of /proc/diskstats whatever the disk's own are
RDMA_UNIT = 4  # bytes: port_rcv_data and port_xmit_data count octets divided by four
CPUS = 16  # of which the clock is read, at most: each such file costs microseconds
INTERFACES = 32  # in one sample, those with the most traffic
PRESSURES = ("cpu", "memory", "io")
SENSORS = ("coretemp", "k10temp", "zenpower")  # drivers whose first sensor is the processor's package
ENERGY_ZONES = ("package", "dram")  # "core" and "uncore" are parts of a package, "psys" is the whole machine


class RankUse(NamedTuple):
    """All processes of a rank: CPU seconds so far, bytes now."""

    seconds: float
    rss: int


class Counters(NamedTuple):
    """A host at one moment; ``at`` in Unix seconds, ``steady`` of the clock that nobody sets."""

    at: float
    steady: float
    cpu: float  # seconds, of all CPUs
    cores: int
    memory: int
    memory_total: int
    swap: int
    traffic: "Dict[str, Tuple[int, int]]"  # bytes received and sent
    disks: "Tuple[int, int]"  # bytes read and written
    mhz: "Optional[float]"
    celsius: "Optional[float]"
    energy: "Dict[str, Tuple[int, int]]"  # zone → microjoules, and where that counter begins anew
    pressure: "Dict[str, int]"  # microseconds
    ranks: "Dict[int, RankUse]"
    quotas: "Dict[str, Tuple[int, int]]" = {}  # control group → periods in which it was active, and was throttled
    segments: "Tuple[int, int]" = (0, 0)  # of TCP: sent, and sent again


# Parsing. Each takes any bytes, and gives what it can read of them.


def parse_cpu_times(text: bytes) -> "Tuple[float, int]":
    """Of /proc/stat: busy seconds of all CPUs, and their number. Guests' time is in "user" already."""
    seconds, cores = 0.0, 0
    for line in text.splitlines():
        words = line.split()
        if line.startswith(b"cpu "):
            times = list(map(parse_number, words[1:9]))
            seconds = (sum(times) - sum(times[3:5])) / TICKS  # neither idle nor waiting for a disk
        elif line.startswith(b"cpu"):
            cores += 1
        else:
            break
    return seconds, cores


def parse_traffic(text: bytes) -> "Dict[str, Tuple[int, int]]":
    """Of /proc/net/dev: bytes received and sent, by interface."""
    traffic = {}
    for line in text.splitlines():
        name, colon, numbers = line.partition(b":")
        words = numbers.split()
        if colon and len(words) >= 9:
            traffic[name.strip().decode("utf-8", "replace")] = (parse_number(words[0]), parse_number(words[8]))
    return traffic


def parse_segments(text: bytes) -> "Tuple[int, int]":
    """Of /proc/net/snmp: segments of TCP that were sent, and those of them that were sent again."""
    lines = [line.split() for line in text.splitlines() if line.startswith(b"Tcp:")]
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        return 0, 0
    counts = {name: parse_number(lines[1][at]) for at, name in enumerate(lines[0])}
    return counts.get(b"OutSegs", 0), counts.get(b"RetransSegs", 0)


def parse_disks(text: bytes, disks: "Iterable[str]") -> "Tuple[int, int]":
    """Of /proc/diskstats: bytes read and written by these disks; what lies on them (partitions) would count twice."""
    read = written = 0
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 10 and words[2].decode("utf-8", "replace") in disks:
            read += SECTOR * parse_number(words[5])
            written += SECTOR * parse_number(words[9])
    return read, written


def parse_pressure(text: bytes) -> "Optional[int]":
    """Of /proc/pressure/*: microseconds in which some task waited."""
    match = re.match(rb"some .*\btotal=(\d{1,18})\b", text)
    return int(match.group(1)) if match else None


def parse_quota(text: bytes) -> "Tuple[int, int]":
    """Of cpu.stat: periods in which the group was active, and in which it had used its share of CPU time up."""
    counts = [re.search(rb"^%s (\d{1,18})$" % name, text, re.MULTILINE) for name in (b"nr_periods", b"nr_throttled")]
    active, throttled = (int(count.group(1)) if count else 0 for count in counts)
    return active, throttled


class RankProcesses:
    """The processes of each rank. A process that belongs to none is inspected only once: hosts have thousands."""

    def __init__(self, proc: str) -> None:
        self.proc = proc
        self.wrappers: "Dict[int, int]" = {}  # rank → the process whose descendants are the rank
        self.rank_of: "Dict[int, Optional[int]]" = {}
        self.started: "Dict[int, int]" = {}  # of the ranks' processes
        self.totals: "Dict[int, RankUse]" = {}

    def measure(self, wrappers: "Dict[int, int]") -> "Dict[int, RankUse]":
        """Returns what each rank has used; ranks without a process are left out."""
        if wrappers != self.wrappers:  # a wrapper may have been taken for another's process before it was known
            self.wrappers, self.rank_of = dict(wrappers), {}
        uses = self.find_rank_processes()
        sums: Dict[int, RankUse] = {}
        for pid, use in uses.items():
            rank = self.rank_of[pid]
            if rank is None:
                continue
            total = sums.get(rank, RankUse(0.0, 0))
            sums[rank] = RankUse(total.seconds + use.seconds, total.rss + use.rss)
        for rank, total in sums.items():
            before = self.totals.get(rank, RankUse(0.0, 0))
            # The time of a child that has ended is nobody's until its parent has waited for it.
            self.totals[rank] = RankUse(max(total.seconds, before.seconds), total.rss)
        return {rank: self.totals[rank] for rank in sums}

    def find_rank_processes(self) -> "Dict[int, Process]":
        """Returns the processes of all ranks; `rank_of` then has every process of the host."""
        try:
            pids = {int(name) for name in os.listdir(self.proc) if name.isdigit()}
        except OSError:
            return {}
        self.rank_of = {pid: rank for pid, rank in self.rank_of.items() if pid in pids}
        uses: Dict[int, Process] = {}
        strangers: Dict[int, Process] = {}
        for pid in pids:
            if self.rank_of.get(pid, -1) is None:
                continue
            use = find_process(pid, self.proc)
            if use is None:
                self.rank_of.pop(pid, None)
            elif pid in self.rank_of and self.started.get(pid) == use.start:
                uses[pid] = use
            else:
                strangers[pid] = use
                self.rank_of.pop(pid, None)
        roots = {pid: rank for rank, pid in self.wrappers.items()}
        for pid, use in strangers.items():
            rank = self.find_rank(pid, strangers, roots)
            self.rank_of[pid] = rank
            if rank is not None:
                uses[pid] = use
        self.started = {pid: use.start for pid, use in uses.items()}
        return uses

    def find_rank(self, pid: int, strangers: "Dict[int, Process]", roots: "Dict[int, int]") -> "Optional[int]":
        """Returns the rank that a process descends from, which `rank_of` has then of all on the way: other users may
        have thousands in a line. The wrapper itself is none of its processes."""
        way: Set[int] = set()
        while pid in strangers and pid not in way and pid not in roots and pid not in self.rank_of:
            way.add(pid)
            pid = strangers[pid].parent
        rank = self.rank_of.get(pid)
        if way:
            rank = roots.get(pid, rank)
        self.rank_of.update(dict.fromkeys(way, rank))
        return rank


class HostReader:
    """Reads the counters of this host. Which files it has is determined once."""

    def __init__(self, cpus: "Iterable[int]" = (), proc: str = "/proc", sys: str = "/sys") -> None:
        """``cpus`` are those of the ranks: of them the clock is read."""
        self.proc, self.sys = proc, sys
        self.processes = RankProcesses(proc)
        base = os.path.join(sys, "devices/system/cpu")
        every = (name[len("cpu") :] for name in _list_names(base) if name.startswith("cpu"))
        numbers = sorted(set(cpus) or {int(number) for number in every if number.isdigit()})
        count = min(CPUS, len(numbers))
        chosen = [numbers[at * len(numbers) // count] for at in range(count)]  # evenly
        self.clocks = _find_readable(os.path.join(base, "cpu%d/cpufreq/scaling_cur_freq" % cpu) for cpu in chosen)
        self.sensors = self.find_sensors()
        self.zones = self.find_energy_zones()
        self.ports = {}  # directories of counters, by the device and port: "mlx5_0/1"
        for path in sorted(glob(os.path.join(sys, "class/infiniband/*/ports/*/counters"))):
            parts = path.split("/")
            self.ports["%s/%s" % (parts[-4], parts[-2])] = path
        self.group = find_memory_group(self.read_proc("self/cgroup"), os.path.join(sys, "fs/cgroup"))
        block = os.path.join(sys, "block")
        self.disks = {name for name in _list_names(block) if os.path.exists(os.path.join(block, name, "device"))}

    def find_sensors(self) -> "List[str]":
        """Returns the temperature of each processor."""
        sensors = []
        for path in sorted(glob(os.path.join(self.sys, "class/hwmon/hwmon*"))):
            if read_file(os.path.join(path, "name")).decode("utf-8", "replace").strip() in SENSORS:
                sensors.append(os.path.join(path, "temp1_input"))
        if not sensors:
            for path in sorted(glob(os.path.join(self.sys, "class/thermal/thermal_zone*"))):
                if read_file(os.path.join(path, "type")).strip() == b"x86_pkg_temp":
                    sensors.append(os.path.join(path, "temp"))
        return _find_readable(sensors)

    def find_energy_zones(self) -> "Dict[str, int]":
        """Returns the directories of the energy counters that this account may read, and where each begins anew. (The
        kernel lets root alone read them since 5.10.)"""
        zones = {}
        for path in sorted(glob(os.path.join(self.sys, "class/powercap/intel-rapl:*"))):
            name = read_file(os.path.join(path, "name")).decode("utf-8", "replace")
            if name.startswith(ENERGY_ZONES) and read_file(os.path.join(path, "energy_uj")):
                zones[path] = parse_number(read_file(os.path.join(path, "max_energy_range_uj")).strip())
        return zones

    def read(self, wrappers: "Dict[int, int]") -> "Counters":
        """Returns everything now. ``wrappers`` are the ranks that have begun, with their wrapper's process."""
        at, steady = time.time(), time.monotonic()
        seconds, cores = parse_cpu_times(self.read_proc("stat"))
        memory, total, swap = self.read_memory()
        disks = parse_disks(self.read_proc("diskstats"), self.disks)
        pressure = {name: parse_pressure(self.read_proc("pressure/" + name)) for name in PRESSURES}
        clocks, heat = _read_numbers(self.clocks), _read_numbers(self.sensors)
        energy = ((path, end, read_file(os.path.join(path, "energy_uj")).strip()) for path, end in self.zones.items())
        # Those that this process is in by now.
        groups = list_groups(self.read_proc("self/cgroup"), os.path.join(self.sys, "fs/cgroup"), "cpu")
        return Counters(
            at, steady, seconds, cores, memory, total, swap, self.read_traffic(), disks,
            mhz=sum(clocks) / len(clocks) / 1e3 if clocks else None,
            celsius=max(heat) / 1e3 if heat else None,
            energy={path: (parse_number(text), end) for path, end, text in energy if text},
            pressure={name: total for name, total in pressure.items() if total is not None},
            ranks=self.processes.measure(wrappers),
            quotas={path: parse_quota(read_file(os.path.join(path, "cpu.stat"))) for path, _ in groups},
            segments=parse_segments(self.read_proc("self/net/snmp")),
        )  # fmt: skip

    def read_proc(self, name: str) -> bytes:
        return read_file(os.path.join(self.proc, name))

    def read_memory(self) -> "Tuple[int, int, int]":
        """Returns bytes in use, of how many, and of swap: of the control group where that limits this process to less
        than the host has. What the kernel could give back at once (its cache) is not in use."""
        amounts = parse_memory(self.read_proc("meminfo"))
        total, swap = amounts.get("MemTotal", 0), amounts.get("SwapTotal", 0) - amounts.get("SwapFree", 0)
        used = total - amounts.get("MemAvailable", amounts.get("MemFree", 0))
        if self.group is not None and self.group.limit < (total or UNLIMITED):
            cache = read_statistic(self.group, b"total_inactive_file", b"inactive_file")
            used, total = parse_number(read_file(self.group.usage).strip()) - cache, self.group.limit
        return max(0, used), total, max(0, swap)

    def read_traffic(self) -> "Dict[str, Tuple[int, int]]":
        traffic = parse_traffic(self.read_proc("self/net/dev"))
        for name, path in self.ports.items():
            received, sent = (
                parse_number(read_file(os.path.join(path, part)).strip()) * RDMA_UNIT for part in RDMA_FILES
            )
            traffic[name] = received, sent
        return traffic


RDMA_FILES = ("port_rcv_data", "port_xmit_data")


def compute_sample(before: "Counters", now: "Counters", host: str) -> HostSample:
    """Returns what happened between two readings. A counter that went backwards (a device that was taken away, a
    process that ended) counts from 0; an energy counter begins anew where the kernel says that it does."""
    seconds = max(1e-3, now.steady - before.steady)
    received, sent = {}, {}
    names = [name for name, counts in now.traffic.items() if counts != before.traffic.get(name, counts)]
    names.sort(key=lambda name: sum(before.traffic[name]) - sum(now.traffic[name]))
    for name in names[:INTERFACES]:
        (was_received, was_sent), (is_received, is_sent) = before.traffic[name], now.traffic[name]
        received[name], sent[name] = max(0, is_received - was_received), max(0, is_sent - was_sent)
    pressure = {
        name: round(min(1.0, max(0, total - before.pressure[name]) / 1e6 / seconds), 4)
        for name, total in now.pressure.items()
        if name in before.pressure
    }
    ranks = []
    for rank, use in sorted(now.ranks.items()):
        was = before.ranks.get(rank, RankUse(0.0, 0))  # it has begun meanwhile
        ranks.append(RankSample(rank, round(max(0.0, use.seconds - was.seconds) / seconds, 3), use.rss))
    return HostSample(
        host,
        round(now.at, 3),
        round(seconds, 3),
        min(round(max(0.0, now.cpu - before.cpu) / seconds, 3), float(now.cores)),  # ticks are coarser than the clock
        now.cores,
        now.memory,
        now.memory_total,
        now.swap,
        {name: count for name, count in received.items() if count},
        {name: count for name, count in sent.items() if count},
        max(0, now.disks[0] - before.disks[0]),
        max(0, now.disks[1] - before.disks[1]),
        now.mhz and round(now.mhz, 1),
        now.celsius,
        compute_energy(before.energy, now.energy, seconds),
        pressure,
        ranks,
        compute_capped_share(before.quotas, now.quotas),
        compute_resent_share(before.segments, now.segments),
    )


def compute_capped_share(before: "Dict[str, Tuple[int, int]]", now: "Dict[str, Tuple[int, int]]") -> "Optional[float]":
    """Returns the share of the time in which the control group that limits CPU time most had none left, or None."""
    known = [(now[path], before[path]) for path in now if path in before]
    grown = [(new[0] - old[0], new[1] - old[1]) for new, old in known]
    shares = [min(1.0, max(0.0, capped / active)) for active, capped in grown if active > 0]
    return round(max(shares), 3) if shares else None


LEAST_SEGMENTS = 100  # of TCP, at least, of which a share says something


def compute_resent_share(before: "Tuple[int, int]", now: "Tuple[int, int]") -> "Optional[float]":
    """Returns the share of TCP segments that were sent again, or None where few were sent at all."""
    sent, again = max(0, now[0] - before[0]), max(0, now[1] - before[1])
    return round(min(1.0, again / sent), 4) if sent >= LEAST_SEGMENTS else None


HIGHEST_POWER = 1000.0  # watts of one package: more than any processor of the kind draws


def compute_energy(
    before: "Dict[str, Tuple[int, int]]", now: "Dict[str, Tuple[int, int]]", seconds: float
) -> "Optional[float]":
    """Joules of all zones. None where there is none, or where one may have begun anew more than once meanwhile."""
    if not now or before.keys() != now.keys():
        return None
    total = 0
    for zone, (count, end) in now.items():
        grown = count - before[zone][0]
        if grown < 0:
            grown += end
        if grown < 0 or (end and seconds * HIGHEST_POWER * 1e6 > end):
            return None
        total += grown
    return round(total / 1e6, 3)


def _list_names(path: str) -> "List[str]":
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _find_readable(paths: "Iterable[str]") -> "List[str]":
    return [path for path in paths if read_file(path)]


def _read_numbers(paths: "Iterable[str]") -> "List[int]":
    texts = (read_file(path).strip() for path in paths)
    return [int(text) for text in texts if re.match(rb"-?\d{1,18}$", text)]
