"""The answers of ``examples``."""

from typing import Literal

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.json_values import JsonRecord


class ListedExample(JsonRecord):
    """A playbook or an example script that comes with ipexctl, and its first line."""

    name: str
    kind: Literal["playbook", "example"]
    title: str


class ExamplesAnswer(AnyAnswer):
    """``examples``, and ``play --list``."""

    examples: tuple[ListedExample, ...]


class ShownExampleAnswer(AnyAnswer):
    """``examples show``: the whole file."""

    name: str
    kind: Literal["playbook", "example"]
    path: str
    text: str


class CopiedExampleAnswer(AnyAnswer):
    """``examples copy``: the files that were written into ``directory``, and the command that uses them."""

    directory: str
    files: tuple[str, ...]
    next: str
