"""The one loop: how a story that is broken off ends."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from ipexctl import loop
from ipexctl.model.errors import Exit, Interrupted
from ipexctl.model.events import Event, Started, StepEnded, StepStarted


@pytest.mark.parametrize(
    ("acting", "said"),
    [
        (True, "interrupted: node0 had got somewhere; type the same command again to go on"),
        (False, "interrupted"),
    ],
)
def test_a_command_that_is_broken_off_says_how_to_go_on_where_something_can(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    acting: bool,
    said: str,
) -> None:
    monkeypatch.setattr(loop, "state_directory", lambda: tmp_path)
    monkeypatch.setattr(loop, "cache_directory", lambda: tmp_path)

    def story(_: object) -> Generator[Event, None, Any]:
        yield Started("sync", "", ("node0", "node1"))
        yield StepStarted("node0", "send")
        yield StepEnded("node0", "send", "changed")
        raise Interrupted

    assert loop.perform(story, loop.OutputOptions(output="plain"), acting=acting) is Exit.INT
    assert capsys.readouterr().err.splitlines()[-1] == said
