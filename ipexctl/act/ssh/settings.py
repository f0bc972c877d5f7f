"""Where and how a host is reached: the user's ssh_config, read as OpenSSH reads it, resolved by Fabric's `Connection`.

docs/decisions/0012-fabric.md says what Fabric is used for, and what not.
"""

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

from ipexctl.act.ssh.sshconfig import File, OpenSSHConfig, read_config
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
            user_path = path.expanduser()
            if user_path.exists():
                _require_safe(user_path)
            files = (read_config(user_path, user_path.parent), read_config(system, system.parent))
        self._config = OpenSSHConfig(*files)
        # Lazy: no fabric.yml of anybody is read. Shared by all connections, because building one costs a millisecond.
        # Fabric merges into it while a connection is made, so two threads may not do that at once.
        self._fabric = fabric.Config(ssh_config=self._config, lazy=True)
        self._lock = threading.Lock()
        self._resolved: dict[tuple[object, ...], Settings] = {}  # hosts differ in their address only, nearly always

    def find_settings(self, host: Host) -> Settings:
        return self._lookup(host.address, host.user, host.port, host.name, host.key, host.vars)

    def find_jump_settings(self, jump: str) -> Settings:
        """``user@host:port`` of a ProxyJump."""
        user, _, place = jump.removeprefix("ssh://").rpartition("@")
        match = re.fullmatch(r"\[(.+)\](?::(\d+))?|([^:]+)(?::(\d+))?|(.+)", place)
        address = next((match[group] for group in (1, 3, 5) if match and match[group]), place)
        port = (match[2] or match[4]) if match else None
        return self._lookup(address, user or None, int(port) if port else None, jump, None, {})

    def _lookup(
        self, address: str, user: str | None, port: int | None, name: str, key: str | None, vars: Mapping[str, str]
    ) -> Settings:
        options = self._config.lookup(address)
        others = {option: str(value) for option, value in options.items() if option != "hostname"}
        question = (user, port, key, vars.get("known_hosts"), *sorted(others.items()))
        settings = self._resolved.get(question)
        if settings is None or not re.fullmatch(r"[\w.-]+", address):
            settings = self._resolved[question] = self._resolve(address, user, port, name, key, vars)
            return settings
        return replace(settings, name=name, address=options["hostname"])

    def _resolve(
        self, address: str, user: str | None, port: int | None, name: str, key: str | None, vars: Mapping[str, str]
    ) -> Settings:
        with self._lock:
            connection = fabric.Connection(
                address,
                user=user,
                port=port,
                config=self._fabric,
                gateway=False,  # the dialler connects jump hosts: Fabric's gateways accept every host key
                forward_agent=False,  # never, whatever the file says
                connect_timeout=0,
                connect_kwargs={"key_filename": []},  # or Fabric collects the keys of all hosts in the shared config
            )
        options = connection.ssh_config
        if (user or port) and (options.get("proxycommand") or "%" in options.get("proxyjump", "")):
            # What the user says beats the file, also where the file refers to it as %r and %p.
            given = {option: str(value) for option, value in (("user", user), ("port", port)) if value}
            options = self._config.lookup(address, given)
        known_hosts = options.get("userknownhostsfile")
        if vars.get("known_hosts"):
            known_hosts = shlex.quote(vars["known_hosts"])
        jump = options.get("proxyjump") or "none"
        jumps = () if jump.lower() == "none" else tuple(hop.strip() for hop in jump.split(","))
        return Settings(
            name=name,
            address=connection.host,
            user=connection.user,
            port=connection.port,
            keys=(key,) if key else tuple(options.get("identityfile", ())),
            certificates=tuple(_split_words(options.get("certificatefile", ""))),
            only_these_keys=bool(key) or options.get("identitiesonly", "no").lower() == "yes",
            alias=options.get("hostkeyalias"),
            known_hosts=tuple(_split_words(known_hosts)) if known_hosts else None,
            own_known_hosts=bool(vars.get("known_hosts")),
            accept_new=options.get("stricthostkeychecking", "").lower() == "accept-new",
            timeout=_parse_seconds(options.get("connecttimeout")),
            command=None if jumps else options.get("proxycommand"),
            jumps=jumps,
        )


def _split_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _parse_seconds(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() and int(text) > 0 else None


def _require_safe(path: Path) -> None:
    """As OpenSSH: a configuration that others can write may not say which programs we start."""
    status = path.stat()
    if status.st_uid not in (0, os.getuid()) or status.st_mode & stat.S_IWOTH:
        raise UsageError(f"{path} can be written by others", hint=f"chmod go-w {shlex.quote(str(path))}")
