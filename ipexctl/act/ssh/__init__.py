"""One link per host: over SSH (Paramiko), or to this machine."""

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.act.ssh.local_link import LocalLink
from ipexctl.model.errors import ConnectError, UsageError
from ipexctl.model.hosts import Host
from ipexctl.model.links import Link

if TYPE_CHECKING:
    from ipexctl.act.ssh.connect import Dialler
    from ipexctl.act.ssh.link import SSHLink
    from ipexctl.act.ssh.settings import SSHSettings
    from ipexctl.act.ssh.tcp import EarlyConnection

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
        self._ahead: set[_Key] = set()  # of links that nobody has opened yet
        self._settings: SSHSettings | None = None
        self._dialler: Dialler | None = None
        self._dialling = threading.Lock()

    def open(self, host: Host) -> Link:
        """Returns the host's link; a new one if the last was lost or could not be made."""
        key = _make_key(host)
        with self._lock:
            link = self._links.get(key)
            failed_ahead = key in self._ahead and link is not None and link.has_failed  # raised below, not tried again
            self._ahead.discard(key)
            if link is None or (link.is_unusable and not failed_ahead):
                link = self._links[key] = self._make_link(host)
        link.connect_once()
        return link

    def open_ahead(self, hosts: Iterable[Host]) -> None:
        """Connects each in a thread of its own. Nothing is begun where a passphrase may be asked for."""
        if self.ask is not None:
            return
        with self._lock:
            new = {_make_key(host): host for host in hosts if not host.is_local}
            new = {key: host for key, host in new.items() if key not in self._links}
        begun = {key: self._begin_connection(host) for key, host in new.items()}  # before Paramiko is imported
        for key, host in new.items():
            with self._lock:
                link = self._links[key] = self._make_ssh_link(host, begun[key])
                self._ahead.add(key)
            threading.Thread(target=_connect_quietly, args=(link,), name=f"connect {host.name}", daemon=True).start()

    def close(self, *, at_exit: bool = False) -> None:
        """Closes every link; what `run` waits for on them is stopped. A link opened later is a new one. ``at_exit``:
        connections that nothing runs on are left to the end of this process, which costs no time."""
        with self._lock:
            links, self._links = [link for link in self._links.values() if not link.is_closed], {}
        if at_exit:
            links = [link for link in links if not link.is_idle]
        threads = [threading.Thread(target=link.close, name="close link", daemon=True) for link in links]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_CLOSE_TIMEOUT)
        if self._dialler is not None:  # kept: it knows keys that were asked for, and what a later link needs
            self._dialler.close()

    def _make_link(self, host: Host) -> "LocalLink | SSHLink":
        return LocalLink(host) if host.is_local else self._make_ssh_link(host)

    def _begin_connection(self, host: Host) -> "EarlyConnection | None":
        """None for a host that is reached in another way than by TCP, or perhaps not at all: its login says why."""
        from ipexctl.act.ssh.settings import choose_connect_timeout
        from ipexctl.act.ssh.tcp import EarlyConnection

        ssh_settings = self._read_settings()
        try:
            settings = ssh_settings.find_settings(host)
        except (ConnectError, UsageError):
            return None
        records_key = (
            self.accept_new or settings.accept_new
        ) and settings.user_known_hosts  # which may be refused first
        if settings.command or settings.jump or records_key:
            return None
        return EarlyConnection(settings, choose_connect_timeout(settings, self.connect_timeout))

    def _make_ssh_link(self, host: Host, begun: "EarlyConnection | None" = None) -> "SSHLink":
        with self._dialling:
            if not {"paramiko", "invoke"} & sys.modules.keys():  # Invoke imports asyncio and mocks
                sys.modules["invoke"] = None  # type: ignore[assignment]  # "not installed"
                __import__("paramiko")
                del sys.modules["invoke"]
            from ipexctl.act.ssh.connect import Dialler
            from ipexctl.act.ssh.link import SSHLink

            if self._dialler is None:
                settings = self._read_settings()
                self._dialler = Dialler(self.connect_timeout, self.accept_new, settings, self.ask)
        return SSHLink(host, self._dialler, begun)

    def _read_settings(self) -> "SSHSettings":
        from ipexctl.act.ssh.settings import SSHSettings

        if self._settings is None:
            self._settings = SSHSettings(self.config, known_hosts=self.known_hosts)
        return self._settings


def _make_key(host: Host) -> _Key:
    return host.name, host.address, host.user, host.port, host.key


def _connect_quietly(link: "SSHLink") -> None:
    with suppress(Exception):  # the link keeps it for who opens it
        link.connect_once()
