"""Which runs there are on a cluster, asked of the hosts themselves: from any machine with access."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from ipexctl.act import run_control
from ipexctl.act.context import Context
from ipexctl.act.fanout import each
from ipexctl.act.run_control import RemoteRunDir
from ipexctl.model.errors import Exit, Failure, UsageError
from ipexctl.model.events import Event
from ipexctl.model.hosts import Inventory
from ipexctl.model.launch import Running
from ipexctl.model.text import printable
from ipexctl.verbs.run.watch import RunWatcher


@dataclass(frozen=True, slots=True)
class DiscoveredRun:
    """A run as its head describes it; ``head`` is the host's name in this inventory."""

    head: str
    row: Mapping[str, Any]

    @property
    def run(self) -> str:
        return str(self.row["run"])

    @property
    def state(self) -> str:
        return str(self.row["state"])


@dataclass(frozen=True, slots=True)
class RunSurvey:
    """What all hosts that answered said. ``stray`` maps hosts to directories of runs whose guard is gone."""

    runs: tuple[DiscoveredRun, ...]
    stray: Mapping[str, tuple[Mapping[str, Any], ...]]
    unreachable: tuple[str, ...]


def survey(inventory: Inventory, context: Context) -> Generator[Event, None, RunSurvey]:
    """Asks every host for its runs; hosts that do not answer are told as failures."""
    answers = yield from each(context, inventory, "list runs", lambda link, _: run_control.runs(link))
    good = {host: answer for host, answer in answers.items() if not isinstance(answer, Failure)}
    found = [DiscoveredRun(host, row) for host, answer in good.items() for row in answer["runs"]]
    found.sort(key=lambda one: float(one.row["started"]))
    unique = {one.row["directory"] + one.head: one for one in found}  # entries of one machine tell the same
    stray = {host: tuple(answer["stray"]) for host, answer in good.items() if answer["stray"]}
    return RunSurvey(tuple(unique.values()), stray, tuple(host for host in answers if host not in good))


def pick(seen: RunSurvey, word: str | None) -> DiscoveredRun:
    """The run this word means: its id or the beginning of it; without a word the only one that is not over.

    Raises `UsageError` when there is none, or more than one.
    """
    if word is None:
        fit = [one for one in seen.runs if one.state not in {"ended", "gone"}] or list(seen.runs)
    else:
        fit = [one for one in seen.runs if one.run == word] or [one for one in seen.runs if one.run.startswith(word)]
    if len({one.run for one in fit}) > 1:
        raise UsageError(
            f"{len(fit)} runs fit {word!r}" if word else f"{len(fit)} runs are kept on these hosts",
            reasons=[f"{one.run}  {one.state}  {one.row['title']} of {one.row['owner']}" for one in fit],
            hint="name one of them",
            exit=Exit.STEP,
        )
    if not fit:
        raise nothing(word, seen)
    return fit[0]


def nothing(word: str | None, seen: RunSurvey) -> UsageError:
    """What is said where no run fits."""
    return UsageError(
        f"no run {printable(word, 100)} is kept on these hosts" if word else "no run is kept on these hosts",
        reasons=[f"{host} did not answer" for host in seen.unreachable],
        hint="ipexctl replay shows runs that were watched to their end",
        exit=Exit.UNREACHABLE if seen.unreachable else Exit.STEP,
    )


def watching(found: DiscoveredRun, inventory: Inventory, context: Context) -> RunWatcher:
    """A watcher of a run that was found. Its other hosts are those of this inventory with the same names.

    Raises `LinkError`.
    """
    about = run_control.about(context.links.open(inventory[found.head]), str(found.row["directory"]))
    hosts: Mapping[str, Mapping[str, Any]] = about["hosts"]
    by_rank = {rank: name for name, entry in hosts.items() for rank in entry["ranks"]}
    running = Running(
        run=about["run"],
        head=about["host"],
        hosts=tuple(by_rank[rank] for rank in sorted(by_rank)),
        labels={entry["label"]: name for name, entry in hosts.items()},
        command=" ".join(about["argv"]),
        title=str(about["title"]),
    )
    known = set(inventory.names)
    sites = {
        name: RemoteRunDir(
            inventory[found.head if name == about["host"] else name], entry["directory"], entry["python"]
        )
        for name, entry in hosts.items()
        if name in known or name == about["host"]
    }
    return RunWatcher(context, running, about["nonce"], sites)
