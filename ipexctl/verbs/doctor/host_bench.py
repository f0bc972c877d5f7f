"""``doctor --bench``: all hosts compute at the same time, then talk in pairs, so that a straggler has a name."""

import posixpath
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from threading import Lock

from ipexctl.act.context import Context
from ipexctl.act.sessions import RemoteError, Session
from ipexctl.decide.checks.benchmarks import FIGURES, judge_speeds, merge_best_figures, pair_hosts_in_rounds
from ipexctl.decide.checks.connectivity import ConnectivityReport
from ipexctl.decide.checks.network import InterfaceChoice, is_one_machine, select_interfaces
from ipexctl.decide.launch.environment import has_rdma
from ipexctl.decide.releases.runtime import Runtime, build_runtime
from ipexctl.model.answers.doctor import HostSpeed, LinkSpeed, SpeedCheck, UnmeasuredLink
from ipexctl.model.errors import UsageError
from ipexctl.model.events import Event
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Inventory
from ipexctl.model.links import LinkError
from ipexctl.model.text import printable
from ipexctl.protocol.session import Executables, Figures, LaunchRequests, Nothing, PingPong
from ipexctl.verbs.doctor.host_sessions import HostSessions, find_pythons

MEASURE_SECONDS = 1.2  # seconds of each of the three figures of a host
_IMB_SECONDS = 2.0  # seconds of IMB-MPI1's own time
_IMB_TIMEOUT = 15.0  # seconds for IMB-MPI1 to say something, on hosts whose processors have other work too
_SILENCE_TIMEOUT = 90.0  # seconds: torch from a cold disk takes its time to load


def measure_host_speeds(
    inventory: Inventory, facts: Mapping[str, Facts], network: ConnectivityReport, context: Context
) -> Generator[Event, None, SpeedCheck]:
    """How fast the hosts are. Pairs are measured with the IMB-MPI1 of the hosts' environments, elsewhere the rates of
    ``network`` count. Nothing stays on the hosts: what is started ends with the sessions, which are closed here."""
    pythons = find_pythons(facts)
    missed = {host: "no Python to measure with" for host in facts if host not in pythons}
    hosts = [host for host in inventory if host.name in pythons]
    together = replace(context, bound=max(context.bound, len(hosts)))  # they work, we only wait
    # Hosts of one computer are measured one after another, or each would be called slow for the others.
    turns = {_identify_machine(host, facts): Lock() for host in pythons}

    def compute(host: str, session: Session) -> HostSpeed:
        with turns[_identify_machine(host, facts)]:
            return _build_host_speed(host, facts[host], session.call("compute", Figures, seconds=MEASURE_SECONDS))

    with HostSessions(together, "bench", pythons, _SILENCE_TIMEOUT) as sessions:
        speeds, unmeasured = yield from sessions.run(hosts, "measure", compute)
        missed |= unmeasured
        behind = {hit.host for hit in judge_speeds(SpeedCheck(tuple(speeds.values()))) if hit.code == "SPD001"}
        if behind:  # nobody is called slow for one bad moment
            slow_hosts = [host for host in hosts if host.name in behind]
            again, _ = yield from sessions.run(slow_hosts, "measure again", compute)
            speeds |= {host: merge_best_figures(speeds[host], second) for host, second in again.items()}
        lines, failed = yield from _measure_links(list(speeds), inventory, facts, sessions, turns)
    if not lines:
        lines = [LinkSpeed(pair.source, pair.target, pair.rtt, pair.rate, "TCP") for pair in network.pairs if pair.rate]
    return SpeedCheck(tuple(speeds.values()), tuple(lines), missed, tuple(failed))


def _identify_machine(host: str, facts: Mapping[str, Facts]) -> str:
    """Containers, and the hosts of a lab, share the computer that booted once."""
    return facts[host].boot_id or host


def _measure_links(
    hosts: list[str], inventory: Inventory, facts: Mapping[str, Facts], sessions: HostSessions, turns: dict[str, Lock]
) -> Generator[Event, None, tuple[list[LinkSpeed], list[UnmeasuredLink]]]:
    """Pairs that were measured, and those that could not be, with the reason."""
    choices, _ = select_interfaces(inventory, facts)
    runtimes = {host: runtime for host in hosts if host in choices and (runtime := _find_runtime(facts[host]))}
    programs = {host: posixpath.join(posixpath.dirname(each.mpiexec), "IMB-MPI1") for host, each in runtimes.items()}
    lines: list[LinkSpeed] = []
    unmeasured: list[UnmeasuredLink] = []
    if is_one_machine(facts) or len(runtimes) < 2:
        return lines, unmeasured
    ready = [host for host, path in programs.items() if _has_program(sessions.sessions[host], path)]
    for pairs in pair_hosts_in_rounds(ready):
        partner = dict(pairs)

        def measure(first: str, session: Session, partner: Mapping[str, str] = partner) -> LinkSpeed:
            second = partner[first]
            if runtimes[first].mpiexec != runtimes[second].mpiexec:
                raise RemoteError("other-env", f"another environment than {second}'s", {})
            pair = (first, second)
            rdma = has_rdma(facts[host] for host in pair)
            envs = [_build_environment(runtimes[host], facts[host], choices[host], rdma) for host in pair]
            launch = (runtimes[first].mpiexec, programs[first], choices[first].name)
            with ExitStack() as alone:
                for computer in sorted({_identify_machine(host, facts) for host in pair}):
                    alone.enter_context(turns[computer])
                result = _measure_pair((session, sessions.sessions[second]), envs, *launch)
            return LinkSpeed(first, second, result.latency, result.rate, "IMB-MPI1 PingPong")

        results, reasons = yield from sessions.run([inventory[host] for host in partner], "ping-pong", measure)
        lines += results.values()
        unmeasured += [UnmeasuredLink(host, partner[host], why) for host, why in reasons.items()]
    return lines, unmeasured


def _measure_pair(
    sessions: Sequence[Session], envs: Sequence[Mapping[str, str]], mpiexec: str, program: str, interface: str
) -> PingPong:
    """Of two hosts, the first of which starts mpiexec. Raises `LinkError` or `RemoteError`."""
    lead = sessions[0]
    try:
        request = {
            "mpiexec": mpiexec,
            "program": program,
            "interface": interface,
            "env": envs[0],
            "seconds": _IMB_SECONDS,
        }
        commands = lead.call("start_mpiexec", LaunchRequests, progress=None, **request).commands
        for session, label, env in zip(sessions, "ab", envs, strict=True):
            session.call("start_rank", Nothing, words=commands.get(label, []), env=env)
        return lead.call("wait_pingpong", PingPong, seconds=_IMB_TIMEOUT)
    finally:
        for session in sessions:
            with suppress(LinkError, RemoteError):
                session.call("finish", Nothing)


def _has_program(session: Session, path: str) -> bool:
    try:
        return session.call("find_executables", Executables, paths=[path]).executable.get(path, False)
    except (LinkError, RemoteError):
        return False


def _find_runtime(fact: Facts) -> Runtime | None:
    """Where the environment has its MPI; None for one that ipexctl did not make, or with another than Intel MPI."""
    try:
        runtime = build_runtime(fact.installed.marker) if fact.installed else None
    except UsageError:
        return None
    return runtime if runtime and runtime.dialect == "impi" else None


def _build_environment(runtime: Runtime, fact: Facts, choice: InterfaceChoice, rdma: bool) -> dict[str, str]:
    env = {
        **runtime.env,
        "PATH": ":".join([*runtime.path, "/usr/bin", "/bin"]),
        "LD_LIBRARY_PATH": ":".join(runtime.library_path),
        "HOME": fact.home or "/",
        "FI_TCP_IFACE": choice.name,
    }
    return env if rdma else {**env, "FI_PROVIDER": "tcp"}


def _build_host_speed(host: str, fact: Facts, figures: Figures) -> HostSpeed:
    why = printable(figures.why, 400)
    if why and not (fact.installed and fact.installed.exists):
        why = "no environment there: no matrix products"
    elif why:
        why = f"torch does not load: {why}"
    torch = printable(figures.torch, 80) if figures.torch else None
    method = "triad" if figures.method == "triad" else "copy"
    spread = {name: value for name, value in figures.spread.items() if name in FIGURES}
    return HostSpeed(host, **figures._replace(torch=torch, method=method, spread=spread, why=why)._asdict())
