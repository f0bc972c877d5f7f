"""One install: what its steps need to know. Nothing in it changes but the failures of its sessions."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from ipexctl.act.context import Context
from ipexctl.act.packages.resolve import Tool
from ipexctl.act.packages.sources import Limits, Sources
from ipexctl.model.errors import Failure
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Inventory
from ipexctl.model.stack import MpiLauncher, Stack
from ipexctl.model.tasks import Install
from ipexctl.model.wheels import Lock
from ipexctl.verbs.install.install_sessions import InstallSessions


@dataclass(frozen=True, slots=True)
class InstallJob:
    """The task and the choices made for it; ``stop`` ends the work of the controller's own threads."""

    task: Install
    sessions: InstallSessions
    environ: Mapping[str, str]
    limits: Limits
    sources: Sources
    stack: Stack
    launcher: MpiLauncher | None  # the hosts' own, if requested
    lock: Lock
    facts: Mapping[str, Facts]
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def venv(self) -> str:
        return self.sessions.venv

    @property
    def context(self) -> Context:
        return self.sessions.context

    @property
    def inventory(self) -> Inventory:
        return self.sessions.inventory

    @property
    def failed(self) -> dict[str, Failure]:
        return self.sessions.failed


def uv_target(tool: Tool) -> str:
    """Where uv goes, below the store of environments."""
    return f"bin/uv-{tool.version}"
