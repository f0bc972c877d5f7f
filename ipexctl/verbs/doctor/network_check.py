"""Between hosts: each opens a port on the address that a run would use, and all try each other, at the same time."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit, each
from ipexctl.act.sessions import RemoteError, Session
from ipexctl.decide.checks.connectivity import ConnectivityReport, Pair, next_one, plan, slow_links
from ipexctl.decide.checks.network import Choice, choose_interfaces
from ipexctl.decide.releases.table import number
from ipexctl.model.events import Event, StepOutcome
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Inventory
from ipexctl.model.links import Link, LinkError

_PATIENCE = 3.0  # seconds until an attempt counts as not answered
_SUSPECTS = 16  # slow links that are measured once more: of more, it is the network and no accident
_SILENCE = 20.0  # seconds until a host that leads no attempt to its end counts as lost
_NETWORKED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "fuse", "9p", "virtiofs")

Ports = Mapping[str, int]


def between(
    inventory: Inventory, facts: Mapping[str, Facts], context: Context, *, everyone: bool = False
) -> Generator[Event, None, ConnectivityReport]:
    """What connects to what. Hosts without Python take no part; a host that is lost on the way is left out.

    Nothing stays on the hosts: the listeners live as long as the sessions, which are closed here.
    """
    choices = choose_interfaces(facts)
    pythons = {host: python for host in choices if (python := any_python(facts[host]))}
    untried = {host: "no Python to try it with" for host in choices if host not in pythons}
    taking_part = [host for host in inventory if host.name in pythons]
    if len(taking_part) < 2:
        return ConnectivityReport(choices=choices, untried=untried if len(choices) > 1 else {})
    program = files("ipexctl.remote.session").joinpath("netcheck.py").read_text("utf-8")
    token = secrets.token_hex(16)
    sessions: dict[str, Session] = {}
    one_at_a_time = threading.Lock()
    shareable = {host.name: _shareable(facts[host.name]) for host in taking_part}

    def open_port(link: Link, emit: Emit) -> Ports | NotReached:
        host = link.host.name
        try:
            session = sessions[host] = Session.start(link, pythons[host], program, silence=_SILENCE)
            ports: Ports = session.ask("listen", address=choices[host].address, token=token)
            if shareable[host]:
                session.ask("sign", directories=shareable[host], name=_sign(token, host))
        except (LinkError, RemoteError) as error:
            return NotReached(_why(error))
        return ports

    def target(other: str, rate: bool) -> dict[str, object]:
        return {"host": other, "address": choices[other].address, **ports[other], "rate": rate}

    def visit(link: Link, emit: Emit) -> Reached | NotReached:
        host, ask = link.host.name, sessions[link.host.name].ask
        targets = [target(other, other == next_one(names, host)) for other in tries[host]]
        signs = {_sign(token, other): other for other in names if shareable[other]}
        try:
            said = ask("visit", targets=targets, patience=_PATIENCE, token=token, mtu=_mtu(facts[host], choices[host]))
            directories = ask("see", directories=shareable[host], names=list(signs))["seen"]
        except (LinkError, RemoteError) as error:
            return NotReached(_why(error))
        seen = {str(at): tuple(signs[name] for name in found if name in signs) for at, found in directories.items()}
        return Reached(tuple(_pair(host, found) for found in said["found"]), seen)

    def measure_again(link: Link, emit: Emit) -> Pair | NotReached:
        host = link.host.name
        asked = [target(next_one(names, host), True)]
        try:
            with one_at_a_time:
                said = sessions[host].ask("visit", targets=asked, patience=_PATIENCE, token=token, mtu=0)
        except (LinkError, RemoteError) as error:
            return NotReached(_why(error))
        return _pair(host, said["found"][0])

    try:
        opened = yield from each(context, taking_part, "open a port", open_port, outcome=_outcome)
        ports = {host: found for host, found in opened.items() if isinstance(found, dict)}
        names = list(ports)
        tries = plan(names, everyone)
        meeting = [host for host in taking_part if host.name in ports]
        visited = yield from each(context, meeting, "try the others", visit, outcome=_outcome)
        # All measured at the same time; a host that was busy just then is no slow link.
        slow = {pair.source for pair in slow_links(_all_pairs(visited))}
        suspects = [host for host in meeting if host.name in slow][:_SUSPECTS]
        again = yield from each(context, suspects, "measure again", measure_again, outcome=_outcome)
    finally:
        for session in sessions.values():
            session.close()
    met = {host: found for host, found in visited.items() if isinstance(found, Reached)}
    lost = {
        host: found.why
        for found_ in (opened, visited)
        for host, found in found_.items()
        if isinstance(found, NotReached)
    }
    pairs = tuple(
        replace(pair, rate=max(pair.rate or 0.0, better.rate or 0.0))
        if pair.rate and isinstance(better := again.get(pair.source), Pair)
        else pair
        for pair in _all_pairs(visited)
        if pair.target not in lost
    )
    return ConnectivityReport(pairs, choices, _shared(met, names), {**untried, **lost})


@dataclass(frozen=True, slots=True)
class NotReached:
    """A host that could not take part."""

    why: str


@dataclass(frozen=True, slots=True)
class Reached:
    """What one host found: its attempts, and whose signs are in which directory."""

    pairs: tuple[Pair, ...]
    seen: Mapping[str, tuple[str, ...]]


def _all_pairs(visited: Mapping[str, object]) -> list[Pair]:
    return [pair for found in visited.values() if isinstance(found, Reached) for pair in found.pairs]


def _outcome(found: object) -> tuple[StepOutcome, str]:
    return ("skipped", found.why) if isinstance(found, NotReached) else ("ok", "")


def _why(error: LinkError | RemoteError) -> str:
    return error.failure.what if isinstance(error, LinkError) else str(error)


def any_python(fact: Facts) -> str | None:
    """The environment's, else any from 3.6 on."""
    if fact.installed and fact.installed.exists:
        return f"{fact.installed.venv}/bin/python"
    for python in fact.pythons:
        if python.usable and python.version and number(python.version) >= (3, 6):
            return python.path
    return None


def _sign(token: str, host: str) -> str:
    """The name of a host's file; nobody can have put it there before."""
    return f".ipexctl-{token[:16]}-{host}"


def _shareable(fact: Facts) -> list[str]:
    """Directories of the environment and the user on file systems that other hosts may see, too."""
    paths = [disk.mount for disk in fact.disks if disk.filesystem.startswith(_NETWORKED) and disk.writable]
    home = [fact.home] if fact.home and paths and any(fact.home.startswith(path) for path in paths) else []
    return list(dict.fromkeys(home))


def _mtu(fact: Facts, choice: Choice) -> int:
    return next((card.mtu for card in fact.interfaces if card.name == choice.name and card.mtu), 1500)


def _pair(source: str, found: Mapping[str, Any]) -> Pair:
    """An answer of the host: only what it may be."""

    def numeric(name: str) -> float | None:
        value = found.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    mtu, large, error, local = numeric("mtu"), found.get("large"), found.get("error"), found.get("local")
    return Pair(
        source,
        str(found.get("host")),
        None if error is None else str(error),
        numeric("rtt"),
        None if local is None else str(local),
        large if isinstance(large, bool) else None,
        None if mtu is None else int(mtu),
        numeric("rate"),
    )


def _shared(met: Mapping[str, Reached], names: list[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    groups = {(at, tuple(sorted(hosts, key=names.index))) for found in met.values() for at, hosts in found.seen.items()}
    return tuple(sorted((at, hosts) for at, hosts in groups if len(hosts) > 1))
