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
class Choice:
    """The interface of one host, its address there without a prefix, and the reason for the choice."""

    name: str
    address: str
    reason: Note


@dataclass(frozen=True, slots=True)
class _Place:
    """One address of one host."""

    interface: Interface
    word: IPv4Interface | IPv6Interface

    @property
    def address(self) -> str:
        return str(self.word.ip)


def choose_interfaces(facts: Mapping[str, Facts]) -> Mapping[str, Choice]:
    """One choice a host, in the order given (the first is the head). A host without any usable address is left out.

    In order: loopback where all hosts are this one machine; else the best subnet in which every host has an address of
    its own (real rather than virtual, the one we came in by, faster, larger MTU, IPv4); else, host by host, the address
    we came in by, or the one of the default route.
    """
    places = {host: tuple(_places(fact)) for host, fact in facts.items()}
    if on_one_machine(facts):
        return {host: _inside(fact, places[host]) for host, fact in facts.items()}
    machines = {host: fact.machine_id or host for host, fact in facts.items()}
    shared = sorted(_shared(places, machines), key=lambda network: _merit(network, facts, places), reverse=True)
    if shared:
        return _together(shared, facts, places)
    chosen = {host: _alone(fact, places[host], len(facts)) for host, fact in facts.items()}
    return {host: choice for host, choice in chosen.items() if choice}


def on_one_machine(facts: Mapping[str, Facts]) -> bool:
    """Every host was reached over loopback, or without SSH at all."""
    return bool(facts) and all(_is_loopback(fact.ssh_address) for fact in facts.values())


def _places(fact: Facts) -> Iterator[_Place]:
    for interface in fact.interfaces:
        for text in interface.addresses:
            word = _word(text)
            if word and not word.ip.is_link_local and not word.ip.is_unspecified:
                yield _Place(interface, word)


@lru_cache(4096)  # several checks look at the same addresses, and to read one is much work
def _word(text: str) -> IPv4Interface | IPv6Interface | None:
    try:
        return ip_interface(text)
    except ValueError:
        return None


def _usable(places: tuple[_Place, ...]) -> Iterator[_Place]:
    """Interfaces of type "unknown" (tun, some virtual drivers) say neither up nor down: they stay in."""
    return (place for place in places if place.interface.up is not False and not place.word.ip.is_loopback)


def _is_loopback(address: str | None) -> bool:
    """No address at all is a host reached without SSH: this machine."""
    word = _word(address) if address is not None else None
    return address is None or (word is not None and word.ip.is_loopback)


def _inside(fact: Facts, places: tuple[_Place, ...]) -> Choice:
    name = next((place.interface.name for place in places if place.word.ip.is_loopback), "lo")
    return Choice(name, fact.ssh_address or "127.0.0.1", Note("one-machine", "all hosts are this one machine"))


def _shared(places: Mapping[str, tuple[_Place, ...]], machines: Mapping[str, str]) -> set[Network]:
    """Subnets in which every host has an address, and no two machines the same one."""
    if len(places) < 2:
        return set()
    nets = [{place.word.network for place in _usable(of_host)} for of_host in places.values()]
    common = set.intersection(*nets)
    return {network for network in common if _distinct(network, places, machines)}


def _distinct(network: Network, places: Mapping[str, tuple[_Place, ...]], machines: Mapping[str, str]) -> bool:
    """An address that two machines have (172.17.0.1 of docker0) leads nowhere."""
    owners: dict[str, str] = {}
    for host, of_host in places.items():
        for place in _usable(of_host):
            if place.word.network == network and owners.setdefault(place.address, machines[host]) != machines[host]:
                return False
    return True


def _in(network: Network, places: tuple[_Place, ...]) -> _Place:
    """The host's place in a network it is in: its fastest, if several."""
    here = [place for place in _usable(places) if place.word.network == network]
    return max(here, key=lambda place: (not place.interface.virtual, place.interface.speed or 0))


def _merit(
    network: Network, facts: Mapping[str, Facts], places: Mapping[str, tuple[_Place, ...]]
) -> tuple[int, int, int, int, int, str]:
    ours = [_in(network, of_host).interface for of_host in places.values()]
    came_in = sum(_contains(network, fact.ssh_address) for fact in facts.values())
    return (
        sum(not interface.virtual for interface in ours),
        came_in,
        min(interface.speed or 0 for interface in ours),
        min(interface.mtu or 0 for interface in ours),
        network.version == 4,
        str(network),  # only so that the answer never depends on the order of a set
    )


def _contains(network: Network, address: str | None) -> bool:
    word = _word(address) if address is not None else None
    return word is not None and word.ip in network


def strangers(facts: Mapping[str, Facts]) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Real interfaces that are up in a subnet where no other host is ("eth1 10.9.9.1/24"), beside one that is shared;
    and whether that host misses a subnet which all others share, so that the address is probably a mistake."""
    networks = {
        host: {place.word.network for place in _usable(tuple(_places(fact))) if not place.interface.virtual}
        for host, fact in facts.items()
    }
    counts = Counter(network for of_host in networks.values() for network in of_host)
    usual = {network for network, count in counts.items() if count > 1 and 2 * count > len(facts)}
    found = {}
    for host, fact in facts.items():
        words = tuple(
            f"{place.interface.name} {place.word}"
            for place in _usable(tuple(_places(fact)))
            if not place.interface.virtual and counts[place.word.network] == 1
        )
        if words and networks[host] & usual:
            found[host] = (words, bool(usual - networks[host]))
    return found


def _together(
    shared: list[Network], facts: Mapping[str, Facts], places: Mapping[str, tuple[_Place, ...]]
) -> dict[str, Choice]:
    best, others = shared[0], shared[1:]
    chosen: dict[str, Choice] = {}
    for host, of_host in places.items():
        place = _in(best, of_host)
        reasons = [f"all {len(facts)} hosts are in {best}"]
        if _contains(best, facts[host].ssh_address):
            reasons.append("SSH came in by it")
        if place.interface.speed:
            reasons.append(f"{place.interface.speed} Mbit/s")
        faster = [
            other.interface
            for other in (_in(network, of_host) for network in others)
            if (other.interface.speed or 0) > (place.interface.speed or 0)
        ]
        reasons += [f"faster, but not what SSH uses: {other.name} ({other.speed} Mbit/s)" for other in faster[:1]]
        chosen[host] = Choice(place.interface.name, place.address, Note("shared-subnet", "; ".join(reasons)))
    return chosen


def _alone(fact: Facts, places: tuple[_Place, ...], hosts: int) -> Choice | None:
    usable = sorted(
        _usable(places),
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
    return Choice(place.interface.name, place.address, note)
