"""Failures that wait to be shown: those of several hosts together, and not those that an answer explains."""

from collections.abc import Sequence

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.errors import Failure
from ipexctl.model.run_state import RunState

GATHER_SECONDS = 1.0  # seconds in which failures of several hosts are gathered to be shown together


class PendingFailures:
    """Failures that are not shown yet. ``at`` is seconds of one clock."""

    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self._hints: dict[str, None] = {}  # of failures that were shown: they are for the end of the screen
        self._since = 0.0
        self._seen = 0
        self._answer: object = None  # of doctor, by which the failures were selected
        self._explained = False  # the answer of the verb at work may explain them: they wait for it

    def update(self, state: RunState, at: float) -> None:
        """Takes the failures that are new, and forgets those that an answer explains."""
        self._seen = min(self._seen, len(state.failures))  # what is excused is gone
        if new := state.failures[self._seen :]:
            self._since = self._since if self._failures else at
            self._failures += new
            self._seen += len(new)
        self._explained = state.verb is not None and state.verb.verb == "doctor" and not state.answered
        doctor = state.answers.get("doctor")
        if doctor is not None and doctor is not self._answer:
            self._answer = doctor
            self._failures = select_unexplained(self._failures, doctor[1])

    def is_due(self, at: float) -> bool:
        """Whether they are to be shown now, although others may follow."""
        return bool(self._failures) and not self._explained and at - self._since >= GATHER_SECONDS

    def pop_failures(self) -> list[Failure]:
        """Those to be shown, once."""
        failures, self._failures = self._failures, []
        self._hints |= dict.fromkeys(failure.hint for failure in failures if failure.hint)
        return failures

    def pop_hints(self) -> list[str]:
        """What helps against the failures that were shown, each once, in their order."""
        hints, self._hints = list(self._hints), {}
        return hints


def select_unexplained(failures: Sequence[Failure], answer: AnyAnswer) -> list[Failure]:
    """The failures that no finding of the answer is about."""
    from ipexctl.model.answers.doctor import DoctorAnswer  # no other command needs it

    if not isinstance(answer, DoctorAnswer):
        return list(failures)
    named = {host for finding in answer.findings for host in finding.hosts}
    explained = {(entry.host, entry.failure.what) for entry in answer.hosts if entry.failure}
    return [one for one in failures if one.host not in named or (one.host, one.what) not in explained]
