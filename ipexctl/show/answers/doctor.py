"""The screen of ``doctor``."""

from rich.console import RenderableType

from ipexctl.model.answers.doctor import DoctorAnswer, ExplainAnswer
from ipexctl.show.hosts_screen import format_doctor
from ipexctl.show.typeset import format_paragraphs


def format_answer(value: DoctorAnswer | ExplainAnswer) -> list[RenderableType]:
    return format_doctor(value) if isinstance(value, DoctorAnswer) else format_paragraphs(value.text)
