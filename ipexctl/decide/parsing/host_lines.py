"""Host lines: Intel MPI, MPICH, Open MPI, DeepSpeed, Ansible INI, plain lists, and our own keys.

Each line is read for itself, so dialects may be mixed. A line is a host (``user@host:slots``, with ranges) and then
``key=value`` words; ``#`` begins a comment. A line ``[group]`` makes the file an Ansible inventory."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ipexctl.decide.parsing import validators
from ipexctl.decide.parsing.host_entries import HostEntry, HostTree, Word
from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.decide.parsing.ranges import RangeError, expand_ranges
from ipexctl.model.errors import Origin
from ipexctl.model.text import printable

_BLANK = " \t"
_NONE: Mapping[str, Word] = {}
_SECTION = re.compile(r"\[[ \t]*([A-Za-z_][^\[\]:]*)(?::[ \t]*([A-Za-z]+)[ \t]*)?\][ \t]*(?:[#;].*)?")
_SSH_CONFIG = re.compile(r"(?im)^[ \t]*(?:Host(?:Name)?|Match|Include)(?:[ \t]*=[ \t]*|[ \t]+)[^=\s#][^=\n]*$")
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*")
_PIECE = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|(\{\{.{0,500}?\}\}|[^ \t'"]+)""")
_QUOTED = re.compile(r"""(?:'([^']*)'|"([^"]*)")[ \t]*(?:#.*)?""")
_RANGE = re.compile(r"[0-9a-zA-Z]+([-,:/][0-9a-zA-Z]+)*")
_SLOTS = re.compile(":[0-9]+$")
_WORD, _WORD_OR_COMMENT = re.compile(r"[ \t]*([^ \t]*)"), re.compile(r"[ \t]*([^ \t#]*)")


def read_host_lines(text: str, source: str, problems: InputErrors) -> HostTree:
    """Returns a whole hostfile or INI inventory. Ends of lines may be CRLF; the last may lack its end."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    sections = [parse_section(line) for line in lines]
    tree = HostTree(problems, any(sections), comments=True, apart="write one host a line")
    if not tree.open and _SSH_CONFIG.search(text):
        hint = "write the names of its hosts, one a line: ipexctl reads ~/.ssh/config by itself"
        problems.add(Origin(source, 1, 1), "the file is an ssh_config, not a hostfile", hint=hint)
        return tree
    group, kind = "", "hosts"
    for number, (line, section) in enumerate(zip(lines, sections, strict=True), 1):
        origin = Origin(source, number, len(line) - len(line.lstrip(_BLANK)) + 1)
        if section:
            group, kind = section
            if kind not in {"hosts", "children", "vars"}:
                problems.add(origin, "a section is [group], [group:children] or [group:vars]", value=line.strip(_BLANK))
            tree.get_or_add_group(group, origin)
        elif line.strip(_BLANK)[:1] in {"", "#", ";"}:
            continue
        elif kind == "vars":
            _parse_group_variable(tree, line, origin, group)
        elif kind == "children" and group in tree.groups:
            child = line.partition("#")[0].strip(_BLANK)
            tree.groups[group].children[child] = origin
        elif kind != "children":
            read_host_line(tree, line, Origin(source, number, 1), group)
    return tree


def read_host_list(text: str, source: str, problems: InputErrors) -> HostTree:
    """``a,b:4,node[01-16]``: host lines between commas, as in ``--hosts``. Comments and further lines are not known."""
    tree = HostTree(problems, apart="separate hosts with commas")
    start = 0
    for end in [*_find_outside_brackets(text, ","), len(text)]:
        if text[start:end].strip(_BLANK):
            read_host_line(tree, text[start:end], Origin(source, 1, start + 1))
        start = end + 1
    return tree


def _find_outside_brackets(text: str, wanted: str) -> Iterator[int]:
    depth = 0
    for i, char in enumerate(text):
        depth = max(0, depth + (char == "[") - (char == "]"))
        if char == wanted and not depth:
            yield i


def read_host_line(
    tree: HostTree, line: str, origin: Origin, section: str = "", words: Mapping[str, Word] = _NONE
) -> None:
    """Adds the hosts of one line. ``origin`` is that of its first character, ``words`` are their variables from
    elsewhere. A line with a variable of Ansible may have others that are not ours."""
    match = (_WORD_OR_COMMENT if tree.comments else _WORD).match(line)
    assert match is not None  # the pattern matches any text
    host = Word(match[1], _shift_origin(origin, match.start(1)))
    if validators.TEMPLATE.search(host.text):
        tree.problems.add(host.origin, "host is a template, and templates are not evaluated", value=line.strip(_BLANK))
        return
    own = dict(words)
    pairs = list(_parse_pairs(tree, line, match.end(), origin, host))
    open_keys = any(key.text.startswith("ansible_") for key, _ in pairs)
    for key, value in pairs:
        tree.set_key(own, key, value, open_keys)
    names = _expand_names(tree, host, own)
    address = next((word for key, word in own.items() if validators.ANSIBLE.get(key, key) == "address"), None)
    if address and len(names) > 1:
        tree.problems.add(address.origin, f"one address for {len(names)} hosts", value=address.text)
        return
    for name in names:
        tree.add_entry(HostEntry(name, host.origin, dict(own), section))


def _shift_origin(origin: Origin, columns: int) -> Origin:
    return replace(origin, column=origin.column + columns)


def parse_section(line: str) -> tuple[str, str] | None:
    """Returns the group and the kind of a line ``[group:kind]`` of an INI inventory; None for another line."""
    text = line.strip(_BLANK)
    match = _SECTION.fullmatch(text)
    if not match or validators.is_ipv6(text.partition("]")[0][1:]):
        return None
    return match[1].rstrip(_BLANK), match[2] or "hosts"


def _expand_names(tree: HostTree, word: Word, words: dict[str, Word]) -> list[str]:
    """Returns the host names a word like ``alice@node[1-4]:8`` stands for; its user and slots go to ``words``. What
    follows the colon is slots for MPI and a port for Ansible: in its inventories we refuse to guess."""
    problems, origin, host_text = tree.problems, word.origin, word.text
    before = len(problems)
    if "://" in host_text:
        problems.add(origin, "host is a URL", value=host_text, hint="write user@host, and port=N after it")
        return []
    if "@" in host_text:
        user, _, host_text = host_text.rpartition("@")
        tree.set_key(words, Word("user", origin), Word(user, origin))
        origin = _shift_origin(origin, len(user) + 1)
    if why := validators.host_range(host_text):
        problems.add(origin, why, value=host_text)
        return []
    host = host_text
    if (colon := next(_find_outside_brackets(host_text, ":"), None)) is not None:  # the first one, as in MPICH
        host, slots, at = host_text[:colon], host_text[colon + 1 :], _shift_origin(origin, colon + 1)
        if validators.is_ipv6(host_text):
            problems.add(word.origin, f"an IPv6 address is written in brackets: [{host_text}]", value=host_text)
            return []
        if tree.open:
            what = f"':{printable(slots)}' is a port in an Ansible inventory and slots in a hostfile"
            problems.add(at, what, value=host_text, hint="write port=N or slots=N")
        elif slots == "22" and host_text != word.text:  # user@host:22, as rsync and others write it
            what = "':22' behind a user may be slots or the port of SSH"
            problems.add(at, what, value=word.text, hint="write port=22 or slots=22")
        elif why := validators.slots(slots):
            hint = tree.apart if "," in slots else None
            if slots.isdigit() and not validators.port(slots):
                hint = f"write port={slots} for an SSH port"
            problems.add(at, why, value=host_text, hint=hint)
        else:
            tree.set_key(words, Word("slots", at), Word(slots, at))
    names = _expand_host(tree, host, origin)
    return names if len(problems) == before else []


def _expand_host(tree: HostTree, text: str, origin: Origin) -> list[str]:
    problems = tree.problems
    if text.startswith("[") and text.endswith("]") and text.count(":") > 1 and "[" not in text[1:]:
        if validators.is_ipv6(text[1:-1]):
            return [text[1:-1]]
        if not _RANGE.fullmatch(text[1:-1]):
            problems.add(origin, "host in brackets is not an IPv6 address", value=text)
            return []
    try:
        names = expand_ranges(text)
    except RangeError as error:
        problems.add(origin, str(error), value=text)
        return []
    if why := next(filter(None, map(validators.host, names)), None):
        problems.add(origin, why, value=text, hint=tree.apart if "," in text else None)
        return []
    return names


def _parse_pairs(tree: HostTree, line: str, i: int, origin: Origin, host: Word) -> Iterator[tuple[Word, Word]]:
    """Yields the ``key=value`` words of a line from offset ``i`` on. Values may be quoted; nothing is ever expanded."""
    while i < len(line):
        if line[i] in _BLANK:
            i += 1
        elif tree.comments and line[i] == "#":
            return
        elif key := _KEY.match(line, i):
            start = i = key.end()
            text = ""
            while piece := _PIECE.match(line, i):
                text += piece[1] or re.sub(r'\\(["\\])', r"\1", piece[2] or "") or piece[3] or ""
                i = piece.end()
            if i < len(line) and line[i] in "'\"":
                tree.problems.add(_shift_origin(origin, i), "quote is not closed", value=line[i:])
                return
            yield Word(key[1], _shift_origin(origin, key.start())), Word(text, _shift_origin(origin, start))
        else:
            bare = re.split("[ \t]", line[i:], maxsplit=1)[0]
            hint = f"write slots={bare}" if not validators.slots(bare) else None
            if not hint and not any(validators.host(_SLOTS.sub("", text)) for text in (bare, host.text)):
                named = host.text[:1].isdigit() and not bare[:1].isdigit()  # an address, then names, as in /etc/hosts
                hint = "write a name and its address as NAME address=ADDRESS" if named else tree.apart
            if "," in host.text:
                hint = tree.apart
            tree.problems.add(_shift_origin(origin, i), "word is not key=value", value=bare, hint=hint)
            i += len(bare)


def _parse_group_variable(tree: HostTree, line: str, origin: Origin, group: str) -> None:
    """A line of ``[group:vars]``: the value reaches to the end of the line, as in Ansible."""
    start = origin.column - 1
    key = _KEY.match(line, start)
    if not key:
        tree.problems.add(origin, "line is not key=value", value=line[start:])
    elif group in tree.groups:
        text = line[key.end() :]
        quoted = _QUOTED.fullmatch(text)
        value = (quoted[1] or quoted[2] or "") if quoted else re.split(r"[ \t]#", text, maxsplit=1)[0].strip(_BLANK)
        at = replace(origin, column=key.end() + 1)
        tree.set_key(tree.groups[group].words, Word(key[1], origin), Word(value, at))
