"""The traces of all ranks on one clock: collectives matched, stragglers measured, one trace written.

A trace is large, so it is read twice: `summarise_rank` keeps what the tables and the clock need, and `format_trace`
is given each trace once more to write it."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from json.encoder import encode_basestring_ascii as encode_text
from operator import itemgetter
from statistics import median
from typing import Literal, NamedTuple

from ipexctl.decide.profile import traces
from ipexctl.decide.profile.steps import RecordedSteps
from ipexctl.model.json_values import Record
from ipexctl.model.profile import CollectiveTime, CollectiveWait, OperatorTime, Profile, ProfiledRank, UnprofiledRank

EXACT_CLOCK_ERROR = 0.001  # seconds: a clock that the run measured this well is preferred to that of collectives
_SINGLE_CLOCK_ERROR = 0.01  # seconds: of a single collective, which a busy host may leave later; of several: spread
OPERATOR_LIMIT = 100  # in the profile; the trace has all
_MAX_WAITS, _MIN_WAITS = 500, 4  # in the profile, of all ranks, and of each however many they are
_STEPS_ROW, _COLLECTIVES_ROW = 0, 1_000_000  # threads of a merged rank that are none of its process
_ROW_LIMIT = 32  # of collectives in a rank
_EVENTS_PER_PIECE = 2000  # events of one piece of the merged trace


class ClockOffset(Record):
    """A host's clock minus the head's, and how far that may be off; in seconds."""

    offset: float
    within: float | None = None


class HostClocks(Record):
    """The file in which the run's keeper leaves them."""

    hosts: Mapping[str, ClockOffset]


class RankSummary(Record):
    """What is kept of a rank's trace. ``ends`` are the ends of its steps, microseconds since ``origin``, the first that
    of the step before ``first``, with which the profile began."""

    rank: int
    host: str
    origin: int
    end: float
    ends: tuple[float, ...]
    first: int
    operators: Mapping[str, traces.Sum]
    collectives: tuple[traces.Collective, ...]
    kernels: traces.KernelReport


class Match(NamedTuple):
    """The n-th call of a collective on all ranks: rank → its place in `RankSummary.collectives`."""

    name: str
    calls: Mapping[int, int]


class Merging(Record):
    """How the traces go together. ``shifts``: microseconds to add to a rank's times, so that all begin near 0;
    ``offsets``: seconds by which a host's clock is ahead."""

    summaries: Sequence[RankSummary]
    matches: Sequence[Match]
    shifts: Mapping[int, float]
    offsets: Mapping[str, float]
    clock: Literal["run", "collectives", "hosts", "same"]
    clock_error: float | None
    notes: tuple[str, ...]


def summarise_rank(trace: traces.RankTrace, steps: RecordedSteps, kernels: traces.KernelReport) -> RankSummary:
    """Returns what the merging needs of one rank."""
    ends = tuple((end - trace.origin) / 1000 for end in steps.ends)
    works = [
        traces.Collective(f"impi:{name[:40]}", (begin - trace.origin) / 1000, (end - trace.origin) / 1000, True)
        for name, begin, end in sorted(steps.works, key=itemgetter(1))
    ]
    return RankSummary(
        trace.rank,
        trace.host,
        trace.origin,
        max(each.end for each in trace.slices),
        ends,
        steps.first,
        traces.sum_operators(trace.slices),
        tuple(works or traces.find_collectives(trace.slices)),
        kernels,
    )


def match_collectives(summaries: Sequence[RankSummary]) -> tuple[list[Match], tuple[str, ...]]:
    """Returns the n-th call of each name, where all ranks made as many; and sentences about the names where they did
    not: those of groups of ranks, whose members the trace does not name."""
    numbered: dict[int, dict[str, list[int]]] = {}
    for summary in summaries:
        places = numbered.setdefault(summary.rank, {})
        for place, each in enumerate(summary.collectives):
            places.setdefault(each.name, []).append(place)
    matches, notes = [], []
    for name in sorted({name for places in numbered.values() for name in places}):
        counts = {rank: len(places.get(name, ())) for rank, places in numbered.items()}
        least, most = min(counts.values()), max(counts.values())
        if least != most:
            notes.append(f"{name} was called {least} to {most} times by different ranks: not compared")
        elif len(summaries) > 1:
            matches += [Match(name, {rank: numbered[rank][name][n] for rank in numbered}) for n in range(least)]
    return matches, tuple(notes)


def merge_ranks(summaries: Sequence[RankSummary], clocks: Mapping[str, ClockOffset]) -> Merging:
    """The ranks on one clock: that of the run where it measured every host within `EXACT_CLOCK_ERROR`, or better
    than the ends of collectives agree; else hosts are shifted so that the collectives of all ranks end together
    (the median of all)."""
    matches, notes = match_collectives(summaries)
    hosts = list(dict.fromkeys(summary.host for summary in summaries))
    clock: Literal["run", "collectives", "hosts", "same"] = "same"
    offsets, error = dict.fromkeys(hosts, 0.0), None  # microseconds by which a host's clock is ahead
    known = {host: clocks[host] for host in hosts if host in clocks}
    if len(hosts) > 1:
        within = [clock.within for clock in known.values() if clock.within is not None]
        measured = len(within) == len(hosts)
        by_ends = measure_offsets(summaries, matches)
        if measured and (by_ends is None or max(within) <= max(EXACT_CLOCK_ERROR, by_ends.spread / 1e6)):
            clock, error = "run", max(within)
            offsets = {host: clock.offset * 1e6 for host, clock in known.items()}
        elif by_ends is not None:
            clock, offsets, error = "collectives", by_ends.offsets, by_ends.spread / 1e6
        else:
            clock = "hosts"
    origin = min(summary.origin - round(offsets[summary.host] * 1000) for summary in summaries)
    shifts = {each.rank: (each.origin - origin) / 1000 - offsets[each.host] for each in summaries}
    # What began before the first operator of the trace; viewers take no time before 0.
    early = [(each.rank, at) for each in summaries for at in (*each.ends[:1], *(c.start for c in each.collectives[:1]))]
    lead = max([0.0, *(-at - shifts[rank] for rank, at in early)])
    shifts = {rank: shift + lead for rank, shift in shifts.items()}
    seconds = {host: offset / 1e6 for host, offset in offsets.items()}
    return Merging(summaries, matches, shifts, seconds, clock, error, notes)


class EndOffsets(NamedTuple):
    """Microseconds by which each host's clock is ahead of the first one's, and by which collectives disagree on it."""

    offsets: dict[str, float]
    spread: float


def measure_offsets(summaries: Sequence[RankSummary], matches: Sequence[Match]) -> EndOffsets | None:
    """Returns the clocks by the ends of synchronous collectives; None where there is none. A host's end is that of its
    last rank."""
    first = summaries[0]
    differences: dict[str, list[float]] = {}
    for match in matches:
        ends: dict[str, float] = {}
        calls = [(each, each.collectives[match.calls[each.rank]]) for each in summaries]
        if not all(traces.is_synchronous(call) for _, call in calls):
            continue
        for each, call in calls:
            end = (each.origin - first.origin) / 1000 + call.end
            ends[each.host] = max(ends.get(each.host, end), end)
        for host, end in ends.items():
            differences.setdefault(host, []).append(end - ends[first.host])
    if not differences:
        return None
    offsets = {host: median(values) for host, values in differences.items()}
    far = [abs(value - offsets[host]) for host, values in differences.items() for value in values]
    return EndOffsets(offsets, max(far) if len(far) > len(differences) else _SINGLE_CLOCK_ERROR * 1e6)


def build_profile(run: str, merging: Merging, missing: Sequence[UnprofiledRank], first: int, last: int) -> Profile:
    summaries = merging.summaries
    waits, awaited = measure_waits(merging)
    ranks = tuple(
        ProfiledRank(
            each.rank,
            each.host,
            max(0, len(each.ends) - 1),
            ((each.ends[-1] - each.ends[0]) if len(each.ends) > 1 else each.end) / 1e6,
            _measure_union([(call.start, call.end) for call in each.collectives]) / 1e6,
            sum(wait for (rank, _), wait in waits.items() if rank == each.rank) / 1e6,
            awaited.get(each.rank, 0.0) / 1e6,
        )
        for each in summaries
    )
    kernels = tuple(traces.sum_kernels((each.host, each.kernels) for each in summaries))
    return Profile(
        run,
        first,
        last,
        merging.clock,
        ranks,
        tuple(missing),
        _add_operators(summaries),
        _add_collectives(merging, waits),
        kernels,
        {each.host: each.kernels.isa for each in summaries if each.kernels.isa},
        merging.notes,
        merging.offsets,
        merging.clock_error,
        _list_waits(merging, waits),
    )


def measure_waits(merging: Merging) -> tuple[dict[tuple[int, int], float], dict[int, float]]:
    """Microseconds. Rank and place of a call → from its start to the start of the last rank; and rank → the time by
    which it was later than the last but one, over all collectives."""
    by_rank = {each.rank: each for each in merging.summaries}
    waits: dict[tuple[int, int], float] = {}
    awaited: dict[int, float] = {}
    for match in merging.matches:
        starts = {
            rank: by_rank[rank].collectives[place].start + merging.shifts[rank] for rank, place in match.calls.items()
        }
        *_, before, last = sorted(starts, key=starts.__getitem__)
        awaited[last] = awaited.get(last, 0.0) + starts[last] - starts[before]
        for rank, place in match.calls.items():
            waits[rank, place] = starts[last] - starts[rank]
    return waits, awaited


def _measure_union(spans: Sequence[tuple[float, float]]) -> float:
    """Returns how much time spans cover that may overlap."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def _add_operators(summaries: Sequence[RankSummary]) -> tuple[OperatorTime, ...]:
    sums: dict[str, traces.Sum] = {}
    for summary in summaries:
        for name, each in summary.operators.items():
            before = sums.get(name, traces.Sum())
            sums[name] = traces.Sum(before.calls + each.calls, before.own + each.own, before.total + each.total)
    costliest = sorted(sums.items(), key=lambda item: -item[1].own)[:OPERATOR_LIMIT]
    return tuple(OperatorTime(name, each.calls, each.own, each.total) for name, each in costliest)


def _add_collectives(merging: Merging, waits: Mapping[tuple[int, int], float]) -> tuple[CollectiveTime, ...]:
    matched = Counter(match.name for match in merging.matches)
    calls: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    waiting: dict[str, list[float]] = {}
    for summary in merging.summaries:
        for place, each in enumerate(summary.collectives):
            calls[each.name] += 1
            seconds[each.name] = seconds.get(each.name, 0.0) + (each.end - each.start) / 1e6
            waiting.setdefault(each.name, []).append(waits.get((summary.rank, place), 0.0) / 1e6)
    rows = [
        CollectiveTime(name, calls[name], matched[name], seconds[name], sum(waiting[name]), max(waiting[name]))
        for name in calls
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _list_waits(merging: Merging, waits: Mapping[tuple[int, int], float]) -> tuple[CollectiveWait, ...]:
    """Returns the longest waits of each rank, in order of time; none where hosts have no common clock."""
    by_rank = {each.rank: each for each in merging.summaries}
    listed: dict[int, list[CollectiveWait]] = {}
    for match in merging.matches if merging.clock != "hosts" else ():
        late = min(match.calls, key=lambda rank: waits[rank, match.calls[rank]])
        for rank, place in match.calls.items():
            if seconds := waits[rank, place] / 1e6:
                summary = by_rank[rank]
                at = summary.origin / 1e9 + summary.collectives[place].start / 1e6 - merging.offsets[summary.host]
                listed.setdefault(rank, []).append(CollectiveWait(rank, late, match.name, at, seconds))
    room = max(_MAX_WAITS // len(merging.summaries), _MIN_WAITS)
    longest = [wait for each in listed.values() for wait in sorted(each, key=lambda wait: -wait.seconds)[:room]]
    return tuple(sorted(longest, key=lambda wait: (wait.at, wait.rank)))


# the merged trace -------------------------------------------------------------------------------------------------


def format_trace(merging: Merging, ranks: Iterable[traces.RankTrace]) -> Iterator[str]:
    """Yields the merged trace in pieces: Chrome's JSON, a process per rank (``rank 3 · node1``) with a row of steps,
    its threads, and rows of collectives; arrows go from the rank that came last to those that it kept waiting."""
    yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
    before, events = "", _list_all_events(merging, ranks)
    while lines := [*islice(events, _EVENTS_PER_PIECE)]:
        yield before + ",\n".join(lines)
        before = ",\n"
    yield "\n]}\n"


def _list_all_events(merging: Merging, ranks: Iterable[traces.RankTrace]) -> Iterator[str]:
    summaries = {each.rank: each for each in merging.summaries}
    rows: dict[int, list[int]] = {}
    for trace in ranks:
        summary = summaries[trace.rank]
        rows[trace.rank] = _assign_rows(summary.collectives)
        yield from _list_events(trace, summary, merging.shifts[trace.rank], rows[trace.rank])
    yield from _list_arrows(merging, rows)


def _list_events(trace: traces.RankTrace, summary: RankSummary, shift: float, rows: Sequence[int]) -> Iterator[str]:
    pid = trace.rank
    names = {_STEPS_ROW: "steps", **{_COLLECTIVES_ROW + row: "collectives" for row in sorted(set(rows))}}
    for thread in sorted({each.thread for each in trace.slices if not traces.is_collective(each.name)}):
        names[thread] = f"thread {thread}"
    yield _format_metadata(pid, 0, "process_name", {"name": f"rank {pid} · {trace.host}"})
    yield _format_metadata(pid, 0, "process_sort_index", {"sort_index": pid})
    for thread, name in names.items():
        yield _format_metadata(pid, thread, "thread_name", {"name": name})
        yield _format_metadata(pid, thread, "thread_sort_index", {"sort_index": thread})
    for number, (start, end) in enumerate(pairwise(summary.ends), summary.first):
        yield _format_slice(pid, _STEPS_ROW, f"step {number}", "step", start + shift, end + shift)
    # Of two that begin together the outer one comes first: viewers take what follows as part of it.
    for each in sorted(trace.slices, key=lambda each: (each.start, -each.end)):
        if not traces.is_collective(each.name):
            start, end = each.start + shift, each.end + shift
            yield _format_slice(pid, each.thread, each.name, each.kind, start, end, each.arguments)
    for call, row in zip(summary.collectives, rows, strict=True):
        if call.finished:
            start, end = call.start + shift, call.end + shift
            yield _format_slice(pid, _COLLECTIVES_ROW + row, call.name, "collective", start, end)


def _format_metadata(pid: int, thread: int, name: str, args: Mapping[str, object]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": thread, "args": args})


def _format_slice(pid: int, thread: int, name: str, kind: str, start: float, end: float, arguments: str = "") -> str:
    """As JSON. There may be millions of slices: the encoder would take minutes. Both ends are rounded, so that a slice
    within another one stays there."""
    start, end = round(start, 3), round(end, 3)
    words = f'"ph": "X", "cat": {encode_text(kind or "op")}, "name": {encode_text(name)}, "pid": {pid}, "tid": {thread}'
    times = f'"ts": {start:.3f}, "dur": {max(0.0, end - start):.3f}'
    if arguments:
        return f'{{{words}, {times}, "args": {arguments}}}'
    return f"{{{words}, {times}}}"


def _assign_rows(calls: Sequence[traces.Collective]) -> list[int]:
    """Returns the row of each call: those of one row do not overlap, unless all of `_ROW_LIMIT` are taken."""
    rows: list[float] = []
    chosen = []
    for call in calls:
        row = next((row for row, until in enumerate(rows) if until <= call.start), min(len(rows), _ROW_LIMIT - 1))
        rows[row : row + 1] = [call.end]
        chosen.append(row)
    return chosen


def _list_arrows(merging: Merging, rows: Mapping[int, Sequence[int]]) -> Iterator[str]:
    """From the start of the rank that came last to the end of each other one."""
    by_rank = {each.rank: each for each in merging.summaries}
    numbers = 0
    for match in merging.matches:
        calls = {rank: by_rank[rank].collectives[place] for rank, place in match.calls.items()}
        if not all(call.finished for call in calls.values()):
            continue
        latest = max(calls, key=lambda rank: calls[rank].start + merging.shifts[rank])
        for rank, call in calls.items():
            if rank == latest:
                continue
            event = {"cat": "collective", "name": match.name, "id": numbers, "bp": "e"}
            for phase, who, at in (("s", latest, calls[latest].start), ("f", rank, call.end)):
                row = _COLLECTIVES_ROW + rows[who][match.calls[who]]
                at += merging.shifts[who] + (0.001 if phase == "s" else -0.001)  # inside of the slice
                yield json.dumps({**event, "ph": phase, "pid": who, "tid": row, "ts": round(at, 3)})
            numbers += 1
