"""``exec``, ``shell`` and ``forward`` over a real sshd; the shell in a real terminal."""

import contextlib
import fcntl
import getpass
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.sshd import Server, children, free_port, listening, sshd
from tests.waiting import wait

PATIENCE = 60.0


class Workspace:
    """A user with three hosts, which are one server: ``node0`` to ``node2``, and ``dark``, which does not answer."""

    def __init__(self, server: Server, place: Path) -> None:
        self.server, self.place = server, place
        login = f"address=127.0.0.1 port={server.port} user={getpass.getuser()} key={server.key}"
        known = f"known_hosts={server.known_hosts}"
        hosts = [f"node{number} {login} {known}\n" for number in range(3)]
        (place / "hostfile").write_text("".join(hosts) + f"dark address=127.0.0.1 port={free_port()}\n")
        self.env = {"PATH": os.environ["PATH"], "HOME": str(place), "TERM": "xterm-256color", "LANG": "C.UTF-8"}

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "ipexctl", *words]

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.words(*words),
            cwd=self.place,
            env=self.env | env,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        return subprocess.Popen(self.words(*words), cwd=self.place, env=self.env, stdin=null, stdout=pipe, stderr=pipe)


class Screen:
    """A command in a terminal of 91 columns and 33 lines."""

    def __init__(self, workspace: Workspace, *words: str) -> None:
        self.data = b""
        self.pid, self.end = pty.fork()
        if not self.pid:
            os.chdir(workspace.place)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 91, 0, 0))
            os.execve(sys.executable, workspace.words(*words), workspace.env)

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def await_text(self, text: str) -> None:
        until = time.monotonic() + PATIENCE
        while text.encode() not in self.data:
            assert time.monotonic() < until, self.data
            with contextlib.suppress(OSError):  # it has ended
                self.data += os.read(self.end, 4096)

    def wait(self) -> int:
        """The exit code, or minus the signal."""
        with contextlib.suppress(OSError):
            while data := os.read(self.end, 4096):
                self.data += data
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with sshd(tmp_path_factory.mktemp("sshd"), "MaxStartups 100") as running:
        yield running


@pytest.fixture
def workspace(server: Server, tmp_path: Path) -> Workspace:
    return Workspace(server, tmp_path)


def await_end_of_sessions(server: Server, before: list[int]) -> None:
    wait(lambda: set(children(server.process.pid)) <= set(before), PATIENCE)


def test_exec_folds_equal_outputs_and_names_each_status(workspace: Workspace) -> None:
    done = workspace.run("exec", "--limit", "node[0-2]", "--", "printf", "%s\\n", "a  b", "*")
    assert done.returncode == 0
    assert done.stdout.decode() == "✓ node[0-2] (3)\n  a  b\n  *\n"
    done = workspace.run("exec", "--limit", "node0,dark", "--json", "echo out; echo err >&2; exit 3")
    assert done.returncode == 4
    node0, dark = json.loads(done.stdout)["hosts"]
    assert node0 == {"host": "node0", "status": 3, "out": "out\n", "err": "err\n"}
    assert dark["host"] == "dark"
    assert "connection refused" in dark["failed"]
    assert workspace.run("exec", "--limit", "node0,dark", "true").returncode == 3


def test_exec_prints_what_hosts_write_escaped_and_says_what_is_cut(workspace: Workspace) -> None:
    done = workspace.run("exec", "--limit", "node0", r"printf '\033]0;title\007\n'; printf '\033[2Jbad\n' >&2; exit 1")
    assert done.returncode == 4
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"\\x1b]0;title" in done.stdout
    done = workspace.run("exec", "--json", "--limit", "node0", "head -c 2000000 /dev/zero | tr '\\0' x")
    assert json.loads(done.stdout)["hosts"][0]["cut"] is True


def test_exec_ends_a_command_at_its_time_limit(workspace: Workspace) -> None:
    before = children(workspace.server.process.pid)
    done = workspace.run("exec", "--limit", "node0", "--timeout", "1", "--", "sleep", "4711")
    assert done.returncode == 4
    assert b"timed out after 1 s" in done.stderr
    await_end_of_sessions(workspace.server, before)


def test_exec_ends_its_commands_at_ctrl_c(workspace: Workspace) -> None:
    before, begun = children(workspace.server.process.pid), workspace.place / "begun"
    running = workspace.start("exec", "--limit", "node0", f"touch {begun}; sleep 4712; true")
    wait(begun.exists, PATIENCE)
    running.send_signal(signal.SIGINT)
    assert running.wait(PATIENCE) == 130
    running.communicate()
    await_end_of_sessions(workspace.server, before)


def test_shell_gives_a_login_in_the_users_terminal(workspace: Workspace) -> None:
    screen = Screen(workspace, "shell", "node1")
    screen.type("stty size; echo TERM=$TERM; printf 'gr%sn\\n' ü\n")
    screen.await_text("33 91")
    screen.await_text("TERM=xterm-256color")
    screen.await_text("grün")
    fcntl.ioctl(screen.end, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 50, 0, 0))
    os.kill(screen.pid, signal.SIGWINCH)
    screen.type("stty size\n")
    screen.await_text("20 50")
    screen.type("sh -c 'echo be''gun; exec sleep 4713'\n")
    screen.await_text("begun")  # before that the terminal's process group may still be the shell's, which only notes it
    screen.type("\x03")  # Ctrl-C ends the command, not the login
    screen.await_text("^C")
    screen.type("exit 7\n")
    assert screen.wait() == 7


def test_a_command_in_a_terminal_has_one_too(workspace: Workspace) -> None:
    screen = Screen(workspace, "shell", "node1", "--", "sh", "-c", "test -t 0 && stty size; exit 5")
    assert screen.wait() == 5
    assert b"33 91" in screen.data


def test_a_shell_ends_with_ipexctl_and_leaves_the_terminal_as_it_was(workspace: Workspace) -> None:
    before = children(workspace.server.process.pid)
    screen = Screen(workspace, "shell", "node1")
    attributes = termios.tcgetattr(screen.end)
    screen.type("echo 'ready'' now'\n")
    screen.await_text("ready now")
    assert termios.tcgetattr(screen.end) != attributes  # raw
    os.kill(screen.pid, signal.SIGTERM)
    assert screen.wait() == 143
    await_end_of_sessions(workspace.server, before)


def test_a_connection_that_is_lost_while_keys_are_typed_is_named(workspace: Workspace) -> None:
    """It was an internal error: what is typed is written by a thread of its own."""
    before = children(workspace.server.process.pid)
    screen = Screen(workspace, "shell", "node0", "--", "sh", "-c", "echo be''gun; cat")
    screen.await_text("begun")
    sessions = [each for each in children(workspace.server.process.pid) if each not in before]
    for session in sessions:  # that of ssh before its shell, whose end it would report
        os.kill(session, signal.SIGKILL)
    for _ in range(100):
        screen.type("keys")
        time.sleep(0.01)
    assert screen.wait() == 3
    assert b"the connection was lost" in screen.data


def test_a_long_session_costs_no_more_for_what_it_has_shown(workspace: Workspace) -> None:
    screen = Screen(
        workspace, "shell", "node1", "--", "sh", "-c", "head -c 2000000 /dev/zero | tr '\\0' y; echo; echo end"
    )
    assert screen.wait() == 0
    assert screen.data.count(b"y") == 2_000_000


def test_shell_passes_output_on_where_there_is_no_terminal(workspace: Workspace) -> None:
    done = workspace.run("shell", "node1", "--", "sh", "-c", r"printf 'a\033\377'; echo err >&2; kill -9 $$")
    assert (done.returncode, done.stdout, done.stderr) == (137, b"a\x1b\xff", b"err\n")
    done = workspace.run("shell", "node1")
    assert done.returncode == 2
    assert b"shell needs a terminal" in done.stderr


def test_hosts_of_a_shell_are_judged_as_those_of_every_command(workspace: Workspace) -> None:
    workspace.server.known_hosts.rename(hidden := workspace.server.place / "hidden")
    try:
        screen = Screen(workspace, "shell", "node1")
        assert screen.wait() == 3
        assert b"unknown host key" in screen.data
    finally:
        hidden.rename(workspace.server.known_hosts)
    assert workspace.run("shell", "node9", "--", "true").returncode == 2
    assert workspace.run("shell", "node[0-1]", "--", "true").returncode == 2
    assert workspace.run("shell", "dark", "--", "true").returncode == 3


def echo(client: socket.socket) -> None:
    """Answers what is sent in upper case."""
    client.sendall(client.recv(100).upper())


def ask(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        client.sendall(b"hello")
        return client.recv(100)


def test_forward_brings_a_port_here_until_ctrl_c(workspace: Workspace) -> None:
    before = children(workspace.server.process.pid)
    port = free_port()
    with listening(echo) as remote:
        running = workspace.start("forward", "node1", f"{port}:{remote}")
        assert running.stderr is not None
        assert f"127.0.0.1:{port} is port {remote} of node1" in running.stderr.readline().decode()
        assert [ask(port) for _ in range(3)] == [b"HELLO"] * 3
        listeners = subprocess.run(["ss", "-Htln", f"sport = :{port}"], capture_output=True, text=True, check=True)
        assert listeners.stdout.split()[3] == f"127.0.0.1:{port}"
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE) == 130
        running.communicate()
    await_end_of_sessions(workspace.server, before)


def test_a_connection_that_the_host_refuses_does_not_end_the_forwarding(workspace: Workspace) -> None:
    port, closed = free_port(), free_port()
    running = workspace.start("forward", "node1", f"{port}:{closed}")
    assert running.stderr is not None
    running.stderr.readline()
    with contextlib.suppress(ConnectionResetError):
        assert ask(port) == b""
    assert f"port {closed}: " in running.stderr.readline().decode()
    with contextlib.suppress(ConnectionResetError):
        assert ask(port) == b""
    running.send_signal(signal.SIGINT)
    assert running.wait(PATIENCE) == 130
    running.communicate()


@pytest.mark.parametrize("writes", ["host", "client"])
def test_a_connection_whose_other_end_does_not_read_is_ended_by_ctrl_c(workspace: Workspace, writes: str) -> None:
    """Ctrl-C had no effect."""
    ended, port = threading.Event(), free_port()

    def fill(client: socket.socket) -> None:
        """Writes what there is room for on the whole way."""
        client.settimeout(1.0)
        with contextlib.suppress(OSError):
            while True:
                client.sendall(bytes(1 << 16))

    def take(client: socket.socket) -> None:
        if writes == "host":
            fill(client)
        ended.wait(PATIENCE)

    with listening(take) as remote:
        running = workspace.start("forward", "node1", f"{port}:{remote}")
        assert running.stderr is not None
        running.stderr.readline()
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
            if writes == "client":
                fill(client)
            else:
                time.sleep(1.0)
            running.send_signal(signal.SIGINT)
            try:
                assert running.wait(PATIENCE) == 130
            finally:
                ended.set()
                running.kill()
                running.communicate()


def test_forward_refuses_a_port_that_is_not_free(workspace: Workspace) -> None:
    with listening(echo) as port:
        done = workspace.run("forward", "node1", str(port))
        assert done.returncode == 4
        assert f"port {port} of this machine cannot be used" in done.stderr.decode()
    assert workspace.run("forward", "node1", "0").returncode == 2
    assert workspace.run("forward", "node1", "80:").returncode == 2
