"""The ports that a keeper takes of ``--port-range``: the last free ones, for MPI takes its own from the first on."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipexctl.protocol import journal
from ipexctl.remote.agent import rpc
from tests.unit.agent.runs import keeping
from tests.waiting import wait


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Four that are free, one behind the other."""
    for low in range(21000, 30000, 4):
        try:
            for port in range(low, low + 4):
                rpc.listen_on_free_port("127.0.0.1", [port, port]).close()
        except OSError:
            continue
        yield [low, low + 3]
        return


def test_keepers_and_rendezvous_of_two_runs_take_the_last_free_ports(tmp_path: Path, ports: list[int]) -> None:
    with (
        keeping(tmp_path / "a", head={"ports": ports}) as first,
        keeping(tmp_path / "b", head={"ports": ports}) as second,
    ):
        assert [kept.port for kept in (first, second)] == [ports[1], ports[1] - 1]
        guard = second.join()
        wait(lambda: b"Launched" in (second.directory / "journal.jsonl").read_bytes())
        records = map(journal.KINDS.read, (second.directory / "journal.jsonl").read_bytes().splitlines())
        assert [record.port for record in records if isinstance(record, journal.Launched)] == [ports[0] + 1]
        guard.close()


def test_the_rendezvous_has_no_port_that_a_connection_could_get_before_rank_0(tmp_path: Path) -> None:
    """A run ended with EADDRINUSE: until rank 0 binds the port, it is anybody's."""
    with keeping(tmp_path) as kept:
        guard = kept.join()
        wait(lambda: b"Launched" in (kept.directory / "journal.jsonl").read_bytes())
        records = map(journal.KINDS.read, (kept.directory / "journal.jsonl").read_bytes().splitlines())
        assert [20000 <= record.port < 32768 for record in records if isinstance(record, journal.Launched)] == [True]
        guard.close()


def test_a_range_without_a_free_port_says_so(ports: list[int]) -> None:
    with rpc.listen_on_free_port("127.0.0.1", [ports[0], ports[0]]), pytest.raises(OSError, match="all ports from"):
        rpc.listen_on_free_port("127.0.0.1", [ports[0], ports[0]])


@pytest.mark.fault("I2")
def test_a_connection_that_ended_a_moment_ago_does_not_take_the_port(ports: list[int]) -> None:
    only = [ports[0], ports[0]]
    with (
        rpc.listen_on_free_port("127.0.0.1", only) as listener,
        socket.create_connection(("127.0.0.1", ports[0])) as caller,
    ):
        listener.accept()[0].close()  # first: TIME_WAIT is here
        assert caller.recv(1) == b""
    rpc.listen_on_free_port("127.0.0.1", only).close()
