"""Section B: connecting, logging in, host keys."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import wheels
from tests.cluster import Cluster
from tests.e2e.desk import Desk, Terminal, Told
from tests.faults.checks import expect
from tests.faults.tools import serving, ssh_files, write_hostfile

LOOK = ("doctor", "--pairwise", "off")


def reached(told: Told) -> dict[str, bool]:
    """Which hosts doctor has the facts of."""
    return {entry["host"]: entry["facts"] is not None for entry in told.answer["hosts"]}


def keys(hosts: Cluster) -> str:
    """What a hostfile says of every host but its name and address."""
    return f"user=root key={hosts.key}"


def told_of(told: Told, host: str) -> str:
    """The lines of standard error about one host."""
    return "\n".join(line for line in (told.out + told.err).splitlines() if host in line)


@pytest.mark.fault("B1")
def test_b1_a_refused_connection_costs_only_its_host(controller: Desk, hosts: Cluster) -> None:
    with serving(hosts, "node2", stopped=True):
        told = controller(*LOOK, "--json")
        expect(told, 3)
        assert reached(told) == {"node0": True, "node1": True, "node2": False, "node3": True}
        plain = controller(*LOOK)
        expect(plain, 3, "connection refused (10.77.0.12:22)")
        with hosts.inside(), wheels.serving(wheels.Index(wheels.stack()), "10.77.0.1") as index:
            stack = ("--torch", "2.8.0", "--track", "native", "--backend", "gloo", "--index-url", index.url)
            checked = controller("install", "--check", *stack)
        expect(checked, 3, "node2", "connection refused (10.77.0.12:22)")
    for host in hosts.names:
        assert not hosts.path(host, "/root/.local/share/ipexctl").exists()


@contextlib.contextmanager
def black_hole(hosts: Cluster, host: str) -> Iterator[None]:
    """What the controller sends to this host goes to a neighbour who is not there: no answer of any kind."""
    words = [hosts.address(host), "dev", "eth0"]
    hosts.run(["ip", "neigh", "replace", *words, "lladdr", "02:00:00:00:00:99", "nud", "permanent"], check=True)
    try:
        yield
    finally:
        hosts.run(["ip", "neigh", "delete", *words], check=True)


@pytest.mark.fault("B2")
@pytest.mark.parametrize("dark", [("node1",), ("node1", "node2", "node3")], ids=["one", "three"])
def test_b2_dark_hosts_cost_one_timeout_together(controller: Desk, hosts: Cluster, dark: tuple[str, ...]) -> None:
    usual = time.monotonic()
    controller(*LOOK, "--json")
    usual = time.monotonic() - usual
    with contextlib.ExitStack() as cables:
        for host in dark:
            cables.enter_context(black_hole(hosts, host))
        begun = time.monotonic()
        told = controller(*LOOK, "--json")
    expect(told, 3)
    assert reached(told) == {host: host not in dark for host in hosts.names}
    failures = {entry["host"]: entry["failure"] for entry in told.answer["hosts"] if entry["host"] in dark}
    assert all("no answer within 10 s" in failure["what"] for failure in failures.values()), failures
    assert time.monotonic() - begun < usual + 25, "one timeout is 10 s; three, one after the other, are 30"


def say_nothing(client: socket.socket) -> None:
    while client.recv(4096):
        pass


def byte_by_byte(client: socket.socket) -> None:
    for byte in b"SSH-2.0-slow_and_steady\r\n":
        client.sendall(bytes([byte]))
        time.sleep(1)


def junk(client: socket.socket) -> None:
    client.sendall(b"x" * (1 << 20))
    say_nothing(client)


def speak_http(client: socket.socket) -> None:
    client.recv(100)
    client.sendall(b"HTTP/1.1 400 Bad \x1b[31mRequest\r\nServer: x\r\n\r\n")


@contextlib.contextmanager
def listening(hosts: Cluster, *serve: Callable[[socket.socket], None]) -> Iterator[list[int]]:
    """Ports of the controller's address that are no sshd: one for each way to serve a client."""
    opened = []

    def one(client: socket.socket, how: Callable[[socket.socket], None]) -> None:
        with client, contextlib.suppress(OSError):
            how(client)

    def accept(listener: socket.socket, how: Callable[[socket.socket], None]) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=one, args=(client, how), daemon=True).start()

    with hosts.inside():
        for how in serve:
            opened.append(socket.create_server(("10.77.0.1", 0)))
            threading.Thread(target=accept, args=(opened[-1], how), daemon=True).start()
    try:
        yield [int(listener.getsockname()[1]) for listener in opened]
    finally:
        for listener in opened:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()


@pytest.mark.fault("B3")
def test_b3_ports_that_are_no_ssh_server_are_told_in_time(controller: Desk, hosts: Cluster) -> None:
    ways = (say_nothing, byte_by_byte, junk, speak_http)
    with listening(hosts, *ways) as ports:
        lines = {
            way.__name__: f"address=10.77.0.1 port={port} user=root" for way, port in zip(ways, ports, strict=True)
        }
        told = controller(*LOOK, "--json", "--connect-timeout", "4", "--hostfile", write_hostfile(controller, lines))
    expect(told, 3)
    failures = {entry["host"]: entry["failure"]["what"] for entry in told.answer["hosts"]}
    assert "no SSH banner" in failures["say_nothing"], failures
    assert "no SSH banner" in failures["byte_by_byte"] or "not an SSH server" in failures["byte_by_byte"], failures
    assert "not an SSH server" in failures["junk"], failures
    assert "not an SSH server" in failures["speak_http"], failures
    assert "\x1b" not in told.out + told.err


def fingerprint(text: str, tmp_path: Path) -> str:
    (tmp_path / "key.pub").write_text(text)
    words = ["ssh-keygen", "-l", "-f", str(tmp_path / "key.pub")]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[1]


@pytest.mark.fault("B4")
def test_b4_an_unknown_host_key_is_refused_before_any_login(controller: Desk, hosts: Cluster, tmp_path: Path) -> None:
    lines = {host: f"address={hosts.address(host)} {keys(hosts)}" for host in hosts.names}
    words = (*LOOK, "--hostfile", write_hostfile(controller, lines))
    logs = {host: len(hosts.sshd_log(host)) for host in hosts.names}
    told = controller(*words)
    expect(told, 3, *(fingerprint(hosts.host_key(host), tmp_path) for host in hosts.names), "known_hosts")
    window = Terminal(controller, *words)
    try:
        assert window.end() == 3
        assert b"?" not in window.screen.replace(b"[?", b""), window.screen  # nobody is asked
    finally:
        window.kill()
    for host, begin in logs.items():
        assert "ublickey" not in hosts.sshd_log(host)[begin:]
        assert "session opened" not in hosts.sshd_log(host)[begin:]
    known = controller.home / ".ssh/known_hosts"
    assert not known.exists()

    told = controller(*words, "--accept-new-host-keys")
    assert told.code in (0, 4), told
    for host in hosts.names:
        fresh = fingerprint(hosts.host_key(host), tmp_path)
        assert (told.out + told.err).count(fresh) == 1, (host, told)
    kept = known.read_bytes()
    assert len(kept.splitlines()) == 4
    told = controller(*words, "--accept-new-host-keys")
    assert fingerprint(hosts.host_key("node0"), tmp_path) not in told.out + told.err
    assert known.read_bytes() == kept


def paste_fix(controller: Desk, hosts: Cluster, words: Sequence[str], *, options: str = "") -> int:
    """Types the command of doctor's one finding about SSH, as it is printed; ``options`` are for its `ssh`."""
    told = controller(*words, "--json")
    [fix] = {each["fix"] for each in told.answer["findings"] if each["code"].startswith("SSH")}
    line = re.split(r"; if it |^if it ", fix)[-1].partition(": ")[2] if "if it " in fix else fix
    line = re.sub("^ssh ", f"ssh {options} ", line)
    return subprocess.run(
        [*hosts.controller, "bash", "-c", line], env=controller.env, cwd=controller.path, timeout=60
    ).returncode


@pytest.mark.fault("B4")
def test_b4_the_fix_of_an_unknown_host_key_makes_it_known(controller: Desk, hosts: Cluster) -> None:
    lines = {"node1": f"address={hosts.address('node1')} {keys(hosts)}"}
    words = (*LOOK, "--hostfile", write_hostfile(controller, lines))
    assert not (controller.home / ".ssh").exists(), "as a new account has none"
    assert paste_fix(controller, hosts, words) == 0
    assert reached(controller(*words, "--json")) == {"node1": True}
    assert (controller.home / ".ssh").stat().st_mode & 0o777 == 0o700


@pytest.mark.fault("B5")
def test_b5_the_fixes_of_a_changed_host_key_replace_it(controller: Desk, hosts: Cluster) -> None:
    lines = {"node1": f"address={hosts.address('node1')} {keys(hosts)}"}
    words = (*LOOK, "--hostfile", write_hostfile(controller, lines))
    other = f"x {hosts.host_key('node2')}"
    place = ssh_files(controller, known_hosts=f"{hosts.address('node1')} {hosts.host_key('node1')}\n{other}\n")
    with serving(hosts, "node1", key=True):
        assert [paste_fix(controller, hosts, words) for _ in ("removed", "made known")] == [0, 0]
        assert reached(controller(*words, "--json")) == {"node1": True}
    assert other in (place / "known_hosts").read_text()


@pytest.mark.fault("B7")
def test_b7_the_fix_of_a_key_that_others_can_read_closes_it(controller: Desk, hosts: Cluster) -> None:
    key = ssh_files(controller) / "my key"
    key.write_bytes(hosts.key.read_bytes())
    key.chmod(0o644)
    more = f"user=root key='{key}' known_hosts={hosts.known_hosts}"
    words = (*LOOK, "--hostfile", write_hostfile(controller, {"node1": f"address={hosts.address('node1')} {more}"}))
    assert paste_fix(controller, hosts, words) == 0
    assert reached(controller(*words, "--json")) == {"node1": True}


@pytest.mark.fault("B1")
def test_b1_the_fix_of_a_host_that_is_down_shows_whether_it_is_up(controller: Desk, hosts: Cluster) -> None:
    more = f"{keys(hosts)} known_hosts={hosts.known_hosts}"
    words = (*LOOK, "--hostfile", write_hostfile(controller, {"node2": f"address={hosts.address('node2')} {more}"}))
    options = f"-F none -o BatchMode=yes -o UserKnownHostsFile={hosts.known_hosts}"
    with serving(hosts, "node2", stopped=True):
        told = controller(*words, "--json")
        assert paste_fix(controller, hosts, words, options=options) == 255
    [fix] = {each["fix"] for each in told.answer["findings"] if each["code"] == "SSH001"}
    line = re.sub("^ssh ", f"ssh {options} ", fix)
    assert subprocess.run([*hosts.controller, "bash", "-c", line], env=controller.env, timeout=60).returncode == 0


@contextlib.contextmanager
def agent() -> Iterator[tuple[dict[str, Any], Callable[[], bool]]]:
    """The environment that leads to an agent, and whether anybody has turned to it."""
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{place}/agent")
        listener.listen()
        listener.setblocking(False)

        def was_asked() -> bool:
            with contextlib.suppress(BlockingIOError):
                listener.accept()[0].close()
                return True
            return False

        yield {"SSH_AUTH_SOCK": f"{place}/agent"}, was_asked


@pytest.mark.fault("B5")
def test_b5_a_changed_host_key_is_refused_whatever_was_asked_for(
    controller: Desk, hosts: Cluster, tmp_path: Path
) -> None:
    lines = {"node1": f"address={hosts.address('node1')} {keys(hosts)}"}
    words = (*LOOK, "--hostfile", write_hostfile(controller, lines))
    place = ssh_files(controller, known_hosts=f"# mine\n{hosts.address('node1')} {hosts.host_key('node1')}\n")
    before = (place / "known_hosts").read_bytes()
    with serving(hosts, "node1", key=True):
        begin = len(hosts.sshd_log("node1"))
        new = hosts.read("node1", "/run/other.pub").decode()
        for more in ((), ("--accept-new-host-keys",)):
            with agent() as (env, was_asked):
                told = controller(*words, *more, **env)
                assert not was_asked()
            expect(told, 3, "CHANGED", fingerprint(new, tmp_path), fingerprint(hosts.host_key("node1"), tmp_path))
            assert "line 2" in told.out + told.err or "known_hosts:2" in told.out + told.err, told
        log = hosts.sshd_log("node1")[begin:]
        assert "ublickey" not in log
    assert (place / "known_hosts").read_bytes() == before


@pytest.mark.fault("B6")
def test_b6_every_kind_of_line_of_known_hosts_counts_as_it_does_for_openssh(
    controller: Desk, hosts: Cluster, tmp_path: Path
) -> None:
    address, key = hosts.address, hosts.host_key
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "ca")], check=True)
    (tmp_path / "known").write_text(f"{address('node0')} {key('node0')}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(tmp_path / "known")], capture_output=True, check=True)
    authority = " ".join((tmp_path / "ca.pub").read_text().split()[:2])
    text = (
        (tmp_path / "known").read_text()
        + f"[{address('node1')}]:2222 {key('node1')}\n"
        + f"@revoked * {key('node2')}\n{address('node2')} {key('node2')}\n"
        + f"10.77.*.13 {key('node3')}\n"
        + f"@cert-authority 10.77.0.199 {authority}\n"
        + "10.77.0.13 ssh-ed25519 AAAAC3NzaC1lZDI1\n10.77.0.13 ssh-ed25519 !!!!\n10.77.0.13\n"
    )
    place = ssh_files(controller, known_hosts=text)
    lines = {host: f"address={address(host)} {keys(hosts)}" for host in hosts.names}
    lines["node1"] += " port=2222"
    words = (*LOOK, "--hostfile", write_hostfile(controller, lines))
    with serving(hosts, "node1", "Port 2222"):
        told = controller(*words, "--json")
        expect(told, 3)
        assert reached(told) == {"node0": True, "node1": True, "node2": False, "node3": True}
        assert "revoked" in str([e.get("failure") for e in told.answer["hosts"] if e["host"] == "node2"])
        plain = controller(*words)
    expect(plain, 3, *(f"{place / 'known_hosts'}:{line}: " for line in (7, 8, 9)))
    assert (place / "known_hosts").read_text() == text
    authority_only = {"signed": f"address={address('node3')} {keys(hosts)}"}
    ssh_files(controller, known_hosts=f"@cert-authority 10.77.0.13 {authority}\n")
    told = controller(*LOOK, "--hostfile", write_hostfile(controller, authority_only))
    expect(told, 3, "certificate")


@pytest.mark.fault("B7")
def test_b7_each_login_that_cannot_work_has_its_own_reason_and_nobody_is_asked(
    controller: Desk, hosts: Cluster
) -> None:
    place = ssh_files(controller)
    for name, phrase in (("wrong", ""), ("locked", "open sesame")):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-f", str(place / name)]
        subprocess.run(make, check=True)
    (place / "open").write_bytes(hosts.key.read_bytes())
    (place / "open").chmod(0o644)
    known = f"known_hosts={hosts.known_hosts}"
    keyfiles = {"node0": place / "wrong", "node1": place / "locked", "node2": place / "open", "node3": place / "none"}
    lines = {host: f"address={hosts.address(host)} user=root key={key} {known}" for host, key in keyfiles.items()}
    words = (*LOOK, "--hostfile", write_hostfile(controller, lines))
    begin = len(hosts.sshd_log("node0"))
    told = controller(*words, "--json")
    expect(told, 3)
    failures = {entry["host"]: entry["failure"]["what"] for entry in told.answer["hosts"]}
    for host, why in {"node0": "refused", "node1": "passphrase", "node2": "mode 0644", "node3": "no such file"}.items():
        assert why in failures[host], failures
    assert hosts.sshd_log("node0")[begin:].count("Failed publickey") <= 1
    window = Terminal(controller, *words)
    try:
        assert window.end() == 3
        assert b"assphrase of" not in window.screen
    finally:
        window.kill()


@pytest.mark.fault("B7")
def test_b7_an_account_that_may_not_log_in_is_told_with_the_reason(controller: Desk, hosts: Cluster) -> None:
    for host, shell in (("node0", "/usr/sbin/nologin"), ("node1", "/bin/bash")):
        hosts.exec(host, ["useradd", "--create-home", "--shell", shell, "--password", "*", "guest"], check=True)
        hosts.exec(host, ["cp", "-r", "/root/.ssh", "/home/guest/.ssh"], check=True)
        hosts.exec(host, ["chown", "-R", "guest:", "/home/guest"], check=True)
    hosts.exec("node1", ["usermod", "--lock", "guest"], check=True)
    more = f"key={hosts.key} known_hosts={hosts.known_hosts}"
    lines = {host: f"address={hosts.address(host)} user=guest {more}" for host in ("node0", "node1")}
    lines["node2"] = f"address={hosts.address('node2')} user=root {more}"
    factor = "AuthenticationMethods publickey,keyboard-interactive"
    try:
        with serving(hosts, "node2", factor, "KbdInteractiveAuthentication yes"):
            words = (*LOOK, "--json", "--hostfile", write_hostfile(controller, lines))
            told = controller(*words)
        expect(told, 3)
        failures = {entry["host"]: entry["failure"]["what"] for entry in told.answer["hosts"]}
        assert "not available" in failures["node0"], failures
        assert "refused" in failures["node1"], failures
        assert "also wants keyboard-interactive" in failures["node2"], failures
    finally:
        for host in ("node0", "node1"):
            hosts.exec(host, ["userdel", "--remove", "guest"])


@pytest.fixture
def behind(controller: Desk, hosts: Cluster) -> Iterator[Callable[..., Told]]:
    """``behind()`` looks at deep1 and deep2 (node1, node2) through node0, which alone can resolve their names."""
    names = "".join(f"{hosts.address(f'node{n}')} deep{n}\n" for n in (1, 2))
    before = hosts.read("node0", "/etc/hosts")
    hosts.write("node0", "/etc/hosts", before + names.encode())
    known = f"bastion,{hosts.address('node0')} {hosts.host_key('node0')}\n" + "".join(
        f"deep{n} {hosts.host_key(f'node{n}')}\n" for n in (1, 2)
    )
    config = (
        f"Host bastion\n  HostName {hosts.address('node0')}\n  User root\n  IdentityFile {hosts.key}\n"
        f"Host deep*\n  ProxyJump bastion\n  User root\n  IdentityFile {hosts.key}\n"
    )
    ssh_files(controller, config=config, known_hosts=known)
    write_hostfile(controller, {"deep1": "", "deep2": ""})
    yield lambda *more: controller(*LOOK, "--hostfile", "hosts", *more)
    hosts.write("node0", "/etc/hosts", before)


@pytest.mark.fault("B8")
def test_b8_a_name_that_only_the_jump_host_knows_is_reached(behind: Callable[..., Told]) -> None:
    told = behind("--json")
    assert told.code in (0, 4), told
    assert reached(told) == {"deep1": True, "deep2": True}


@pytest.mark.fault("B8")
@pytest.mark.parametrize("how", ["down", "changed", "forbidden", "target"])
def test_b8_the_hop_that_failed_is_named(behind: Callable[..., Told], hosts: Cluster, how: str) -> None:
    host, settings, why = {
        "down": ("node0", {"stopped": True}, "connection refused"),
        "changed": ("node0", {"key": True}, "CHANGED"),
        "forbidden": ("node0", {}, "forbids forwarding"),
        "target": ("node1", {"stopped": True}, "cannot reach deep1:22"),
    }[how]
    with serving(hosts, host, *(["AllowTcpForwarding no"] if how == "forbidden" else []), **settings):
        told = behind()
        answer = behind("--json")
    expect(told, 3, why)
    assert reached(answer) == {"deep1": False, "deep2": how == "target"}, answer
    whats = {entry["failure"]["what"] for entry in answer.answer["hosts"] if "failure" in entry}
    assert all("bastion" in what for what in whats), whats
    assert len(whats) == 1, whats  # said alike of all hosts behind it, and so grouped


@pytest.mark.fault("B8")
def test_b8_the_key_of_the_host_behind_is_checked_too(behind: Callable[..., Told], hosts: Cluster) -> None:
    with serving(hosts, "node2", key=True):
        told = behind("--json")
    expect(told, 3)
    assert reached(told) == {"deep1": True, "deep2": False}
    assert "CHANGED" in str(told.answer["hosts"])
