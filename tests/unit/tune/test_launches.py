"""What a study makes of one launch: its run is only events."""

from types import SimpleNamespace
from typing import Any

import pytest

from ipexctl.act.context import Context
from ipexctl.decide.parsing import parse_list
from ipexctl.decide.tune.study import Study
from ipexctl.model import events as e
from ipexctl.model.errors import Exit
from ipexctl.model.tasks import Run, Tune
from ipexctl.verbs import tune
from tests.fakes import FakeOpener

PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [192.0.2.1]:5"


class Launched(tune.HostStudy):
    """A study of one launch, without hosts."""

    def __init__(self, prepared: Any, context: Context) -> None:
        self._task, self._prepared, self._context, self._begun = Tune(script="train.py"), prepared, context, 0.0
        self._messages, self.unproved, self.default = {}, [], SimpleNamespace(size=2)  # type: ignore[assignment]
        Study.__init__(self, e.StudyStarted({}, {}, "", False, 60.0, 0, 8))

    def identify(self, values: e.Values) -> str | None:
        return repr(values)

    def prepare(self, values: e.Values, limit: float | None = None) -> Any:
        return self._prepared


def test_a_launch_that_fails_is_named_by_its_cause_and_not_by_who_noticed_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def execute() -> Any:
        yield e.RunStarted("r", "n0", ("n0", "n1"), "train.py")
        for rank, error in enumerate((PEER, "ValueError: bad batch")):
            trace = f"Traceback (most recent call last):\n{error}"
            yield e.RankEnded(rank, f"n{rank}", 1, at=1.0 + rank / 10, error=error, traceback=trace)
        yield e.RunEnded("r", "rank")
        yield e.Ended("run", Exit.RANK)

    watcher, launch = SimpleNamespace(interrupted=None), SimpleNamespace(backend="gloo", public=dict)
    attempt = SimpleNamespace(launch=launch, watcher=watcher, execute=execute)
    monkeypatch.setattr(tune, "make_attempt", lambda *_: attempt)
    task, hosts = Run(script="train.py"), parse_list("n[0-1]")
    prepared = SimpleNamespace(request=SimpleNamespace(script=SimpleNamespace(name="")), task=task, inventory=hosts)
    study = Launched(prepared, Context(FakeOpener(lambda *_: None), tmp_path, tmp_path))  # type: ignore[arg-type]
    failed = [event.failure.what for event in study.measure({}) if isinstance(event, e.HostFailed)]
    assert failed == ["the default launch has no rate: rank 1 on n1 exited with code 1: ValueError: bad batch"]
