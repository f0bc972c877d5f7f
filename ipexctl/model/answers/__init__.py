"""What each verb answers, as types: the values of ``--json`` and of the event `Answer`; schemas are in ``docs/json``.

A module here has the answers of a few verbs, imported by these and their screens: a command makes no types in vain.
Their JSON is that of `json_values.to_json`. An answer that is ``dry`` changed nothing and has its ``plan``."""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from ipexctl.model.json_values import JsonObject, JsonRecord


class AnyAnswer(JsonRecord):
    """Base of all answers."""


class UnknownAnswer(AnyAnswer):
    """An answer of a saved run that another version of ipexctl wrote."""

    value: JsonObject

    def public(self) -> JsonObject:
        return self.value


def is_dry(answer: AnyAnswer) -> bool:
    """Returns whether nothing was changed for this answer: it shows a plan."""
    return bool(getattr(answer, "dry", False))


def get_next_command(answer: AnyAnswer | None) -> str | None:
    """Returns the command that comes next, of an answer that names one."""
    return getattr(answer, "next", None)


def get_answer_kind(cls: type) -> str:
    """Returns the name of an answer's type in JSON and of its schema: ``doctor``, ``play-list``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__.removesuffix("Answer")).lower()


@cache
def list_answer_types() -> Mapping[str, type[AnyAnswer]]:
    """Returns all kinds of answers and their types, which takes 30 ms: for who reads or describes any of them."""
    modules = [import_module(f"{__name__}.{each.name}") for each in iter_modules(__path__)]
    types = (each for module in modules for each in vars(module).values() if isinstance(each, type))
    return {get_answer_kind(each): each for each in types if issubclass(each, AnyAnswer) and each is not AnyAnswer}
