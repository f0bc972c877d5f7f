"""Large syncs to several hosts: the controller's uplink carries them once, whatever happens on the way."""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import Workspace, find_place
from tests.waiting import wait

MIB = 1 << 20
NAMES = ("node0", "node1", "node2")


@pytest.fixture
def three(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster(*NAMES)


@pytest.fixture
def workspace(three: Cluster, tmp_path: Path) -> Workspace:
    return Workspace(three, tmp_path / "desk")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """40 MiB and 30 MiB in two files, one of them a program, and much in small ones."""
    place = tmp_path / "models"
    (place / "tiny model/deep").mkdir(parents=True)
    (place / "tiny model/weights: 1\n.bin").write_bytes(os.urandom(40 * MIB))
    (place / "tiny model/deep/run").write_bytes(os.urandom(30 * MIB))
    (place / "tiny model/deep/run").chmod(0o755)
    for number in range(20):
        (place / f"{number}.txt").write_bytes(os.urandom(MIB // 4))
    (place / "latest").symlink_to("0.txt")
    os.utime(place / "tiny model/deep/run", (1_700_000_000, 1_700_000_000))
    return place


def count_sent(cluster: Cluster) -> int:
    """Bytes that have left the controller."""
    line = next(line for line in cluster.run(["cat", "/proc/net/dev"]).stdout.splitlines() if "eth0:" in line)
    return int(line.partition(":")[2].split()[8])


def picture(cluster: Cluster, source: Path) -> list[str]:
    """Sums, modes and times of what each host has, in its own words."""
    files = "find . -type f ! -name .ipexctl-sync.json ! -path '*/.ipexctl-part-*'"
    command = f"cd {find_place(source)} && {files} -printf '%m %Ts ' -exec sha256sum {{}} ';' | sort"
    return [cluster.exec(name, ["sh", "-c", command]).stdout for name in NAMES]


def expect(source: Path) -> dict[str, tuple[str, int, str]]:
    """The same of the source: name → mode, time, sum."""
    return {
        str(path.relative_to(source)): (
            "700" if path.stat().st_mode & 0o100 else "600",
            int(path.stat().st_mtime),
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in source.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def test_three_hosts_get_a_large_tree_over_one_uplink(three: Cluster, workspace: Workspace, source: Path) -> None:
    payload = 75 * MIB
    before = count_sent(three)
    result = workspace("sync", source)
    crossed = count_sent(three) - before
    assert result.code == 0, result
    assert payload < crossed < 1.1 * payload, f"{crossed / payload:.2f} times the tree"
    pictures = picture(three, source)
    assert pictures[0] == pictures[1] == pictures[2]
    for mode, changed, sum_ in expect(source).values():
        assert any(f"{mode} {changed} " in line and sum_ in line for line in pictures[0].splitlines())
    assert three.exec("node2", ["sh", "-c", "find / -xdev -name '.ipexctl-part-*' 2>/dev/null"]).stdout == ""
    again = workspace("sync", source)
    assert "node[0-2]  nothing to do" in again.out, again


def test_a_host_behind_a_slow_link_is_the_last_one(three: Cluster, workspace: Workspace, source: Path) -> None:
    with three.slow_down("node0", 0.12, 0.0):
        result = workspace("sync", source, timeout=180.0)
    assert result.code == 0, result
    assert "sent once, to node1, then host to host" in result.out + result.err
    assert len({*picture(three, source)}) == 1


def test_a_large_sync_that_is_killed_goes_on_where_it_was(three: Cluster, workspace: Workspace, source: Path) -> None:
    """The second begins with what the first has sent to node0, or from there to node1."""
    before = count_sent(three)
    first = workspace.start("sync", source)
    wait(lambda: count_sent(three) - before > 50 * MIB)
    first.process.kill()
    first.process.wait()
    cache = workspace.home / ".cache/ipexctl"
    assert len([*cache.glob("sync-*")]) == 1
    sent = count_sent(three) - before
    result = workspace("sync", source)
    crossed = count_sent(three) - before
    assert result.code == 0, result
    assert crossed < 75 * MIB + 25 * MIB, f"{sent / MIB:.0f} MiB, then {(crossed - sent) / MIB:.0f} MiB"
    assert not [*cache.glob("sync-*")], "that of the killed one is gone, too"
    pictures = picture(three, source)
    assert pictures[0] == pictures[1] == pictures[2]
    assert len(pictures[0].splitlines()) == len(expect(source))
    for name in NAMES:
        assert three.exec(name, ["sh", "-c", "find / -xdev -name '.ipexctl-part-*' 2>/dev/null"]).stdout == ""


def test_hosts_apart_get_a_large_tree_all_the_same(three: Cluster, workspace: Workspace, source: Path) -> None:
    for name in NAMES[1:]:
        three.exec(name, ["ip", "route", "add", "prohibit", three.address("node0")], check=True)
    workspace.succeed("sync", source)
    pictures = picture(three, source)
    assert pictures[0] == pictures[1] == pictures[2]


def test_a_file_that_changes_on_the_way_is_named(three: Cluster, workspace: Workspace, source: Path) -> None:
    """The end of a large one that is on its way."""
    name = "tiny model/weights: 1\n.bin"
    before = count_sent(three)
    started = workspace.start("sync", source)
    wait(lambda: count_sent(three) - before > 40 * MIB)
    last = (source / name).stat().st_size - 1
    with (source / name).open("r+b") as file:
        file.seek(last)
        other = file.read(1)[0] ^ 1
        file.seek(last)
        file.write(bytes([other]))
    assert started.process.wait(60) == 4
    said = started.files[1].read_text()
    shown = Path(name).name.replace("\n", "\\x0a")
    assert re.search(rf"changed while it was sent: .*{re.escape(shown)}", said), said
    assert [text.splitlines() for text in picture(three, source)] == [[], [], []]
