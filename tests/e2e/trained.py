"""What the ranks of the guides' recipes tell of themselves, and whether they learnt."""

import re
from pathlib import Path

from tests.e2e.workspace import CommandResult, Workspace, find_orphans

_CPU = Path("/proc/cpuinfo").read_text(errors="replace").split()
BF16 = "avx512_bf16" in _CPU  # what `init` looks at
PRECISION = "bf16" if BF16 else "no"
LAYERS = r"[1-9]\d*" if BF16 else r"\d+"  # in fp32 IPEX need not take any over
IPEX_IN_BF16 = {"avx512bw", "avx512vl", "avx512dq"} <= set(_CPU)  # else IPEX refuses it


def output(workspace: Workspace, result: CommandResult, ranks: int) -> list[str]:
    """What each rank wrote, of a run that ended well and left nothing."""
    assert result.code == 0, result
    assert not find_orphans(workspace.cluster)
    return [workspace.written(rank).decode() for rank in range(ranks)]


def learnt(text: str) -> bool:
    """Whether the last accuracy that was told is better than chance."""
    actual = re.findall(r"accuracy ([\d.]+) on 256 pairs", text)
    return bool(actual) and float(actual[-1]) > 0.7


def loss_fell(text: str, share: float = 1.0) -> bool:
    """Whether the example's last loss is below this share of its first."""
    actual = re.search(r"loss ([\d.]+) → ([\d.]+)", text)
    return actual is not None and float(actual[2]) < share * float(actual[1])


def ranks_of(texts: list[str], hosts: int, ipex: bool = True) -> None:
    """Every rank is where it should be and has learnt over Gloo, with IPEX, or without it and in bf16."""
    each = len(texts) // hosts
    for rank, text in enumerate(texts):
        actual = f"rank {rank} of {len(texts)} on node{rank // each}: MULTI_CPU, backend gloo, "
        how = f"{PRECISION}, {LAYERS}" if ipex else "bf16, 0"
        assert re.search(re.escape(actual) + how + " layers of IPEX", text), text
    assert re.search(r"epoch \d: loss \d\.\d+, accuracy", texts[0])
    assert learnt(texts[0]), texts[0]


def answered(texts: list[str], hosts: int, ipex: bool = True, transformers: str = "4.52.4") -> None:
    """As `ranks_of`, of the Trainer."""
    each = len(texts) // hosts
    for rank, text in enumerate(texts):
        pattern = re.escape(f"rank {rank} of {len(texts)} on node{rank // each}: backend gloo, ")
        pattern += f"{'bf16' if BF16 else 'fp32'}, {LAYERS}" if ipex else "bf16, 0"
        pattern += r" layers of IPEX, \d+ threads, transformers "
        assert re.search(pattern + transformers, text), text
    actual = re.search(r"loss ([\d.]+), exact match ([\d.]+)", texts[0])
    assert actual, texts[0]
    assert float(actual[2]) > 0.5, "better than guessing one of 24 words"
