"""Between hosts: each opens a port on the address that a run would use, and all try each other, at the same time."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit, run_on_hosts
from ipexctl.act.sessions import RemoteError, Session, load_program
from ipexctl.decide.checks.connectivity import ConnectivityReport, Pair, next_one, plan, slow_links
from ipexctl.decide.checks.network import InterfaceChoice, choose_interfaces
from ipexctl.decide.releases.table import parse_version
from ipexctl.model.events import Event, StepOutcome
from ipexctl.model.facts import OLDEST_PYTHON, Facts
from ipexctl.model.hosts import Inventory
from ipexctl.model.links import Link, LinkError
from ipexctl.model.text import printable
from ipexctl.protocol.session import Attempt, Attempts, MarkedDirectories, Ports, SeenMarkerFiles

_PATIENCE = 3.0  # seconds until an attempt counts as not answered
_SUSPECTS = 16  # slow links that are measured once more: of more, it is the network and no accident
_SILENCE = 20.0  # seconds until a host that leads no attempt to its end counts as lost
_NETWORKED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "fuse", "9p", "virtiofs")


def check_network(
    inventory: Inventory, facts: Mapping[str, Facts], context: Context, *, everyone: bool = False
) -> Generator[Event, None, ConnectivityReport]:
    """Which hosts reach each other. Hosts without Python take no part; a host that is lost during it is left out.

    Nothing stays on the hosts: the listeners live as long as the sessions, which are closed here.
    """
    choices = choose_interfaces(facts)
    pythons = {host: python for host in choices if (python := choose_python(facts[host]))}
    untried = {host: "no Python to try it with" for host in choices if host not in pythons}
    taking_part = [host for host in inventory if host.name in pythons]
    if len(taking_part) < 2:
        return ConnectivityReport(choices=choices, untried=untried if len(choices) > 1 else {})
    program = load_program("netcheck")
    token = secrets.token_hex(16)
    sessions: dict[str, Session] = {}
    one_at_a_time = threading.Lock()
    shareable = {host.name: _shareable(facts[host.name]) for host in taking_part}

    def open_port(link: Link, emit: Emit) -> Ports | NotReached:
        host = link.host.name
        try:
            session = sessions[host] = Session.start(link, pythons[host], program, silence=_SILENCE)
            ports: Ports = session.call("listen", Ports, address=choices[host].address, token=token)
            if shareable[host]:
                name = _name_marker_file(token, host)
                session.call("leave_marker_file", MarkedDirectories, directories=shareable[host], name=name)
        except (LinkError, RemoteError) as error:
            return NotReached(_explain(error))
        return ports

    def target(other: str, rate: bool) -> dict[str, object]:
        return {"host": other, "address": choices[other].address, **ports[other]._asdict(), "rate": rate}

    def try_others(link: Link, emit: Emit) -> Reached | NotReached:
        host, session = link.host.name, sessions[link.host.name]
        targets = [target(other, other == next_one(names, host)) for other in tries[host]]
        markers = {_name_marker_file(token, other): other for other in names if shareable[other]}
        try:
            request: dict[str, Any] = {"patience": _PATIENCE, "token": token, "mtu": _mtu(facts[host], choices[host])}
            attempts = session.call("try_targets", Attempts, targets=targets, **request).attempts
            folders = session.call(
                "find_marker_files", SeenMarkerFiles, directories=shareable[host], names=list(markers)
            ).seen
        except (LinkError, RemoteError) as error:
            return NotReached(_explain(error))
        seen = {folder: tuple(markers[name] for name in names if name in markers) for folder, names in folders.items()}
        return Reached(tuple(_build_pair(host, attempt) for attempt in attempts), seen)

    def measure_again(link: Link, emit: Emit) -> Pair | NotReached:
        host = link.host.name
        request: dict[str, Any] = {
            "targets": [target(next_one(names, host), True)],
            "patience": _PATIENCE,
            "token": token,
            "mtu": 0,
        }
        try:
            with one_at_a_time:
                attempts = sessions[host].call("try_targets", Attempts, **request).attempts
        except (LinkError, RemoteError) as error:
            return NotReached(_explain(error))
        return _build_pair(host, attempts[0]) if attempts else NotReached("no attempt was made")

    try:
        opened = yield from run_on_hosts(context, taking_part, "open a port", open_port, outcome=_outcome)
        ports = {host: result for host, result in opened.items() if isinstance(result, Ports)}
        names = list(ports)
        tries = plan(names, everyone)
        participants = [host for host in taking_part if host.name in ports]
        visited = yield from run_on_hosts(context, participants, "try the others", try_others, outcome=_outcome)
        # All measured at the same time; a host that was busy just then is no slow link.
        slow = {pair.source for pair in slow_links(_all_pairs(visited))}
        suspects = [host for host in participants if host.name in slow][:_SUSPECTS]
        again = yield from run_on_hosts(context, suspects, "measure again", measure_again, outcome=_outcome)
    finally:
        for session in sessions.values():
            session.close()
    reached = {host: result for host, result in visited.items() if isinstance(result, Reached)}
    lost = {
        host: result.why
        for outcomes in (opened, visited)
        for host, result in outcomes.items()
        if isinstance(result, NotReached)
    }
    pairs = tuple(
        replace(pair, rate=max(pair.rate or 0.0, better.rate or 0.0))
        if pair.rate and isinstance(better := again.get(pair.source), Pair)
        else pair
        for pair in _all_pairs(visited)
        if pair.target not in lost
    )
    return ConnectivityReport(pairs, choices, _shared(reached, names), {**untried, **lost})


@dataclass(frozen=True, slots=True)
class NotReached:
    """A host that could not take part."""

    why: str


@dataclass(frozen=True, slots=True)
class Reached:
    """The answer of one host: its attempts, and whose signs are in which directory."""

    pairs: tuple[Pair, ...]
    seen: Mapping[str, tuple[str, ...]]


def _all_pairs(visited: Mapping[str, object]) -> list[Pair]:
    return [pair for result in visited.values() if isinstance(result, Reached) for pair in result.pairs]


def _outcome(result: object) -> tuple[StepOutcome, str]:
    return ("skipped", result.why) if isinstance(result, NotReached) else ("ok", "")


def _explain(error: LinkError | RemoteError) -> str:
    return error.failure.what if isinstance(error, LinkError) else str(error)


def choose_python(fact: Facts) -> str | None:
    """The interpreter of the environment, else any that the session programs support."""
    if fact.installed and fact.installed.exists:
        return f"{fact.installed.venv}/bin/python"
    for python in fact.pythons:
        if python.usable and python.version and parse_version(python.version) >= parse_version(OLDEST_PYTHON):
            return python.path
    return None


def _name_marker_file(token: str, host: str) -> str:
    """The name of a host's file; nobody can have put it there before."""
    return f".ipexctl-{token[:16]}-{host}"


def _shareable(fact: Facts) -> list[str]:
    """Directories of the environment and the user on file systems that other hosts may see, too."""
    paths = [disk.mount for disk in fact.disks if disk.filesystem.startswith(_NETWORKED) and disk.writable]
    home = [fact.home] if fact.home and paths and any(fact.home.startswith(path) for path in paths) else []
    return list(dict.fromkeys(home))


def _mtu(fact: Facts, choice: InterfaceChoice) -> int:
    return next((card.mtu for card in fact.interfaces if card.name == choice.name and card.mtu), 1500)


def _build_pair(source: str, attempt: Attempt) -> Pair:
    error, local = (None if text is None else printable(text, 200) for text in (attempt.error, attempt.local))
    return Pair(source, attempt.host, error, attempt.rtt, local, attempt.large, attempt.mtu, attempt.rate)


def _shared(reached: Mapping[str, Reached], names: list[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    groups = {
        (at, tuple(sorted(hosts, key=names.index))) for result in reached.values() for at, hosts in result.seen.items()
    }
    return tuple(sorted((at, hosts) for at, hosts in groups if len(hosts) > 1))
