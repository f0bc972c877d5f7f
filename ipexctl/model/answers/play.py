"""The answers of ``play``, of its step ``command``, and of ``init``."""

from collections.abc import Mapping
from typing import Literal

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.json_values import JsonRecord


class PlayedStep(JsonRecord):
    """A step of a play; ``exit`` None: it was not begun."""

    step: str
    action: str
    exit: int | None
    note: str | None = None


class PlayAnswer(AnyAnswer):
    """``play`` and ``demo``: ``lost`` maps hosts that failed to the step; ``next`` plays it again on these only."""

    play: str
    steps: tuple[PlayedStep, ...]
    changed: bool
    lost: Mapping[str, str]
    dry: Literal[True] | None = None
    next: str | None = None


class ListedStep(JsonRecord):
    """A step as ``play --list`` shows it; ``hosts`` and ``tags`` have commas between them."""

    step: int
    name: str
    action: str
    hosts: str
    tags: str | None = None
    when: str | None = None


class PlayListAnswer(AnyAnswer):
    """``play --list``."""

    list_: tuple[ListedStep, ...]


class CommandOutput(JsonRecord):
    """What the step ``command`` wrote on a host."""

    host: str
    status: int
    out: str
    err: str


class FailedCommand(JsonRecord):
    """A host where the step ``command`` failed, and how."""

    host: str
    failed: str


class CommandAnswer(AnyAnswer):
    """The step ``command`` of a playbook."""

    hosts: tuple[CommandOutput | FailedCommand, ...]


class LintedPlaybook(JsonRecord):
    """A playbook without errors, and how many steps and hosts it has."""

    playbook: str
    steps: int
    hosts: int | None = None


class LintAnswer(AnyAnswer):
    """``play lint``."""

    playbooks: tuple[LintedPlaybook, ...]


class InitAnswer(AnyAnswer):
    """``init``: what was written, and the commands that come next."""

    playbook: str
    hostfile: str
    stack: str
    ranks: str
    precision: str
    next: str
    then: str
