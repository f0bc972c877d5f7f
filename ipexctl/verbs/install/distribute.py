"""Files to many hosts over one uplink: from here to the first, then from host to host."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ipexctl.act.fanout import Emit
from ipexctl.act.transfer.send import send_file
from ipexctl.decide.planning.install import mib
from ipexctl.model.errors import Failure
from ipexctl.model.events import Event, Progress
from ipexctl.model.links import Link
from ipexctl.verbs.install.install_sessions import Ask, InstallSessions

WHEELS = "tmp/wheels"  # below the store of environments on a host


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that has to get to a host, at ``target`` below the store there."""

    target: str
    path: Path
    sha256: str
    size: int
    mode: int = 0o600

    def told(self) -> dict[str, Any]:
        return {"target": self.target, "sha256": self.sha256, "size": self.size, "mode": self.mode}


def spread(
    crew: InstallSessions, parcels: Mapping[str, Sequence[Artifact]], addresses: Mapping[str, str]
) -> Generator[Event, None, None]:
    """Everything to the first host from here; then every host that has it gives it to one that has not, so that
    our uplink carries it once and the time grows with the logarithm of the hosts. What a host cannot get from
    another (a firewall, another set of wheels), it gets from here."""
    step = "send the wheels"
    waiting = [name for name, some in parcels.items() if some]
    offers: dict[str, str] = {}  # by host: where others fetch from it
    ready: list[str] = []
    while waiting:
        size = len(offers) or max(1, len(ready))  # one a giver, so that none of them has to come from here
        turn, waiting = waiting[:size], waiting[size:]
        givers = dict(zip(turn, [name for name in ready if name in offers], strict=False))
        more = bool(waiting)

        def send(
            link: Link, emit: Emit, givers: Mapping[str, str] = givers, more: bool = more
        ) -> tuple[str, int] | Failure:
            name = link.host.name

            def work(ask: Ask) -> tuple[str, int]:
                ask("room")
                rest, giver = list(parcels[name]), givers.get(name, "")
                total = sum(parcel.size for parcel in rest)
                if giver:
                    told = [parcel.told() for parcel in rest]
                    got = ask(
                        "get",
                        base=offers[giver],
                        files=told,
                        progress=lambda done, _: emit(Progress(name, step, done, total, "B", f"from {giver}")),
                    )["got"]
                    rest = [parcel for parcel in rest if parcel.target not in got]
                    if not got:  # a firewall at its end, most likely: nobody else needs to wait for it
                        offers.pop(giver, None)
                for parcel in rest:
                    before = total - sum(other.size for other in rest[rest.index(parcel) :])
                    send_file(
                        link,
                        parcel.path,
                        f"{crew.venv}.d/{parcel.target}",
                        _within(emit, before, total),
                        step,
                        sha256=parcel.sha256,
                        mode=parcel.mode,
                    )
                if more and name in addresses:
                    offer = ask("serve", files=[parcel.target for parcel in parcels[name]])
                    offers[name] = f"http://{_url_host(addresses[name])}:{offer['port']}/{offer['token']}"
                return (giver if not rest else "here"), total

            return crew.done(name, work)

        yield from crew.each(turn, step, send, outcome=lambda sent: ("changed", f"{mib(sent[1])} from {sent[0]}"))
        ready += [name for name in turn if name not in crew.failed]


def _within(emit: Emit, before: int, total: int) -> Emit:
    """Progress of one file as part of many."""

    def told(event: Event) -> None:
        if isinstance(event, Progress):
            event = replace(event, done=before + event.done, total=total, detail=f"sending {event.detail}")
        emit(event)

    return told


def _url_host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
