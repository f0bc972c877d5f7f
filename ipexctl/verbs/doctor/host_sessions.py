"""Sessions of one program with many hosts: a host that cannot take part is a value beside the answers of the others."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.act.sessions import RemoteError, Session, load_session_program
from ipexctl.decide.releases.table import parse_version
from ipexctl.model.events import Workflow
from ipexctl.model.facts import OLDEST_PYTHON, HostFacts
from ipexctl.model.hosts import Host, Link, LinkError

T = TypeVar("T")


@dataclass
class HostSessions(AbstractContextManager["HostSessions"]):
    """Leaving its ``with`` block ends the program on every host. ``pythons`` are the hosts' interpreters, and
    ``silence`` the seconds after which a host counts as lost."""

    context: Context
    program: str
    pythons: Mapping[str, str]
    silence: float
    sessions: dict[str, Session] = field(default_factory=dict)

    def __exit__(self, *_: object) -> None:
        for session in self.sessions.values():
            session.close()

    def run(
        self, hosts: Iterable[Host], step: str, work: Callable[[str, Session], T]
    ) -> Workflow[tuple[dict[str, T], dict[str, str]]]:
        """Calls ``work`` with the name and the session of each host; returns the answers, and why other hosts that
        could be connected to gave none: `RemoteError`, which ``work`` may raise as well, and `LinkError`."""
        answers: dict[str, T] = {}

        def find_reason(link: Link, emit: Emit) -> str:
            """Why there is no answer; empty where there is one."""
            host = link.host.name
            try:
                if host not in self.sessions:
                    program = load_session_program(self.program)
                    self.sessions[host] = Session.start(link, self.pythons[host], program, silence=self.silence)
                answers[host] = work(host, self.sessions[host])
            except (LinkError, RemoteError) as error:
                return error.failure.what if isinstance(error, LinkError) else error.what
            return ""

        reasons, _ = yield from run_on_hosts(
            self.context, hosts, step, find_reason, outcome=lambda why: ("skipped" if why else "ok", why)
        )
        silent = {host: why for host, why in reasons.items() if why}
        return {host: answers[host] for host in reasons if host in answers}, silent


def find_pythons(facts: HostFacts) -> dict[str, str]:
    """Of each host the interpreter of its environment, else any that the session programs support."""
    oldest = parse_version(OLDEST_PYTHON)
    pythons: dict[str, str] = {}
    for host, fact in facts.items():
        usable = (it.path for it in fact.pythons if it.usable and it.version and parse_version(it.version) >= oldest)
        if fact.installed and fact.installed.exists:
            pythons[host] = f"{fact.installed.venv}/bin/python"
        elif path := next(usable, None):
            pythons[host] = path
    return pythons
