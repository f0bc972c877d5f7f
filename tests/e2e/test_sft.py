"""A language model fine-tuned on separate hosts by the recipe, LoRA and FSDP2, from nothing to what loads; what it says
beforehand of memory, and of what a CPU cannot train; and embeddings in the same way."""

import re
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.conftest import FRAMEWORKS
from tests.e2e.workspace import ROOT, Workspace, find_orphans, write_hostfile

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

SCRIPT = ROOT / "examples/sft.py"
FLAGS = Path("/proc/cpuinfo").read_text().split()
LARGE = ("--hidden", "768", "--layers", "8", "--rows", "8", "--words", "60", "--batch", "2", "--epochs", "1")


@pytest.fixture
def desk(frameworks: Cluster, tmp_path: Path) -> Workspace:
    """Whose hostfile names the environment with the frameworks."""
    return Workspace(frameworks, tmp_path / "desk", hostfile=write_hostfile(frameworks, tmp_path / "hosts", FRAMEWORKS))


@pytest.mark.parametrize(("method", "written"), [("lora", ("adapter", "merged")), ("full", ("merged",))])
def test_the_playbook_fine_tunes_to_what_loads(desk: Workspace, method: str, written: tuple[str, ...]) -> None:
    desk.succeed("examples", "copy", "sft", "mine")
    fetched = desk.path / "mine/fetched"
    words = ("--limit", "node[0-1]", "--skip-tags", "prepare", "--var", f"method={method}")
    result = desk.succeed("play", "mine/sft.yaml", *words, "--var", f"output=/root/{method}", timeout=900)
    assert len(re.findall(r"node[01]: [\d,]+ MiB a rank \(process", result.out)) == 2
    precision = "bf16" if {"avx512_bf16", "amx_bf16"} & {*FLAGS} else "fp32"
    assert f"rank 1 of 2 on node1: {method}, {precision}" in result.out
    losses = re.search(r"loss before ([\d.]+)((?:, \w+ [\d.]+)+)", result.out)
    assert losses, result
    after = dict(re.findall(r"(\w+) ([\d.]+)", losses[2]))
    assert tuple(after) == written
    assert all(float(loss) < float(losses[1]) - 0.5 for loss in after.values())
    for name in written:
        assert list((fetched / "node0/root" / method / name).glob("*.safetensors"))
    assert not find_orphans(desk.cluster)


def test_the_playbook_of_embeddings_brings_back_a_model_that_finds_what_belongs_together(desk: Workspace) -> None:
    desk.succeed("examples", "copy", "embed", "mine")
    words = ("--limit", "node[0-1]", "--skip-tags", "prepare", "--var", "ppn=2", "--var", "output=/root/embed")
    result = desk.succeed("play", "mine/embed.yaml", *words, timeout=900)
    before, after = map(int, re.findall(r"found of 52: before (\d+), after (\d+)", result.out)[0])
    assert before < 10 < 20 < after
    assert (desk.path / "mine/fetched/node0/root/embed/model/modules.json").is_file()
    assert not find_orphans(desk.cluster)


def test_what_is_said_of_memory_beforehand_is_what_ranks_take(desk: Workspace) -> None:
    result = desk.succeed("run", "--limit", "node[0-1]", "--ppn", "1", SCRIPT, "--method", "full", *LARGE, timeout=900)
    for rank in range(2):
        figures = re.search(r"memory (\d+) MiB, (\d+) planned", desk.written(rank).decode())
        assert figures, result
        taken, planned = map(int, figures.groups())
        assert planned == pytest.approx(taken, rel=0.2)
        assert taken > 1000, "more than what is imported"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--attention", "flex_attention"), "has no backward pass on CPUs: use --attention sdpa"),
        (("--precision", "fp8"), "cannot be trained on CPUs: use --precision bf16, or fp32"),
        (("--preflight", "1000", "1000"), "node0 has too little memory for its ranks"),
    ],
)
def test_what_cannot_be_trained_is_refused_first(desk: Workspace, words: tuple[str, ...], sentence: str) -> None:
    result = desk("run", "--limit", "node0", "--ppn", "1", SCRIPT, *words, timeout=300)
    assert (result.code, sentence in result.out + result.err) == (5, True), result


@pytest.mark.skipif("avx512_bf16" not in FLAGS, reason="the CPU does not compute in bf16")
def test_the_products_are_computed_by_the_instructions_of_the_cpu(desk: Workspace) -> None:
    words = ("--limit", "node0", "--ppn", "1", "--env", "ONEDNN_VERBOSE=1")
    desk.succeed("run", *words, SCRIPT, "--epochs", "1", "--rows", "8", timeout=300)
    kernels = set(re.findall(r"exec,cpu,matmul,(?:brg\w*|jit):(\w+)", desk.written(0).decode()))
    assert any(("amx" if "amx_bf16" in FLAGS else "bf16") in kernel for kernel in kernels), kernels
