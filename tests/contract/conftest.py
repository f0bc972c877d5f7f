"""The kinds of links, each reaching something that really executes commands."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.act.ssh import Links, LocalLink
from ipexctl.model.hosts import NO_COMMAND_IO, Command, CommandIO, Completed, Host, Link
from tests.contract.sshd import Server, sshd
from tests.fakes import FakeLink

# What startup files of a login shell may do: they print, change directory and set variables.
NOISE = """
printf 'Welcome!\\n\\033[31mfortune\\033[0m without a line end'
echo 'stty: standard input: Inappropriate ioctl for device' >&2
cd /tmp
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("sshd")
    with sshd(place, "MaxSessions 20", "MaxStartups 100", startup=NOISE) as running:
        yield running


def executing(host: Host, command: Command) -> Completed:
    """The script of a fake host that does what it is told."""
    done = subprocess.run(
        ["/bin/sh", "-c", os.fsencode(command.format_line())]
        if len(command.format_line()) < 100_000
        else list(command.argv),
        input=command.stdin,
        capture_output=True,
        cwd=Path.home(),
    )
    return Completed(done.returncode if done.returncode >= 0 else 128 - done.returncode, done.stdout, done.stderr)


class SharingLink:
    """A link whose commands share a shell."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.host, self.notes, self.stream, self.close = link.host, link.notes, link.stream, link.close

    def run(self, command: Command, command_io: CommandIO = NO_COMMAND_IO) -> Completed:
        return self._link.run(replace(command, brief=True), command_io)


@pytest.fixture(params=["fake", "local", "ssh", "shared"])
def link(request: pytest.FixtureRequest) -> Iterator[Link]:
    if request.param == "fake":
        yield FakeLink(Host("node1", "10.0.0.1"), executing)
    else:
        yield from real(request)


@pytest.fixture(params=["local", "ssh", "shared"])
def real_link(request: pytest.FixtureRequest) -> Iterator[Link]:
    """For what only a running process can show: time, signals, input that is answered."""
    yield from real(request)


@pytest.fixture(params=["local", "ssh"])
def streaming_link(request: pytest.FixtureRequest) -> Iterator[Link]:
    """The same for streams, which share no shell."""
    yield from real(request)


@pytest.fixture
def remote_link(server: Server) -> Iterator[Link]:
    """The same for what only a connection does."""
    links = Links(known_hosts=server.known_hosts, config=None)
    yield links.open(server.host())
    links.close()


def real(request: pytest.FixtureRequest) -> Iterator[Link]:
    if request.param == "local":
        link: Link = LocalLink(Host("node1", "localhost"))
        yield link
        link.close()
    else:
        server: Server = request.getfixturevalue("server")
        links = Links(known_hosts=server.known_hosts, config=None)
        link = links.open(server.host())
        yield SharingLink(link) if request.param == "shared" else link
        links.close()
