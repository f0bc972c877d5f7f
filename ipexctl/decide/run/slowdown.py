"""Whether a run has become slow, and which host makes it so. In synchronous training all ranks have the pace of the
slowest: it is the one that the others wait for, while it does not."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from ipexctl.decide.run.command_line import make_command_without
from ipexctl.model.reports import SlowHost, StallPlace
from ipexctl.model.run_state import Attempt, RankState, RunState, Series, Slowdown
from ipexctl.model.text import format_clock, format_ranks

_SLOW_PACES = 3  # paces in a row by which a run is slow
_BEST_PACES = 5  # paces in a row that count as the best
_MIN_SECONDS = 4.0  # seconds that the slow ones last
_SLOW_SHARE, _WELL_SHARE = 0.7, 0.8  # shares of the best pace at which a run is slow, and is well again
_CAPPED = 0.5  # share of the time without CPU time from which a host is slow, whatever its pace
_CAUSE = 0.25  # and from which that is the cause of a slow pace
_MIN_SAMPLES = 3  # samples in which some ranks wait and some do not
_BUSY_SHARE = 0.6  # of such samples, in which the slow host does not wait
_WAITING_SHARE = 0.35  # the same of any other host
_SLOW_DELAY = 5.0  # milliseconds there and back from which on a link may be slow,
_DELAY_RATIO = 5.0  # if they are so many times the usual ones
_RESENT_SHARE = 0.5  # % of TCP segments from which on many are lost


def note_best_pace(rank: RankState) -> None:
    """Keeps the best pace that a rank has kept up for some steps."""
    recent = [pace for _, pace in rank.paces][-_BEST_PACES:]
    if len(recent) == _BEST_PACES:
        rank.best = max(rank.best, median(recent))


def judge_pace(state: RunState, at: float) -> None:
    """Notes in the attempt where a slow time begins and ends, and whose fault it is as soon as that is known."""
    attempt = state.attempt
    if attempt is None or attempt.over is not None:
        return
    paced = [rank for rank in attempt.ranks if rank.ended is None and rank.best and len(rank.paces) >= _SLOW_PACES]
    limit = _WELL_SHARE if attempt.slowdown else _SLOW_SHARE
    slow = [rank for rank in paced if _is_slow(rank, limit, at)]
    if 2 * len(slow) <= len(paced) and not _find_capped_host(state, _CAPPED):
        attempt.slowdown = None
        return
    if attempt.slowdown is None:
        attempt.slowdown = Slowdown(min((rank.paces[-_SLOW_PACES][0] for rank in slow), default=at))
    slowdown = attempt.slowdown
    if slow:
        slowdown.best = median(rank.best for rank in slow)
        slowdown.pace = median(pace for rank in slow for _, pace in [*rank.paces][-_SLOW_PACES:])
    slowdown.verdict = _find_slow_host(state, attempt, slowdown)
    attempt.slow_host = slowdown.verdict or attempt.slow_host


def _is_slow(rank: RankState, limit: float, at: float) -> bool:
    recent = [*rank.paces][-_SLOW_PACES:]
    return at - recent[0][0] >= _MIN_SECONDS and all(pace < limit * rank.best for _, pace in recent)


def _get_last(table: Mapping[str, Series], name: str) -> float:
    series = table.get(name)
    return series.last[1] if series and series.last else 0.0


def _find_capped_host(state: RunState, least: float) -> str:
    """Returns the host whose control group has had no CPU time left for such a share of the time, where it is one."""
    shares = {host: _get_last(table, "capped") / 100 for host, table in state.run.samples.items()}
    hosts = sorted(shares, key=lambda host: -shares[host])
    others = max((shares[host] for host in hosts[1:]), default=0.0)
    return hosts[0] if len(hosts) > 1 and shares[hosts[0]] >= least and others < shares[hosts[0]] / 2 else ""


def _find_slow_link(state: RunState) -> tuple[str, str]:
    """Returns the host to which packets take much longer than to the others, or than before, or are lost; and what was
    measured. Where that is so of all hosts but the head, it is the head's link."""
    tables, head = state.run.samples, state.run.attempts[-1].started.head
    delays = {host: _get_last(table, "delay") for host, table in tables.items() if host != head and "delay" in table}
    busy = _get_last(tables.get(head, {}), "delay")  # to itself: no link's fault, but that of a busy processor
    resent = {host: _get_last(table, "resent") for host, table in tables.items()}

    def describe(host: str, delay: str = "") -> tuple[str, str]:
        share = resent.get(host, 0.0)
        again = f"{share:.1f} % of its TCP segments are sent again" if share >= _RESENT_SHARE / 5 else ""
        return host, "; ".join(filter(None, [delay, again]))

    grown = [
        host
        for host, delay in delays.items()
        if delay >= max(_SLOW_DELAY, _DELAY_RATIO * max(busy, _get_least(tables[host], "delay")))
    ]
    if len(grown) == len(delays) > 1:
        return describe(head, f"a packet takes {min(delays.values()):.0f} ms to the other hosts and back")
    farthest = max(delays, key=lambda host: delays[host], default="")
    others = [delay for host, delay in delays.items() if host != farthest]
    if farthest and (delays[farthest] >= max(_SLOW_DELAY, _DELAY_RATIO * median(others)) if others else grown):
        usual = f", the others {median(others):.3g} ms" if others else ""
        return describe(farthest, f"a packet takes {delays[farthest]:.0f} ms from {head} and back{usual}")
    lossiest, *less_lossy = sorted(resent, key=lambda host: -resent[host]) or [""]
    is_clear = bool(less_lossy) and resent[lossiest] >= max(_RESENT_SHARE, 3 * resent[less_lossy[0]])
    return describe(lossiest) if is_clear else ("", "")


def _get_least(table: Mapping[str, Series], name: str) -> float:
    return min([value for column in table[name].extremes.values() for *_, value in column], default=0.0)


class _LastHost(NamedTuple):
    """The host whose ranks still work in ``late`` samples, while the others wait for them in a call: ``share`` is that
    of all looks at the others in which they wait, None without such."""

    host: str
    late: int
    share: float | None


def _find_slow_host(state: RunState, attempt: Attempt, slowdown: Slowdown) -> SlowHost | None:
    """Returns the host that the others wait for, as samples of stacks tell; without them the one without CPU time."""
    hosts = attempt.started.ranks
    telling = [sample for sample in slowdown.samples if {bool(place.call) for place in sample} == {True, False}]
    last = _find_last_host(telling, slowdown, hosts)
    far, measured = _find_slow_link(state)
    if last and far not in ("", last.host, attempt.started.head) and not _find_cause(state, last.host):
        last = None  # over a slow link any rank may be the last one, in a few samples
    host = last.host if last else _find_capped_host(state, _CAUSE) or far
    if not host:
        return None
    ranks = tuple(rank for rank, name in enumerate(hosts) if name == host)
    if last:
        late = Counter(rank for sample in telling for rank in _list_working(sample))
        ranks = tuple(rank for rank in ranks if late[rank] >= _WAITING_SHARE * len(telling)) or ranks
    lines = []
    if slowdown.best:
        begun = format_clock(slowdown.since - state.begun)
        lines.append(f"pace {slowdown.pace:.2f} it/s, was {slowdown.best:.2f} until {begun}")
    if last:
        lines.append(_describe_waiting(telling, ranks, last))
    cause = _find_cause(state, host) or (measured if host == far else "") or _find_usual_place(telling, ranks)
    if cause:
        lines.append(f"{host}: {cause}")
    command = make_command_without(state, host)
    if command:
        lines.append(f"without it: {command}")
    words = ("ipexctl", *command.words) if command else ()
    return SlowHost(host, ranks, slowdown.since, slowdown.pace, slowdown.best, cause, tuple(lines), words)


def _find_last_host(
    telling: Sequence[tuple[StallPlace, ...]], slowdown: Slowdown, hosts: Sequence[str]
) -> _LastHost | None:
    """Returns the host that comes last into the calls; None where the samples do not tell it clearly."""
    ordered = Counter(
        host for sample in telling for host in {hosts[rank] for rank in _list_working(sample)}
    ).most_common(2)
    if len(telling) < _MIN_SAMPLES or ordered[0][1] < _BUSY_SHARE * len(telling):
        return None
    if ordered[1:] and ordered[1][1] > _WAITING_SHARE * len(telling):
        return None
    host, late = ordered[0]
    share = _measure_waiting(slowdown, hosts, host)
    longer = max(1 - slowdown.pace / slowdown.best, 0.0) if slowdown.best else 0.0  # by which part of a step
    if share is not None and share < _WAITING_SHARE * longer:  # waiting does not explain it
        return None
    return _LastHost(host, late, share)


def _list_working(sample: tuple[StallPlace, ...]) -> set[int]:
    return {rank for place in sample if not place.call for rank in place.ranks}


def _measure_waiting(slowdown: Slowdown, hosts: Sequence[str], host: str) -> float | None:
    """Returns in which share of the looks at them the ranks of the other hosts waited in a call; None without such."""
    places = [place for sample in slowdown.samples for place in sample]
    looks = [bool(place.call) for place in places for rank in place.ranks if hosts[rank] != host]
    return sum(looks) / len(looks) if looks else None


def _describe_waiting(telling: Sequence[tuple[StallPlace, ...]], ranks: tuple[int, ...], last: _LastHost) -> str:
    calls = Counter(place.call for sample in telling for place in sample if place.call for _ in place.ranks)
    call = calls.most_common(1)[0][0]
    comes = "comes" if len(ranks) == 1 else "come"
    who = f"{format_ranks(ranks)} on {last.host} {comes} last into {call} ({last.late} of {len(telling)})"
    return f"{who}; the others wait {100 * last.share:.0f} % of the time" if last.share is not None else who


def _find_usual_place(telling: Sequence[tuple[StallPlace, ...]], ranks: tuple[int, ...]) -> str:
    lines = Counter(
        place.line for sample in telling for place in sample if not place.call and set(place.ranks) & set(ranks)
    )
    line, count = lines.most_common(1)[0] if lines else ("", 0)
    return f"{format_ranks(ranks)} mostly at {line} ({count} of {len(telling)})" if line else ""


def _find_cause(state: RunState, host: str) -> str:
    """What sets this host apart from the others, as its samples tell."""
    tables = state.run.samples
    own = tables.get(host, {})

    def compare(name: str) -> tuple[float, float]:
        others = [_get_last(table, name) for other, table in tables.items() if other != host]
        return _get_last(own, name), median(others) if others else 0.0

    capped, _ = compare("capped")
    if capped >= 100 * _CAUSE:
        return f"its control group limits CPU time, throttled {capped:.0f} % of the time"
    clock, usual_clock = compare("mhz")
    if 0 < clock < _SLOW_SHARE * usual_clock:
        return f"its cores run at {clock:.0f} MHz, those of the others at {usual_clock:.0f} MHz"
    foreign, usual_foreign = compare("other cpu")
    if foreign - usual_foreign >= 0.5 and foreign > 2 * usual_foreign:
        return f"other programs use {foreign:.1f} cores there, {usual_foreign:.1f} on the others"
    waiting, usual_waiting = compare("waiting")
    if waiting >= 30 and waiting > 2 * usual_waiting:
        return f"tasks wait for CPU, memory or disks {waiting:.0f} % of the time, {usual_waiting:.0f} % on the others"
    return ""
