"""Section E: trees that are cut off, refused, planted with links, changed meanwhile or hard to carry."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import Desk, Told, wait
from tests.faults.checks import expect
from tests.faults.tools import nobody_asked

THERE = "/root/ipexctl/proj"
PART = ".ipexctl-part-"
MARK = ".ipexctl-sync.json"


@pytest.fixture
def source(controller: Desk, hosts: Cluster) -> Iterator[Path]:
    place = controller.path / "proj"
    (place / "pkg").mkdir(parents=True)
    (place / "train.py").write_text("print('hello')\n")
    (place / "pkg/data.bin").write_bytes(random.Random(1).randbytes(300_000))
    yield place
    for host in hosts.names:
        hosts.exec(host, ["rm", "-rf", "/root/ipexctl", "/root/victim", "/root/data"])


def tree(place: Path) -> dict[bytes, str]:
    """Every path below a place with its kind and content, but for what is being received (`Checks` looks for that)."""
    top, found = os.fsencode(place), {}
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if not name.startswith(PART.encode())]
        for name in folders + files:
            path = os.path.join(folder, name)
            if name == MARK.encode():
                continue
            if os.path.islink(path):
                what = "link " + os.fsdecode(os.readlink(path))
            elif os.path.isdir(path):
                what = "directory"
            else:
                digest = hashlib.sha256()
                with open(path, "rb") as file:
                    while piece := file.read(1 << 20):
                        digest.update(piece)
                what = digest.hexdigest()
            found[os.path.relpath(path, top)] = what
    return found


def carried(hosts: Cluster, host: str) -> dict[bytes, str]:
    return tree(hosts.path(host, THERE))


@contextlib.contextmanager
def narrow(hosts: Cluster, rate: str = "48mbit") -> Iterator[None]:
    """Meanwhile the controller's cable carries 6 MB a second."""
    shape = ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
    hosts.run(shape, check=True)
    try:
        yield
    finally:
        hosts.run(["tc", "qdisc", "del", "dev", "eth0", "root"], check=True)


def received(hosts: Cluster, host: str) -> int:
    """Bytes in directories in which something is being received."""
    total = 0
    for folder, _, files in os.walk(hosts.path(host, "/root/ipexctl")):
        if PART in folder:
            with contextlib.suppress(OSError):
                total += sum(os.stat(os.path.join(folder, name)).st_size for name in files)
    return total


@pytest.mark.fault("E1")
@pytest.mark.parametrize("how", ["cut", "killed"])
def test_e1_a_sync_that_is_cut_in_a_big_file_leaves_the_old_one(
    controller: Desk, hosts: Cluster, source: Path, how: str
) -> None:
    big, size = source / "big.bin", 40 << 20
    big.write_bytes(random.Random(2).randbytes(1 << 20))
    expect(controller("sync", source), 0)
    old = carried(hosts, "node2")
    big.write_bytes(random.Random(3).randbytes(size))
    words = ("sync", source, "--limit", "node2", "--transfer", "tar")
    with narrow(hosts):
        command = controller.start(*words)
        wait(lambda: received(hosts, "node2") > size // 2, 60.0, lambda: str(command.said))
        assert carried(hosts, "node2") == old
        if how == "cut":
            with hosts.cut("node2"):
                expect(command.end(90.0), 3, "node2")
        else:
            command.close()
    assert carried(hosts, "node2") == old
    expect(controller(*words), 0)
    assert carried(hosts, "node2") == tree(source)


@contextlib.contextmanager
def read_only(hosts: Cluster, host: str, place: str) -> Iterator[None]:
    hosts.exec(host, ["mkdir", "-p", "-m", "700", place], check=True)
    hosts.exec(host, ["mount", "-t", "tmpfs", "-o", "ro,mode=0700", "none", place], check=True)
    try:
        yield
    finally:
        hosts.exec(host, ["umount", place], check=True)


@pytest.mark.fault("E2")
def test_e2_places_that_cannot_be_written_are_told_with_their_reason(
    controller: Desk, hosts: Cluster, source: Path
) -> None:
    hosts.exec("node0", ["sh", "-c", f"mkdir -p -m 700 {THERE} && chown 12345:12345 {THERE}"], check=True)
    hosts.exec("node1", ["mkdir", "-p", "-m", "700", "/root/ipexctl", THERE], check=True)
    with read_only(hosts, "node1", f"{THERE}/pkg"), read_only(hosts, "node2", THERE):
        told = controller("sync", source, "--json")
        expect(told, 4)
        for host in ("node1", "node2"):
            files = [name for _, _, names in os.walk(hosts.path(host, THERE)) for name in names if name != MARK]
            assert not [name for name in files if PART in name], files
    said = {failure["host"]: failure["what"] for failure in controller.report()["failures"]}
    assert said["node0"] == f"{THERE} belongs to another user"
    assert "pkg" in said["node1"]
    assert "ead-only" in said["node1"], said
    assert said["node2"] == f"cannot write to {THERE}: read-only"
    assert carried(hosts, "node3") == tree(source)


@pytest.mark.fault("E3")
@pytest.mark.parametrize(("name", "target"), [("abs", "/etc/passwd"), ("up", "../../secret"), ("pkg/up", "../../x")])
def test_e3_links_that_leave_the_tree_stop_all_before_anybody_is_asked(
    controller: Desk, hosts: Cluster, source: Path, name: str, target: str
) -> None:
    (controller.path.parent / "secret").write_text("a secret")
    (source / name).symlink_to(target)
    with nobody_asked(hosts):
        told = controller("sync", source)
    expect(told, 2, name, target)


@pytest.mark.fault("E3")
def test_e3_links_within_the_tree_are_carried_as_links(controller: Desk, hosts: Cluster, source: Path) -> None:
    for name, target in {"latest": "pkg/data.bin", "loop": "loop", "dangling": "pkg/none", "dir": "pkg"}.items():
        (source / name).symlink_to(target)
    expect(controller("sync", source), 0)
    for host in hosts.names:
        assert carried(hosts, host) == tree(source)


@pytest.mark.fault("E4")
@pytest.mark.parametrize("delete", [(), ("--delete",)], ids=["keep", "delete"])
def test_e4_links_planted_at_the_destination_are_refused(
    controller: Desk, hosts: Cluster, source: Path, delete: tuple[str, ...]
) -> None:
    """node0: where ipexctl keeps all trees; node1: the tree; node2: one of its directories; node3: one of its files."""
    (source / "pkg/sub").mkdir()
    (source / "pkg/sub/one").write_text("1")
    expect(controller("sync", source), 0)
    (source / "pkg/sub/one").write_text("2")
    (source / "train.py").write_text("new")
    places = {"node0": "/root/ipexctl", "node1": THERE, "node2": f"{THERE}/pkg/sub", "node3": f"{THERE}/train.py"}
    for host, place in places.items():
        target = "/root/victim/precious" if host == "node3" else "/root/victim"
        plant = (
            f"mkdir -m 750 /root/victim && echo keep >/root/victim/precious && rm -rf {place} && ln -s {target} {place}"
        )
        hosts.exec(host, ["sh", "-c", plant], check=True)

    def look(host: str) -> list[object]:
        place = hosts.path(host, "/root/victim")
        return [(s.st_mode, s.st_mtime_ns, s.st_size) for s in (place.stat(), (place / "precious").stat())] + [
            sorted(os.listdir(place)), (place / "precious").read_text()
        ]  # fmt: skip

    before = {host: look(host) for host in hosts.names}
    told = controller("sync", source, *delete)
    expect(told, 4)
    said = {failure["host"]: failure["what"] for failure in controller.report()["failures"]}
    for host, place in places.items():
        assert "symbolic link" in said[host], said
        assert place in said[host], said
    assert {host: look(host) for host in hosts.names} == before


@pytest.mark.fault("E5")
def test_e5_dangerous_places_are_refused_before_anybody_is_asked(
    controller: Desk, hosts: Cluster, source: Path
) -> None:
    (controller.path / "empty").mkdir()
    book = controller.path / "book.yaml"
    with nobody_asked(hosts):
        for place in ("", "~", "/", "..", "a/../..", "$HOME"):
            expect(controller("sync", source, "--delete", f"--workdir={place}"), 2)
        expect(controller("sync", controller.path / "empty", "--delete"), 2, "empty")
        book.write_text("steps:\n  - sync: {source: proj, workdir: '${nowhere}', delete: true}\n")
        expect(controller("play", "book.yaml"), 2, "nowhere")


@pytest.mark.fault("E5")
def test_e5_only_what_a_sync_has_put_there_is_deleted(controller: Desk, hosts: Cluster, source: Path) -> None:
    for host in hosts.names:
        hosts.exec(host, ["sh", "-c", "mkdir -m 700 /root/data && echo keep >/root/data/mine"], check=True)
    told = controller("sync", source, "--delete", "--workdir", "/root/data")
    assert told.code in (0, 4), told
    for host in hosts.names:
        assert hosts.read(host, "/root/data/mine") == b"keep\n"
    expect(controller("sync", source), 0)
    (source / "train.py").unlink()
    expect(controller("sync", source, "--delete"), 0)
    for host in hosts.names:
        assert carried(hosts, host) == tree(source)


def change(source: Path, how: str) -> None:
    late = source / "zz.bin"  # the last that is sent
    match how:
        case "grows":
            with late.open("ab") as file:
                file.write(b"more")
        case "shrinks":
            os.truncate(late, 1000)
        case "replaced":
            (source / "new").write_bytes(random.Random(9).randbytes(late.stat().st_size))
            (source / "new").rename(late)
        case "vanishes":
            late.unlink()
        case "renamed":
            (source / "zdir").rename(source / "zother")


@pytest.mark.fault("E6")
@pytest.mark.parametrize("how", ["grows", "shrinks", "replaced", "vanishes", "renamed"])
def test_e6_a_source_that_changes_meanwhile_is_named_or_sent_as_it_was(
    controller: Desk, hosts: Cluster, source: Path, how: str
) -> None:
    (source / "zz.bin").write_bytes(random.Random(4).randbytes(12 << 20))
    (source / "zdir").mkdir()
    (source / "zdir/file").write_text("1")
    begun = tree(source)
    with narrow(hosts, "100mbit"):
        command = controller.start("sync", source, "--transfer", "tar")
        wait(lambda: any(received(hosts, host) > 1 << 20 for host in hosts.names), 60.0, lambda: str(command.said))
        change(source, how)
        told = command.end(90.0)
    assert told.code in (0, 4), told
    found = [carried(hosts, host) if hosts.path(host, THERE).is_dir() else {} for host in hosts.names]
    assert all(one == found[0] for one in found)
    if told.code == 0:
        assert found[0] in (begun, tree(source))
    else:
        assert {"renamed": "zdir"}.get(how, "zz.bin") in told.out + told.err, told
        assert not found[0]
    expect(controller("sync", source, "--delete"), 0)
    assert all(carried(hosts, host) == tree(source) for host in hosts.names)


HARD = [
    b"a blank", b"a\nnewline", b"-rf", b";touch pwned", b"$(touch pwned)", b"`touch pwned`", b"'quote", b'"double',
    b"*", b"\xff\xfe not utf-8", "ümläut".encode(), b"x" * 255, b"a\\b", b"~", b"=", b"%s", b"tab\there", b"#hash",
]  # fmt: skip


@pytest.mark.fault("E7")
@pytest.mark.parametrize("method", ["tar", "rsync"])
def test_e7_hard_names_arrive_and_nothing_is_executed(
    controller: Desk, hosts: Cluster, source: Path, method: str
) -> None:
    top = os.fsencode(source)
    for number, name in enumerate(HARD):
        with open(os.path.join(top, name), "wb") as file:
            file.write(b"%d" % number)
        os.makedirs(os.path.join(top, b"d", name))
    deep = source / "/".join(["deep"] * 60)
    deep.mkdir(parents=True)
    (deep / "end").write_text("here")
    expect(controller("sync", source, "--transfer", method), 0)
    for host in hosts.names:
        assert carried(hosts, host) == tree(source)
    for name in HARD:
        os.unlink(os.path.join(top, name))
    expect(controller("sync", source, "--transfer", method, "--delete"), 0)
    for host in hosts.names:
        assert carried(hosts, host) == tree(source)


@pytest.mark.fault("E7")
@pytest.mark.timeout(600)
def test_e7_twenty_thousand_small_files_and_a_big_sparse_one_arrive(
    controller: Desk, hosts: Cluster, source: Path
) -> None:
    for number in range(20_000):
        if number % 500 == 0:
            folder = source / f"many{number // 500}"
            folder.mkdir()
        (folder / f"{number}").write_bytes(b"%d" % number)
    with (source / "sparse").open("wb") as file:
        file.truncate(2 << 30)
        file.seek(1 << 30)
        file.write(b"in the middle")
    told: Told = controller("sync", source, "--limit", "node0", timeout=500.0)
    expect(told, 0)
    there = hosts.path("node0", THERE)
    assert tree(there) == tree(source)
