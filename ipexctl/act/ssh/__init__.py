"""One link per host: over SSH (Paramiko), or to this machine."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.act.threads import start_thread
from ipexctl.model.hosts import Host, Link

if TYPE_CHECKING:
    from ipexctl.act.ssh.connect import Dialler
    from ipexctl.act.ssh.link import SSHLink

_Key = tuple[str, str, str | None, int | None, str | None]

_CLOSE_TIMEOUT = 5.0  # seconds closing may take: commands are stopped, which asks their hosts

__all__ = ["Links", "LocalLink"]


@dataclass(kw_only=True)
class Links:
    """Opens hosts on first use and keeps one connection each; see `Opener`. ``connect_timeout`` (seconds) covers
    connection, banner and login together. ``known_hosts`` replaces the user's files; ``accept_new`` records keys of
    hosts never seen before; ``config`` is an ssh_config file, None reads none. ``ask`` is called with a question and
    returns a passphrase or None; without it nothing is ever asked."""

    connect_timeout: float = 10.0
    accept_new: bool = False
    known_hosts: Path | None = None
    config: Path | None = Path("~/.ssh/config")
    ask: Callable[[str], str | None] | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[_Key, LocalLink | SSHLink] = {}
        self._dialler: Dialler | None = None
        self._dialling = threading.Lock()

    def open(self, host: Host) -> Link:
        """Returns the host's link; a new one if the last was lost or could not be made."""
        key = host.name, host.address, host.user, host.port, host.key
        with self._lock:
            link = self._links.get(key)
            if link is None or link.is_unusable:
                link = self._links[key] = LocalLink(host) if host.is_local else self._make_ssh_link(host)
        link.connect_once()
        return link

    def close(self) -> None:
        """Closes every link; what `run` waits for on them is stopped. A link opened later is a new one."""
        with self._lock:
            links, self._links = list(self._links.values()), {}
        wait([start_thread(link.close) for link in links], _CLOSE_TIMEOUT)
        if self._dialler is not None:  # kept: it knows keys that were asked for, and what a later link needs
            self._dialler.close()

    def _make_ssh_link(self, host: Host) -> "SSHLink":
        with self._dialling:
            if not {"paramiko", "invoke"} & sys.modules.keys():  # Invoke imports asyncio and mocks
                sys.modules["invoke"] = None  # type: ignore[assignment]  # "not installed"
                __import__("paramiko")
                del sys.modules["invoke"]
            from ipexctl.act.ssh.connect import Dialler
            from ipexctl.act.ssh.link import SSHLink
            from ipexctl.act.ssh.settings import SSHSettings

            if self._dialler is None:
                settings = SSHSettings(self.config, known_hosts=self.known_hosts)
                self._dialler = Dialler(self.connect_timeout, self.accept_new, settings, self.ask)
        return SSHLink(host, self._dialler)
