"""Playbooks on separate hosts: facts, batches, hosts that fall out, results back, a second time that does nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import LIGHT, Desk

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
def desk(hosts: Cluster, tmp_path: Path) -> Desk:
    made = Desk(hosts, tmp_path / "desk")
    (made.path / "code").mkdir()
    (made.path / "code/work.py").write_text(WORK)
    (made.path / "book.yaml").write_text(BOOK)
    return made


def test_a_play_goes_from_facts_to_results_and_says_when_nothing_is_left_to_do(desk: Desk) -> None:
    told = desk("play", "book.yaml")
    assert told.code == 0, told
    assert "[node2] only some: skipped: when: isa_level >= AVX2 and host != 'node2'" in told.err
    assert "code: node0\n" in told.err.replace("\r", "")
    assert "code: node1, node2" in told.err
    fetched = desk.path / "fetched"
    assert {str(path.relative_to(fetched)) for path in fetched.rglob("*.txt")} == {"node1/out/2.txt", "node1/out/3.txt"}
    assert (fetched / "node1/out/3.txt").read_text() == "step\n" * 3
    assert "skipped=1" in told.out
    again = desk("play", "book.yaml", "--skip-tags", "prepare", "--json")
    assert again.code == 0, again
    assert [row["exit"] for row in again.answer["steps"]] == [0, 0]
    still = desk("play", "book.yaml", "--tags", "prepare")
    assert still.code == 0, still
    assert "nothing was changed" in still.err
    assert "changed=1" not in still.out


def test_a_check_with_differences_changes_nothing_on_any_host(desk: Desk, hosts: Cluster) -> None:
    assert desk("play", "book.yaml", "--tags", "prepare").code == 0
    (desk.path / "code/work.py").write_text(WORK.replace('print("rank"', 'print("changed"'))
    before = {name: hosts.exec(name, ["find", "/root/ipexctl", "-ls"]).stdout for name in hosts.names}
    told = desk("play", "book.yaml", "--check", "--diff")
    assert told.code == 0, told
    assert '-print("rank", os.environ["RANK"])' in told.err
    assert '+print("changed", os.environ["RANK"])' in told.err
    assert "would" in told.out or "send work.py" in told.out
    assert {name: hosts.exec(name, ["find", "/root/ipexctl", "-ls"]).stdout for name in hosts.names} == before
    assert not (desk.path / "fetched").exists()


def test_a_run_does_not_begin_without_a_host_that_is_away_and_the_rest_comes_back_to_it(
    desk: Desk, hosts: Cluster
) -> None:
    for name in hosts.names:
        hosts.exec(name, ["rm", "-rf", "/root/ipexctl/code"])
    with hosts.power_off("node1"):
        told = desk("play", "book.yaml", "--connect-timeout", "3", timeout=200)
    assert told.code == 3, told
    assert "run does not begin without node1: failed in look" in told.err
    assert "rank 0" not in told.out
    assert hosts.exec("node2", ["test", "-f", "/root/ipexctl/code/work.py"]).returncode == 0
    assert hosts.exec("node1", ["test", "-f", "/root/ipexctl/code/work.py"]).returncode != 0
    assert told.out.endswith("\nipexctl play book.yaml\n"), "run needs all hosts: --limit @failed would not begin it"
    chosen = desk("hosts", "--limit", "@failed", "--json").answer["hosts"]
    assert [host["name"] for host in chosen] == ["node1"]
    only = desk("play", "book.yaml", "--limit", "@failed", "--json")
    assert only.code == 0, only
    notes = [row.get("note", "") for row in only.answer["steps"]]
    assert notes[:3] == ["", "", ""]
    assert notes[3].startswith("not begun without node0, node2: --limit @failed leaves it out")
    assert notes[4] == "skipped: no run of this play says where its ranks are"
    assert hosts.exec("node1", ["test", "-f", "/root/ipexctl/code/work.py"]).returncode == 0
    whole = desk("play", "book.yaml", "--start-at", "train")
    assert whole.code == 0, whole
    assert "rank 5" in whole.out


def test_a_run_may_say_how_many_hosts_can_be_missing(desk: Desk, hosts: Cluster) -> None:
    (desk.path / "book.yaml").write_text(BOOK.replace("      venv:", "      grace: 1\n      venv:") .replace(
        "  - name: train\n", "  - name: train\n    max_fail_percentage: 34\n"))  # fmt: skip
    with hosts.power_off("node2"):
        told = desk("play", "book.yaml", "--connect-timeout", "3", timeout=200)
    assert told.code == 3, told
    assert "rank 3" in told.out
    assert "rank 4" not in told.out


def test_a_failed_run_that_is_ignored_still_brings_its_logs(desk: Desk) -> None:
    fails = "if os.environ['RANK'] == '1':\n    import time\n    time.sleep(2)\n    sys.exit(1)\n"  # all have written
    (desk.path / "code/work.py").write_text(WORK + fails)
    (desk.path / "book.yaml").write_text(
        BOOK.replace("  - name: train\n", "  - name: train\n    ignore_errors: true\n")
    )
    told = desk("play", "book.yaml", "--json")
    assert told.code == 0, told
    assert [(row["step"], row["exit"], row.get("note")) for row in told.answer["steps"]][3:] == [
        ("train", 5, "ignored"), ("results", 0, None)
    ]  # fmt: skip
    assert (desk.path / "fetched/node1/out/2.txt").exists()
    (desk.path / "book.yaml").write_text(BOOK)
    told = desk("play", "book.yaml", "--json")
    assert told.code == 5, told
    assert [row["exit"] for row in told.answer["steps"]][3:] == [5, None]
    told = desk("play", "book.yaml")
    recap = [line for line in told.out.splitlines() if "skipped=" in line]
    assert len(recap) == 3
    assert len([line for line in recap if "failed=1" in line]) == 1


def test_lint_and_schema_need_no_host(desk: Desk) -> None:
    told = desk("play", "lint", "book.yaml")
    assert told.code == 0, told
    (desk.path / "bad.yaml").write_text("steps:\n  - run: {script: nope.py}\n    serial: 1\n    with_items: []\n")
    told = desk("play", "lint", "book.yaml", "bad.yaml")
    assert told.code == 2, told
    assert "bad.yaml:3:13: serial does not fit run" in told.err
    assert "bad.yaml:4:5: 'with_items' is left out on purpose" in told.err
    assert not desk.records or all("lint" not in path.name for path in desk.records)
    schema = json.loads(desk("play", "--schema").out)
    assert {"when", "serial", "fetch", "run"} <= schema["properties"]["steps"]["items"]["properties"].keys()


def test_a_mistake_is_found_before_any_host_is_asked(desk: Desk) -> None:
    for words, why in [
        (["--start-at", "trian"], "no step called 'trian' (did you mean train?)"),
        (["--tags", "perpare"], "no step with the tags perpare (did you mean prepare?)"),
        (["--limit", "@failed"], "no command of ipexctl is saved yet"),
        (["--limit", "@failed,node9"], "@failed"),
    ]:
        told = desk("play", "book.yaml", *words)
        assert told.code == 2, told
        assert why in told.err
    assert not desk.records
