"""The network test between hosts: its plan, and findings from its results."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_interface
from statistics import median

from ipexctl.decide.checks.cluster import CheckHit, Cluster
from ipexctl.decide.checks.network import InterfaceChoice
from ipexctl.model.answers.doctor import FailedConnection, NetworkCheck, SharedDirectory, TriedConnection
from ipexctl.model.json_values import Record, field

ALL_PAIRS = 32  # hosts up to which every pair is tried


class Pair(Record):
    """One direction. ``error`` is None where a connection was made; ``rtt`` in seconds, ``rate`` in bytes a second,
    ``large`` whether more than one packet's worth passed, ``mtu`` the largest whole packet that passed."""

    source: str
    target: str
    error: str | None = None
    rtt: float | None = None
    local: str | None = None
    large: bool | None = None
    mtu: int | None = None
    rate: float | None = None


class ConnectivityReport(Record):
    """All results. ``choices`` is the interface of each host, ``shared`` directories with their hosts, and
    ``untried`` maps hosts that could not be tested to the reason."""

    pairs: tuple[Pair, ...] = ()
    choices: Mapping[str, InterfaceChoice] = field(default_factory=dict)
    shared: tuple[tuple[str, tuple[str, ...]], ...] = ()
    untried: Mapping[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> NetworkCheck:
        """The summary for ``--json``."""
        met = [pair for pair in self.pairs if pair.error is None]
        rtts = [pair.rtt for pair in met if pair.rtt is not None]
        rates = [pair.rate for pair in met if pair.rate is not None]
        return NetworkCheck(
            tried=len(self.pairs),
            failed=tuple(FailedConnection(pair.source, pair.target, pair.error) for pair in self.pairs if pair.error),
            rtt=median(rtts) if rtts else None,
            rate=median(rates) if rates else None,
            mtu=min((pair.mtu for pair in met if pair.mtu), default=None),
            shared=tuple(SharedDirectory(directory, hosts) for directory, hosts in self.shared),
            untried=self.untried,
            made=tuple(TriedConnection(pair.source, pair.target, pair.rtt, pair.rate) for pair in met),
        )


def plan_connections(hosts: Sequence[str], everyone: bool) -> dict[str, tuple[str, ...]]:
    """The hosts each host connects to: all; beyond 32 hosts its neighbours in a ring and the head (the head: all)."""
    if everyone or len(hosts) <= ALL_PAIRS:
        return {host: tuple(other for other in hosts if other != host) for host in hosts}
    head, count = hosts[0], len(hosts)
    tries: dict[str, tuple[str, ...]] = {head: tuple(hosts[1:])}
    for at, host in enumerate(hosts[1:], 1):
        near = (hosts[at - 1], hosts[(at + 1) % count], head)
        tries[host] = tuple(dict.fromkeys(other for other in near if other != host))
    return tries


def pick_target(hosts: Sequence[str], host: str) -> str:
    """The target of the rate test: the hosts form one ring, so that each link carries one stream in each direction."""
    return hosts[(hosts.index(host) + 1) % len(hosts)]


def check_connectivity(cluster: Cluster, report: ConnectivityReport) -> Iterator[CheckHit]:
    """Findings of the whole network test."""
    yield from _check_failed_connections(cluster, report)
    yield from _check_connection_quality(report)
    for directory, hosts in report.shared:
        yield from (CheckHit("DSK003", host, {"path": directory}) for host in hosts)
    for host, why in report.untried.items():
        yield CheckHit("NET012", host, {}, why)


def _check_failed_connections(cluster: Cluster, report: ConnectivityReport) -> Iterator[CheckHit]:
    names = [host for host in cluster.facts if host in report.choices]
    head = names[0] if names else ""
    failed = [pair for pair in report.pairs if pair.error is not None]
    deaf = _find_isolated_hosts(failed, report.pairs, "target")
    mute = _find_isolated_hosts(failed, report.pairs, "source") - deaf
    for host in names:
        ports, subnet = _describe_ports(cluster, host), _format_subnet(cluster, report, host)
        if host in deaf:
            errors = _join_errors(pair for pair in failed if pair.target == host)
            evidence = f"{ports}, which Intel MPI, Gloo and oneCCL use" if ports else ""
            values = {"subnet": subnet, "what": f"no other host can connect to it: {errors}"}
            yield CheckHit("NET007", host, values, evidence)
        elif host in mute and not {pair.target for pair in failed if pair.source == host} <= deaf:
            errors = _join_errors(pair for pair in failed if pair.source == host)
            yield CheckHit("NET007", host, {"subnet": subnet, "what": f"it can connect to no other host: {errors}"})
    ways = {(pair.source, pair.target) for pair in failed}
    for pair in failed:
        both = (pair.target, pair.source) in ways
        if pair.target in deaf or pair.source in mute or (both and pair.source == head):
            continue  # reported above, or by the other direction: no connection back to the head
        address = report.choices[pair.target].address
        evidence = ", ".join(filter(None, (pair.error, _describe_ports(cluster, pair.target))))
        values = {"subnet": _format_subnet(cluster, report, pair.source), "head": head, "what": ""}
        if pair.target == head:
            yield CheckHit("NET008", pair.source, values, f"{pair.source} → {head} ({address}): {evidence}")
        else:
            first, second = sorted((pair.source, pair.target), key=names.index)
            arrow = f"{first} ↔ {second}" if both else f"{pair.source} → {pair.target} ({address})"
            values["what"] = "some hosts cannot connect to each other"
            yield CheckHit("NET007", pair.source, values, f"{arrow}: {evidence}")


def _find_isolated_hosts(failed: Sequence[Pair], every: Sequence[Pair], side: str) -> set[str]:
    """Hosts of which all attempts failed, two at least (a single failure does not show which side is at fault)."""
    tries = Counter(getattr(pair, side) for pair in every)
    failures = Counter(getattr(pair, side) for pair in failed)
    return {name for name, count in failures.items() if count == tries[name] > 1}


def _join_errors(pairs: Iterable[Pair]) -> str:
    return ", ".join(sorted({pair.error or "" for pair in pairs}))


def _describe_ports(cluster: Cluster, host: str) -> str:
    ports = cluster.facts[host].ports
    return f"ports {ports[0]}-{ports[1]}" if ports else ""


def _format_subnet(cluster: Cluster, report: ConnectivityReport, host: str) -> str:
    choice = report.choices[host]
    words = (word for card in cluster.facts[host].interfaces if card.name == choice.name for word in card.addresses)
    networks = (str(ip_interface(word).network) for word in words if word.partition("/")[0] == choice.address)
    return next(networks, choice.address)


def _check_connection_quality(report: ConnectivityReport) -> Iterator[CheckHit]:
    """Connections that carry small packets only, leave by another interface, or are slow."""
    for pair in report.pairs:
        choice = report.choices[pair.source]
        if pair.error is None and pair.large is False:
            passes = f"{pair.mtu} bytes pass" if pair.mtu else "large packets vanish"
            yield CheckHit(
                "NET009", pair.source, {"interface": shlex.quote(choice.name)}, f"to {pair.target}: {passes}"
            )
        if pair.error is None and pair.local and pair.local != choice.address:
            evidence = f"to {pair.target} by {pair.local}, not by {choice.name} ({choice.address})"
            yield CheckHit("NET010", pair.source, {}, evidence)
    usual = find_usual_rate(report.pairs)
    for pair in find_slow_links(report.pairs):
        evidence = f"to {pair.target} {(pair.rate or 0) / 1e6:.0f} MB/s, the others {(usual or 0) / 1e6:.0f} MB/s"
        yield CheckHit("NET011", pair.source, {}, evidence)


def find_usual_rate(pairs: Iterable[Pair]) -> float | None:
    """Returns the median of the rates that were measured, bytes a second; None of fewer than three."""
    rates = [pair.rate for pair in pairs if pair.rate]
    return median(rates) if len(rates) > 2 else None


def find_slow_links(pairs: Sequence[Pair]) -> list[Pair]:
    """Links with less than half the usual rate."""
    usual = find_usual_rate(pairs)
    return [pair for pair in pairs if usual and pair.rate and pair.rate < usual / 2]
