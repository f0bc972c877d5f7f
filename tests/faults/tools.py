"""What several sections use to bring a fault about."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import Cluster
from tests.e2e.workspace import Workspace
from tests.faults.checks import find_listening
from tests.waiting import wait


@contextmanager
def nobody_asked(hosts: Cluster) -> Iterator[None]:
    """Meanwhile no host's sshd hears of anybody."""
    before = {host: hosts.sshd_log(host) for host in hosts.names}
    yield
    for host, log in before.items():
        assert hosts.sshd_log(host) == log, f"{host} was contacted: {hosts.sshd_log(host)[len(log) :]}"


@contextmanager
def serving(hosts: Cluster, host: str, *lines: str, stopped: bool = False, key: bool = False) -> Iterator[None]:
    """Meanwhile this host's sshd has these lines first in its configuration, or a new host key, or does not listen."""
    before = hosts.read(host, "/etc/ssh/sshd_config")
    text = before
    if key:
        hosts.exec(host, ["rm", "-f", "/run/other", "/run/other.pub"])
        hosts.exec(host, ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/run/other"], check=True)
        text = text.replace(b"/etc/ssh/ssh_host_ed25519_key", b"/run/other")
    stop_server(hosts, host)
    try:
        if not stopped:
            start_server(hosts, host, "".join(f"{line}\n" for line in lines).encode() + text)
        yield
    finally:
        stop_server(hosts, host)
        start_server(hosts, host, before)


def stop_server(hosts: Cluster, host: str) -> None:
    """Ends the sshd that listens, and not its sessions."""
    pid = int(hosts.read(host, "/run/sshd.pid"))
    servers = [p.outer for p in hosts.processes(host) if p.pid == pid]
    for server in servers:
        os.kill(server, signal.SIGTERM)
    wait(lambda: not any(p.pid == pid for p in hosts.processes(host)), 10.0)
    hosts.write(host, "/run/sshd.pid", b"0\n")


def start_server(hosts: Cluster, host: str, config: bytes) -> None:
    hosts.write(host, "/etc/ssh/sshd_config", config)
    done = hosts.exec(host, ["/usr/sbin/sshd", "-E", "/var/log/sshd.log"])
    assert done.returncode == 0, done.stderr
    wait(lambda: 22 in find_listening(hosts.init(host)), 10.0)


def write_hostfile(workspace: Workspace, lines: Mapping[str, str], name: str = "hosts") -> str:
    """A hostfile beside the controller: ``{"node0": "address=… user=root"}``."""
    (workspace.path / name).write_text("".join(f"{host} {words}\n" for host, words in lines.items()))
    return name


def ssh_files(workspace: Workspace, **files: str) -> Path:
    """Files of ~/.ssh on the controller, closed to others."""
    place = workspace.home / ".ssh"
    place.mkdir(mode=0o700, exist_ok=True)
    for name, text in files.items():
        (place / name).write_text(text)
        (place / name).chmod(0o600)
    return place
