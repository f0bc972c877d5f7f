"""Which steps of a play are done, in which batches, when too many hosts are lost to go on, and what plays the rest."""

import shlex
from collections.abc import Collection, Iterator, Sequence

from ipexctl.decide.parsing.host_patterns import FAILED
from ipexctl.decide.parsing.input_errors import suggest_nearest
from ipexctl.model.errors import UsageError
from ipexctl.model.hosts import Host
from ipexctl.model.plays import TOGETHER, Play, Share, Step
from ipexctl.model.text import printable


def select_steps(
    play: Play, *, tags: Collection[str] = (), skip_tags: Collection[str] = (), start_at: str | None = None
) -> tuple[Step, ...]:
    """Returns the steps that are to be done: from ``start_at`` (a name, or an action) on, with one of ``tags`` and none
    of ``skip_tags``; several of them may stand in one word, with commas, as Ansible takes them. Raises `UsageError` for
    a name or a tag that no step has, and when nothing is left."""
    tags, skip_tags = _split_words(tags), _split_words(skip_tags)
    source = printable(play.source, 300)
    known = {tag for step in play.steps for tag in step.tags}
    unknown = [tag for tag in (*tags, *skip_tags) if tag not in known]
    steps = play.steps
    if start_at is not None:
        at = next((i for i, step in enumerate(steps) if start_at in (step.name, step.action)), None)
        if at is None:
            names = [step.title for step in steps]
            raise UsageError(f"{source} has no step called '{printable(start_at)}'{suggest_nearest(start_at, names)}")
        steps = steps[at:]
    left = tuple(
        step for step in steps if (not tags or set(tags) & set(step.tags)) and not set(skip_tags) & set(step.tags)
    )
    if unknown and (not left or not known):
        tags_text = ", ".join(printable(tag) for tag in unknown)
        raise UsageError(f"{source} has no step with the tags {tags_text}{suggest_nearest(unknown[0], known)}")
    if not left:
        raise UsageError(f"{source} has no step that is left to do", hint="--list-steps shows names and tags")
    return left


def _split_words(values: Collection[str]) -> list[str]:
    return [word.strip() for value in values for word in value.split(",") if word.strip()]


def split_batches(hosts: Sequence[Host], serial: Sequence[Share], total: int) -> Iterator[tuple[Host, ...]]:
    """The hosts in batches; the last size repeats. Percentages are of ``total`` hosts. Without sizes: all at once."""
    at = turn = 0
    while at < len(hosts):
        size = serial[min(turn, len(serial) - 1)].count_hosts(total) if serial else len(hosts)
        yield tuple(hosts[at : at + size])
        at, turn = at + size, turn + 1


def find_stop_reason(step: Step, lost: Collection[str], batch: Collection[str]) -> str:
    """Why a play ends after ``lost`` of ``batch`` failed; "" where it goes on with the others."""
    gone = [name for name in batch if name in lost]
    if not gone:
        return ""
    if step.any_errors_fatal:
        return "any_errors_fatal"
    allowed = step.max_fail_percentage
    if allowed is not None and 100 * len(gone) > allowed * len(batch):
        return f"more than {allowed:g} % of the hosts failed"
    return "all hosts of a batch failed" if step.serial and len(gone) == len(batch) else ""


def find_missing_hosts(step: Step, lost: Collection[str], batch: Collection[str]) -> tuple[str, ...]:
    """Hosts that a step of hosts `TOGETHER` cannot do without: all that are lost, unless it says how many may be."""
    if step.action not in TOGETHER:
        return ()
    gone = tuple(name for name in batch if name in lost)
    return gone if 100 * len(gone) > (step.max_fail_percentage or 0) * len(batch) else ()


def describe_end(why: str, command: str, following: Step) -> str:
    """Describes the end of a play before its ``following`` step; ``command`` plays that, if the user is to do so."""
    later = f"; what comes after it: {_start_at(command, following.title)}" if command else ""
    return f"the play ends here: {why}{later}"


def format_repetition(command: str, start_at: str | None, left: Sequence[Step]) -> str:
    """Returns the command that plays again what is ``left``: on failed hosts only, where no step needs all."""
    command = _start_at(command, start_at) if start_at else command
    return command if any(step.action in TOGETHER for step in left) else f"{command} --limit {FAILED}"


def _start_at(command: str, title: str) -> str:
    return f"{command} --start-at {shlex.quote(title)}"
