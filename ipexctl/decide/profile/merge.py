"""The profile of a run from the traces of its ranks: what they did, and who waited for whom in collectives.

Clocks of hosts are not compared: no rank leaves a collective before the last has entered, so the ranks' ends are one
moment, and a rank waited for as long as its call took longer than the shortest one."""

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ipexctl.decide.profile import traces
from ipexctl.decide.profile.steps import RecordedSteps
from ipexctl.model.json_values import Record
from ipexctl.model.profile import CollectiveTime, KernelTime, OperatorTime, Profile, ProfiledRank, UnprofiledRank
from ipexctl.model.text import group_pairs

OPERATOR_LIMIT = 100  # in the profile; the traces have all
COLLECTIVE_KINDS = 200  # of a rank; torch has fewer


class RankSummary(Record):
    """What is kept of a rank's trace; ``seconds`` is the time of its ``steps``."""

    rank: int
    host: str
    steps: int
    seconds: float
    operators: Mapping[str, traces.Sum]
    collectives: tuple[traces.Collective, ...]
    kernels: Mapping[traces.Kernel, traces.Sum]


def summarise_rank(
    rank: int,
    host: str,
    slices: Sequence[traces.Slice],
    steps: RecordedSteps,
    kernels: Mapping[traces.Kernel, traces.Sum],
) -> RankSummary:
    """Returns what the profile needs of one rank. Raises `TraceError`."""
    works = [
        traces.Collective(sys.intern(f"impi:{name[:40]}"), begin / 1e3, end / 1e3) for name, begin, end in steps.works
    ]
    if len(steps.ends) > 1:
        seconds = (steps.ends[-1] - steps.ends[0]) / 1e9
    else:
        seconds = (max(each.end for each in slices) - min(each.start for each in slices)) / 1e6
    collectives = tuple(sorted(works, key=lambda work: work.start) or traces.find_collectives(slices))
    if len(collectives) > traces.COLLECTIVE_LIMIT:
        raise traces.TraceError(f"the trace has more than {traces.COLLECTIVE_LIMIT:,} collectives")
    if len({each.name for each in collectives}) > COLLECTIVE_KINDS:
        raise traces.TraceError(f"the trace has more than {COLLECTIVE_KINDS} kinds of collectives")
    return RankSummary(
        rank, host, max(0, len(steps.ends) - 1), seconds, traces.sum_operators(slices), collectives, kernels
    )


class Waits(NamedTuple):
    """Seconds of waiting: of each call of a collective, of each rank, and of all others for a rank that came last."""

    calls: Mapping[str, Sequence[float]]
    ranks: Mapping[int, float]
    awaited: Mapping[int, float]
    notes: tuple[str, ...]


def measure_waits(summaries: Sequence[RankSummary]) -> Waits:
    """Compares the n-th call of each synchronous collective on all ranks. Where ranks made different numbers of calls,
    a sentence says so: those of groups of ranks, whose members the trace does not name."""
    calls: dict[str, list[float]] = {}
    notes = []
    ranks = [each.rank for each in summaries]
    waiting, awaited = dict.fromkeys(ranks, 0.0), dict.fromkeys(ranks, 0.0)
    lengths = [_list_lengths(each) for each in summaries]
    for name in sorted({name for each in lengths for name in each}):
        counts = [len(each.get(name, ())) for each in lengths]
        if min(counts) != max(counts):
            notes.append(f"{name} was called {min(counts)} to {max(counts)} times by different ranks: not compared")
        elif len(ranks) > 1:
            for call in zip(*(each[name] for each in lengths), strict=True):
                shortest, second, *_ = sorted(call)
                awaited[ranks[call.index(shortest)]] += second - shortest
                for rank, length in zip(ranks, call, strict=True):
                    waiting[rank] += length - shortest
                    calls.setdefault(name, []).append(length - shortest)
    return Waits(calls, waiting, awaited, tuple(notes))


def _list_lengths(summary: RankSummary) -> dict[str, list[float]]:
    """Collective → the seconds of each call."""
    calls = [call for call in summary.collectives if traces.is_synchronous(call.name)]
    return group_pairs((call.name, (call.end - call.start) / 1e6) for call in calls)


def build_profile(
    run: str, summaries: Sequence[RankSummary], missing: Sequence[UnprofiledRank], first: int, last: int
) -> Profile:
    waits = measure_waits(summaries)
    ranks = tuple(
        ProfiledRank(
            each.rank,
            each.host,
            each.steps,
            each.seconds,
            _measure_union([(call.start, call.end) for call in each.collectives]) / 1e6,
            waits.ranks[each.rank],
            waits.awaited[each.rank],
        )
        for each in summaries
    )
    operators = traces.add_sums(each.operators for each in summaries)
    kernels = traces.add_sums(each.kernels for each in summaries)
    return Profile(
        run,
        first,
        last,
        ranks,
        tuple(missing),
        tuple(OperatorTime(name, *each) for name, each in operators[:OPERATOR_LIMIT]),
        _add_collectives(summaries, waits.calls)[:OPERATOR_LIMIT],
        tuple(
            KernelTime(
                kernel.primitive, kernel.implementation, traces.find_isa(kernel.implementation), kernel.dtype, *each
            )
            for kernel, each in kernels[: traces.KIND_LIMIT]
        ),
        waits.notes[:OPERATOR_LIMIT],
    )


def _measure_union(spans: Sequence[tuple[float, float]]) -> float:
    """Returns how much time spans cover that may overlap."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def _add_collectives(
    summaries: Sequence[RankSummary], waits: Mapping[str, Sequence[float]]
) -> tuple[CollectiveTime, ...]:
    rows = []
    for name, (calls, seconds) in traces.add_sums(
        {call.name: traces.Sum(1, (call.end - call.start) / 1e6)} for each in summaries for call in each.collectives
    ):
        waited = waits.get(name, ())
        matched = len(waited) // len(summaries)
        rows.append(CollectiveTime(name, calls, matched, seconds, sum(waited), max(waited, default=0.0)))
    return tuple(rows)
