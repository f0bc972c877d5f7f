"""The answers of ``play``, of its step ``command`` (which is ``exec``), and of ``init``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.json_values import JsonForm, JsonRecord


class PlayedStep(JsonRecord):
    """A step of a play; ``exit`` None: it was not begun."""

    step: str
    action: str
    exit: int | None
    note: str | None = None


class PlayAnswer(AnyAnswer):
    """``play`` and ``demo``: ``lost_hosts`` maps failed hosts to the step; ``next`` plays it again on these only."""

    play: str
    steps: tuple[PlayedStep, ...]
    changed: bool
    lost_hosts: Mapping[str, str]
    dry: bool | None = None
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
    """What a command wrote on a host; ``cut``: it wrote more than 1 MiB, which is missing here."""

    host: str
    status: int
    out: str
    err: str
    cut: bool | None = None


class FailedCommand(JsonRecord):
    """A host where a command did not come to its end, and why."""

    host: str
    failed: str


if TYPE_CHECKING:
    CommandResult = CommandOutput | FailedCommand
else:
    CommandResult = JsonForm("CommandResult", (CommandOutput, FailedCommand))


class CommandAnswer(AnyAnswer):
    """The step ``command`` of a playbook."""

    hosts: tuple[CommandResult, ...]


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
