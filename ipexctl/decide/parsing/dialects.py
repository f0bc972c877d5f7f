"""Inventories written as other tools read them. Keys that a dialect lacks are reported, never dropped silently."""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from functools import partial

from ipexctl.decide.parsing import validators
from ipexctl.decide.parsing.input_errors import suggest_nearest
from ipexctl.decide.parsing.yaml_nodes import quote_yaml
from ipexctl.model.errors import UsageError
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.json_values import Record
from ipexctl.model.text import group_pairs, printable


class DialectOutput(Record):
    """A file's text, and one sentence for each thing it could not carry (also in the text, as comments)."""

    text: str
    warnings: tuple[str, ...] = ()


def write_inventory(inventory: Inventory, dialect: str) -> DialectOutput:
    """``dialect`` is one of `DIALECTS`. Raises `UsageError` for another."""
    writer = DIALECTS.get(dialect)
    if writer is None:
        raise UsageError(f"--as '{printable(dialect)}' is not known{suggest_nearest(dialect, DIALECTS)}")
    return writer(inventory)


def _write_ipexctl(inventory: Inventory) -> DialectOutput:
    """Our own dialect, which carries everything. Keys of others are read only in a file with a section."""
    foreign = any(
        key not in validators.KEYS and not key.startswith("ansible_") for host in inventory for key in host.vars
    )
    lines = ["[ungrouped]"] if foreign else []
    lines += [" ".join([_bracket_ipv6(host.name), *_write_pairs(host)]) for host in inventory]
    for group, members in _group_hosts(inventory).items():
        lines += ["", f"[{group}]", *(_bracket_ipv6(host.name) for host in members)]
    return DialectOutput("\n".join(lines) + "\n")


def _write_pairs(host: Host) -> list[str]:
    address = host.address if host.address != host.name else None
    given = {"address": address, "slots": host.slots, "user": host.user, "port": host.port, "key": host.key}
    return [f"{key}={_quote(str(value))}" for key, value in {**given, **host.vars}.items() if value is not None]


def write_host_list(hosts: Iterable[Host]) -> str:
    """Returns the value of ``--hosts`` that describes these hosts: ``ann@n1:4,n2 port=2222``."""
    return ",".join(map(_write_list_entry, hosts))


def _write_list_entry(host: Host) -> str:
    user = f"{host.user}@" if host.user else ""
    slots = f":{host.slots}" if host.slots not in {None, 22} else ""  # :22 may be a port
    variables = {key: value for key, value in host.vars.items() if key in validators.KEYS}
    pairs = _write_pairs(replace(host, user=None, slots=None if slots else host.slots, vars=variables))
    return " ".join([user + _bracket_ipv6(host.name) + slots, *pairs])


def _format_mpi(host: Host) -> str:
    """Intel MPI and MPICH: ``address:slots user=…``. Intel MPI 2021.18 refuses MPICH's ``binding=``: not written."""
    slots = f":{host.slots}" if host.slots else ""
    return f"{_bracket_ipv6(host.address)}{slots}" + (f" user={host.user}" if host.user else "")


def _format_openmpi(host: Host) -> str:
    """Open MPI: ``user@address slots=n max_slots=n port=n``; the port needs Open MPI 5."""
    user = f"{host.user}@" if host.user else ""
    given = {"slots": host.slots, "max_slots": host.vars.get("max_slots"), "port": host.port}
    words = [f"{key}={value}" for key, value in given.items() if value]
    return " ".join([user + _bracket_ipv6(host.address), *words])


def _write_lines(tool: str, write: Callable[[Host], str], carried: Set[str], inventory: Inventory) -> DialectOutput:
    """One line a host, its name as a comment where it is not the address; above it what is lost: the format has fields
    for the ``carried`` keys."""
    lines: list[str] = []
    warnings: list[str] = []
    for host in inventory:
        lost = {"user": host.user, "port": host.port, "key": host.key, **host.vars}
        missing = [f"{key}={value}" for key, value in lost.items() if value is not None and key not in carried]
        if ":" in host.address and write is _format_mpi:
            missing.insert(0, "IPv6 (Hydra reads an address up to its first colon)")
        if missing:
            warnings.append(f"{host.name}: no field of {tool} holds {', '.join(missing)}")
            lines.append(f"# {printable(warnings[-1], 500)}")
        lines.append(write(host) + (f"  # {host.name}" if host.name != host.address else ""))
    return DialectOutput("\n".join(lines) + "\n", tuple(warnings))


def _write_ansible(inventory: Inventory) -> DialectOutput:
    """Returns a YAML inventory, which carries everything; groups of groups are written flat."""
    lines = ["all:", "  hosts:"]
    for host in inventory:
        given: dict[str, str | int | None] = {
            "ansible_host": host.address if host.address != host.name else None,
            "ansible_user": host.user,
            "ansible_port": host.port,
            "ansible_ssh_private_key_file": host.key,
            "ansible_connection": {"yes": "local", "no": "ssh"}.get(host.vars.get("local", "")),
            "ansible_ssh_common_args": f"-o ProxyJump={host.vars['jump']}" if "jump" in host.vars else None,
            "slots": host.slots,
            **{key: value for key, value in host.vars.items() if key not in ("local", "jump")},
        }
        words = [f"      {key}: {quote_yaml(value)}" for key, value in given.items() if value is not None]
        lines += [f"    {quote_yaml(_bracket_ipv6(host.name))}:{'' if words else ' {}'}", *words]
    groups = _group_hosts(inventory)
    if groups:
        lines.append("  children:")
    for group, members in groups.items():
        lines += [f"    {quote_yaml(group)}:", "      hosts:"]
        lines += [f"        {quote_yaml(_bracket_ipv6(host.name))}: {{}}" for host in members]
    return DialectOutput("\n".join(lines) + "\n")


DIALECTS: Mapping[str, Callable[[Inventory], DialectOutput]] = {
    "ipexctl": _write_ipexctl,
    "mpi": partial(_write_lines, "Intel MPI and MPICH", _format_mpi, {"user"}),
    "openmpi": partial(_write_lines, "Open MPI", _format_openmpi, {"user", "port", "max_slots"}),
    "ansible": _write_ansible,
}
"""What ``hosts --as`` can write."""


def _group_hosts(inventory: Inventory) -> dict[str, list[Host]]:
    return group_pairs((group, host) for host in inventory for group in host.groups)


def _bracket_ipv6(name: str) -> str:
    return f"[{name}]" if validators.is_ipv6(name) else name


def _quote(value: str) -> str:
    """Returns a value as `read_host_lines` reads it back: bare where that is enough, else in double quotes."""
    if value and not set(value) & set(" \t'\"#\\"):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
