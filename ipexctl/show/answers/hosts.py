"""The screen of ``lab``. That of ``hosts`` is a text."""

from rich.console import RenderableType

from ipexctl.model.answers.hosts import LabAnswer
from ipexctl.show.tables import format_rows_of_answer


def format_answer(value: LabAnswer) -> list[RenderableType]:
    return format_rows_of_answer(value)
