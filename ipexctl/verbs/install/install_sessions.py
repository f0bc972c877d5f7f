"""The hosts of one install or uninstall, talked to: a session each, what failed where, and how troubles read."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ipexctl.act.context import Context
from ipexctl.act.fanout import Emit, each
from ipexctl.act.sessions import RemoteError, Session
from ipexctl.decide.planning.install import groups, mib
from ipexctl.model.errors import Failure, Kind, UsageError
from ipexctl.model.events import Event, Message, StepOutcome
from ipexctl.model.hosts import Inventory
from ipexctl.model.links import Link
from ipexctl.model.text import printable, without_secrets

T = TypeVar("T")

Workflow = Generator[Event, None, T]
Ask = Callable[..., dict[str, Any]]  # a question to a host's session; raises `RemoteError`


@dataclass
class InstallSessions:
    """``failed`` holds one cause a host; such a host is asked nothing more."""

    inventory: Inventory
    context: Context
    venv: str
    id: str  # of the environment that is being made
    failed: dict[str, Failure]
    sessions: dict[str, Session] = field(default_factory=dict)

    def close(self) -> None:
        """Ends all conversations; whoever holds a lock there gives it back."""
        threads = [threading.Thread(target=session.end, daemon=True) for session in self.sessions.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)

    def each(
        self,
        names: Sequence[str],
        step: str,
        work: Callable[[Link, Emit], T | Failure],
        *,
        outcome: Callable[[T], tuple[StepOutcome, str]] | None = None,
    ) -> Workflow[dict[str, T]]:
        """`fanout.each` over hosts by name; those that fail are noted and left out of the result."""
        results = yield from each(self.context, [self.inventory[name] for name in names], step, work, outcome=outcome)
        good: dict[str, T] = {}
        for name, result in results.items():
            if isinstance(result, Failure):
                self.failed[name] = result
            else:
                good[name] = result
        return good

    def command(
        self, do: str, arguments: Callable[[str], Mapping[str, Any]] = lambda _: {}
    ) -> Callable[[Link, Emit], dict[str, Any] | Failure]:
        """One question to the session of a host."""

        def work(link: Link, _: Emit) -> dict[str, Any] | Failure:
            name = link.host.name
            return self.done(name, lambda ask: ask(do, **{"id": self.id, **arguments(name)}))

        return work

    def teams(self, names: Sequence[str], does: str) -> Workflow[list[list[str]]]:
        """Hosts by file system, the first of each ``does`` it for all ("installs"): each leaves a token and looks for
        those of the others."""
        if len(names) < 2:
            return [[name] for name in names]
        tokens = {name: f"{secrets.token_hex(6)}-{number}" for number, name in enumerate(names)}
        yield from self.each(names, "leave a token", self.command("token", lambda name: {"name": tokens[name]}))
        alive = [name for name in names if name not in self.failed]
        said = yield from self.each(
            alive, "look for tokens", self.command("tokens", lambda _: {"names": list(tokens.values())})
        )
        owner = {token: name for name, token in tokens.items()}
        found = groups(list(said), {name: [owner[token] for token in seen["seen"]] for name, seen in said.items()})
        for team in found:
            if len(team) > 1:
                yield Message(f"shared file system: {team[0]} {does} for {', '.join(team[1:])}")
        return found

    def done(self, name: str, work: Callable[[Callable[..., dict[str, Any]]], T]) -> T | Failure:
        """What ``work`` gets from the host's session, or why the host could not do it."""
        session = self.sessions[name]

        def ask(do: str, **arguments: Any) -> dict[str, Any]:
            return session.ask(do, **{"venv": self.venv, "id": self.id, **arguments})

        try:
            return work(ask)
        except RemoteError as trouble:
            return worded(name, trouble, self.venv)
        except UsageError as refusal:
            return Failure(name, Kind.STEP, refusal.sentence, refusal.hint)
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # a host may answer anything
            return Failure(name, Kind.STEP, f"answered what we do not understand ({error!r})"[:200], code="garbage")


def worded(host: str, trouble: RemoteError, venv: str) -> Failure:
    """The host's trouble in one line; what it said is nothing but text."""
    try:
        failure = _worded(host, trouble, venv)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        failure = Failure(host, Kind.STEP, trouble.what, code="garbage")
    return replace(failure, what=printable(failure.what, 600))


def _worded(host: str, trouble: RemoteError, venv: str) -> Failure:
    more = trouble.more
    if trouble.code == "busy":
        who = more.get("holder") or {}
        since = time.strftime("%H:%M:%S", time.localtime(float(who.get("since") or 0)))
        by = f"{who.get('user')}@{who.get('host')} (pid {who.get('pid')}) since {since}" if who else "somebody"
        what = f"busy: {by} installs into {venv}"
        return Failure(host, Kind.BUSY, what, "wait for it, or use another --venv", "busy")
    if trouble.code == "left":
        return Failure(host, Kind.RESIDUE, trouble.what, code="left")
    if trouble.code == "no-space":
        what = trouble.what
        if more.get("need"):
            what = f"no space left: need {mib(more['need'])}, {mib(more['free'])} free in {more['at']}"
        else:
            what = f"no space left while unpacking ({what})"
        return Failure(host, Kind.STEP, what, "another place: --venv PATH", "no-space")
    said = [line.strip(" ×├─▶╰│\t") for line in without_secrets(str(more.get("said") or "")).splitlines()]
    said = [line for line in said if line]
    if trouble.code == "hash":
        words = " ".join(line for line in said if "ash mismatch" in line or "sha256:" in line or "xpected" in line)
        return Failure(host, Kind.STEP, f"a wheel is not the one that was locked: {words[:400]}", code="hash")
    # uv says what failed first and why last; what stands between is the way down.
    told = [*[line for line in said if line.startswith("error: ")][:1], said[-1]] if said else []
    words = " / ".join(dict.fromkeys(line.removeprefix("error: ").removeprefix("cause: ") for line in told))
    what = f"{trouble.what}: {words[:400]}" if words else trouble.what
    hint = "ipexctl install --wheels-from controller" if trouble.code == "index" else None
    return Failure(host, Kind.STEP, what, hint, trouble.code)
