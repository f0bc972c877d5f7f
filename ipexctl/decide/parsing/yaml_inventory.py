"""Ansible inventories in YAML: groups with ``hosts``, ``children`` and ``vars``."""

from __future__ import annotations

from ipexctl.decide.parsing import validators, yaml_nodes
from ipexctl.decide.parsing.host_entries import Group, Tree, Word, set_key
from ipexctl.decide.parsing.host_lines import read_host
from ipexctl.decide.parsing.input_errors import InputErrors, suggest_nearest
from ipexctl.decide.parsing.yaml_nodes import Map, Node, Scalar, Seq
from ipexctl.model.text import printable

_PARTS = ("hosts", "children", "vars")


def read_yaml(text: str, source: str, problems: InputErrors) -> Tree:
    node = yaml_nodes.read_yaml_node(text, source, problems)
    return Tree() if node is None else read_node(node, problems)


def read_node(node: Node, problems: InputErrors) -> Tree:
    """A mapping of groups, or a list of host lines."""
    tree = Tree(open=True)
    if isinstance(node, Map):
        for name, body in node.pairs:
            if name.text != "_meta":
                _group(name, body, tree, problems)
        _meta(node.get("_meta"), tree, problems)
    elif isinstance(node, Seq):
        tree.open = False
        _host_list(node, tree, "", problems)
    else:
        problems.add(node.origin, "inventory must be a mapping of groups", value=node.text)
    return tree


def _group(name: Scalar, body: Node, tree: Tree, problems: InputErrors) -> None:
    group = tree.group(name.text, name.origin, problems)
    if group is None or (isinstance(body, Scalar) and body.is_null):
        return
    if not isinstance(body, Map):
        problems.add(
            body.origin,
            f"group '{printable(name.text)}' must hold hosts, children or vars, not {yaml_nodes.kind(body)}",
        )
        return
    for key, value in body.pairs:
        if key.text not in _PARTS:
            problems.add(
                key.origin, f"unknown key '{printable(key.text)}' of a group{suggest_nearest(key.text, _PARTS)}"
            )
        elif isinstance(value, Scalar) and value.is_null:
            continue
        elif key.text == "hosts":
            _hosts(value, tree, name.text, problems)
        elif key.text == "children":
            _children(value, group, tree, problems)
        elif not isinstance(value, Map):
            problems.add(value.origin, f"{key.text} must be a mapping, not {yaml_nodes.kind(value)}")
        else:
            _words(value, group.words, problems)


def _children(value: Node, group: Group, tree: Tree, problems: InputErrors) -> None:
    """Groups below a group, or only their names, as ``ansible-inventory --list`` writes them."""
    if isinstance(value, Map):
        for child, body in value.pairs:
            group.children[child.text] = child.origin
            _group(child, body, tree, problems)
    elif isinstance(value, Seq) and all(isinstance(item, Scalar) for item in value.items):
        for item in value.items:
            if isinstance(item, Scalar):
                group.children[item.text] = item.origin
                tree.group(item.text, item.origin, problems)
    else:
        problems.add(value.origin, f"children must be a mapping of groups, not {yaml_nodes.kind(value)}")


def _meta(node: Node | None, tree: Tree, problems: InputErrors) -> None:
    """``_meta: {hostvars: …}`` of ``ansible-inventory --list``: the variables of hosts that the groups name."""
    hosts = node.get("hostvars") if isinstance(node, Map) else None
    if isinstance(hosts, Map):
        _hosts(hosts, tree, "", problems)
    elif node is not None:
        problems.add(node.origin, "_meta must hold the mapping hostvars")


def _hosts(value: Node, tree: Tree, group: str, problems: InputErrors) -> None:
    if isinstance(value, Map):
        for name, body in value.pairs:
            own: dict[str, Word] = {}
            if isinstance(body, Map):
                _words(body, own, problems)
            elif not (isinstance(body, Scalar) and body.is_null):
                problems.add(body.origin, f"variables of a host must be a mapping, not {yaml_nodes.kind(body)}")
            entries = read_host(
                name.text, origin=name.origin, problems=problems, open_keys=True, comments=False, words=own
            )
            for entry in entries:
                entry.section = group
            tree.add(entries, problems)
    elif isinstance(value, Seq):
        _host_list(value, tree, group, problems)
    else:
        _host_list(Seq((value,), value.origin), tree, group, problems)


def _host_list(value: Seq, tree: Tree, group: str, problems: InputErrors) -> None:
    for item in value.items:
        if not isinstance(item, Scalar) or item.is_null:
            problems.add(item.origin, f"host must be a line such as 'node1 slots=4', not {yaml_nodes.kind(item)}")
            continue
        entries = read_host(
            item.text,
            origin=item.origin,
            problems=problems,
            open_keys=tree.open,
            comments=False,
            apart="give each host an item of its own",
        )
        for entry in entries:
            entry.section = group
        tree.add(entries, problems)


def _words(value: Map, words: dict[str, Word], problems: InputErrors) -> None:
    """Variables, as text. Lists and mappings are Ansible's own business: none of ours is one."""
    for key, node in value.pairs:
        if isinstance(node, Scalar):
            if not node.is_null:
                set_key(words, Word(key.text, key.origin), Word(node.text, node.origin), problems, open_keys=True)
        elif validators.ALIASES.get(key.text, key.text) in validators.KEYS:
            problems.add(node.origin, f"{key.text} must be a single value, not {yaml_nodes.kind(node)}")
