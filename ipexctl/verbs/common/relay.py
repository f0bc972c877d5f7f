"""Files to many hosts over one uplink: from the controller to the first, then from host to host."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, TypeVar

from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.act.sessions import RemoteError, Session, load_session_program
from ipexctl.act.threads import start_thread
from ipexctl.act.transfer.send import send_file
from ipexctl.decide.planning.install import group_hosts_by_tokens
from ipexctl.model.errors import Failure, Kind, UsageError
from ipexctl.model.events import Event, Message, Progress, StepOutcome, Workflow
from ipexctl.model.hosts import Inventory, Link
from ipexctl.model.json_values import Record
from ipexctl.model.text import format_size, printable
from ipexctl.protocol.session import Fetched, Nothing, Offer, Present, SeenTokens

T = TypeVar("T")
_SLOW_DELAY, _TIMES_SLOWER = 0.04, 4  # seconds, and times the usual ones, from which a host answers slowly


@dataclass
class RelaySessions:
    """Sessions of one ``program`` with many hosts, each with a store of files. ``failed`` holds the first failure of a
    host; no further request is sent to such a host."""

    inventory: Inventory
    context: Context
    failed: dict[str, Failure]
    sessions: dict[str, Session] = field(default_factory=dict, kw_only=True)
    program: ClassVar[str]
    step: ClassVar[str] = "send the wheels"

    def locate_store(self, host: str) -> str:
        """Returns the directory on a host below which its files go."""
        raise NotImplementedError

    def describe_error(self, host: str, error: RemoteError) -> Failure:
        """Returns the error of a host as a failure in one printable line."""
        return Failure(host, Kind.STEP, printable(error.what, 600), code=error.code)

    def open(self, link: Link, python: str) -> None:
        """Starts the session of a host under this interpreter. Raises `LinkError`."""
        self.sessions[link.host.name] = Session.start(link, python, load_session_program(self.program))

    def close(self) -> None:
        """Ends all sessions; those that hold a lock release it."""
        wait([start_thread(session.end) for session in self.sessions.values()], 10)

    def call(self, host: str, do: str, kind: type[T], **arguments: Any) -> T:
        """As `Session.call`, of a host's session."""
        return self.sessions[host].call(do, kind, **arguments)

    def run(
        self,
        names: Sequence[str],
        step: str,
        work: Callable[[Link, Emit], T | Failure],
        *,
        outcome: Callable[[T], tuple[StepOutcome, str]] | None = None,
    ) -> Workflow[dict[str, T]]:
        """As `run_on_hosts`, for hosts by name. A host whose ``work`` raises `RemoteError` or `UsageError`,
        or returns a `Failure`, is put into ``failed`` and left out of the result."""

        def attempt(link: Link, emit: Emit) -> T | Failure:
            try:
                return work(link, emit)
            except RemoteError as error:
                return self.describe_error(link.host.name, error)
            except UsageError as error:
                return Failure(link.host.name, Kind.STEP, error.sentence, error.hint)

        hosts = [self.inventory[name] for name in names]
        done, failed = yield from run_on_hosts(self.context, hosts, step, attempt, outcome=outcome)
        self.failed.update(failed)
        return done

    def request(
        self,
        names: Sequence[str],
        step: str,
        do: str,
        kind: type[T],
        arguments: Callable[[str], Mapping[str, object]] = lambda _: {},
        *,
        outcome: Callable[[T], tuple[StepOutcome, str]] | None = None,
    ) -> Workflow[dict[str, T]]:
        """Sends one request to the session of each host; returns the answers by host."""

        def ask(link: Link, _: Emit) -> T:
            return self.call(link.host.name, do, kind, **arguments(link.host.name))

        return (yield from self.run(names, step, ask, outcome=outcome))

    def find_shared_fs_groups(self, names: Sequence[str], does: str) -> Workflow[list[list[str]]]:
        """Hosts by file system: each leaves a token and looks for those of the others. The first host of a group
        ``does`` the work for all ("installs")."""
        if len(names) < 2:
            return [[name] for name in names]
        tokens = {name: f"{secrets.token_hex(6)}-{number}" for number, name in enumerate(names)}
        yield from self.request(names, "leave a token", "leave_token", Nothing, lambda name: {"name": tokens[name]})
        alive = [name for name in names if name not in self.failed]
        wanted = {"names": list(tokens.values())}
        answers = yield from self.request(alive, "look for tokens", "find_tokens", SeenTokens, lambda _: wanted)
        owner = {token: name for name, token in tokens.items()}
        seen = {name: {owner[token] for token in answer.seen if token in owner} for name, answer in answers.items()}
        result = group_hosts_by_tokens(list(seen), seen)
        for group in result:
            if len(group) > 1:
                yield Message(f"shared file system: {group[0]} {does} for {', '.join(group[1:])}")
        return result


class Artifact(Record):
    """A file for a host, at ``target`` below the store there."""

    target: str
    path: Path
    sha256: str
    size: int
    mode: int = 0o600


def distribute_artifacts(
    sessions: RelaySessions, artifacts: Mapping[str, Sequence[Artifact]], addresses: Mapping[str, str]
) -> Workflow[None]:
    """Sends the artifacts of each host: from the controller to the first host; then every host that has them serves
    one that has not, so that the controller's uplink carries them once and the time grows with the logarithm of the
    hosts. What a host cannot fetch from another (a firewall, other wheels), the controller sends."""
    waiting = order_by_delay(sessions, [name for name, files in artifacts.items() if files])
    offers: dict[str, tuple[str, str]] = {}  # the URL and the token of each host's server
    ready: list[str] = []
    while waiting:
        size = len(offers) or max(1, len(ready))  # one for each server, so that the controller sends nothing again
        turn, waiting = waiting[:size], waiting[size:]
        givers = dict(zip(turn, [name for name in ready if name in offers], strict=False))
        more = bool(waiting)
        for name in waiting:
            yield Progress(
                name, sessions.step, 0, sum(file.size for file in artifacts[name]), "B", f"waits for {turn[0]}"
            )

        def send(link: Link, emit: Emit, givers: Mapping[str, str] = givers, more: bool = more) -> tuple[str, int]:
            name, giver = link.host.name, givers.get(link.host.name, "")
            arrived = {*sessions.call(name, "make_room", Present, files=_describe_artifacts(artifacts[name])).paths}
            missing = [artifact for artifact in artifacts[name] if artifact.target not in arrived]
            total = sum(artifact.size for artifact in missing)
            if giver and missing:
                base, token = offers[giver]

                def report(done: int, _: int) -> None:
                    emit(Progress(name, sessions.step, done, total, "B", f"from {giver}"))

                request = {"base": base, "token": token, "files": _describe_artifacts(missing)}
                fetched = {*sessions.call(name, "fetch", Fetched, progress=report, **request).files}
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

        yield from sessions.run(turn, sessions.step, send, outcome=_describe_sent)
        ready += [name for name in turn if name not in sessions.failed]


def order_by_delay(sessions: RelaySessions, names: Sequence[str]) -> list[str]:
    """Returns the hosts in their order, those last that take much longer to answer than the others: who waits for one
    of them behind a slow link would be late as well."""
    delays = {name: sessions.sessions[name].quickest for name in names}
    limit = max(_SLOW_DELAY, _TIMES_SLOWER * median(delays.values())) if delays else 0.0
    return sorted(names, key=lambda name: delays[name] > limit)


def _describe_sent(sent: tuple[str, int]) -> tuple[StepOutcome, str]:
    if sent[1]:
        return ("changed", f"{format_size(sent[1])} from {sent[0]}")
    return ("ok", "they have arrived before")


def _describe_artifacts(artifacts: Sequence[Artifact]) -> list[dict[str, object]]:
    """As a session takes them."""
    return [{key: getattr(artifact, key) for key in ("target", "sha256", "size", "mode")} for artifact in artifacts]


def _send_files(sessions: RelaySessions, link: Link, files: Sequence[Artifact], total: int, emit: Emit) -> None:
    """Sends the last ``files`` of a host from the controller; their progress is that of all, ``total`` bytes."""
    before, name = total - sum(artifact.size for artifact in files), ""

    def report(event: Event) -> None:
        if isinstance(event, Progress):
            event = replace(event, done=before + event.done, total=total, detail=f"sending {name}")
        emit(event)

    for file in files:
        name = file.path.name
        target = f"{sessions.locate_store(link.host.name)}/{file.target}"
        send_file(link, file.path, target, report, sessions.step, sha256=file.sha256, mode=file.mode)
        before += file.size
