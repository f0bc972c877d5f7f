"""Which interface a run must use on each host, and why: chosen by subnet, never by name.

Names differ between hosts, ``hostname -I`` starts with whatever came up first, and ``docker0`` has the same address
everywhere; what the hosts of a run have in common is a subnet in which each of them has an address of its own."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network

from ipexctl.decide.facts.numbers import parse_ip_interface
from ipexctl.model.errors import Exit, Note, UsageError
from ipexctl.model.facts import Facts, HostFacts, Interface
from ipexctl.model.hosts import Host
from ipexctl.model.json_values import Record

Network = IPv4Network | IPv6Network


class InterfaceChoice(Record):
    """The interface of one host, its address there without a prefix, and the reason for the choice."""

    name: str
    address: str
    reason: Note


class _HostAddress(Record):
    interface: Interface
    word: IPv4Interface | IPv6Interface


_Addresses = Mapping[str, Sequence[_HostAddress]]


def choose_interfaces(facts: HostFacts) -> Mapping[str, InterfaceChoice]:
    """One choice a host, in the order given (the first is the head). A host without any usable address is left out. In
    order: loopback where all hosts are this one machine; else the best subnet in which every host has an address of its
    own (real rather than virtual, the one we came in by, faster, larger MTU, IPv4); else, host by host, the address we
    came in by, or the one of the default route."""
    if is_one_machine(facts):
        return {host: _choose_loopback(fact) for host, fact in facts.items()}
    usable = {host: _list_usable_addresses(fact) for host, fact in facts.items()}
    shared = _find_shared_subnets(facts, usable)
    if shared:
        return _choose_subnet_interfaces(shared, facts, usable)
    return {host: _choose_interface(fact, usable[host], len(facts)) for host, fact in facts.items() if usable[host]}


def select_interfaces(
    hosts: Iterable[Host], facts: HostFacts, iface: str | None = None
) -> tuple[Mapping[str, InterfaceChoice], Mapping[str, UsageError]]:
    """Returns the interface of each host: that of ``--iface``, else that of the hostfile, else as `choose_interfaces`
    has it; and why a host has none. Whatever listens on a host, or is measured between hosts, uses these."""
    choices, problems = dict[str, InterfaceChoice](), dict[str, UsageError]()
    automatic = choose_interfaces(facts)
    for host in hosts:
        if (fact := facts.get(host.name)) is None:
            continue
        try:
            choices[host.name] = choose_host_interface(iface, host, fact, automatic.get(host.name))
        except UsageError as error:
            problems[host.name] = error
    return choices, problems


def choose_host_interface(
    iface: str | None, host: Host, facts: Facts, choice: InterfaceChoice | None
) -> InterfaceChoice:
    """Returns the interface that ``--iface`` or the hostfile (``iface``, or ``ifhn`` by its address) names, else
    ``choice``. Raises `UsageError` (exit 4) if there is none."""
    wanted = iface or host.vars.get("iface") or host.vars.get("ifhn")
    if choice and wanted in (None, choice.name, choice.address):
        return choice
    if not wanted:
        raise UsageError(f"{host.name} has no usable network address", hint="name one with --iface", exit=Exit.STEP)
    for interface in facts.interfaces:
        addresses = [text.partition("/")[0] for text in interface.addresses]
        if addresses and wanted in (interface.name, *addresses):
            address = wanted if wanted in addresses else addresses[0]
            return InterfaceChoice(interface.name, address, Note("option", "--iface" if iface else "hostfile"))
    names = ", ".join(interface.name for interface in facts.interfaces) or "none"
    what, reasons = f"{host.name} has no interface {wanted} with an address", [f"it has: {names}"]
    raise UsageError(what, reasons=reasons, exit=Exit.STEP, code="no-interface")


def is_one_machine(facts: HostFacts) -> bool:
    """Returns whether every host was reached over loopback, or without SSH at all."""
    return bool(facts) and all(is_loopback(fact.ssh_address) for fact in facts.values())


def _list_addresses(fact: Facts) -> list[_HostAddress]:
    words = ((interface, parse_ip_interface(text)) for interface in fact.interfaces for text in interface.addresses)
    return [_HostAddress(interface, word) for interface, word in words if word]


def _list_usable_addresses(fact: Facts) -> list[_HostAddress]:
    """Interfaces of type "unknown" (tun, some virtual drivers) say neither up nor down: they stay in."""
    return [
        place
        for place in _list_addresses(fact)
        if place.interface.up is not False
        and not (place.word.ip.is_loopback or place.word.ip.is_link_local or place.word.ip.is_unspecified)
    ]


def list_private_addresses(fact: Facts) -> list[str]:
    """Returns the private addresses of real interfaces that a run could use: ``eth1 10.0.0.2/16``."""
    places = [place for place in _list_usable_addresses(fact) if not place.interface.virtual]
    return [f"{place.interface.name} {place.word}" for place in places if place.word.ip.is_private]


def is_loopback(address: str | None) -> bool:
    """No address at all is a host reached without SSH: this machine."""
    word = parse_ip_interface(address) if address is not None else None
    return address is None or (word is not None and word.ip.is_loopback)


_OWN_NAME = re.compile(r"(.+\.)?localhost[46]?(\.localdomain[46]?)?|ip6-(localhost|loopback)")  # RFC 6761, /etc/hosts


def means_itself(name: str) -> bool:
    """Whether any host means itself by this: localhost, 127.0.0.1, ::1; 0.0.0.0, to which one connects at home."""
    name = name.strip().strip("[]").rstrip(".").lower()
    word = parse_ip_interface(name)
    unspecified = word is not None and word.ip.is_unspecified
    mapped = name.startswith("::ffff:") and is_loopback(name.removeprefix("::ffff:"))
    return bool(_OWN_NAME.fullmatch(name)) or unspecified or mapped or is_loopback(name)


def _choose_loopback(fact: Facts) -> InterfaceChoice:
    name = next((place.interface.name for place in _list_addresses(fact) if place.word.ip.is_loopback), "lo")
    return InterfaceChoice(name, fact.ssh_address or "127.0.0.1", Note("one-machine", "all hosts are this one machine"))


def _find_shared_subnets(facts: HostFacts, usable: _Addresses) -> list[Network]:
    """Subnets in which every host has an address, and no two machines the same one; the best first. An address that two
    machines have (172.17.0.1 of docker0) leads nowhere."""
    if len(facts) < 2:
        return []
    owners: dict[tuple[Network, str], set[str]] = {}
    for host, of_host in usable.items():
        for place in of_host:
            owners.setdefault((place.word.network, str(place.word.ip)), set()).add(facts[host].machine_id or host)
    common = set.intersection(*({place.word.network for place in of_host} for of_host in usable.values()))
    common -= {network for (network, _), machines in owners.items() if len(machines) > 1}
    chosen = [_choose_addresses(of_host) for of_host in usable.values()]

    def rank_subnet(network: Network) -> tuple[int, int, int, int, int, str]:
        interfaces = [places[network].interface for places in chosen]
        return (
            sum(not interface.virtual for interface in interfaces),
            sum(_network_contains(network, fact.ssh_address) for fact in facts.values()),
            min(interface.speed or 0 for interface in interfaces),
            min(interface.mtu or 0 for interface in interfaces),
            network.version == 4,
            str(network),  # only so that the answer never depends on the order of a set
        )

    return sorted(common, key=rank_subnet, reverse=True)


def _choose_addresses(places: Sequence[_HostAddress]) -> Mapping[Network, _HostAddress]:
    """The best address of a host in each of its subnets; of equally good ones the first."""
    ordered = sorted(places, key=lambda place: (place.interface.virtual, -(place.interface.speed or 0)))
    return {place.word.network: place for place in reversed(ordered)}


def _network_contains(network: Network, address: str | None) -> bool:
    word = parse_ip_interface(address) if address is not None else None
    return word is not None and word.ip in network


def find_isolated_interfaces(facts: HostFacts) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Real interfaces that are up in a subnet where no other host is ("eth1 10.9.9.1/24"), beside one that is shared;
    and whether that host misses a subnet which all others share, so that the address is probably a mistake."""
    real = {
        host: [place for place in _list_usable_addresses(fact) if not place.interface.virtual]
        for host, fact in facts.items()
    }
    networks = {host: {place.word.network for place in places} for host, places in real.items()}
    counts = Counter(network for of_host in networks.values() for network in of_host)
    usual = {network for network, count in counts.items() if count > 1 and 2 * count > len(facts)}
    isolated = {}
    for host, places in real.items():
        words = tuple(f"{place.interface.name} {place.word}" for place in places if counts[place.word.network] == 1)
        if words and networks[host] & usual:
            isolated[host] = (words, bool(usual - networks[host]))
    return isolated


def _choose_subnet_interfaces(
    shared: Sequence[Network], facts: HostFacts, usable: _Addresses
) -> dict[str, InterfaceChoice]:
    best, others = shared[0], shared[1:]
    chosen: dict[str, InterfaceChoice] = {}
    for host, of_host in usable.items():
        places = _choose_addresses(of_host)
        place = places[best]
        speed = place.interface.speed or 0
        reasons = [f"all {len(facts)} hosts are in {best}" if len(facts) > 1 else f"it is in {best}"]
        if _network_contains(best, facts[host].ssh_address):
            reasons.append("SSH came in by it")
        if speed:
            reasons.append(f"{speed} Mbit/s")
        cards = (places[network].interface for network in others)
        faster = [f"{card.name} ({card.speed} Mbit/s)" for card in cards if (card.speed or 0) > speed]
        reasons += [f"faster, but not what SSH uses: {card}" for card in faster[:1]]
        chosen[host] = InterfaceChoice(
            place.interface.name, str(place.word.ip), Note("shared-subnet", "; ".join(reasons))
        )
    return chosen


def _choose_interface(fact: Facts, usable: Sequence[_HostAddress], count: int) -> InterfaceChoice:
    place = max(
        usable,
        key=lambda place: (
            str(place.word.ip) == fact.ssh_address,
            not place.interface.virtual,
            place.interface.default_route,
            place.word.version == 4,
            place.interface.speed or 0,
        ),
    )
    if str(place.word.ip) == fact.ssh_address:
        why = "SSH came in by it"
    elif place.interface.default_route:
        why = "it has the default route"
    else:
        why = "nothing better is up"
    if count == 1:
        note = Note("one-host", why)
    else:
        # Clouds, as Google's, give each host a /32 and route between them.
        alone = place.word.network.prefixlen == place.word.max_prefixlen
        note = Note("routed" if alone else "no-shared-subnet", f"no subnet is shared by all hosts; {why}")
    return InterfaceChoice(place.interface.name, str(place.word.ip), note)
