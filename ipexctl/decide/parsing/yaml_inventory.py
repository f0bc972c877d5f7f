"""Ansible inventories in YAML: groups with ``hosts``, ``children`` and ``vars``."""

from ipexctl.decide.parsing import validators, yaml_nodes
from ipexctl.decide.parsing.host_entries import Group, Tree, Word
from ipexctl.decide.parsing.host_lines import read_host_line
from ipexctl.decide.parsing.input_errors import InputErrors, suggest_nearest
from ipexctl.decide.parsing.yaml_nodes import NULL, Map, Node, Scalar, Seq, is_null, name_kind
from ipexctl.model.text import printable

_PARTS = ("hosts", "children", "vars")


def read_yaml(text: str, source: str, problems: InputErrors) -> Tree:
    node = yaml_nodes.read_yaml_node(text, source, problems)
    return Tree(problems) if node is None else read_node(node, problems)


def read_node(node: Node, problems: InputErrors) -> Tree:
    """A mapping of groups, or a list of host lines."""
    tree = Tree(problems, open=isinstance(node, Map))
    if isinstance(node, Map):
        for name, body in node.pairs:
            if name.text != "_meta":
                _read_group(tree, name, body)
        _read_meta(tree, node.get("_meta"))
    elif isinstance(node, Seq):
        _read_hosts(tree, node, "")
    else:
        problems.add(node.origin, "inventory must be a mapping of groups", value=node.text)
    return tree


def _read_group(tree: Tree, name: Scalar, body: Node) -> None:
    group = tree.get_or_add_group(name.text, name.origin)
    if group is None or is_null(body):
        return
    if not isinstance(body, Map):
        what = f"group '{printable(name.text)}' must hold hosts, children or vars, not {name_kind(body)}"
        tree.problems.add(body.origin, what)
        return
    for key, value in body.pairs:
        if key.text not in _PARTS:
            what = f"unknown key '{printable(key.text)}' of a group{suggest_nearest(key.text, _PARTS)}"
            tree.problems.add(key.origin, what)
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


def _read_children(tree: Tree, value: Node, group: Group) -> None:
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


def _read_meta(tree: Tree, node: Node | None) -> None:
    """``_meta: {hostvars: …}`` of ``ansible-inventory --list``: the variables of hosts that the groups name."""
    hosts = node.get("hostvars") if isinstance(node, Map) else None
    if isinstance(hosts, Map):
        _read_hosts(tree, hosts, "")
    elif node is not None:
        tree.problems.add(node.origin, "_meta must hold the mapping hostvars")


def _read_hosts(tree: Tree, value: Node, group: str) -> None:
    """Hosts with their variables, or host lines."""
    if isinstance(value, Map):
        for name, body in value.pairs:
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


def _read_variables(tree: Tree, value: Map, words: dict[str, Word]) -> None:
    """Variables, as text. Lists and mappings are Ansible's own business: none of ours is one."""
    for key, node in value.pairs:
        if isinstance(node, Scalar):
            if not node.is_null:
                tree.set_key(words, Word(key.text, key.origin), Word(node.text, node.origin))
        elif validators.ALIASES.get(key.text, key.text) in validators.KEYS:
            tree.problems.add(node.origin, f"{key.text} must be a single value, not {name_kind(node)}")
