"""Between hosts: each opens a port on the address that a run would use, and all try each other, at the same time."""

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from ipexctl.act.context import Context
from ipexctl.act.sessions import RemoteError, Session
from ipexctl.decide.checks.connectivity import ConnectivityReport, Pair, find_slow_links, pick_target, plan_connections
from ipexctl.decide.checks.network import select_interfaces
from ipexctl.model.events import Workflow
from ipexctl.model.facts import NETWORK_FILE_SYSTEMS, Facts
from ipexctl.model.hosts import Inventory
from ipexctl.model.text import printable
from ipexctl.protocol.session import MALFORMED, Attempts, ConnectionAttempt, Nothing, Ports, SeenMarkerFiles
from ipexctl.verbs.doctor.host_sessions import HostSessions, find_pythons

_ATTEMPT_TIMEOUT = 3.0  # seconds until an attempt counts as not answered
_REMEASURED_LINKS = 16  # slow links that are measured once more: of more, it is the network and no accident
_SILENCE_TIMEOUT = 20.0  # seconds until a host that leads no attempt to its end counts as lost
_MarkerFiles = Mapping[str, tuple[str, ...]]  # directory → hosts whose marker files are seen there


def check_network(
    inventory: Inventory, facts: Mapping[str, Facts], context: Context, *, everyone: bool = False
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
    shareable = {host.name: _list_shareable_directories(facts[host.name]) for host in hosts}

    def open_port(host: str, session: Session) -> Ports:
        ports = session.call("listen", Ports, address=choices[host].address, token=token)
        if not all(0 < port < 1 << 16 for port in ports):
            raise RemoteError(MALFORMED, "unexpected response from the host to listen", {})
        if shareable[host]:
            name = _name_marker_file(token, host)
            session.call("leave_marker_file", Nothing, directories=shareable[host], name=name)
        return ports

    def try_targets(host: str, session: Session, others: Sequence[str], mtu: int) -> list[Pair]:
        rated = pick_target(names, host)
        targets = [
            {"host": other, "address": choices[other].address, **ports[other]._asdict(), "rate": other == rated}
            for other in others
        ]
        answer = session.call("try_targets", Attempts, targets=targets, patience=_ATTEMPT_TIMEOUT, token=token, mtu=mtu)
        return [_build_pair(host, attempt) for attempt in answer.attempts if attempt.host in others]

    def try_others(host: str, session: Session) -> tuple[list[Pair], _MarkerFiles]:
        mtus = [card.mtu for card in facts[host].interfaces if card.name == choices[host].name and card.mtu]
        pairs = try_targets(host, session, tries[host], mtus[0] if mtus else 1500)
        markers = {_name_marker_file(token, other): other for other in names if shareable[other]}
        directories, names_there = shareable[host], list(markers)
        answer = session.call("find_marker_files", SeenMarkerFiles, directories=directories, names=names_there)
        seen = answer.seen.items()
        return pairs, {at: tuple(markers[name] for name in files if name in markers) for at, files in seen}

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
    shared = _find_shared_directories([files for _, files in answers.values()], names)
    return ConnectivityReport(kept, choices, shared, {**untried, **lost})


def _name_marker_file(token: str, host: str) -> str:
    """Returns the name of a host's file; nobody can have put it there before."""
    return f".ipexctl-{token[:16]}-{host}"


def _list_shareable_directories(fact: Facts) -> list[str]:
    """Returns the user's home directory, if it is on a file system that other hosts may see, too."""
    mounts = tuple(
        disk.mount for disk in fact.disks if disk.filesystem.startswith(NETWORK_FILE_SYSTEMS) and disk.writable
    )
    return [fact.home] if fact.home and fact.home.startswith(mounts) else []


def _build_pair(source: str, attempt: ConnectionAttempt) -> Pair:
    error, local = (None if text is None else printable(text, 200) for text in (attempt.error, attempt.local))
    return Pair(source, attempt.host, error, attempt.rtt, local, attempt.large, attempt.mtu, attempt.rate)


def _find_shared_directories(
    answers: Sequence[_MarkerFiles], names: list[str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    groups = {(at, tuple(sorted(hosts, key=names.index))) for files in answers for at, hosts in files.items()}
    return tuple(sorted((at, hosts) for at, hosts in groups if len(hosts) > 1))
