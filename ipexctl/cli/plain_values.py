"""Values of the command line that need no conversion by Typer.

Typer converts each value with an adapter of pydantic for its option, of which `run` has sixty, given or not: that takes
longer than anything else on the way to a first connection. Nearly all values are plainly of their type. The others are
left to Typer, which knows what to say about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin


def read_plain_value(kind: Any, value: Any) -> Any:
    """Returns the value as a type of options: text, number, truth, choice, or a list of texts; None is not given.

    Raises `ValueError` for any other value."""
    if value is None or (isinstance(kind, type) and type(value) is kind):
        return value
    if kind in (int, float) and isinstance(value, str) and value.isascii() and "_" not in value:
        return kind(value)
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if get_origin(kind) is list and isinstance(value, tuple | list) and all(isinstance(item, str) for item in value):
        return list(value)
    raise ValueError("not plainly of this type")


def convert_plain_values(param: Any, kind: Any, allows: Callable[[Any], bool], *, is_span: bool = False) -> None:
    """Makes an option or argument convert its plain values itself; those that it ``allows``. Once is enough. A span of
    time such as ``2h`` is its seconds."""
    if "process_value" in vars(param):
        return
    convert = param.process_value

    def process_value(ctx: Any, value: Any) -> Any:
        try:
            if is_span:
                from ipexctl.model.text import read_seconds  # not of those who only ask for the help

                value = read_seconds(value)
            plain = read_plain_value(kind, value)
        except ValueError:
            return convert(ctx, value)
        if not allows(plain) or (param.required and param.value_is_missing(plain)):
            return convert(ctx, value)
        return param.callback(ctx, param, plain) if param.callback else plain

    param.process_value = process_value


_OWN = {"help": bool, "install_completion": bool, "show_completion": bool, "verbose": int}


class PlainValues:
    """The part of a command's class for the options that Typer adds, and the ``-v`` before a command."""

    def get_params(self: Any, ctx: Any) -> Any:
        params = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if kind := _OWN.get(param.name):
                convert_plain_values(param, kind, lambda value: True)
        return params
