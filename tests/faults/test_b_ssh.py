"""Section B: connecting, logging in, host keys."""

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import CommandResult, Workspace
from tests.faults.checks import expect
from tests.faults.tools import serving, ssh_files, write_hostfile

LOOK = ("doctor", "--pairwise", "off")


def reached(result: CommandResult) -> dict[str, bool]:
    """Which hosts doctor has the facts of."""
    return {entry["host"]: entry["facts"] is not None for entry in result.answer["hosts"]}


def keys(hosts: Cluster) -> str:
    """What a hostfile says of every host but its name and address."""
    return f"user=root key={hosts.key}"


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
