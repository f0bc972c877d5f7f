"""Control groups of this machine, of either version, for processes in hosts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.waiting import wait

ROOT = Path("/sys/fs/cgroup")


@contextmanager
def memory(cluster: Cluster, host: str, limit: int) -> Iterator[None]:
    """Whoever logs in to the host from now on may use so many bytes, all together."""
    old = (ROOT / "memory").is_dir()
    if not (old or "memory" in (ROOT / "cgroup.subtree_control").read_text().split()):
        pytest.skip("no memory control group here")
    servers = [process.outer for process in cluster.processes(host) if "sshd" in process.argv[0]]
    with _group("memory" if old else "", servers) as group:
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit))
        yield


@contextmanager
def processor(cluster: Cluster, host: str, share: float) -> Iterator[None]:
    """All that is on the host now may use such a share of one core."""
    old = (ROOT / "cpu").is_dir()
    if not (old or "cpu" in (ROOT / "cgroup.subtree_control").read_text().split()):
        pytest.skip("no control group for CPU time here")
    with _group("cpu" if old else "", [process.outer for process in cluster.processes(host)]) as group:
        quota = str(int(100_000 * share))
        (group / ("cpu.cfs_quota_us" if old else "cpu.max")).write_text(quota if old else f"{quota} 100000")
        yield


@contextmanager
def _group(controller: str, pids: list[int]) -> Iterator[Path]:
    """A new control group with these processes in it; all that is in it at its end goes back."""
    before = ROOT / controller / _path(pids[0], controller).lstrip("/") / "cgroup.procs"
    group = ROOT / controller / f"ipexctl-test-{os.getpid()}"
    group.mkdir()
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        for line in (group / "cgroup.procs").read_text().split():
            try:
                before.write_text(line)
            except ProcessLookupError:
                pass
        wait(lambda: not (group / "cgroup.procs").read_text(), 5)
        group.rmdir()


def _path(pid: int, controller: str) -> str:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == controller:
            return path
    return "/"
