"""The test hosts are what they claim to be."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import Cluster, Spec
from tests.cluster.ground import sweep
from tests.waiting import wait

ROOT = Path(__file__).parents[2]


def test_hosts_resolve_nobody_but_themselves_and_to_loopback(cluster: Cluster) -> None:
    assert cluster.exec("node0", ["getent", "hosts", "node1"]).returncode != 0
    assert cluster.exec("node0", ["getent", "hosts", "node0"]).stdout.split()[0] == "127.0.1.1"


def test_what_a_host_writes_stays_there(cluster: Cluster) -> None:
    places = ("/etc", "/tmp", "/var/tmp", "/root", "/home", "/dev/shm", "/run")
    for place in places:
        cluster.exec("node0", ["sh", "-c", f"echo x >{place}/witness"])
    for place in places:
        assert cluster.read("node0", f"{place}/witness") == b"x\n"
        assert not Path(place, "witness").exists()
        assert not cluster.path("node1", f"{place}/witness").exists()


def test_a_cut_cable_passes_nothing_until_it_is_healed(cluster: Cluster) -> None:
    with cluster.cut("node1"):
        assert cluster.exec("node1", ["cat", "/sys/class/net/eth0/carrier"]).stdout.strip() != "1"
        assert cluster.ssh("-oConnectTimeout=1", "node1", "true").returncode == 255
        assert cluster.ssh("node0", "true").returncode == 0
        time.sleep(1.5)  # the question for node1's hardware address is about to fail
    assert cluster.ssh("node1", "true").returncode == 0


def test_a_frozen_host_stands_still_as_a_whole(cluster: Cluster) -> None:
    loop = "touch /root/ticking; while [ -e /root/ticking ]; do date +%N >>/root/ticks; sleep .05; done"
    with _started([*cluster.controller, "ssh", "-F", str(cluster.ssh_config), "node0", loop]):
        wait(lambda: cluster.path("node0", "/root/ticks").exists())
        with cluster.freeze("node0"):
            states = {process.state for process in cluster.processes("node0") if process.pid != 1}
            assert states == {"T"}
            before = cluster.read("node0", "/root/ticks")
            time.sleep(0.3)
            assert cluster.read("node0", "/root/ticks") == before
        wait(lambda: cluster.read("node0", "/root/ticks") != before)
        cluster.path("node0", "/root/ticking").unlink()  # the cluster lives on, and so would the loop


def test_a_power_cut_ends_everything_and_keeps_the_disk(cluster: Cluster) -> None:
    cluster.exec("node2", ["sh", "-c", "echo kept >/root/kept; echo kept >/opt/kept; echo lost >/tmp/lost"])
    boot = cluster.read("node2", "/proc/sys/kernel/random/boot_id")
    with _started([*cluster.entrance("node2"), "sleep", "1000"]) as witness, cluster.power_off("node2"):
        assert witness.wait(60) != 0
        with pytest.raises(RuntimeError, match="node2 is off"):
            cluster.exec("node2", ["true"])
    assert cluster.ssh("node2", "cat /root/kept /opt/kept; ls /tmp").stdout == "kept\nkept\n"
    assert cluster.read("node2", "/proc/sys/kernel/random/boot_id") != boot
    assert not [process for process in cluster.processes("node2") if process.argv[0] == "sleep"]


def test_the_uplink_leads_out_of_the_cluster(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as outside, cluster.uplink() as uplink:
        port = outside.getsockname()[1]
        address, _, proxy = uplink.url.removeprefix("http://").partition(":")
        code = (
            f"import socket; s = socket.create_connection(('{address}', {proxy}), 60)\n"
            f"s.sendall(b'CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n'); lines = s.makefile('rb')\n"
            "print(lines.readline(), lines.readline(), lines.read(12))"
        )
        with _started([*cluster.entrance("node0"), "/usr/bin/python3", "-c", code], stdout=subprocess.PIPE) as asking:
            far, _ = outside.accept()
            with far:
                far.sendall(b"from outside")
            assert asking.stdout is not None
            assert asking.stdout.read() == b"b'HTTP/1.1 200 OK\\r\\n' b'\\r\\n' b'from outside'\n"


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


def test_special_hosts(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(
        Spec("a", networks=("aux", "lan"), docker=True, users=("ann",)), Spec("b", networks=("aux", "lan"), home_mib=8)
    )
    links = cluster.exec("a", ["ip", "-o", "-4", "address"]).stdout.split("\n")
    assert [line.split()[1] for line in links if line] == ["lo", "docker0", "aux0", "eth0"]
    aux = f"import socket; socket.create_connection(('{cluster.address('b', 'aux')}', 22), 5)"
    assert cluster.exec("a", ["/usr/bin/python3", "-c", aux]).returncode == 0
    assert cluster.ssh("ann@a", "id -un; pwd").stdout == "ann\n/home/ann\n"
    assert cluster.exec("a", ["id", "-un"], user="ann").stdout == "ann\n"
    filled = cluster.ssh("b", "head -c 20000000 /dev/zero >big")
    assert "No space left" in filled.stderr
    cluster.small_home("a", 4)
    assert cluster.ssh("a", "df --output=size -k . | tail -1").stdout.strip() == "4096"


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


def test_a_killed_owner_leaves_only_files_and_these_to_the_next(make_cluster: Callable[..., Cluster]) -> None:
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


@contextmanager
def _started(argv: list[str], stdout: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, stdout=stdout)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


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
