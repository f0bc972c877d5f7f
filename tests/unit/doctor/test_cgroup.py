"""Limits of control groups: those of every group above count, and the lowest holds."""

import pytest

from ipexctl.decide.facts.parse_facts import CgroupLimits, read_cgroup
from ipexctl.decide.facts.probe_output import ProbeOutput

GIB = 1 << 30
ROOT = "/sys/fs/cgroup"


def read(own: str, **limits: str) -> CgroupLimits:
    """``limits`` by path below the root, with ``__`` for each slash and ``_`` for the dot in a file's name."""
    files = {f"{ROOT}/{name.replace('__', '/').replace('_', '.')}": f"{text}\n" for name, text in limits.items()}
    return read_cgroup(ProbeOutput({"/proc/self/cgroup": f"{own}\n", **files}))


@pytest.mark.parametrize(("job", "step"), [(4, 8), (8, 4)])
def test_the_lowest_of_all_groups_above_holds(job: int, step: int) -> None:
    result = read(
        "0::/slurm/job/step",
        slurm__memory_max="max",
        slurm__job__memory_max=str(job * GIB),
        slurm__job__step__memory_max=str(step * GIB),
        slurm__job__cpu_max=f"{job}00000 100000",
        slurm__job__step__cpu_max=f"{step}0000 10000",
    )
    assert result == CgroupLimits(quota=4.0, memory=4 * GIB)


def test_groups_beside_ours_do_not_count() -> None:
    result = read("0::/a/b", a__b__memory_max=str(8 * GIB), a__c__memory_max=str(GIB), c__memory_max=str(GIB))
    assert result == CgroupLimits(memory=8 * GIB)


def test_of_a_container_the_root_is_its_own_group() -> None:
    result = read("0::/docker/0123", memory_max=str(2 * GIB), cpu_max="150000 100000")
    assert result == CgroupLimits(quota=1.5, memory=2 * GIB)


def test_no_limit_is_none() -> None:
    assert read("0::/a", a__memory_max="max", a__cpu_max="max 100000") == CgroupLimits()


def test_a_quota_that_cannot_be_read_is_named() -> None:
    result = read("0::/a", a__cpu_max="many 100000", cpu_max="200000 100000")
    assert result == CgroupLimits(quota=2.0, malformed=(f"{ROOT}/a",))


def test_version_1_has_a_tree_for_each_controller() -> None:
    files = {
        "/proc/self/cgroup": "4:memory:/job/step\n3:cpu,cpuacct:/job\n1:name=systemd:/\n",
        f"{ROOT}/memory/memory.limit_in_bytes": "9223372036854771712\n",
        f"{ROOT}/memory/job/memory.limit_in_bytes": f"{6 * GIB}\n",
        f"{ROOT}/memory/job/step/memory.limit_in_bytes": f"{7 * GIB}\n",
        f"{ROOT}/cpu,cpuacct/job/cpu.cfs_quota_us": "250000\n",
        f"{ROOT}/cpu,cpuacct/job/cpu.cfs_period_us": "50000\n",
        f"{ROOT}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
    }
    assert read_cgroup(ProbeOutput(files)) == CgroupLimits(quota=5.0, memory=6 * GIB)
