"""A `Record` is what a frozen dataclass of the same fields is, although its methods are made later, or once for all."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any, ClassVar

import pytest

from ipexctl.model.json_values import Record


class Ours(Record):
    a: int
    b: str = "two"
    c: Mapping[str, int] = field(default_factory=dict)
    values: tuple[int, ...] = ()
    self_: int = 0
    unseen: int = field(default=0, compare=False, repr=False)
    d: ClassVar[int] = 4
    last: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("negative")


@dataclass(frozen=True)
class Theirs:
    a: int
    b: str = "two"
    c: Mapping[str, int] = field(default_factory=dict)
    values: tuple[int, ...] = ()
    self_: int = 0
    unseen: int = field(default=0, compare=False, repr=False)
    d: ClassVar[int] = 4
    last: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("negative")


class Below(Ours):
    more: int = 0


class Empty(Record):
    pass


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, "x", {"y": 2}), {"last": 5}),
    ((), {"a": 1, "values": (1, 2), "self_": 3, "unseen": 9}),
    ((), {}),
    ((1, "x", {}, (), 0, 0, 1), {}),
    ((1,), {"a": 1}),
    ((1,), {"d": 5}),
    ((-1,), {}),
]


def outcome(make: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> object:
    try:
        made = make(*args, **keywords)
    except (TypeError, ValueError) as error:
        return type(error), str(error).replace("Ours", "Theirs")
    return [getattr(made, each.name) for each in fields(made)], repr(made).replace("Ours", "Theirs")


@pytest.mark.parametrize(("args", "keywords"), CALLS)
def test_it_is_made_and_refused_as_a_dataclass_is(args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    assert outcome(Ours, args, keywords) == outcome(Theirs, args, keywords)
    assert outcome(Ours, args, keywords) == outcome(Theirs, args, keywords), "the second one is made by other code"


def test_a_default_that_is_made_is_made_anew() -> None:
    assert Ours(1).c is not Ours(1).c


@pytest.mark.parametrize("kind", [Ours, Theirs])
def test_it_does_not_change(kind: Any) -> None:
    value = kind(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        value.a = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
        del value.a
    assert value.a == 1


def test_it_is_compared_by_type_and_fields_and_is_a_key() -> None:
    assert Ours(1, c={}, unseen=1) == Ours(1, c={}, unseen=2)
    assert Ours(1) != Ours(2)
    assert Ours(1) != Below(1)
    assert len({Empty(), Empty()}) == 1


def test_it_is_replaced_copied_pickled_and_matched() -> None:
    value = Below(1, "x", last=7, more=3)
    assert replace(value, a=5) == Below(5, "x", last=7, more=3)
    assert copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value
    match value:
        case Below(1, "x", more=3):
            pass
        case _:
            pytest.fail("not matched")
