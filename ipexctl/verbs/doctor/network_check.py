"""Between hosts: each opens a port on the address that a run would use, and all try each other, at the same time."""

import secrets
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from ipexctl.act.context import Context
from ipexctl.act.sessions import RemoteError, Session
from ipexctl.decide.checks.connectivity import ConnectivityReport, Pair, find_slow_links, pick_target, plan_connections
from ipexctl.decide.checks.network import select_interfaces
from ipexctl.model.events import Workflow
from ipexctl.model.facts import NETWORK_FILE_SYSTEMS, Facts, HostFacts
from ipexctl.model.hosts import Inventory
from ipexctl.model.text import printable
from ipexctl.protocol.session import MALFORMED, Attempts, ConnectionAttempt, Nothing, Ports, SeenMarkerFiles
from ipexctl.verbs.doctor.host_sessions import HostSessions, find_pythons

_ATTEMPT_TIMEOUT = 3.0  # seconds until an attempt counts as not answered
_REMEASURED_LINKS = 16  # slow links that are measured once more: of more, it is the network and no accident
_SILENCE_TIMEOUT = 20.0  # seconds until a host that leads no attempt to its end counts as lost


def check_network(
    inventory: Inventory, facts: HostFacts, context: Context, *, everyone: bool = False
) -> Workflow[ConnectivityReport]:
    """Returns which hosts reach each other. Hosts without Python take no part; a host that is lost during it is left
    out. Nothing stays on the hosts: the listeners live as long as the sessions, which are closed here."""
    choices, problems = select_interfaces(inventory, facts)
    pythons = find_pythons({host: facts[host] for host in choices})
    untried = {host: problem.sentence for host, problem in problems.items() if problem.code == "no-interface"}
    untried |= {host: "no Python to try it with" for host in choices if host not in pythons}
    hosts = [host for host in inventory if host.name in pythons]
    if len(hosts) < 2:
        return ConnectivityReport(choices=choices, untried=untried if len(facts) > 1 else {})
    token = secrets.token_hex(16)
    one_at_a_time = threading.Lock()
    homes = {host.name: home for host in hosts if (home := _find_shareable_home(facts[host.name]))}

    def open_port(host: str, session: Session) -> Ports:
        ports = session.call("listen", Ports, address=choices[host].address, token=token)
        if not all(0 < port < 1 << 16 for port in ports):
            raise RemoteError(MALFORMED, "unexpected response from the host to listen", {})
        if host in homes:
            session.call("leave_marker_file", Nothing, path=_name_marker_file(homes[host], token, host))
        return ports

    def try_targets(host: str, session: Session, others: Sequence[str], mtu: int) -> list[Pair]:
        rated = pick_target(names, host)
        targets = [
            {"host": other, "address": choices[other].address, **ports[other]._asdict(), "rate": other == rated}
            for other in others
        ]
        answer = session.call("try_targets", Attempts, targets=targets, patience=_ATTEMPT_TIMEOUT, token=token, mtu=mtu)
        by_target = {attempt.host: attempt for attempt in answer.attempts}  # each once, however often a host tells
        return [_build_pair(host, by_target[other]) for other in others if other in by_target]

    def try_others(host: str, session: Session) -> tuple[list[Pair], tuple[str, ...]]:
        """What came of it, and the hosts that see the same home directory."""
        mtus = [card.mtu for card in facts[host].interfaces if card.name == choices[host].name and card.mtu]
        pairs = try_targets(host, session, tries[host], mtus[0] if mtus else 1500)
        markers = {_name_marker_file(homes[host], token, other): other for other in homes} if host in homes else {}
        seen = {*session.call("find_marker_files", SeenMarkerFiles, paths=list(markers)).paths}
        return pairs, tuple(other for path, other in markers.items() if path in seen)

    def measure_again(host: str, session: Session) -> list[Pair]:
        with one_at_a_time:
            return try_targets(host, session, [pick_target(names, host)], 0)

    with HostSessions(context, "netcheck", pythons, _SILENCE_TIMEOUT) as sessions:
        ports, silent = yield from sessions.run(hosts, "open a port", open_port)
        names = list(ports)
        tries = plan_connections(names, everyone)
        hosts = [host for host in hosts if host.name in ports]
        answers, lost = yield from sessions.run(hosts, "try the others", try_others)
        pairs = list(chain.from_iterable(pairs for pairs, _ in answers.values()))
        # All measured at the same time; a host that was busy just then is no slow link.
        slow = {pair.source for pair in find_slow_links(pairs)}
        suspects = [host for host in hosts if host.name in slow][:_REMEASURED_LINKS]
        again, _ = yield from sessions.run(suspects, "measure again", measure_again)
    lost = {**silent, **lost}
    better = {host: max(pair.rate or 0.0 for pair in pairs) for host, pairs in again.items() if pairs}
    rated = (replace(pair, rate=max(pair.rate, better.get(pair.source, 0.0))) if pair.rate else pair for pair in pairs)
    kept = tuple(pair for pair in rated if pair.target not in lost)
    shared = {(homes[host], others) for host, (_, others) in answers.items() if len(others) > 1}
    return ConnectivityReport(kept, choices, tuple(sorted(shared)), {**untried, **lost})


def _name_marker_file(home: str, token: str, host: str) -> str:
    """Returns the path of a host's file in a home directory; nobody can have put it there before."""
    return f"{home}/.ipexctl-{token[:16]}-{host}"


def _find_shareable_home(fact: Facts) -> str:
    """Returns the user's home directory, if it is on a file system that other hosts may see, too; else ""."""
    mounts = tuple(
        disk.mount for disk in fact.disks if disk.filesystem.startswith(NETWORK_FILE_SYSTEMS) and disk.writable
    )
    return fact.home if fact.home and fact.home.startswith(mounts) else ""


def _build_pair(source: str, attempt: ConnectionAttempt) -> Pair:
    error, local = (None if text is None else printable(text, 200) for text in (attempt.error, attempt.local))
    return Pair(source, attempt.host, error, attempt.rtt, local, attempt.large, attempt.mtu, attempt.rate)
