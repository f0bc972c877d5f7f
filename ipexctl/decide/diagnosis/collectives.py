"""The last collectives of stalled ranks, as their own processes report them: are all ranks in the same one?"""

import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from ipexctl.model.events import RankStack
from ipexctl.model.json_values import Record, parse_json
from ipexctl.model.text import format_ranks, format_size, group_pairs, join_names
from ipexctl.protocol.hooks import COLLECTIVES

_REPORTED = re.compile(rf"^{COLLECTIVES}(\[.*\])$", re.MULTILINE)
_LEFT = f"{COLLECTIVES}null"
_SAME_SIZE = frozenset(("all_reduce", "broadcast", "reduce"))  # on all ranks; others may give each rank its own


class LastCollective(Record):
    """The first one that has not ended, or the last, of a process group; ``rank`` is torch's, ``size`` in bytes."""

    group: str
    ranks: tuple[int, ...]  # of the group
    rank: int
    number: int
    kind: str
    size: int
    done: bool

    @property
    def call(self) -> tuple[int, str, int]:
        """Number, kind and size, the last where it must be the same on all ranks; else 0."""
        return self.number, self.kind, self.size if self.kind in _SAME_SIZE else 0


def describe_collectives(stacks: Sequence[RankStack], *, stalled: bool = True) -> list[str]:
    """Returns a line for each group in which one has not ended, and who takes part in none any more. Ranks that are not
    ``stalled`` were not looked at in the same moment: one may be a collective further."""
    groups = _read_groups(stacks)
    most = max((len(ranks) for _, ranks in groups), default=0)
    where = {ranks: f" in the group of {format_ranks(ranks)}" if len(ranks) < most else "" for _, ranks in groups}
    lines = [line for (_, ranks), last in groups.items() for line in _describe(last.values(), where[ranks], stalled)]
    left = [stack for stack in stacks if _LEFT in stack.text]
    if left and lines:
        hosts = dict.fromkeys(stack.host for stack in left)
        who = f"{format_ranks(sorted(stack.rank for stack in left))} on {join_names(list(hosts), 4)}"
        lines.append(f"{who} {'has' if len(left) == 1 else 'have'} left the group (destroy_process_group)")
    return lines


def have_mismatch(stacks: Iterable[RankStack]) -> bool:
    """Returns whether ranks of a group wait in different collectives of the same number, which can never end."""
    return any(_have_mismatch(last.values()) for last in _read_groups(stacks).values())


def _have_mismatch(last: Iterable[LastCollective]) -> bool:
    calls = {each.call for each in last if not each.done}
    return len({number for number, _, _ in calls}) < len(calls)


def list_positions(stacks: Iterable[RankStack]) -> dict[int, frozenset[tuple[str, int, bool]]]:
    """Returns the last collective of each group of each rank: which one, and whether it has ended. They change while a
    rank gets on, however slowly."""
    positions: dict[int, frozenset[tuple[str, int, bool]]] = {}
    for stack in stacks:
        lasts = [last for members in _read_groups([stack]).values() for last in members.values()]
        positions[stack.rank] = frozenset((last.group, last.number, last.done) for last in lasts)
    return positions


def find_awaited(stacks: Iterable[RankStack]) -> set[int]:
    """Returns the ranks of the groups in which a collective has not ended."""
    groups = _read_groups(stacks).items()
    return {rank for (_, ranks), last in groups if not all(each.done for each in last.values()) for rank in ranks}


def _read_groups(stacks: Iterable[RankStack]) -> dict[tuple[str, tuple[int, ...]], dict[int, LastCollective]]:
    """The last collective of each rank, by the name and the ranks of its group."""
    groups: dict[tuple[str, tuple[int, ...]], dict[int, LastCollective]] = {}
    for stack in stacks:
        for text in _REPORTED.findall(stack.text):
            with suppress(ValueError):  # the script's own words, or half a line
                for collective in parse_json(list[LastCollective], text):
                    groups.setdefault((collective.group, collective.ranks), {})[collective.rank] = collective
    return groups


def _describe(last: Collection[LastCollective], where: str, stalled: bool) -> list[str]:
    ordered = sorted(last, key=lambda each: (each.done, each.rank))
    steps = group_pairs(((each.done, *each.call), each.rank) for each in ordered)
    words = ", ".join(
        f"{kind} #{number}{f' of {format_size(size)}' if size else ''} on {format_ranks(ranks)}{' (ended)' * done}"
        for (done, number, kind, size), ranks in steps.items()
    )
    waiting = sum(not done for done, *_ in steps)
    differ = waiting > 1 if stalled else _have_mismatch(last)
    title = "the ranks are in different collectives" if differ else "last collectives"
    return [f"{title}{where}: {words}"] if waiting else []
