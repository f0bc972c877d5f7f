"""Checks of connections, limits, disks, addresses and clocks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from ipaddress import ip_address
from statistics import median

from ipexctl.decide.checks.cluster import CheckHit, Cluster, find_majority, format_size
from ipexctl.decide.checks.network import choose_interfaces, find_isolated_interfaces
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host

NEEDED = 4 << 30  # bytes of one environment: 3.4 GiB measured for a CPU row, and room to unpack
_LITTLE = 128 << 20  # bytes below which logs and checkpoints do not fit either
LOOKED_UP = 16  # hosts up to which every name is looked up on every host; beyond, the head's alone
_SSH_FINDINGS = {
    "host-key-changed": "SSH003",
    "host-key-revoked": "SSH002",
    "host-key-unknown": "SSH002",
    "auth": "SSH004",
    "key-mode": "SSH004",
}
_REQUIRED = ("arch", "isa_level", "cpus_online", "mem_total_kb")


def check_reachability(cluster: Cluster) -> Iterator[CheckHit]:
    for host, failure in cluster.failures.items():
        remedy = failure.hint or shlex.join([*_format_ssh_command(cluster.inventory[host]), "true"])
        yield CheckHit(_choose_failure_code(failure), host, {"what": failure.what, "remedy": remedy})


def _format_ssh_command(host: Host) -> list[str]:
    """The ssh command for the same connection: options of the hostfile, the rest from SSH's own configuration."""
    port = ["-p", str(host.port)] if host.port else []
    key = ["-i", host.key] if host.key else []
    return ["ssh", *port, *key, f"{host.user}@{host.address}" if host.user else host.address]


def _choose_failure_code(failure: Failure) -> str:
    if failure.kind is not Kind.UNREACHABLE:
        return "DOC003"
    return _SSH_FINDINGS.get(failure.code, "SSH001")


def check_unread_facts(cluster: Cluster) -> Iterator[CheckHit]:
    for host, fact in cluster.facts.items():
        if fact.unread:
            yield CheckHit("DOC001", host, {}, "\n".join(f"{item}: {why}" for item, why in fact.unread.items()))


def check_required_facts(cluster: Cluster) -> Iterator[CheckHit]:
    for host, fact in cluster.facts.items():
        missing = [name for name in _REQUIRED if getattr(fact, name) is None]
        if fact.arch not in (None, "x86_64"):
            missing = [name for name in missing if name != "isa_level"]
        if missing:
            yield CheckHit("DOC002", host, {"facts": ", ".join(missing)}, "", None if cluster.live else "info")


def check_duplicates(cluster: Cluster) -> Iterator[CheckHit]:
    """Hosts of one lab are one machine on purpose."""
    machines: dict[tuple[str, str], list[str]] = {}
    for host in cluster.inventory:
        fact = cluster.facts.get(host.name)
        if fact is not None and fact.machine_id is not None:
            lab = host.vars.get("lab")
            machines.setdefault((fact.machine_id, f"{lab}/{host.name}" if lab else ""), []).append(host.name)
    for (machine, _), hosts in machines.items():
        for name in hosts if len(hosts) > 1 else ():
            names_text = " and ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
            same = f"{names_text}: host name {cluster.facts[name].hostname}"
            yield CheckHit("DUP001", name, {"machine": machine}, same)


def check_limits(cluster: Cluster) -> Iterator[CheckHit]:
    for host, fact in cluster.facts.items():
        files, tasks = fact.limits.get("nofile"), fact.limits.get("nproc")
        if files is not None and files < 4096:  # 1024 is the usual default, and enough for few ranks
            yield CheckHit("LIM001", host, {"value": files}, "", "info" if files >= 1024 else None)
        if tasks is not None and tasks < 4096:
            yield CheckHit("LIM003", host, {"value": tasks})
        devices = [card.name for card in fact.interfaces if card.name.startswith(("ib", "opa", "hsi", "roce"))]
        locked = fact.limits.get("memlock")
        if devices and locked is not None and locked < 1 << 30:
            yield CheckHit("LIM002", host, {"value": format_size(locked), "devices": ", ".join(devices)})


def check_disks(cluster: Cluster) -> Iterator[CheckHit]:
    for host, fact in cluster.facts.items():
        venv = fact.installed.venv if fact.installed else None
        mounts = set()
        for disk in fact.disks:
            if disk.path == "/dev/shm" or disk.free is None or disk.mount in mounts:
                continue
            mounts.add(disk.mount)
            fresh = disk.path == venv and not (fact.installed and fact.installed.exists)
            needed = NEEDED if fresh else _LITTLE
            if disk.free < needed:
                values = {"path": disk.path, "needed": format_size(needed)}
                room = f"{format_size(disk.free)} free on {disk.mount} {disk.filesystem}".strip()
                yield CheckHit("DSK001", host, values, room)
            if fresh and disk.writable is False:
                yield CheckHit("DSK002", host, {"path": disk.path}, f"mount {disk.mount} {disk.filesystem}".strip())


def check_own_name(cluster: Cluster) -> Iterator[CheckHit]:
    """A loopback address for the own name is harmless on a single host."""
    if len(cluster.inventory) < 2:
        return
    for host, fact in cluster.facts.items():
        loopback = [address for address in fact.self_addresses if _is_loopback(address)]
        if loopback and not _is_loopback(fact.ssh_address or "127.0.0.1"):
            yield CheckHit("NET001", host, {"address": loopback[0]})


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def _is_global(word: str) -> bool:
    return not word.startswith("fe80:")


def check_name_resolution(cluster: Cluster) -> Iterator[CheckHit]:
    """Names that the hostfile connects to, and that a host of it does not resolve (where it resolves anything)."""
    wanted = [host.address for host in cluster.inventory if not _is_address(host.address)]
    for host, fact in cluster.facts.items():
        missing = [name for name in wanted if name not in fact.names]
        asked = len(cluster.inventory) > 1 and fact.names and "getent hosts" not in fact.unread
        if asked and missing and cluster.live and len(wanted) <= LOOKED_UP:
            yield CheckHit("NET006", host, {}, ", ".join(missing[:8]))


def _is_address(text: str) -> bool:
    try:
        return bool(ip_address(text))
    except ValueError:
        return False


def check_virtual_interfaces(cluster: Cluster) -> Iterator[CheckHit]:
    for host, fact in cluster.facts.items():
        names = [card.name for card in fact.interfaces if card.virtual and any(map(_is_global, card.addresses))]
        if names and any(not card.virtual and card.name != "lo" for card in fact.interfaces):
            yield CheckHit("NET002", host, {}, ", ".join(names[:8]))


def check_network(cluster: Cluster) -> Iterator[CheckHit]:
    """Of the interfaces that a run would use: same subnet, same MTU, same speed."""
    if len(cluster.facts) < 2:
        return
    for host, (words, mistaken) in find_isolated_interfaces(cluster.facts).items():
        yield CheckHit("NET013", host, {"names": ", ".join(words)}, "", None if mistaken else "info")
    chosen = choose_interfaces(cluster.facts)
    cards = {}
    for host, fact in cluster.facts.items():
        choice = chosen.get(host)
        if choice is None:
            if fact.interfaces:
                yield CheckHit("NET003", host, {}, _list_interface_addresses(fact))
            continue
        cards[host] = next((card for card in fact.interfaces if card.name == choice.name), None)
        if choice.reason.code == "no-shared-subnet":
            yield CheckHit("NET003", host, {}, f"{_list_interface_addresses(fact)}; {choice.reason.text}", "warning")
    mtus = {host: card.mtu for host, card in cards.items() if card and card.mtu}
    usual = find_majority(mtus)
    for host, mtu in mtus.items():
        if mtu != usual and (card := cards[host]):
            yield CheckHit("NET004", host, {"mtu": mtu, "usual": usual, "interface": card.name})
    speeds = {host: card.speed for host, card in cards.items() if card and card.speed}
    for host, speed in speeds.items():
        usual_speed = find_majority(speeds)
        if usual_speed and speed < usual_speed and (card := cards[host]):
            yield CheckHit("NET005", host, {"speed": speed, "usual": usual_speed, "interface": card.name})


def _list_interface_addresses(fact: Facts) -> str:
    words = [
        f"{card.name} {' '.join(card.addresses)}" for card in fact.interfaces if card.addresses and card.name != "lo"
    ]
    return ", ".join(words[:6]) or "none"


def check_clock(cluster: Cluster) -> Iterator[CheckHit]:
    offsets = cluster.known(lambda fact: fact.clock_offset)
    middle = median(offsets.values()) if offsets else 0.0
    for host, offset in offsets.items():
        doubt = cluster.facts[host].clock_error or 0.0
        if abs(offset) > 1 + doubt:
            direction = "ahead of" if offset > 0 else "behind"
            by = f"{abs(offset):.0f} s" if abs(offset) >= 100 else f"{abs(offset):.1f} s"
            same_offset = len(offsets) > 1 and all(abs(other - middle) <= 1 for other in offsets.values())
            evidence = "as all hosts are: this machine's clock is the wrong one" if same_offset else f"± {doubt:.1f} s"
            yield CheckHit("SYS001", host, {"direction": direction}, f"{by} {evidence}")


def check_distributions(cluster: Cluster) -> Iterator[CheckHit]:
    for host, own, usual in cluster.odd(lambda fact: fact.distribution):
        yield CheckHit(
            "SYS005", host, {"distribution": own, "usual": usual}, f"glibc {cluster.facts[host].glibc or 'unknown'}"
        )


def check_scheduler(cluster: Cluster) -> Iterator[CheckHit]:
    for host, fact in cluster.facts.items():
        if fact.scheduler:
            yield CheckHit("SYS006", host, {"scheduler": fact.scheduler})
