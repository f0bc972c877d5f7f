"""`RunState` → `CommandReport` → exit code: the one place where a command's outcome is judged.

0 only when all of it worked; what is not known counts as failed; the order in which events of several hosts arrive does
not change the exit code."""

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

from ipexctl.decide.diagnosis.cause import Cause, find_cause
from ipexctl.decide.diagnosis.known_errors import KnownErrors, fill_command
from ipexctl.decide.run.lines import drop_overwritten
from ipexctl.decide.run.slowdown import find_script_word, make_command_without
from ipexctl.model import events as e
from ipexctl.model.errors import Exit, Failure, Hint, Kind, advise, choose_exit, complete_hint, repeat_command
from ipexctl.model.json_values import select_attributes
from ipexctl.model.reports import CommandReport, HostOutcome, LostOutput, RankOutcome, RunOutcome
from ipexctl.model.restarts import describe_restart
from ipexctl.model.run_state import Attempt, HostState, RankState, RunHistory, RunState
from ipexctl.model.text import format_size, join_names

ReadErrors = Callable[[], KnownErrors]
_TAIL_LINES = 20
_LOCAL_MODULE = "local-module"  # as `script_imports.describe_local_modules` has it
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
    """Returns the same run on the hosts that are left, where some could not be reached or the run lost them."""
    lost = run.reason == "lost" and not run.orphans
    kind = Kind.LOST if lost else Kind.UNREACHABLE
    failed = {failure.host: None for failure in state.failures if failure.kind is kind}
    begun = state.last_attempt is not None and not lost
    if not failed or not state.command or begun or failed.keys() >= {*state.command.hosts}:
        return None
    return make_command_without(state, *failed)


def complete_failure(state: RunState, failure: Failure) -> Failure:
    """The failure with a hint that has the user's own options. What else keeps a host from being reached, doctor finds
    out."""
    hint, command = failure.hint, state.command or _NO_COMMAND
    if hint is None and failure.kind is Kind.UNREACHABLE and state.last_attempt is None and command.verb != "doctor":
        hint = advise("doctor")
    if failure.code == "passphrase" and command.words:
        text = f"give it to an agent ({hint}), or type the passphrase when asked:"
        words = [word for word in command.words if word != "--ask-pass"]
        hint = Hint([words[0], "--ask-pass", *words[1:]], text)
    if command.verb == "install":
        hint = repeat_command(hint, command.words)
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
    cause = _find_cause(state, attempt, over, ranks, known)
    proofs = state.proofs.values()
    orphans: dict[str, tuple[int, ...]] = {}
    for host, pids in (item for proof in proofs for item in proof.orphans.items() if item[1]):
        orphans[host] = (*orphans.get(host, ()), *pids)
    unchecked = tuple(dict.fromkeys(host for proof in proofs for host in proof.unchecked))
    checked = dict.fromkeys(host for proof in proofs for host in proof.hosts)
    started, ended = _find_run_times(state, run, shifts)
    stall = attempt.stall
    goes_on = bool(cause.failed or (over and over.reason in _REASONS))
    if cause.diagnosis and cause.diagnosis.code == _DAMAGED:
        goes_on = begun.resumed is None  # else it would go on from the damaged one again
    number, exception = state.uncaught or (None, "")
    beside = [f"rank {rank.rank} on {rank.host}" for rank in ranks if rank.rank == number]
    return RunOutcome(
        run=begun.run or (over.run if over else ""),
        head=begun.head,
        reason=over.reason if over else "",
        detail=over.detail if over else "",
        started=started,
        ended=ended,
        ranks=ranks,
        first=cause.failed[0].rank if cause.failed else None,
        diagnosis=cause.diagnosis,
        followers=tuple(rank.rank for rank in cause.failed[1:]),
        stopped=tuple(rank.rank for rank in ranks if rank.state == "stopped"),
        clean=tuple(host for host in checked if host not in orphans and host not in unchecked),
        orphans=orphans,
        unchecked=unchecked,
        stall=stall.lines or None if stall else None,
        stalled=stall is not None and stall.event.ends,
        places=stall.places if stall else (),
        suspects=stall.suspects if stall else (),
        separate=attempt.separate,
        loss=_find_last_loss(attempt),
        lost_loss=attempt.lost_loss and replace(attempt.lost_loss, command=_make_command(state, "--stop-on-nan")),
        slow_host=attempt.slow_host,
        addresses=() if over else _find_addresses(attempt),
        lost_hosts=tuple(dict.fromkeys(each.host for each in state.failures if each.kind is Kind.LOST)),
        restarts=tuple(" · ".join(describe_restart(*pair)) for pair in pairwise(run.attempts)),
        resume=_make_command(state, "--resume", "auto", needs="--keep") if goes_on else None,
        command=begun.command,
        backend=attempt.backend,
        planned_backend=begun.backend,
        uncaught=next((f"{rank} had an exception {exception}" for rank in beside), ""),
    )


def _find_last_loss(attempt: Attempt) -> float | None:
    """The last loss of the first rank that printed one, that of an epoch if there is one; None if it is no number."""
    rank = next((rank for rank in attempt.ranks if rank.loss), None)
    if rank is None or rank.loss is None or attempt.lost_loss:
        return None
    return rank.figures.get("train_loss", rank.loss[1])


def _make_command(state: RunState, option: str, *value: str, needs: str = "") -> Hint | None:
    """Returns the same command line with an option, if it is one of `run` that has the option that this ``needs``.
    Without such a need, the option itself is to be new."""
    (own, script), options = _split_command(state), _list_options(state)
    if own[:1] != ("run",) or (needs not in options if needs else option in options):
        return None
    words = Hint(["run", option, *value]).repeat(own).words if option in options else ["run", option, *value, *own[1:]]
    return complete_hint(Hint([*words, *script]), state.selection_flags)


def _split_command(state: RunState) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words of the run's command line before its script, and from the script on."""
    asked = state.run.asked or state.command or _NO_COMMAND
    at = find_script_word(asked.title, asked.words)
    return asked.words[:at], asked.words[at:]


def find_script(state: RunState) -> str:
    """Returns the script of the run as it was typed, else its name."""
    return [*_split_command(state)[1], state.run.title][0]


def _list_options(state: RunState) -> set[str]:
    """The options of ipexctl in the command line of the run."""
    return {word.partition("=")[0] for word in _split_command(state)[0]}


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
) -> Cause:
    """The rank that failed first by itself, and what that is known as, with commands that are ready to be typed."""
    if (over is None or over.reason in ("done", "stopped")) and all(rank.state != "failed" for rank in ranks):
        return Cause((), None)
    output = attempt.launcher.decode("utf-8", "replace")
    cause = find_cause(known(), ranks, f"{over.detail}\n{output}" if over else output)
    diagnosis = cause.diagnosis
    if diagnosis is None:
        return cause
    run = attempt.started.run or (over.run if over else "")
    fix, command = diagnosis.fix, diagnosis.command
    hints = (warning for warning in state.warnings if isinstance(warning, Hint) and warning.words[0] == "install")
    if diagnosis.code == "env-rendezvous" and (alone := _list_options(state) & {"--per-host", "--instances"}):
        option = min(alone)
        diagnosis = replace(diagnosis, why=f"{option} gives no RANK and no WORLD_SIZE to the processes that it starts.")
        fix = f"leave out {option}, or give --engine torchrun, which starts the ranks; what each gets: run --dry-run"
    reached = {each.stage for rank in cause.failed[:1] for each in attempt.ranks[rank.rank].stages}
    if diagnosis.code in ("sigsegv", "heap") and reached & {"program", "python"} == {"program"}:
        diagnosis = replace(
            diagnosis, why="It is no Python: the fault is in the program, or in a library that it loads."
        )
        fix, command = "a build of it with -g -fsanitize=address names the line in which it happens", ""
    if diagnosis.code == "package" and (every := next(hints, None)) is not None:
        fix = command = _join_packages(command, every)  # the look before the start knows all that the script lacks
    if diagnosis.code == "module" and _LOCAL_MODULE in state.warnings.values():
        diagnosis = replace(diagnosis, why="It lies in the directory of this command, of which only a part was sent.")
        fix = command = _make_command(state, "--project", ".") or command
    sent = _find_left_out(state, cause.words.get("path", "")) if diagnosis.code == "no-file" else None
    if diagnosis.code == "library":
        sent = _find_left_out_library(state, cause.words["library"])
    if sent:
        diagnosis = replace(
            diagnosis, why="It is on this machine; .gitignore, .ipexctlignore or --exclude leaves it out."
        )
        fix = command = sent
    if diagnosis.code == "sigkill" and cause.failed and cause.failed[0].kills == 0:
        who = (
            "An administrator, a batch system, a daemon that watches memory, a limit of CPU time (ulimit -t) or kill -9"
        )
        whose = "" if cause.failed[0].signal else "a process that the rank started was "
        title = f"{whose}killed by SIGKILL, not by the kernel for lack of memory nor by ipexctl"
        diagnosis = replace(diagnosis, title=title, why=f"{who} sends it.")
        fix = command = advise("logs", run)
    resumed = attempt.started.resumed
    if diagnosis.code == _DAMAGED and resumed and resumed.name:
        diagnosis = replace(diagnosis, title=f"{resumed.name}, which the ranks went on from, is damaged or incomplete")
        fix = "move it away on the hosts, then --resume auto takes the one before it; or from the beginning:"
        command = _make_command(state, "--resume", "off", needs="--keep") or command
    texts = fill_command(fix, command, run, find_script(state))
    fix, command = (complete_hint(text, state.selection_flags) for text in texts)
    why = " ".join([diagnosis.why, *_describe_limits(state, cause, diagnosis.code)])
    return replace(cause, diagnosis=replace(diagnosis, why=why, fix=fix, command=command))


def _find_left_out(state: RunState, path: str) -> Hint | None:
    """The command that carries a file to where the script looks for it, if the sync left it out. Ranks work in the
    user's directory; where the script has left that, its place in the project counts."""
    path = posixpath.normpath(path)
    own = [name for name, local_path in state.left_out.items() if f"{path}/".startswith(f"{local_path}/")]
    for name in own or [name for name in state.left_out if f"/{name.rstrip('/')}/" in f"/{path}/"]:
        local_path = state.left_out[name]
        directory = local_path if name.endswith("/") else posixpath.dirname(local_path)
        if directory and not f"{directory}/".endswith("../"):  # the project's own is sent without its files
            return advise("sync", directory)
        return _make_command(state, "--exclude", f"!/{name}")
    return None


def _find_left_out_library(state: RunState, library: str) -> Hint | None:
    """The command that sends a library of the project's own, and has the loader look for it."""
    name = next((name for name in state.left_out if posixpath.basename(name) == library), None)
    if name is None:
        return None
    path = "/".join(["{workdir}", *name.split("/")[:-1]])
    return _make_command(state, "--env", f"LD_LIBRARY_PATH={path}", "--exclude", f"!/{name}")


def _join_packages(command: str | None, every: Hint) -> Hint:
    """The command that installs what both advise: a module of the script may lack what the script itself does not."""
    if not isinstance(command, Hint) or command.words[:2] != ("install", "--with") or command.words[2] in every.words:
        return Hint(every.words)
    return Hint([*command.words[:3], *every.words[1:]])


def _describe_limits(state: RunState, cause: Cause, code: str) -> list[str]:
    """What the host of the failed rank has of that which ran out."""
    host = cause.failed[0].host if cause.failed else ""
    if code == "disk":
        return _describe_room(state, host, cause)
    limit = state.facts[host].limits.get("nofile_hard") if host in state.facts else None
    return [f"{host} allows {limit}."] if code == "files" and limit else []


def _describe_room(state: RunState, host: str, cause: Cause) -> list[str]:
    """What was free where the failed rank writes: then, or, where that is not known, when the run began."""
    end = state.ranks[cause.failed[0].rank].ended if cause.failed and state.ranks else None
    if end and end.room:
        return [f"{end.room[0]} on {host} had {format_size(end.room[1])} free then."]
    disks = state.facts[host].disks or () if host in state.facts else ()
    rooms = {disk.mount: f"{format_size(disk.free)} in {disk.path}" for disk in disks if disk.free is not None}
    return [f"When the run began, {host} had {join_names([*rooms.values()], 4)} free."] if rooms else []


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
        **select_attributes(end, *names, "kills", "exit_line"),
        host=end.host or rank.host,
        at=end.at + shifts.get(end.host, 0.0) if end.at else rank.ended_at,
        tail=_read_last_line(state, rank) if rank.result == "ok" else _read_tail(state, rank, _TAIL_LINES),
    )


def _read_last_line(state: RunState, rank: RankState) -> str:
    """The last line of stdout, where a bar has no place, else of what is known of both streams."""
    log = None if rank.ended and rank.ended.tail else state.run.outputs.get(rank.rank)
    for _, stream, text in reversed([*log.head, *log.tail] if log else []):
        lines = [line for line in text.split(b"\n") if _has_word(line)]
        if stream == "out" and lines:
            return drop_overwritten(lines[-1]).decode("utf-8", "replace")
    return _read_tail(state, rank, 1)


def _read_tail(state: RunState, rank: RankState, most: int) -> str:
    """The rank's last lines, both streams as they were seen."""
    output = rank.ended.tail if rank.ended else b""
    if not output:
        output = rank.tail + b"\n".join(line.data for key, line in state.open.items() if key[0] == rank.rank)
    lines = [drop_overwritten(line) for line in output.split(b"\n")]
    lines = [line for line in lines if line.strip()]
    if most == 1:
        lines = [*filter(_has_word, lines)] or lines
    return b"\n".join(lines[-most:]).decode("utf-8", "replace")


def _has_word(line: bytes) -> bool:
    """Returns whether there is a letter or a digit in it, as in no ruler of a table."""
    return any(map(str.isalnum, line.decode("utf-8", "replace")))
