"""``--limit``: which of the hosts. Names, groups, globs, ranges and ``!exclusions``, as in Ansible."""

import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.decide.parsing.ranges import RangeError, expand_ranges
from ipexctl.model.errors import Origin, UsageError
from ipexctl.model.hosts import Inventory
from ipexctl.model.text import pluralize, printable

_PIECES_LIMIT = 4096
FAILED = "@failed"  # stands for the hosts that failed in the last command
_ITEM = re.compile(r"(?:\[[^\[\]]*\]|[^,\[\]]|[\[\]])+")  # between commas outside of brackets
_PIECE = re.compile(r"(?:\[[^\[\]]*\]|[^:\[\]])+|[\[\]]")


def limit_inventory(inventory: Inventory, text: str, source: str = "--limit") -> Inventory:
    """Returns the hosts that ``text`` chooses, in their own order; the first of them is the head. Pieces stand between
    commas or colons: a host's name or address, a group, ``all``, a glob (``node*``), a range (``node[01-04]``);
    ``!piece`` takes away, ``&piece`` keeps only what is also there. Only ``!pieces``: all but those. Raises
    `UsageError` for a name that no host or group has, with the nearest ones, and when no host is left."""
    problems = InputErrors(source)
    # By every word that names hosts: names and addresses in lower case, groups as they are.
    index: dict[str, set[str]] = {"all": set(inventory.names), **{name: set() for name in inventory.empty_groups}}
    for host in inventory:
        for word in (host.name.lower(), host.address.lower(), *host.groups):
            index.setdefault(word, set()).add(host.name)
    pieces: list[str] = []
    for item in map(str.strip, _ITEM.findall(text)):  # a known IPv6 address stays whole
        parts = [item] if item.lstrip("!&").lower() in index else map(str.strip, _PIECE.findall(item))
        pieces += filter(None, parts)
    if not pieces:
        raise UsageError(f"{source} is empty: it would choose nothing")
    if len(pieces) > _PIECES_LIMIT:
        raise UsageError(f"{source} has more than {_PIECES_LIMIT} pieces")
    chosen, kept, left_out = set[str](), index["all"], set[str]()
    for piece in pieces:
        sign = piece[0] if piece[0] in "!&" else ""
        hit = _match_piece(index, piece.removeprefix(sign), Origin(source), problems)
        if sign == "&":
            kept = kept & hit
        elif sign == "!":
            left_out |= hit
        else:
            chosen |= hit
    problems.raise_if_any()
    named = any(piece[0] not in "!&" for piece in pieces)
    left = (chosen if named else index["all"]) & kept - left_out
    if not left:
        raise UsageError(f"{source} '{printable(text)}' leaves no host of {printable(inventory.source)}")
    hosts = tuple(host for host in inventory if host.name in left)
    limit = ",".join(host.name for host in hosts) if inventory.limit else text
    others = (*inventory.left_out, *(host for host in inventory if host.name not in left))
    return replace(inventory, hosts=hosts, limit=limit, left_out=others)


def _match_piece(index: Mapping[str, set[str]], piece: str, origin: Origin, problems: InputErrors) -> set[str]:
    if piece == "*":
        return index["all"]
    bare = piece.removeprefix("[").removesuffix("]") if piece.count(":") > 1 else piece
    for word in (bare, bare.lower()):
        if word in index:
            return index[word]
    if "*" in piece or "?" in piece:
        hit = set().union(*(names for word, names in index.items() if fnmatchcase(word, piece.lower())))
        missing = [] if hit else [piece]
    else:
        try:
            wanted = expand_ranges(piece)
        except RangeError as error:
            problems.add(origin, str(error), value=piece)
            return set()
        hit = set().union(*(index.get(name.lower(), ()) for name in wanted))
        missing = [name for name in wanted if name.lower() not in index]
    for name in missing[:10]:
        problems.add(origin, "no host or group has this name", value=name, near=(name, index))
    if len(missing) > 10:
        more = pluralize(len(missing) - 10, "more name")
        problems.add(origin, f"no host or group has {more} of this range", value=piece)
    return hit
