"""``when:`` a step is done on a host: a small expression on the host's facts.

Python's own parser reads it, and only what is on the list below is understood: comparisons, ``and or not in``, numbers
and what is reckoned with them, texts, lists, and the names of facts. Nothing is called or evaluated by Python.
Instruction sets are ordered by what they can do. A fact that a host cannot tell makes the whole expression unknown
(`UnknownFact`), unless the rest decides it.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Literal

from ipexctl.decide.facts.isa import ORDER
from ipexctl.decide.parsing.input_errors import suggest_nearest
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Host
from ipexctl.model.text import printable

Kind = Literal["number", "text", "truth", "list", "isa", "nothing"]

_LONGEST = 1000
_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "none": None, "null": None}
_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_ORDERED: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_COMPARED = (*_ORDERED, ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_KINDS: Mapping[Kind, str] = {
    "number": "a number",
    "text": "a text",
    "truth": "true or false",
    "list": "a list",
    "isa": "an instruction set",
    "nothing": "nothing",
}
_HOST_NAMES: Mapping[str, Kind] = {"host": "text", "groups": "list", "slots": "number"}


class UnknownFact(Exception):
    """A fact that the host cannot tell, and on which the answer depends."""


class _ConditionError(Exception):
    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.column = getattr(node, "col_offset", 0)


@cache
def names() -> Mapping[str, Kind]:
    """Every name that may be used, and what it is."""
    kinds: dict[str, Kind] = dict(_HOST_NAMES)
    for field in fields(Facts):
        type_text = str(field.type)
        if field.name in ("isa_level", "silicon"):
            kinds[field.name] = "isa"
        elif type_text.startswith("bool"):
            kinds[field.name] = "truth"
        elif type_text.startswith(("int", "float")):
            kinds[field.name] = "number"
        elif type_text.startswith("str") or field.name.startswith("cpus_"):
            kinds[field.name] = "text"
        else:
            kinds[field.name] = "list"
    return kinds


def find_error(text: str) -> tuple[int, str] | None:
    """Why an expression cannot be used, with the column (from 0) in it; None where it can."""
    if not text.strip():
        return 0, "when is empty"
    if len(text) > _LONGEST:
        return 0, f"when is longer than {_LONGEST} characters"
    try:
        kind = _check_kind(_parse(text))
        return None if kind == "truth" else (0, f"when must be true or false, this is {_KINDS[kind]}")
    except SyntaxError as error:
        return max(0, (error.offset or 1) - 1), "when is no expression such as isa_level >= AVX512_BF16"
    except (RecursionError, MemoryError, ValueError):
        return 0, "when is too deep"
    except _ConditionError as refusal:
        return refusal.column, str(refusal)


def needs_facts(text: str) -> bool:
    """Whether the host must be looked at; what the hostfile says of it is known."""
    used = {node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name)}
    return not used <= {*_HOST_NAMES, *_CONSTANTS}


def evaluate(text: str, host: Host, facts: Mapping[str, Any]) -> bool:
    """Whether it is true of this host; ``facts`` are `Facts.public()`. Raises `UnknownFact` with the fact's name."""
    known = {**facts, "host": host.name, "groups": host.groups, "slots": host.slots}
    return bool(_evaluate_node(_parse(text), known))


def _parse(text: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of what is refused anyway
        return ast.parse(text.strip(), mode="eval").body


# ------------------------------------------------------------------------------------------- what kind of thing it is


def _check_kind(node: ast.expr) -> Kind:
    """Checks a part and says what it is. Raises `_ConditionError`."""
    match node:
        case ast.BoolOp(values=values):
            for value in values:
                _require_kind(value, "truth")
            return "truth"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            _require_kind(operand, "truth")
            return "truth"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            _require_kind(operand, "number")
            return "number"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            _require_kind(left, "number")
            _require_kind(right, "number")
            return "number"
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for sign, first, second in zip(ops, [left, *comparators], comparators, strict=False):
                _check_comparison(sign, first, second)
            return "truth"
        case ast.List(elts=items) | ast.Tuple(elts=items):
            for item in items:
                if _check_kind(item) == "list":
                    raise _ConditionError(item, "lists hold single values")
            return "list"
        case ast.Constant(value=value):
            return _constant_kind(node, value)
        case ast.Name(id=name):
            return _name_kind(node, name)
    raise _ConditionError(
        node, f"{_quote(node)} is not understood (comparisons, and, or, not, in, numbers, texts, facts are)"
    )


def _require_kind(node: ast.expr, kind: Kind) -> None:
    if (actual := _check_kind(node)) != kind:
        raise _ConditionError(node, f"{_quote(node)} is {_KINDS[actual]}, not {_KINDS[kind]}")


def _check_comparison(op: ast.cmpop, first: ast.expr, second: ast.expr) -> None:
    left, right = _check_kind(first), _check_kind(second)
    if isinstance(op, ast.In | ast.NotIn):
        if right not in ("list", "text"):
            raise _ConditionError(second, f"{_quote(second)} is {_KINDS[right]}: in looks into a list or a text")
        if right == "text" and left not in ("text", "isa"):
            raise _ConditionError(
                first, f"{_quote(first)} is {_KINDS[left]}, and a text has only texts in it: write a list"
            )
        if left == "isa" and isinstance(second, ast.List | ast.Tuple):
            for item in second.elts:
                _check_level(item)
        return
    if type(op) not in _COMPARED:
        raise _ConditionError(first, "is and is not are not understood: == and != are")
    if "isa" in (left, right) and {left, right} <= {"isa", "text"}:
        _check_level(first)
        _check_level(second)
        return
    if "nothing" in (left, right) and not isinstance(op, ast.Eq | ast.NotEq):
        raise _ConditionError(first, "nothing is neither more nor less")
    if left != right and "nothing" not in (left, right):
        hint = ": versions are texts, in quotes" if {left, right} == {"number", "text"} else ""
        raise _ConditionError(first, f"{_quote(first)} is {_KINDS[left]}, {_quote(second)} is {_KINDS[right]}{hint}")
    if type(op) in _ORDERED and left not in ("number", "text"):
        raise _ConditionError(
            first,
            f"{_quote(first)} is {_KINDS[left]}: only numbers, versions and instruction sets have an order",
        )


def _check_level(node: ast.expr) -> None:
    """A text beside an instruction set must be one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in ORDER:
        raise _ConditionError(
            node, f"'{printable(node.value)}' is no instruction set{suggest_nearest(node.value, ORDER)}"
        )


def _constant_kind(node: ast.expr, value: object) -> Kind:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    raise _ConditionError(node, f"{_quote(node)} is not understood")


def _name_kind(node: ast.expr, name: str) -> Kind:
    if name in _CONSTANTS:
        return _constant_kind(node, _CONSTANTS[name])
    if name in ORDER:
        return "isa"
    if name in names():
        return names()[name]
    raise _ConditionError(node, f"there is no fact '{printable(name)}'{suggest_nearest(name, [*names(), *ORDER])}")


def _quote(node: ast.expr) -> str:
    """A part of the expression as it may be shown."""
    match node:
        case ast.Name(id=name):
            return printable(name)
        case ast.Constant(value=value):
            return printable(repr(value), 40)
        case ast.Call():
            return "a call"
        case ast.Attribute():
            return "a dot"
        case ast.Subscript():
            return "[ ]"
    return "this"


# ---------------------------------------------------------------------------------------------------- what it comes to


def _evaluate_node(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """The value of a part that `_check_kind` has let pass."""
    match node:
        case ast.BoolOp(op=op, values=values):
            return _evaluate_bool_op(isinstance(op, ast.Or), values, known)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate_node(operand, known)
        case ast.UnaryOp(operand=operand):
            return -_evaluate_node(operand, known)
        case ast.BinOp(left=left, op=op, right=right):
            try:
                return _ARITHMETIC[type(op)](_evaluate_node(left, known), _evaluate_node(right, known))
            except (ZeroDivisionError, OverflowError):
                raise UnknownFact("a division by nothing") from None
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            pairs = zip(ops, [left, *comparators], comparators, strict=False)
            return all(_evaluate_comparison(op, first, second, known) for op, first, second in pairs)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_evaluate_node(item, known) for item in items]
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return _read_fact(name, known)
    raise AssertionError("refused when it was read")


def _evaluate_bool_op(any_: bool, values: list[ast.expr], known: Mapping[str, Any]) -> bool:
    """``and`` and ``or``: what is not known does not matter where the others decide."""
    unknown: UnknownFact | None = None
    for value in values:
        try:
            if bool(_evaluate_node(value, known)) is any_:
                return any_
        except UnknownFact as why:
            unknown = why
    if unknown:
        raise unknown
    return not any_


def _read_fact(name: str, known: Mapping[str, Any]) -> Any:
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if name in ORDER:
        return name
    value = known.get(name)
    if value is None:
        raise UnknownFact(name)
    return value.split() if name == "flags" and isinstance(value, str) else value


def _evaluate_comparison(op: ast.cmpop, first: ast.expr, second: ast.expr, known: Mapping[str, Any]) -> bool:
    if isinstance(op, ast.Eq | ast.NotEq) and "nothing" in (_check_kind(first), _check_kind(second)):
        return (_evaluate_or_none(first, known) == _evaluate_or_none(second, known)) is isinstance(op, ast.Eq)
    left, right = _evaluate_node(first, known), _evaluate_node(second, known)
    if isinstance(op, ast.In | ast.NotIn):
        return (left in right) is isinstance(op, ast.In)
    if isinstance(op, ast.Eq | ast.NotEq):
        return (left == right) is isinstance(op, ast.Eq)
    if "isa" in (_check_kind(first), _check_kind(second)):
        if left not in ORDER or right not in ORDER:
            raise UnknownFact("isa_level")
        left, right = -ORDER.index(left), -ORDER.index(right)
    elif isinstance(left, str):
        left, right = _split_version(left), _split_version(right)
    return _ORDERED[type(op)](left, right)


def _evaluate_or_none(node: ast.expr, known: Mapping[str, Any]) -> Any:
    try:
        return _evaluate_node(node, known)
    except UnknownFact:
        return None


def _split_version(text: str) -> list[tuple[int, int, str]]:
    """Numbers in a text are compared as numbers: 2.9 is before 2.28."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", text)]
