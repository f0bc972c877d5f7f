"""How a host is reached is asked by many threads at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ipexctl.act.links.settings import SSHSettings
from ipexctl.model.hosts import Host


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_many_threads_may_ask_at_once(tmp_path: Path, hasty_threads: None) -> None:
    config = tmp_path / "config"
    config.write_text("Host n*\n  User someone\n  Port 2200\n")
    config.chmod(0o600)
    configuration = SSHSettings(config)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda n: configuration.of(Host(f"n{n}", f"n{n}")), range(320)))
    assert [(one.address, one.user, one.port) for one in found] == [(f"n{n}", "someone", 2200) for n in range(320)]
