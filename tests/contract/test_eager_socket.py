"""What a new connection waits for."""

import socket
from contextlib import closing
from typing import Any

from ipexctl.act.ssh import Links
from ipexctl.act.ssh.tcp import EagerSocket
from ipexctl.model.hosts import Command
from tests.contract.sshd import Server


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


def test_a_connection_is_eager_until_its_first_session(server: Server) -> None:
    with closing(Links(known_hosts=server.known_hosts, config=None)) as links:
        link: Any = links.open(server.host())
        assert link._transport.sock.eager
        link.run(Command(("true",)))
        assert not link._transport.sock.eager
