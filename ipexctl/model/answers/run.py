"""The answers of ``run``, ``attach``, ``profile`` and ``plan``."""

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.launch import PlannedLaunch
from ipexctl.model.profile import Profile


class RunAnswer(AnyAnswer):
    """``run`` and ``attach``: ``reason`` is why the run ended, None while it goes on. ``profile`` and the
    directory of the ranks' ``traces``: with ``--profile``."""

    run: str
    reason: str | None
    detached: bool
    profile: Profile | None = None
    traces: str | None = None


class ProfileAnswer(AnyAnswer):
    """``profile``: ``traces`` is the directory of the ranks' traces, None where it is gone."""

    profile: Profile
    traces: str | None


class RunPlanAnswer(AnyAnswer):
    """``run --dry-run``."""

    plan: str
    launch: PlannedLaunch
    dry: bool = True


class EmitAnswer(AnyAnswer):
    """``plan --emit``: the launch written for another program, in ``text``."""

    text: str
    plan: PlannedLaunch
