"""Which failed rank is the cause of a run's failure, and what that is known as."""

import signal
from collections.abc import Sequence
from dataclasses import replace

from ipexctl.decide.diagnosis.evidence import Evidence, collect_evidence, read_runtime_output
from ipexctl.decide.diagnosis.known_errors import ErrorMatch, KnownErrors, match_evidence
from ipexctl.model.json_values import Record
from ipexctl.model.reports import RankOutcome
from ipexctl.model.text import join_names
from ipexctl.protocol import hooks
from ipexctl.protocol.mpi_abort import find_aborts

_CANDIDATE_LIMIT = 64  # ranks that failed first: the cause is among them
_END_DELAY = 2.0  # seconds by which the end of a process may follow what its peers see of it
_CRASH_DELAY = 0.25  # the same for one that a signal ended: its sockets are closed before its parent hears of it
# The entries for ranks that ended well and were missed, for any that others waited for, and for the one that it was.
_ENDED_EARLY, _LATE, _LATE_RANK = "ended-early", "late", "late-rank"
_DIFFERENT_CALLS = "impi-calls"  # the entry for ranks that have called different collectives
_NO_OBJECT = "object-mixed"  # the entry for what comes of an object if they have
_PEER_CLOSED = "peer-closed"  # the entry for sockets of the script, over which it may talk to other ranks
# The same for ranks that others waited for in the rendezvous, and the stages of a rank that has not been there.
_RENDEZVOUS, _ABSENT, _STAGES_BEFORE = "rendezvous", "rendezvous-absent", ("", "start", hooks.PYTHON, hooks.TORCH)


class Cause(Record):
    """The ranks that failed: the cause, then the others in the order in which they did; and what it is known as."""

    failed: tuple[RankOutcome, ...]
    match: ErrorMatch | None


class _Judged(Record):
    rank: RankOutcome
    evidence: Evidence
    match: ErrorMatch | None
    is_late: bool  # it failed when it handled that another rank was gone, as a finally that misses what was not made

    @property
    def is_symptom(self) -> bool:
        return self.match is not None and self.match.known.symptom

    @property
    def is_consequence(self) -> bool:
        return self.is_symptom or self.is_late

    @property
    def is_of_closed(self) -> bool:
        """Whether a socket of the script was closed by a process, which may have been a rank."""
        return self.code == _PEER_CLOSED

    @property
    def code(self) -> str:
        return self.match.known.code if self.match else ""

    @property
    def named(self) -> str | None:
        """The rank for which it waited, by impi: ``rank 3``."""
        return self.match.words.get("who") if self.match else None

    @property
    def is_own(self) -> bool:
        """Whether it shows that the rank failed by itself."""
        return not self.is_consequence and (self.evidence.own or self.rank.abort is not None)

    @property
    def abort_statuses(self) -> set[int]:
        """The exit codes that all ranks have when MPI aborts at an error of this one."""
        return {abort.code & 0xFF for abort in find_aborts(self.rank.tail.encode("utf-8", "replace"))}

    @property
    def is_silent(self) -> bool:
        """Whether it shows nothing but an exit code."""
        return self.match is None and not self.evidence.own and self.rank.abort is None


def find_cause(errors: KnownErrors, ranks: Sequence[RankOutcome], output: str) -> Cause:
    """Returns the cause among these ranks of a run that did not end well. A rank whose failure only shows that another
    rank was gone, or nothing at all, comes after one that failed by itself, or crashed at the same moment. ``output``
    is the launcher's, for ranks that show nothing."""
    failed = sorted((rank for rank in ranks if rank.state == "failed"), key=lambda rank: (rank.at, rank.rank))
    launcher = match_evidence(errors, Evidence(output=read_runtime_output(output.splitlines())))
    if not failed:
        return Cause((), launcher)
    earliest, *others = [_judge(errors, rank) for rank in failed[:_CANDIDATE_LIMIT]]
    first = _look_behind_closed(_look_behind(errors, earliest, others), others)
    match = _explain(errors, first, [each for each in others if each is not first], ranks, launcher)
    failed.remove(first.rank)
    return Cause((first.rank, *failed), _add_host(match, ranks) if match else None)


def _look_behind(errors: KnownErrors, first: _Judged, others: Sequence[_Judged]) -> _Judged:
    """Returns whose failure the first one shows, if that is not its own."""
    soon = [each for each in others if each.rank.at - first.rank.at < _CRASH_DELAY]
    named = [each for each in others if f"rank {each.rank.rank}" == first.named]  # it may have ended without a word
    if first.is_consequence or any(each.is_own for each in named):
        own = next((each for each in others if each.is_own), None)
        missed = next((each for each in named if not each.is_symptom or each.code != first.code), None)
        return own or missed or _find_silent_end(first, others) or _find_most_telling(errors, first, others)
    killed = next((each for each in soon if each.rank.signal == signal.SIGKILL), None)
    if first.match is None and killed:
        return killed  # a library may say in words of its own that its peer is gone; no failure leads to SIGKILL
    if first.is_silent:
        crashed = next((each for each in soon if each.evidence.signal and not each.is_symptom), None)
        aborted = (each for each in others if first.rank.status in each.abort_statuses)
        return crashed or next((each for each in aborted if each.named != f"rank {first.rank.rank}"), first)
    return first


def _look_behind_closed(first: _Judged, others: Sequence[_Judged]) -> _Judged:
    """Returns the rank whose end closed a socket of the script, if the first one only shows that."""
    if not first.is_of_closed:
        return first
    later = [each for each in others if not each.is_of_closed and each.rank.at < first.rank.at + _END_DELAY]
    own = next((each for each in later if each.is_own), None)
    return own or _find_silent_end(first, later) or first


def _explain(
    errors: KnownErrors,
    first: _Judged,
    others: Sequence[_Judged],
    ranks: Sequence[RankOutcome],
    launcher: ErrorMatch | None,
) -> ErrorMatch | None:
    """Returns what the first failure is known as, by what the other ranks and the launcher show where it shows less."""
    if first.match is not None and first.is_symptom:
        return _explain_symptom(errors, first.match, first.rank, ranks)
    if first.match is not None and first.code != _NO_OBJECT:
        return first.match
    matches = [each.match for each in others if each.match]
    if not first.evidence.exceptions and first.rank.abort is None:
        own = f"rank {first.rank.rank}"  # which the others missed: that explains nothing
        known = filter(None, [*matches, launcher])
        return next((each for each in known if not each.known.symptom and each.words.get("who") != own), None)
    # It may have failed on what MPI gave it of another collective.
    return next((each for each in matches if each.known.code == _DIFFERENT_CALLS), first.match)


def _find_silent_end(first: _Judged, others: Sequence[_Judged]) -> _Judged | None:
    """Returns the first rank that ended otherwise than those who only noticed that a rank was gone: with words of its
    own (a script may have a hook for exceptions), or at about that time by a signal or with an exit code."""
    statuses = first.abort_statuses.union(*(each.abort_statuses for each in others))
    ended = [each for each in others if not each.is_consequence and each.rank.status not in statuses]
    soon = (each for each in ended if each.evidence.output or each.rank.at < first.rank.at + _END_DELAY)
    return None if first.named else next(soon, None)


def _find_most_telling(errors: KnownErrors, first: _Judged, others: Sequence[_Judged]) -> _Judged:
    """Returns the first of the symptoms whose entry comes first: where a rank did not come in time, those who noticed
    close the connections of others."""
    if first.named:
        return first
    order = {known.code: number for number, known in enumerate(errors)}
    symptoms = [first, *(each for each in others if each.is_symptom and not each.named)]
    return min(symptoms, key=lambda each: order[each.match.known.code] if each.match else 0)


def _judge(errors: KnownErrors, rank: RankOutcome) -> _Judged:
    evidence = collect_evidence(rank)
    handled = [match_evidence(errors, Evidence((raised,))) for raised in evidence.handled]
    is_late = any(match is not None and match.known.symptom for match in handled)
    return _Judged(rank, evidence, match_evidence(errors, evidence), is_late)


def _add_host(match: ErrorMatch, ranks: Sequence[RankOutcome]) -> ErrorMatch:
    """Returns the entry with the host of the rank that it names, if it names one alone, and where that called exit."""
    who = match.words.get("who")
    named = next((rank for rank in ranks if f"rank {rank.rank}" == who), None)
    return replace(match, words={**match.words, "who": _name_ended_rank(named)}) if named else match


def _name_ended_rank(rank: RankOutcome) -> str:
    return f"rank {rank.rank} on {rank.host}" + (f" (sys.exit at {rank.exit_line})" if rank.exit_line else "")


def _explain_symptom(
    errors: KnownErrors, match: ErrorMatch, first: RankOutcome, ranks: Sequence[RankOutcome]
) -> ErrorMatch:
    """Returns the entry for ranks that did not fail, where they tell more than those that waited for them: that had
    ended well by then; that have not come to the rendezvous until its time limit; the one that let others wait until
    that of their group."""
    known, code = {each.code: each for each in errors}, match.known.code
    early = [rank for rank in ranks if rank.state == "ok" and rank.at <= first.at + _END_DELAY]
    if early:
        who = join_names([*map(_name_ended_rank, early)], 3)
        return replace(match, known=known[_ENDED_EARLY], words={"who": who})
    others = [rank for rank in ranks if rank.state not in ("failed", "ok")]
    absent = [rank for rank in others if rank.stage in _STAGES_BEFORE]
    if absent and (code in (_RENDEZVOUS, _ABSENT) or (code == _LATE and first.stage == hooks.RENDEZVOUS)):
        names = [f"rank {each.rank} on {each.host}{f' (at {each.line})' if each.line else ''}" for each in absent]
        return replace(match, known=known[_ABSENT], words={"absent": join_names(names, 3)})
    if code == _ABSENT:
        return replace(match, words={"absent": "another rank"})
    if code == _LATE and len(others) == 1:
        return replace(match, known=known[_LATE_RANK], words={"who": f"rank {others[0].rank}"})
    return match
