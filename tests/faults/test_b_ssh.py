"""Section B: connecting, logging in, host keys."""

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import CommandResult, Terminal, Workspace
from tests.faults.checks import expect
from tests.faults.tools import serving, ssh_files, write_hostfile

LOOK = ("doctor", "--pairwise", "off")


def reached(result: CommandResult) -> dict[str, bool]:
    """Which hosts doctor has the facts of."""
    return {entry["host"]: entry["facts"] is not None for entry in result.answer["hosts"]}


def keys(hosts: Cluster) -> str:
    """What a hostfile says of every host but its name and address."""
    return f"user=root key={hosts.key}"


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
def test_b2_dark_hosts_cost_one_timeout_together(controller: Workspace, hosts: Cluster) -> None:
    dark = ("node1", "node2", "node3")
    usual = time.monotonic()
    controller(*LOOK, "--json")
    usual = time.monotonic() - usual
    with contextlib.ExitStack() as cables:
        for host in dark:
            cables.enter_context(black_hole(hosts, host))
        begun = time.monotonic()
        result = controller(*LOOK, "--json")
    expect(result, 3)
    assert reached(result) == {host: host not in dark for host in hosts.names}
    failures = {entry["host"]: entry["failure"] for entry in result.answer["hosts"] if entry["host"] in dark}
    assert all("no answer within 10 s" in failure["what"] for failure in failures.values()), failures
    assert time.monotonic() - begun < usual + 25, "one timeout is 10 s; three, one after the other, are 30"


@pytest.mark.fault("B4")
def test_b4_an_unknown_host_key_is_recorded_by_an_option_only(controller: Workspace, hosts: Cluster) -> None:
    lines = {host: f"address={hosts.address(host)} {keys(hosts)}" for host in hosts.names}
    words = (*LOOK, "--hostfile", write_hostfile(controller, lines))
    window = Terminal(controller, *words)
    try:
        assert window.end() == 3
        assert b"?" not in window.screen.replace(b"[?", b""), window.screen
    finally:
        window.kill()
    known = controller.home / ".ssh/known_hosts"
    assert not known.exists()
    result = controller(*words, "--accept-new-host-keys")
    assert result.code in (0, 4), result
    assert len(known.read_bytes().splitlines()) == 4


def paste_fix(controller: Workspace, hosts: Cluster, words: Sequence[str], *, options: str = "") -> int:
    """Types the command of doctor's one finding about SSH, as it is printed; ``options`` are for its `ssh`."""
    result = controller(*words, "--json")
    [fix] = {each["fix"] for each in result.answer["findings"] if each["code"].startswith("SSH")}
    line = re.split(r"; if it |^if it ", fix)[-1].partition(": ")[2] if "if it " in fix else fix
    line = re.sub("^ssh ", f"ssh {options} ", line)
    return subprocess.run(
        [*hosts.controller, "bash", "-c", line], env=controller.env, cwd=controller.path, timeout=60
    ).returncode


@pytest.mark.fault("B4")
def test_b4_the_fix_of_an_unknown_host_key_makes_it_known(controller: Workspace, hosts: Cluster) -> None:
    lines = {"node1": f"address={hosts.address('node1')} {keys(hosts)}"}
    words = (*LOOK, "--hostfile", write_hostfile(controller, lines))
    assert not (controller.home / ".ssh").exists(), "as a new account has none"
    assert paste_fix(controller, hosts, words) == 0
    assert reached(controller(*words, "--json")) == {"node1": True}
    assert (controller.home / ".ssh").stat().st_mode & 0o777 == 0o700


@pytest.mark.fault("B5")
def test_b5_the_fixes_of_a_changed_host_key_replace_it(controller: Workspace, hosts: Cluster) -> None:
    lines = {"node1": f"address={hosts.address('node1')} {keys(hosts)}"}
    words = (*LOOK, "--hostfile", write_hostfile(controller, lines))
    other = f"x {hosts.host_key('node2')}"
    place = ssh_files(controller, known_hosts=f"{hosts.address('node1')} {hosts.host_key('node1')}\n{other}\n")
    with serving(hosts, "node1", key=True):
        assert [paste_fix(controller, hosts, words) for _ in ("removed", "made known")] == [0, 0]
        assert reached(controller(*words, "--json")) == {"node1": True}
    assert other in (place / "known_hosts").read_text()


@pytest.mark.fault("B7")
def test_b7_the_fix_of_a_key_that_others_can_read_closes_it(controller: Workspace, hosts: Cluster) -> None:
    key = ssh_files(controller) / "my key"
    key.write_bytes(hosts.key.read_bytes())
    key.chmod(0o644)
    more = f"user=root key='{key}' known_hosts={hosts.known_hosts}"
    words = (*LOOK, "--hostfile", write_hostfile(controller, {"node1": f"address={hosts.address('node1')} {more}"}))
    assert paste_fix(controller, hosts, words) == 0
    assert reached(controller(*words, "--json")) == {"node1": True}


@pytest.mark.fault("B1")
def test_b1_the_fix_of_a_host_that_is_down_shows_whether_it_is_up(controller: Workspace, hosts: Cluster) -> None:
    more = f"{keys(hosts)} known_hosts={hosts.known_hosts}"
    words = (*LOOK, "--hostfile", write_hostfile(controller, {"node2": f"address={hosts.address('node2')} {more}"}))
    options = f"-F none -o BatchMode=yes -o UserKnownHostsFile={hosts.known_hosts}"
    with serving(hosts, "node2", stopped=True):
        result = controller(*words, "--json")
        assert paste_fix(controller, hosts, words, options=options) == 255
    [fix] = {each["fix"] for each in result.answer["findings"] if each["code"] == "SSH001"}
    line = re.sub("^ssh ", f"ssh {options} ", fix)
    assert subprocess.run([*hosts.controller, "bash", "-c", line], env=controller.env, timeout=60).returncode == 0


@pytest.mark.fault("B7")
def test_b7_a_host_whose_pam_refuses_is_reported_with_its_own_words(controller: Workspace, hosts: Cluster) -> None:
    """Accounts that PAM turns away after the key was accepted: below a notice for all, with and without a message."""
    words = "No job of yours runs\x1b[31m here;\n  ask the operators"
    hosts.write("node0", "/etc/issue.net", b"Authorized users only.\n")
    for host, account in {
        "node0": "account required pam_exec.so stdout /root/deny.sh\n",
        "node1": "account required pam_exec.so stdout /root/deny.sh\n",
        "node2": "account required pam_deny.so\n",
    }.items():
        hosts.write(host, "/root/deny.sh", f"#!/bin/sh\nprintf '%s\\n' \"{words}\"\nexit 1\n".encode(), 0o755)
        hosts.write(host, "/etc/pam.d/sshd", account.encode())
    more = f"{keys(hosts)} known_hosts={hosts.known_hosts}"
    lines = {host: f"address={hosts.address(host)} {more}" for host in ("node0", "node1", "node2")}
    ssh_files(controller)
    command_words = (*LOOK, "--json", "--hostfile", write_hostfile(controller, lines))
    with (
        serving(hosts, "node0", "UsePAM yes", "Banner /etc/issue.net"),
        serving(hosts, "node1", "UsePAM yes"),
        serving(hosts, "node2", "UsePAM yes"),
    ):
        result = controller(*command_words)
    expect(result, 3)
    failures = {entry["host"]: entry["failure"]["what"] for entry in result.answer["hosts"]}
    shown = r"the host says 'No job of yours runs\x1b[31m here; ask the operators"
    for host in ("node0", "node1"):
        assert f"login as root refused: {shown}" in failures[host], failures
        assert "Authorized users" not in failures[host]
    assert "login as root refused; tried " in failures["node2"], failures
    assert {finding["code"] for finding in result.answer["findings"]} == {"SSH004"}


@pytest.fixture
def behind(controller: Workspace, hosts: Cluster) -> Iterator[Callable[..., CommandResult]]:
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
def test_b8_a_name_that_only_the_jump_host_knows_is_reached(behind: Callable[..., CommandResult]) -> None:
    result = behind("--json")
    assert result.code in (0, 4), result
    assert reached(result) == {"deep1": True, "deep2": True}
