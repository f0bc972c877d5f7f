"""Connecting: what may go wrong between us and a host, each brought about on loopback."""

import contextlib
import getpass
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.ssh import Links
from ipexctl.act.ssh.connect import Dialler
from ipexctl.act.ssh.link import SSHLink
from ipexctl.act.ssh.settings import SSHSettings
from ipexctl.act.ssh.tcp import LOST_AFTER
from ipexctl.act.ssh.transport import Transport
from ipexctl.model.errors import Failure, Kind, Origin, UsageError
from ipexctl.model.hosts import Command, Host, LinkError
from tests.contract.sshd import Server, children, free_port, keygen, listening, pour, sshd
from tests.tables import read_table
from tests.waiting import wait

UNAME = Command(("uname",))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with sshd(tmp_path_factory.mktemp("sshd"), host_keys=("ed25519", "rsa", "ecdsa")) as running:
        yield running


@pytest.fixture
def links(server: Server) -> Iterator[Links]:
    made = Links(known_hosts=server.known_hosts, config=None, connect_timeout=30)
    yield made
    made.close()


def failure(links: Links, host: Host) -> Failure:
    with pytest.raises(LinkError) as caught:
        links.open(host)
    result = caught.value.failure
    assert result.kind is Kind.UNREACHABLE
    assert "\n" not in result.what
    return result


# -- reaching it -------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B1")
def test_a_refused_connection_is_reported_at_once_with_its_place(links: Links) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = failure(links, Host("node2", "127.0.0.1", port=port))
    assert (result.code, result.what) == ("refused", f"connection refused (127.0.0.1:{port})")


@pytest.mark.fault("B2")
def test_a_host_that_never_answers_ends_at_the_timeout(server: Server) -> None:
    # A listener whose queue is full drops what comes: a black hole on loopback.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        time.sleep(0.1)
        start = time.monotonic()
        result = failure(
            Links(config=None, connect_timeout=1), Host("dark", "127.0.0.1", port=listener.getsockname()[1])
        )
        assert result.code == "timeout"
        assert result.what.startswith("no answer within 1 s")
        assert time.monotonic() - start > 0.9
        for filler in fillers:
            filler.close()


def test_a_name_that_does_not_resolve_is_reported(links: Links) -> None:
    assert failure(links, Host("x", "no-such-host.invalid")).code == "dns"


def silent(client: socket.socket) -> None:
    client.recv(100)
    client.settimeout(5)
    while client.recv(4096):
        pass


def byte_by_byte(client: socket.socket) -> None:
    for byte in b"SSH-2.0-slow\r\n":
        client.send(bytes([byte]))
        time.sleep(0.3)


def junk(client: socket.socket) -> None:
    client.settimeout(5)
    client.sendall(b"x" * (1 << 20))


def http(client: socket.socket) -> None:
    client.recv(100)
    client.sendall(b"HTTP/1.1 400 Bad \x1b[31mRequest\r\nServer: x\r\n\r\n")


def after_the_banner(client: socket.socket) -> None:
    client.sendall(b"SSH-2.0-silent\r\n")
    silent(client)


@pytest.mark.fault("B3")
@pytest.mark.parametrize(
    ("serve", "code", "words"),
    [
        (silent, "banner", "no SSH banner"),
        (byte_by_byte, "not-ssh", "not an SSH server"),
        (junk, "not-ssh", "not an SSH server: it says 'xxx"),
        (http, "not-ssh", r"not an SSH server: it says 'HTTP/1.1 400 Bad \x1b[31mRequest"),
        (after_the_banner, "timeout", "no key exchange within 1 s"),
    ],
)
def test_a_port_without_ssh_is_reported_in_time(serve: Callable[[socket.socket], None], code: str, words: str) -> None:
    with listening(serve) as port:
        result = failure(Links(config=None, connect_timeout=1), Host("odd", "127.0.0.1", port=port))
        assert result.code == code
        assert words in result.what


# -- its key -----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B4")
def test_an_unknown_host_key_is_refused_with_the_command_that_adds_it(server: Server, tmp_path: Path) -> None:
    known = tmp_path / "known hosts"
    before = server.log.count("Accepted") + server.log.count("Failed")
    result = failure(Links(known_hosts=known, config=None), server.host())
    assert result.code == "host-key-unknown"
    fingerprint = subprocess.run(
        ["ssh-keygen", "-lf", str(server.place / "host_ed25519.pub")], capture_output=True, text=True
    ).stdout.split()[1]
    assert fingerprint in result.what
    assert result.hint is not None
    assert not known.exists()
    assert server.log.count("Accepted") + server.log.count("Failed") == before
    subprocess.run(["sh", "-c", result.hint.partition(": ")[2]], check=True)
    assert Links(known_hosts=known, config=None).open(server.host()).run(UNAME).ok


@pytest.mark.fault("B4")
def test_accepting_new_keys_records_each_once_and_says_so_once(server: Server, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    links = Links(known_hosts=known, config=None, accept_new=True)
    link = links.open(server.host())
    notes = link.notes()
    assert len(notes) == 1
    assert "new host key ssh-ed25519 SHA256:" in notes[0]
    assert link.notes() == ()
    links.close()
    again = Links(known_hosts=known, config=None, accept_new=True).open(server.host())
    assert again.notes() == ()
    assert known.read_text() == f"[127.0.0.1]:{server.port} {server.public()}\n"


@pytest.mark.fault("B5")
@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_host_key_is_refused_always(server: Server, tmp_path: Path, accept_new: bool) -> None:
    other = keygen(tmp_path / "other").with_suffix(".pub").read_text().split()
    known = tmp_path / "known_hosts"
    known.write_text(f"# comment\n[127.0.0.1]:{server.port} {other[0]} {other[1]}\n")
    before = known.read_bytes()
    logins = server.log.count("Accepted") + server.log.count("Failed")
    result = failure(Links(known_hosts=known, config=None, accept_new=accept_new), server.host())
    assert result.code == "host-key-changed"
    assert "CHANGED" in result.what
    assert result.what.count("SHA256:") == 2
    assert f"{known}:2" in result.what
    assert known.read_bytes() == before
    assert server.log.count("Accepted") + server.log.count("Failed") == logins


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_the_host_is_asked_for_the_kind_of_key_that_is_known(server: Server, tmp_path: Path, kind: str) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.port} {server.public(kind)}\n")
    assert Links(known_hosts=known, config=None).open(server.host()).run(UNAME).ok


@pytest.mark.fault("B6")
def test_bad_lines_of_known_hosts_are_reported(server: Server, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"localhost rubbish\n[127.0.0.1]:{server.port} {server.public()}\n")
    links = Links(known_hosts=known, config=None)
    skipped = f"skipped a line of known hosts: {known}:1: truncated line"
    refused = failure(links, replace(server.host(), address="localhost"))
    assert refused.code == "host-key-unknown"
    assert refused.what.endswith(f"; {skipped}")
    assert links.open(server.host()).notes() == (skipped,)


@pytest.mark.fault("L4")
def test_known_hosts_that_others_can_write_are_not_believed(server: Server, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_bytes(server.known_hosts.read_bytes())
    known.chmod(0o666)
    with pytest.raises(UsageError, match=re.escape(f"{known} can be written by others (mode 0666)")):
        Links(known_hosts=known, config=None).open(server.host())


def test_a_host_may_bring_known_hosts_of_its_own(server: Server, tmp_path: Path) -> None:
    host = server.host(vars={"known_hosts": str(server.known_hosts)})
    assert Links(known_hosts=tmp_path / "none", config=None).open(host).run(UNAME).ok


def bring_known_hosts(server: Server, known: Path, hostfile: Path) -> Host:
    """A host as a hostfile describes it that names a known_hosts file."""
    return server.host(vars={"known_hosts": str(known)}, origin=Origin(str(hostfile), 3, 1))


@pytest.mark.parametrize("by_config", [False, True])
def test_a_hostfile_has_no_key_recorded_in_a_file_that_is_no_known_hosts_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_config: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    profile, config, hostfile = tmp_path / ".profile", tmp_path / "config", tmp_path / "hostfile"
    profile.write_text("export PATH\n")
    config.write_text("StrictHostKeyChecking accept-new\n" if by_config else "")
    links = Links(config=config, accept_new=not by_config)
    silent = replace(server, port=free_port())  # a connection would be refused
    with pytest.raises(UsageError, match=r"hostfile:3:1: the host's key cannot be recorded in .*/.profile: it is not"):
        links.open(bring_known_hosts(silent, profile, hostfile))
    with pytest.raises(UsageError, match=r"recorded in .*/.zlogin: a new file must be below"):
        links.open(bring_known_hosts(silent, tmp_path / ".zlogin", hostfile))
    assert profile.read_text() == "export PATH\n"
    assert not (tmp_path / ".zlogin").exists()
    for known, source in ((tmp_path / "known", hostfile), (tmp_path / ".named", Path("--hosts"))):
        own = Links(config=config, accept_new=not by_config)
        assert f"recorded in {known}" in own.open(bring_known_hosts(server, known, source)).notes()[0]
        own.close()


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_hostfile_s_known_hosts_cannot_contradict_those_of_the_user(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accept_new: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config, own = tmp_path / "config", tmp_path / "own"
    config.write_text(f"UserKnownHostsFile {own}\nGlobalKnownHostsFile none\n")
    other = " ".join(keygen(tmp_path / "other").with_suffix(".pub").read_text().split()[:2])
    host = bring_known_hosts(server, server.known_hosts, tmp_path / "hostfile")
    name = f"[127.0.0.1]:{server.port}"
    refused = {f"{name} {other}": "host-key-changed", f"@revoked {name} {server.public()}": "host-key-revoked"}
    for line, code in refused.items():
        own.write_text(f"{line}\n")
        result = failure(Links(config=config, accept_new=accept_new), host)
        assert (result.code, f"({own}:1)" in result.what) == (code, True)
    own.write_text(f"elsewhere {other}\n{name} {server.public()}\n")
    assert Links(config=config, accept_new=accept_new).open(host).run(UNAME).ok
    own.write_text(f"127.0.0.1 {other}\nelsewhere {other}\n")  # the lab's hosts are other ports of this machine
    assert Links(config=config, accept_new=accept_new).open(host).run(UNAME).ok


# -- logging in --------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B7")
def test_a_wrong_key_is_refused_by_its_name(links: Links, server: Server, tmp_path: Path) -> None:
    wrong = keygen(tmp_path / "wrong")
    result = failure(links, server.host(key=str(wrong)))
    assert result.code == "auth"
    assert f"login as {getpass.getuser()} refused; tried {wrong} (SHA256:" in result.what


@pytest.mark.fault("B7")
def test_a_missing_key_is_reported(links: Links, server: Server, tmp_path: Path) -> None:
    result = failure(links, server.host(key=str(tmp_path / "none")))
    assert (result.code, result.what) == ("key-file", f"key {tmp_path}/none: no such file or directory")


@pytest.mark.fault("J6")
@pytest.mark.fault("B7")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_key_open_to_others_is_not_used(links: Links, server: Server, tmp_path: Path, mode: int) -> None:
    key = tmp_path / "my key"
    shutil.copy(server.key, key)
    key.chmod(mode)
    result = failure(links, server.host(key=str(key)))
    assert result.code == "key-mode"
    assert f"mode {mode:04o}" in result.what
    assert result.hint == f"chmod 600 {shlex.quote(str(key))}", "it can be pasted"


@pytest.mark.fault("B7")
def test_an_encrypted_key_is_never_asked_for_unless_that_was_allowed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = keygen(tmp_path / "locked", passphrase="open sesame")
    authorized = server.place / "authorized_keys"
    authorized.write_text(authorized.read_text() + (tmp_path / "locked.pub").read_text())
    result = failure(Links(known_hosts=server.known_hosts, config=None), server.host(key=str(key)))
    assert result.code == "passphrase"
    assert "has a passphrase and no agent holds it" in result.what
    assert result.hint == f'eval "$(ssh-agent)" && ssh-add {key}'
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return "open sesame"

    links = Links(known_hosts=server.known_hosts, config=None, ask=ask)
    assert links.open(server.host(key=str(key))).run(UNAME).ok
    assert links.open(server.host("twin", key=str(key))).run(UNAME).ok
    assert asked == [f"Passphrase of {key}: "], "asked once for all hosts"
    wrong = Links(known_hosts=server.known_hosts, config=None, ask=lambda question: "wrong")
    refused = failure(wrong, server.host(key=str(key)))
    assert ("the passphrase is wrong" in refused.what, refused.code) == (True, "passphrase")


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_keys_of_other_kinds_log_in_too(server: Server, links: Links, tmp_path: Path, kind: str) -> None:
    key = keygen(tmp_path / kind, kind)
    authorized = server.place / "authorized_keys"
    authorized.write_text(authorized.read_text() + (tmp_path / f"{kind}.pub").read_text())
    assert links.open(server.host(key=str(key))).run(UNAME).ok


@contextlib.contextmanager
def agent_at(place: Path, *keys: Path) -> Iterator[Path]:
    """An ssh-agent of our own with these keys."""
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL)
    try:
        environ = {**os.environ, "SSH_AUTH_SOCK": str(place)}
        # The socket's file stands before the agent listens on it; `ssh-add -l` says 2 where nobody answers.
        wait(lambda: subprocess.run(["ssh-add", "-l"], capture_output=True, env=environ).returncode != 2)
        for key in keys:
            subprocess.run(["ssh-add", "-q", str(key)], check=True, stdin=subprocess.DEVNULL, env=environ)
        yield place
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One that is found as the user's is: through the environment."""
    with agent_at(tmp_path / "agent") as place:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        yield place


@pytest.mark.fault("J8")
def test_a_key_of_the_agent_logs_in_and_is_not_forwarded(server: Server, agent: Path, tmp_path: Path) -> None:
    subprocess.run(["ssh-add", "-q", str(server.key)], check=True, stdin=subprocess.DEVNULL)
    config = tmp_path / "config"
    forwards = "  LocalForward 4711 127.0.0.1:22\n  RemoteForward 4712 127.0.0.1:22\n"
    config.write_text(f"Host *\n  ForwardAgent yes\n  ForwardX11 yes\n{forwards}")
    link = Links(known_hosts=server.known_hosts, config=config).open(server.host(key=None))
    assert link.run(Command(("sh", "-c", 'echo "${SSH_AUTH_SOCK-none} ${DISPLAY-none}"'))).text == "none none\n"
    for port in (4711, 4712):
        with socket.socket() as sock:
            assert sock.connect_ex(("127.0.0.1", port)) != 0


def test_an_encrypted_key_is_used_from_the_agent(server: Server, agent: Path, tmp_path: Path) -> None:
    key = keygen(tmp_path / "twin")
    authorized = server.place / "authorized_keys"
    authorized.write_text(authorized.read_text() + (tmp_path / "twin.pub").read_text())
    subprocess.run(["ssh-add", "-q", str(key)], check=True, stdin=subprocess.DEVNULL)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)], check=True, stdin=subprocess.DEVNULL)
    link = Links(known_hosts=server.known_hosts, config=None).open(server.host(key=str(key)))
    assert link.run(UNAME).ok


def authorize(server: Server, *keys: Path) -> None:
    with (server.place / "authorized_keys").open("a") as file:
        file.writelines(Path(f"{key}.pub").read_text() for key in keys)


@pytest.fixture
def bare_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without keys; the agent of the environment is another user's, and gone."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "stale"))
    (tmp_path / "home/.ssh").mkdir(parents=True)
    return tmp_path / "home"


def write_config(home: Path, server: Server, text: str) -> Path:
    config = home / ".ssh/config"
    config.write_text(f"Host node1\n  HostName 127.0.0.1\n  Port {server.port}\n{text}")
    return config


def logs_in(server: Server, config: Path, host: Host = Host("node1", "node1")) -> bool:
    """Whether ipexctl logs in with this configuration; OpenSSH, asked the same, must agree."""
    links, ours = Links(known_hosts=server.known_hosts, config=config), False
    with contextlib.suppress(LinkError):
        ours = links.open(host).run(UNAME).ok
    links.close()
    identity = [f"-oIdentityFile={host.key}", "-oIdentitiesOnly=yes"] if host.key else []
    words = ["ssh", "-F", str(config), "-oBatchMode=yes", f"-oUserKnownHostsFile={server.known_hosts}", *identity]
    home = str(config.parent.parent)  # of the user database, for OpenSSH
    none = () if "IdentityFile" in config.read_text() or host.key else (f"-oIdentityFile={home}/.ssh/id_ed25519",)
    theirs = subprocess.run([*words, *none, host.address, "uname"], stdin=subprocess.DEVNULL, capture_output=True)
    assert (theirs.returncode == 0) is ours, theirs.stderr
    return ours


@pytest.mark.parametrize(("line", "result"), read_table("links/the_agent_and_its_key_are_chosen_as_by_openssh"))
def test_the_agent_and_its_key_are_chosen_as_by_openssh(
    server: Server, bare_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, result: bool
) -> None:
    key, other, place = keygen(tmp_path / "held"), keygen(tmp_path / "other"), tmp_path / "a%gent"
    private = tmp_path / "alone"  # encrypted, and without its public part beside it
    authorize(server, key)
    monkeypatch.setenv("NAMED_AGENT", str(place))
    with agent_at(place, key, other):
        shutil.copy(key, private)
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(private)], check=True, capture_output=True)
        key.unlink()
        (tmp_path / "held.pub").chmod(0o644)
        names = {"place": str(place).replace("%", "%%"), "directory": tmp_path, "private": private, "moved": key}
        text = line.format(**names, public=tmp_path / "held.pub", other=tmp_path / "other.pub")
        assert logs_in(server, write_config(bare_home, server, text)) is result


def test_the_agent_of_the_environment_counts_where_the_configuration_names_it(
    server: Server, bare_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = keygen(tmp_path / "held")
    authorize(server, key)
    with agent_at(tmp_path / "agent", key) as place:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        assert logs_in(server, write_config(bare_home, server, "IdentityAgent SSH_AUTH_SOCK"))
        assert not logs_in(server, write_config(bare_home, server, "IdentityAgent none"))


def test_identities_only_without_a_file_means_the_defaults(server: Server, bare_home: Path, tmp_path: Path) -> None:
    authorize(server, keygen(bare_home / ".ssh/id_ed25519"))
    assert logs_in(server, write_config(bare_home, server, "IdentitiesOnly yes"))


def test_a_public_key_of_a_hostfile_selects_that_of_the_agent(server: Server, bare_home: Path, tmp_path: Path) -> None:
    key = keygen(tmp_path / "held")
    authorize(server, key)
    host = Host("node1", "node1", key=str(tmp_path / "held.pub"))
    with agent_at(tmp_path / "agent", key) as place:
        assert logs_in(server, write_config(bare_home, server, f"IdentityAgent {place}"), host)
    config = write_config(bare_home, server, "IdentityAgent none")
    result = failure(Links(known_hosts=server.known_hosts, config=config), host)
    assert result.what == f"key {host.key} is a public key, and no agent holds its private key"
    assert (result.hint or "").endswith(f"ssh-add {key}")


def test_each_host_is_asked_with_the_keys_of_its_own_agent(server: Server, bare_home: Path, tmp_path: Path) -> None:
    right, wrong = keygen(tmp_path / "right"), keygen(tmp_path / "wrong")
    authorize(server, right)
    with agent_at(tmp_path / "one", right) as one, agent_at(tmp_path / "two", wrong) as two:
        text = "".join(f"Host {place.name}\n  IdentityAgent {place}\n" for place in (one, two))
        config = write_config(bare_home, server, text)
        config.write_text(config.read_text() + f"Host *\n  HostName 127.0.0.1\n  Port {server.port}\n")
        links = Links(known_hosts=server.known_hosts, config=config)
        assert "tried agent key wrong" in failure(links, Host("two", "two")).what
        assert links.open(Host("one", "one")).run(UNAME).ok


def test_an_agent_that_does_not_answer_is_named(server: Server, bare_home: Path, tmp_path: Path) -> None:
    config = write_config(bare_home, server, f"IdentityAgent {tmp_path}/gone")
    result = failure(Links(known_hosts=server.known_hosts, config=config), Host("node1", "node1"))
    why = f"the agent at {tmp_path}/gone: no such file or directory"
    assert result.what == f"no key to log in as {getpass.getuser()} with; {why}"


def test_a_certificate_of_a_key_that_the_agent_holds_logs_in(bare_home: Path, tmp_path: Path) -> None:
    authority, key = keygen(tmp_path / "ca"), keygen(tmp_path / "held")
    words = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", getpass.getuser()]
    with (
        sshd(tmp_path / "sshd", f"TrustedUserCAKeys {authority}.pub") as server,
        agent_at(tmp_path / "agent", key) as place,
    ):
        subprocess.run([*words, f"{key}.pub"], check=True)
        (tmp_path / "held-cert.pub").rename(tmp_path / "signed")
        text = f"IdentityAgent {place}\nIdentityFile {key}.pub\nIdentitiesOnly yes\n"
        assert not logs_in(server, write_config(bare_home, server, text))
        assert logs_in(server, write_config(bare_home, server, f"{text}CertificateFile {tmp_path}/signed"))


def test_a_host_that_disconnects_is_reported_with_its_own_words(tmp_path: Path) -> None:
    with sshd(tmp_path / "sshd", "MaxAuthTries 1") as server:
        wrong = keygen(tmp_path / "wrong")
        result = failure(Links(known_hosts=server.known_hosts, config=None), server.host(key=str(wrong)))
        assert "refused: the host says 'Too many authentication failures'; tried" in result.what


def test_a_certificate_beside_the_key_logs_in(tmp_path: Path) -> None:
    authority = keygen(tmp_path / "ca")
    with sshd(tmp_path / "sshd", f"TrustedUserCAKeys {authority}.pub") as server:
        (server.place / "authorized_keys").write_text("")
        assert failure(Links(known_hosts=server.known_hosts, config=None), server.host()).code == "auth"
        words = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", getpass.getuser(), f"{server.key}.pub"]
        subprocess.run(words, check=True)
        assert Links(known_hosts=server.known_hosts, config=None).open(server.host()).run(UNAME).ok


@pytest.mark.fault("B7")
def test_a_host_that_wants_a_second_factor_is_reported(tmp_path: Path) -> None:
    lines = ("AuthenticationMethods publickey,keyboard-interactive", "KbdInteractiveAuthentication yes")
    with sshd(tmp_path / "sshd", *lines) as server:
        result = failure(Links(known_hosts=server.known_hosts, config=None), server.host())
        assert result.code == "auth"
        assert "key accepted, but the host also wants keyboard-interactive" in result.what


@pytest.mark.parametrize(("words", "accepts"), [("yes", "only password"), ("no", "neither a key nor a password")])
def test_a_host_that_takes_no_keys_is_reported(tmp_path: Path, words: str, accepts: str) -> None:
    with sshd(tmp_path / "sshd", "PubkeyAuthentication no", f"PasswordAuthentication {words}") as server:
        result = failure(Links(known_hosts=server.known_hosts, config=None), server.host())
        assert result.code == "auth"
        assert result.what.endswith(f"accepts {accepts}")


@pytest.mark.fault("B7")
def test_a_login_shell_that_does_not_start_commands_is_reported(tmp_path: Path) -> None:
    with sshd(tmp_path / "sshd", "ForceCommand echo This account is currently not available.; exit 1") as server:
        link = Links(known_hosts=server.known_hosts, config=None).open(server.host())
        with pytest.raises(LinkError) as caught:
            link.run(UNAME)
        assert caught.value.failure.code == "no-shell"
        assert "This account is currently not available." in caught.value.failure.what
        assert caught.value.failure.hint is None
    with sshd(tmp_path / "silent", "ForceCommand exit 1") as server:
        link = Links(known_hosts=server.known_hosts, config=None).open(server.host())
        with pytest.raises(LinkError) as silent:
            link.run(UNAME)
        assert "exit, exec and read in its startup files" in (silent.value.failure.hint or "")


# -- the user's configuration ------------------------------------------------------------------------------------------


def test_host_keys_are_checked_whatever_the_configuration_says(server: Server, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile {tmp_path}/none\n")
    assert failure(Links(config=config), server.host()).code == "host-key-unknown"
    config.write_text(f"Host *\n  StrictHostKeyChecking accept-new\n  UserKnownHostsFile {tmp_path}/none\n")
    assert Links(config=config).open(server.host()).run(UNAME).ok


def test_an_alias_names_the_host_key(server: Server, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"blade {server.public()}\n")
    config = tmp_path / "config"
    config.write_text(f"Host *\n  HostKeyAlias blade\n  UserKnownHostsFile {known}\n")
    assert Links(config=config).open(server.host()).run(UNAME).ok


def test_a_proxy_command_carries_the_connection(server: Server, tmp_path: Path) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import socket,sys,threading,os\n"
        "s=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n"
        "def up():\n"
        "  while d:=os.read(0,65536): s.sendall(d)\n"
        "threading.Thread(target=up,daemon=True).start()\n"
        "while d:=s.recv(65536): os.write(1,d)\n"
    )
    config = tmp_path / "config"
    config.write_text(f"Host *\n  ProxyCommand python3 {relay} %h %p\n")
    links = Links(known_hosts=server.known_hosts, config=config)
    done = links.open(server.host()).run(Command(("head", "-c", "3000000", "/dev/zero"), cap=4 << 20))
    assert len(done.out) == 3_000_000
    links.close()
    config.write_text("Host *\n  ProxyCommand exit 3\n")
    result = failure(Links(known_hosts=server.known_hosts, config=config), server.host())
    assert (result.code, "ProxyCommand" in result.what) == ("jump", True)


def test_a_proxy_command_that_does_not_heed_sigterm_holds_no_command(server: Server, tmp_path: Path) -> None:
    """The end of a command waited for it, whatever number of Ctrl-C came."""
    (tmp_path / "config").write_text("Host *\n  ProxyCommand sh -c 'trap \"\" TERM; sleep 20; true'\n")
    links = Links(known_hosts=server.known_hosts, config=tmp_path / "config", connect_timeout=0.5)
    begun = time.monotonic()
    failure(links, server.host())
    links.close()
    assert time.monotonic() - begun < 10


# -- jump hosts --------------------------------------------------------------------------------------------------------


def jumping(tmp_path: Path, jump: Server, target: str, **more: str) -> Path:
    config = tmp_path / "config"
    config.write_text(
        f"Host bastion\n  HostName 127.0.0.1\n  Port {jump.port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {jump.key}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {more.get('known', jump.known_hosts)}\n"
        f"Host {target}\n  ProxyJump bastion\n"
    )
    return config


def test_hosts_behind_a_jump_host_share_one_connection_to_it(server: Server, tmp_path: Path) -> None:
    with sshd(tmp_path / "jump") as jump:
        links = Links(config=jumping(tmp_path, jump, "127.0.0.1"))
        hosts = [server.host(f"n{n}", vars={"known_hosts": str(server.known_hosts)}) for n in range(4)]
        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(lambda host: links.open(host).run(UNAME).text, hosts)] == ["Linux\n"] * 4
        assert jump.log.count("Accepted publickey") == 1


def test_the_jump_host_of_a_hostfile_beats_the_configuration(server: Server, tmp_path: Path) -> None:
    with sshd(tmp_path / "jump") as jump:
        config = jumping(tmp_path, jump, "elsewhere")
        config.write_text(f"Host 127.0.0.1\n  ProxyCommand false\n{config.read_text()}")
        host = server.host(vars={"known_hosts": str(server.known_hosts), "jump": f"{getpass.getuser()}@bastion"})
        assert Links(config=config).open(host).run(UNAME).ok
        assert jump.log.count("Accepted publickey") == 1


@pytest.mark.fault("B8")
def test_a_dead_jump_host_is_named_alike_for_all_hosts_behind_it(server: Server, tmp_path: Path) -> None:
    with sshd(tmp_path / "jump") as jump:
        config = jumping(tmp_path, jump, "127.0.0.1")
    links = Links(config=config, known_hosts=server.known_hosts)
    first, second = failure(links, server.host("n1")), failure(links, server.host("n2"))
    assert first.code == "jump"
    assert first.what == second.what == f"jump host bastion: connection refused (127.0.0.1:{jump.port})"


@pytest.mark.fault("B8")
def test_a_dead_host_behind_a_living_jump_host_is_distinguished(server: Server, tmp_path: Path) -> None:
    with sshd(tmp_path / "jump") as jump, socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
        gone.close()
        result = failure(Links(config=jumping(tmp_path, jump, "127.0.0.1")), server.host(port=port))
        assert result.code == "no-route"
        assert result.what.startswith(f"jump host bastion cannot reach 127.0.0.1:{port}: connect")


def test_a_host_behind_a_jump_host_that_closes_at_once_is_its_own_trouble(server: Server, tmp_path: Path) -> None:
    tries: list[socket.socket] = []
    with sshd(tmp_path / "jump") as jump, listening(tries.append) as port:
        links = Links(config=jumping(tmp_path, jump, "127.0.0.1"), connect_timeout=5)
        result = failure(links, server.host(port=port))
        assert result.code == "banner"
        times = len(tries) - 1, len(tries)  # the deadline may come before the answer to the last one
        assert result.what in [f"connection closed before a banner came, {n} times (127.0.0.1:{port})" for n in times]
        assert len(tries) > 1, "as for a host without a jump host: a busy sshd closes connections before they begin"
        assert links.open(server.host(vars={"known_hosts": str(server.known_hosts)})).run(UNAME).ok


def test_a_busy_host_behind_a_jump_host_is_reached_later(server: Server, tmp_path: Path) -> None:
    busy = [True, True]

    def relay(client: socket.socket) -> None:
        if busy:
            busy.pop()
            return
        with socket.create_connection(("127.0.0.1", server.port)) as real:
            back = threading.Thread(target=pour, args=(real, client), daemon=True)
            back.start()
            pour(client, real)
            back.join()

    with sshd(tmp_path / "jump") as jump, listening(relay) as port:
        known = tmp_path / "known"
        known.write_text(f"[127.0.0.1]:{port} {server.public()}\n")
        links = Links(config=jumping(tmp_path, jump, "127.0.0.1"))
        assert links.open(server.host(port=port, vars={"known_hosts": str(known)})).run(UNAME).ok


@pytest.mark.fault("K1")
@pytest.mark.parametrize(
    ("words", "what"),
    [
        (
            b"Exceeded MaxStartups\r\n",
            "refused by the server's connection limit {} times: it says 'Exceeded MaxStartups'",
        ),
        (
            b"Not allowed at this time\r\n",
            "refused by the server's penalty for this address {} times: it says 'Not allowed",
        ),
    ],
)
def test_a_server_that_sheds_connections_is_tried_again_and_named(words: bytes, what: str) -> None:
    tries: list[socket.socket] = []

    def shed(client: socket.socket) -> None:
        tries.append(client)
        client.sendall(words)

    with listening(shed) as port:
        result = failure(Links(config=None, connect_timeout=5), Host("x", "127.0.0.1", port=port))
    assert result.code == "shed"
    assert len(tries) > 2
    times = len(tries) - 1, len(tries)  # the deadline may come before the answer to the last one
    assert result.what.startswith(tuple(what.format(n) for n in times))
    assert result.hint
    assert "MaxStartups" in result.hint


@pytest.mark.fault("K11")
@pytest.mark.parametrize(
    ("line", "offered", "allow"),
    [
        ("MACs hmac-md5", "macs hmac-md5", "MACs +hmac-md5"),
        ("Ciphers aes128-cbc", "ciphers aes128-cbc", "Ciphers aes128-cbc"),
    ],
)
def test_weak_algorithms_are_allowed_for_one_host_only(tmp_path: Path, line: str, offered: str, allow: str) -> None:
    ciphers = () if line.startswith("Ciphers") else ("Ciphers aes128-ctr",)  # GCM needs no MAC
    with sshd(tmp_path / "server", line, *ciphers) as server:
        known = tmp_path / "known"
        known.write_text(f"[localhost]:{server.port} {server.public()}\n" + server.known_hosts.read_text())
        result = failure(Links(config=None, known_hosts=known), replace(server.host(), address="localhost"))
        assert (result.code, result.what) == (
            "algorithms",
            f"no common algorithm: the server offers only the {offered}",
        )
        assert result.hint
        assert "in ~/.ssh/config below Host localhost: " in result.hint
        config = tmp_path / "config"
        config.write_text(f"Host localhost\n  {allow}\n")
        config.chmod(0o600)
        links = Links(config=config, known_hosts=known)
        assert links.open(replace(server.host(), address="localhost")).run(UNAME).ok
        assert failure(links, server.host("node2")).code == "algorithms", "of others no less is asked than before"


def test_a_jump_host_behind_another_that_closes_at_once_is_named(server: Server, tmp_path: Path) -> None:
    with sshd(tmp_path / "jump") as jump, listening(lambda client: None) as port:
        config = jumping(tmp_path, jump, "127.0.0.1")
        more = f"Host second\n  HostName 127.0.0.1\n  Port {port}\nHost *\n  ProxyJump bastion,second\n"
        config.write_text(config.read_text().replace("  ProxyJump bastion\n", "") + more)
        result = failure(Links(config=config, connect_timeout=5), server.host())
        assert result.code == "jump"
        assert re.fullmatch(r"jump host second: connection closed before a banner came, \d times .*", result.what)


@pytest.mark.fault("B8")
def test_a_jump_host_whose_key_changed_is_refused_by_name(server: Server, tmp_path: Path) -> None:
    with sshd(tmp_path / "jump") as jump:
        known = tmp_path / "known"
        known.write_text(f"[127.0.0.1]:{jump.port} {server.public()}\n")
        result = failure(Links(config=jumping(tmp_path, jump, "127.0.0.1", known=str(known))), server.host())
        assert result.code == "host-key-changed"
        assert result.what.startswith("jump host bastion: host key CHANGED")


@pytest.mark.fault("B8")
def test_the_key_of_the_host_behind_the_jump_host_is_checked_too(server: Server, tmp_path: Path) -> None:
    with sshd(tmp_path / "jump") as jump:
        host = server.host(vars={"known_hosts": str(tmp_path / "none")})
        assert failure(Links(config=jumping(tmp_path, jump, "127.0.0.1")), host).code == "host-key-unknown"


@pytest.mark.fault("B8")
def test_a_jump_host_that_forbids_forwarding_is_named(server: Server, tmp_path: Path) -> None:
    with sshd(tmp_path / "jump", "AllowTcpForwarding no") as jump:
        result = failure(Links(config=jumping(tmp_path, jump, "127.0.0.1")), server.host())
        assert result.code == "jump"
        assert "jump host bastion forbids forwarding" in result.what


# -- losing it ---------------------------------------------------------------------------------------------------------


def test_a_server_that_dies_is_a_lost_link_for_run_and_stream(tmp_path: Path) -> None:
    with sshd(tmp_path / "sshd") as server:
        link = Links(known_hosts=server.known_hosts, config=None).open(server.host())
        channel = link.stream(Command(("sh", "-c", "echo begun; sleep 60")))
        pieces = iter(channel)
        assert next(pieces) == ("out", b"begun\n")
    with pytest.raises(LinkError) as caught:
        list(pieces)
    assert (caught.value.failure.kind, caught.value.failure.code) == (Kind.UNREACHABLE, "lost")
    with pytest.raises(LinkError, match="lost"):
        link.run(UNAME)


def test_a_lost_link_is_made_anew_when_it_is_opened_again(server: Server) -> None:
    links = Links(known_hosts=server.known_hosts, config=None)
    first = links.open(server.host())
    assert links.open(server.host()) is first
    first.close()
    second = links.open(server.host())
    assert second is not first
    assert second.run(UNAME).ok


def test_closing_breaks_off_a_connection_that_is_being_made() -> None:
    with listening(silent) as port:
        links = Links(config=None, connect_timeout=1000)
        errors: list[BaseException] = []

        def body() -> None:
            try:
                links.open(Host("slow", "127.0.0.1", port=port))
            except LinkError as error:
                errors.append(error)

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        time.sleep(0.3)
        links.close()
        thread.join(60)
        assert not thread.is_alive()
        assert len(errors) == 1


class ClosedBefore(Dialler):
    """Whose link is closed when its socket is connected and nothing else is done yet."""

    link: SSHLink

    def _log_in(self, sock: Any, attempt: Any) -> Transport:
        self.link.close()
        return super()._log_in(sock, attempt)


def test_closing_between_the_connection_and_the_login_is_a_lost_link() -> None:
    with listening(silent) as port:
        dialler = ClosedBefore(60, accept_new=False, settings=SSHSettings(None), ask=None)
        dialler.link = SSHLink(Host("slow", "127.0.0.1", port=port), dialler)
        with pytest.raises(LinkError) as caught:
            dialler.link.connect()
    assert caught.value.failure.code == "lost"


def test_no_thread_is_left_after_closing(server: Server) -> None:
    before = set(threading.enumerate())
    links = Links(known_hosts=server.known_hosts, config=None)
    for number in range(3):
        links.open(server.host(f"n{number}")).run(UNAME)
    wait(lambda: len(set(threading.enumerate()) - before) == 3)  # one for each connection: those of a moment end
    links.close()
    wait(lambda: set(threading.enumerate()) <= before)


def test_a_frozen_server_is_reported_as_lost(tmp_path: Path) -> None:
    """The kernel of a frozen host still acknowledges: only questions that want an answer notice it."""

    with sshd(tmp_path / "sshd") as server:
        link = Links(known_hosts=server.known_hosts, config=None).open(server.host())
        transport = link._transport  # type: ignore[attr-defined]
        transport.call_when_idle(0.2, transport._check_alive)  # the same questions, asked in a hurry
        transport.sock.settimeout(0.05)
        channel = link.stream(Command(("sleep", "60")))
        sessions = children(server.process.pid)
        for pid in sessions:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(LinkError) as caught:
                list(channel)
        finally:
            for pid in sessions:
                os.kill(pid, signal.SIGCONT)
        assert caught.value.failure.code == "lost"
        assert f"no sign of life for {LOST_AFTER} s" in caught.value.failure.what
