"""The test hosts are apart from this machine, and nothing of them stays. That cables, power and freezing are what they
claim to be is shown by the tests that expect a lost host."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.ground import sweep
from tests.waiting import wait

ROOT = Path(__file__).parents[2]


def test_what_a_host_writes_stays_there(cluster: Cluster) -> None:
    places = ("/etc", "/tmp", "/var/tmp", "/root", "/home", "/dev/shm", "/run")
    for place in places:
        cluster.exec("node0", ["sh", "-c", f"echo x >{place}/witness"])
    for place in places:
        assert cluster.read("node0", f"{place}/witness") == b"x\n"
        assert not Path(place, "witness").exists()
        assert not cluster.path("node1", f"{place}/witness").exists()


def test_a_cluster_can_stand_on_an_overlay(make_cluster: Callable[..., Cluster]) -> None:
    """As in a container: a host's disk is memory then."""
    outer = make_cluster("outer")
    for path in (ROOT / "tests/cluster").glob("*.py"):
        if path.name not in ("__init__.py", "bench.py"):
            outer.write("outer", f"/opt/t/tests/cluster/{path.name}", path.read_bytes())
    code = (
        "from tests.cluster.cluster import Cluster\n"
        "with Cluster(['inner']) as c: print(c.ssh('inner', 'hostname; echo x >/opt/x; cat /opt/x').stdout)"
    )
    env = {"PYTHONPATH": "/opt/t", "IPEXCTL_TEST_DISK": "/opt"}
    done = outer.exec("outer", ["/usr/bin/python3", "-c", code], env=env)
    assert done.stdout.split() == ["inner", "x"], done.stderr


def test_nothing_is_left_after_the_end(make_cluster: Callable[..., Cluster]) -> None:
    before = _namespaces()
    with make_cluster("a", "b") as cluster:
        inits = [cluster.init(name) for name in cluster.names]
        left = subprocess.Popen([*cluster.entrance("a"), "sleep", "1000"])
        files = cluster.files.parent
        cluster.freeze("b")
    assert left.wait(60) != 0
    assert not files.exists()
    assert not [pid for pid in inits if Path(f"/proc/{pid}").exists()]
    wait(lambda: _namespaces() <= before)


def test_a_killed_owner_leaves_only_files_and_these_to_the_next(
    make_cluster: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPEXCTL_TEST_DISK", str(tmp_path))  # on the usual one the next may be another test's
    before = _namespaces()
    code = (
        "from tests.cluster import Cluster\n"
        "c = Cluster(['a', 'b']); c.freeze('b')\n"
        "print(c.files.parent, c.init('a'), c.init('b'), flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=-1, stdout=-1, text=True) as owner:
        assert owner.stdout is not None
        files, *inits = owner.stdout.readline().split()
        assert Path(files) not in sweep(Path(files).parent)  # its owner lives
        owner.kill()
    wait(lambda: not [pid for pid in inits if Path(f"/proc/{pid}").exists()])
    wait(lambda: _namespaces() <= before)
    assert Path(files).exists()
    make_cluster("c")
    assert not Path(files).exists()


def _namespaces() -> set[str]:
    """Of processes we may look at; those of other test runs beside us come and go, so only network ones of inits."""
    result = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "environ").stat().st_uid == os.geteuid() and _descends(int(entry.name)):
                    result.add(os.readlink(entry / "ns/net"))
            except OSError:
                continue
    return result


def _descends(pid: int) -> bool:
    """From this process: a namespace of another run is not ours to judge."""
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False
