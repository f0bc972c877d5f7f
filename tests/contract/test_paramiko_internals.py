"""What ipexctl relies on inside Paramiko, one test for each member, against a real sshd or agent."""

import getpass
import os
import re
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko.common import (
    AUTH_SUCCESSFUL,
    MSG_CHANNEL_REQUEST,
    MSG_EXT_INFO,
    MSG_USERAUTH_FAILURE,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_SUCCEEDED,
)

from ipexctl.act.ssh import Links, terminal
from ipexctl.act.ssh.connect import Dialler
from ipexctl.act.ssh.link import SSHLink
from ipexctl.act.ssh.paramiko_internals import OutputEvent, QuietTransport, SharedAgent
from ipexctl.act.ssh.settings import SSHSettings
from ipexctl.act.ssh.transport import Transport
from ipexctl.model.hosts import Command, Host, LinkError
from tests.contract.sshd import Server, keygen, sshd
from tests.waiting import wait

PACKAGE = Path(__file__).parents[2] / "ipexctl"
PRIVATE = (
    r"\b_channel_handler_table\b|\b_handler_table\b|\b_check_banner\b|\b_parse_debug\b|\b_handle_request\b"
    r"|\b_parse_disconnect\b|\bstart_handshake\b|\bcompletion_event\b|\bclear_to_send\b|\bin_stderr_buffer\b"
)


def test_no_other_file_names_a_private_member() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if re.search(PRIVATE, path.read_text("utf-8"))]
    assert [path.name for path in files] == ["paramiko_internals.py"]
    ignored = [path for path in (PACKAGE / "act/ssh").glob("*.py") if "type: ignore[attr-defined]" in path.read_text()]
    assert [path.name for path in ignored] == ["paramiko_internals.py"]


class Recorder(QuietTransport):
    """A transport that notes which hooks were called."""

    def __init__(self, sock: Any) -> None:
        super().__init__(sock, 1 << 20)
        self.calls: list[str] = []
        self.answered = threading.Event()

    def prepare_banner_read(self, sock: socket.socket) -> None:
        self.calls.append("banner")

    def handle_keepalive_reply(self) -> None:
        self.answered.set()


@pytest.fixture
def transport(server: Server) -> Iterator[Recorder]:
    recorder = Recorder(socket.create_connection(("127.0.0.1", server.port)))
    recorder.start_client(timeout=60)
    recorder.auth_publickey(getpass.getuser(), paramiko.Ed25519Key.from_private_key_file(str(server.key)))
    yield recorder
    recorder.close()


def test_channel_handler_table_keeps_the_signal_that_ended_a_command(transport: Recorder) -> None:
    channel = transport.open_session(timeout=60)
    channel.exec_command("kill -KILL $$")
    assert channel.recv_exit_status() == 128 + 9


def test_channel_handler_table_passes_other_requests_on(transport: Recorder) -> None:
    channel = transport.open_session(timeout=60)
    channel.exec_command("exit 3")
    assert channel.recv_exit_status() == 3


def test_handler_table_and_send_message_bring_the_answer_to_a_keepalive(transport: Recorder) -> None:
    transport.send_keepalive()
    assert transport.answered.wait(60)


def test_clear_to_send_is_unset_while_keys_are_exchanged(transport: Recorder) -> None:
    assert transport.clear_to_send.is_set()
    transport.clear_to_send.clear()
    transport.send_keepalive()
    assert not transport.answered.wait(0.3)
    transport.clear_to_send.set()


def test_check_banner_calls_the_hook_before_the_banner_is_read(transport: Recorder) -> None:
    assert transport.calls == ["banner"]


def test_log_and_parse_debug_are_paramikos_own_names() -> None:
    for name in ("_log", "_parse_debug", "_check_banner"):
        assert name in vars(paramiko.Transport)
        assert name in vars(QuietTransport)


def test_start_handshake_starts_no_timer_thread(transport: Recorder) -> None:
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_packetizer_calls_back_when_idle(transport: Recorder) -> None:
    called = threading.Event()
    transport.sock.settimeout(0.05)
    transport.call_when_idle(0.1, called.set)
    assert called.wait(60)


def test_completion_event_ends_the_wait_for_a_transport_that_is_closed() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        recorder = Recorder(ours)
        connected = threading.Event()
        recorder.start_client(event=connected)
        recorder.close()
        recorder.wake_waiters()
        assert connected.wait(60)


def test_a_socket_that_is_closed_ends_the_thread(server: Server) -> None:
    recorder = Recorder(socket.create_connection(("127.0.0.1", server.port)))
    recorder.start_client(timeout=60)
    recorder.sock.shutdown(socket.SHUT_RDWR)
    recorder.close()
    recorder.sock.close()
    recorder.join(60)
    assert not recorder.is_alive()


def test_one_event_tells_of_both_outputs(transport: Recorder) -> None:
    channel = transport.open_session(timeout=60)
    event = OutputEvent(channel)
    channel.exec_command("echo out; read line; echo err >&2; read line")
    received = b""
    for stream in (channel.recv_ready, channel.recv_stderr_ready):
        until = time.monotonic() + 60
        while not stream() and time.monotonic() < until:  # startup files of the shell may talk on both
            event.wait(0.1)
        received += channel.recv(1 << 16) if stream == channel.recv_ready else channel.recv_stderr(1 << 16)
        event.rearm()
        channel.send(b"go on\n")
    assert received


def test_a_socket_without_an_agent_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SharedAgent(str(tmp_path / "none"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "mute"))
    with pytest.raises(ConnectionRefusedError):
        SharedAgent(str(tmp_path / "mute"))


def _drip(conn: socket.socket) -> None:
    conn.sendall(struct.pack(">I", 1000))
    for _ in range(200):
        conn.sendall(b"\x0c")
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        (lambda conn: conn.recv(1), TimeoutError, "no answer within"),
        (_drip, TimeoutError, "no answer within"),
        (lambda conn: conn.sendall(b"\xff\xff\xff\xf0" + bytes(1 << 20)), paramiko.SSHException, "4294967280 bytes"),
        (lambda conn: conn.sendall(struct.pack(">IBI", 5, 12, 0xFFFFFFFF)), paramiko.SSHException, "2048 keys"),
    ],
    ids=["silent", "a byte now and then", "4 GiB", "4 G keys"],
)
def test_an_agent_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[socket.socket], object], error: Any, why: str
) -> None:
    """It was waited for without an end, by Ctrl-C too, and 2^32 keys took all memory."""
    monkeypatch.setattr("ipexctl.act.ssh.paramiko_internals._AGENT_TIMEOUT", 1.0)
    with _serve_agent(tmp_path / "agent", answer), pytest.raises(error, match=why):
        SharedAgent(str(tmp_path / "agent"))


@contextmanager
def _serve_agent(path: Path, answer: Callable[[socket.socket], object]) -> Iterator[None]:
    def serve() -> None:
        conn, _ = listener.accept()
        with conn, suppress(OSError):
            conn.recv(1000)
            answer(conn)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=serve, daemon=True).start()
        yield


def test_keys_of_an_agent_that_cannot_be_read_are_left_out_and_comments_may_be_of_any_bytes(tmp_path: Path) -> None:
    """A comment in Latin-1 ended each command with an internal error."""

    def pack(*texts: bytes) -> bytes:
        return b"".join(struct.pack(">I", len(text)) + text for text in texts)

    good = pack(b"ssh-ed25519", bytes(range(32)))
    bad = [
        b"",
        b"\xff" * 4,
        pack(b"\xff"),
        pack(b"ssh-rsa", b"\3", b"\4"),
        pack(b"ecdsa-sha2-nistp256", b"nistp256", b"\4"),
    ]
    keys = b"".join(pack(blob, b"b\xfcro") for blob in [*bad, good])
    answer = pack(struct.pack(">BI", 12, len(bad) + 1) + keys)
    with _serve_agent(tmp_path / "agent", lambda conn: conn.sendall(answer)):
        held = SharedAgent(str(tmp_path / "agent")).get_keys()
    assert [(key.asbytes(), key.comment) for key in held if key.get_name() == "ssh-ed25519"] == [(good, "b\ufffdro")]


def test_an_agent_that_takes_nobody_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipexctl.act.ssh.paramiko_internals._AGENT_TIMEOUT", 1.0)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(tmp_path / "agent"))
        listener.listen(0)
        first.connect(str(tmp_path / "agent"))
        with pytest.raises(TimeoutError, match="no answer within"):
            SharedAgent(str(tmp_path / "agent"))


def test_what_a_server_tells_the_user_of_a_login_is_kept(tmp_path: Path) -> None:
    """Its banner, and why it disconnects."""
    (tmp_path / "issue").write_text("Property of nobody.\n")
    with sshd(tmp_path / "sshd", f"Banner {tmp_path}/issue", "MaxAuthTries 1") as server:
        recorder = Recorder(socket.create_connection(("127.0.0.1", server.port)))
        recorder.start_client(timeout=60)
        with pytest.raises(paramiko.SSHException):
            recorder.auth_publickey(getpass.getuser(), paramiko.RSAKey.generate(2048))
        recorder.close()
        assert recorder.login_banner == "Property of nobody.\n"
        assert recorder.farewell == "Too many authentication failures"


@pytest.mark.parametrize("size", [0x7FFFFFFC, 0x1FFFC], ids=["gigabytes", "128 KiB"])
def test_a_packet_that_is_too_long_is_not_waited_for(size: int) -> None:
    """Its length is not authenticated: who is on the way can change it. And the number of 512 KiB took 23 s."""
    ours, theirs = socket.socketpair()
    recorder, sent = Recorder(ours), 0
    theirs.sendall(b"SSH-2.0-x\r\n" + size.to_bytes(4, "big"))
    with theirs, suppress(OSError):
        theirs.settimeout(60)
        recorder.start_client(event=threading.Event())
        while sent < 64 << 20:
            sent += theirs.send(bytes(1 << 16))
    recorder.join(60)
    recorder.close()
    assert sent < 1 << 20
    assert "a packet of" in str(recorder.get_exception())


class OpenServer(paramiko.ServerInterface):
    def check_auth_none(self, username: str) -> int:
        return AUTH_SUCCESSFUL

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return True


def test_a_host_that_sends_more_than_its_window_is_disconnected() -> None:
    """Paramiko kept what nobody read: gigabytes, while a session waited for other hosts."""
    ours, theirs = socket.socketpair()
    server = paramiko.Transport(theirs)
    server.add_server_key(paramiko.ECDSAKey.generate())
    server.start_server(event=threading.Event(), server=OpenServer())
    recorder = Recorder(ours)
    recorder.start_client(timeout=60)
    recorder.auth_none("x")
    channel = recorder.open_session(timeout=60)
    flooding, sent = server.accept(60), 0
    assert flooding
    flooding.out_window_size = 1 << 40
    with suppress(OSError, EOFError):
        while sent < 64 << 20 and recorder.is_active():
            sent += flooding.send(bytes(1 << 15))
    server.close()
    recorder.close()
    assert len(channel.in_buffer) < 3 << 20
    assert "window" in str(recorder.get_exception())


class HostThatCosts(paramiko.Transport):
    """It tells of extensions without an end, chooses a group that is none, or exchanges keys again and again."""

    def __init__(self, sock: socket.socket, how: str) -> None:
        super().__init__(sock)
        self.how = how
        self.add_server_key(paramiko.ECDSAKey.generate())
        if how != "extensions":
            kex = "diffie-hellman-group14-sha256" if how == "exchanges" else "diffie-hellman-group-exchange-sha256"
            self.get_security_options().kex = [kex]
            self._modulus_pack: Any = self  # asked for a group
        self.begun = threading.Event()  # the first exchange is over on this side, too
        self.start_server(event=self.begun, server=OpenServer())

    def get_modulus(self, *_: int) -> tuple[int, int]:
        return 2, -(1 << 2047) if self.how == "negative" else (1 << 8191) + 1

    def _activate_outbound(self) -> None:
        super()._activate_outbound()  # type: ignore[misc]
        if self.how == "extensions":
            message = paramiko.Message()
            message.add_byte(bytes([MSG_EXT_INFO]))
            message.add_int(0xFFFFFFFF)
            self._send_message(message)  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["extensions", "negative", "large", "exchanges"])
def test_a_host_that_would_cost_minutes_by_a_packet_is_disconnected(how: str) -> None:
    """One packet of 9 bytes took 100 minutes of the processor, a negative prime all of it until the command's end."""
    ours, theirs = socket.socketpair()
    host, recorder = HostThatCosts(theirs, how), Recorder(ours)
    ready = threading.Event()
    recorder.start_client(event=ready)
    ready.wait(20)
    if how == "exchanges":
        host.begun.wait(20)
    with suppress(paramiko.SSHException, EOFError):
        while how == "exchanges" and recorder.is_active():
            host.renegotiate_keys()
    recorder.join(20)
    going_on, error = recorder.is_alive(), str(recorder.get_exception())
    host.close()
    recorder.close()
    assert not going_on
    assert re.search("more extensions|a group for the key exchange|more key exchanges", error)


class HostThatWaits(paramiko.Transport):
    """It opens sessions and says that it is there, and answers no further request of a session, or takes no input."""

    def __init__(self, sock: socket.socket, window: int) -> None:
        super().__init__(sock, default_window_size=window)
        self.add_server_key(paramiko.ECDSAKey.generate())
        if window > 1:
            self._channel_handler_table = {**self._channel_handler_table, MSG_CHANNEL_REQUEST: lambda *_: None}  # type: ignore[has-type]
        self.start_server(event=threading.Event(), server=OpenServer())


@pytest.mark.parametrize("window", [1, 1 << 20])
def test_a_host_that_takes_no_input_or_starts_no_command_holds_nobody(tmp_path: Path, window: int) -> None:
    """Both held the command for ever, whatever its limit."""
    listener, ways = socket.create_server(("127.0.0.1", 0)), list[HostThatWaits]()
    accepting = threading.Thread(target=lambda: ways.append(HostThatWaits(listener.accept()[0], window)))
    accepting.start()
    links = Links(known_hosts=tmp_path / "known", accept_new=True, config=None)
    key, outcome = keygen(tmp_path / "id"), list[str]()
    link = links.open(Host("n0", "127.0.0.1", user="x", port=listener.getsockname()[1], key=str(key)))

    def run() -> None:
        with pytest.raises(LinkError) as caught:
            link.run(Command(("cat",), stdin=b"x" * 1000, timeout=1.0))
        outcome.append(caught.value.failure.what)

    running = threading.Thread(target=run, daemon=True)
    running.start()
    running.join(30)
    ended = [*outcome]
    accepting.join()
    listener.close()
    ways[0].close()
    links.close()
    assert ended == [
        "timed out after 1 s: cat; its login shell did not start the command"
        if window == 1
        else "the host started no command"
    ]


class HostWithoutSense(paramiko.Transport):
    """It sends packets that cannot be parsed: in place of a refused login, or of a command's start."""

    def __init__(self, sock: socket.socket, kind: int) -> None:
        super().__init__(sock)
        self.add_server_key(paramiko.ECDSAKey.generate())
        self._channel_handler_table = {**self._channel_handler_table, MSG_CHANNEL_REQUEST: self.send_packet}  # type: ignore[has-type]
        self.kind, interface = kind, OpenServer()
        if kind == MSG_USERAUTH_FAILURE:
            interface.check_auth_publickey = self.send_packet  # type: ignore[method-assign,assignment]
        self.start_server(event=threading.Event(), server=interface)

    def send_packet(self, *_: Any) -> int:
        message = paramiko.Message(bytes([self.kind]) + bytes(4 * (self.kind == MSG_CHANNEL_REQUEST)))
        message.packet.seek(0, os.SEEK_END)
        message.add_string(b"\xff" * 20)
        self._send_message(message)  # type: ignore[attr-defined]
        return AUTH_SUCCESSFUL


@pytest.mark.parametrize("kind", [MSG_USERAUTH_FAILURE, MSG_CHANNEL_REQUEST, 200])
def test_a_host_whose_packets_make_no_sense_is_lost_alone(tmp_path: Path, kind: int) -> None:
    """Paramiko raised a UnicodeDecodeError or a KeyError: the command of all hosts ended with 70."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(lambda: HostWithoutSense(listener.accept()[0], kind))
        links = Links(known_hosts=tmp_path / "known", accept_new=True, config=None)
        host = Host("n0", "127.0.0.1", user="x", port=listener.getsockname()[1], key=str(keygen(tmp_path / "id")))
        with pytest.raises(LinkError, match=r"login as x refused|the connection was lost"):
            links.open(host).run(Command(("true",), timeout=30.0))
        links.close()
        accepted.result().close()


def test_several_threads_share_one_agent(tmp_path: Path) -> None:
    place = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL)
    try:
        wait(place.exists)
        key = keygen(tmp_path / "id")
        environ = {**os.environ, "SSH_AUTH_SOCK": str(place)}
        subprocess.run(["ssh-add", "-q", str(key)], check=True, env=environ, stdin=subprocess.DEVNULL)
        agent = SharedAgent(str(place))
        (held,) = agent.get_keys()
        with ThreadPoolExecutor(8) as pool:
            signatures = list(pool.map(lambda number: held.sign_ssh_data(b"%d" % number), range(64)))
        agent.close()
        public = paramiko.Ed25519Key(data=held.asbytes())
        assert all(public.verify_ssh_sig(b"%d" % n, paramiko.Message(bytes(sig))) for n, sig in enumerate(signatures))
    finally:
        process.terminate()
        process.wait()


class HostWithoutShell(OpenServer):
    """It refuses or leaves unanswered one step of a shell's start."""

    def __init__(self, step: str, answer: str) -> None:
        self.step, self.answer, self.over = step, answer, threading.Event()

    def accepts(self, step: str) -> bool:
        if step == self.step and self.answer == "none":
            self.over.wait(60)
        return step != self.step

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED if self.accepts("session") else OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_pty_request(self, *_: Any) -> bool:
        return self.accepts("pty")

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        return self.accepts("shell")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of the host's late answer
@pytest.mark.parametrize("answer", ["refusal", "none"])
@pytest.mark.parametrize("step", ["session", "pty", "shell"])
def test_a_host_that_starts_no_shell_neither_ends_nor_holds_the_terminal(
    step: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal was an internal error; without an answer the terminal gave no Ctrl-C, and the wait had no end."""
    monkeypatch.setattr(terminal, "_STARTING", 0.3)
    monkeypatch.setattr(terminal, "_raw_mode", lambda _: pytest.fail("the terminal is raw before a shell has begun"))
    ours, theirs = socket.socketpair()
    host, transport, server = paramiko.Transport(theirs), Transport(ours), HostWithoutShell(step, answer)
    host.add_server_key(paramiko.ECDSAKey.generate())
    host.start_server(event=threading.Event(), server=server)
    transport.deadline = time.monotonic() + 60
    transport.start_client(timeout=60)
    transport.auth_publickey("x", paramiko.ECDSAKey.generate())
    link = SSHLink(Host("n0", "127.0.0.1"), Dialler(1.0, False, SSHSettings(None), None))
    link._transport = transport
    begun = time.monotonic()
    with pytest.raises(LinkError) as caught:
        terminal.open_shell(link, None)
    assert time.monotonic() - begun < 20
    server.over.set()
    transport.close()
    host.close()
    assert re.match("the host (opens no further session|started no command)", caught.value.failure.what)
