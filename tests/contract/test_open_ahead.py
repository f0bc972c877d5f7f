"""Connecting hosts before they are opened, and what a connection waits for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.ssh import Links
from ipexctl.act.ssh.tcp import EagerSocket
from ipexctl.model.commands import Command
from ipexctl.model.links import LinkError
from tests.contract.sshd import Server, sshd


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Server]:
    """A server whose log has a line for each connection."""
    with sshd(tmp_path, "LogLevel VERBOSE") as running:
        yield running


def count(server: Server) -> int:
    return server.log.count("Connection from ")


def wait_for_connections() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("connect "):
            thread.join(30)


def test_a_host_that_was_connected_ahead_is_connected_once(counting: Server) -> None:
    with closing(Links(known_hosts=counting.known_hosts, config=None)) as links:
        links.open_ahead([counting.host()])
        wait_for_connections()
        assert count(counting) == 1
        assert links.open(counting.host()).run(Command(("echo", "here"))).out == b"here\n"
        links.open_ahead([counting.host()])
        wait_for_connections()
        assert count(counting) == 1


def test_what_failed_ahead_is_raised_when_the_host_is_opened_and_then_tried_again(
    counting: Server, tmp_path: Path
) -> None:
    with closing(Links(known_hosts=tmp_path / "none", config=None)) as links:
        links.open_ahead([counting.host()])
        wait_for_connections()
        codes = []
        for connections in (1, 2):
            with pytest.raises(LinkError) as refused:
                links.open(counting.host())
            codes.append(refused.value.failure.code)
            assert count(counting) == connections
        assert codes == ["host-key-unknown"] * 2


def test_nothing_is_connected_ahead_where_a_passphrase_may_be_asked_for(counting: Server) -> None:
    with closing(Links(known_hosts=counting.known_hosts, config=None, ask=lambda question: None)) as links:
        links.open_ahead([counting.host()])
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("connect ")]


def test_an_eager_socket_acknowledges_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, EagerSocket() as client:
        client.connect(listener.getsockname())
        with listener.accept()[0] as peer:
            for eager in (True, False):
                client.eager = eager
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
                peer.sendall(b"x")
                assert client.recv(1) == b"x"
                assert bool(client.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)) is eager


def test_a_connection_is_eager_until_its_first_session(counting: Server) -> None:
    with closing(Links(known_hosts=counting.known_hosts, config=None)) as links:
        link: Any = links.open(counting.host())
        assert link._transport.sock.socket.eager
        link.run(Command(("true",)))
        assert not link._transport.sock.socket.eager
