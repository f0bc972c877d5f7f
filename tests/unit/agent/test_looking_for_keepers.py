"""A guard without its keeper: where it looks for one, and when it gives up."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import rpc
from ipexctl.remote.agent.guard import Guard
from tests.unit.agent.runs import SPEC

LEADERS = {"a": "127.0.0.1", "b": "127.0.0.1", "c": "127.0.0.1", "d": "127.0.0.1"}
TIMINGS = Timings(reach=0.2, steady=0.02, rejoin=0.3, away=1.0)


@pytest.fixture
def closed() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def make_guard(directory: Path, port: int) -> Guard:
    one, _ = socket.socketpair()
    wire = rpc.Wire(one)
    wire.peer = ("127.0.0.1", port)
    more: dict[str, Any] = {"host": "b", "head": None, "restarts": 1, "leaders": LEADERS, "timings": TIMINGS}
    guard = Guard(str(directory), SPEC._replace(**more), wire, 0o022)
    guard.leaders = dict.fromkeys("bcd", port)
    return guard


def test_it_looks_where_the_keeper_was_and_on_later_hosts_never_on_earlier_ones(tmp_path: Path, closed: int) -> None:
    guard = make_guard(tmp_path, closed)
    assert list(guard.list_keepers()) == ["a", "b", "c", "d"]
    guard.leader = "c"
    assert list(guard.list_keepers()) == ["c", "d"]


def test_it_gives_up_soon_where_each_host_says_that_no_keeper_is_there(tmp_path: Path, closed: int) -> None:
    begun = time.monotonic()
    assert not make_guard(tmp_path, closed).connect_again()
    assert time.monotonic() - begun >= TIMINGS.rejoin


def test_tries_to_lead_do_not_begin_its_patience_anew(tmp_path: Path, closed: int) -> None:
    guard = make_guard(tmp_path, closed)
    guard.lost_at = time.monotonic() - TIMINGS.away
    guard.silent_at = time.monotonic() - TIMINGS.rejoin
    begun = time.monotonic()
    assert not guard.connect_again()
    assert time.monotonic() - begun < TIMINGS.rejoin
