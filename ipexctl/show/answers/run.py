"""The screen of a profile. The card of a run is made from the report (`screens.format_ending`)."""

from rich.console import RenderableType

from ipexctl.model.answers.run import ProfileAnswer, RunAnswer
from ipexctl.show.profile_screen import format_profile


def format_answer(value: RunAnswer | ProfileAnswer) -> list[RenderableType]:
    return format_profile(value.profile, value.trace or "") if value.profile else []
