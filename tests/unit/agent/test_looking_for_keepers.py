"""A guard without its keeper: where it looks for one, and when it gives up."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import rpc
from ipexctl.remote.agent.guard import Guard
from ipexctl.remote.agent.keeper_search import KeeperSearch
from tests.unit.agent.runs import SPEC

LEADERS = {"a": "127.0.0.1", "b": "127.0.0.1", "c": "127.0.0.1", "d": "127.0.0.1"}
TIMINGS = Timings(reach=0.2, steady=0.02, rejoin=0.3, away=1.0)


@pytest.fixture
def closed() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def make_search(directory: Path, port: int, leaders: dict[str, str] = LEADERS) -> KeeperSearch:
    one, _ = socket.socketpair()
    wire = rpc.Wire(one)
    wire.peer = ("127.0.0.1", port)
    more: dict[str, Any] = {"host": "b", "head": None, "restarts": 1, "leaders": leaders, "timings": TIMINGS}
    guard = Guard(str(directory), SPEC._replace(**more), wire, 0o022)
    guard.search.ports = dict.fromkeys("bcd", port)
    return guard.search


def test_it_looks_on_later_hosts_never_on_earlier_ones(tmp_path: Path, closed: int) -> None:
    search = make_search(tmp_path, closed)
    assert list(search.list_later()) == ["b", "c", "d"]
    search.leader = "c"
    assert list(search.list_later()) == ["d"]


def test_it_gives_up_soon_where_each_host_says_that_no_keeper_is_there(tmp_path: Path, closed: int) -> None:
    begun = time.monotonic()
    assert make_search(tmp_path, closed).await_keeper() is None
    assert time.monotonic() - begun >= TIMINGS.rejoin


def test_it_gives_up_at_once_where_no_other_host_may_lead(tmp_path: Path, closed: int) -> None:
    begun = time.monotonic()
    assert make_search(tmp_path, closed, {"a": "127.0.0.1"}).await_keeper() is None
    assert time.monotonic() - begun < TIMINGS.rejoin


@pytest.mark.parametrize("leaders", [LEADERS, {"a": "127.0.0.1"}], ids=["many", "one"])
def test_a_host_that_says_nothing_is_tried_for_long(tmp_path: Path, leaders: dict[str, str]) -> None:
    """It was tried once, for 10 s, where no other host may lead."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # and never answers
        begun = time.monotonic()
        assert make_search(tmp_path, silent.getsockname()[1], leaders).await_keeper() is None
        assert time.monotonic() - begun >= TIMINGS.away


def test_a_host_that_has_tried_to_lead_does_not_take_its_own_port_for_a_keeper(tmp_path: Path, closed: int) -> None:
    """It was busy for 15 minutes after it had been cut off, though nobody had a keeper any more."""
    search = make_search(tmp_path, closed)
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        search.standby, search.process = own, os.getpid()
        search.ports["b"] = search.port
        search.spec = search.spec._replace(timings=TIMINGS._replace(away=60.0))
        begun = time.monotonic()
        assert search.await_keeper() is None
        assert TIMINGS.rejoin <= time.monotonic() - begun < 60.0


def test_a_host_that_refused_is_named_where_no_keeper_is_found(tmp_path: Path, closed: int) -> None:
    search = make_search(tmp_path, closed)
    assert search.connect(search.list_later()) == (None, ["b", "c", "d"])


def test_tries_to_lead_do_not_begin_its_patience_anew(tmp_path: Path, closed: int) -> None:
    search = make_search(tmp_path, closed)
    search.lost_at = time.monotonic() - TIMINGS.away
    search.silent_at = time.monotonic() - TIMINGS.rejoin
    begun = time.monotonic()
    assert search.await_keeper() is None
    assert time.monotonic() - begun < TIMINGS.rejoin
