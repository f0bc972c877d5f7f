"""A profile on its way: from the ranks of a real run, whose torch is a small one, into the saved run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ipexctl.model.answers.run import RunAnswer
from ipexctl.model.events import Answer, Message
from ipexctl.model.profile import Profile
from ipexctl.show.saved_profile import get_trace_path, read_profile
from ipexctl.verbs.run.attempt import Attempt
from tests.integration.attempts import Start, left_behind, of, run_alone, written
from tests.unit.profile.trace_format import find_format_errors


def profile(attempt: Attempt, saved: Path) -> tuple[Profile, dict[tuple[int, str], bytes]]:
    """The profile of a run, as it is answered and saved, and what its ranks wrote."""
    saved.mkdir()
    attempt.context.saved.directory = saved
    events = list(run_alone(attempt))
    assert left_behind(attempt, events) == []
    (answer,) = of(Answer, events)
    assert isinstance(answer.value, RunAnswer)
    assert answer.value.profile == read_profile(saved)
    assert not [event for event in of(Message, events) if event.level == "warning"]
    return read_profile(saved), written(events)


@pytest.mark.parametrize("shared_home", [False, True])
def test_traces_of_all_hosts_become_one(start: Start, tmp_path: Path, shared_home: bool) -> None:
    attempt = start(script="profiled/train.py", profile="3:4", shared_home=shared_home)
    found, output = profile(attempt, tmp_path / "saved")
    assert [(rank.rank, rank.host, rank.steps) for rank in found.ranks] == [(0, "a", 2), (1, "b", 2)]
    assert found.missing == ()
    assert found.clock in {"run", "collectives"}  # how well the run measured a busy machine's clocks
    (collective,) = found.collectives
    assert (collective.name, collective.calls, collective.matched) == ("gloo:all_reduce", 2, 1)
    assert found.ranks[0].waiting == pytest.approx(0.010, abs=0.006)  # hosts' clocks are measured on a busy machine
    (kernel,) = found.kernels
    assert (kernel.isa, kernel.dtype, kernel.calls, kernel.hosts) == ("avx512_core_amx", "bf16", 2, ("a", "b"))
    assert output[0, "out"] == b"".join(b"step %d\n" % step for step in range(6))  # and nothing of oneDNN
    trace = json.loads(gzip.decompress(get_trace_path(tmp_path / "saved").read_bytes()))
    assert find_format_errors(trace) == []
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert names == ["rank 0 · a", "rank 1 · b"]
    assert not (tmp_path / "saved/profile/hosts").exists()


def test_a_damaged_trace_is_named_and_kept_as_it_came(start: Start, tmp_path: Path) -> None:
    attempt = start("damage1", script="profiled/train.py", profile="3:4")
    found, _ = profile(attempt, tmp_path / "saved")
    assert [rank.rank for rank in found.ranks] == [0]
    assert [(rank.rank, rank.host, rank.why) for rank in found.missing] == [(1, "b", "the trace is not JSON")]
    assert (tmp_path / "saved/profile/hosts/b/profile/1.trace.gz").exists()


def test_ranks_that_make_too_few_steps_say_so(start: Start, tmp_path: Path) -> None:
    attempt = start(script="profiled/train.py", profile="20:30")
    found, _ = profile(attempt, tmp_path / "saved")
    assert found.ranks == ()
    assert {rank.why for rank in found.missing} == {"the script made 6 optimizer steps; the profile begins at step 20"}


def test_a_script_without_torch_has_no_trace(start: Start, tmp_path: Path) -> None:
    found, _ = profile(start("say", "hello", profile="5"), tmp_path / "saved")
    assert [rank.rank for rank in found.missing] == [0, 1]
    assert all(rank.why.startswith("it left no trace") for rank in found.missing)
