"""Playbooks on separate hosts: facts, batches, hosts that fall out, results back, a second time that does nothing."""

import signal
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, Workspace

pytestmark = pytest.mark.hosts

BOOK = f"""\
name: everything but torch
vars: {{lines: 3}}
steps:
  - name: look
    doctor: {{pairwise: off, venv: /root/none}}  # other tests install on two of the hosts
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


def test_a_play_whose_terminal_is_closed_leaves_the_command_for_its_other_steps(workspace: Workspace) -> None:
    (workspace.path / "code/work.py").write_text(f"import time\n{WORK}time.sleep(5)\n")
    playing = workspace.start("play", "book.yaml", "--start-at", "train")
    playing.until("rank 3")
    playing.signal(signal.SIGHUP)
    left = (
        "the play ends here: train goes on without it; what comes after it: ipexctl play book.yaml --start-at results"
    )
    result = playing.end()
    assert result.code == 129
    assert left in result.err
    attached = workspace.succeed("attach")
    assert left in attached.err
    assert workspace.succeed("play", "book.yaml", "--start-at", "results").code == 0
    assert left not in workspace.succeed("play", "book.yaml", "--start-at", "train").err


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
