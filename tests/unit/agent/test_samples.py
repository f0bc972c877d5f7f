"""What a host uses, from files as the kernel writes them; and what of them is missing on many hosts."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.samples import KINDS, HostSample, RankSample
from ipexctl.remote.agent import memory_watch, procs, samples
from ipexctl.remote.agent.samples import Counters, HostReader, RankUse, compute_energy, compute_sample
from tests.tables import read_table

PAGE, TICKS = procs.PAGE, samples.TICKS


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def stat(pid: int, parent: int, ticks: int, pages: int, start: int = 100) -> str:
    """/proc/PID/stat; half of the time is the system's, some that of ended children."""
    times = f"{ticks - ticks // 2 - 1} {ticks // 2} 1 0"
    return f"{pid} (a) (b c) S {parent} 0 0 0 -1 0 0 0 0 0 {times} 20 0 1 0 {start} 99 {pages} 0 0\n"


MEMINFO = (
    "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    6000 kB\nSwapTotal:        500 kB\n"
    "SwapFree:         200 kB\nHugePages_Total:       0\n"
)
NET = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier\n"
    "    lo: 100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0\n"
    "  eth0:{} 1 0 0 0 0 0 0 {} 1 0 0 0 0 0 0\n"
)
DISKS = (
    "   8       0 sda 10 0 {} 5 20 0 {} 9 0 3 4\n   8       1 sda1 10 0 {} 5 20 0 {} 9 0 3 4\n"
    "   7       0 loop0 10 0 900 5 20 0 900 9 0 3 4\n"
)


def proc(scale: int = 1) -> dict[str, str]:
    """Of a host of two CPUs, whose counters have grown ``scale`` times as far."""
    busy, idle = 3 * TICKS * scale, 4 * TICKS * scale
    return {
        "stat": f"cpu  {busy} 0 {TICKS * scale} {idle} {idle} 0 0 0 {busy} 0\ncpu0 1 0 1 1 1\ncpu1 1 0 1 1 1\n"
        "intr 5 4\nctxt 700\nbtime 1\n",
        "meminfo": MEMINFO,
        "self/net/dev": NET.format(1000 * scale, 50 * scale),
        "self/cgroup": "0::/user.slice/run\n",
        "diskstats": DISKS.format(*[8 * scale, 2 * scale] * 2),
        "pressure/cpu": f"some avg10=0.00 avg60=0.00 avg300=0.00 total={500_000 * scale}\nfull total=7\n",
        "pressure/io": f"some avg10=0.00 avg60=0.00 avg300=0.00 total={90_000_000 * scale}\n",
        "100/stat": stat(100, 1, 3, 900),  # the wrapper of rank 4
        "101/stat": stat(101, 100, TICKS * scale, 10),
        "102/stat": stat(102, 101, TICKS * scale, 1),
        "7/stat": stat(7, 1, 999, 999),
    }


def sys_(scale: int = 1) -> dict[str, str]:
    cpu = "devices/system/cpu"
    return {
        "block/sda/device/model": "a disk\n",
        "block/loop0/size": "1\n",
        f"{cpu}/cpu0/cpufreq/scaling_cur_freq": "2000000\n",
        f"{cpu}/cpu1/cpufreq/scaling_cur_freq": "3000000\n",
        "class/hwmon/hwmon0/name": "nvme\n",
        "class/hwmon/hwmon0/temp1_input": "90000\n",
        "class/hwmon/hwmon1/name": "coretemp\n",
        "class/hwmon/hwmon1/temp1_input": "61500\n",
        "class/powercap/intel-rapl:0/name": "package-0\n",
        "class/powercap/intel-rapl:0/energy_uj": f"{4_000_000 * scale}\n",
        "class/powercap/intel-rapl:0/max_energy_range_uj": "262143328850\n",
        "class/powercap/intel-rapl:0:0/name": "core\n",
        "class/powercap/intel-rapl:0:0/energy_uj": f"{3_000_000 * scale}\n",
        "class/powercap/intel-rapl:0:1/name": "dram\n",
        "class/powercap/intel-rapl:0:1/energy_uj": f"{1_000_000 * scale}\n",
        "class/powercap/intel-rapl:0:1/max_energy_range_uj": "65712999613\n",
        "class/powercap/intel-rapl:1/name": "psys\n",
        "class/powercap/intel-rapl:1/energy_uj": f"{9_000_000 * scale}\n",
        "class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": f"{1000 * scale}\n",
        "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": f"{10 * scale}\n",
    }


def sample(tmp_path: Path, cpus: tuple[int, ...] = ()) -> HostSample:
    """Of ten seconds, in which everything counted as much as before."""
    reader = HostReader(cpus, str(tmp_path / "proc"), str(tmp_path / "sys"))
    before = reader.read({4: 100})._replace(steady=1000.0)
    write(tmp_path / "proc", proc(2))
    write(tmp_path / "sys", sys_(2))
    now = reader.read({4: 100})._replace(steady=1010.0, at=50.0)
    return compute_sample(before, now, "xeon01")


def test_everything_that_a_host_shows_is_in_its_sample(tmp_path: Path) -> None:
    write(tmp_path / "proc", proc())
    write(tmp_path / "sys", sys_())
    assert sample(tmp_path) == HostSample(
        "xeon01", 50.0, 10.0, cpu=0.4, cores=2, memory=10000 << 10, memory_total=16000 << 10, swap=300 << 10,
        received={"mlx5_0/1": 4000, "eth0": 1000}, sent={"mlx5_0/1": 40, "eth0": 50}, read=8 * 512, written=2 * 512,
        mhz=2500.0, celsius=61.5, joules=5.0, pressure={"cpu": 0.05, "io": 1.0},
        ranks=[RankSample(4, 0.2, 11 * PAGE)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("own", "directory"),
    [("4:cpu,cpuacct:/user/me\n", "fs/cgroup/cpu/user"), ("0::/user/me/run\n", "fs/cgroup/user/me")],
)
def test_the_throttled_share_is_of_the_group_that_limits_most(tmp_path: Path, own: str, directory: str) -> None:
    def count(periods: int, throttled: int) -> str:
        return f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 9\n"

    write(tmp_path / "proc", {**proc(), "self/cgroup": own})
    write(tmp_path / "sys", {f"{directory}/cpu.stat": count(10, 4)})
    reader = HostReader((), str(tmp_path / "proc"), str(tmp_path / "sys"))
    before = reader.read({})
    assert compute_sample(before, reader.read({}), "h").capped is None, "it was not active"
    write(tmp_path / "sys", {f"{directory}/cpu.stat": count(30, 19), f"{directory}/../cpu.stat": count(0, 0)})
    assert compute_sample(before, reader.read({}), "h").capped == 0.75


def test_tcp_segments_that_are_sent_again_are_a_share_of_those_sent(tmp_path: Path) -> None:
    def count(sent: int, again: int) -> dict[str, str]:
        return {"self/net/snmp": f"Ip: Forwarding\nIp: 1\nTcp: OutSegs RetransSegs\nTcp: {sent} {again}\nUdp: A\n"}

    write(tmp_path / "proc", proc() | count(1000, 4))
    reader = HostReader((), str(tmp_path / "proc"), str(tmp_path / "sys"))
    before = reader.read({})
    write(tmp_path / "proc", count(1050, 40))
    assert compute_sample(before, reader.read({}), "h").resent is None, "too few were sent"
    write(tmp_path / "proc", count(2000, 24))
    assert compute_sample(before, reader.read({}), "h").resent == 0.02


def test_the_clock_is_that_of_the_ranks_cpus(tmp_path: Path) -> None:
    write(tmp_path / "proc", proc())
    write(tmp_path / "sys", sys_())
    assert sample(tmp_path, (1,)).mhz == 3000.0


def test_what_a_host_does_not_show_is_none_or_left_out(tmp_path: Path) -> None:
    reader = HostReader((), str(tmp_path / "proc"), str(tmp_path / "sys"))
    before, now = reader.read({0: 1}), reader.read({0: 1})
    assert compute_sample(before._replace(steady=1.0), now._replace(steady=3.0, at=5.0), "h") == HostSample(
        "h", 5.0, 2.0, 0.0, 0, 0, 0
    )


@pytest.mark.parametrize(
    ("own", "files"),
    read_table("samples/where_a_control_group_limits_the_run_its_memory_counts"),
    ids=["version 2", "version 1"],
)
def test_the_memory_of_a_limiting_control_group_counts(tmp_path: Path, own: str, files: dict[str, str]) -> None:
    write(tmp_path / "proc", {**proc(), "self/cgroup": own})
    write(tmp_path / "sys/fs/cgroup", files)
    reader = HostReader((), str(tmp_path / "proc"), str(tmp_path / "sys"))
    assert reader.read_memory() == (4000000, 8192000, 300 << 10)


def test_a_limit_above_what_the_host_has_is_none(tmp_path: Path) -> None:
    write(tmp_path / "proc", proc())
    write(tmp_path / "sys/fs/cgroup", {"memory.max": f"{1 << 40}\n", "memory.current": "5\n", "memory.stat": "\n"})
    reader = HostReader((), str(tmp_path / "proc"), str(tmp_path / "sys"))
    assert reader.read_memory() == (10000 << 10, 16000 << 10, 300 << 10)


def test_energy_counters_begin_anew_and_two_turns_are_no_number() -> None:
    assert compute_energy({"a": (9_000_000, 10_000_000)}, {"a": (500_000, 10_000_000)}, 0.001) == 1.5
    assert compute_energy({"a": (9_000_000, 10_000_000)}, {"a": (9_500_000, 10_000_000)}, 5.0) is None, "once a turn?"
    assert compute_energy({"a": (9, 0)}, {"a": (5, 0)}, 1.0) is None, "it does not tell where it begins anew"
    assert compute_energy({"a": (1, 9)}, {}, 1.0) is None


EMPTY = Counters(0.0, 0.0, 5.0, 2, 1, 2, 0, {"eth0": (9, 9)}, (9, 9), None, None, {}, {"cpu": 9}, {0: RankUse(9, 1)})


def test_a_counter_that_went_backwards_counts_nothing() -> None:
    now = EMPTY._replace(
        steady=1.0, cpu=1.0, traffic={"eth0": (3, 3), "new": (9, 9)}, disks=(0, 0),
        pressure={"cpu": 1, "io": 5}, ranks={0: RankUse(1, 1)},
    )  # fmt: skip
    assert compute_sample(EMPTY, now, "h") == HostSample(
        "h", 0.0, 1.0, 0.0, 2, 1, 2, pressure={"cpu": 0.0}, ranks=[RankSample(0, 0.0, 1)]
    )


def test_no_more_cores_are_in_use_than_there_are() -> None:
    now = EMPTY._replace(steady=1.0, cpu=EMPTY.cpu + 2.04)
    assert compute_sample(EMPTY, now, "h").cpu == 2.0


def test_of_many_interfaces_the_busiest_are_reported() -> None:
    before = EMPTY._replace(traffic={f"veth{n}": (0, 0) for n in range(99)})
    now = before._replace(traffic={f"veth{n}": (n, 1) for n in range(99)})
    assert {*compute_sample(before, now, "h").received} == {f"veth{n}" for n in range(99 - samples.INTERFACES, 99)}


def test_the_processes_of_a_rank_are_below_its_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procs, "_TICKS", 64)
    processes = samples.RankProcesses(str(tmp_path))
    write(tmp_path, {"100/stat": stat(100, 1, 50, 1), "101/stat": stat(101, 100, 64, 1)})
    assert processes.measure({}) == {}, "nobody has said yet that 100 is a wrapper"
    assert processes.measure({0: 100}) == {0: RankUse(1.0, PAGE)}
    write(tmp_path, {"105/stat": stat(105, 104, 8, 2), "104/stat": stat(104, 101, 8, 3), "9/stat": stat(9, 1, 5, 5)})
    assert processes.measure({0: 100}) == {0: RankUse(1.25, 6 * PAGE)}
    (tmp_path / "104/stat").unlink()
    (tmp_path / "104").rmdir()
    write(tmp_path, {"101/stat": stat(101, 100, 72, 1)})  # it has waited for 104
    write(tmp_path, {"105/stat": stat(105, 1, 8, 2, start=999)})  # the number of another one by now
    assert processes.measure({0: 100}) == {0: RankUse(1.25, PAGE)}, "its time never goes backwards"


def test_processes_of_others_in_a_long_line_are_gone_through_once() -> None:
    """Another user may have thousands in a line: each went through all above it, and the sampler stood still."""
    looks = []

    class Line(dict[int, procs.Process]):
        def __getitem__(self, pid: int) -> procs.Process:
            looks.append(pid)
            return super().__getitem__(pid)

    line = Line({pid: procs.Process(pid, 1, pid + 1, "S") for pid in range(10, 1010)})
    processes = samples.RankProcesses("/none")
    assert {processes.find_rank(pid, line, {2000: 3}) for pid in line} == {None}
    assert len(looks) == 1000
    processes.rank_of.clear()
    assert {processes.find_rank(pid, line, {1010: 3}) for pid in line} == {3}


def test_the_use_of_a_real_process_is_what_it_used() -> None:
    reader = HostReader()
    before = reader.read({})
    burn = (
        "from time import *\nuntil = process_time() + 0.5\nwhile process_time() < until: pass\n"
        "print(flush=True), input()"
    )
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        now = reader.read({3: os.getpid()})
        child.stdin.write(b"\n")
    sample = compute_sample(before, now, "here")
    [rank] = sample.ranks
    assert rank.cpu * sample.seconds >= 0.4
    assert rank.rss > 1 << 20
    assert sample.cpu * sample.seconds >= 0.4
    assert 0 < sample.memory <= sample.memory_total
    assert sample.cores >= len(os.sched_getaffinity(0)) > 0
    assert abs(sample.at - time.time()) < 600


TEXTS = st.binary(max_size=60) | st.text("cpu ctxt0123456789:\n-somet=al. kB", max_size=60).map(str.encode)


@given(TEXTS)
def test_no_text_of_a_kernel_ends_the_reading(text: bytes) -> None:
    samples.parse_cpu_times(text)
    memory_watch.parse_memory(text)
    samples.parse_traffic(text)
    samples.parse_disks(text, {"sda"})
    samples.parse_pressure(text)
    samples.parse_quota(text)
    memory_watch.find_memory_group(text, "/none")


def test_a_sample_is_one_line_and_comes_back() -> None:
    whole = HostSample("h", 1.5, 5.0, 1.0, 4, 3, 9, 0, {"eth0": 7}, joules=2.5, ranks=[RankSample(1, 0.5, 8)])
    for sample in (whole, HostSample("h", 1.5, 5.0, 1.0, 4, 3, 9)):
        line = KINDS.write(sample)
        assert b"\n" not in line
        assert KINDS.read(line) == sample
    assert isinstance(KINDS.read(b'{"kind": "HostSample", "host": 3}'), Unreadable)
