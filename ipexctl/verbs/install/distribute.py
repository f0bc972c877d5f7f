"""Files to many hosts over one uplink: from the controller to the first, then from host to host."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ipexctl.act.fanout import Emit
from ipexctl.act.transfer.send import send_file
from ipexctl.model.events import Event, Progress, StepOutcome
from ipexctl.model.json_values import Record
from ipexctl.model.links import Link
from ipexctl.model.text import format_size
from ipexctl.protocol.session import Fetched, Offer, Present
from ipexctl.verbs.install.install_sessions import InstallSessions

WHEELS = "wheels"  # below the store of environments on a host
_STEP = "send the wheels"


class Artifact(Record):
    """A file for a host, at ``target`` below the store of environments there."""

    target: str
    path: Path
    sha256: str
    size: int
    mode: int = 0o600


def distribute_artifacts(
    sessions: InstallSessions, artifacts: Mapping[str, Sequence[Artifact]], addresses: Mapping[str, str]
) -> Generator[Event, None, None]:
    """Sends the artifacts of each host: from the controller to the first host; then every host that has them serves
    one that has not, so that the controller's uplink carries them once and the time grows with the logarithm of the
    hosts. What a host cannot fetch from another (a firewall, other wheels), the controller sends."""
    waiting = [name for name, files in artifacts.items() if files]
    offers: dict[str, tuple[str, str]] = {}  # the URL and the token of each host's server
    ready: list[str] = []
    while waiting:
        size = len(offers) or max(1, len(ready))  # one for each server, so that the controller sends nothing again
        turn, waiting = waiting[:size], waiting[size:]
        givers = dict(zip(turn, [name for name in ready if name in offers], strict=False))
        more = bool(waiting)
        for name in waiting:
            yield Progress(name, _STEP, 0, sum(file.size for file in artifacts[name]), "B", f"waits for {turn[0]}")

        def send(link: Link, emit: Emit, givers: Mapping[str, str] = givers, more: bool = more) -> tuple[str, int]:
            name, giver = link.host.name, givers.get(link.host.name, "")
            arrived = sessions.call(name, "make_room", Present, files=_describe_artifacts(artifacts[name])).paths
            missing = [artifact for artifact in artifacts[name] if artifact.target not in arrived]
            total = sum(artifact.size for artifact in missing)
            if giver and missing:
                base, token = offers[giver]

                def report(done: int, _: int) -> None:
                    emit(Progress(name, _STEP, done, total, "B", f"from {giver}"))

                request = {"base": base, "token": token, "files": _describe_artifacts(missing)}
                fetched = sessions.call(name, "fetch", Fetched, progress=report, **request).files
                missing = [artifact for artifact in missing if artifact.target not in fetched]
                if not fetched:  # a firewall at the giver, most likely: no other host needs to try it
                    offers.pop(giver, None)
            _send_files(sessions, link, missing, total, emit)
            if more and (address := addresses.get(name)):
                targets = [artifact.target for artifact in artifacts[name]]
                offer = sessions.call(name, "serve", Offer, address=address, files=targets)
                host = f"[{address}]" if ":" in address else address
                offers[name] = f"http://{host}:{offer.port}", offer.token
            return (giver if not missing else "here"), total

        yield from sessions.run(turn, _STEP, send, outcome=_describe_sent)
        ready += [name for name in turn if name not in sessions.failed]


def _describe_sent(sent: tuple[str, int]) -> tuple[StepOutcome, str]:
    if sent[1]:
        return ("changed", f"{format_size(sent[1])} from {sent[0]}")
    return ("ok", "they have arrived before")


def _describe_artifacts(artifacts: Sequence[Artifact]) -> list[dict[str, object]]:
    """As a session takes them."""
    return [{key: getattr(artifact, key) for key in ("target", "sha256", "size", "mode")} for artifact in artifacts]


def _send_files(sessions: InstallSessions, link: Link, files: Sequence[Artifact], total: int, emit: Emit) -> None:
    """Sends the last ``files`` of a host from the controller; their progress is that of all, ``total`` bytes."""
    before = total - sum(artifact.size for artifact in files)

    def report(event: Event) -> None:
        if isinstance(event, Progress):
            event = replace(event, done=before + event.done, total=total, detail=f"sending {event.detail}")
        emit(event)

    for file in files:
        target = f"{sessions.venv}.d/{file.target}"
        send_file(link, file.path, target, report, _STEP, sha256=file.sha256, mode=file.mode)
        before += file.size
