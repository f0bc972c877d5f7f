"""What is told of a rank's death: an exception that nobody caught, or the stacks of a crash."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ipexctl.remote import autopsy

STACKS = "Current thread\nFatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n  <no Python frame>\n"


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/3.stacks").write_text(STACKS)
    return tmp_path / "ranks"


def told(ranks: Path) -> dict[str, str]:
    return autopsy.of(str(ranks.parent), 3, 1, signal.SIGABRT, autopsy.Kernel(), "")


def test_a_crash_is_told_with_the_stacks_it_left(ranks: Path) -> None:
    assert told(ranks)["traceback"].startswith("Fatal Python error: Aborted")
    assert "error" not in told(ranks)


def test_an_exception_is_told_although_the_process_aborted_at_its_exit(ranks: Path) -> None:
    noted = {"error": "ValueError: no", "traceback": 'Traceback\n  File "a.py", line 1\nValueError: no\n'}
    (ranks / "3.error").write_text(json.dumps(noted))
    assert {name: told(ranks)[name] for name in noted} == noted
