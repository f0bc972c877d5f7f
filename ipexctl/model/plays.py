"""What a playbook asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipexctl.model.errors import Origin
from ipexctl.model.hosts import Inventory

if TYPE_CHECKING:  # pydantic is slow to import, and most commands read no playbook
    from ipexctl.model.tasks import Task

TOGETHER = frozenset({"run", "bench"})
"""Actions whose hosts work together, so that none can be missing."""


@dataclass(frozen=True, slots=True)
class Share:
    """So many hosts, or so many percent of them (at least one)."""

    number: float
    percent: bool = False

    def of(self, hosts: int) -> int:
        return max(1, int(hosts * self.number / 100 if self.percent else self.number))


@dataclass(frozen=True, slots=True)
class Step:
    """One task of a play. ``action`` is the key it was written under: doctor, install, sync, run, command …

    ``when`` is an expression on a host's facts ("" is always), ``serial`` the sizes of the batches, of which the last
    repeats (none: all hosts at once). ``max_fail_percentage`` is what may be lost of a step's hosts before the play
    ends; None is no limit, but for hosts that work `TOGETHER`.
    """

    action: str
    task: Task
    name: str = ""
    limit: str | None = None
    tags: tuple[str, ...] = ()
    when: str = ""
    serial: tuple[Share, ...] = ()
    ignore_errors: bool = False
    any_errors_fatal: bool = False
    max_fail_percentage: float | None = None
    origin: Origin | None = None

    @property
    def title(self) -> str:
        return self.name or self.action


@dataclass(frozen=True, slots=True)
class Play:
    """Steps in order, and the hosts they are for: a hostfile's path, or an inventory, or neither (flags decide)."""

    source: str
    steps: tuple[Step, ...]
    name: str = ""
    hostfile: str | None = None
    inventory: Inventory | None = None
    variables: frozenset[str] = field(default=frozenset(), compare=False)  # that it sets or uses
    warnings: tuple[str, ...] = field(default=(), compare=False)  # of reading it; a verb says them first
