"""One install or uninstall: its sessions on the hosts, their first failures, and the choices made for it."""

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from getpass import getuser
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from ipexctl.act.packages.resolve import Tool, read_uv_errors, strip_error_prefix
from ipexctl.act.packages.sources import Sources
from ipexctl.act.sessions import RemoteError
from ipexctl.decide.facts.probe_output import hash_text
from ipexctl.decide.planning.install import Plan
from ipexctl.model.errors import Failure, Kind, advise
from ipexctl.model.events import Event, PhaseStarted
from ipexctl.model.facts import HostFacts
from ipexctl.model.hosts import Link
from ipexctl.model.stack import Stack
from ipexctl.model.tasks import Install
from ipexctl.model.text import format_size, format_time, printable
from ipexctl.model.wheels import Lock
from ipexctl.protocol.codec import DamagedError, decode
from ipexctl.protocol.session import Cleaned, Inspection, LockOwner, Nothing, Shortage
from ipexctl.verbs.common.relay import RelaySessions

T = TypeVar("T")


@dataclass
class InstallSessions(RelaySessions):
    """All requests of a session name the environment ``venv``."""

    venv: str
    id: str  # of the environment that is being made
    program: ClassVar = "install"

    def locate_store(self, host: str) -> str:
        return f"{self.venv}.d"

    def call(self, host: str, do: str, kind: type[T], **arguments: Any) -> T:
        return super().call(host, do, kind, **{"venv": self.venv, "id": self.id, **arguments})

    def describe_error(self, host: str, error: RemoteError) -> Failure:
        return describe_error(host, error, self.venv)


@dataclass
class InstallJob(InstallSessions):
    """The sessions of an install, its task and the choices made for it; ``stop`` ends the controller's own threads."""

    task: Install
    sources: Sources
    stack: Stack
    lock: Lock
    facts: HostFacts
    since: float = field(default_factory=time.time)
    phases: tuple[str, ...] = ()  # what it will do, in order
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def owner(self) -> dict[str, object]:
        """Who holds the locks, as other installs are told."""
        return LockOwner(getuser(), socket.gethostname(), os.getpid(), self.since, _hash_machine(), 0)._asdict()

    def start_phase(self, title: str) -> Iterator[Event]:
        if title in self.phases:
            yield PhaseStarted(self.phases.index(title) + 1, len(self.phases), title)

    def reopen(self, link: Link) -> None:
        """Starts another session in place of a lost one, locks, and undoes what that one had not finished. Raises
        `LinkError`, `RemoteError`."""
        self.sessions[link.host.name].close()
        self.open(link, self.stack.interpreters[link.host.name])
        self.take_lock(link.host.name)
        self.call(link.host.name, "clean", Cleaned)

    def take_lock(self, host: str) -> Nothing:
        """Locks the environment of a host; in place of a controller that has ended, of which its host may hear minutes
        later. Raises `LinkError`, `RemoteError`."""
        try:
            return self.call(host, "lock", Nothing, owner=self.owner)
        except RemoteError as error:
            holder = error.more.get("holder")
            owner = _read_details(LockOwner, holder) if error.code == "busy" else None
            if not owner:
                raise
            is_own = owner._replace(session=0)._asdict() == self.owner  # that of this job's session which was lost
            if not is_own and not _has_ended(owner):
                raise
        return self.call(host, "lock", Nothing, owner=self.owner, ended=holder)


class PlannedInstall(NamedTuple):
    """What is to be done, and what it was decided from."""

    steps: Plan
    states: Mapping[str, Inspection]
    tool: Tool  # uv, for hosts that build
    addresses: Mapping[str, str]


# Which place the account can write, and has room, is not known of hosts whose session has failed.
_FILE_SYSTEMS = advise("exec", "df -hT", text="another path for the environment (install --venv PATH); of each host:")


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
        hint = _FILE_SYSTEMS
    elif error.code == "residue":
        kind = Kind.RESIDUE
    elif error.code == "no-space":
        lack = _read_details(Shortage, error.more)
        what, hint = f"no space left while unpacking ({error.what})", _FILE_SYSTEMS
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


def _has_ended(owner: LockOwner) -> bool:
    """Returns whether it is certain that this controller is there no more."""
    if owner.machine != _hash_machine() or not owner.machine or owner.pid <= 0:
        return False
    try:
        os.kill(owner.pid, 0)  # /proc may hide those of other users
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def _hash_machine() -> str:
    """Names the machine whose process ids these are, since its start; "" where the kernel does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hash_text(boot + str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        return ""


def _read_details(kind: type[T], details: object) -> T | None:
    """Further facts of an error; None where a host sends something else."""
    try:
        return decode(kind, details)
    except DamagedError:
        return None
