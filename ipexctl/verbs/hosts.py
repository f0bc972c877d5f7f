"""``ipexctl hosts``: shows the inventory, also as a machine file. Contacts no host."""

import difflib
from collections.abc import Iterator

from ipexctl.decide.parsing.dialects import write_inventory, write_machine_file
from ipexctl.decide.parsing.validators import KEYS
from ipexctl.model.answers.hosts import HostsAnswer, ListedHost
from ipexctl.model.events import Event, Message, Started, finish_verb
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.text import group_pairs, join_names, pluralize, printable


def hosts(inventory: Inventory, *, machine_file: bool = False) -> Iterator[Event]:
    """Yields a `HostsAnswer`, whose ``text`` is the inventory as ipexctl or (``machine_file``) Hydra reads it."""
    text, warnings = write_machine_file(inventory) if machine_file else (write_inventory(inventory), [])
    title = f"{pluralize(len(inventory), 'host')} from {printable(inventory.source)} (node0 = {inventory.head.name})"
    yield Started("hosts", title, inventory.names)
    for warning in (*_find_misspelt_keys(inventory), *warnings):
        yield Message(warning, "warning")
    listed = tuple(_list_host(host) for host in inventory)
    yield from finish_verb("hosts", HostsAnswer(inventory.source, listed, text))


def _list_host(host: Host) -> ListedHost:
    connection = (host.name, host.address, host.user, host.port, host.slots, host.key)
    return ListedHost(*connection, host.is_local, host.groups, host.vars, str(host.origin) if host.origin else None)


def _find_misspelt_keys(inventory: Inventory) -> Iterator[str]:
    """Warns about probable typing errors in keys."""
    for key, names in group_pairs((key, host.name) for host in inventory for key in host.vars).items():
        close = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.8)
        if key not in KEYS and close:
            yield f"{key} of {join_names(names, 1)} is not a key of ipexctl: did you mean {close[0]}?"
