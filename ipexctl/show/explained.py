"""Which failures an answer explains: they are shown there, not once more by themselves."""

from __future__ import annotations

from collections.abc import Sequence

from ipexctl.model.answers import AnyAnswer, DoctorAnswer
from ipexctl.model.errors import Failure
from ipexctl.model.events import Event, Started


def explains_failures(event: Event) -> bool:
    """Whether the answer of the verb that begins here may explain failures: they wait for it."""
    return isinstance(event, Started) and event.verb == "doctor"


def unexplained(failures: Sequence[Failure], answer: AnyAnswer) -> list[Failure]:
    """The failures that no finding of the answer is about."""
    if not isinstance(answer, DoctorAnswer):
        return list(failures)
    named = {host for finding in answer.findings for host in finding.hosts}
    explained = {(entry.host, entry.failure.what) for entry in answer.hosts if entry.failure}
    return [one for one in failures if one.host not in named or (one.host, one.what) not in explained]
