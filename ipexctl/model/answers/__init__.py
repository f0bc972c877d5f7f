"""What each verb answers, as types: the values of ``--json`` and of the event `Answer`; schemas are in ``docs/json``.

A module here has the answers of a few verbs, imported by these and their screens: a command makes no types in vain.
Their JSON is that of `json_values.to_json`. An answer that is ``dry`` changed nothing and has its ``plan``."""

import re
from collections.abc import Mapping
from importlib import import_module

from ipexctl.model.json_values import JsonObject, JsonRecord

KINDS: Mapping[str, tuple[str, ...]] = {
    "doctor": ("doctor", "explain"),
    "install": ("install", "verify", "uninstall", "wheels", "stacks", "stacks-why"),
    "files": ("sync", "fetch"),
    "run": ("run", "profile", "run-plan", "emit"),
    "manage": ("ps", "rank-stacks", "stop", "reap"),
    "saved": ("runs", "prune", "export", "support", "report", "compare"),
    "play": ("play", "play-list", "command", "lint", "init"),
    "examples": ("examples", "shown-example", "copied-example"),
    "hosts": ("hosts", "usage", "lab"),
    "tune": ("tune",),
    "tools": ("accelerate", "migrate"),
    "plan": ("dry-run",),
}
"""The modules of this package, and the kinds of the answers in them (`get_answer_kind`)."""


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


def find_answer_type(kind: str) -> type[AnyAnswer] | None:
    """Returns the type of the answers of this kind; None: this version has no such kind."""
    module = next((module for module, kinds in KINDS.items() if kind in kinds), None)
    return _list_types(module)[kind] if module else None


def list_answer_types() -> Mapping[str, type[AnyAnswer]]:
    """Returns all kinds of answers and their types."""
    return {kind: answer for module in KINDS for kind, answer in _list_types(module).items()}


def _list_types(module: str) -> Mapping[str, type[AnyAnswer]]:
    """Returns the answers of a module of this package, by their kinds."""
    types = (each for each in vars(import_module(f"{__name__}.{module}")).values() if isinstance(each, type))
    return {get_answer_kind(each): each for each in types if issubclass(each, AnyAnswer) and each is not AnyAnswer}
