"""The answer of a dry run that has no more to say than its plan."""

from typing import Literal

from ipexctl.model.answers import AnyAnswer


class DryRun(AnyAnswer):
    """A dry run of a verb whose plan says it all."""

    plan: str
    dry: Literal[True] = True
