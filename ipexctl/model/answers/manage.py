"""The answers about runs on hosts: ``ps``, ``logs --stacks``, ``stop`` and ``reap``."""

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.events import RankStack
from ipexctl.model.json_values import JsonRecord
from ipexctl.model.reports import Cleanup


class ListedRun(JsonRecord):
    """A run that its head keeps: ``started`` in local time, ``ranks`` counts them. ``elapsed`` is its seconds so far,
    or in all; ``command`` the script and its arguments. ``step`` and ``pace`` (iterations a second) are what rank 0
    printed last; None: unknown. ``ready`` counts the processes that have given the sign of --ready, ``restart`` the
    starts before this one, of ``restarts`` that it may have."""

    run: str
    state: str
    title: str
    ranks: int
    hosts: tuple[str, ...]
    head: str
    started: str
    owner: str
    watchers: int
    reason: str | None
    elapsed: float | None = None
    step: int | None = None
    pace: float | None = None
    command: str = ""
    ready: int | None = None
    restart: int = 0
    restarts: int = 0


class OrphanDirectory(JsonRecord):
    """The directory of a run that is over, on a host."""

    host: str
    run: str
    directory: str


class PsAnswer(AnyAnswer):
    """``ps``: the runs on the hosts ``asked``, of which those in ``unreachable`` did not answer."""

    runs: tuple[ListedRun, ...]
    orphans: tuple[OrphanDirectory, ...]
    asked: tuple[str, ...]
    unreachable: tuple[str, ...]


class StackPlace(JsonRecord):
    """Ranks whose main threads are at the same place, ``where``. ``frames`` are the stack of the first of them, each
    ``FILE:LINE FUNCTION``, innermost first."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    where: str
    frames: tuple[str, ...]


class RankStacksAnswer(AnyAnswer):
    """``logs --stacks``: where the ranks of a run stand. ``odd`` are the ranks that others wait for,
    where that is clear; ``summary`` describes it in lines. Hosts in ``missing`` did not report in time."""

    run: str
    summary: tuple[str, ...]
    odd: tuple[int, ...]
    places: tuple[StackPlace, ...]
    stacks: tuple[RankStack, ...]
    missing: tuple[str, ...]


class StopAnswer(Cleanup, AnyAnswer):
    """``stop``. ``next`` reads what ranks wrote, which is still on the head, and saves it with how the run ended."""

    run: str
    reason: str
    next: str | None = None


class ReapAnswer(Cleanup, AnyAnswer):
    """``reap``: the runs whose processes and directories were removed."""

    removed: tuple[str, ...]
