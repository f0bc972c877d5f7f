"""A profile on its way: from the ranks of a real run, whose torch is a small one, into the saved run."""

from pathlib import Path

import pytest

from ipexctl.model.answers.run import RunAnswer
from ipexctl.model.events import Answer, Message
from ipexctl.model.profile import Profile
from ipexctl.store.masking import Masker
from ipexctl.store.saved_profile import read_profile
from ipexctl.verbs.run.attempt import LaunchAttempt
from tests.integration.attempts import Start, of, run_alone, written


def profile(attempt: LaunchAttempt, saved: Path) -> tuple[Profile, dict[tuple[int, str], bytes]]:
    """The profile of a run, as it is answered and saved, and what its ranks wrote."""
    saved.mkdir()
    attempt.context.saved.directory = saved
    events = list(run_alone(attempt))
    (answer,) = of(Answer, events)
    assert isinstance(answer.value, RunAnswer)
    assert answer.value.profile == read_profile(saved, Masker({}))
    warnings = [event for event in of(Message, events) if event.level == "warning"]
    assert [warning.code for warning in warnings if warning.code != "never-met"] == []  # its ranks train apart
    return read_profile(saved, Masker({})), written(events)


@pytest.mark.parametrize("shared_home", [False, True])
def test_traces_of_all_hosts_become_one_profile(start: Start, tmp_path: Path, shared_home: bool) -> None:
    attempt = start(script="profiled/train.py", profile="3:4", shared_home=shared_home)
    result, output = profile(attempt, tmp_path / "saved")
    assert [(rank.rank, rank.host, rank.steps) for rank in result.ranks] == [(0, "a", 2), (1, "b", 2)]
    assert result.missing == ()
    (collective,) = result.collectives
    assert (collective.name, collective.calls, collective.matched) == ("gloo:all_reduce", 2, 1)
    assert result.ranks[0].waiting == pytest.approx(0.010)
    (kernel,) = result.kernels
    assert (kernel.isa, kernel.dtype, kernel.calls) == ("avx512_core_amx", "bf16", 2)
    assert output[0, "out"] == b"".join(b"step %d\n" % step for step in range(6))  # and nothing of oneDNN
    kept = {path.name for path in (tmp_path / "saved/profile/hosts").rglob("*") if path.is_file()}
    assert {name for name in kept if "steps" not in name} == {"0.trace.json.gz", "1.trace.json.gz"}


def test_a_damaged_trace_is_named_and_kept_as_it_came(start: Start, tmp_path: Path) -> None:
    attempt = start("damage1", script="profiled/train.py", profile="3:4")
    result, _ = profile(attempt, tmp_path / "saved")
    assert [rank.rank for rank in result.ranks] == [0]
    [missing] = result.missing
    assert (missing.rank, missing.host) == (1, "b")
    assert missing.why.startswith("the trace is not what torch.profiler writes: ")
    assert (tmp_path / "saved/profile/hosts/b/profile/1.trace.json.gz").exists()
