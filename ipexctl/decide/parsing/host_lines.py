"""Host lines: Intel MPI, MPICH, Open MPI, DeepSpeed, Ansible INI, plain lists, and our own keys.

Each line is read for itself, so dialects may be mixed. A line is a host (``user@host:slots``, with ranges) and then
``key=value`` words; ``#`` begins a comment. A line ``[group]`` makes the file an Ansible inventory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from ipexctl.decide.parsing import validators
from ipexctl.decide.parsing.host_entries import Entry, Tree, Word, set_key
from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.decide.parsing.ranges import RangeError, expand_ranges
from ipexctl.model.errors import Origin
from ipexctl.model.text import printable

_BLANK = " \t"
_SECTION = re.compile(r"\[[ \t]*([A-Za-z_][^\[\]:]*?)[ \t]*(?::[ \t]*([A-Za-z]+)[ \t]*)?\][ \t]*(?:[#;].*)?")
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*")
_PIECE = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|([^ \t'"]+)""")
_QUOTED = re.compile(r"""(?:'([^']*)'|"([^"]*)")[ \t]*(?:#.*)?""")
_RANGE = re.compile(r"[0-9a-zA-Z]+([-,:][0-9a-zA-Z]+)*")


def read_lines(text: str, source: str, problems: InputErrors) -> Tree:
    """A whole hostfile or INI inventory. Ends of lines may be CRLF; the last may lack its end."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    sections = [_parse_section(line) for line in lines]
    tree = Tree(open=any(sections))
    group, kind = "", "hosts"
    for number, (line, section) in enumerate(zip(lines, sections, strict=True), 1):
        origin = Origin(source, number, len(line) - len(line.lstrip(_BLANK)) + 1)
        if section:
            group, kind = section
            if kind not in {"hosts", "children", "vars"}:
                problems.add(origin, "a section is [group], [group:children] or [group:vars]", value=line.strip(_BLANK))
            tree.group(group, origin, problems)
        elif line.strip(_BLANK)[:1] in {"", "#", ";"}:
            continue
        elif kind == "vars":
            _parse_group_variable(line, origin, tree, group, problems)
        elif kind == "children":
            _parse_child(line, origin, tree, group, problems)
        else:
            entries = read_host(line, origin=Origin(source, number, 1), problems=problems, open_keys=tree.open)
            for entry in entries:
                entry.section = group
            tree.add(entries, problems)
    return tree


def read_list(text: str, source: str, problems: InputErrors) -> Tree:
    """``a,b:4,node[01-16]``: host lines between commas, as in ``--hosts``. Comments and further lines are not known."""
    tree = Tree()
    for start, item in _split_items(text):
        if item.strip(_BLANK):
            origin = Origin(source, 1, start + 1)
            commas = "separate hosts with commas"
            tree.add(read_host(item, origin=origin, problems=problems, comments=False, apart=commas), problems)
    return tree


def read_host(
    line: str,
    *,
    origin: Origin,
    problems: InputErrors,
    open_keys: bool = False,
    comments: bool = True,
    apart: str = "write one host a line",
    words: Mapping[str, Word] = MappingProxyType({}),
) -> list[Entry]:
    """The hosts of one line. ``origin`` is that of its first character, ``words`` is what is known of them already,
    ``apart`` how several hosts are written here."""

    def at(column: int) -> Origin:
        return Origin(origin.file, origin.line, origin.column + column)

    start = len(line) - len(line.lstrip(_BLANK))
    end = next((i for i in range(start, len(line)) if line[i] in _BLANK or (comments and line[i] == "#")), len(line))
    host = Word(line[start:end], at(start))
    own = dict(words)
    for key, value in _parse_pairs(line, end, at, host, problems, comments=comments, apart=apart):
        set_key(own, key, value, problems, open_keys=open_keys)
    names = _expand_names(host, own, problems, ansible=open_keys)
    if "address" in own and len(names) > 1:
        problems.add(own["address"].origin, f"one address for {len(names)} hosts", value=own["address"].text)
        return []
    return [Entry(name, host.origin, dict(own)) for name in names]


def _parse_section(line: str) -> tuple[str, str] | None:
    """The group and kind of a section line; ``[fe80::1]`` and ``[01-16]`` are hosts."""
    text = line.strip(_BLANK)
    match = _SECTION.fullmatch(text)
    if not match or validators.ipv6(text.partition("]")[0][1:]):
        return None
    return match[1], match[2] or "hosts"


def _split_items(text: str) -> Iterator[tuple[int, str]]:
    """Splits at commas outside brackets, with the offset of each piece."""
    depth, start = 0, 0
    for i, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth <= 0:
            yield start, text[start:i]
            depth, start = 0, i + 1
    yield start, text[start:]


def _expand_names(word: Word, words: dict[str, Word], problems: InputErrors, *, ansible: bool) -> list[str]:
    """The host names a word like ``alice@node[1-4]:8`` stands for; its user and slots go to ``words``.

    What follows the colon is slots for MPI and a port for ``ansible``: there we refuse to guess.
    """
    host_text, column = word.text, word.origin.column
    before = len(problems)
    if "@" in host_text:
        user, _, host_text = host_text.partition("@")
        given = Word(user, word.origin)
        set_key(words, Word("user", word.origin), given, problems, open_keys=False)
        column += len(user) + 1
    origin = Origin(word.origin.file, word.origin.line, column)
    if why := validators.host_range(host_text):
        problems.add(origin, why, value=host_text)
        return []
    host, colon, slots = _split_slots(host_text)
    if colon:
        at = Origin(word.origin.file, word.origin.line, column + len(host) + 1)
        if validators.ipv6(host_text):
            problems.add(word.origin, f"an IPv6 address is written in brackets: [{host_text}]", value=host_text)
            return []
        if ansible:
            what = f"':{printable(slots)}' is a port in an Ansible inventory and slots in a hostfile"
            problems.add(at, what, value=host_text, hint="write port=N or slots=N")
        elif validators.slots(slots):
            hint = f"write port={slots} for an SSH port" if slots.isdigit() and not validators.port(slots) else None
            problems.add(at, validators.slots(slots) or "", value=host_text, hint=hint)
        else:
            set_key(words, Word("slots", at), Word(slots, at), problems, open_keys=False)
    names = _hosts(host, origin, problems)
    return names if len(problems) == before else []


def _split_slots(text: str) -> tuple[str, str, str]:
    """``host:n`` in two, at the first colon outside brackets, as MPICH does."""
    depth = 0
    for i, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == ":" and depth <= 0:
            return text[:i], ":", text[i + 1 :]
    return text, "", ""


def _hosts(text: str, origin: Origin, problems: InputErrors) -> list[str]:
    if text.startswith("[") and text.endswith("]") and text.count(":") > 1 and "[" not in text[1:]:
        if validators.ipv6(text[1:-1]):
            return [text[1:-1]]
        if not _RANGE.fullmatch(text[1:-1]):
            problems.add(origin, "host in brackets is not an IPv6 address", value=text)
            return []
    try:
        names = expand_ranges(text)
    except RangeError as error:
        problems.add(origin, str(error), value=text)
        return []
    for name in names:
        if why := validators.host(name):
            problems.add(origin, why, value=text)
            return []
    return names


def _parse_pairs(
    line: str, i: int, at: Callable[[int], Origin], host: Word, problems: InputErrors, *, comments: bool, apart: str
) -> Iterator[tuple[Word, Word]]:
    """The ``key=value`` words of a line from offset ``i`` on. Values may be quoted; nothing is ever expanded."""
    while i < len(line):
        if line[i] in _BLANK:
            i += 1
        elif comments and line[i] == "#":
            return
        elif key := _KEY.match(line, i):
            start = i = key.end()
            text = ""
            while piece := _PIECE.match(line, i):
                text += piece[1] or re.sub(r'\\(["\\])', r"\1", piece[2] or "") or piece[3] or ""
                i = piece.end()
            if i < len(line) and line[i] in "'\"":
                problems.add(at(i), "quote is not closed", value=line[i:])
                return
            yield Word(key[1], at(key.start())), Word(text, at(start))
        else:
            end = next((j for j in range(i, len(line)) if line[j] in _BLANK), len(line))
            bare = line[i:end]
            hint = f"write slots={bare}" if not validators.slots(bare) else None
            if not hint and not validators.host(bare) and not validators.host(host.text):
                named = host.text[:1].isdigit() and not bare[:1].isdigit()  # an address, then a name, as in /etc/hosts
                hint = f"write {bare} address={host.text}" if named else apart
            problems.add(at(i), "word is not key=value", value=bare, hint=hint)
            i = end


def _parse_group_variable(line: str, origin: Origin, tree: Tree, name: str, problems: InputErrors) -> None:
    """A line of ``[group:vars]``: the value reaches to the end of the line, as in Ansible."""
    group = tree.groups.get(name)
    start = origin.column - 1
    key = _KEY.match(line, start)
    if not key:
        problems.add(origin, "line is not key=value", value=line[start:])
        return
    value_text = line[key.end() :]
    quoted = _QUOTED.fullmatch(value_text)
    value = (quoted[1] or quoted[2] or "") if quoted else re.split(r"[ \t]#", value_text, maxsplit=1)[0].strip(_BLANK)
    if group is not None:
        at = Origin(origin.file, origin.line, key.end() + 1)
        set_key(group.words, Word(key[1], origin), Word(value, at), problems, open_keys=True)


def _parse_child(line: str, origin: Origin, tree: Tree, name: str, problems: InputErrors) -> None:
    group = tree.groups.get(name)
    child = re.split(r"[ \t]*#", line, maxsplit=1)[0].strip(_BLANK)
    if group is not None:
        group.children[child] = origin
