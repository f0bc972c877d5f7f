"""A study on real hosts: what it recommends, what a launch that goes wrong costs, and how it goes on."""

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.groups import memory
from tests.e2e.workspace import ACTOR, LIGHT, QUICK, RANKS, Workspace, find_orphans
from tests.stock import over

TUNE = ("tune", "--limit", "node0,node1", "--vary", "hugepages", "--steps", "8")
PLAIN = ("--venv", LIGHT)


@pytest.fixture
def script(workspace: Workspace) -> Path:
    """The script in a directory of its own, which is the project."""
    path = workspace.path / "job/paced.py"
    path.parent.mkdir()
    for name in ("paced.py", "meet.py"):
        path.with_name(name).write_bytes((RANKS / name).read_bytes())
    return path


def test_a_launch_that_fails_costs_itself_alone(workspace: Workspace, hosts: Cluster, script: Path) -> None:
    with memory(hosts, "node1", 512 << 20):
        result = workspace(*TUNE, *PLAIN, "--arg", "way=crash,eat", "--budget", "90s", "--json", script, timeout=300)
    assert result.code == 0, result
    answer = result.answer
    assert (answer["best"], answer["recommended"]) == ("hugepages", True), result
    assert 0.6 < answer["gain"] < 1.4
    whys = {launch["name"]: launch["why"] for launch in answer["launches"] if launch["ratio"] is None}
    assert any("this launch cannot be" in why for why in whys.values()), result
    assert any("memory" in why for why in whys.values()), result
    assert answer["seconds"] < 90 + 40
    (words,) = answer["next"]
    assert words[words.index("--limit") + 1] == "node0,node1"
    assert not find_orphans(hosts)
    assert workspace("play", "lint", "tuned.yaml").code == 0
    played = workspace("play", "tuned.yaml", "--check")
    assert "hugepages" in (workspace.path / "tuned.yaml").read_text(), played
    listed = workspace("runs", "--verb", "tune", "--json").answer["runs"]
    assert [run["result"] for run in listed] == ["ok"]
    page = (workspace.records[0] / "report.html").read_text()
    assert "Study of" in page
    assert "measured and then ended" in page
    assert "the run was stopped" not in page


@pytest.mark.beyond_core
def test_to_wait_for_hosts_uses_none_of_the_budget(
    workspace: Workspace, script: Path, start: Callable[..., Any]
) -> None:
    busy = start("run", *PLAIN, "--limit", "node0,node1", ACTOR, "count", "400", **QUICK)
    busy.until("0│tick 5\n")
    command = start(*TUNE, *PLAIN, "--wait", "--budget", "30s", "--output", "plain", script, **QUICK)
    command.until("waiting for run ", timeout=60.0)
    time.sleep(20.0)
    busy.process.send_signal(signal.SIGINT)
    busy.end(60.0)
    result = command.end(180.0)
    assert result.code == 0, result
    assert "launch 2, default" in result.err, "which takes 5 s, as the two before"


def test_a_host_that_is_lost_costs_the_launch_that_had_it(
    workspace: Workspace, hosts: Cluster, script: Path, start: Callable[..., Any]
) -> None:
    words = ("--node-lease", "5", "--arg", "way=lose", "--budget", "90s", "--output", "plain")
    command = start(*TUNE, *PLAIN, *words, script, **QUICK)
    command.until("this host will be lost", timeout=120.0)
    with hosts.cut("node1"):
        command.until("way lose: failed", timeout=120.0)
    result = command.end(300.0)
    assert result.code == 0, result
    assert re.search(r"hugepages[:,] [\d.]+ times as fast", result.out), result  # the study went on
    assert not find_orphans(hosts)


def test_ctrl_c_tells_the_best_so_far_and_the_study_goes_on(
    workspace: Workspace, hosts: Cluster, script: Path, start: Callable[..., Any]
) -> None:
    command = start(*TUNE, *PLAIN, "--budget", "10m", "--output", "plain", script)
    command.until("launch 1, hugepages", timeout=120.0)
    command.process.send_signal(signal.SIGINT)
    result = command.end(60.0)
    assert result.code == 130, result
    assert "hugepages" in result.out, result
    assert not find_orphans(hosts)
    resumed = workspace.succeed("tune", "--resume", "--budget", "60s", "--limit", "node0,node1", "--json", timeout=300)
    assert resumed.answer["best"] == "hugepages", resumed
    assert resumed.answer["recommended"], resumed


def test_a_playbook_tunes_and_what_it_writes_is_played(workspace: Workspace, hosts: Cluster, script: Path) -> None:
    keys = f"script: {script}, args: [--way, end], venv: {LIGHT}, vary: [hugepages], metric: score, budget: 60s"
    (workspace.path / "find.yaml").write_text(f"steps:\n  - tune: {{{keys}, into: found.yaml}}\n")
    workspace.succeed("play", "find.yaml", "--limit", "node0,node1", timeout=300)
    assert workspace("play", "lint", "found.yaml").code == 0
    workspace.succeed("play", "found.yaml", "--limit", "node0,node1", timeout=120)
    assert "::metric name=score value=20.0" in workspace.written(0).decode()
    assert not find_orphans(hosts)


@over()
@pytest.mark.parametrize("way", ["crash", "hang", "eat"])
def test_a_launch_that_goes_wrong_while_ranks_meet_costs_itself_alone(
    workspace: Workspace, hosts: Cluster, script: Path, group: tuple[str, ...], way: str
) -> None:
    with memory(hosts, "node1", 1 << 30):
        words = ("--arg", f"way={way}", "--budget", "150s", "--json", script)
        result = workspace.succeed(*TUNE, *group, *words, timeout=500)
    assert result.answer["best"] == "hugepages", result
    whys = [launch["why"] for launch in result.answer["launches"] if launch["ratio"] is None]
    assert whys, result
    assert all({"crash": "cannot be", "hang": "limit", "eat": "memory"}[way] in why for why in whys), result
    assert not find_orphans(hosts)
