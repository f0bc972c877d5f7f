"""Anything is started at the first try on three hosts: scripts, modules, servers, torchrun; and nothing is left."""

import re
import shutil
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, RANKS, Workspace, find_orphans, running
from tests.stock import remove_mpichs_files

TRAIN = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()} sum {total.item()}\\n")
dist.destroy_process_group()
"""


@pytest.fixture
def workspace(hosts: Cluster, tmp_path: Path) -> Workspace:
    """One whose directory is the project: what `Workspace.start` writes there is not sent."""
    made = Workspace(hosts, tmp_path / "desk")
    (made.path / ".ipexctlignore").write_text("out.*\nerr.*\n")
    return made


def test_a_shell_script_gets_its_arguments_as_they_are_and_no_shell_sees_them(workspace: Workspace) -> None:
    (workspace.path / "prepare.sh").write_text('#!/bin/sh\nfor word; do echo "[$word]"; done; echo $A $MASTER_PORT\n')
    words = ("{rank}/{world_size} of {host_rank}", '{"a": {"b": 1}}', "$(id) {port}", "{{port}}")
    workspace.succeed(
        "run", "--venv", LIGHT, "--env", "A={address}", "--env", "MASTER_PORT={port}", "./prepare.sh", *words
    )
    for rank in range(3):
        lines = workspace.written(rank).decode().splitlines()
        assert lines[:2] == [f"[{rank}/3 of {rank}]", '[{"a": {"b": 1}}]']
        port = re.fullmatch(r"\[\$\(id\) (\d+)\]", lines[2])
        assert port, lines
        assert lines[3:] == ["[{port}]", f"{workspace.cluster.address(f'node{rank}')} {port[1]}"]
    assert not find_orphans(workspace.cluster)


def test_a_server_on_each_host_is_up_at_the_return_and_stopped(workspace: Workspace) -> None:
    server = ("--per-host", "--program", "--ready", "http://{address}:{port}/", "--detach", "--port", "8123")
    workspace.succeed("run", "--venv", LIGHT, *server, "--", "python3", "-m", "http.server", "{port}")
    for host in workspace.cluster.names:
        assert len(running(workspace.cluster, host, "http.server")) == 1
    listed = workspace("ps").out
    assert "http.server" in listed
    assert re.search(r"\b3/3\b", listed), listed
    shared = ("--per-host", "--program", "--ready", "http://{address}:8123/", "--detach", "--share")
    second = workspace("run", "--venv", LIGHT, *shared, "--", "python3", "-m", "http.server", "8123")
    assert second.code == 4
    assert "another program answers at http://" in second.out, "and its sign would be taken for that of this run"
    assert workspace("stop").code == 0
    assert not any(running(workspace.cluster, host, "") for host in workspace.cluster.names)


def test_a_command_of_node0_and_one_of_the_others_need_no_third(workspace: Workspace) -> None:
    """Watched, by a playbook, and detached, with a sign that both are up."""
    words = ("--venv", LIGHT, "--per-host", "--program")
    roles = ("--role", "head:sh -c 'echo head of {hosts}; sleep 1'", "--role", "rest:sh -c 'echo rest {host_rank}'")
    planned = workspace("run", *words, *roles, "--dry-run").out
    for rank, line in enumerate(("echo head of 3; sleep 1", "echo rest 1", "echo rest 2")):
        assert f"rank {rank} on node{rank}:\n  sh -c '{line}'\n" in planned
    play = workspace.path / "play.yaml"
    listed = ", ".join(f'"{role}"' for role in roles[1::2])
    play.write_text(f"steps:\n  - run: {{venv: {LIGHT}, per_host: true, program: true, role: [{listed}]}}\n")
    for result in (workspace("run", *words, *roles), workspace("play", play)):
        assert result.code == 0, result
        written = [workspace.written(rank).strip() for rank in range(3)]
        assert written == [b"head of 3", b"rest 1", b"rest 2"]
    servers = ("--role", "head:python3 -m http.server {port}", "--role", "rest:python3 -m http.server {port}")
    workspace.succeed("run", *words, "--detach", "--port", "8124", "--ready", "{port}", *servers)
    assert len(running(workspace.cluster, "node2", "http.server")) == 1
    assert workspace("stop").code == 0
    assert not any(running(workspace.cluster, host, "") for host in workspace.cluster.names)


def test_what_a_host_lacks_is_said_before_anything_starts(workspace: Workspace) -> None:
    for name, line in (("first", "/opt/nosuch/perl"), ("named", "/bin/sh")):
        text = f"#!{line}\ntrue || mpirun -n 2 python train.py\nexit\n"
        (workspace.path / name).write_bytes(text.encode() + b"\xe9")  # no text at its end, as of a self-extracting one
    result = workspace("run", "--venv", LIGHT, "--ppn", "1", "named")
    assert result.code == 0, "a file of this name, and no program of the environment"
    assert "warning: named:2 starts ranks by itself (mpirun)" in result.err
    assert "ipexctl migrate named" in result.err
    for words, what in (
        (("first",), "the host has no program /opt/nosuch/perl, which line 1 of first names"),
        (("nosuch",), "the environment has no program nosuch"),
        (("--per-host", "accelerate"), "the environment has no program accelerate"),
        (("-m", "no.such"), "the environment has no module no.such"),
    ):
        result = workspace("run", "--venv", LIGHT, *words)
        assert (result.code, f"node[0-2]: {what}" in result.err) == (4, True), result
        assert ("hint: ipexctl install --with accelerate " in result.err) == ("accelerate" in what)
    result = workspace("run", "--venv", LIGHT, "node1", "train.py")
    assert "hint: further hosts stand behind a comma: --hosts A,node1" in result.err
    (workspace.path / "no").mkdir()
    result = workspace("run", "--venv", LIGHT, "-m", "no.such")
    assert "hint: name a module of the project's own no" in result.err, "a stranger's package may have that name"
    assert not find_orphans(workspace.cluster)


def test_torchrun_on_each_host_and_a_module_of_the_project(workspace: Workspace, stock: str) -> None:
    package = workspace.path / "pkg"
    package.mkdir()
    (package / "train.py").write_text(TRAIN)
    words = ("--limit", "node0,node1", "--ppn", "1", "--engine", "torchrun", "pkg/train.py")
    workspace.succeed("run", "--venv", stock, *words)
    text = "".join(workspace.written(rank).decode() for rank in range(2))
    assert sorted(re.findall(r"rank (\d) of 2 sum 2.0", text)) == ["0", "1"]
    assert workspace.report()["run"]["command"] == "torchrun pkg/train.py"
    (package / "say.py").write_text('import os\nprint("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])\n')
    workspace.succeed("run", "--venv", LIGHT, "--limit", "node0,node1", "-m", "pkg.say")
    assert workspace.written(1) == b"rank 1 of 2\n"
    assert not find_orphans(workspace.cluster)


@pytest.mark.parametrize("engine", ["impi", "mpich"])
def test_processes_that_ranks_spawn_begin_in_the_working_directory(
    request: pytest.FixtureRequest, workspace: Workspace, hosts: Cluster, stock: str, engine: str
) -> None:
    mpi = () if engine == "impi" else ("--mpi", request.getfixturevalue(engine))
    hosts.exec("node0", ["sh", "-c", "mkdir -p /data/x; ln -s /data/x /w"])  # its name leads to another path there
    shutil.copy(RANKS / "spawn.py", workspace.path)
    words = ("--venv", stock, *mpi, "--limit", "node[0-1]", "--ppn", "1", "--workdir", "/w/deep/er")
    result = workspace.succeed("run", *words, "spawn.py")
    for name in ("node0", "node1"):
        hosts.exec(name, ["rm", "-rf", "/w", "/data"])
    remove_mpichs_files(hosts)
    assert (workspace.written(0), workspace.written(1)) == (b"sum 3\n", b"sum 3\n"), result
