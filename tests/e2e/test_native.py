"""After IPEX: stock PyTorch of today on two separate hosts, and the same examples in it, with torch.compile."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.e2e.conftest import NATIVE, Installed
from tests.e2e.trained import answered, output, ranks_of
from tests.e2e.workspace import ROOT, Workspace

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]


def test_stock_pytorch_with_transformers_is_installed_on_two_hosts(native: Installed) -> None:
    assert native.result.code == 0, native.result
    assert native.result.answer["stack"]["torch"] == "2.13.0"
    for host in ("node0", "node1"):
        ask = "import torch, transformers, accelerate; print(torch.__version__)"
        done = native.cluster.exec(host, [f"{NATIVE}/bin/python", "-c", ask], timeout=300)
        assert done.stdout.startswith("2.13.0"), done.stderr
        gone = native.cluster.exec(host, [f"{NATIVE}/bin/python", "-c", "import intel_extension_for_pytorch"])
        assert "ModuleNotFoundError" in gone.stderr


def test_the_playbook_plays_the_same_recipes_without_ipex(native: Installed, workspace: Workspace) -> None:
    """Data-parallel training and BERT in bf16 on both hosts, then inference on each, compiled and in INT8."""
    book = ROOT / "playbooks/native.yaml"
    words = ("--tags", "train", "--tags", "infer", "--var", f"venv={NATIVE}", "--var", "size=tiny", "--var", "batch=4")
    result = workspace.succeed("play", "--limit", "node0,node1", book, *words, timeout=1100)
    assert "rank 1 of 2 on node1: torch 2.13.0, ipex none" in result.out
    actual = [json.loads(line) for line in re.findall(r"^\d+│(\{.*\})$", result.out, re.MULTILINE)]
    forms = [(one["mode"], one["model"], one["dtype"], one["how"]) for one in actual]
    assert forms == [
        ("train", "bert", "bf16", "eager"),  # rank 0 tells it
        *[("infer", "bert", "bf16", "compile")] * 2,
        *[("infer", "resnet50", "int8-static", "eager")] * 2,
    ]
    assert actual[0]["ranks"] == 2
    assert all((one["engine"], one["ipex"]) == ("stock", None) for one in actual)
    assert all(one["cosine"] > 0.95 for one in actual[1:])


def test_accelerate_and_the_trainer_learn_on_both_hosts_without_ipex(native: Installed, workspace: Workspace) -> None:
    book = ROOT / "playbooks/native.yaml"
    words = ("--limit", "node0,node1", "--var", f"venv={NATIVE}", "--var", "epochs=2")
    result = workspace("play", book, "--tags", "accelerate", *words, timeout=600)
    ranks_of(output(workspace, result, 2), 2, ipex=False)
    result = workspace("play", book, "--tags", "trainer", *words, timeout=600)
    answered(output(workspace, result, 2), 2, ipex=False, transformers=r"\d")


@pytest.mark.beyond_core
def test_the_bench_measures_each_form_that_is_there(native: Installed, workspace: Workspace, tmp_path: Path) -> None:
    plot = tmp_path / "bert.svg"
    words = ("--size", "tiny", "--steps", "5", "--plot", plot, "--json")
    result = workspace.succeed("bench", "bert", "--venv", NATIVE, "--limit", "node0,node1", *words, timeout=1100)
    rows = {row["name"]: row for row in result.answer["launches"]}
    assert set(rows) == {"stock-fp32", "stock-bf16", "compile-fp32", "compile-bf16"}
    assert all(row["rate"] > 0 and not row["why"] for row in rows.values()), rows
    assert result.answer["script"].startswith("BERT tiny, training, 8 samples a step on each of 2 hosts, torch 2.")
    assert len([*ET.parse(plot).getroot().iter("{http://www.w3.org/2000/svg}rect")]) == len(rows)
