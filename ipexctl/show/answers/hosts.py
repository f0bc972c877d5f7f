"""The screen of ``du``: what places take, by host and kind, and which projects are removed."""

from collections.abc import Sequence

from rich.console import RenderableType

from ipexctl.model.answers.hosts import UsageAnswer, UsedPlace
from ipexctl.model.text import format_size, format_time, group_pairs, pluralize
from ipexctl.show import phrases
from ipexctl.show.tables import draw_rows
from ipexctl.show.typeset import WARN, AtWidth, Line, text

_COLUMNS = {"environment": "environments", "wheels": "wheels", "runs": "runs", "project": "projects"}  # by kind


def format_answer(value: UsageAnswer) -> list[RenderableType]:
    rows = group_pairs((_format_sizes(value.places, host), host) for host in value.answered)
    table = [{"hosts": phrases.format_hosts(hosts), **dict(cells)} for cells, hosts in rows.items()]
    table.append({"hosts": "here", **dict(_format_sizes(value.places, ""))})
    items: list[RenderableType] = [AtWidth(draw_rows, table)]
    removed = [place for place in value.places if place.removed]
    if removed:
        items += ["", AtWidth(draw_rows, [_describe_place(place) for place in removed])]
    items += [
        Line(text(("! ", WARN), f"not removed: {place.path} on {place.host or 'this machine'}: {place.stays}"), 2)
        for place in value.places
        if place.stays
    ]
    kinds = {kind: sum(place.kind == kind for place in removed) for kind in ("project", "wheels")}
    names = [pluralize(kinds["project"], "project")] if kinds["project"] else []
    if kinds["wheels"]:
        names.append("the wheels here")
    many = f"{' and '.join(names)}, {format_size(sum(place.bytes for place in removed))}"
    if removed:
        items.append(text(f"would remove {many}; nothing was removed" if value.dry else f"removed {many}"))
    elif value.dry is not None:
        items.append(text("nothing to remove"))
    return items


def _format_sizes(places: Sequence[UsedPlace], host: str) -> tuple[tuple[str, str], ...]:
    sizes = {
        kind: sum(place.bytes for place in places if (place.host, place.kind) == (host, kind)) for kind in _COLUMNS
    }
    return tuple((_COLUMNS[kind], format_size(size)) for kind, size in sizes.items())


def _describe_place(place: UsedPlace) -> dict[str, str]:
    cells = {"host": place.host or "here", "size": format_size(place.bytes), "not sent": format_size(place.written)}
    return {**cells, "last change": format_time(place.changed or 0.0), "place": place.path}
