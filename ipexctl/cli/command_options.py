"""The options of a command, as the fields of its models describe them."""

from __future__ import annotations

import dataclasses
import logging
from functools import cache
from inspect import Parameter
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import typer

if TYPE_CHECKING:
    from ipexctl.model.tasks import Flag

_METAVARS = {float: "SECONDS", int: "N"}


class Option(NamedTuple):
    """An option or an argument of a command, as its model describes it."""

    name: str
    type: Any
    default: Any  # `Parameter.empty` if required
    flag: Flag
    key: str  # the word in playbooks; the option is the same word with hyphens

    @property
    def help_text(self) -> str:
        """The help with the default, which every text names as ``(default: …)``."""
        unset = self.default in (None, Parameter.empty, (), {}, "") or isinstance(self.default, bool)
        help = self.flag.help
        if unset or "default: " in help:
            return help
        value = f"{self.default:g}" if isinstance(self.default, float) else self.default
        text, mark = (help[:-2], "; ") if help.endswith(").") else (help[:-1], " (")
        return f"{text}{mark}default: {value})."

    @property
    def value_type(self) -> Any:
        """The type of a value that is given. One of a mapping is a list of ``NAME=VALUE`` words."""
        kind = next((each for each in get_args(self.type) if each is not NoneType), None)
        kind = kind if NoneType in get_args(self.type) else self.type
        return list[str] if get_origin(kind) in (tuple, dict) else kind

    def build_parameter(self) -> Parameter:
        """Returns the parameter of which Typer makes this option."""
        optional = NoneType in get_args(self.type)
        kind = next(kind for kind in get_args(self.type) if kind is not NoneType) if optional else self.type
        default, metavar = self.default, self.flag.metavar or _METAVARS.get(kind)
        if get_origin(kind) is Literal:
            metavar = metavar or "|".join(get_args(kind))
        if self.flag.argument:
            metavar = metavar or self.key.upper()
            metavar = metavar if default is Parameter.empty else f"[{metavar}]"
            if get_origin(kind) is tuple and "..." not in metavar:
                metavar += "..."
        if get_origin(kind) in (tuple, dict):
            kind, default = list[str], default if default is Parameter.empty else None
        shown: dict[str, Any] = {"help": self.help_text, "show_default": False, "metavar": metavar}
        shown |= {"min": self.flag.ge, "max": self.flag.le, "rich_help_panel": self.flag.group}
        shown |= VERBOSITY if self.name == "verbose" else {}
        if self.flag.argument and "RUN" in (metavar or ""):
            shown["autocompletion"] = _list_run_names
        word = "--" + self.key.replace("_", "-")
        if kind is bool and (default or optional):
            word += f"/--no-{word[2:]}"
        words = sorted([word, *self.flag.names], key=lambda name: name.startswith("--"))  # short ones first
        info = typer.Argument(**shown) if self.flag.argument else typer.Option(*words, **shown)
        annotation = Annotated[kind if default is not None else kind | None, info]  # type: ignore[valid-type]
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _list_run_names(incomplete: str) -> list[str]:
    """The saved runs that a shell offers, the last one first. It may execute what it is offered: only plain names."""
    from ipexctl.loop import get_state_directory
    from ipexctl.store.record import PLAIN_NAME, list_saved_runs, read_name

    names = ["last", *map(read_name, list_saved_runs(get_state_directory() / "runs")[::-1])]
    return [name for name in names if name.startswith(incomplete) and PLAIN_NAME.fullmatch(name)]


def _set_verbosity(context: typer.Context, count: int) -> None:
    """``-v`` before and after a command's name add up. The level of our logger is what `DebugLog` shows."""
    logger = logging.getLogger("ipexctl")
    levels = [logging.NOTSET, logging.INFO, logging.DEBUG]
    before = levels.index(logger.level) if context.parent and logger.level in levels else 0
    logger.setLevel(levels[min(before + count, 2)])


VERBOSITY: dict[str, Any] = {"count": True, "expose_value": False, "callback": _set_verbosity, "metavar": None}


@cache
def read_options(model: Any) -> tuple[Option, ...]:
    """Returns the options of a task or of flags, in the order of the fields."""
    options, hints = [], get_type_hints(model)
    for each in dataclasses.fields(model):
        if each.name in model.left_out:
            continue
        flag: Flag = each.metadata["flag"]
        default = Parameter.empty if each.default is dataclasses.MISSING else each.default
        default = default if each.default_factory is dataclasses.MISSING else each.default_factory()
        options.append(Option(each.name, hints[each.name], default, flag, flag.alias or each.name))
    return tuple(options)


def find_model(name: str) -> Any:
    """Returns the task or the flags of this name, as an annotation has it."""
    from ipexctl.cli import options
    from ipexctl.model import tasks

    return getattr(tasks, name, None) or getattr(options, name.removeprefix("options."))
