"""Hosts made of Linux namespaces, for tests and benchmarks across "machines" on one machine (root needed).

Each host has a network namespace of its own, joined by virtual cables to a bridge that lives in a namespace too, so no
traffic reaches the machine's own network. Each launch on a host gets its own host name, IPC and /dev/shm besides, so
that nothing can pass between hosts but TCP. Hydra starts its proxies through a shim in place of ssh.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ENTER = 'hostname "$0"; mount -t tmpfs tmpfs /dev/shm; exec "$@"'
SHIM = """#!/bin/sh
# Hydra calls this as: FILE -q -x HOST command… (words quoted for a shell, as for ssh); the host is an address, the last
# number of which names its namespace.
while [ "${1#-}" != "$1" ]; do shift; done
number=${1##*.}; shift
exec ip netns exec "%(prefix)s$number" unshare -u -i -m sh -c '%(enter)s' "host$number" sh -c "exec $*"
"""


def available() -> str:
    """Why hosts cannot be made here, or the empty string."""
    if os.geteuid() != 0:
        return "namespaced hosts need root"
    missing = [tool for tool in ("ip", "unshare", "mount") if shutil.which(tool) is None]
    return f"no {', '.join(missing)} here" if missing else ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass(frozen=True)
class Hosts:
    """Some hosts: the addresses, the prefix of their namespaces, and the shim that starts commands on them."""

    addresses: tuple[str, ...]
    prefix: str
    shim: Path

    def head(self, argv: list[str]) -> list[str]:
        """The command that runs `argv` on the first host."""
        return [
            "ip",
            "netns",
            "exec",
            f"{self.prefix}1",
            "unshare",
            "-u",
            "-i",
            "-m",
            "sh",
            "-c",
            ENTER,
            "host1",
            *argv,
        ]

    def mpirun(self, ranks: int, per_host: int) -> list[str]:
        """mpirun's command line up to the program: `ranks` ranks, `per_host` on each host, Intel MPI's Hydra."""
        hosts = ",".join(self.addresses[: (ranks + per_host - 1) // per_host])
        return self.head(
            [
                "mpirun",
                "-iface",
                "eth0",
                "-bootstrap",
                "ssh",
                "-bootstrap-exec",
                str(self.shim),
                "-hosts",
                hosts,
                "-n",
                str(ranks),
                "-ppn",
                str(per_host),
            ]
        )


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Make `count` hosts and take them away again, with everything that still runs on them."""
    prefix = f"impi{os.getpid()}h"
    bridge = f"impi{os.getpid()}b"
    subnet = f"10.{(os.getpid() >> 8) & 127 | 64}.{os.getpid() & 255}"
    names = [f"{prefix}{n + 1}" for n in range(count)]
    with tempfile.TemporaryDirectory(prefix="impi-hosts-") as folder:
        shim = Path(folder, "shim")
        shim.write_text(SHIM % {"prefix": prefix, "enter": ENTER})
        shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
        try:
            _ip("netns", "add", bridge)
            _ip("-n", bridge, "link", "add", "br0", "type", "bridge")
            _ip("-n", bridge, "link", "set", "br0", "up")
            for n, name in enumerate(names, start=1):
                _ip("netns", "add", name)
                _ip("-n", bridge, "link", "add", f"c{n}", "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("-n", bridge, "link", "set", f"c{n}", "master", "br0", "up")
                _ip("-n", name, "addr", "add", f"{subnet}.{n}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
                _ip("-n", name, "link", "set", "lo", "up")
            yield Hosts(tuple(f"{subnet}.{n + 1}" for n in range(count)), prefix, shim)
        finally:
            for name in [*names, bridge]:
                pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
                for pid in pids.stdout.split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), 9)
                subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def environment(prefix: str = sys.prefix) -> dict[str, str]:
    """The environment in which Intel MPI from the wheel in `prefix` works (found by looking, as ipexctl does)."""
    env = dict(os.environ)
    env["PATH"] = f"{prefix}/bin:{env.get('PATH', '')}"
    env["LD_LIBRARY_PATH"] = f"{prefix}/lib"
    env.pop("I_MPI_ROOT", None)
    return env
