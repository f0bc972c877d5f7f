"""Connections that outlive a command: who makes them, who may use them, and how they end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.act.ssh import Links
from ipexctl.act.ssh.holder import end_connections, list_connections, make_options
from ipexctl.act.ssh.mux import MuxConnection, MuxError, pack_message, split_messages
from ipexctl.act.ssh.settings import SSHSettings
from ipexctl.model.commands import Command
from ipexctl.model.hosts import Host
from ipexctl.model.links import Link, LinkError
from tests.contract.holders import holder_directory
from tests.contract.sshd import Server, children, keygen, sshd
from tests.contract.test_link_contract import sh, wait_for

UNAME = Command(("uname",), brief=True)
Open = Callable[..., Link]


@pytest.fixture
def place() -> Iterator[Path]:
    with holder_directory() as directory:
        yield directory


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    with sshd(tmp_path / "sshd") as running:
        yield running


@contextmanager
def holding(server: Server, place: Path, **more: object) -> Iterator[Links]:
    """The links of one command."""
    known: dict[str, object] = {"known_hosts": server.known_hosts, "config": None, "persist": 600, "holders": place}
    links = Links(**{**known, **more})  # type: ignore[arg-type]
    yield links
    links.close()


def write_program(server: Server, place: Path, line: str = "") -> str:
    """A program that opens a link to the server, executes ``line``, and closes it."""
    host = server.host()
    return (
        "from pathlib import Path\nfrom ipexctl.act.ssh import Links\nfrom ipexctl.model.commands import Command\n"
        "from ipexctl.model.hosts import Host\n"
        f"links = Links(known_hosts=Path({str(server.known_hosts)!r}), config=None)\n"
        f"links.persist, links.holders = 600, Path({str(place)!r})\n"
        f"link = links.open(Host('node1', '127.0.0.1', user={host.user!r}, port={host.port!r}, key={host.key!r}))\n"
        f"{line}\nlinks.close()\n"
    )


def count_logins(server: Server) -> int:
    return server.log.count("Accepted publickey for")


def test_the_next_command_does_not_log_in(own_server: Server, place: Path) -> None:
    for _ in range(3):
        with holding(own_server, place) as links:
            assert links.open(own_server.host()).run(UNAME).ok
    assert count_logins(own_server) == 1
    assert len(list_connections(place)) == 1


def test_the_next_command_does_not_load_paramiko(own_server: Server, place: Path) -> None:
    with holding(own_server, place) as links:
        links.open(own_server.host())
    program = write_program(own_server, place, "assert link.run(Command(('uname',), brief=True)).ok")
    program += "import sys\nprint(*sorted({'paramiko', 'cryptography', 'fabric'} & sys.modules.keys()))\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
    assert count_logins(own_server) == 1


def test_a_holder_keeps_no_pipe_of_the_command_that_started_it(own_server: Server, place: Path) -> None:
    """The reader of the pipe sees its end although the holder lives."""
    program = write_program(own_server, place)
    read, write = os.pipe()
    with open(read, "rb") as pipe:
        process = subprocess.Popen([sys.executable, "-c", program], stdin=write, stdout=write, stderr=write)
        os.close(write)
        assert pipe.read() == b""
    assert process.wait() == 0
    ((_, pid),) = list_connections(place).values()
    assert Path(f"/proc/{pid}/cwd").resolve() == Path("/")
    assert os.getsid(pid) == pid


def test_commands_at_the_same_time_share_one_login(own_server: Server, place: Path) -> None:
    statuses: list[int] = []

    def run() -> None:
        with holding(own_server, place) as links:
            statuses.append(links.open(own_server.host()).run(UNAME).status)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [0] * 6
    assert count_logins(own_server) == 1


def test_two_names_of_one_host_share_one_login(own_server: Server, place: Path) -> None:
    with holding(own_server, place) as links:
        assert links.open(own_server.host("node1")).run(UNAME).ok
        assert links.open(own_server.host("node2")).run(UNAME).ok
    assert count_logins(own_server) == 1


def test_a_connection_is_found_by_another_name_of_its_host(own_server: Server, place: Path) -> None:
    with holding(own_server, place) as links:
        links.open(own_server.host("node1"))
    ((record, _),) = list_connections(place).values()
    assert record.is_for(own_server.host("node2"))
    assert not record.is_for(replace(own_server.host("node1"), port=own_server.port + 1))


def pour(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_a_host_that_could_not_be_reached_is_tried_again_at_once(own_server: Server, place: Path) -> None:
    """Else a run would be given up on that waits for its head to come back."""

    def serve() -> None:
        with listener.accept()[0] as near:
            near.sendall(b"hello\n" * 3000)  # more than is looked through: that it is no banner is known at once
        with listener.accept()[0] as near, socket.create_connection(("127.0.0.1", own_server.port)) as far:
            up = threading.Thread(target=pour, args=(near, far))
            up.start()
            pour(far, near)
            up.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        known = own_server.known_hosts.with_name("known-there")
        known.write_text(f"[127.0.0.1]:{port} {own_server.public()}\n")
        thread = threading.Thread(target=serve)
        thread.start()
        with holding(own_server, place, known_hosts=known) as links:
            with pytest.raises(LinkError) as caught:
                links.open(own_server.host(port=port))
            assert caught.value.failure.code == "not-ssh"
            assert links.open(own_server.host(port=port)).run(UNAME).ok
        end_connections(place, [*list_connections(place)])
        thread.join()


@pytest.mark.parametrize(
    "wish", ["+ssh-rsa", "^ssh-rsa", "-ssh-ed25519", "ssh-ed25519,ssh-rsa-cert-v01@openssh.com", "*"]
)
def test_no_wish_makes_a_holder_take_a_certificate_of_a_host(own_server: Server, tmp_path: Path, wish: str) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host *\n  HostKeyAlgorithms {wish}\n")
    config.chmod(0o600)
    settings = SSHSettings(config, known_hosts=own_server.known_hosts).find_settings(own_server.host())
    options = dict(make_options(settings, ["ssh-ed25519"], tmp_path / "socket", "-", 60, 10))
    line = ["ssh", "-G", "-F", "none", f"-oHostKeyAlgorithms={options['HostKeyAlgorithms']}", "host"]
    shown = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    (algorithms,) = (each for each in shown.splitlines() if each.startswith("hostkeyalgorithms "))
    assert "-cert-v0" not in algorithms
    assert ("ssh-rsa" in algorithms.replace(",", " ").split()) == (wish in ("+ssh-rsa", "^ssh-rsa"))


def test_a_holder_ends_by_itself(own_server: Server, place: Path) -> None:
    with holding(own_server, place, persist=1) as links:
        link = links.open(own_server.host())
        assert link.run(sh("sleep 1.5")).ok, "it does not end while a command has a link over it"
    wait_for(lambda: not list_connections(place))


def test_off_ends_the_holder_and_logs_in(own_server: Server, place: Path) -> None:
    with holding(own_server, place) as links:
        links.open(own_server.host())
    with holding(own_server, place, persist=0) as links:
        assert links.open(own_server.host()).run(UNAME).ok
    assert count_logins(own_server) == 2
    assert not list_connections(place)


def test_a_holder_that_is_killed_is_a_lost_link_and_another_one_is_made(own_server: Server, place: Path) -> None:
    with holding(own_server, place) as links:
        link = links.open(own_server.host())
        ((_, pid),) = list_connections(place).values()
        with pytest.raises(LinkError) as caught, link.stream(sh(f"kill -KILL {pid}; sleep 100")) as channel:
            list(channel)
        assert (caught.value.failure.code, caught.value.failure.what) == ("lost", "the connection was lost")
        with pytest.raises(LinkError) as caught:
            link.run(UNAME)
        assert caught.value.failure.code == "lost"
        assert links.open(own_server.host()).run(UNAME).ok
    assert count_logins(own_server) == 2


def test_a_server_that_dies_is_a_lost_link(own_server: Server, place: Path) -> None:
    with holding(own_server, place) as links:
        link = links.open(own_server.host())
        with link.stream(sh("echo begun; sleep 100")) as channel:
            pieces = iter(channel)
            assert next(pieces) == ("out", b"begun\n")
            for process in children(own_server.process.pid):
                os.kill(process, signal.SIGKILL)
            with pytest.raises(LinkError) as caught:
                list(pieces)
        assert caught.value.failure.code == "lost"


def test_a_connection_that_was_cut_while_nobody_used_it_is_made_anew(own_server: Server, place: Path) -> None:
    with holding(own_server, place) as links:
        links.open(own_server.host())
    for process in children(own_server.process.pid):
        os.kill(process, signal.SIGKILL)
    with holding(own_server, place) as links:
        assert links.open(own_server.host()).run(UNAME).ok
    assert count_logins(own_server) == 2


def test_a_host_that_froze_behind_its_connection_is_reported_within_the_connect_timeout(
    own_server: Server, place: Path
) -> None:
    with holding(own_server, place) as links:
        links.open(own_server.host())
    processes = [own_server.process.pid, *children(own_server.process.pid)]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        with holding(own_server, place, connect_timeout=1) as links, pytest.raises(LinkError) as caught:
            links.open(own_server.host())
        assert caught.value.failure.code == "banner"
        assert len(list_connections(place)) == 1, "another command may have a run on it"
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


# -- what is refused, and where the command logs in by itself ----------------------------------------------------------


def test_a_line_of_known_hosts_that_changes_leads_to_another_connection(own_server: Server, place: Path) -> None:
    """The living connection is not used to pass by the check of the key."""
    with holding(own_server, place) as links:
        links.open(own_server.host())
    name, line = f"[127.0.0.1]:{own_server.port}", own_server.known_hosts.read_text()
    other = " ".join(keygen(own_server.place / "other").with_suffix(".pub").read_text().split()[:2])
    for text, code in (
        (f"{name} {other}\n", "host-key-changed"),
        (f"{line}@revoked {name} {own_server.public()}\n", "host-key-revoked"),
        ("", "host-key-unknown"),
    ):
        own_server.known_hosts.write_text(text)
        with holding(own_server, place) as links, pytest.raises(LinkError) as caught:
            links.open(own_server.host())
        assert caught.value.failure.code == code
    assert count_logins(own_server) == 1


def test_a_host_whose_key_contradicts_the_user_s_known_hosts_is_not_held(
    own_server: Server, place: Path, tmp_path: Path
) -> None:
    """`ssh` reads the known_hosts of the hostfile alone."""
    config, own = tmp_path / "config", tmp_path / "own"
    config.write_text(f"UserKnownHostsFile {own}\nGlobalKnownHostsFile none\n")
    name, host = f"[127.0.0.1]:{own_server.port}", own_server.host(vars={"known_hosts": str(own_server.known_hosts)})
    other = " ".join(keygen(own_server.place / "other").with_suffix(".pub").read_text().split()[:2])
    for text in ("", f"{name} {own_server.public()}\n"):
        own.write_text(text)
        with holding(own_server, place, known_hosts=None, config=config) as links:
            assert links.open(host).run(UNAME).ok
    assert len(list_connections(place)) == 2, "the user's lines are part of a connection's name"
    own.write_text(f"{name} {other}\n")
    with holding(own_server, place, known_hosts=None, config=config) as links, pytest.raises(LinkError) as caught:
        links.open(host)
    assert caught.value.failure.code == "host-key-changed"
    assert count_logins(own_server) == 2


def test_the_key_of_a_new_host_is_recorded_by_a_login_of_our_own(own_server: Server, place: Path) -> None:
    own_server.known_hosts.write_text("")
    for notes in (1, 0, 0):
        with holding(own_server, place, accept_new=True) as links:
            link = links.open(own_server.host())
            assert link.run(UNAME).ok
            assert ["recorded" in note for note in link.notes()] == [True] * notes
    assert count_logins(own_server) == 2
    assert len(list_connections(place)) == 1


def test_a_login_that_is_refused_has_the_reason_of_a_login_of_our_own(own_server: Server, place: Path) -> None:
    key = keygen(own_server.place / "stranger")
    with holding(own_server, place) as links, pytest.raises(LinkError) as caught:
        links.open(own_server.host(key=str(key)))
    assert caught.value.failure.code == "auth"
    assert str(key) in caught.value.failure.what


def test_without_ssh_a_command_logs_in_by_itself_and_says_so_once(
    own_server: Server, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(place.parent))
    with holding(own_server, place) as links:
        opened = [links.open(own_server.host(name)) for name in ("node1", "node2")]
        assert [link.run(UNAME).status for link in opened] == [0, 0]
        assert [link.notes() for link in opened] == [
            ("no persistent connection: there is no ssh program",),
            (),
        ]


def test_a_key_that_only_our_own_prompt_can_open_logs_in(own_server: Server, place: Path) -> None:
    key = keygen(own_server.place / "locked", passphrase="let me in")
    (own_server.place / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    with holding(own_server, place, ask=lambda question: "let me in") as links:
        link = links.open(own_server.host(key=str(key)))
        assert link.run(UNAME).ok
        assert link.notes()[0].startswith("no persistent connection: ssh could not log in")


@pytest.mark.parametrize("mode", [0o777, 0o710])
def test_a_directory_that_others_can_use_is_not_used(own_server: Server, place: Path, mode: int) -> None:
    place.mkdir()
    place.chmod(mode)
    with holding(own_server, place) as links:
        link = links.open(own_server.host())
        assert link.run(UNAME).ok
        assert "is not a directory of mode 0700 of your own" in link.notes()[0]
    assert not [*place.iterdir()]


def test_a_path_that_is_too_long_for_a_socket_is_not_used(own_server: Server, tmp_path: Path) -> None:
    place = tmp_path / ("x" * 80)
    with holding(own_server, place) as links:
        link = links.open(own_server.host())
        assert link.run(UNAME).ok
        assert link.notes() == (f"no persistent connection: the path of {place} is too long for a socket",)


def test_a_host_with_room_for_one_session_is_shared_by_logging_in(tmp_path: Path, place: Path) -> None:
    with sshd(tmp_path / "sshd", "MaxSessions 1") as server:
        with holding(server, place) as links, links.open(server.host()).stream(Command(("cat",))) as channel:
            with holding(server, place) as others:
                link = others.open(server.host())
                assert link.run(UNAME).ok
                assert "opens no further session" in link.notes()[0]
            channel.write(b"still open\n")
            assert channel.read(60.0) == [("out", b"still open\n")]
            assert links.open(server.host()).run(UNAME).ok, "over a second connection"
        assert count_logins(server) == 3


def test_a_host_with_room_for_one_session_gets_one_at_a_time_also_where_no_connection_persists(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sshd(tmp_path / "sshd", "MaxSessions 1") as server, holding(server, place) as links:
        monkeypatch.setenv("PATH", str(tmp_path))  # no ssh there
        link = links.open(server.host())
        for _ in range(2):
            assert link.run(UNAME).ok
            assert link.run(Command(("uname",))).ok


def test_closing_breaks_off_a_login_of_our_own(place: Path, tmp_path: Path) -> None:
    """To a server that says nothing, whose key is not known."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        links = Links(known_hosts=tmp_path / "none", config=None, connect_timeout=1000, persist=600, holders=place)
        errors: list[LinkError] = []

        def connect() -> None:
            with pytest.raises(LinkError) as caught:
                links.open(Host("silent", "127.0.0.1", port=listener.getsockname()[1]))
            errors.append(caught.value)

        thread = threading.Thread(target=connect)
        thread.start()
        client, _ = listener.accept()
        with client:
            links.close()
            thread.join(60)
        assert [error.failure.code for error in errors] == ["lost"]


# -- on the way --------------------------------------------------------------------------------------------------------


def test_hosts_behind_a_jump_host_share_one_login_on_it(own_server: Server, place: Path, tmp_path: Path) -> None:
    with sshd(tmp_path / "jump") as jump:
        config, known = tmp_path / "config", tmp_path / "known_hosts"
        known.write_text(own_server.known_hosts.read_text() + jump.known_hosts.read_text())
        options = f"HostName 127.0.0.1\nPort {jump.port}\nIdentityFile {jump.key}\nUser {jump.host().user}\n"
        config.write_text(f"Host bastion\n{options}Host 127.0.0.1\nProxyJump bastion\n")
        hosts = [own_server.host(name) for name in ("node1", "node2", "node3")]
        for _ in range(2):
            with holding(own_server, place, config=config, known_hosts=known) as links:
                assert [link.run(UNAME).status for link in map(links.open, hosts)] == [0, 0, 0]
        assert (count_logins(jump), count_logins(own_server)) == (1, 1)
        records = {name: record for name, (record, _) in list_connections(place).items()}
        assert sorted(record.name for record in records.values()) == ["bastion", "node1"]
        end_connections(place, [name for name, record in records.items() if record.name == "node1"])
        assert not list_connections(place), "nothing goes through the jump host any more"


def test_a_proxy_command_carries_the_connection(own_server: Server, place: Path, tmp_path: Path) -> None:
    config, netcat = tmp_path / "config", tmp_path / "pour 100%.py"
    netcat.write_text(
        "import os, socket, sys, threading\n"
        "sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def pour():\n"
        "    while data := os.read(0, 65536):\n        sock.sendall(data)\n"
        "threading.Thread(target=pour, daemon=True).start()\n"
        "while data := sock.recv(65536):\n    os.write(1, data)\n"
    )
    quoted = str(netcat).replace("%", "%%")
    config.write_text(f"Host *\nProxyCommand {sys.executable} '{quoted}' %h %p\n")
    for _ in range(2):
        with holding(own_server, place, config=config) as links:
            link = links.open(own_server.host())
            assert link.run(UNAME).ok
            assert link.notes() == ()
    assert count_logins(own_server) == 1


def test_a_certificate_an_alias_and_names_with_spaces_mean_the_same_to_the_holder(tmp_path: Path, place: Path) -> None:
    authority = keygen(tmp_path / "authority")
    line = f"TrustedUserCAKeys {authority}.pub"
    with sshd(tmp_path / "sshd", line) as server:
        key = keygen(tmp_path / "a key 50%")
        (server.place / "authorized_keys").write_text("")
        words = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", str(server.host().user), f"{key}.pub"]
        subprocess.run(words, check=True)
        known, config = tmp_path / "known hosts", tmp_path / "config"
        known.write_text(f"the-cluster {server.public()}\n")
        config.write_text("Host *\nHostKeyAlias the-cluster\n")
        with holding(server, place, known_hosts=known, config=config) as links:
            link = links.open(server.host(key=str(key)))
            assert link.run(UNAME).ok
            assert link.notes() == ()
        assert len(list_connections(place)) == 1


def test_a_holder_forwards_nothing_asks_nothing_and_checks_the_key(own_server: Server, tmp_path: Path) -> None:
    """By what `ssh -G` makes of its options."""
    settings = SSHSettings(None, known_hosts=own_server.known_hosts).find_settings(own_server.host())
    options = make_options(settings, ["ssh-ed25519"], tmp_path / "socket", "-", 600, 10.0)
    line = ["ssh", "-F", "none", "-G", *(f"-o{key}={value}" for key, value in options), "127.0.0.1"]
    printed = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    effective = dict(line.partition(" ")[::2] for line in printed.splitlines())
    expected = {
        "batchmode": "yes", "stricthostkeychecking": "true", "forwardagent": "no", "forwardx11": "no",
        "clearallforwardings": "yes", "permitlocalcommand": "no", "tunnel": "false", "updatehostkeys": "false",
        "controlpersist": "600", "serveraliveinterval": "7", "serveralivecountmax": "3", "identitiesonly": "yes",
        "userknownhostsfile": f"{own_server.known_hosts} /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
        "hostkeyalgorithms": "ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,rsa-sha2-512,"
        "rsa-sha2-256",
    }  # fmt: skip
    assert {key: effective.get(key) for key in expected} == expected
    assert not {"proxyjump", "localforward", "remoteforward", "dynamicforward"} & effective.keys()


# -- the protocol ------------------------------------------------------------------------------------------------------


def serve_once(path: Path, answer: bytes) -> threading.Thread:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with listener:
            client, _ = listener.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-other\r\n", pack_message(1, 5), pack_message(2, 4), b"\xff\xff\xff\xff", b"\0\0\0\4\0\0\0\1"],
    ids=["nothing", "text", "another version", "no greeting", "too long", "too short"],
)
def test_a_socket_that_greets_otherwise_is_no_holder(place: Path, answer: bytes) -> None:
    place.mkdir()
    server = serve_once(place / "socket", answer)
    with pytest.raises(MuxError):
        MuxConnection(place / "socket")
    server.join()


def test_a_file_or_a_link_in_place_of_a_socket_is_no_holder(place: Path, own_server: Server) -> None:
    with holding(own_server, place) as links:
        links.open(own_server.host())
    (name,) = list_connections(place)
    (place / "link").symlink_to(place / name)
    (place / "file").touch()
    for other in ("link", "file"):
        with pytest.raises(MuxError, match="no socket of ours"):
            MuxConnection(place / other)


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_the_socket_of_another_user_is_no_holder(place: Path) -> None:
    place.mkdir()
    place.parent.chmod(0o711)
    place.chmod(0o777)
    program = (
        "import os, socket, sys\nos.setuid(65534)\nlistener = socket.socket(socket.AF_UNIX)\n"
        "listener.bind(sys.argv[1])\nlistener.listen()\nprint(flush=True)\nsys.stdin.read()\n"
    )
    path = place / "socket"
    words = [shutil.which("python3") or sys.executable, "-c", program, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        with pytest.raises(MuxError, match="no socket of ours"):
            MuxConnection(path)
        os.chown(path, 0, 0)
        with pytest.raises(MuxError, match="served by another user"):
            MuxConnection(path)


def test_messages_are_split_wherever_they_are_cut() -> None:
    whole = pack_message(0x80000004, 3, 42) + pack_message(0x80000003, 7, b"Session open refused by peer")
    for cut in range(len(whole) + 1):
        data = bytearray(whole[:cut])
        found = split_messages(data)
        data += whole[cut:]
        found += split_messages(data)
        assert [(message.kind, message.number) for message in found] == [(0x80000004, 3), (0x80000003, 7)]
        assert (found[0].value, found[1].text) == (42, "Session open refused by peer")
        assert not data
