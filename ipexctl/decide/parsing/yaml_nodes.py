"""YAML as plain nodes that know their line and column. Nothing is ever constructed from a tag.

The text stays the text: ``3.10`` is "3.10" and ``yes`` is "yes" until the schema that wants a number or a boolean
converts it. Tags, anchors and aliases, several documents, duplicate keys and deep nesting are refused."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ipexctl.decide.parsing.input_errors import InputErrors
from ipexctl.model.errors import Origin
from ipexctl.model.json_values import Record
from ipexctl.model.text import printable

MAX_DEPTH = 50
MAX_NODES = 100_000  # an inventory of 4096 hosts has fewer
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {_TAG + name for name in ("str", "int", "float", "bool", "null", "map", "seq")}


class Scalar(Record):
    """``plain`` is written without quotes, so that an empty one or ``null`` means nothing at all."""

    text: str
    origin: Origin
    plain: bool = True

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in {"", "~", "null", "Null", "NULL"}


class Seq(Record):
    items: "tuple[Node, ...]"
    origin: Origin


class Map(Record):
    pairs: "tuple[tuple[Scalar, Node], ...]"
    origin: Origin

    def get(self, key: str) -> "Node | None":
        return next((value for name, value in self.pairs if name.text == key), None)


class Unread(Record):
    """A value that is not looked into, where that is no error: an alias, or one with a tag. ``kind`` names it."""

    kind: str
    origin: Origin


Node = Scalar | Seq | Map | Unread
NULL = Scalar("", Origin(""))


def is_null(node: "Node") -> bool:
    return isinstance(node, Scalar) and node.is_null


MERGE = "merge keys (<<) are not supported: write the keys out"


def is_merge(key: Scalar) -> bool:
    """Returns whether a key of a mapping stands for the keys of another one."""
    return key.plain and key.text == "<<"


def quote_yaml(value: str | int) -> str:
    """Returns a scalar that YAML reads back as it is: JSON, but for characters that cannot be printed."""
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)


def name_kind(node: "Node") -> str:
    """Returns what a node is, for a message."""
    if isinstance(node, Scalar):
        return "nothing" if node.is_null else "a single value"
    if isinstance(node, Unread):
        return node.kind
    return "a list" if isinstance(node, Seq) else "a mapping"


def read_yaml_node(text: str, source: str, problems: InputErrors, *, lenient: bool = False) -> "Node | None":
    """Returns the one document of a text; None if it is empty or cannot be read (``problems`` says why). ``lenient``:
    it is mostly for another tool. Its tags and aliases are `Unread`, and its merge keys stay."""
    import yaml

    try:
        return _Builder(source, problems, lenient).build(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        origin = Origin(source, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
        problems.add(origin, "character is not allowed in YAML", value=text[error.position : error.position + 1])
    except yaml.MarkedYAMLError as error:
        words, begun = _explain_yaml_error(error.problem or error.context or "")
        if template := _find_template(text, source, error.problem_mark, error.context_mark):
            problems.add(template, "templates are not evaluated: write the value itself")
            return None
        mark = error.context_mark if begun and error.context_mark else error.problem_mark or error.context_mark
        origin = Origin(source, mark.line + 1, mark.column + 1) if mark else Origin(source)
        problems.add(origin, f"not YAML: {words}")
    except (ValueError, OverflowError) as error:  # a version of thousands of digits, a character that there is not
        problems.add(Origin(source), f"not YAML: {printable(str(error), 200)}")
    except _Stop:
        pass
    return None


_WRONG_INDENT = "the indentation differs from that of the lines around it"
_YAML_ERRORS = (
    (r"mapping values are not .*", "a second ':' in one line: quote the text, or mend the indentation", False),
    (r"expected <block end>, but found '<scalar>'", "more text behind a value that has ended: quote all of it", False),
    (r"expected <block end>, but found '[],}]'", "this bracket was never opened", False),
    (r"expected <block end>, .*", _WRONG_INDENT, False),
    (r"could not find expected ':'", "a line without 'key:' or '- ' before it", True),
    (r"found character '\\t' that cannot .*", "a tab: YAML is indented with spaces", False),
    (r"found character '(.)' that cannot .*", r"a value cannot begin with \1: quote it", False),
    (r"expected ',' or '(.)', but got .*", r"this is not closed with \1, or lacks a comma", True),
    (r"found unexpected end of stream", "this quote is not closed", True),
    (r"expected the node content, but found '<.*", "a value is missing", False),
    (r"expected the node content, but found (.*)", r"a value is missing before \1", False),
    (r"expected alphabetic or numeric character, .*", "a value cannot begin with * or &: quote it", True),
)
"""What the parser's commonest errors mean, and whether the place to look at is where the thing begins."""


def _find_template(text: str, source: str, *marks: Any) -> Origin | None:
    """Returns where a template begins on one of these lines: without quotation marks it is not YAML."""
    lines = text.split("\n")
    for mark in marks:
        column = max(map(lines[mark.line].find, ("{{", "{%"))) if mark and mark.line < len(lines) else -1
        if column >= 0:
            return Origin(source, mark.line + 1, column + 1)
    return None


def _explain_yaml_error(error: str) -> tuple[str, bool]:
    for pattern, words, begun in _YAML_ERRORS:
        if match := re.fullmatch(pattern, error):
            return match.expand(words), begun
    return printable(error, 200), False


class _Stop(Exception):
    """Reading cannot continue; the error has been added."""


class _Builder(Record):
    """Builds the tree from PyYAML's events: on one level, so nesting cannot exhaust the stack."""

    source: str
    problems: InputErrors
    lenient: bool

    def build(self, events: Iterator[Any]) -> "Node | None":
        import yaml

        stack: list[tuple[Origin, list[Node], str]] = []
        root: Node | None = None
        for count, event in enumerate(events):
            node: Node | None = None
            if count > 2 * MAX_NODES:
                self._add_error_and_stop(event, f"larger than {MAX_NODES} values")
            tag = self._read_tag(event)
            match event:
                case yaml.DocumentStartEvent() if root is not None:
                    self._add_error_and_stop(event, "second document: one file is one document")
                case yaml.AliasEvent() if self.lenient:
                    node = Unread(f"the alias *{event.anchor} (write it out)", self._locate_event(event))
                case yaml.AliasEvent():
                    self._add_error_and_stop(event, f"alias *{event.anchor} is not supported: write the value out")
                case yaml.ScalarEvent():
                    node = Scalar(event.value, self._locate_event(event), plain=event.style is None)
                    node = Unread(tag, node.origin) if tag else node
                case yaml.CollectionStartEvent():
                    if len(stack) >= MAX_DEPTH:
                        self._add_error_and_stop(event, f"nested deeper than {MAX_DEPTH} levels")
                    stack.append((self._locate_event(event), [], tag))
                case yaml.CollectionEndEvent():
                    origin, parts, tag = stack.pop()
                    in_map = isinstance(event, yaml.MappingEndEvent)
                    node = self._make_map(parts, origin) if in_map else Seq(tuple(parts), origin)
                    node = Unread(tag, origin) if tag else node
            if node is not None and stack:
                stack[-1][1].append(node)
            elif node is not None:
                root = node
        return None if isinstance(root, Scalar) and root.is_null else root

    def _make_map(self, parts: "list[Node]", origin: Origin) -> "Map | Scalar":
        if len(parts) == 2 and isinstance(inner := parts[0], Map) and len(inner.pairs) == 1 and is_null(parts[1]):
            name, value = inner.pairs[0]
            if inner.origin == replace(origin, column=origin.column + 1) and is_null(value):
                return Scalar(f"{{{{ {name.text} }}}}", origin)  # a template that lacks quotation marks
        pairs: dict[str, tuple[Scalar, Node]] = {}
        for key, value in zip(parts[::2], parts[1::2], strict=True):
            if not isinstance(key, Scalar):
                self.problems.add(key.origin, f"key is {name_kind(key)}, it must be a single word")
            elif is_merge(key) and not self.lenient:
                self.problems.add(key.origin, MERGE)
            elif key.text in pairs:
                line = pairs[key.text][0].origin.line
                self.problems.add(key.origin, f"key is given twice, first in line {line}", value=key.text)
            else:
                pairs[key.text] = key, value
        return Map(tuple(pairs.values()), origin)

    def _read_tag(self, event: Any) -> str:
        """Returns what an event's tag makes of it; "" where it has none, or one of YAML's own."""
        tag = getattr(event, "tag", None)
        if tag is None or tag in _PLAIN_TAGS:
            return ""
        shown = f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag
        if not self.lenient:
            self.problems.add(self._locate_event(event), "tag is not allowed: a file is data", value=shown)
            return ""
        if tag == "!vault":
            return "what ansible-vault encrypted"
        return f"a value with the tag {printable(shown, 40)}"

    def _locate_event(self, event: Any) -> Origin:
        return Origin(self.source, event.start_mark.line + 1, event.start_mark.column + 1)

    def _add_error_and_stop(self, event: Any, what: str) -> None:
        self.problems.add(self._locate_event(event), what)
        raise _Stop
