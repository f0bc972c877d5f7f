"""What the keeper makes of the checkpoints that the hosts report, without clock, files or connections: which are whole,
what is to be copied where, and which one the ranks go on from."""

from typing import Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

from ipexctl.protocol import messages
from ipexctl.protocol.journal import CheckpointKept, CheckpointMissed, Record
from ipexctl.protocol.messages import CheckpointPart, CheckpointSource
from ipexctl.protocol.run_spec import KeepSpec

Place = NamedTuple("Place", [("host", str), ("is_copy", bool), ("part", CheckpointPart)])  # where a part is
Order = NamedTuple("Order", [("host", str), ("message", messages.TakeCheckpoint)])  # for the guard of this host


class Checkpoint(NamedTuple):
    """One that is whole; ``marks`` and ``places`` by the hosts that wrote its parts."""

    name: str
    at: float
    marks: "Dict[str, str]"
    places: "Dict[str, Place]"


class Keeping(NamedTuple):
    """``look`` is the number of the last look that was asked for, ``number`` that of the last order; ``orders`` are
    under way. ``failed``: hosts with marks of parts that they could not get, or names with marks of checkpoints that a
    host could not go on from. ``size`` bytes of the ``chosen`` one came from ``sources``."""

    reports: "Dict[str, messages.CheckpointsFound]" = {}
    look: int = 0
    number: int = 0
    orders: "Dict[int, Order]" = {}
    failed: "FrozenSet[Tuple[str, str]]" = frozenset()
    chosen: "Optional[Checkpoint]" = None
    size: int = 0
    sources: "FrozenSet[str]" = frozenset()
    due: bool = True  # one is still to be chosen, or another one


def list_whole(keeping: "Keeping", hosts: "Sequence[str]", quiet: bool = False) -> "List[Checkpoint]":
    """Returns the checkpoints that these hosts have all files of between them, the newest first. What was copied was
    whole, and is as long as each part of it is somewhere. ``quiet``: no rank runs, and a host may be gone with what it
    wrote last: then one whose form does not tell what belongs to it has the parts of as many hosts as others."""
    reports = [(host, part) for host in hosts if host in keeping.reports for part in keeping.reports[host].parts]
    own = {(host, part.name): part for host, part in reports if not part.owner}
    copies = [(host, part) for host, part in reports if part.owner]
    places = {(part.owner, part.mark): Place(host, True, part) for host, part in copies}
    places.update({(host, part.mark): Place(host, False, part) for (host, _), part in own.items() if part.settled})
    most = max([len(part.marks) for _, part in copies], default=0) if quiet else 0
    candidates = [(part.name, part.marks, 0) for _, part in copies]
    for name in {name for _, name in own}:
        here = {host: own[host, name] for host in hosts if (host, name) in own}
        writers = set(_find_newest(here).values())
        candidates.append((name, {host: part.mark for host, part in here.items() if host in writers}, most))
    found: Dict[str, Checkpoint] = {}
    for name, marks, least in candidates:
        if not marks or not set(marks.items()) <= set(places):
            continue
        chosen = {host: places[host, marks[host]] for host in marks}
        parts = [place.part for place in chosen.values()]
        needs = {path for part in parts for path in part.needs}
        if needs <= {path for part in parts for path in part.files} and (needs or len(marks) >= least):
            found[_get_key(name, marks)] = Checkpoint(name, max(part.at for part in parts), marks, chosen)
    return sorted(found.values(), key=lambda each: each.at, reverse=True)


def _find_newest(parts: "Dict[str, CheckpointPart]") -> "Dict[str, str]":
    """Returns the host of each file's newest version; the first of those that have the same one: after a restart all
    hosts have what one of them wrote."""
    # By path: when it was written, by the clock by which the part's own time was, and the host.
    newest: Dict[str, Tuple[float, str]] = {}
    for host, part in parts.items():
        last = max((written for _, written in part.files.values()), default=0)
        for path, (_, written) in part.files.items():
            at = part.at - (last - written) / 1e9
            if path not in newest or at > newest[path][0]:
                newest[path] = at, host
    return {path: host for path, (_, host) in newest.items()}


def _get_key(name: str, marks: "Dict[str, str]") -> str:
    return " ".join([name, *sorted(marks.values())])


def add_report(keeping: "Keeping", host: str, found: "messages.CheckpointsFound") -> "Keeping":
    """What a host has now."""
    known = keeping.reports.get(host)
    found = found._replace(number=max(found.number, known.number if known else 0))
    return keeping._replace(reports=dict(keeping.reports, **{host: found}))


def plan_copies(keeping: "Keeping", hosts: "Sequence[str]", keep: "KeepSpec") -> "Tuple[Keeping, List[Order]]":
    """What is to be copied now, so that each part of the newest checkpoint is on ``keep.copies`` other hosts. A host
    gets one part at a time."""
    orders: List[Order] = []
    for checkpoint in list_whole(keeping, hosts)[:1]:
        for owner, place in checkpoint.places.items():
            part, at = place.part, list(hosts).index(place.host)
            if place.is_copy:
                continue
            others = [*hosts[at + 1 :], *hosts[:at]]
            present = [host for host in others if host in keeping.reports and _has_part(keeping, host, owner, part)]
            under_way = [order for order in keeping.orders.values() if order.message.sources[0].host == owner]
            busy = {order.host for order in [*keeping.orders.values(), *orders]}
            free = [
                host for host in others if host not in {*present, *busy} and (host, part.mark) not in keeping.failed
            ]
            source = CheckpointSource(owner, keep.addresses[owner], keeping.reports[owner].port, part.files)
            for host in [] if under_way else free[: max(0, keep.copies - len(present))][:1]:
                keeping = keeping._replace(number=keeping.number + 1)
                copy = part._replace(owner=owner, marks=checkpoint.marks)
                orders.append(Order(host, messages.TakeCheckpoint(keeping.number, part.name, [source], copy)))
    return _add_orders(keeping, orders), orders


def _has_part(keeping: "Keeping", host: str, owner: str, part: "CheckpointPart") -> bool:
    return any(each.mark == part.mark and each.owner in {"", owner} for each in keeping.reports[host].parts)


def _add_orders(keeping: "Keeping", orders: "List[Order]") -> "Keeping":
    return keeping._replace(orders={**keeping.orders, **{order.message.number: order for order in orders}})


def plan_resume(keeping: "Keeping", hosts: "Sequence[str]", keep: "KeepSpec") -> "Tuple[Keeping, List[Order]]":
    """Chooses the newest checkpoint that no host has failed to get; what hosts have to get of it."""
    whole = list_whole(keeping, hosts, quiet=True)
    chosen = next((each for each in whole if ("", _get_key(each.name, each.marks)) not in keeping.failed), None)
    keeping, orders = keeping._replace(chosen=chosen, size=0, sources=frozenset(), due=False), []
    places = chosen.places if chosen else {}
    newest = _find_newest({host: place.part for host, place in places.items()})
    files = {path: places[host] for path, host in newest.items()}
    for host in hosts if chosen else ():
        own = [part for part in keeping.reports[host].parts if not part.owner]
        present = {path: file for part in own for path, file in part.files.items()}
        lacking = [(path, place) for path, place in files.items() if present.get(path) != place.part.files[path]]
        sources = []
        for place in {id(place): place for _, place in lacking}.values():
            wanted = {path: place.part.files[path] for path, source in lacking if source is place}
            owner, mark = (place.part.owner, place.part.mark) if place.is_copy else ("", "")
            port = keeping.reports[place.host].port
            sources.append(CheckpointSource(place.host, keep.addresses[place.host], port, wanted, owner, mark))
        aside = [part.name for part in own if chosen and part.name != chosen.name and part.at > chosen.at]
        if chosen and (sources or aside):
            keeping = keeping._replace(number=keeping.number + 1)
            orders.append(Order(host, messages.TakeCheckpoint(keeping.number, chosen.name, sources, None, aside)))
    return _add_orders(keeping, orders), orders


def find_incomplete(keeping: "Keeping", hosts: "Sequence[str]") -> str:
    """Returns the name of the newest checkpoint that is here in part; "" where there is none."""
    parts = [part for host in hosts for part in keeping.reports[host].parts]
    return max(parts, key=lambda part: part.at).name if parts else ""


def end_order(keeping: "Keeping", host: str, taken: "messages.CheckpointTaken") -> "Tuple[Keeping, List[Record]]":
    """A host has done what it was told, or could not. Number 0: it does nothing any more."""
    notes: List[Record] = []
    orders = dict(keeping.orders)
    if not taken.number:
        keeping = add_report(keeping, host, messages.CheckpointsFound(keeping.look, 0, []))
        notes.append(CheckpointMissed("any checkpoint", host, taken.why))
    for number in [number for number in orders if orders[number].host == host and taken.number in {0, number}]:
        order, chosen = orders.pop(number).message, keeping.chosen
        part = order.part
        if taken.why:
            told: Set[str] = {each for each, _ in keeping.failed}
            if part is None or host not in told:  # once is enough
                notes.append(CheckpointMissed(order.name, host, taken.why, part is None))
            failure = ("", _get_key(chosen.name, chosen.marks) if chosen else "")
            if part:
                failure = (host, part.mark)
            keeping = keeping._replace(failed=keeping.failed | {failure}, due=keeping.due or part is None)
        elif part:
            notes.append(CheckpointKept(order.name, host, part.owner, taken.size, taken.seconds))
            # A host that has had nothing has reported nothing; number 0 is the answer to no look.
            known = keeping.reports.get(host) or messages.CheckpointsFound(0, 0, [])
            keeping = add_report(keeping, host, known._replace(parts=[*known.parts, part]))
        else:
            others = {source.host for source in order.sources} - {host}
            keeping = keeping._replace(size=keeping.size + taken.size, sources=keeping.sources | others)
    return keeping._replace(orders=orders), notes
