"""`RunState` → `CommandReport` → exit code: the one place where a command's outcome is judged.

0 only when all of it worked; what is not known counts as failed; the order in which events of several hosts arrive does
not change the exit code."""

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import get_args

from ipexctl.decide.diagnosis.cause import find_cause
from ipexctl.decide.diagnosis.evidence import holds_stack
from ipexctl.decide.diagnosis.known_errors import KnownErrors, fill_command, make_diagnosis
from ipexctl.decide.run.circumstances import add_circumstance
from ipexctl.decide.run.command_line import find_script, make_command_with, make_command_without
from ipexctl.decide.run.lines import decode_line, drop_overwritten
from ipexctl.model import events as e
from ipexctl.model.errors import Exit, Failure, Hint, Kind, advise, choose_exit, complete_hint, repeat_command
from ipexctl.model.harmless import find_harmless
from ipexctl.model.json_values import select_attributes
from ipexctl.model.reports import CommandReport, Diagnosis, HostOutcome, LostOutput, RankOutcome, RunOutcome
from ipexctl.model.restarts import describe_restart
from ipexctl.model.run_state import Attempt, HostState, RankState, RunHistory, RunState
from ipexctl.model.text import printable

ReadErrors = Callable[[], KnownErrors]
_TAIL_LINES = 20
_LAST_WORDS = 3.0  # seconds before the end of a rank in which an exception that it wrote may be why it ended
# AddressSanitizer's picture of the memory, below what it has found
_SHADOW = re.compile(rb"^Shadow bytes around.*\n(?:.*\n)*?Shadow byte legend.*\n(?:  .*\n?)*", re.MULTILINE)
_NO_COMMAND = e.Started("", "", ())
_NO_ATTEMPT = Attempt(e.RunStarted("", "", (), ""), 0.0, [])
_REASONS: Mapping[str, Exit] = {"rank": Exit.RANK, "lost": Exit.LOST, "limit": Exit.LOST, "launch": Exit.STEP}


def make_report(state: RunState, known: ReadErrors = tuple, *, lost: LostOutput | None = None) -> CommandReport:
    """The report of all that is known so far. ``known`` reads the catalogue of errors that failures are compared with,
    ``lost`` is what the record could not store."""
    attempt, command = state.last_attempt, state.command or _NO_COMMAND
    run = judge_run(state, known)
    causes = _list_causes(state, run, lost)
    is_run = attempt is not None or _find_end(state) is not None
    return CommandReport(
        verb=command.verb,
        title=(attempt or _NO_ATTEMPT).started.title or command.title,
        exit=choose_exit(causes),
        ok=choose_exit(causes) is Exit.OK,
        causes=tuple(sorted(set(causes) - {Exit.OK})),
        started=state.command_at,
        ended=state.at,
        finished=state.finished,
        hosts=tuple(_judge_host(state, host) for name, host in state.hosts.items() if name),
        failures=tuple(state.failures),
        findings=tuple(state.findings),
        warnings=tuple(state.warnings),
        run=run if is_run and state.study is None else None,  # a study has many
        lost=lost,
        selection_flags=state.selection_flags,
        without=_leave_out_hosts(state, run),
    )


def _leave_out_hosts(state: RunState, run: RunOutcome) -> Hint | None:
    """Returns the same run on the hosts that are left, where some could not be reached or the run lost them. A lost
    host that answers after the end (it was rebooted, its cable is back) can take part again."""
    lost = run.reason == "lost" and not run.orphans
    kind = Kind.LOST if lost else Kind.UNREACHABLE
    proof = state.proofs.get(run.run)
    back = {*proof.hosts} - {*proof.unchecked} if lost and proof else set()
    failed = {failure.host: None for failure in state.failures if failure.kind is kind and failure.host not in back}
    begun = state.last_attempt is not None and not lost
    if not failed or not state.command or begun or failed.keys() >= {*state.command.hosts}:
        return None
    return make_command_without(state, *failed)


def complete_failure(state: RunState, failure: Failure) -> Failure:
    """The failure with a hint that has the user's own options; doctor looks why a host cannot be reached."""
    hint, command = failure.hint, state.command or _NO_COMMAND
    if hint is None and failure.kind is Kind.UNREACHABLE and state.last_attempt is None and command.verb != "doctor":
        hint = advise("doctor")
    if failure.code == "passphrase" and command.words:
        text = f"give it to an agent ({hint}), or type the passphrase when asked:"
        words = [word for word in command.words if word != "--ask-pass"]
        hint = Hint([words[0], "--ask-pass", *words[1:]], text)
    if command.verb == "install":
        hint = repeat_command(hint, command.words)
    if failure.code == "no-program" and isinstance(hint, Hint) and hint.words[0] == command.verb == "run":
        hint = Hint([*command.words[: 1 - len(hint.words)], *hint.words[1:]], hint.advice)  # another WHAT
    hint = complete_hint(hint, state.selection_flags)
    if failure.code == "busy" and isinstance(hint, Hint):
        # The other run may be somebody else's: the command to paste does not end it.
        end, verb = shlex.join(("ipexctl", *hint.words)), command.words[:1]
        if verb == ("run",):
            text = f"end it ({end}), start beside it (run --share), or wait for it:"
            hint = advise("run", "--wait", *command.words[1:], text=text)
        elif verb == ("tune",):
            hint = advise("tune", "--wait", *command.words[1:], text=f"end it ({end}), or wait for it:")
        else:
            hint = advise("ps", text=f"{hint.advice}, or end it ({end}); who has the hosts:")
        hint = complete_hint(hint, state.selection_flags)
    return replace(failure, hint=hint)


def judge_run(state: RunState, known: ReadErrors) -> RunOutcome:
    """How the last run of the command ended: its last attempt, and all that its attempts left."""
    run = state.run
    attempt = run.attempts[-1] if run.attempts else _NO_ATTEMPT
    begun, shifts = attempt.started, run.shifts
    over = _find_end(state)
    ranks = tuple(_judge_rank(state, rank, shifts) for rank in attempt.ranks)
    failed, diagnosis = _find_cause(state, attempt, over, ranks, known)
    proofs = state.proofs.values()
    orphans: dict[str, tuple[int, ...]] = {}
    for host, pids in (item for proof in proofs for item in proof.orphans.items() if item[1]):
        orphans[host] = (*orphans.get(host, ()), *pids)
    unchecked = tuple(dict.fromkeys(host for proof in proofs for host in proof.unchecked))
    checked = dict.fromkeys(host for proof in proofs for host in proof.hosts)
    started, ended = _find_run_times(state, run, shifts)
    stall = attempt.stall
    goes_on = bool(failed or (over and over.reason in _REASONS))
    if diagnosis and diagnosis.code == _DAMAGED:
        goes_on = begun.resumed is None  # else it would go on from the damaged one again
    return RunOutcome(
        run=begun.run or (over.run if over else ""),
        head=begun.head,
        reason=over.reason if over else "",
        detail=over.detail if over else "",
        started=started,
        ended=ended,
        ranks=ranks,
        first=failed[0].rank if failed else None,
        diagnosis=diagnosis,
        followers=tuple(rank.rank for rank in failed[1:]),
        stopped=tuple(rank.rank for rank in ranks if rank.state == "stopped"),
        clean=tuple(host for host in checked if host not in orphans and host not in unchecked),
        orphans=orphans,
        unchecked=unchecked,
        stall=stall.list_lines(ended) or None if stall else None,
        stalled=stall is not None and stall.event.ends,
        places=stall.places if stall else (),
        suspects=stall.suspects if stall else (),
        separate=attempt.separate,
        loss=_find_last_loss(attempt),
        lost_loss=attempt.lost_loss and replace(attempt.lost_loss, command=make_command_with(state, "--stop-on-nan")),
        slow_host=attempt.slow_host,
        addresses=() if over else _find_addresses(attempt),
        lost_hosts=tuple(dict.fromkeys(each.host for each in state.failures if each.kind is Kind.LOST)),
        restarts=tuple(" · ".join(describe_restart(*pair)) for pair in pairwise(run.attempts)),
        resume=make_command_with(state, "--resume", "auto", needs="--keep") if goes_on else None,
        command=begun.command,
        backend=attempt.backend,
        planned_backend=begun.backend,
        uncaught=_describe_uncaught(state, ranks, known),
    )


def _describe_uncaught(state: RunState, ranks: Sequence[RankOutcome], known: ReadErrors) -> str:
    """Returns what ended a thread of a rank, or another process of a rank that ended well."""
    number, exception = state.uncaught or (None, "")
    for rank in ranks:
        if rank.rank == number:
            return f"rank {number} on {rank.host} had an exception {exception}"
    if broken := [replace(rank, state="failed") for rank in ranks if rank.state == "ok" and rank.error]:
        first = find_cause(known(), broken, "").failed[0]
        where = f" at {first.line}" if first.line else ""
        lines = first.error.splitlines()
        inner = f" … {lines[-1].strip()}" if holds_stack(first.error) else ""
        error = printable(f"{lines[0]}{inner}", 300)
        return f"rank {first.rank} on {first.host} had an exception in a process of its script{where}: {error}"
    spoke = [
        (rank, *state.last_words[rank.rank]) for rank in ranks if rank.state == "ok" and rank.rank in state.last_words
    ]
    # One that wrote it a moment before these may have ended later: MPI's end takes seconds on a busy host.
    since = min((at for rank, at, _ in spoke if rank.at - at < _LAST_WORDS), default=-math.inf)
    spoke = [each for each in spoke if min(each[0].at - each[1], abs(since - each[1])) < _LAST_WORDS]
    if last := [replace(rank, state="failed", error=text) for rank, _, text in spoke]:
        first = find_cause(known(), last, "").failed[0]
        return f"the last that rank {first.rank} on {first.host} wrote is an exception: {first.error}"
    return ""


def _find_last_loss(attempt: Attempt) -> float | None:
    """The last loss of the first rank that printed one, that of an epoch if there is one; None if it is no number."""
    rank = next((rank for rank in attempt.ranks if rank.loss), None)
    if rank is None or rank.loss is None or attempt.lost_loss:
        return None
    return rank.figures.get("train_loss", rank.loss[1])


def _find_end(state: RunState) -> e.RunEnded | None:
    """How the last run of the command ended, which may not have come to start its ranks."""
    if state.launch_failed is not None:
        return state.launch_failed
    attempt = state.last_attempt
    return attempt.over if attempt and attempt.is_final else None


def _find_run_times(state: RunState, run: RunHistory, shifts: Mapping[str, float]) -> tuple[float, float]:
    """The beginning of the first attempt and the end of the last: as we saw them, or, when we came later, as they were
    noted on the head."""
    if not run.attempts:
        return 0.0, 0.0 if state.launch_failed else state.at
    first, last = run.attempts[0], run.attempts[-1]
    started, ended = first.at, run.find_end(last) if last.over else state.at
    if first.late and first.started.at:
        started = first.started.at + shifts.get(first.started.head, 0.0)
    return started, ended


def _find_cause(
    state: RunState, attempt: Attempt, over: e.RunEnded | None, ranks: tuple[RankOutcome, ...], known: ReadErrors
) -> tuple[tuple[RankOutcome, ...], Diagnosis | None]:
    """The ranks that failed, first the one that did by itself, and what that is known as, with commands to type; none
    where they only noticed that the run had lost a host."""
    if (over is None or over.reason in ("done", "stopped")) and all(rank.state != "failed" for rank in ranks):
        return (), None
    output = attempt.launcher.decode("utf-8", "replace")
    cause = find_cause(known(), ranks, f"{over.detail}\n{output}" if over else output)
    if over and over.reason == "lost" and cause.match and cause.match.known.symptom:
        return (), None
    match = add_circumstance(state, cause)
    if match is None:
        return cause.failed, None
    run, host = attempt.started.run or (over.run if over else ""), ranks[0].host if ranks else ""
    diagnosis = make_diagnosis(match, host)
    texts = fill_command(diagnosis.fix, diagnosis.command, run, find_script(state))
    fix, command = (complete_hint(text, state.selection_flags) for text in texts)
    return cause.failed, replace(diagnosis, fix=fix, command=command)


def _list_causes(state: RunState, run: RunOutcome, lost: LostOutput | None) -> list[Exit]:
    states = {rank.state for rank in run.ranks}
    excused, over = state.run.excused, _find_end(state)
    reason = over.reason if over and not excused else ""
    # Not its own end is not done, whoever stopped it. (Our own signal's code wins; `stop` says no `RunStarted`.)
    command = state.command or _NO_COMMAND
    own = state.last_attempt is not None or command.verb == "run"
    cut_short = own and (reason == "stopped" or (reason == "done" and "stopped" in states))
    # Out of reach: their guards end their part by themselves. Who has stopped a run wants to know.
    unchecked = Exit.RESIDUE if state.exit in (Exit.HUP, Exit.INT, Exit.TERM) else Exit.LOST
    steps = [step for host in state.hosts.values() for step in host.steps]
    conditions = (
        (Exit.LOST, not state.finished),
        (Exit.STEP, any(finding.level == "error" for finding in state.findings)),
        (Exit.STEP, any(step.outcome == "failed" for step in steps)),
        (Exit.RANK, "failed" in states and not excused),
        (_REASONS.get(reason, Exit.OK), True),
        (Exit.LOST, reason and states & {"lost", "running"}),
        (Exit.LOST, cut_short),
        (Exit.RESIDUE, run.orphans),
        (unchecked, run.unchecked),
        (Exit.RECORD, lost),
    )
    failures = [failure.kind.exit for failure in state.failures]
    return [state.exit, *failures, *(exit for exit, holds in conditions if holds)]


_DAMAGED = "checkpoint-damaged"  # the known error
_STATUS_PRIORITY = ("failed", "changed", "ok", "skipped")


def _judge_host(state: RunState, host: HostState) -> HostOutcome:
    outcomes = [step.outcome for step in host.steps]
    if state.command and state.command.verb in ("play", "demo"):  # counted are the steps that the user wrote
        parts = [outcomes[begin:end] for begin, end in pairwise([0, *host.begins, len(outcomes)])]
        outcomes = [next((word for word in _STATUS_PRIORITY if word in part), "ok") for part in parts if part]
    failures = tuple(failure for failure in state.failures if failure.host == host.name)
    unreachable = sum(failure.kind is Kind.UNREACHABLE for failure in failures)
    # A failure with a failed step of its own is one failure, not two.
    others = sum(failure.kind is not Kind.UNREACHABLE for failure in failures)
    return HostOutcome(
        host.name,
        ok=outcomes.count("ok") + outcomes.count("changed"),
        changed=outcomes.count("changed"),
        unreachable=unreachable,
        failed=max(outcomes.count("failed") - unreachable, others),
        skipped=outcomes.count("skipped"),
        steps=tuple(host.steps),
        failures=failures,
    )


_ADDRESS = re.compile(rb"https?://[\w.\[\]:-]{1,255}:\d{1,5}(?:/[\w./~-]*)?")
_ADDRESSES = 4  # of a run


def _find_addresses(attempt: Attempt) -> tuple[str, ...]:
    """Returns URLs with a port, which those of manuals do not have, that ranks have written last: of each the last one
    first, as a router is up after what is behind it."""
    urls = (url.decode("ascii", "replace") for rank in attempt.ranks for url in reversed(_ADDRESS.findall(rank.tail)))
    return tuple(dict.fromkeys(urls))[:_ADDRESSES]


def _judge_rank(state: RunState, rank: RankState, shifts: Mapping[str, float]) -> RankOutcome:
    end, written = rank.ended, rank.written
    out, err = written.get("out", 0), written.get("err", 0)
    outcome = RankOutcome(rank.rank, rank.host, rank.result, rank.stage, out_bytes=out, err_bytes=err, line=rank.line)
    if end is None:
        return outcome
    names = ("status", "signal", "abort", "error", "traceback", "kernel", "oom", "libraries", "where")
    return replace(
        outcome,
        **select_attributes(end, *names, "kills", "exit_line", "lingered", "observed"),
        host=end.host or rank.host,
        at=end.at + shifts.get(end.host, 0.0) if end.at else rank.ended_at,
        tail=_read_last_line(state, rank) if rank.result == "ok" else _read_tail(state, rank, _TAIL_LINES),
    )


def _read_last_line(state: RunState, rank: RankState) -> str:
    """The last line of stdout, where a bar has no place, else of what is known of both streams."""
    log = state.run.outputs.get(rank.rank)
    for _, stream, text in reversed([*log.head, *log.tail] if log else []):
        lines = [line for line in text.split(b"\n") if _has_word(line) and not find_harmless(decode_line(line))]
        if stream == "out" and lines:
            return drop_overwritten(lines[-1]).decode("utf-8", "replace")
    return _read_tail(state, rank, 1)


def _read_tail(state: RunState, rank: RankState, most: int) -> str:
    """The rank's last lines, both streams as they were seen."""
    lines_without_end = (state.open.get((rank.rank, stream)) for stream in get_args(e.Stream))
    output = rank.tail + b"\n".join(line.data for line in lines_without_end if line)
    lines = [drop_overwritten(line) for line in _SHADOW.sub(b"", output).split(b"\n")]
    lines = [line for line in lines if line.strip()]
    if most == 1:
        lines = [*filter(_has_word, lines)] or lines
    return b"\n".join(lines[-most:]).decode("utf-8", "replace")


def _has_word(line: bytes) -> bool:
    """Returns whether there is a letter or a digit in it, as in no ruler of a table."""
    return any(map(str.isalnum, line.decode("utf-8", "replace")))
