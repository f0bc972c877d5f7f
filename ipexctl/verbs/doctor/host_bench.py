"""``doctor --bench``: all hosts compute at the same time, so that a straggler has a name."""

from dataclasses import replace
from threading import Lock

from ipexctl.act.context import Context
from ipexctl.act.sessions import Session
from ipexctl.decide.checks.benchmarks import FIGURES, judge_speeds, merge_best_figures
from ipexctl.decide.checks.connectivity import ConnectivityReport
from ipexctl.model.answers.doctor import HostSpeed, LinkSpeed, SpeedCheck
from ipexctl.model.events import Workflow
from ipexctl.model.facts import Facts, HostFacts
from ipexctl.model.hosts import Inventory
from ipexctl.model.text import printable
from ipexctl.protocol.session import Figures
from ipexctl.verbs.doctor.host_sessions import HostSessions, find_pythons

MEASURE_SECONDS = 1.2  # seconds of each of the three figures of a host
_SILENCE_TIMEOUT = 90.0  # seconds: torch from a cold disk takes its time to load


def measure_host_speeds(
    inventory: Inventory, facts: HostFacts, network: ConnectivityReport, context: Context
) -> Workflow[SpeedCheck]:
    """How fast the hosts are; the rates between them are those of ``network``. Nothing stays on the hosts: the sessions
    are closed here."""
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
    pairs = (LinkSpeed(pair.source, pair.target, pair.rtt, pair.rate) for pair in network.pairs if pair.rate)
    return SpeedCheck(tuple(speeds.values()), tuple(pairs), missed)


def _identify_machine(host: str, facts: HostFacts) -> str:
    """Containers, and the hosts of a lab, share the computer that booted once."""
    return facts[host].boot_id or host


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
