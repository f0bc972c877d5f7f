"""Connecting hosts before they are opened, and what a connection waits for."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.ssh import Links
from ipexctl.act.ssh.settings import SSHSettings
from ipexctl.act.ssh.tcp import EagerSocket, EarlyConnection
from ipexctl.act.ssh.transport import abort_connection
from ipexctl.model.commands import Command
from ipexctl.model.errors import ConnectError
from ipexctl.model.hosts import Host
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


def begin(port: int, limit: float = 30.0) -> EarlyConnection:
    return EarlyConnection(SSHSettings(None).find_settings(Host("node1", "127.0.0.1", port=port)), limit)


def test_a_connection_begins_before_paramiko_is_imported(counting: Server) -> None:
    program = f"""
import sys, time
from ipexctl.act.ssh.settings import SSHSettings
from ipexctl.act.ssh.tcp import EarlyConnection
from ipexctl.model.hosts import Host
begun = EarlyConnection(SSHSettings(None).find_settings(Host("node1", "127.0.0.1", port={counting.port})), 30.0)
print(begun.take(time.monotonic() + 30, lambda sock: None).recv(8), "paramiko" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "b'SSH-2.0-' False\n", done.stderr


def test_a_begun_connection_that_is_refused_says_so_when_it_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectError, match=f"connection refused .127.0.0.1:{port}") as refused:
        begin(port).take(time.monotonic() + 30, lambda sock: None)
    assert refused.value.code == "refused"


def test_a_begun_connection_is_waited_for_until_the_deadline_and_can_be_ended() -> None:
    def fill(port: int) -> socket.socket:
        """One more connection than the listener takes, so that the next one waits."""
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        return sock

    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as filling:
        port = listener.getsockname()[1]
        for _ in range(3):
            filling.enter_context(fill(port))
        begun, sockets = begin(port), list[socket.socket]()
        with pytest.raises(ConnectError, match=r"no answer within 30 s"):
            begun.take(time.monotonic() + 0.2, sockets.append)
        abort_connection(sockets[0])
        with pytest.raises((ConnectError, OSError)) as ended:
            begun.take(time.monotonic() + 30, sockets.append)
        assert "no answer" not in str(ended.value)


def test_a_host_behind_a_jump_host_or_a_command_is_not_begun_by_itself(counting: Server, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host behind\n  ProxyJump other\nHost by\n  ProxyCommand false\n")
    config.chmod(0o600)
    with closing(Links(known_hosts=counting.known_hosts, config=config)) as links:
        assert links._begin_connection(Host("behind", "behind")) is None
        assert links._begin_connection(Host("by", "by")) is None
        assert links._begin_connection(counting.host()) is not None


def test_nothing_is_begun_where_a_new_key_may_not_be_recorded(counting: Server, tmp_path: Path) -> None:
    """It is refused with exit code 2: then no host may have been contacted."""
    own = counting.host(vars={"known_hosts": str(tmp_path / "own")})
    with closing(Links(known_hosts=counting.known_hosts, config=None, accept_new=True)) as links:
        assert links._begin_connection(own) is None


def test_a_host_that_is_listed_twice_is_connected_once(counting: Server) -> None:
    with closing(Links(known_hosts=counting.known_hosts, config=None)) as links:
        links.open_ahead([counting.host(), counting.host()])
        wait_for_connections()
        assert count(counting) == 1


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
