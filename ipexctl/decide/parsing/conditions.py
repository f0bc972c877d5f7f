"""``when:`` a step is done on a host: a small expression on the host's facts.

Python's own parser reads it, and only what is on the list below is compiled: comparisons, ``and or not in``, numbers
and their arithmetic, texts, lists, and the names of facts. Nothing is called or evaluated by Python.
Instruction sets are ordered by what they can do. A fact that a host cannot report makes the whole expression unknown
(`UnknownFact`), unless the other parts decide it."""

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Literal, cast

from ipexctl.decide.facts.isa import ARM_ORDER, ORDER
from ipexctl.decide.parsing.input_errors import suggest_nearest
from ipexctl.decide.script_imports import parse_python
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host
from ipexctl.model.json_values import Record, to_json
from ipexctl.model.text import printable

Comparisons = Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]
Kind = Literal["number", "text", "truth", "list", "isa", "nothing"]
Reader = Callable[[Mapping[str, object]], Any]  # from the values of a host's facts to that of an expression

_EXPRESSION_LIMIT = 1000
_LEVELS = (*ORDER[:-1], *ARM_ORDER)
_CONSTANTS: Mapping[str, bool | None] = {"true": True, "false": False, "none": None, "null": None}
_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_ORDERED: Comparisons = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}
_EQUAL: Comparisons = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
_CONTAINED: Comparisons = {ast.In: lambda item, whole: item in whole, ast.NotIn: lambda item, whole: item not in whole}
_KINDS: Mapping[Kind, str] = {
    "number": "a number", "text": "a text", "truth": "true or false", "list": "a list", "isa": "an instruction set",
    "nothing": "nothing",
}  # fmt: skip
_HOST_NAMES: Mapping[str, Kind] = {"host": "text", "groups": "list", "slots": "number"}


class UnknownFact(Exception):
    """A fact that the host cannot report, and on which the answer depends."""


class _ConditionError(Exception):
    def __init__(self, node: ast.expr, why: str) -> None:
        super().__init__(why)
        self.column = node.col_offset


class _Part(Record):
    """A checked part of an expression: what kind of value it has, and how to read that of a host."""

    node: ast.expr
    kind: Kind
    read: Reader

    def require_kind(self, kind: Kind) -> "_Part":
        if self.kind != kind:
            raise _ConditionError(self.node, f"{self} is {_KINDS[self.kind]}, not {_KINDS[kind]}")
        return self

    def __str__(self) -> str:
        return _format_node(self.node)


@cache
def list_condition_names() -> Mapping[str, Kind]:
    """Returns every name that may be used, and what it is."""
    kinds: dict[str, Kind] = {**_HOST_NAMES}
    by_type: tuple[tuple[str, Kind], ...] = (("bool", "truth"), ("int", "number"), ("float", "number"), ("str", "text"))
    for field in fields(Facts):
        kind: Kind = next((kind for start, kind in by_type if str(field.type).startswith(start)), "list")
        kinds[field.name] = "text" if field.name.startswith("cpus_") else kind
    return {**kinds, "isa_level": "isa", "silicon": "isa"}


def find_condition_error(text: str) -> tuple[int, str] | None:
    """Why an expression cannot be used, with the column (from 0) in it; None where it can."""
    if not text.strip():
        return 0, "when is empty"
    if len(text) > _EXPRESSION_LIMIT:
        return 0, f"when is longer than {_EXPRESSION_LIMIT} characters"
    try:
        kind = _compile(parse_python(text.strip(), "eval").body).kind
        return None if kind == "truth" else (0, f"when must be true or false, this is {_KINDS[kind]}")
    except SyntaxError as error:
        return max(0, (error.offset or 1) - 1), "when is no expression such as isa_level >= AVX512_BF16"
    except (RecursionError, MemoryError, ValueError):
        return 0, "when is too deep"
    except _ConditionError as error:
        return error.column, str(error)


def needs_host_facts(text: str) -> bool:
    """Returns whether the host must be probed; what the hostfile says of it is known."""
    used = {node.id for node in ast.walk(parse_python(text.strip(), "eval").body) if isinstance(node, ast.Name)}
    return not used <= {*_HOST_NAMES, *_CONSTANTS}


def evaluate_condition(text: str, host: Host, facts: Facts | None = None) -> bool:
    """Returns whether it is true of this host. Raises `UnknownFact` with the fact's name, also where it
    ``needs_host_facts`` and none are given."""
    values: dict[str, object] = {"host": host.name, "groups": host.groups, "slots": host.slots}
    if facts:
        values = {**to_json(facts), "flags": sorted(facts.flags), **values}
    try:
        return bool(_compile(parse_python(text.strip(), "eval").body).read(values))
    except RecursionError:  # a stack of less room than where the playbook was read
        raise UnknownFact("an expression so deep") from None


def _compile(node: ast.expr) -> "_Part":
    """Checks a part and makes its reader. Raises `_ConditionError`."""
    match node:
        case ast.BoolOp(op=op, values=values):
            parts = [_compile(value).require_kind("truth") for value in values]
            return _Part(node, "truth", lambda facts: _combine_parts(isinstance(op, ast.Or), parts, facts))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            part = _compile(operand).require_kind("truth")
            return _Part(node, "truth", lambda facts: not part.read(facts))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            part = _compile(operand).require_kind("number")
            return _Part(node, "number", lambda facts: -part.read(facts))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            first, second = (_compile(operand).require_kind("number") for operand in (left, right))
            return _Part(node, "number", lambda facts: _calculate(op, first.read(facts), second.read(facts)))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            first, comparisons = _compile(left), []
            for sign, comparator in zip(ops, comparators, strict=True):
                second = _compile(comparator)
                comparisons.append(_compile_comparison(sign, first, second))
                first = second
            return _Part(node, "truth", lambda facts: all(read(facts) for read in comparisons))
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            items = [_compile(element) for element in elements]
            if inner := [item for item in items if item.kind == "list"]:
                raise _ConditionError(inner[0].node, "lists hold single values")
            return _Part(node, "list", lambda facts: [item.read(facts) for item in items])
        case ast.Name(id=name) if name in _CONSTANTS:
            return _compile_constant(node, _CONSTANTS[name])
        case ast.Name(id=name):
            return _compile_name(node, name)
        case ast.Constant(value=value):
            return _compile_constant(node, value)
    raise _ConditionError(
        node, f"{_format_node(node)} is not understood (comparisons, and, or, not, in, numbers, texts, facts are)"
    )


def _compile_constant(node: ast.expr, value: object) -> "_Part":
    kinds: Mapping[type, Kind] = {type(None): "nothing", bool: "truth", int: "number", float: "number", str: "text"}
    if type(value) not in kinds:
        raise _ConditionError(node, f"{_format_node(node)} is not understood")
    return _Part(node, kinds[type(value)], lambda _: value)


def _compile_name(node: ast.expr, name: str) -> "_Part":
    def read(facts: Mapping[str, object]) -> object:
        if (value := facts.get(name)) is None:
            raise UnknownFact(name)
        return value

    if name in _LEVELS:
        return _Part(node, "isa", lambda _: name)
    if name not in (names := list_condition_names()):
        raise _ConditionError(node, f"there is no fact '{printable(name)}'{suggest_nearest(name, [*names, *_LEVELS])}")
    return _Part(node, names[name], read)


def _compile_comparison(op: ast.cmpop, first: "_Part", second: "_Part") -> Reader:
    """Returns the comparison of two parts; an order is that of numbers, of versions or of instruction sets."""
    _check_comparison(op, first, second)
    kinds, compare = {first.kind, second.kind}, {**_ORDERED, **_EQUAL, **_CONTAINED}[type(op)]
    if "nothing" in kinds and type(op) in _EQUAL:
        return lambda facts: compare(_read_or_none(first, facts), _read_or_none(second, facts))
    if "isa" in kinds and type(op) in _ORDERED:
        return lambda facts: _compare_levels(compare, first.read(facts), second.read(facts))
    if "text" in kinds and type(op) in _ORDERED:
        return lambda facts: compare(_read_version(first, facts), _read_version(second, facts))
    return lambda facts: compare(first.read(facts), second.read(facts))


def _check_comparison(op: ast.cmpop, first: "_Part", second: "_Part") -> None:
    left, right = first.kind, second.kind
    if type(op) in _CONTAINED:
        if right not in ("list", "text"):
            raise _ConditionError(second.node, f"{second} is {_KINDS[right]}: in looks into a list or a text")
        if left == "list":
            raise _ConditionError(first.node, f"{first} is a list: in looks for single values")
        if right == "text" and left not in ("text", "isa"):
            why = f"{first} is {_KINDS[left]}, and a text has only texts in it: write a list"
            raise _ConditionError(first.node, why)
        if left == "isa" and isinstance(second.node, ast.List | ast.Tuple):
            _check_isa_names(*second.node.elts)
    elif isinstance(op, ast.Is | ast.IsNot):
        raise _ConditionError(first.node, "is and is not are not understood: == and != are")
    elif "isa" in (left, right) and {left, right} <= {"isa", "text"}:
        _check_isa_names(first.node, second.node)
    elif "nothing" in (left, right):
        if type(op) in _ORDERED:
            raise _ConditionError(first.node, "nothing is neither more nor less")
    elif left != right:
        hint = ": versions are texts, in quotes" if {left, right} == {"number", "text"} else ""
        raise _ConditionError(first.node, f"{first} is {_KINDS[left]}, {second} is {_KINDS[right]}{hint}")
    elif type(op) in _ORDERED and left not in ("number", "text"):
        why = f"{first} is {_KINDS[left]}: only numbers, versions and instruction sets have an order"
        raise _ConditionError(first.node, why)


def _check_isa_names(*nodes: ast.expr) -> None:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in _LEVELS:
            why = f"'{printable(node.value)}' is no instruction set{suggest_nearest(node.value, _LEVELS)}"
            raise _ConditionError(node, why)


def _format_node(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return printable(name)
        case ast.Constant(value=value):
            return printable(repr(value), 40)
    return {ast.Call: "a call", ast.Attribute: "a dot", ast.Subscript: "[ ]"}.get(type(node), "this")


def _calculate(op: ast.operator, left: float, right: float) -> float:
    try:
        return cast(float, _ARITHMETIC[type(op)](left, right))
    except (ZeroDivisionError, OverflowError):
        raise UnknownFact("a division by nothing") from None


def _combine_parts(decisive: bool, parts: "Iterable[_Part]", facts: Mapping[str, object]) -> bool:
    """``or`` and ``and``, which one part that is ``decisive`` (true, false) decides, whatever the unknown ones are."""
    unknown: UnknownFact | None = None
    for part in parts:
        try:
            if bool(part.read(facts)) is decisive:
                return decisive
        except UnknownFact as why:
            unknown = why
    if unknown:
        raise unknown
    return not decisive


def _read_or_none(part: "_Part", facts: Mapping[str, object]) -> object:
    try:
        return part.read(facts)
    except UnknownFact:
        return None


def _compare_levels(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> bool:
    """Levels of two architectures have no order: whatever is asked of them is false."""
    if not {left, right} <= {*_LEVELS}:
        raise UnknownFact("isa_level")
    shared = (order for order in (ORDER, ARM_ORDER) if left in order and right in order)
    return any(compare(-order.index(left), -order.index(right)) for order in shared)


def _read_version(part: "_Part", facts: Mapping[str, object]) -> list[tuple[int, int, str]]:
    """Numbers in a text are compared as numbers: 2.9 is before 2.28."""
    pieces = re.findall(r"[0-9]{1,18}|[^0-9]+", part.read(facts))
    return [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces]
