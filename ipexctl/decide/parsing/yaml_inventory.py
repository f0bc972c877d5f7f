"""Ansible inventories in YAML: groups with ``hosts``, ``children`` and ``vars``."""

import shlex
from collections.abc import Iterator

from ipexctl.decide.parsing import validators, yaml_nodes
from ipexctl.decide.parsing.host_entries import Group, HostTree, Word
from ipexctl.decide.parsing.host_lines import read_host_line
from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.decide.parsing.yaml_nodes import NULL, Map, Node, Scalar, Seq, is_null, name_kind
from ipexctl.model.errors import Origin
from ipexctl.model.text import printable

VAULT = "$ANSIBLE_VAULT;"
"""How a file begins that ansible-vault encrypted."""

_PARTS = ("hosts", "children", "vars")


def read_yaml(text: str, source: str, problems: InputErrors) -> HostTree:
    node = yaml_nodes.read_yaml_node(text, source, problems, lenient=True)
    plugin = node.get("plugin") if isinstance(node, Map) else None
    if isinstance(plugin, Scalar):
        name = f"Ansible's inventory plugin {printable(plugin.text, 80)}"
        refuse_program(source, plugin.origin, f"this is a configuration of {name}: plugins are not run", problems)
        return HostTree(problems)
    return HostTree(problems) if node is None else read_node(node, problems)


def refuse_program(source: str, origin: Origin, what: str, problems: InputErrors) -> None:
    """Adds the error of an inventory whose hosts only Ansible can find out, with what makes a file of them."""
    problems.add(origin, what, hint=f"ansible-inventory -i {shlex.quote(printable(source, 300))} --list > hosts.json")


def read_variables(text: str, source: str, problems: InputErrors) -> dict[str, Word]:
    """Returns the variables of one file of ``group_vars/`` or ``host_vars/``."""
    words: dict[str, Word] = {}
    if text.startswith(VAULT):
        hint = "an inventory in a directory of its own is read without it"
        problems.add(Origin(source, 1, 1), "this file is encrypted with ansible-vault, and cannot be read", hint=hint)
        return words
    node = yaml_nodes.read_yaml_node(text.removeprefix("\ufeff"), source, problems, lenient=True)
    if isinstance(node, Map):
        _read_variables(HostTree(problems, open=True), node, words)
    elif node is not None:
        problems.add(node.origin, f"variables must be a mapping, not {name_kind(node)}")
    return words


def read_node(node: Node, problems: InputErrors) -> HostTree:
    """Returns a mapping of groups, or a list of host lines."""
    tree = HostTree(problems, open=isinstance(node, Map))
    if isinstance(node, Map):
        for name, body in _list_pairs(tree, node):
            if name.text != "_meta":
                _read_group(tree, name, body)
        meta = node.get("_meta")  # of ``ansible-inventory --list``: variables of hosts that the groups name
        hosts = meta.get("hostvars") if isinstance(meta, Map) else None
        if isinstance(hosts, Map):
            _read_hosts(tree, hosts, "")
        elif meta is not None:
            problems.add(meta.origin, "_meta must hold the mapping hostvars")
    elif isinstance(node, Seq):
        _read_hosts(tree, node, "")
    else:
        problems.add(node.origin, f"inventory must be a mapping of groups, not {name_kind(node)}")
    return tree


def _list_pairs(tree: HostTree, node: Map) -> Iterator[tuple[Scalar, Node]]:
    """The pairs of a mapping that this reader knows; what a merge key brings is not among them, which is an error."""
    for key, value in node.pairs:
        if yaml_nodes.is_merge(key):
            tree.problems.add(key.origin, yaml_nodes.MERGE)
        else:
            yield key, value


def _read_group(tree: HostTree, name: Scalar, body: Node) -> None:
    group = tree.get_or_add_group(name.text, name.origin)
    if group is None or is_null(body):
        return
    if not isinstance(body, Map):
        what = f"group '{printable(name.text)}' must hold hosts, children or vars, not {name_kind(body)}"
        hint = "write a list of hosts below 'hosts:' of a group: all: {hosts: [node0, node1]}"
        tree.problems.add(body.origin, what, hint=hint if isinstance(body, Seq) else None)
        return
    for key, value in _list_pairs(tree, body):
        if key.text not in _PARTS:
            what = f"unknown key '{printable(key.text)}' of a group"
            tree.problems.add(key.origin, what, near=(key.text, _PARTS))
        elif is_null(value):
            continue
        elif key.text == "hosts":
            _read_hosts(tree, value, name.text)
        elif key.text == "children":
            _read_children(tree, value, group)
        elif isinstance(value, Map):
            _read_variables(tree, value, group.words)
        else:
            tree.problems.add(value.origin, f"{key.text} must be a mapping, not {name_kind(value)}")


def _read_children(tree: HostTree, value: Node, group: Group) -> None:
    """Groups below a group, or only their names, as ``ansible-inventory --list`` writes them."""
    if isinstance(value, Map):
        children = value.pairs
    elif isinstance(value, Seq) and all(isinstance(item, Scalar) for item in value.items):
        children = tuple((item, NULL) for item in value.items if isinstance(item, Scalar))
    else:
        tree.problems.add(value.origin, f"children must be a mapping of groups, not {name_kind(value)}")
        return
    for child, body in children:
        group.children[child.text] = child.origin
        _read_group(tree, child, body)


def _read_hosts(tree: HostTree, value: Node, group: str) -> None:
    if isinstance(value, Map):
        for name, body in _list_pairs(tree, value):
            own: dict[str, Word] = {}
            if isinstance(body, Map):
                _read_variables(tree, body, own)
            elif not is_null(body):
                tree.problems.add(body.origin, f"variables of a host must be a mapping, not {name_kind(body)}")
            read_host_line(tree, name.text, name.origin, group, own)
        return
    for item in value.items if isinstance(value, Seq) else (value,):
        if isinstance(item, Scalar) and not item.is_null:
            read_host_line(tree, item.text, item.origin, group)
        else:
            tree.problems.add(item.origin, f"host must be a line such as 'node1 slots=4', not {name_kind(item)}")


def _read_variables(tree: HostTree, value: Map, words: dict[str, Word]) -> None:
    """Variables, as text. Lists and mappings are Ansible's own business: none of ours is one."""
    for key, node in _list_pairs(tree, value):
        if isinstance(node, Scalar):
            if not node.is_null:
                tree.set_key(words, Word(key.text, key.origin), Word(node.text, node.origin))
        elif validators.ANSIBLE.get(key.text, key.text) in (*validators.KEYS, *validators.SSH_ARGUMENTS):
            tree.problems.add(node.origin, f"{key.text} must be a single value, not {name_kind(node)}")
