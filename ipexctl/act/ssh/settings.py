"""Where and how a host is reached: by the user's words, then by ssh_config (see `sshconfig`), then by defaults."""

import getpass
from pathlib import Path

from ipexctl.act.inputs import expand_home
from ipexctl.act.ssh.hostkeys import format_known_host_name
from ipexctl.act.ssh.sshconfig import ALGORITHMS, Hop, HostOptions, find_options, read_config
from ipexctl.model.errors import ConnectError
from ipexctl.model.hosts import Host
from ipexctl.model.json_values import Record
from ipexctl.model.text import printable

_SYSTEM = Path("/etc/ssh/ssh_config")
_USER_KNOWN = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_JUMP_LIMIT = 16  # one behind the other; tokens in ProxyJump can make a loop of ever new names
DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_GLOBAL_KNOWN = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


class Settings(Record):
    """How one host (or one hop on the way to it) is reached."""

    name: str  # as the user wrote it
    pattern: str  # what Host lines of ssh_config are compared with
    address: str
    user: str
    port: int
    keys: tuple[str, ...]  # identity files, in the order they are tried; empty: the default ones
    certificates: tuple[str, ...]
    only_these_keys: bool  # IdentitiesOnly
    agent: str | None  # IdentityAgent, the socket of the agent that is asked for keys; empty: none; None: as usual
    alias: str | None  # HostKeyAlias
    known_hosts: tuple[Path, ...]  # new keys are recorded in the first
    user_known_hosts: tuple[Path, ...]  # what they may not contradict, where the hostfile names the first; else ()
    accept_new: bool  # StrictHostKeyChecking accept-new
    timeout: float | None  # ConnectTimeout, seconds
    command: str | None  # ProxyCommand
    algorithms: tuple[tuple[str, str], ...]  # keyword of ssh_config and its value, such as "+aes128-cbc"
    jump: "Settings | None"  # the jump host before it, which may have one of its own

    @property
    def endpoint(self) -> str:
        """The place for a message: ``10.1.0.3:22``."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def list_known_host_names(settings: Settings) -> tuple[str, str]:
    """Returns the name of a host in known hosts, and a second one under which its key is taken, or "": a key that is
    known without the port is good for every port of a host."""
    if settings.alias:
        return settings.alias.lower(), ""
    other = "" if settings.port == 22 else settings.address.lower()
    return format_known_host_name(settings.address, settings.port), other


class SSHSettings:
    """Reads ssh_config once (``path``, then the ``system``'s; without a path neither) and answers for hosts.
    ``known_hosts`` replaces the user's files. Raises `UsageError` for a file that cannot be read as ssh_config, or that
    others can write; `ConnectError` for a host that cannot be reached as it says."""

    def __init__(self, path: Path | None, system: Path = _SYSTEM, known_hosts: Path | None = None) -> None:
        paths = [expand_home(str(path)), system] if path else []
        self._config = [line for place in paths for line in read_config(place, place.parent)]
        self._known_hosts = known_hosts

    def find_settings(self, host: Host) -> "Settings":
        hop = Hop(host.name, host.address, host.user, host.port)
        jumps = tuple(map(Hop.parse, host.vars["jump"].split(","))) if "jump" in host.vars else ()
        return self._resolve_settings(hop, jumps, (), host.key, host.vars.get("known_hosts"))

    def _resolve_settings(
        self, host: Hop, jumps: tuple[Hop, ...], behind: tuple[Hop, ...], key: str | None, known_hosts: str | None
    ) -> "Settings":
        """``jumps`` were named for this hop and beat its own; ``behind`` are the hosts that are reached through it. A
        jump host that would be behind itself, by a ProxyJump for all hosts, is reached directly."""
        options = find_options(self._config, host.host, host.user, host.port)
        try:
            jumps = jumps or tuple(map(Hop.parse, options.get_proxy("proxyjump")))
        except ValueError:
            raise ConnectError("jump", f"ProxyJump names no host: {printable(options.get_word('proxyjump'))}") from None
        behind = (*behind, host)
        direct = not jumps or jumps[-1] in behind or len(behind) > _JUMP_LIMIT
        jump = None if direct else self._resolve_settings(jumps[-1], jumps[:-1], behind, None, None)
        return Settings(
            name=host.text,
            pattern=host.host,
            address=options.host,
            user=host.user or options.get_word("user") or getpass.getuser(),
            port=host.port or int(options.get_word("port", "0")) or 22,
            keys=(key,) if key else options.get_paths("identityfile"),
            certificates=options.get_paths("certificatefile"),
            only_these_keys=bool(key) or options.get_word("identitiesonly") == "yes",
            agent=options.get_agent(),
            alias=options.get_word("hostkeyalias") or None,
            known_hosts=self._list_known_hosts(options, known_hosts),
            user_known_hosts=self._list_known_hosts(options, None) if known_hosts else (),
            accept_new=options.get_word("stricthostkeychecking") == "accept-new",
            timeout=float(options.get_word("connecttimeout", "0")) or None,
            command=None if jumps else next(iter(options.get_proxy("proxycommand")), None),
            algorithms=tuple((word, options.get_word(word)) for word in ALGORITHMS if options.get_word(word)),
            jump=jump,
        )

    def _list_known_hosts(self, options: HostOptions, named: str | None) -> tuple[Path, ...]:
        """``named`` are those of the host itself."""
        given = named or self._known_hosts
        own = (str(given),) if given else options.get_paths("userknownhostsfile") or _USER_KNOWN
        own = tuple("/dev/null" if name == "none" else name for name in own)
        system = options.get_files("globalknownhostsfile") or tuple(map(Path, _GLOBAL_KNOWN))
        return (*map(expand_home, own), *(path for path in system if str(path) != "none"))
