"""``logs`` of a run that was watched to its end: its head keeps nothing of it, this machine has it all."""

from collections.abc import Collection, Sequence
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.decide.diagnosis.collectives import describe_collectives
from ipexctl.decide.diagnosis.stack_traces import describe_places, find_odd_ranks, format_comparison, group_stacks
from ipexctl.model.answers.manage import RankStacksAnswer
from ipexctl.model.errors import Exit, UsageError, advise
from ipexctl.model.events import Ended, Message, Output, RankStack, RunStarted, Stalled, Started, Workflow, finish_verb
from ipexctl.model.text import format_ranks, join_names, pluralize, printable
from ipexctl.store.record import read_name, read_report
from ipexctl.verbs.run.replay import find_run, find_saved_run, read_run, read_run_ids, read_saved_run


def find_ended_run(runs: Path, word: str | None) -> Path | None:
    """Returns the saved run of this name or id that has ended; None without one, or with several. Raises `UsageError`
    for a run that the saved command of this name did not start."""
    if not word:
        return None
    try:
        directory = find_saved_run(runs, word, with_ranks=True)
    except UsageError as error:
        if error.code == "no-such-run":
            raise
        return None
    report = read_report(directory)
    if report and not report.run and any(read_run_ids(directory)):  # a study, of many
        return directory
    return directory if report and report.run and report.run.reason else None


def refuse_ended_run(runs: Path, word: str | None) -> None:
    """Raises `UsageError` for a run that was watched to its end: nothing of it is left on the hosts, but on those that
    were lost and are back."""
    saved = None if word == "last" else find_ended_run(runs, word)  # the last of the hosts may be another
    report = read_report(saved) if saved else None
    if saved and not (report and report.run and report.run.reason == "lost"):
        hint = advise("replay", read_name(saved))
        what = f"run {read_name(saved)} was watched to its end, and is saved here"
        raise UsageError(what, hint=hint, exit=Exit.STEP, code="no-run")


def print_saved_output(
    directory: Path, context: Context, ranks: Collection[int] = (), word: str = ""
) -> Workflow[None]:
    """Yields what the ranks of a saved run wrote, and why it failed; of a command that started several, of the run that
    ``word`` names, else of all. Raises `UsageError` where it has no such rank."""
    from ipexctl.verbs.run.saved_runs import describe_cause  # with Rich, which a run that goes on does not need

    run, last = find_run(directory, word)
    name, report = run or last or read_name(directory), read_report(directory)
    starts = (each.event for each in read_run(directory, run or last, context.masker))
    check_ranks(name, ranks, next((len(event.ranks) for event in starts if isinstance(event, RunStarted)), 0))
    yield Started("logs", run or read_name(directory), ())
    silent = set(ranks)
    for stamped in read_run(directory, run, context.masker):
        event = stamped.event
        if isinstance(event, RunStarted) or (isinstance(event, Output) and (not ranks or event.rank in ranks)):
            yield event
        if isinstance(event, Output):
            silent.discard(event.rank)
    if silent:
        yield Message(f"written by {format_ranks(sorted(silent))}: nothing")
    if run not in ("", last):
        yield Message(advise("logs", last, text="the last run of the same command:"))
    elif report and (cause := describe_cause(report)):  # what stands last is often a consequence of it
        yield Message(advise("report", name, text=f"run {name} ended: {cause}; more of it:"))
    yield Ended("logs", Exit.OK)


def print_saved_stacks(directory: Path, context: Context, ranks: Collection[int] = ()) -> Workflow[None]:
    """Yields where the ranks of a saved run stood at its last stall. Raises `UsageError` where it had none."""
    name, stacks = read_name(directory), list[RankStack]()
    for stamped in read_saved_run(directory, context.masker):
        if isinstance(stamped.event, Stalled):
            stacks = []
        elif isinstance(stamped.event, RankStack) and (not ranks or stamped.event.rank in ranks):
            stacks.append(stamped.event)
    if not stacks:
        what, reasons = f"run {name} has ended", ["only ranks that run have stacks, and none were saved at a stall"]
        raise UsageError(what, reasons=reasons, hint=advise("logs", name), exit=Exit.STEP)
    yield Started("logs", f"{name}, at its last stall", ())
    yield from finish_verb("logs", compare_stacks(name, stacks))


def compare_stacks(
    run: str, stacks: Sequence[RankStack], missing: tuple[str, ...] = (), *, stalled: bool = True
) -> RankStacksAnswer:
    """Returns where ranks stand, those at the same place together; hosts in ``missing`` did not report in time."""
    groups = group_stacks(stacks)
    lines = format_comparison(groups, len({stack.rank for stack in stacks}))
    lines += describe_collectives(stacks, stalled=stalled)
    return RankStacksAnswer(run, tuple(lines), find_odd_ranks(groups), describe_places(stacks), tuple(stacks), missing)


def print_newest_output(live: Workflow[None], context: Context, ranks: Collection[int] = ()) -> Workflow[None]:
    """Yields what `logs` of no certain run does; where hosts keep none, or none are given, the last saved one's."""
    try:
        yield from live
    except UsageError as error:
        missing = error.code in ("no-run", "no-hosts")
        saved = find_ended_run(context.state / "runs", "last") if missing else None
        if saved is None:
            raise
        yield from print_saved_output(saved, context, ranks)


def check_ranks(run: str, ranks: Collection[int], size: int) -> None:
    """Raises `UsageError` where a run of ``size`` ranks has not all of these."""
    if unknown := sorted(rank for rank in ranks if rank >= size):
        what = f"run {printable(run)} has no rank {join_names([str(rank) for rank in unknown], 4)}"
        raise UsageError(what, reasons=[f"it has {pluralize(size, 'rank')}, counted from 0"])
