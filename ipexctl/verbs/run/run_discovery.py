"""Which runs there are on a cluster, asked of the hosts themselves: from any machine with access."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ipexctl.act import run_control
from ipexctl.act.context import Context, run_on_hosts
from ipexctl.act.run_dir import RemoteRunDir
from ipexctl.model.answers.manage import OrphanDirectory
from ipexctl.model.errors import Exit, UsageError, advise, complete_hint
from ipexctl.model.events import Message, Workflow
from ipexctl.model.hosts import Inventory
from ipexctl.model.json_values import Record, field, select_attributes
from ipexctl.model.launch import Running
from ipexctl.model.text import fold_names, group_pairs, printable
from ipexctl.protocol.messages import RunRow
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.run.watch import RunWatcher

LEADERLESS = "leaderless"  # as in `RunRow`
_WAITING = "waiting"  # likewise: for hosts that others use
_WATCHING = ("attach", "logs", "watch")  # commands that change nothing
_COMMANDS = {
    "attach": advise("attach", "{run}"),
    "logs": advise("logs", "{run}"),
    "stop": advise("stop", "{run}"),
    "watch": advise("watch", "{run}"),
}
_WAIT_LIMIT = 300.0  # seconds for a leader
_TURNS_TIME = 10.0  # seconds in which hosts take their turns in taking the leader's place


class DiscoveredRun(Record):
    """A run as its head describes it; ``head`` is the host's name in this inventory. Without one (leaderless) it is any
    of its hosts, ``away`` has the run's directory on each, and ``cut_off`` is a host with the end that it saw when it
    was parted from the others."""

    head: str
    row: RunRow
    away: Mapping[str, str] = field(default_factory=dict)
    cut_off: "DiscoveredRun | None" = None

    @property
    def is_over(self) -> bool:
        return self.row.state in {"ended", "gone"}

    @property
    def has_lost_others(self) -> bool:
        """Whether its host may not know how it ended."""
        return self.row.reason == "lost" or self.row.state == "gone"


class RunSurvey(Record):
    """What all hosts that answered keep; ``orphans`` are directories whose guard is gone: also of runs that go on on
    other hosts, since they were started again."""

    runs: tuple[DiscoveredRun, ...]
    orphans: tuple[OrphanDirectory, ...]
    unreachable: tuple[str, ...]
    answered: tuple[str, ...] = ()

    @property
    def removable(self) -> tuple[OrphanDirectory, ...]:
        """Returns orphans of runs that are over."""
        going = {run.row.run for run in self.runs if not run.is_over}
        return tuple(orphan for orphan in self.orphans if orphan.run not in going)


def find_runs(inventory: Inventory, context: Context) -> Workflow[RunSurvey]:
    """Asks every host for its runs; hosts that do not answer are reported as failures."""
    answers, unreachable = yield from run_on_hosts(
        context, inventory, "list runs", lambda link, _: run_control.list_runs_on_head(link)
    )
    for host, answer in answers.items():
        for count, limit, what in (
            (len(answer.runs), run_control.RUNS_LIMIT, "runs"),
            (len(answer.orphans), run_control.ORPHANS_LIMIT, "directories of runs that are over"),
        ):
            if count == limit:
                yield Message(f"there may be more {what} than the {limit} that count", "warning", host, "many-runs")
    runs = [DiscoveredRun(host, row) for host, answer in answers.items() for row in answer.runs]
    # Entries of one machine list the same; of a run whose head was lost, the host that leads it now knows most.
    runs.sort(key=lambda run: (_measure_knowledge(run.row), run.row.restart))
    unique = dict[str, DiscoveredRun]()
    leaderless = group_pairs(
        (run.row.run, (run.head, run.row.directory)) for run in runs if run.row.state == LEADERLESS
    )
    for run in runs:
        before = unique.get(run.row.run)
        cut_off = before if before and before.row.reason == "lost" else before and before.cut_off
        away = leaderless.get(run.row.run, ()) if run.row.state == LEADERLESS else ()
        unique[run.row.run] = replace(run, away=dict(away), cut_off=cut_off)
    orphans = [OrphanDirectory(host, *row) for host, answer in answers.items() for row in answer.orphans]
    found = sorted(unique.values(), key=lambda run: run.row.started)
    return RunSurvey(tuple(found), tuple(orphans), tuple(unreachable), tuple(answers))


def _measure_knowledge(row: RunRow) -> int:
    """Returns how much a host knows of a run, compared with others: they may go on without one that lost them."""
    lost = row.state == "ended" and row.reason == "lost"
    return 1 if lost else {"gone": 0, LEADERLESS: 2}.get(row.state, 3)


def await_leader(run: DiscoveredRun, inventory: Inventory, context: Context) -> Workflow[DiscoveredRun]:
    """The run as soon as one of its hosts leads it, which takes a lease and some seconds if one will; else as it ended
    for one that was parted from them, or as it is."""
    hosts = Inventory(tuple(inventory[name] for name in run.away), inventory.source)
    patience = min(2 * run.row.lease, _WAIT_LIMIT) + _TURNS_TIME
    yield Message(f"no host leads run {run.row.run} at this moment: one may within {patience:.0f} s", code=LEADERLESS)
    until = time.monotonic() + patience
    while time.monotonic() < until:
        survey = yield from run_nested(find_runs(hosts, context), lambda _: False)
        led = [each for each in survey.runs if each.row.run == run.row.run and each.row.state != LEADERLESS]
        if led:
            return led[0]
        time.sleep(1.0)
    return run.cut_off or run


def choose_run(
    survey: RunSurvey, prefix: str | None, *, verb: str = "", place: Sequence[str] = (), newest: bool = False
) -> DiscoveredRun:
    """Returns the run whose name is or begins with ``prefix``, or the ``last``; without a prefix the only one that is
    not over (to watch it, the only one that does not wait for hosts), or else the only one, or the ``newest``. Raises
    `UsageError` when there is none, or more than one, with the command of each: ``verb`` and the options ``place``."""
    prefix = prefix.partition("~")[0] if prefix else prefix  # of the record of one of its watchers
    if prefix == "last":
        matches = list(survey.runs)[-1:]
    elif prefix is None:
        going = [run for run in survey.runs if not run.is_over]
        at_work = [run for run in going if run.row.state != _WAITING]
        going = at_work if len(at_work) == 1 and verb in _WATCHING else going
        matches = going or list(survey.runs)[-1 if newest else 0 :]
    else:
        exact = [run for run in survey.runs if run.row.run == prefix]
        matches = exact or [run for run in survey.runs if run.row.run.startswith(prefix)]
    if len({run.row.run for run in matches}) > 1:
        if prefix:
            what = f"{len(matches)} runs match {prefix!r}"
        else:
            what = f"{len(matches)} runs are on these hosts"
            if all(run.is_over for run in matches):
                what = f"no run goes on: the {len(matches)} runs that are kept on these hosts have ended"
        reasons = [_describe_choice(run.row, verb, place) for run in matches]
        raise UsageError(what, reasons=reasons, hint="give the name of one of them", exit=Exit.STEP)
    if not matches:
        raise no_run_error(prefix, survey, verb)
    return matches[0]


def _describe_choice(row: RunRow, verb: str, place: Sequence[str]) -> str:
    command = complete_hint(_COMMANDS[verb].fill(run=row.run), place) if verb in _COMMANDS else row.run
    return f"{command}  {row.state}: {row.title} of {row.owner}"


def no_run_error(prefix: str | None, survey: RunSurvey, verb: str = "") -> UsageError:
    run = f"run {printable(prefix, 100)}" if prefix else "a run"
    what = f"no {run} is kept on these hosts"
    if not prefix:
        what = "nothing runs on these hosts, and no run that has ended is kept there"
    reasons = ["runs of other users are not listed"] if prefix else []
    if survey.unreachable:
        what = f"{fold_names(survey.unreachable)} did not answer: whether {run} is kept there is not known"
        reasons = [f"none is kept on {fold_names(survey.answered)}"] if survey.answered else []
    saved = advise("runs", text="runs that were watched to their end are saved here:")
    if verb == "stop" and prefix not in (None, "last"):
        saved = advise("stop", "--orphans", prefix, text="processes of a run whose record is damaged end by its name:")
    hint = None if survey.unreachable else saved  # each failure has its own
    exit, code = (Exit.UNREACHABLE, "usage") if survey.unreachable else (Exit.STEP, "no-run")
    return UsageError(what, reasons=reasons, hint=hint, exit=exit, code=code)


def make_watcher(discovered: DiscoveredRun, inventory: Inventory, context: Context) -> RunWatcher:
    """Returns a watcher of a run that somebody started. Its hosts but the head are those of the inventory with the same
    names; no interpreter is started there by the word of the head. Raises `LinkError`."""
    about = run_control.read_run_description(context.links.open(inventory[discovered.head]), discovered.row.directory)
    by_rank = {rank: name for name, node in about.hosts.items() for rank in node.ranks}
    hosts = tuple(by_rank[rank] for rank in sorted(by_rank))
    labels = {node.label: name for name, node in about.hosts.items()}
    running = Running(
        about.run,
        about.host,
        hosts,
        labels,
        shlex.join(about.command or [about.title]),
        **select_attributes(about, "title", "backend", "precision"),
        isas={name: node.isa for name, node in about.hosts.items()},
        leaders=tuple(about.leaders),
    )
    names = {name: name for name in about.hosts if name in set(inventory.names)} | {about.host: discovered.head}
    run_dirs = {
        name: RemoteRunDir(
            inventory[local], about.hosts[name].directory, about.hosts[name].python if name == about.host else "python3"
        )
        for name, local in names.items()
    }
    return RunWatcher(
        context,
        running,
        about.nonce,
        run_dirs,
        timings=about.timings,
        profile=about.profile,
        started=discovered.row.started,
    )
