"""IPEX in a script on separate hosts: training and inference in every number format, instances side by side, the bench,
and the same script with and without IPEX."""

import json
import re
from typing import Any

import pytest

from tests.e2e.conftest import Installed
from tests.e2e.trained import IPEX_IN_BF16
from tests.e2e.workspace import ROOT, CommandResult, Workspace, find_orphans

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

EXAMPLES = ROOT / "examples"
DTYPE = "bf16" if IPEX_IN_BF16 else "fp32"
TINY = ("--size", "tiny", "--batch", "4", "--steps", "5")


def measured(result: CommandResult) -> list[dict[str, Any]]:
    """What all ranks of a play measured, in the order in which they told it."""
    return [json.loads(line) for line in re.findall(r"^\d+│(\{.*\})$", result.out, re.MULTILINE)]


def lines(workspace: Workspace, rank: int = 0) -> list[dict[str, Any]]:
    """What a rank measured."""
    return [json.loads(line) for line in workspace.written(rank).decode().splitlines() if line.startswith("{")]


def test_the_playbook_trains_and_infers_with_ipex(installed: Installed, workspace: Workspace) -> None:
    words = ("--tags", "train", "--tags", "infer", "--var", "size=tiny", "--var", "batch=4", "--var", f"dtype={DTYPE}")
    result = workspace.succeed("play", "--limit", "node0,node1", ROOT / "playbooks/ipex.yaml", *words, timeout=1100)
    actual = measured(result)
    assert [(one["mode"], one["model"], one["dtype"], one["how"]) for one in actual] == [
        ("train", "resnet50", "fp32", "eager"),  # rank 0 tells it
        ("train", "bert", DTYPE, "eager"),
        *[("infer", "resnet50", "fp32", "trace")] * 2,
        *[("infer", "bert", DTYPE, "trace")] * 2,
        *[("infer", "bert", "int8-dynamic", "trace")] * 2,
    ]
    assert all((one["engine"], one["ipex"]) == ("ipex", "2.8.0+cpu") for one in actual)
    assert [one["ranks"] for one in actual[:2]] == [2, 2]
    assert all(one["cosine"] > 0.95 for one in actual[2:])


@pytest.mark.parametrize(
    ("words", "how"),
    [
        pytest.param(f"--model bert --dtype {DTYPE}", "eager", marks=pytest.mark.beyond_core),
        ("--model resnet50 --dtype int8-static", "trace"),
    ],
)
def test_every_form_of_ipex_optimize_works_and_is_measured(
    words: str, how: str, installed: Installed, workspace: Workspace
) -> None:
    script = EXAMPLES / "infer_ipex.py"
    workspace.succeed("run", "--limit", "node0", "--instances", "1", script, *words.split(), *TINY, timeout=900)
    (actual,) = lines(workspace)
    assert (actual["engine"], actual["how"]) == ("ipex", how)
    assert actual["samples_per_s"] > 0
    assert actual.get("cosine", 1.0) > 0.95


def test_the_playbook_infers_with_instances_on_two_hosts(installed: Installed, workspace: Workspace) -> None:
    variables = {"model": "resnet50", "dtype": "fp32", "size": "tiny", "instances": "2"}
    words = [word for name, value in variables.items() for word in ("--var", f"{name}={value}")]
    result = workspace.succeed(
        "play", "--limit", "node0,node1", ROOT / "playbooks/inference.yaml", "--tags", "infer", *words, timeout=900
    )
    actual = sorted(measured(result), key=lambda one: one["instance"])
    assert [one["host"] for one in actual] == ["node0", "node0", "node1", "node1"]
    assert [one["instance"] for one in actual] == [0, 1, 2, 3]
    assert actual[0]["cpus"] != actual[1]["cpus"]
    assert all(one["threads"] == len(one["cpus"]) for one in actual)
    assert not find_orphans(installed.cluster)


def test_the_bench_of_a_playbook_measures_ipex_beside_torch(installed: Installed, workspace: Workspace) -> None:
    words = ("--tags", "bench", "--var", "size=tiny", "--var", "compile=false")
    result = workspace.succeed("play", "--limit", "node0,node1", ROOT / "playbooks/bench.yaml", *words, timeout=900)
    rows = dict(re.findall(r"^(?:  |✗ )((?:stock|ipex)-\S+) +(.*)$", result.out, re.MULTILINE))
    assert set(rows) == {"stock-fp32", "stock-bf16", "ipex-fp32", "ipex-bf16"}
    for form, text in rows.items():
        expected = "avx512bw" if form == "ipex-bf16" and not IPEX_IN_BF16 else " a second"
        assert expected in text, result
