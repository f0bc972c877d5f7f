"""Strangers at the port of a keeper disturb nothing (faults.md J7), and no host the ranks of another one."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from ipexctl.protocol import frames, journal, paths
from ipexctl.protocol.messages import RankLoads, RanksOutput
from ipexctl.protocol.rank_records import RankEnded, RankStack, RankStage
from ipexctl.protocol.run_spec import NodeSpec
from ipexctl.remote.agent import rpc, spool
from ipexctl.remote.agent.keeper import Keeper
from tests.unit.agent.runs import SPEC, TIMINGS, Kept, keeping

HELLO = '{"kind": "Hello", "role": "guard", "name": "a", "nonce": "n", "clock": 1.0, "proof": "PROOF"}'
LINES = {
    "an accent for a proof": HELLO.replace("PROOF", "é").encode(),
    "half a character": HELLO.replace("guard", "\\ud800").encode(),
    "half a character for a proof": HELLO.replace("PROOF", "\\ud800").encode(),
    "depth": b"[" * 4000,
    "great depth": b"[" * 200_000,
    "a number": b"1",
    "a long number": b"1" * 4000,
    "words that are none": HELLO.replace('"guard"', '["guard"]').encode(),
    "nothing": b"",
    "an HTTP client": b"GET / HTTP/1.1\r\n\r",
    "noise": bytes(range(256)) * 4,
    "a wrong proof": HELLO.replace("PROOF", "00").encode(),
    "a complaint": b'{"kind": "Tampered"}',
    "a kind that is none": b'{"kind": {}}',
    "a message before the greeting": b'{"kind": "Inspect"}',
    "a long line": b'{"role": "' + b"x" * 100_000 + b'"}',
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """It would wait ten minutes for who says nothing: what ends a connection is what was said."""
    with keeping(tmp_path_factory.mktemp("kept"), timings=TIMINGS._replace(greet=600.0)) as kept:
        yield kept


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_strangers_line_ends_his_connection_and_nothing_else(kept: Kept, line: bytes) -> None:
    with stranger(kept) as sock:
        say(sock, line + b"\n")
        assert ended(sock)
    assert kept.state().state == "gathering"
    assert not (kept.directory / "keeper.crash").exists()


def test_a_line_without_an_end_is_cut_off_early(kept: Kept) -> None:
    with stranger(kept) as sock:
        say(sock, b"x" * (2 * rpc.GREETING_LIMIT))
        assert ended(sock)


def test_idle_strangers_do_not_keep_ours_out(tmp_path: Path) -> None:
    with keeping(tmp_path) as kept, ExitStack() as crowd:
        for _ in range(200):
            crowd.enter_context(stranger(kept))
        assert kept.state().state == "gathering"
        pid = json.loads((kept.directory / "keeper.json").read_text())["pid"]
        assert len(os.listdir(f"/proc/{pid}/fd")) < 100
        guard = kept.connect("guard", "a")
        assert guard.open


def stranger(kept: Kept) -> socket.socket:
    """A connection to the keeper that has been challenged."""
    sock = socket.create_connection(("127.0.0.1", kept.port), 60.0)
    assert b"Challenge" in sock.recv(1000)
    return sock


def say(sock: socket.socket, data: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # it was cut short
        sock.sendall(data)


def ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1000) == b""
    except ConnectionResetError:
        return True  # with something of ours unread


def test_a_host_tells_nothing_of_the_ranks_of_others(tmp_path: Path) -> None:
    """Whether they are busy, and have ended, decides on stalls; and a host may tell of millions."""
    nodes = {host: NodeSpec(f"{host}.ipexctl", [rank], "/none", "") for rank, host in enumerate("ab")}
    spec = SPEC._replace(size=2, head=SPEC.head_spec._replace(hosts=nodes))
    with rpc.listen_on_free_port("127.0.0.1", [0, 0]) as listener:
        keeper = Keeper(str(tmp_path), spec, listener, 0o077)
        for rank, host in enumerate("ab"):
            keeper.receive_from_guard(host, RankStage(rank, host, "running"))
        keeper.receive_from_guard("b", RankLoads({0: (1.0, "T"), 1: (1.0, "R"), 7: (1.0, "T")}))
        keeper.receive_from_guard("b", RankEnded(0, "b", status=0))
        keeper.receive_from_guard("b", RankStack(0, "b", 1, "S", "", ""))
    monitor = keeper.monitor
    assert (monitor.states, monitor.seconds, [*monitor.signs]) == ({1: "R"}, {1: 1.0}, [0, 1])
    assert (monitor.well, monitor.disturbed) == ({}, {})


def test_a_host_writes_nothing_for_the_ranks_of_others(tmp_path: Path) -> None:
    """Nor does a frame without an end take what the others write for its own."""
    (own,), (other,) = (frames.split_into_frames(frames.build_head(SPEC.nonce, rank), "o", b"x") for rank in (0, 1))
    endless = frames.build_head(SPEC.nonce, 0) + b"o999999999\x02"
    with rpc.listen_on_free_port("127.0.0.1", [0, 0]) as listener:
        keeper = Keeper(str(tmp_path), SPEC, listener, 0o077)
        for data in (own + other + own, endless):
            keeper.receive_from_guard("a", RanksOutput(data))
    assert spool.read_end(str(tmp_path / paths.OUT), 100) == own + own
    ignored = [journal.KINDS.read(line) for line in (tmp_path / paths.JOURNAL).read_bytes().splitlines()]
    assert [record.why.split()[0] for record in ignored if isinstance(record, journal.MessageIgnored)] == [
        str(len(other)),
        str(len(endless)),
    ]
