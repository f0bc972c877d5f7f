"""Hosts whose port is closed: each command names them, and has one hint, the command that looks into it."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ipexctl.cli import app
from tests.tables import read_table


@pytest.fixture
def hostfile(tmp_path: Path) -> Iterator[Path]:
    """Two hosts; their port is taken, so that nobody else listens there meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        file = tmp_path / "hosts"
        port = taken.getsockname()[1]
        file.write_text("".join(f"n{number} ansible_host=127.0.0.1 ansible_port={port}\n" for number in (1, 2)))
        yield file


@pytest.mark.parametrize("command", read_table("closed_ports/a_command_that_reaches_no_host_advises_the_doctor"))
def test_a_command_that_reaches_no_host_advises_the_doctor(hostfile: Path, tmp_path: Path, command: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("")
    (project / "play.yaml").write_text("steps:\n- command: {argv: [hostname]}\n")
    words = [word.format(project=project) for word in command.split()]
    at = 1 if "train.py" in command else len(words)
    words[at:at] = ["-f", str(hostfile)]
    ended = CliRunner().invoke(app, words, env={"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")})
    shown = " ".join(ended.output.split())
    assert ended.exit_code == 3, shown
    assert "n[1-2]: unreachable: connection refused" in shown
    assert shown.count("hint:") == 1
    assert f"hint: ipexctl doctor -f {hostfile}" in shown


def test_the_doctor_advises_the_plain_ssh_command_instead_of_itself(hostfile: Path, tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["doctor", "-f", str(hostfile)], env={"HOME": str(tmp_path)})
    assert ended.exit_code == 3
    assert "127.0.0.1 true" in ended.output
    assert "ipexctl doctor" not in ended.output
