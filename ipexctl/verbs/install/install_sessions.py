"""One install or uninstall: its sessions on the hosts, their first failures, and the choices made for it."""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from getpass import getuser
from typing import Any, TypeVar

from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit, run_on_hosts
from ipexctl.act.packages.resolve import read_uv_errors, strip_error_prefix
from ipexctl.act.packages.sources import Sources
from ipexctl.act.sessions import RemoteError, Session, load_session_program
from ipexctl.decide.planning.install import ANOTHER_PATH, group_hosts_by_tokens
from ipexctl.model.errors import Failure, Kind, UsageError
from ipexctl.model.events import Event, Message, PhaseStarted, StepOutcome
from ipexctl.model.facts import Facts
from ipexctl.model.hints import advise
from ipexctl.model.hosts import Inventory
from ipexctl.model.links import Link
from ipexctl.model.stack import Stack
from ipexctl.model.tasks import Install
from ipexctl.model.text import format_size, format_time, printable
from ipexctl.model.wheels import Lock
from ipexctl.protocol.codec import DamagedError, decode
from ipexctl.protocol.session import Cleaned, LockOwner, Nothing, SeenTokens, Shortage

T = TypeVar("T")

Workflow = Generator[Event, None, T]


@dataclass
class InstallSessions:
    """``failed`` holds the first failure of a host; no further request is sent to such a host."""

    inventory: Inventory
    context: Context
    venv: str
    id: str  # of the environment that is being made
    failed: dict[str, Failure]
    sessions: dict[str, Session] = field(default_factory=dict, kw_only=True)

    def open(self, link: Link, python: str) -> None:
        """Starts the session of a host under this interpreter. Raises `LinkError`."""
        self.sessions[link.host.name] = Session.start(link, python, load_session_program("install"))

    def close(self) -> None:
        """Ends all sessions; those that hold a lock release it."""
        threads = [threading.Thread(target=session.end, daemon=True) for session in self.sessions.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)

    def call(
        self, host: str, do: str, kind: type[T], *, progress: Callable[[int, int], None] | None = None, **arguments: Any
    ) -> T:
        """Returns the answer of a host's session. Raises `RemoteError`, `LinkError`."""
        arguments = {"venv": self.venv, "id": self.id, **arguments}
        return self.sessions[host].call(do, kind, progress=progress, **arguments)

    def run(
        self,
        names: Sequence[str],
        step: str,
        work: Callable[[Link, Emit], T | Failure],
        *,
        outcome: Callable[[T], tuple[StepOutcome, str]] | None = None,
    ) -> Workflow[dict[str, T]]:
        """As `fanout.run_on_hosts`, for hosts by name. A host whose ``work`` raises `RemoteError` or `UsageError`,
        or returns a `Failure`, is put into ``failed`` and left out of the result."""

        def attempt(link: Link, emit: Emit) -> T | Failure:
            try:
                return work(link, emit)
            except RemoteError as error:
                return describe_error(link.host.name, error, self.venv)
            except UsageError as error:
                return Failure(link.host.name, Kind.STEP, error.sentence, error.hint)

        hosts = [self.inventory[name] for name in names]
        results = yield from run_on_hosts(self.context, hosts, step, attempt, outcome=outcome)
        self.failed.update({name: result for name, result in results.items() if isinstance(result, Failure)})
        return {name: result for name, result in results.items() if not isinstance(result, Failure)}

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
            return self.call(link.host.name, do, kind, progress=None, **arguments(link.host.name))

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
        seen = {name: [owner[token] for token in answer.seen if token in owner] for name, answer in answers.items()}
        result = group_hosts_by_tokens(list(seen), seen)
        for group in result:
            if len(group) > 1:
                yield Message(f"shared file system: {group[0]} {does} for {', '.join(group[1:])}")
        return result


@dataclass
class InstallJob(InstallSessions):
    """The sessions of an install, its task and the choices made for it; ``stop`` ends the controller's own threads."""

    task: Install
    sources: Sources
    stack: Stack
    lock: Lock
    facts: Mapping[str, Facts]
    since: float = field(default_factory=time.time)
    phases: tuple[str, ...] = ()  # what it will do, in order
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def owner(self) -> dict[str, object]:
        """Who holds the locks, as other installs are told."""
        return LockOwner(getuser(), socket.gethostname(), os.getpid(), self.since)._asdict()

    def start_phase(self, title: str) -> Iterator[Event]:
        if title in self.phases:
            yield PhaseStarted(self.phases.index(title) + 1, len(self.phases), title)

    def reopen(self, link: Link) -> None:
        """Starts another session in place of a lost one, locks, and undoes what that one had not finished. Raises
        `LinkError`, `RemoteError`."""
        self.sessions[link.host.name].close()
        self.open(link, self.stack.interpreters[link.host.name])
        self.call(link.host.name, "lock", Nothing, owner=self.owner)
        self.call(link.host.name, "clean", Cleaned)


def describe_error(host: str, error: RemoteError, venv: str) -> Failure:
    """Returns the error of a host as a failure in one printable line."""
    kind, what = Kind.STEP, error.what
    hint: str | None = None
    if error.code == "busy":
        owner = _read_details(LockOwner, error.more.get("holder"))
        what, kind, hint = f"busy: another install uses {venv}", Kind.BUSY, "wait for it, or use another --venv"
        if owner:
            by = f"{owner.user}@{owner.host} (pid {owner.pid}) since {format_time(owner.since, '%H:%M:%S')}"
            what = f"busy: {by} installs into {venv}"
    elif error.code == "no-locks":
        hint = ANOTHER_PATH
    elif error.code == "residue":
        kind = Kind.RESIDUE
    elif error.code == "no-space":
        lack = _read_details(Shortage, error.more)
        what, hint = f"no space left while unpacking ({error.what})", ANOTHER_PATH
        if lack:
            what = f"no space left: need {format_size(lack.need)}, {format_size(lack.free)} free in {lack.at}"
    else:
        lines = read_uv_errors(str(error.more.get("errors") or ""))
        if error.code == "hash":
            words = " ".join(line for line in lines if "ash mismatch" in line or "sha256:" in line or "xpected" in line)
            what = f"a wheel is not the one that was locked: {words[:400]}"
        elif lines:
            # uv names what failed in its first line and the cause in its last.
            ends = [*[line for line in lines if line.startswith("error: ")][:1], lines[-1]]
            words = " / ".join(dict.fromkeys(map(strip_error_prefix, ends)))
            what = f"{error.what}: {words[:400]}"
        hint = advise("install", "--wheels-from", "controller") if error.code == "index" else None
    return Failure(host, kind, printable(what, 600), hint, error.code)


def _read_details(kind: type[T], details: object) -> T | None:
    """Further facts of an error; None where a host sends something else."""
    try:
        return decode(kind, details)
    except DamagedError:
        return None
