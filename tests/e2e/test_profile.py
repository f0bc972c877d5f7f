"""torch.profiler on two separate hosts, of a script that does not know of it, and what is shown of it."""

import pytest

from ipexctl.store.masking import Masker
from ipexctl.store.saved_profile import read_profile
from tests.e2e.conftest import NATIVE, Installed
from tests.e2e.workspace import RANKS, ROOT, Workspace

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

BOTH = ("--limit", "node0,node1", "--venv", NATIVE, "--ppn", "1")


def test_the_steps_of_all_ranks_are_profiled_and_the_late_rank_is_seen(native: Installed, workspace: Workspace) -> None:
    result = workspace.succeed("run", *BOTH, "--profile", "4:6", RANKS / "profiled.py", timeout=300)
    assert "onednn_verbose" not in result.out + result.err
    assert result.out.count("│step 9 loss") == 2
    assert "profile of steps 4 to 6 · 2 ranks on 2 hosts" in result.out, result
    profile = read_profile(workspace.records[-1], Masker({}))
    assert profile.missing == ()
    assert [(rank.rank, rank.host, rank.steps) for rank in profile.ranks] == [(0, "node0", 3), (1, "node1", 3)]
    first, late = profile.ranks
    assert late.awaited > first.awaited  # the other may be late as well, on a busy machine
    assert first.waiting == pytest.approx(late.awaited)  # of two ranks one waits for the other
    reduces = next(row for row in profile.collectives if row.name == "gloo:all_reduce")
    assert (reduces.calls, reduces.matched) == (2 * 3, 3)
    assert {"aten::addmm", "Optimizer.step#AdamW.step"} <= {row.name for row in profile.operators}
    assert sum(row.calls for row in profile.kernels if row.primitive == "convolution") >= 2 * 3
    assert len([*(workspace.records[-1] / "profile/hosts").rglob("*.trace.json.gz")]) == 2
    again = workspace.succeed("profile")
    assert "gloo:all_reduce" in again.out
    assert workspace("profile", "--json").answer["profile"]["run"] == profile.run


def test_the_trainer_is_profiled_as_it_is(native: Installed, workspace: Workspace) -> None:
    """Accelerate's optimizer is a wrapper of torch's: its steps count once."""
    quick = ("--cpu", "--epochs", "1", "--pairs", "96", "--batch", "8")
    words = (*BOTH, "--launcher", "accelerate", "--profile", "2")
    workspace.succeed("run", *words, ROOT / "examples/nlp_example.py", *quick, timeout=600)
    profile = read_profile(workspace.records[-1], Masker({}))
    assert [(rank.rank, rank.steps) for rank in profile.ranks] == [(0, 2), (1, 2)], profile.missing
