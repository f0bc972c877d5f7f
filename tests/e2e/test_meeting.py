"""Ranks on separate hosts that work apart, and scripts that look for the others elsewhere: said, with the line. The
torch of these scripts lies beside them and has nothing but its names; `test_frameworks.py` has the real one."""

import json
from typing import Any

import pytest

from tests.e2e.workspace import LIGHT, CommandResult, Workspace
from tests.stub_torch import write_packages

TRAIN = "import torch\n{join}\nfor _ in range(4): torch.optim.Optimizer().step()\n"
JOIN = "torch.distributed.init_process_group('gloo'); torch.distributed.all_reduce()"
HALVES = (
    "import os; rank = int(os.environ['RANK']); "
    "torch.distributed.init_process_group('gloo', rank=rank % 2, world_size=2); torch.distributed.all_reduce()"
)
WAITS = """
import os, time, torch
os.environ["MASTER_ADDR"] = "localhost"
torch.distributed.distributed_c10d.Group = lambda: time.sleep(600)
torch.distributed.init_process_group("gloo")
"""


def run(workspace: Workspace, script: str, *words: str) -> CommandResult:
    project = workspace.path / "project"
    write_packages(project)
    (project / "train.py").write_text(script)
    return workspace("run", "--venv", LIGHT, "--limit", "node[0-1]", *words, project / "train.py")


def separate(workspace: Workspace) -> Any:
    return workspace.report()["run"].get("separate")


@pytest.mark.fault("M5")
def test_ranks_that_work_apart_are_reported_while_they_run(workspace: Workspace) -> None:
    result, worlds = run(workspace, TRAIN.format(join=HALVES), "--ppn", "2"), {"2": 2}
    assert result.code == 0, result
    assert (separate(workspace)["code"], separate(workspace)["worlds"]) == ("never-met", worlds)
    text = separate(workspace)["text"]
    assert f"warning: {text}" in result.err
    card = result.out[result.out.index("! ") :]
    assert card.startswith(f"! {text}\n")
    assert "✓" in card
    events = [json.loads(line) for line in (workspace.records[-1] / "events.jsonl").read_text().splitlines()]
    assert [event["separate"]["worlds"] for event in events if event["event"] == "worlds-compared"] == [worlds]


def test_ranks_that_have_met_are_left_alone(workspace: Workspace) -> None:
    result = run(workspace, TRAIN.format(join=JOIN), "--ppn", "1")
    assert result.code == 0, result
    assert separate(workspace) is None


def test_a_script_that_sets_the_address_is_named_with_its_line(workspace: Workspace) -> None:
    result = run(workspace, WAITS, "--ppn", "1", "--stall-warn", "2", "--stall", "kill")
    assert result.code == 6, result
    line = "train.py:3 sets the rendezvous address to localhost"
    assert f"{line} (rank " in result.err
    assert "each host itself, where 1 of 2 ranks cannot be met" in result.err
    assert f"{line} (ranks 0-1)" in "\n".join(workspace.report()["run"]["stall"])
