"""Playbooks on separate hosts: facts, batches, hosts that fall out, results back, a second time that does nothing."""

from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, Workspace, find_place

pytestmark = pytest.mark.hosts

BOOK = f"""\
name: everything but torch
vars: {{lines: 3}}
steps:
  - name: look
    doctor: {{pairwise: off}}
    tags: prepare
  - name: only some
    command: {{argv: [uname, -s], changes: false}}
    when: isa_level >= AVX2 and host != 'node2'
    tags: prepare
  - name: code
    sync: {{source: code}}
    serial: [1, 100%]
    tags: prepare
  - name: train
    run:
      script: code/work.py
      args: ["${{lines}}"]
      ppn: 2
      venv: {LIGHT}
      backend: gloo
  - name: results
    fetch: {{paths: ["out/*.txt"], from: "rank:2,3"}}
"""
WORK = """\
import os, pathlib, sys
out = pathlib.Path("out")
out.mkdir(exist_ok=True)
file = out / (os.environ["RANK"] + ".txt")
text = "step\\n" * int(sys.argv[1])
if not file.exists() or file.read_text() != text:
    file.write_text(text)
print("rank", os.environ["RANK"])
"""


@pytest.fixture
def workspace(hosts: Cluster, tmp_path: Path) -> Workspace:
    made = Workspace(hosts, tmp_path / "desk")
    (made.path / "code").mkdir()
    (made.path / "code/work.py").write_text(WORK)
    (made.path / "book.yaml").write_text(BOOK)
    return made


def test_a_play_goes_from_facts_to_results_and_says_when_nothing_is_left_to_do(workspace: Workspace) -> None:
    result = workspace.succeed("play", "book.yaml")
    assert "[node2] only some: skipped: when: isa_level >= AVX2 and host != 'node2'" in result.err
    assert "code: node0\n" in result.err.replace("\r", "")
    assert "code: node1, node2" in result.err
    fetched = workspace.path / "fetched"
    assert {str(path.relative_to(fetched)) for path in fetched.rglob("*.txt")} == {"node1/out/2.txt", "node1/out/3.txt"}
    assert (fetched / "node1/out/3.txt").read_text() == "step\n" * 3
    assert "skipped=1" in result.out
    again = workspace.succeed("play", "book.yaml", "--skip-tags", "prepare", "--json")
    assert [row["exit"] for row in again.answer["steps"]] == [0, 0]
    still = workspace.succeed("play", "book.yaml", "--tags", "prepare")
    assert "nothing was changed" in still.err
    assert "changed=1" not in still.out


def test_a_check_with_differences_changes_nothing_on_any_host(workspace: Workspace, hosts: Cluster) -> None:
    assert workspace("play", "book.yaml", "--tags", "prepare").code == 0
    (workspace.path / "code/work.py").write_text(WORK.replace('print("rank"', 'print("changed"'))
    before = {name: hosts.exec(name, ["find", "/root/ipexctl", "-ls"]).stdout for name in hosts.names}
    result = workspace.succeed("play", "book.yaml", "--check", "--diff")
    assert '-print("rank", os.environ["RANK"])' in result.err
    assert '+print("changed", os.environ["RANK"])' in result.err
    assert "would" in result.out or "send work.py" in result.out
    assert {name: hosts.exec(name, ["find", "/root/ipexctl", "-ls"]).stdout for name in hosts.names} == before
    assert not (workspace.path / "fetched").exists()


def test_a_run_does_not_begin_without_a_host_that_is_away(workspace: Workspace, hosts: Cluster) -> None:
    for name in hosts.names:
        hosts.exec(name, ["rm", "-rf", find_place(workspace.path / "code")])
    with hosts.power_off("node1"):
        result = workspace("play", "book.yaml", "--connect-timeout", "3", timeout=200)
    assert result.code == 3, result
    assert "run does not begin without node1: failed in look" in result.err
    assert "rank 0" not in result.out
    assert hosts.exec("node2", ["test", "-f", f"{find_place(workspace.path / 'code')}/work.py"]).returncode == 0
    assert hosts.exec("node1", ["test", "-f", f"{find_place(workspace.path / 'code')}/work.py"]).returncode != 0
    assert result.out.endswith("\nipexctl play book.yaml\n"), "run needs all hosts: --limit @failed would not begin it"
    chosen = workspace("hosts", "--limit", "@failed", "--json").answer["hosts"]
    assert [host["host"] for host in chosen] == ["node1"]
    only = workspace.succeed("play", "book.yaml", "--limit", "@failed", "--json")
    notes = [row.get("note", "") for row in only.answer["steps"]]
    assert notes[:3] == ["", "", ""]
    assert notes[3].startswith("not begun without node0, node2: --limit @failed leaves it out")
    assert notes[4] == "skipped: no run of this play says where its ranks are"
    assert hosts.exec("node1", ["test", "-f", f"{find_place(workspace.path / 'code')}/work.py"]).returncode == 0
    whole = workspace.succeed("play", "book.yaml", "--start-at", "train")
    assert "rank 5" in whole.out
