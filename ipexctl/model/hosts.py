"""Hosts as the user wrote them."""

from collections.abc import Iterator, Mapping

from ipexctl.model.errors import Origin
from ipexctl.model.json_values import Record, field


class Host(Record):
    """A machine that can be reached over SSH. ``name`` is what the user calls it and is unique in an inventory;
    ``address`` is what is connected to (a name, an IPv4 or an IPv6 address without brackets). ``None``: not given, SSH
    configuration decides."""

    name: str
    address: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None  # room for ranks
    key: str | None = None  # path of an identity file
    groups: tuple[str, ...] = ()
    vars: Mapping[str, str] = field(default_factory=dict)  # venv, workdir, python, iface, local … as written
    origin: Origin | None = None
    hint: str | None = None  # what helps if it cannot be reached as written

    @property
    def is_local(self) -> bool:
        """Reached without SSH: with ``local=yes``, or written ``localhost`` without ``local=no``, user, port or key."""
        if "local" in self.vars:
            return self.vars["local"] in {"yes", "true", "1"}
        return self.address == "localhost" and self.user is None and self.port is None and self.key is None


class Inventory(Record):
    """Hosts in the order of the file; the first is the head (node0), where mpirun starts."""

    hosts: tuple[Host, ...]
    source: str = ""  # the file, or "--hosts"
    limit: str = ""  # --limit, as it chose these from the source
    warnings: tuple[str, ...] = ()  # of reading it; a verb says them first
    left_out: tuple[Host, ...] = ()  # by --limit

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __len__(self) -> int:
        return len(self.hosts)

    @property
    def head(self) -> Host:
        return self.hosts[0]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)

    def __getitem__(self, name: str) -> Host:
        return {host.name: host for host in self.hosts}[name]
