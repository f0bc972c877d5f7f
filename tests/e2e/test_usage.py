"""`du` on separate hosts: what takes space there, and which projects are removed."""

import os
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import ACTOR, GATE, LIGHT, Workspace, find_place, open_gates

pytestmark = pytest.mark.hosts
OLD = ("du", "--prune", "--older-than", "30d", "--json")


@pytest.fixture
def workspace(hosts: Cluster, tmp_path: Path) -> Iterator[Workspace]:
    """A user whose project lies on all hosts since 40 days; on node0 the script has written a checkpoint as well."""
    made = Workspace(hosts, tmp_path / "prøj")
    (made.path / ".ipexctlignore").write_text("home\n")
    (made.path / "train.py").write_text("print('hello')\n")
    assert made("sync", "train.py").code == 0
    place = find_place(made.path)
    hosts.write("node0", f"{place}/out/ck.pt", b"c" * 5000)
    for name in hosts.names:
        age(hosts, name, place)
    yield made
    for name in hosts.names:
        hosts.exec(name, ["rm", "-rf", place])


def age(hosts: Cluster, name: str, place: str) -> None:
    past = time.time() - 40 * 86400
    hosts.exec(name, ["find", place, "-exec", "touch", "-d", f"@{past:.0f}", "{}", "+"])


def list_kept(hosts: Cluster, place: str) -> list[str]:
    return [name for name in hosts.names if hosts.exec(name, ["test", "-d", place]).returncode == 0]


def measure(workspace: Workspace, kind: str) -> int:
    places = workspace("du", "--json").answer["places"]
    return sum(place["bytes"] for place in places if (place["host"], place["kind"]) == ("node1", kind))


def test_places_are_measured_on_hosts_and_here(workspace: Workspace, hosts: Cluster) -> None:
    before = {kind: measure(workspace, kind) for kind in ("environment", "wheels")}  # of other tests
    added = {
        "environment": "/root/.local/share/ipexctl/env.d/abc",
        "wheels": "/root/.local/share/ipexctl/env.d/wheels/abc",
    }
    hosts.write("node1", f"{added['environment']}/lib/x", os.urandom(300_000))
    hosts.write("node1", f"{added['wheels']}/y.whl", os.urandom(100_000))
    answer = workspace("du", "--json").answer
    own = [
        place for place in answer["places"] if place["kind"] != "project" or place["path"] == find_place(workspace.path)
    ]
    places = {(place["host"], place["kind"]): place for place in own}
    assert answer["answered"] == list(hosts.names)
    assert 300_000 <= places["node1", "environment"]["bytes"] - before["environment"] < 400_000
    assert 100_000 <= measure(workspace, "wheels") - before["wheels"] < 200_000
    assert places["node0", "project"] | {"changed": 0} == {
        "host": "node0", "kind": "project", "path": find_place(workspace.path), "changed": 0, "written": 5000,
        "bytes": places["node1", "project"]["bytes"] + 5000, "removed": False, "stays": "",
    }  # fmt: skip
    assert places["", "runs"]["bytes"] > 0
    assert "dry" not in answer
    assert answer["next"] == []
    hosts.exec("node1", ["rm", "-r", *added.values()])


def test_downloads_that_an_interrupted_install_left_have_the_command_that_removes_them(
    workspace: Workspace, hosts: Cluster
) -> None:
    hosts.write("node1", "/root/.cache/uv/x", b"")
    assert "cache/uv" not in workspace.succeed("du").err
    hosts.exec("node1", ["fallocate", "-l", "1100M", "/root/.cache/uv/x"])
    words = re.search(r"stays \(1\.\d GiB on node1\).*\nipexctl (exec .*'rm -rf ~/.cache/uv')", workspace("du").err)
    assert words
    workspace.succeed(*shlex.split(words[1]))
    assert hosts.exec("node1", ["test", "-e", "/root/.cache/uv"]).returncode == 1


def test_old_projects_are_named_first_and_then_removed(workspace: Workspace, hosts: Cluster) -> None:
    place = find_place(workspace.path)
    hosts.write("node2", f"{place}/new.txt", b"of today")
    hosts.write("node1", "/root/ipexctl/mine/notes.txt", b"no sync was here")
    age(hosts, "node1", "/root/ipexctl/mine")
    named = workspace.succeed(*OLD)
    assert named.answer["dry"] is True
    assert [each["host"] for each in named.answer["places"] if each["removed"]] == ["node0", "node1"]
    assert list_kept(hosts, place) == ["node0", "node1", "node2"]
    [command] = named.answer["next"]
    done = workspace.succeed(*command[1:])
    assert "removed 2 projects" in done.out
    assert list_kept(hosts, place) == ["node2"]
    assert list_kept(hosts, "/root/ipexctl/mine") == ["node1"]
    hosts.exec("node1", ["rm", "-r", "/root/ipexctl/mine"])


def test_the_project_of_a_run_and_what_a_link_leads_to_stay(workspace: Workspace, hosts: Cluster) -> None:
    (workspace.path / "count.py").write_text(ACTOR.read_text())
    workspace.succeed("run", "--detach", "--venv", LIGHT, "--ppn", "1", "count.py", "count", "10", GATE)
    place = find_place(workspace.path)
    for name in hosts.names:
        age(hosts, name, place)
    for words in (OLD, (*OLD, "--yes")):  # the preview names what would be removed, and nothing else
        result = workspace.succeed(*words)
        stays = {each["host"]: each["stays"] for each in result.answer["places"] if each["path"] == place}
        assert [why.startswith("used by run ") for why in stays.values()] == [True] * 3
        assert result.answer["next"] == []
    open_gates(hosts)
    assert workspace("attach").code == 0
    hosts.exec("node0", ["mv", place, "/root/elsewhere"])
    hosts.exec("node0", ["ln", "-s", "/root/elsewhere", place])
    assert workspace(*OLD, "--yes").code == 0
    assert list_kept(hosts, "/root/elsewhere") == ["node0"]
    assert list_kept(hosts, place) == ["node0"]
    hosts.exec("node0", ["rm", "-r", place, "/root/elsewhere"])


def test_a_project_that_cannot_be_removed_keeps_no_other_and_old_wheels_here_go(
    workspace: Workspace, hosts: Cluster
) -> None:
    place = find_place(workspace.path)
    wheel = workspace.home / ".cache/ipexctl/wheels/ab/x.whl"
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(b"w" * 5000)
    os.utime(wheel, (0.0, 0.0))
    hosts.exec("node0", ["mount", "-t", "tmpfs", "none", f"{place}/out"])
    age(hosts, "node0", place)
    done = workspace.succeed(*OLD[:-1], "--yes")
    hosts.exec("node0", ["umount", f"{place}/out"])
    assert f"not removed: {place} on node0: something is mounted at {place}/out" in done.out
    assert "removed 2 projects and the wheels here" in done.out
    assert list_kept(hosts, place) == ["node0"]
    assert not wheel.exists()


def test_a_host_that_does_not_answer_keeps_nobody_else(workspace: Workspace, hosts: Cluster) -> None:
    with hosts.cut("node1"):
        result = workspace(*OLD, "--yes", "--connect-timeout", "3")
    assert result.code == 3, result
    assert result.answer["answered"] == ["node0", "node2"]
    assert list_kept(hosts, find_place(workspace.path)) == ["node1"]


def test_rules_need_prune(workspace: Workspace) -> None:
    assert workspace("du", "--older-than", "30d").code == 2
    refused = workspace("du", "--prune", "--json")
    assert refused.code == 2
    assert refused.answer["next"] == [
        ["ipexctl", "du", "--prune", "--older-than", "30d", "-f", str(workspace.hostfile)]
    ]
