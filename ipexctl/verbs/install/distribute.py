"""Files to many hosts over one uplink: from the controller to the first, then from host to host."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ipexctl.act.fanout import Emit
from ipexctl.act.transfer.send import send_file
from ipexctl.decide.planning.install import mib
from ipexctl.model.events import Event, Progress
from ipexctl.model.links import Link
from ipexctl.protocol.session import Fetched, Nothing, Offer
from ipexctl.verbs.install.install_sessions import InstallSessions

WHEELS = "tmp/wheels"  # below the store of environments on a host


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file for a host, at ``target`` below the store of environments there."""

    target: str
    path: Path
    sha256: str
    size: int
    mode: int = 0o600

    def to_json(self) -> dict[str, Any]:
        """The file as a request names it."""
        return {"target": self.target, "sha256": self.sha256, "size": self.size, "mode": self.mode}


def distribute(
    sessions: InstallSessions, artifacts: Mapping[str, Sequence[Artifact]], addresses: Mapping[str, str]
) -> Generator[Event, None, None]:
    """Sends the artifacts of each host: from the controller to the first host; then every host that has them serves
    one that has not, so that the controller's uplink carries them once and the time grows with the logarithm of the
    hosts. What a host cannot fetch from another (a firewall, other wheels), the controller sends."""
    step = "send the wheels"
    waiting = [name for name, files in artifacts.items() if files]
    offers: dict[str, str] = {}  # the URL of each host's server
    ready: list[str] = []
    while waiting:
        size = len(offers) or max(1, len(ready))  # one for each server, so that the controller sends nothing again
        turn, waiting = waiting[:size], waiting[size:]
        givers = dict(zip(turn, [name for name in ready if name in offers], strict=False))
        more = bool(waiting)

        def send(link: Link, emit: Emit, givers: Mapping[str, str] = givers, more: bool = more) -> tuple[str, int]:
            name, giver = link.host.name, givers.get(link.host.name, "")
            sessions.call(name, "make_room", Nothing)
            missing = list(artifacts[name])
            total = sum(artifact.size for artifact in missing)
            if giver:
                fetched = sessions.call(
                    name,
                    "fetch",
                    Fetched,
                    base=offers[giver],
                    files=[artifact.to_json() for artifact in missing],
                    progress=lambda done, _: emit(Progress(name, step, done, total, "B", f"from {giver}")),
                ).files
                missing = [artifact for artifact in missing if artifact.target not in fetched]
                if not fetched:  # a firewall at the giver, most likely: no other host needs to try it
                    offers.pop(giver, None)
            for at, artifact in enumerate(missing):
                before = total - sum(other.size for other in missing[at:])
                send_file(
                    link,
                    artifact.path,
                    f"{sessions.venv}.d/{artifact.target}",
                    _shift_progress(emit, before, total),
                    step,
                    sha256=artifact.sha256,
                    mode=artifact.mode,
                )
            if more and name in addresses:
                offer = sessions.call(name, "serve", Offer, files=[artifact.target for artifact in artifacts[name]])
                offers[name] = f"http://{_bracket_ipv6(addresses[name])}:{offer.port}/{offer.token}"
            return (giver if not missing else "here"), total

        yield from sessions.run(turn, step, send, outcome=lambda sent: ("changed", f"{mib(sent[1])} from {sent[0]}"))
        ready += [name for name in turn if name not in sessions.failed]


def _shift_progress(emit: Emit, before: int, total: int) -> Emit:
    """Progress of one file as part of many."""

    def report(event: Event) -> None:
        if isinstance(event, Progress):
            event = replace(event, done=before + event.done, total=total, detail=f"sending {event.detail}")
        emit(event)

    return report


def _bracket_ipv6(address: str) -> str:
    return f"[{address}]" if ":" in address else address
