"""What a run shows about a known error beside its message. An entry of the catalogue has other texts for a circumstance
that it names: those of ``[sigkill.sent]`` stand for those of ``[sigkill]`` where `_is_sent` holds."""

import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from ipexctl.decide.diagnosis.cause import Cause
from ipexctl.decide.diagnosis.known_errors import ErrorMatch
from ipexctl.decide.run.command_line import list_options, make_command_of_module, make_command_with
from ipexctl.model.errors import Hint, advise
from ipexctl.model.json_values import Record, field
from ipexctl.model.reports import RankOutcome
from ipexctl.model.run_state import RankState, RunState
from ipexctl.model.text import format_ranks, format_size, join_names, printable

_BACKTRACE_PLACE = re.compile(r"^#\d+ .*\s+at (?!\.\./)(?:.*/)?([^\s/]+:[1-9]\d*)$", re.MULTILINE)  # gfortran's
_HANDLED = re.compile(r"^([\w.]+(?:: .*)?)\n\nDuring handling of the above exception", re.MULTILINE)
_RECURSION = 20  # times that one line stands in the 100 calls that faulthandler writes
_LOCAL_MODULE = "local-module"  # as `script_imports.describe_local_modules` has it


class _Failure(Record):
    state: RunState
    rank: RankOutcome  # that failed first
    words: Mapping[str, str]  # of its message

    @property
    def own(self) -> RankState:
        """The rank in the run, after which a play may have another step."""
        assert self.state.last_attempt is not None
        return self.state.last_attempt.ranks[self.rank.rank]


class _Shown(Record):
    """Words of the entry's texts, and the command, if it is made of the user's own."""

    words: Mapping[str, str] = field(default_factory=dict)
    command: Hint | None = None


def add_circumstance(state: RunState, cause: Cause) -> ErrorMatch | None:
    """Returns what the cause is known as, in the first of the entry's circumstances that holds in this run."""
    match = cause.match
    if match is None or not cause.failed:
        return match
    failure = _Failure(state, cause.failed[0], match.words)
    for name, known in match.known.circumstances.items():
        if (shown := CIRCUMSTANCES[name](failure)) is not None:
            return replace(match, known=known, words={**match.words, **shown.words}, command=shown.command)
    return match


def _is_without_launcher(failure: _Failure) -> _Shown | None:
    options = list_options(failure.state) & {"--per-host", "--instances"}
    return _Shown({"option": min(options)}) if options else None


def _has_other_mpi(failure: _Failure) -> _Shown | None:
    return _Shown() if "--mpi" in list_options(failure.state) else None


def _is_no_python(failure: _Failure) -> _Shown | None:
    stages = {each.stage for each in failure.own.stages}
    return _Shown() if stages & {"program", "python"} == {"program"} else None


def _has_backtrace(failure: _Failure) -> _Shown | None:
    place = _BACKTRACE_PLACE.search(failure.rank.tail)
    return _Shown({"place": place[1]}) if place and _is_no_python(failure) else None


def _is_child_crash(failure: _Failure) -> _Shown | None:
    return _Shown() if {"SEGV", "ABRT", "BUS", "ILL", "FPE"} & set(failure.words.values()) else None


def _was_handling(failure: _Failure) -> _Shown | None:
    handled = _HANDLED.search(failure.rank.traceback)
    return _Shown({"handled": printable(handled[1], 120)}) if handled else None


def _is_recursive(failure: _Failure) -> _Shown | None:
    threads = map(str.splitlines, failure.rank.traceback.split("\n\n"))
    return _Shown() if any(max(Counter(calls).values(), default=0) >= _RECURSION for calls in threads) else None


def _was_warned(failure: _Failure) -> _Shown | None:
    """A look at the script before the start knew what it lacks; a module of the script may lack more."""
    module, every = failure.words["module"], _find_warned(failure.state, "install")
    if every is None:
        return None
    own = () if module in every.words else ("--with", module)
    return _Shown(command=Hint(["install", *own, *every.words[1:]]))


def _find_warned(state: RunState, verb: str) -> Hint | None:
    return next((hint for hint in state.warnings if isinstance(hint, Hint) and hint.words[0] == verb), None)


def _is_misplaced(failure: _Failure) -> _Shown | None:
    better = _find_warned(failure.state, "run")
    return _Shown(command=Hint(better.words)) if better else None


def _is_not_sent(failure: _Failure) -> _Shown | None:
    command = make_command_with(failure.state, "--project", ".")
    return _Shown(command=command) if _LOCAL_MODULE in failure.state.warnings.values() else None


def _can_be_impi(failure: _Failure) -> _Shown | None:
    """The script names a backend that torch lacks and impi stands for; the environment has it."""
    begun, asked = failure.state.last_attempt, failure.words.get("backend", "mpi")
    planned = begun.started.backend if begun and asked in {"ccl", "mpi"} else ""
    command = make_command_with(failure.state, "--backend-override") if planned == "impi" else None
    return _Shown(command=command) if command else None


def _is_taken_for_zero(failure: _Failure) -> _Shown | None:
    zeros = failure.state.last_attempt.zeros if failure.state.last_attempt else {}
    lines = dict.fromkeys(line.rpartition("/")[2] or "the script or a library" for line in zeros.values())
    who = format_ranks(sorted(zeros))
    return _Shown({"who": who, "line": printable(join_names([*lines], 3), 200)}) if zeros else None


def _has_caught(failure: _Failure) -> _Shown | None:
    """The last that another rank wrote is an exception, and it did not fail."""
    attempt, spoke = failure.state.last_attempt, failure.state.last_words
    assert attempt is not None
    ended = [rank for rank in attempt.ranks if rank.ended and (rank.ended.cause or rank.ended.status == 0)]
    first = min((rank for rank in ended if rank.rank in spoke), key=lambda rank: spoke[rank.rank][0], default=None)
    if first is None:
        return None
    return _Shown({"who": f"rank {first.rank} on {first.host}", "raised": spoke[first.rank][1]})


def _is_below(failure: _Failure) -> _Shown | None:
    command = make_command_of_module(failure.state)
    return _Shown(command=command) if command else None


def _is_left_out(failure: _Failure) -> _Shown | None:
    """The sync left a file out. Ranks work in the user's directory; where the script has left that, the file's place in
    the project counts."""
    left_out, path = failure.state.left_out, posixpath.normpath(failure.words["path"])
    own = [name for name, local_path in left_out.items() if f"{path}/".startswith(f"{local_path}/")]
    name = next(iter(own or [name for name in left_out if f"/{name.rstrip('/')}/" in f"/{path}/"]), None)
    if name is None:
        return None
    directory = left_out[name] if name.endswith("/") else posixpath.dirname(left_out[name])
    if directory and not f"{directory}/".endswith("../"):  # the project's own is sent without its files
        return _Shown(command=advise("sync", directory))
    command = make_command_with(failure.state, "--exclude", f"!/{name}")
    return _Shown(command=command) if command else None


def _is_library_left_out(failure: _Failure) -> _Shown | None:
    """The sync left out a library of the project, for which the loader does not look in its directory either."""
    library = failure.words["library"]
    name = next((name for name in failure.state.left_out if posixpath.basename(name) == library), None)
    if name is None:
        return None
    path = "/".join(["{workdir}", *name.split("/")[:-1]])
    command = make_command_with(failure.state, "--env", f"LD_LIBRARY_PATH={path}", "--exclude", f"!/{name}")
    return _Shown(command=command) if command else None


def _is_sent(failure: _Failure) -> _Shown | None:
    return _Shown() if failure.rank.kills == 0 and failure.rank.signal else None


def _is_sent_to_child(failure: _Failure) -> _Shown | None:
    return _Shown() if failure.rank.kills == 0 and not failure.rank.signal else None


def _was_resumed(failure: _Failure) -> _Shown | None:
    attempt = failure.state.last_attempt
    resumed = attempt.started.resumed if attempt else None
    if resumed is None or not resumed.name:
        return None
    return _Shown({"checkpoint": resumed.name}, make_command_with(failure.state, "--resume", "off", needs="--keep"))


def _is_not_resumed(failure: _Failure) -> _Shown | None:
    if list_options(failure.state) & {"--keep", "--resume"} != {"--keep"}:
        return None
    return _Shown(command=make_command_with(failure.state, "--resume", "auto"))


def _has_file_limit(failure: _Failure) -> _Shown | None:
    facts = failure.state.facts.get(failure.rank.host)
    limit = facts.limits.get("nofile_hard") if facts else None
    return _Shown({"host": failure.rank.host, "limit": str(limit)}) if limit else None


def _had_room(failure: _Failure) -> _Shown | None:
    end = failure.own.ended
    if end is None or not end.room:
        return None
    path, free = end.room  # where the doctor may not look
    words = {"path": path, "host": failure.rank.host, "size": format_size(free)}
    return _Shown(words, advise("exec", f"df -h {shlex.quote(path)}"))


def _had_room_before(failure: _Failure) -> _Shown | None:
    facts = failure.state.facts.get(failure.rank.host)
    disks = facts.disks or () if facts else ()
    rooms = {disk.mount: f"{format_size(disk.free)} in {disk.path}" for disk in disks if disk.free is not None}
    return _Shown({"host": failure.rank.host, "rooms": join_names([*rooms.values()], 4)}) if rooms else None


CIRCUMSTANCES: Mapping[str, Callable[[_Failure], _Shown | None]] = {
    "without-launcher": _is_without_launcher,
    "other-mpi": _has_other_mpi,
    "crashed": _is_child_crash,
    "handling": _was_handling,
    "recursion": _is_recursive,
    "backtrace": _has_backtrace,
    "no-python": _is_no_python,
    "warned": _was_warned,
    "misplaced": _is_misplaced,
    "not-sent": _is_not_sent,
    "impi": _can_be_impi,
    "zero": _is_taken_for_zero,
    "caught": _has_caught,
    "below": _is_below,
    "left-out": _is_left_out,
    "library-left-out": _is_library_left_out,
    "sent": _is_sent,
    "sent-to-child": _is_sent_to_child,
    "resumed": _was_resumed,
    "not-resumed": _is_not_resumed,
    "file-limit": _has_file_limit,
    "room": _had_room,
    "room-before": _had_room_before,
}
