"""The screen of a profile: who waited for whom, what was costly, which instructions oneDNN used."""

from collections.abc import Mapping, Sequence

from rich.console import RenderableType

from ipexctl.model.answers.run import ProfileAnswer, RunAnswer
from ipexctl.model.profile import Profile
from ipexctl.model.text import format_ranks, group_pairs, pluralize
from ipexctl.show.tables import draw_rows
from ipexctl.show.typeset import QUIET, STRONG, WARN, AtWidth, Line, labelled, text

_MOST_OPERATORS, _MOST_KERNELS, _MOST_RANKS = 12, 10, 32
_ROOM = 10


def format_answer(value: RunAnswer | ProfileAnswer) -> list[RenderableType]:
    """The profile; the card of a run is made from the report (`screens.format_ending`)."""
    return format_profile(value.profile, value.traces or "") if value.profile else []


def format_profile(profile: Profile, traces: str = "") -> list[RenderableType]:
    """The profile; ``traces`` is the directory of the ranks' traces."""
    steps = f"{profile.first} to {profile.last}" if profile.last > profile.first else str(profile.first)
    hosts = pluralize(len({rank.host for rank in profile.ranks}), "host")
    items: list[RenderableType] = [
        text((f"profile of steps {steps}", STRONG), f" · {pluralize(len(profile.ranks), 'rank')} on {hosts}")
    ]
    for why, ranks in group_pairs((each.why, each.rank) for each in profile.missing).items():
        items.append(Line(text(("! ", WARN), f"{format_ranks(ranks)} not profiled: {why}"), 2))
    items += [Line(text(("! ", WARN), note), 2) for note in profile.notes]
    if profile.ranks:
        items += [*_format_ranks(profile), *_format_operators(profile), *_format_collectives(profile)]
        items += _format_kernels(profile)
    return [*items, *([labelled("traces", traces, room=_ROOM)] if traces and profile.ranks else [])]


def _format_ranks(profile: Profile) -> list[RenderableType]:
    slowest = sorted(profile.ranks, key=lambda rank: -rank.awaited)[:_MOST_RANKS]
    rows = [
        {
            "rank": str(rank.rank),
            "ms/step": _format_ms(rank.seconds / max(1, rank.steps)),
            "collectives": _format_share(rank.collectives, rank.seconds),
            "waiting ms/step": _format_ms(rank.waiting / max(1, rank.steps)),
            "awaited ms/step": _format_ms(rank.awaited / max(1, rank.steps)),
            "host": rank.host,
        }
        for rank in sorted(slowest, key=lambda rank: rank.rank)
    ]
    title = "ranks: waiting is for those that enter a collective later, awaited is by how much a rank was the last"
    more = len(profile.ranks) - len(slowest)
    note = [labelled("ranks", f"{more} more, less awaited", room=_ROOM)] if more else []
    return [*_make_table(title, rows), *note]


def _format_operators(profile: Profile) -> list[RenderableType]:
    steps = max(1, sum(rank.steps for rank in profile.ranks))
    whole = sum(rank.seconds for rank in profile.ranks)
    rows = [
        {
            "own ms/step": _format_ms(each.own / steps),
            "share": _format_share(each.own, whole),
            "calls/step": f"{each.calls / steps:.4g}",
            "operator": each.name,
        }
        for each in profile.operators[:_MOST_OPERATORS]
    ]
    return _make_table("costliest operators, mean of the ranks", rows)


def _format_collectives(profile: Profile) -> list[RenderableType]:
    rows = [
        {
            "calls": str(each.calls),
            "mean ms": _format_ms(each.seconds / max(1, each.calls)),
            "of it waiting": _format_share(each.waiting, each.seconds) if each.matched else "-",
            "longest wait ms": _format_ms(each.longest_wait) if each.matched else "-",
            "collective": each.name,
        }
        for each in profile.collectives
    ]
    return _make_table("collectives of all ranks", rows)


def _format_kernels(profile: Profile) -> list[RenderableType]:
    if not profile.kernels:
        return []
    whole = sum(each.seconds for each in profile.kernels)
    rows = [
        {
            "ms": _format_ms(each.seconds),
            "share": _format_share(each.seconds, whole),
            "calls": str(each.calls),
            "types": each.dtype,
            "primitive": each.primitive,
            "implementation": each.implementation,
        }
        for each in profile.kernels[:_MOST_KERNELS]
    ]
    groups = group_pairs((each.isa or "no instruction set named", each.seconds) for each in profile.kernels)
    isas = sorted(((isa, sum(times)) for isa, times in groups.items()), key=lambda item: -item[1])
    used = ", ".join(f"{isa} {_format_share(seconds, whole)}" for isa, seconds in isas)
    return [*_make_table("kernels of oneDNN on all ranks", rows), labelled("used", used, room=_ROOM)]


def _make_table(title: str, rows: Sequence[Mapping[str, str]]) -> list[RenderableType]:
    return ["", Line(text((title, QUIET))), AtWidth(draw_rows, rows)] if rows else []


def _format_ms(seconds: float) -> str:
    value = seconds * 1e3
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 0.01 else "0"


def _format_share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole > 0 else "-"
