"""Checks of connections, limits, disks, addresses and clocks."""

import shlex
from collections.abc import Iterator
from statistics import median

from ipexctl.decide.checks.cluster import CheckHit, Cluster, find_majority
from ipexctl.decide.checks.network import (
    find_isolated_interfaces,
    is_loopback,
    list_private_addresses,
    select_interfaces,
)
from ipexctl.decide.facts.numbers import parse_ip_interface
from ipexctl.model.errors import Kind
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host
from ipexctl.model.text import format_size, group_pairs, join_names

NEEDED = 4 << 30  # bytes of one environment: 3.4 GiB measured for a CPU row, and room to unpack
_HOME_REMEDY = "for an administrator: a home directory that this login can write, where runs keep their files"
_LOG_SPACE = 128 << 20  # bytes below which logs and checkpoints do not fit either
LOOKED_UP = 16  # hosts up to which every name is looked up on every host; beyond, the head's alone
_SSH_FINDINGS = {
    "host-key-changed": "SSH003",
    "host-key-revoked": "SSH002",
    "host-key-unknown": "SSH002",
    "auth": "SSH004",
    "key-file": "SSH004",
    "key-mode": "SSH004",
    "passphrase": "SSH004",
}
_REQUIRED = ("arch", "isa_level", "cpus_online", "mem_total_kb")


def check_reachability(cluster: Cluster) -> Iterator[CheckHit]:
    for host, failure in cluster.failures.items():
        code = _SSH_FINDINGS.get(failure.code, "SSH001") if failure.kind is Kind.UNREACHABLE else "DOC003"
        remedy = failure.hint or _choose_remedy(cluster.inventory[host], failure.code)
        yield CheckHit(code, host, {"what": failure.what, "remedy": remedy})


def _choose_remedy(host: Host, code: str) -> str:
    """Returns where a wrong word was written, or the command that shows what keeps SSH from it."""
    place = str(host.origin or "the hostfile")
    if code == "key-file" and host.key:
        return f"key= of {host.name} in {place} must name a private key of this machine"
    if code == "dns":
        address = "its IP in place of its name" if place.startswith("--hosts") else f"its address=IP in {place}"
        return f"write {address}, or HostName for {host.name} in ~/.ssh/config"
    return shlex.join([*_format_ssh_command(host), "true"])


def _format_ssh_command(host: Host) -> list[str]:
    """The ssh command for the same connection: options of the hostfile, the rest from SSH's own configuration."""
    port = ["-p", str(host.port)] if host.port else []
    key = ["-i", host.key] if host.key else []
    jump = ["-J", host.vars["jump"]] if "jump" in host.vars else []
    known = ["-o", f"UserKnownHostsFile={host.vars['known_hosts']}"] if "known_hosts" in host.vars else []
    return ["ssh", *port, *key, *jump, *known, f"{host.user}@{host.address}" if host.user else host.address]


def check_required_facts(cluster: Cluster) -> Iterator[CheckHit]:
    for host, fact in cluster.facts.items():
        missing = [name for name in _REQUIRED if getattr(fact, name) is None]
        if fact.arch not in (None, "x86_64", "aarch64"):
            missing = [name for name in missing if name != "isa_level"]
        if missing:
            yield CheckHit("DOC002", host, {"facts": ", ".join(missing)}, "", None if cluster.live else "info")


def check_duplicate_machines(cluster: Cluster) -> Iterator[CheckHit]:
    """Hosts of one lab are one machine on purpose."""
    labs = {host.name: f"{host.vars['lab']}/{host.name}" for host in cluster.inventory if host.vars.get("lab")}
    ids = cluster.collect_known(lambda fact: fact.machine_id)
    for (machine, _), hosts in group_pairs(((ids[host], labs.get(host)), host) for host in ids).items():
        for name in hosts if len(hosts) > 1 else ():
            same = f"{join_names(hosts, 4, ' and ')}: host name {cluster.facts[name].hostname}"
            yield CheckHit("DUP001", name, {"machine": machine}, same)


def check_resource_limits(host: str, fact: Facts) -> Iterator[CheckHit]:
    """Facts that could not be read, limits of processes, free space, a batch system."""
    if fact.unread:
        yield CheckHit("DOC001", host, {}, "\n".join(f"{item}: {why}" for item, why in fact.unread.items()))
    files, tasks, locked = (fact.limits.get(name) for name in ("nofile", "nproc", "memlock"))
    if files is not None and files < 4096:  # 1024 is the usual default, and enough for few ranks
        yield CheckHit("LIM001", host, {"value": files}, "", "info" if files >= 1024 else None)
    if tasks is not None and tasks < 4096:
        yield CheckHit("LIM003", host, {"value": tasks})
    devices = [card.name for card in fact.interfaces if card.name.startswith(("ib", "opa", "hsi", "roce"))]
    if devices and locked is not None and locked < 1 << 30:
        yield CheckHit("LIM002", host, {"value": format_size(locked), "devices": ", ".join(devices)})
    if relative := [word or "(an empty entry)" for word in (fact.path or "/").split(":") if not word.startswith("/")]:
        yield CheckHit("SYS008", host, {"entries": ", ".join(relative)})
    if fact.open_directories:
        yield CheckHit("SYS009", host, {"directories": join_names(fact.open_directories, 4)})
    if fact.scheduler:
        yield CheckHit("SYS006", host, {"scheduler": fact.scheduler})


def check_disks(host: str, fact: Facts) -> Iterator[CheckHit]:
    """Room for the environment and for what runs write, once for each mount; a home that takes no run."""
    venv = fact.installed.venv if fact.installed and not fact.installed.exists else None
    mounts: set[str] = set()
    for disk in fact.disks:
        fresh, where = disk.path == venv, f"{disk.mount} {disk.filesystem}".strip()
        if disk.writable is False and (fresh or disk.path == fact.home):
            remedy = "another place, which this login can write: --venv DIRECTORY" if fresh else _HOME_REMEDY
            yield CheckHit("DSK002", host, {"path": disk.path, "remedy": remedy}, f"mount {where}")
        if disk.executable is False and (fresh or disk.path == fact.home):
            remedy = f"for an administrator: sudo mount -o remount,exec {shlex.quote(disk.mount)}"
            remedy = "another place: --venv DIRECTORY" if fresh else remedy
            yield CheckHit("DSK004", host, {"path": disk.path, "remedy": remedy}, f"mount {where}")
        if disk.path == "/dev/shm" or disk.free is None or disk.mount in mounts:
            continue
        mounts.add(disk.mount)
        needed = NEEDED if fresh else _LOG_SPACE
        if disk.free < needed:
            temporary = disk.path == "/tmp"  # runs begin without room there
            remedy = "run --env TMPDIR=DIRECTORY" if temporary else "--venv DIRECTORY"
            values = {"path": disk.path, "needed": format_size(needed), "remedy": remedy}
            evidence = f"{format_size(disk.free)} free on {where}"
            yield CheckHit("DSK001", host, values, evidence, "warning" if temporary else None)


def check_own_host_name(cluster: Cluster) -> Iterator[CheckHit]:
    """Yields a loopback address for the own name is harmless on a single host."""
    for host, fact in cluster.facts.items() if len(cluster.inventory) > 1 else ():
        loopback = [address for address in fact.self_addresses if is_loopback(address)]
        if loopback and not is_loopback(fact.ssh_address):
            yield CheckHit("NET001", host, {"address": loopback[0]})


def check_name_resolution(cluster: Cluster) -> Iterator[CheckHit]:
    """Names that the hostfile connects to, and that a host of it does not resolve (where it resolves anything)."""
    wanted = [host.address for host in cluster.inventory if not parse_ip_interface(host.address)]
    for host, fact in cluster.facts.items():
        missing = [name for name in wanted if name not in fact.names]
        asked = len(cluster.inventory) > 1 and fact.names and "getent hosts" not in fact.unread
        if asked and missing and cluster.live and len(wanted) <= LOOKED_UP:
            yield CheckHit("NET006", host, {}, ", ".join(missing[:8]))


def check_virtual_interfaces(host: str, fact: Facts) -> Iterator[CheckHit]:
    virtual = [card for card in fact.interfaces if card.virtual]
    names = [card.name for card in virtual if not all(word.startswith("fe80:") for word in card.addresses)]
    if names and any(not card.virtual and card.name != "lo" for card in fact.interfaces):
        yield CheckHit("NET002", host, {}, ", ".join(names[:8]))


def check_network(cluster: Cluster) -> Iterator[CheckHit]:
    """Of the interfaces that a run would use: same subnet, same MTU, same speed."""
    if len(cluster.facts) < 2:
        return
    for host, (words, mistaken) in find_isolated_interfaces(cluster.facts).items():
        yield CheckHit("NET013", host, {"names": ", ".join(words)}, "", None if mistaken else "info")
    chosen, _ = select_interfaces(cluster.inventory, cluster.facts)
    for host, fact in cluster.facts.items():
        others = (card for card in fact.interfaces if card.addresses and card.name != "lo")
        addresses = ", ".join([f"{card.name} {' '.join(card.addresses)}" for card in others][:6]) or "none"
        choice = chosen.get(host)
        if choice is None and fact.interfaces:
            yield CheckHit("NET003", host, {}, addresses)
        elif choice and choice.reason.code == "no-shared-subnet":
            yield CheckHit("NET003", host, {}, f"{addresses}; {choice.reason.text}", "warning")
        elif choice and choice.reason.code == "routed":
            yield CheckHit("NET003", host, {}, f"{addresses}; {choice.reason.text}", "info")
    cards = {host: card for host in chosen for card in cluster.facts[host].interfaces if card.name == chosen[host].name}
    mtus = {host: card.mtu for host, card in cards.items() if card.mtu}
    speeds = {host: card.speed for host, card in cards.items() if card.speed}
    names = {host: shlex.quote(card.name) for host, card in cards.items()}  # a host's word, in a command for root
    usual_mtu, usual_speed = find_majority(mtus), find_majority(speeds) or 0
    for host, mtu in mtus.items():
        if mtu != usual_mtu:
            yield CheckHit("NET004", host, {"mtu": mtu, "usual": usual_mtu, "interface": names[host]})
    for host, speed in speeds.items():
        if speed < usual_speed:
            yield CheckHit("NET005", host, {"speed": speed, "usual": usual_speed, "interface": names[host]})


def check_public_addresses(cluster: Cluster) -> Iterator[CheckHit]:
    """Hosts whose ranks would meet at addresses of the internet; graver where they have private ones."""
    chosen, _ = select_interfaces(cluster.inventory, cluster.facts)
    for host, choice in chosen.items() if len(chosen) > 1 else ():
        word = parse_ip_interface(choice.address)
        if word and word.ip.is_global:
            private = list_private_addresses(cluster.facts[host])
            evidence = ", not ".join([f"{choice.name} {choice.address}", *private])
            yield CheckHit("NET014", host, {}, evidence, None if private else "info")


def check_clock(cluster: Cluster) -> Iterator[CheckHit]:
    offsets = cluster.collect_known(lambda fact: fact.clock_offset)
    middle = median(offsets.values()) if offsets else 0.0
    for host, offset in offsets.items():
        doubt = cluster.facts[host].clock_error or 0.0
        if abs(offset) > 1 + doubt:
            direction = "ahead of" if offset > 0 else "behind"
            by = f"{abs(offset):.0f} s" if abs(offset) >= 100 else f"{abs(offset):.1f} s"
            same_offset = len(offsets) > 1 and all(abs(other - middle) <= 1 for other in offsets.values())
            if same_offset:
                evidence = "as all hosts are: this machine's clock is the wrong one"
            else:
                evidence = f"± {doubt:.1f} s"
            yield CheckHit("SYS001", host, {"direction": direction}, f"{by} {evidence}")


def check_distributions(cluster: Cluster) -> Iterator[CheckHit]:
    distributions = cluster.collect_known(lambda fact: fact.distribution)
    usual = find_majority(distributions)
    for host, own in distributions.items():
        if own != usual:
            glibc = f"glibc {cluster.facts[host].glibc or 'unknown'}"
            yield CheckHit("SYS005", host, {"distribution": own, "usual": usual}, glibc)
