"""``ipexctl hosts``: shows the inventory, also in the formats of other tools, and persistent connections to them.
Contacts no host."""

import difflib
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

from ipexctl.decide.parsing.dialects import write_inventory
from ipexctl.decide.parsing.validators import KEYS
from ipexctl.model.answers.hosts import HostsAnswer, ListedHost
from ipexctl.model.errors import Exit
from ipexctl.model.events import Answer, Ended, Event, Message, Started
from ipexctl.model.grouping import group_pairs
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.text import join_names, pluralize, printable


def hosts(
    inventory: Inventory, *, dialect: str = "ipexctl", holders: Path | None = None, disconnect: bool = False
) -> Iterator[Event]:
    """Yields a `HostsAnswer`, whose ``text`` is the inventory in ``dialect`` (a key of `DIALECTS`).

    ``holders`` is the directory of persistent connections; with ``disconnect`` those to these hosts are ended.
    Raises `UsageError` for an unknown dialect, before the first event."""
    written = write_inventory(inventory, dialect)
    title = f"{pluralize(len(inventory), 'host')} from {printable(inventory.source)} (node0 = {inventory.head.name})"
    yield Started("hosts", title, inventory.names)
    for warning in (*_find_ignored_vars(inventory), *written.warnings):
        yield Message(warning, "warning")
    pids = yield from _list_connections(inventory, holders, disconnect=disconnect)
    listed = tuple(replace(_list_host(host), holder_pid=pids.get(host.name)) for host in inventory)
    yield Answer(HostsAnswer(inventory.source, listed, written.text))
    yield Ended("hosts", Exit.OK)


def _list_connections(
    inventory: Inventory, holders: Path | None, *, disconnect: bool
) -> Generator[Event, None, dict[str, int]]:
    """The processes that hold connections to these hosts, by host; none after they were ended."""
    if holders is None or not holders.is_dir():
        return {}
    from ipexctl.act.ssh.holder import end_connections, list_connections

    pids: dict[str, int] = {}
    endpoints: dict[str, tuple[str, str]] = {}  # name of a connection → host, endpoint
    for name, (record, pid) in list_connections(holders).items():
        for host in inventory:
            if record.is_for(host):
                endpoints[name], pids[host.name] = (host.name, record.endpoint), pid
                if not disconnect:
                    yield Message(f"persistent connection: process {pid} ({record.endpoint})", "info", host.name)
    if not disconnect:
        return pids
    end_connections(holders, [*endpoints])
    left = list_connections(holders)
    for name, (host_name, endpoint) in endpoints.items():
        what = "does not end" if name in left else "ended"
        yield Message(f"persistent connection: {what} ({endpoint})", "info", host_name)
    return {}


def _list_host(host: Host) -> ListedHost:
    connection = (host.name, host.address, host.user, host.port, host.slots, host.key)
    return ListedHost(*connection, host.is_local, host.groups, host.vars, str(host.origin) if host.origin else None)


_IGNORED_VARS = {"ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_executable"}


def _find_ignored_vars(inventory: Inventory) -> Iterator[str]:
    """Warns about Ansible variables that ipexctl ignores, and about probable typing errors in keys."""
    for key, names in group_pairs((key, host.name) for host in inventory for key in host.vars).items():
        of = f"{key} of {join_names(names, 1)}"
        close = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.8)
        if key in _IGNORED_VARS:
            yield f"{of} is ignored: put it into ~/.ssh/config"
        elif key not in KEYS and close:
            yield f"{of} is not a key of ipexctl: did you mean {close[0]}?"
