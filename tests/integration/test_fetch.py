"""Results come back from separate hosts: what was asked for, what has changed, and nothing where it should not be."""

import io
import os
import shutil
import subprocess
import tarfile
import time
from importlib import resources
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import Workspace, find_place
from tests.waiting import wait

pytestmark = pytest.mark.hosts


@pytest.fixture
def workspace(cluster: Cluster, tmp_path: Path) -> Workspace:
    """A user in a project ``proj`` that was carried to the hosts, where each has made results of its own."""
    made = Workspace(cluster, tmp_path / "proj")
    place = find_place(made.path)
    for name in cluster.names:
        cluster.write(name, f"{place}/out/ck 1.pt", name.encode() * 1000)
        cluster.write(name, f"{place}/out/deep/log.txt", b"line\n")
        cluster.write(name, f"{place}/out/run.sh", b"#!/bin/sh\n", 0o755)
        cluster.write(name, f"{place}/other/x", b"not asked for")
    return made


def here(workspace: Workspace, below: str = "fetched") -> dict[str, bytes]:
    root = workspace.path / below
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name not in (".gitignore", ".ipexctl-run")
    }


def times(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in root.rglob("*")}


def test_results_of_all_hosts_come_once_and_then_only_what_has_changed(workspace: Workspace, cluster: Cluster) -> None:
    first = workspace.succeed("fetch", "out", "--json")
    assert {row["host"]: row["files"] for row in first.answer["hosts"]} == dict.fromkeys(cluster.names, 3)
    assert here(workspace)["node1/out/ck 1.pt"] == b"node1" * 1000
    assert sorted(here(workspace)) == sorted(
        f"{name}/out/{file}" for name in cluster.names for file in ("ck 1.pt", "deep/log.txt", "run.sh")
    )
    assert os.access(workspace.path / "fetched/node2/out/run.sh", os.X_OK)
    before = times(workspace.path / "fetched")
    second = workspace.succeed("fetch", "out")
    assert "nothing to do, 3 files the same in" in second.out
    assert times(workspace.path / "fetched") == before
    cluster.write("node1", f"{find_place(workspace.path)}/out/deep/log.txt", b"line\nmore\n")
    third = workspace("fetch", "out", "--json")
    assert {row["host"]: row["files"] for row in third.answer["hosts"]} == {"node0": 0, "node1": 1, "node2": 0}
    assert here(workspace)["node1/out/deep/log.txt"] == b"line\nmore\n"


def test_globs_places_and_hosts_are_chosen(workspace: Workspace, cluster: Cluster) -> None:
    place = find_place(workspace.path)
    cluster.write("node0", "/scratch/run/a.pt", b"A")
    workspace.succeed("fetch", "out/*.pt", "/scratch/run/*", "--from", "node0", "--into", "got")
    assert sorted(here(workspace, "got")) == ["node0/out/ck 1.pt", "node0/scratch/run/a.pt"]
    workspace("fetch", "deep", "--workdir", f"{place}/out", "--from", "node2", "--into", "got2")
    assert sorted(here(workspace, "got2")) == ["node2/deep/log.txt"]
    workspace("fetch", f"~{place.removeprefix('/root')}/other", "--exclude", "y", "--into", "got3", "--limit", "node1")
    assert sorted(here(workspace, "got3")) == [f"node1{place}/other/x"]


def test_a_pattern_that_matches_nothing_is_a_failure(workspace: Workspace, cluster: Cluster) -> None:
    cluster.write("node2", f"{find_place(workspace.path)}/only-here", b"1")
    result = workspace("fetch", "only-here", "nope*")
    assert result.code == 4, result
    assert f"no host has nope* in {find_place(workspace.path)}" in result.err
    assert here(workspace) == {"node2/only-here": b"1"}
    result = workspace.succeed("fetch", "only-here")


def test_odd_names_and_links_of_a_host_stay_where_they_are_meant(workspace: Workspace, cluster: Cluster) -> None:
    work, odd = find_place(workspace.path), "$'\\n\\033[31m\\377'"
    lines = [
        f"cd {work}/out && ln -s /etc/passwd secret && ln -s .. up && ln -s 'ck 1.pt' latest && ln 'ck 1.pt' hard",
        f"cd {work}/out && touch -- -rf ';x' '$(id)' 'a\\b' {odd} && mkfifo pipe",
    ]
    for line in lines:
        done = cluster.exec("node0", ["bash", "-c", line])
        assert done.returncode == 0, done.stderr
    result = workspace.succeed("fetch", "out", "--from", "node0")
    names = {os.fsencode(name) for name in here(workspace)}
    assert names == {
        b"node0/out/" + name
        for name in (
            b"ck 1.pt",
            b"deep/log.txt",
            b"run.sh",
            b"hard",
            b"-rf",
            b";x",
            b"$(id)",
            b"a\\b",
            b"\n\x1b[31m\xff",
        )
    }
    assert here(workspace)["node0/out/hard"] == b"node0" * 1000
    assert "links below a directory are not followed: out/latest, out/secret, out/up" in result.err
    assert "\x1b" not in result.err
    result = workspace("fetch", "out/latest", "--from", "node0")  # asked for by its name
    assert here(workspace)["node0/out/latest"] == b"node0" * 1000


def test_a_fetch_that_is_killed_goes_on_where_it_was(workspace: Workspace, cluster: Cluster) -> None:
    for number in range(6):
        cluster.write("node0", f"{find_place(workspace.path)}/many/{number}", os.urandom(30 << 20))
    command = workspace.start("fetch", "many", "--from", "node0")
    place = workspace.path / "fetched/node0/many"
    wait((place / "1").exists, pause=0.002)
    os.killpg(command.process.pid, 9)
    command.process.wait()
    done = times(place)
    assert 2 <= len(done) < 6, "it was killed too late to tell"
    result = workspace.succeed("fetch", "many", "--from", "node0", timeout=240)
    assert f"{6 - len(done)} files" in result.err
    assert times(place).items() >= done.items()
    for number in range(6):
        assert (place / str(number)).read_bytes() == cluster.read(
            "node0", f"{find_place(workspace.path)}/many/{number}"
        )
    assert [path.name for path in (workspace.path / "fetched/node0").iterdir()] == ["many"]


def test_a_host_that_is_away_does_not_keep_the_others(workspace: Workspace, cluster: Cluster) -> None:
    with cluster.power_off("node1"):
        result = workspace("fetch", "out", "--connect-timeout", "3")
    assert result.code == 3, result
    assert {name.partition("/")[0] for name in here(workspace)} == {"node0", "node2"}


def test_what_changes_while_it_is_read_is_reported(workspace: Workspace, cluster: Cluster) -> None:
    cluster.write("node0", f"{find_place(workspace.path)}/out/live.log", os.urandom(64 << 20))
    script = f"while :; do echo x >>{find_place(workspace.path)}/out/live.log; sleep 0.01; done"
    with subprocess.Popen([*cluster.entrance("node0"), "timeout", "30", "sh", "-c", script]) as writer:
        time.sleep(0.3)
        result = workspace("fetch", "out/live.log", "--from", "node0")
        writer.kill()
    assert result.code == 0, result
    assert "out/live.log changed while it was read: fetch it again" in result.err


@pytest.mark.skipif(shutil.which("busybox") is None, reason="there is no busybox here")
def test_a_host_with_nothing_but_busybox_hands_its_files_over(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "find", "tar", "xargs", "stat", "grep", "echo"):
        (tools / tool).symlink_to(str(shutil.which("busybox")))
    work = tmp_path / "work"
    (work / "out").mkdir(parents=True)
    (work / "out/a b").write_text("x")
    (work / "out/link").symlink_to("a b")
    (work / "out/hard").hardlink_to(work / "out/a b")
    script = resources.files("ipexctl.remote").joinpath("send_tree.sh").read_text()

    def give(*words: str, asked: bytes = b"") -> bytes:
        argv = [str(tools / "sh"), "-c", script, "give", *words]
        return subprocess.run(argv, env={"PATH": str(tools)}, input=asked, capture_output=True, check=True).stdout

    listed = give("list", str(work), "./out/*").split(b"\0")
    records = dict(zip(listed[2:-1:2], listed[1:-1:2], strict=True))
    assert {name: words.split()[1] for name, words in records.items()} == {
        b"./out/a b": b"f", b"./out/hard": b"f", b"./out/link": b"f"
    }  # fmt: skip
    below = give("list", str(work), "./out").split(b"\0")
    assert {name: words.split()[1] for name, words in zip(below[2:-1:2], below[1:-1:2], strict=True)} == {
        b"./out": b"d", b"./out/a b": b"f", b"./out/hard": b"f", b"./out/link": b"l"
    }  # fmt: skip

    def packed(*names: str) -> dict[str, int]:
        stream = io.BytesIO(give("pack", str(work), asked=b"".join(name.encode() + b"\0" for name in names)))
        with tarfile.open(fileobj=stream) as members:
            return {member.name.removeprefix("./"): member.size for member in members}

    assert packed("./out/a b", "./out/hard") == {"out/a b": 1, "out/hard": 0}  # a second name is a mere reference …
    assert packed("./out/hard") == {"out/hard": 1}  # … unless it comes alone
    assert packed("./out/link") == {"out/link": 1}
