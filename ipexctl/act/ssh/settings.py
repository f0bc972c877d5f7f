"""Where and how a host is reached: the user's ssh_config, read as OpenSSH reads it, through Fabric's `Connection`."""

from __future__ import annotations

import os
import re
import shlex
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import fabric

from ipexctl.act.ssh.sshconfig import File, OpenSSHConfig, read
from ipexctl.model.errors import UsageError
from ipexctl.model.hosts import Host

_SYSTEM = Path("/etc/ssh/ssh_config")


@dataclass(frozen=True, slots=True)
class Settings:
    """How one host (or one hop on the way to it) is reached."""

    name: str  # as the user wrote it
    address: str
    user: str
    port: int
    keys: tuple[str, ...]  # identity files, in the order they are tried; empty: the default ones
    certificates: tuple[str, ...]
    only_these_keys: bool  # IdentitiesOnly
    alias: str | None  # HostKeyAlias
    known_hosts: tuple[str, ...] | None  # UserKnownHostsFile; None: the default ones
    own_known_hosts: bool  # they were named for this very host
    accept_new: bool  # StrictHostKeyChecking accept-new
    timeout: float | None  # ConnectTimeout, seconds
    command: str | None  # ProxyCommand
    jumps: tuple[str, ...]  # ProxyJump, the first hop first

    @property
    def at(self) -> str:
        """The place for a message: ``10.1.0.3:22``."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class SSHSettings:
    """Reads ssh_config once (``path``, then the ``system``'s; without a path neither) and answers for hosts.

    Raises `UsageError` for a file that cannot be read as ssh_config, or that others can write.
    """

    def __init__(self, path: Path | None, system: Path = _SYSTEM) -> None:
        files: tuple[File, ...] = ()
        if path is not None:
            own = path.expanduser()
            if own.exists():
                _safe(own)
            files = (read(own, own.parent), read(system, system.parent))
        self._config = OpenSSHConfig(*files)
        # Lazy: no fabric.yml of anybody is read. Shared by all connections, because building one costs a millisecond.
        # Fabric merges into it while a connection is made, so two threads may not do that at once.
        self._fabric = fabric.Config(ssh_config=self._config, lazy=True)
        self._lock = threading.Lock()
        self._asked: dict[tuple[object, ...], Settings] = {}  # hosts differ in their address only, nearly always

    def of(self, host: Host) -> Settings:
        return self._of(host.address, host.user, host.port, host.name, host.key, host.vars)

    def hop(self, jump: str) -> Settings:
        """``user@host:port`` of a ProxyJump."""
        user, _, rest = jump.removeprefix("ssh://").rpartition("@")
        found = re.fullmatch(r"\[(.+)\](?::(\d+))?|([^:]+)(?::(\d+))?|(.+)", rest)
        address = next((found[n] for n in (1, 3, 5) if found and found[n]), rest)
        port = (found[2] or found[4]) if found else None
        return self._of(address, user or None, int(port) if port else None, jump, None, {})

    def _of(
        self, address: str, user: str | None, port: int | None, name: str, key: str | None, vars: Mapping[str, str]
    ) -> Settings:
        found = self._config.lookup(address)
        rest = {option: str(value) for option, value in found.items() if option != "hostname"}
        question = (user, port, key, vars.get("known_hosts"), *sorted(rest.items()))
        like = self._asked.get(question)
        if like is None or not re.fullmatch(r"[\w.-]+", address):
            like = self._asked[question] = self._through_fabric(address, user, port, name, key, vars)
            return like
        return replace(like, name=name, address=found["hostname"])

    def _through_fabric(
        self, address: str, user: str | None, port: int | None, name: str, key: str | None, vars: Mapping[str, str]
    ) -> Settings:
        with self._lock:
            connection = fabric.Connection(
                address,
                user=user,
                port=port,
                config=self._fabric,
                gateway=False,  # hops are ours to connect: Fabric's own accept every host key
                forward_agent=False,  # never, whatever the file says
                connect_timeout=0,
                connect_kwargs={"key_filename": []},  # or Fabric collects the keys of all hosts in the shared config
            )
        found = connection.ssh_config
        if (user or port) and (found.get("proxycommand") or "%" in found.get("proxyjump", "")):
            # What the user says beats the file, also where the file refers to it as %r and %p.
            said = {name: str(value) for name, value in (("user", user), ("port", port)) if value}
            found = self._config.lookup(address, said)
        files = found.get("userknownhostsfile")
        if vars.get("known_hosts"):
            files = shlex.quote(vars["known_hosts"])
        jump = found.get("proxyjump") or ""
        return Settings(
            name=name,
            address=connection.host,
            user=connection.user,
            port=connection.port,
            keys=(key,) if key else tuple(found.get("identityfile", ())),
            certificates=tuple(_words(found.get("certificatefile", ""))),
            only_these_keys=bool(key) or found.get("identitiesonly", "no").lower() == "yes",
            alias=found.get("hostkeyalias"),
            known_hosts=tuple(_words(files)) if files else None,
            own_known_hosts=bool(vars.get("known_hosts")),
            accept_new=found.get("stricthostkeychecking", "").lower() == "accept-new",
            timeout=_seconds(found.get("connecttimeout")),
            command=found.get("proxycommand") if not jump or jump.lower() == "none" else None,
            jumps=() if not jump or jump.lower() == "none" else tuple(hop.strip() for hop in jump.split(",")),
        )


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() and int(text) > 0 else None


def _safe(path: Path) -> None:
    """As OpenSSH: a configuration that others can write may not say which programs we start."""
    found = path.stat()
    if found.st_uid not in (0, os.getuid()) or found.st_mode & stat.S_IWOTH:
        raise UsageError(f"{path} can be written by others", hint=f"chmod go-w {shlex.quote(str(path))}")
