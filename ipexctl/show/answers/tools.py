"""The screens of ``accelerate`` and ``migrate``."""

from rich.console import RenderableType

from ipexctl.model.answers.tools import AccelerateAnswer, MigrateAnswer
from ipexctl.show.tables import format_rows_of_answer
from ipexctl.show.typeset import format_plan


def format_answer(value: AccelerateAnswer | MigrateAnswer) -> list[RenderableType]:
    return format_plan(value.text) if isinstance(value, MigrateAnswer) else format_rows_of_answer(value)
