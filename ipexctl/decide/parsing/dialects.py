"""Inventories written as hostfiles. Keys that a format lacks are reported, never dropped silently."""

from dataclasses import replace

from ipexctl.decide.parsing import validators
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.text import group_pairs, printable


def write_inventory(inventory: Inventory) -> str:
    """Returns a hostfile, which carries everything. Keys of others are read only in a file with a section."""
    foreign = any(
        key not in validators.KEYS and not key.startswith("ansible_") for host in inventory for key in host.vars
    )
    lines = ["[ungrouped]"] if foreign else []
    lines += [" ".join([_bracket_ipv6(host.name), *_write_pairs(host)]) for host in inventory]
    for group, members in group_pairs((group, host) for host in inventory for group in host.groups).items():
        lines += ["", f"[{group}]", *(_bracket_ipv6(host.name) for host in members)]
    return "\n".join(lines) + "\n"


def _write_pairs(host: Host) -> list[str]:
    address = host.address if host.address != host.name else None
    given = {"address": address, "slots": host.slots, "user": host.user, "port": host.port, "key": host.key}
    return [f"{key}={_quote(str(value))}" for key, value in {**given, **host.vars}.items() if value is not None]


def write_list_entry(host: Host) -> str:
    """Returns how ``--hosts`` describes a host: ``ann@n1:4``, ``n2 port=2222``."""
    user = f"{host.user}@" if host.user else ""
    slots = f":{host.slots}" if host.slots not in {None, 22} else ""  # :22 may be a port
    variables = {key: value for key, value in host.vars.items() if key in validators.KEYS}
    pairs = _write_pairs(replace(host, user=None, slots=None if slots else host.slots, vars=variables))
    return " ".join([user + _bracket_ipv6(host.name) + slots, *pairs])


def write_machine_file(inventory: Inventory) -> tuple[str, list[str]]:
    """Returns the hosts for Intel MPI and MPICH, ``address:slots user=…``: one line a host, above it its name where it
    is not the address, and what is lost; and a sentence for each such loss. MPICH 5.0.2 refuses a comment behind a
    host, Intel MPI 2021.18 MPICH's ``binding=``: not written."""
    lines: list[str] = []
    warnings: list[str] = []
    for host in inventory:
        lost = {"port": host.port, "key": host.key, **host.vars}
        missing = [f"{key}={value}" for key, value in lost.items() if value is not None]
        if ":" in host.address:
            missing.insert(0, "IPv6 (Hydra reads an address up to its first colon)")
        if missing:
            warnings.append(f"{host.name}: no field of Intel MPI and MPICH holds {', '.join(missing)}")
            lines.append(f"# {printable(warnings[-1], 500)}")
        slots = f":{host.slots}" if host.slots else ""
        user = f" user={host.user}" if host.user else ""
        if host.name != host.address:
            lines.append(f"# {host.name}")
        lines.append(f"{_bracket_ipv6(host.address)}{slots}{user}")
    return "\n".join(lines) + "\n", warnings


def _bracket_ipv6(name: str) -> str:
    return f"[{name}]" if validators.is_ipv6(name) else name


def _quote(value: str) -> str:
    """Returns a value as `read_host_lines` reads it back: bare where that is enough, else in double quotes."""
    if value and not set(value) & set(" \t'\"#\\"):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
