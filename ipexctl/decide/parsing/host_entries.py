"""The common form of all dialects: host entries and groups, as words with their origin."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ipexctl.decide.parsing import validators
from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.decide.parsing.ranges import MAX_HOSTS
from ipexctl.decide.parsing.ssh_arguments import HOST_KEY_OPTIONS, read_ssh_arguments
from ipexctl.model.errors import Origin
from ipexctl.model.hosts import Host, Inventory
from ipexctl.model.json_values import Record
from ipexctl.model.text import group_pairs, join_names, printable

MAX_GROUPS = 1024
_WORD_LIMIT = 5_000_000
EVERYONE = frozenset({"all", "ungrouped"})
_SSH = ("ssh", "paramiko", "paramiko_ssh", "libssh", "openssh")
_CONNECTIONS = {"local": "yes", **dict.fromkeys(_SSH, "no")}
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\+-]{0,63}")
_PRIORITY = "ansible_group_priority"
_DOUBLE_HINT = (
    "name each host once: several ranks on it are slots=N (a file of a PBS job: --hosts pbs), several servers at one "
    "address NAME address=… port=…"
)


class Word(Record):
    text: str
    origin: Origin


@dataclass(slots=True)
class HostEntry:
    """A host at one place of the input; ``section`` is the group or list of that place."""

    name: str
    origin: Origin
    words: dict[str, Word] = field(default_factory=dict)
    section: str = ""


@dataclass(slots=True)
class Group:
    origin: Origin
    words: dict[str, Word] = field(default_factory=dict)
    children: dict[str, Origin] = field(default_factory=dict)


@dataclass(slots=True)
class HostTree:
    """What an input holds, and the errors in it. ``open``: unknown keys belong to Ansible and are kept; ``comments``: a
    ``#`` begins one; ``apart`` is how several hosts are written here."""

    problems: InputErrors
    open: bool = False
    comments: bool = False
    apart: str = "give each host an item of its own"
    entries: list[HostEntry] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    size: int = 0  # words of all hosts, at their places and as they are merged

    def add_entry(self, entry: HostEntry) -> None:
        if len(self.entries) >= MAX_HOSTS:
            self.problems.add(entry.origin, f"inventory holds more than {MAX_HOSTS} hosts")
            self.problems.raise_if_any()  # at once: expanding on could take hours
        self.entries.append(entry)
        self.count_words(entry.words, entry.origin)

    def count_words(self, words: Mapping[str, Word], origin: Origin) -> None:
        """Adds the words of one more host to those of all; raises `UsageError` where these are too many."""
        self.size += len(words)
        if self.size > _WORD_LIMIT:
            self.problems.add(origin, f"hosts have more than {_WORD_LIMIT:,} variables in all")
            self.problems.raise_if_any()

    def get_or_add_group(self, name: str, origin: Origin) -> Group | None:
        """Returns the group of that name, made on first mention."""
        if name in self.groups:
            return self.groups[name]
        if why := validators.group(name):
            self.problems.add(origin, why, value=name)
        elif len(self.groups) >= MAX_GROUPS:
            self.problems.add(origin, f"inventory holds more than {MAX_GROUPS} groups")
        else:
            self.groups[name] = Group(origin)
        return self.groups.get(name)

    def set_key(self, words: dict[str, Word], key: Word, value: Word, open_keys: bool = False) -> None:
        """Stores one ``key=value`` under its canonical name, or adds its errors. ``open_keys``: as ``open``. Ansible's
        names stay: which of several counts is known when all are."""
        is_open, name, text, add = self.open or open_keys, key.text, value.text, self.problems.add
        if not is_open:
            name = validators.ALIASES.get(name, name)
        meant = validators.ANSIBLE.get(name, name)
        foreign = meant not in validators.KEYS
        same = {name} if self.open else {meant, *(other for other, of in validators.ANSIBLE.items() if of == meant)}
        if name in {"ansible_password", "ansible_ssh_pass", "ansible_ssh_password", "password"}:
            what = f"'{key.text}' is not supported: passwords do not belong into inventories"
            add(key.origin, what, hint="use a key (key=~/.ssh/id_ed25519) or ssh-agent")
        elif foreign and validators.SECRET.search(name):
            return  # a secret of another tool: neither kept nor shown
        elif foreign and is_open and name not in validators.SSH_ARGUMENTS and "\n" in text:
            return  # no hostfile holds it, and no key of ours has several lines
        elif foreign and not (is_open or name.startswith("ansible_")):
            add(key.origin, f"unknown key '{printable(key.text)}'", near=(name, validators.KEYS))
        elif foreign and validators.group(name):  # a name from a YAML file can be any text
            add(key.origin, "key must be letters, digits, '_', '.', '-'", value=key.text)
        elif same & words.keys():
            add(key.origin, f"{meant} is given twice", value=f"{key.text}={text}")
        elif not (foreign and name not in validators.SSH_ARGUMENTS) and validators.TEMPLATE.search(text):
            what = f"{key.text} is a template, and templates are not evaluated"
            add(value.origin, what, value=text, hint="write the value itself")
        elif is_open and meant == "venv" and validators.environment(text):
            return  # another tool's: a name, or a path from a directory that is not ours
        else:
            self._set_value(words, name, value, key)

    def _set_value(self, words: dict[str, Word], name: str, value: Word, key: Word) -> None:
        text, meant = value.text, validators.ANSIBLE.get(name, name)
        if name == "ansible_connection":
            bare = text.removeprefix("ansible.").removeprefix("builtin.").removeprefix("legacy.")
            text = _CONNECTIONS.get(bare.removeprefix("netcommon."), "")
            if bare == "smart":
                return
            if not text:
                self.problems.add(value.origin, "ansible_connection must be ssh or local", value=value.text)
                return
        if why := validators.KEYS.get(meant, validators.value)(_strip_ipv6_brackets(meant, text)):
            elsewhere = meant == "user" and _ACCOUNT.fullmatch(text)  # of a domain, which an ssh_config may name
            hint = f"write it into ~/.ssh/config, below the Host of this host: User {text}" if elsewhere else None
            self.problems.add(value.origin, why, value=text or f"{key.text}=", hint=hint)
        else:
            words[name] = Word(text.rstrip("/") or "/" if meant == "venv" else text, value.origin)


def _strip_ipv6_brackets(key: str, text: str) -> str:
    """Returns an address may be written with the brackets that IPv6 needs elsewhere."""
    return text[1:-1] if key == "address" and text[:1] == "[" and text[-1:] == "]" else text


Beside = Mapping[tuple[str, str], Mapping[str, Word]]
"""Variables from files of their own, by kind ("group" or "host") and name."""


def assemble_inventory(tree: HostTree, source: str, beside: Beside = MappingProxyType({})) -> Inventory:
    """Hosts in the order of their first mention, group words below their own. Errors go to the tree's ``problems``."""
    problems = tree.problems
    merged = _merge_entries(tree)
    depth, above = _order_groups(tree.groups, problems)
    hosts, ignored = [], list[tuple[str, str]]()
    inherited: dict[frozenset[str], dict[str, Word]] = {}  # by groups: the hosts of the same have the same
    for entry, sections in merged:
        groups = {name for section in sections for name in (section, *above.get(section, ()))} - {""}
        of_host = frozenset(groups | {"all"} if groups - EVERYONE else EVERYONE)
        if of_host not in inherited:
            inherited[of_host] = _join_group_words(tree, beside, of_host, depth)
        words = inherited[of_host] | entry.words
        words |= beside.get(("host", entry.name), {})
        tree.count_words(words, entry.origin)
        ignored += ((option, entry.name) for option in dict.fromkeys(resolve_words(words)))
        hosts.append(_make_host(entry, words, tuple(sorted(groups - EVERYONE)), problems))
    if not hosts and not problems:
        problems.add(Origin(source), "names no host")
    warnings = tuple(_describe_ignored(option, names) for option, names in group_pairs(ignored).items())
    empty = {*tree.groups} - {group for host in hosts for group in host.groups} - EVERYONE
    return Inventory(tuple(hosts), source, warnings=warnings, empty_groups=tuple(sorted(empty)))


def _join_group_words(
    tree: HostTree, beside: Beside, groups: frozenset[str], depth: Mapping[str, int]
) -> dict[str, Word]:
    """The variables of these groups, as in Ansible: deeper groups win, then the alphabet."""
    ranks = {name: (depth.get(name, name != "all"), _read_priority(tree, name), name) for name in groups}
    words: dict[str, Word] = {}
    for name in sorted(groups, key=ranks.__getitem__):
        words |= tree.groups[name].words if name in tree.groups else {}
    for name in sorted(groups, key=ranks.__getitem__):
        words |= beside.get(("group", name), {})
    words.pop(_PRIORITY, None)
    return words


def _read_priority(tree: HostTree, group: str) -> int:
    """Returns what decides between groups of one depth: the higher number wins."""
    word = tree.groups[group].words.get(_PRIORITY) if group in tree.groups else None
    return int(word.text) if word and re.fullmatch(r"-?[0-9]{1,9}", word.text) else 1


def _describe_ignored(option: str, hosts: Sequence[str]) -> str:
    """Returns one sentence about an option of ssh that an inventory names in vain."""
    of = f"{printable(option, 80)} for {join_names(hosts, 1)} has no effect"
    if option.partition(" ")[0].lower() in HOST_KEY_OPTIONS:
        return f"{of}: host keys are always checked (--accept-new-host-keys records new ones)"
    return f"{of}: put it into ~/.ssh/config"


def resolve_words(words: dict[str, Word]) -> tuple[str, ...]:
    """Replaces Ansible's names by ours, which they beat, and its options of ssh by what they say of the host. Returns
    the options that have no effect."""
    for name, meant in validators.ANSIBLE.items():
        if name in words:
            words[meant] = words.pop(name)
    ignored: list[str] = []
    for name in validators.SSH_ARGUMENTS:
        if name not in words:
            continue
        values, without_effect = read_ssh_arguments(words[name].text)
        refused = [key for key, text in values.items() if validators.KEYS[key](text)]
        unused = [*without_effect, *(f"{key} in {name}" for key in refused)]
        for key, text in values.items():
            if key not in refused:
                words.setdefault(key, Word(text, words[name].origin))
        ignored += unused
        if not unused:
            del words[name]
    return (*ignored, *(["ansible_ssh_executable"] if "ansible_ssh_executable" in words else []))


def _make_host(entry: HostEntry, words: dict[str, Word], groups: tuple[str, ...], problems: InputErrors) -> Host:
    values = {key: word.text for key, word in words.items()}
    slots, max_slots = values.pop("slots", None), values.get("max_slots")
    if slots and max_slots and int(max_slots) < int(slots):
        problems.add(words["max_slots"].origin, f"max_slots is less than slots of {entry.name}", value=max_slots)
    if "local" in values:
        values["local"] = "yes" if values["local"].lower() in {"yes", "true", "1"} else "no"
    return Host(
        name=entry.name,
        address=_strip_ipv6_brackets("address", values.pop("address", entry.name)),
        user=values.pop("user", None),
        port=int(values.pop("port", 0)) or None,
        slots=int(slots or max_slots or 0) or None,  # as Open MPI
        key=values.pop("key", None),
        groups=groups,
        vars=values,
        origin=entry.origin,
    )


def _merge_entries(tree: HostTree) -> list[tuple[HostEntry, list[str]]]:
    """Returns one entry a host, whose words must not contradict each other. Twice in one section is an error, but for
    variables that an inventory adds to a host."""
    problems = tree.problems
    merged: dict[str, tuple[HostEntry, list[str]]] = {}
    first: dict[tuple[str, str], Origin] = {}
    for entry in tree.entries:
        same = entry.name.lower()
        before = first.get((same, entry.section))
        if before and (before == entry.origin or not (tree.open and entry.words)):
            if before == entry.origin:
                where = "by one range"
            else:
                where = f"first in line {before.line}, column {before.column}"
            problems.add(entry.origin, f"{entry.name} is listed twice, {where}", hint=_DOUBLE_HINT)
            continue
        first[same, entry.section] = entry.origin
        if same not in merged:
            merged[same] = (HostEntry(entry.name, entry.origin, dict(entry.words)), [entry.section])
            continue
        known, sections = merged[same]
        sections.append(entry.section)
        for key, word in entry.words.items():
            if known.words.setdefault(key, word).text != word.text:
                other = known.words[key].origin
                what = f"{key} of {entry.name} contradicts line {other.line}, column {other.column}"
                problems.add(word.origin, what, value=word.text)
    return list(merged.values())


def _order_groups(groups: dict[str, Group], problems: InputErrors) -> tuple[dict[str, int], dict[str, frozenset[str]]]:
    """How deep each group lies below ``all``, and the groups above it. Without recursion: depth is the user's."""
    parents: dict[str, set[str]] = {name: set() for name in groups}
    for name, group in groups.items():
        for child, origin in group.children.items():
            if child in groups:
                parents[child].add(name)
            else:
                problems.add(origin, "group is not defined", value=child, near=(child, groups))
    depth: dict[str, int] = {}
    above: dict[str, frozenset[str]] = {}
    waiting = dict(parents)
    while ready := [name for name, over in waiting.items() if over <= depth.keys()]:
        for name in ready:
            over = waiting.pop(name)
            depth[name] = 1 + max((depth[parent] for parent in over), default=-1 if name == "all" else 0)
            above[name] = frozenset(over).union(*(above[parent] for parent in over))
    for name in waiting:
        problems.add(groups[name].origin, "group is its own ancestor", value=name)
    return depth, above
