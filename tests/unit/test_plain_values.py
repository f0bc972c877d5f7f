"""Values that are plainly of the type of their option are not converted by Typer; all others are."""

from typing import Any, Literal

import pytest

from ipexctl.cli.plain_values import read_plain_value


@pytest.mark.parametrize(
    ("kind", "value", "plain"),
    [
        (str, "train.py", "train.py"),
        (str, None, None),
        (int, "12", 12),
        (int, 3, 3),
        (float, "0.5", 0.5),
        (bool, True, True),
        (Literal["auto", "off"], "off", "off"),
        (list[str], ("a", "b"), ["a", "b"]),
    ],
)
def test_a_plain_value_is_of_its_type(kind: Any, value: object, plain: object) -> None:
    assert read_plain_value(kind, value) == plain
    assert type(read_plain_value(kind, value)) is type(plain)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(int, "1.5"), (int, "1_000"), (int, "٣"), (int, True), (float, "fast"), (bool, "yes"), (str, 1), (list[str], (1,)),
     (Literal["auto", "off"], "on")],
)  # fmt: skip
def test_any_other_value_is_left_to_typer(kind: Any, value: object) -> None:
    with pytest.raises(ValueError, match=r"plainly|invalid literal|could not convert"):
        read_plain_value(kind, value)
