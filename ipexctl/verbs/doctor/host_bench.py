"""``doctor --bench``: all hosts compute at the same time, then talk in pairs, so that a straggler has a name."""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace

from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit, run_on_hosts
from ipexctl.act.sessions import RemoteError, Session, load_program
from ipexctl.decide.checks.benchmarks import FIGURES, better, judge_speeds, rounds
from ipexctl.decide.checks.connectivity import ConnectivityReport
from ipexctl.decide.checks.network import InterfaceChoice, choose_interfaces, is_one_machine
from ipexctl.decide.launch.environment import has_rdma
from ipexctl.decide.releases.runtime import Runtime, build_runtime
from ipexctl.model.answers import HostSpeed, LinkSpeed, SpeedCheck, UnmeasuredLink
from ipexctl.model.errors import UsageError
from ipexctl.model.events import Event, StepOutcome
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Inventory
from ipexctl.model.links import Link, LinkError
from ipexctl.model.text import printable
from ipexctl.protocol.session import Executables, Figures, LaunchRequests, Nothing, PingPong
from ipexctl.verbs.doctor.network_check import NotReached, choose_python

TURN = 1.2  # seconds of each of the three figures of a host
_TALK = 2.0  # seconds of IMB-MPI1's own time
_PATIENCE = 15.0  # seconds for IMB-MPI1 to say something, on hosts whose processors have other work too
_SILENCE = 90.0  # seconds: torch from a cold disk takes its time to load


def measure_host_speeds(
    inventory: Inventory, facts: Mapping[str, Facts], network: ConnectivityReport, context: Context
) -> Generator[Event, None, SpeedCheck]:
    """How fast the hosts are. Pairs are measured with the IMB-MPI1 of the hosts' environments, elsewhere the rates of
    ``network`` count. Nothing stays on the hosts: what is started ends with the sessions, which are closed here."""
    pythons = {host: python for host, fact in facts.items() if (python := choose_python(fact))}
    missed = {host: "no Python to measure with" for host in facts if host not in pythons}
    taking_part = [host for host in inventory if host.name in pythons]
    program = load_program("bench")
    sessions: dict[str, Session] = {}
    together = replace(context, bound=max(context.bound, len(taking_part)))  # they work, we only wait
    # Hosts of one computer are measured one after another, or each would be called slow for the others.
    turns = {_machine_key(host, facts): threading.Lock() for host in pythons}

    def compute(link: Link, emit: Emit) -> HostSpeed | NotReached:
        host = link.host.name
        try:
            if host not in sessions:
                sessions[host] = Session.start(link, pythons[host], program, silence=_SILENCE)
            with turns[_machine_key(host, facts)]:
                return _build_speed(host, facts[host], sessions[host].call("compute", Figures, seconds=TURN))
        except (LinkError, RemoteError) as error:
            return NotReached(_explain(error))

    try:
        done = yield from run_on_hosts(together, taking_part, "measure", compute, outcome=_outcome)
        speeds = tuple(result for result in done.values() if isinstance(result, HostSpeed))
        behind = {hit.host for hit in judge_speeds(SpeedCheck(speeds)) if hit.code == "SPD001"}
        if behind:  # nobody is called slow for one bad moment
            again = yield from run_on_hosts(
                together,
                [host for host in taking_part if host.name in behind],
                "measure again",
                compute,
                outcome=_outcome,
            )
            speeds = tuple(
                better(speed, second) if isinstance(second := again.get(speed.host), HostSpeed) else speed
                for speed in speeds
            )
        missed |= {host: result.why for host, result in done.items() if isinstance(result, NotReached)}
        lines, unmeasured = yield from _talk(
            [speed.host for speed in speeds], inventory, facts, sessions, together, turns
        )
    finally:
        for session in sessions.values():
            session.close()
    if not lines:
        lines = [LinkSpeed(pair.source, pair.target, pair.rtt, pair.rate, "TCP") for pair in network.pairs if pair.rate]
    return SpeedCheck(speeds, tuple(lines), missed, tuple(unmeasured))


def _machine_key(host: str, facts: Mapping[str, Facts]) -> str:
    """Containers, and the hosts of a lab, share the computer that booted once."""
    return facts[host].boot_id or host


def _talk(
    hosts: list[str],
    inventory: Inventory,
    facts: Mapping[str, Facts],
    sessions: Mapping[str, Session],
    context: Context,
    turns: Mapping[str, threading.Lock],
) -> Generator[Event, None, tuple[list[LinkSpeed], list[UnmeasuredLink]]]:
    """Pairs that were measured, and those that could not be, with the reason."""
    choices = choose_interfaces(facts)
    layouts = {host: layout for host in hosts if host in choices and (layout := _layout(facts[host]))}
    programs = {host: posixpath.join(posixpath.dirname(layout.mpiexec), "IMB-MPI1") for host, layout in layouts.items()}
    if is_one_machine(facts) or len(layouts) < 2:
        return [], []
    lines: list[LinkSpeed] = []
    unmeasured: list[UnmeasuredLink] = []
    for pairs in rounds([host for host in hosts if _has_program(sessions[host], programs.get(host))]):
        partner = dict(pairs)

        def talk(link: Link, emit: Emit, partner: Mapping[str, str] = partner) -> LinkSpeed | NotReached:
            first, second = link.host.name, partner[link.host.name]
            if layouts[first].mpiexec != layouts[second].mpiexec:
                return NotReached(f"another environment than {second}'s")
            try:
                with ExitStack() as alone:
                    for computer in sorted({_machine_key(host, facts) for host in (first, second)}):
                        alone.enter_context(turns[computer])
                    result = _measure_pair(sessions, first, second, programs[first], layouts, facts, choices)
            except (LinkError, RemoteError) as error:
                return NotReached(_explain(error))
            return LinkSpeed(first, second, result.latency, result.rate, "IMB-MPI1 PingPong")

        results = yield from run_on_hosts(
            context, [inventory[host] for host in partner], "ping-pong", talk, outcome=_outcome
        )
        lines += [line for line in results.values() if isinstance(line, LinkSpeed)]
        unmeasured += [
            UnmeasuredLink(host, partner[host], missed.why)
            for host, missed in results.items()
            if isinstance(missed, NotReached)
        ]
    return lines, unmeasured


def _measure_pair(
    sessions: Mapping[str, Session],
    first: str,
    second: str,
    program: str,
    layouts: Mapping[str, Runtime],
    facts: Mapping[str, Facts],
    choices: Mapping[str, InterfaceChoice],
) -> PingPong:
    """Raises `LinkError` or `RemoteError`."""
    pair = (first, second)
    rdma = has_rdma(facts[host] for host in pair)
    env = {host: _environment(layouts[host], facts[host], choices[host], rdma) for host in pair}
    lead, other = sessions[first], sessions[second]
    try:
        commands = lead.call(
            "start_mpiexec",
            LaunchRequests,
            mpiexec=layouts[first].mpiexec,
            program=program,
            env=env[first],
            interface=choices[first].name,
            seconds=_TALK,
        ).commands
        lead.call("start_rank", Nothing, words=commands.get("a", []), env=env[first])
        other.call("start_rank", Nothing, words=commands.get("b", []), env=env[second])
        return lead.call("wait_pingpong", PingPong, seconds=_PATIENCE)
    finally:
        for session in (lead, other):
            with suppress(LinkError, RemoteError):
                session.call("finish", Nothing)


def _has_program(session: Session, path: str | None) -> bool:
    try:
        return path is not None and session.call("find_executables", Executables, paths=[path]).executable.get(
            path, False
        )
    except (LinkError, RemoteError):
        return False


def _layout(fact: Facts) -> Runtime | None:
    """Where the environment has its MPI; None for one that ipexctl did not make, or with another than Intel MPI."""
    try:
        environment = build_runtime(fact.installed.marker) if fact.installed else None
    except UsageError:
        return None
    return environment if environment and environment.dialect == "impi" else None


def _environment(layout: Runtime, fact: Facts, choice: InterfaceChoice, rdma: bool) -> dict[str, str]:
    env = {
        **layout.env,
        "PATH": ":".join([*layout.path, "/usr/bin", "/bin"]),
        "LD_LIBRARY_PATH": ":".join(layout.library_path),
        "HOME": fact.home or "/",
        "FI_TCP_IFACE": choice.name,
    }
    return env if rdma else {**env, "FI_PROVIDER": "tcp"}


def _build_speed(host: str, fact: Facts, figures: Figures) -> HostSpeed:
    why = printable(figures.why, 400)
    if why and not (fact.installed and fact.installed.exists):
        why = "no environment there: no matrix products"
    elif why:
        why = f"torch does not load: {why}"
    return HostSpeed(
        host,
        threads=figures.threads,
        torch=printable(figures.torch, 80) if figures.torch else None,
        fp32=figures.fp32,
        bf16=figures.bf16,
        memory=figures.memory,
        spread={name: value for name, value in figures.spread.items() if name in FIGURES},
        method="triad" if figures.method == "triad" else "copy",
        why=why,
    )


def _outcome(result: object) -> tuple[StepOutcome, str]:
    return ("skipped", result.why) if isinstance(result, NotReached) else ("ok", "")


def _explain(error: LinkError | RemoteError) -> str:
    return error.failure.what if isinstance(error, LinkError) else str(error)
