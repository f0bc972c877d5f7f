"""The answer of a dry run that has no more to say than its plan."""

from ipexctl.model.answers import AnyAnswer


class DryRun(AnyAnswer):
    """A dry run of a verb whose plan says it all."""

    plan: str
    dry: bool = True
