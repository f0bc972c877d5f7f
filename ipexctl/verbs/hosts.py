"""``ipexctl hosts``: what was read, for people, for programs, and for other tools. Contacts nobody."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from ipexctl.decide.parsing.dialects import write_inventory
from ipexctl.decide.parsing.validators import KEYS
from ipexctl.model.answers import HostsAnswer, ListedHost
from ipexctl.model.errors import Exit
from ipexctl.model.events import Answer, Ended, Event, Message, Started
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.text import printable


def hosts(inventory: Inventory, *, dialect: str = "ipexctl") -> Iterator[Event]:
    """The answer's ``text`` is the inventory in ``dialect`` (a key of `DIALECTS`), the rest is what ``--json`` prints.

    Raises `UsageError` for an unknown dialect, before the first event.
    """
    written = write_inventory(inventory, dialect)
    title = f"{len(inventory)} hosts from {printable(inventory.source)} (node0 = {inventory.head.name})"
    yield Started("hosts", title, inventory.names)
    for warning in (*_not_honoured(inventory), *written.warnings):
        yield Message(warning, "warning")
    yield Answer(HostsAnswer(inventory.source, tuple(_listed(host) for host in inventory), written.text))
    yield Ended("hosts", Exit.OK)


def _listed(host: Host) -> ListedHost:
    return ListedHost(
        name=host.name,
        address=host.address,
        user=host.user,
        port=host.port,
        slots=host.slots,
        key=host.key,
        local=host.is_local,
        groups=host.groups,
        vars=host.vars,
        origin=str(host.origin) if host.origin else None,
    )


_NOT_FOLLOWED = {"ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_executable"}


def _not_honoured(inventory: Inventory) -> Iterator[str]:
    """Variables that change how a host is reached, and that we do not follow; and those that look like a slip."""
    named: dict[str, list[str]] = {}
    for host in inventory:
        for key in host.vars:
            named.setdefault(key, []).append(host.name)
    for key, names in named.items():
        of = f"{key} of {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        close = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.8)
        if key in _NOT_FOLLOWED:
            yield f"{of} is not followed: put it into ~/.ssh/config"
        elif key not in KEYS and close:
            yield f"{of} is not a key of ipexctl: did you mean {close[0]}?"
