"""Which interface a run must use on each host, and why: chosen by subnet, never by name.

Names differ between hosts, ``hostname -I`` starts with whatever came up first, and ``docker0`` has the same address
everywhere; what the hosts of a run have in common is a subnet in which each of them has an address of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network, ip_interface

from ipexctl.model.facts import Facts, Interface
from ipexctl.model.notes import Note

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class InterfaceChoice:
    """The interface of one host, its address there without a prefix, and the reason for the choice."""

    name: str
    address: str
    reason: Note


@dataclass(frozen=True, slots=True)
class _HostAddress:
    """One address of one host."""

    interface: Interface
    word: IPv4Interface | IPv6Interface

    @property
    def address(self) -> str:
        return str(self.word.ip)


def choose_interfaces(facts: Mapping[str, Facts]) -> Mapping[str, InterfaceChoice]:
    """One choice a host, in the order given (the first is the head). A host without any usable address is left out.

    In order: loopback where all hosts are this one machine; else the best subnet in which every host has an address of
    its own (real rather than virtual, the one we came in by, faster, larger MTU, IPv4); else, host by host, the address
    we came in by, or the one of the default route.
    """
    places = {host: tuple(_list_addresses(fact)) for host, fact in facts.items()}
    if is_one_machine(facts):
        return {host: _choose_loopback(fact, places[host]) for host, fact in facts.items()}
    machines = {host: fact.machine_id or host for host, fact in facts.items()}
    shared = sorted(
        _shared_subnets(places, machines), key=lambda network: _rank_subnet(network, facts, places), reverse=True
    )
    if shared:
        return _choose_shared(shared, facts, places)
    chosen = {host: _choose_single(fact, places[host], len(facts)) for host, fact in facts.items()}
    return {host: choice for host, choice in chosen.items() if choice}


def is_one_machine(facts: Mapping[str, Facts]) -> bool:
    """Every host was reached over loopback, or without SSH at all."""
    return bool(facts) and all(is_loopback(fact.ssh_address) for fact in facts.values())


def _list_addresses(fact: Facts) -> Iterator[_HostAddress]:
    for interface in fact.interfaces:
        for text in interface.addresses:
            word = parse_interface(text)
            if word and not word.ip.is_link_local and not word.ip.is_unspecified:
                yield _HostAddress(interface, word)


@lru_cache(4096)  # several checks look at the same addresses, and to read one is much work
def parse_interface(text: str) -> IPv4Interface | IPv6Interface | None:
    try:
        return ip_interface(text)
    except ValueError:
        return None


def _usable_addresses(places: tuple[_HostAddress, ...]) -> Iterator[_HostAddress]:
    """Interfaces of type "unknown" (tun, some virtual drivers) say neither up nor down: they stay in."""
    return (place for place in places if place.interface.up is not False and not place.word.ip.is_loopback)


def is_loopback(address: str | None) -> bool:
    """No address at all is a host reached without SSH: this machine."""
    word = parse_interface(address) if address is not None else None
    return address is None or (word is not None and word.ip.is_loopback)


def _choose_loopback(fact: Facts, places: tuple[_HostAddress, ...]) -> InterfaceChoice:
    name = next((place.interface.name for place in places if place.word.ip.is_loopback), "lo")
    return InterfaceChoice(name, fact.ssh_address or "127.0.0.1", Note("one-machine", "all hosts are this one machine"))


def _shared_subnets(places: Mapping[str, tuple[_HostAddress, ...]], machines: Mapping[str, str]) -> set[Network]:
    """Subnets in which every host has an address, and no two machines the same one."""
    if len(places) < 2:
        return set()
    nets = [{place.word.network for place in _usable_addresses(of_host)} for of_host in places.values()]
    common = set.intersection(*nets)
    return {network for network in common if _has_distinct_addresses(network, places, machines)}


def _has_distinct_addresses(
    network: Network, places: Mapping[str, tuple[_HostAddress, ...]], machines: Mapping[str, str]
) -> bool:
    """An address that two machines have (172.17.0.1 of docker0) leads nowhere."""
    owners: dict[str, str] = {}
    for host, of_host in places.items():
        for place in _usable_addresses(of_host):
            if place.word.network == network and owners.setdefault(place.address, machines[host]) != machines[host]:
                return False
    return True


def _address_in(network: Network, places: tuple[_HostAddress, ...]) -> _HostAddress:
    """The host's place in a network it is in: its fastest, if several."""
    candidates = [place for place in _usable_addresses(places) if place.word.network == network]
    return max(candidates, key=lambda place: (not place.interface.virtual, place.interface.speed or 0))


def _rank_subnet(
    network: Network, facts: Mapping[str, Facts], places: Mapping[str, tuple[_HostAddress, ...]]
) -> tuple[int, int, int, int, int, str]:
    interfaces = [_address_in(network, of_host).interface for of_host in places.values()]
    ssh_hosts = sum(_contains(network, fact.ssh_address) for fact in facts.values())
    return (
        sum(not interface.virtual for interface in interfaces),
        ssh_hosts,
        min(interface.speed or 0 for interface in interfaces),
        min(interface.mtu or 0 for interface in interfaces),
        network.version == 4,
        str(network),  # only so that the answer never depends on the order of a set
    )


def _contains(network: Network, address: str | None) -> bool:
    word = parse_interface(address) if address is not None else None
    return word is not None and word.ip in network


def find_isolated_interfaces(facts: Mapping[str, Facts]) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Real interfaces that are up in a subnet where no other host is ("eth1 10.9.9.1/24"), beside one that is shared;
    and whether that host misses a subnet which all others share, so that the address is probably a mistake."""
    networks = {
        host: {
            place.word.network
            for place in _usable_addresses(tuple(_list_addresses(fact)))
            if not place.interface.virtual
        }
        for host, fact in facts.items()
    }
    counts = Counter(network for of_host in networks.values() for network in of_host)
    usual = {network for network, count in counts.items() if count > 1 and 2 * count > len(facts)}
    isolated = {}
    for host, fact in facts.items():
        words = tuple(
            f"{place.interface.name} {place.word}"
            for place in _usable_addresses(tuple(_list_addresses(fact)))
            if not place.interface.virtual and counts[place.word.network] == 1
        )
        if words and networks[host] & usual:
            isolated[host] = (words, bool(usual - networks[host]))
    return isolated


def _choose_shared(
    shared: list[Network], facts: Mapping[str, Facts], places: Mapping[str, tuple[_HostAddress, ...]]
) -> dict[str, InterfaceChoice]:
    best, others = shared[0], shared[1:]
    chosen: dict[str, InterfaceChoice] = {}
    for host, of_host in places.items():
        place = _address_in(best, of_host)
        reasons = [f"all {len(facts)} hosts are in {best}"]
        if _contains(best, facts[host].ssh_address):
            reasons.append("SSH came in by it")
        if place.interface.speed:
            reasons.append(f"{place.interface.speed} Mbit/s")
        faster = [
            other.interface
            for other in (_address_in(network, of_host) for network in others)
            if (other.interface.speed or 0) > (place.interface.speed or 0)
        ]
        reasons += [f"faster, but not what SSH uses: {other.name} ({other.speed} Mbit/s)" for other in faster[:1]]
        chosen[host] = InterfaceChoice(place.interface.name, place.address, Note("shared-subnet", "; ".join(reasons)))
    return chosen


def _choose_single(fact: Facts, places: tuple[_HostAddress, ...], hosts: int) -> InterfaceChoice | None:
    usable = sorted(
        _usable_addresses(places),
        key=lambda place: (
            place.address == fact.ssh_address,
            not place.interface.virtual,
            place.interface.default_route,
            place.word.version == 4,
            place.interface.speed or 0,
        ),
        reverse=True,
    )
    if not usable:
        return None
    place = usable[0]
    if place.address == fact.ssh_address:
        why = "SSH came in by it"
    elif place.interface.default_route:
        why = "it has the default route"
    else:
        why = "nothing better is up"
    note = Note("one-host", why) if hosts == 1 else Note("no-shared-subnet", f"no subnet is shared by all hosts; {why}")
    return InterfaceChoice(place.interface.name, place.address, note)
