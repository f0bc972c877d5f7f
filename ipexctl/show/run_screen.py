"""What is shown of a run when it is over."""

import re
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment

from ipexctl.model.errors import Exit, Hint, advise, complete_hint
from ipexctl.model.harmless import find_harmless
from ipexctl.model.reports import Cleanup, RankOutcome, RunOutcome
from ipexctl.model.text import format_ranks, group_pairs, join_names, pluralize, strip_colours
from ipexctl.show import phrases, typeset
from ipexctl.show.frame_lines import fill_cells, make_row
from ipexctl.show.sanitise import escape, escape_lines, one_line
from ipexctl.show.typeset import QUIET, STRONG, WARN, AtWidth, Line, Part, labelled, outcome, sentences, text, whole


def format_run_card(run: RunOutcome) -> list[RenderableType]:
    """How a run ended: on success a line per rank or per host, else who failed first, why, and what followed.
    `format_next_step` says what to do about it."""
    after = f" after {phrases.format_duration(run.ended - run.started)}" if run.started else ""  # else it never started
    stopper = f" ({one_line(run.detail)})" if run.reason == "stopped" and run.detail else ""
    stall = [labelled("" if index else "  stall", line) for index, line in enumerate(run.stall or ())]
    items, last = _list_warnings(run), _list_last_items(run)
    first = next((rank for rank in run.ranks if rank.rank == run.first), None)
    if first:
        if run.restarts and run.detail:
            items.append(labelled("  restart", run.detail))
        below = [*_explain_cause(run), *stall, *_list_consequences(run, after, stopper), *last]
        return [*items, *_first_failure(first, run, [*below, *format_next_step(run)]), *below]
    if run.good:
        headline = f"{count_ranks(run)} ended well{after}{name_flaws(run)}"
        items += [outcome(True, headline), AtWidth(_draw_ranks, run.ranks), *stall]
    elif not run.reason:
        goes = "is out of sight, and may go on" if run.head in run.lost_hosts else "goes on"
        items += [text(f"run {run.run} {goes}: {count_ranks(run)}"), *stall]
        items += [labelled("" if index else "  address", url) for index, url in enumerate(run.addresses)]
    else:
        items.append(outcome(False, f"{name_end(run)}{after}".rstrip(",") + stopper))
        if run.detail and not stopper:
            items += sentences(run.detail, 2)
        if run.uncaught:
            items += sentences(run.uncaught, 2)
        items += stall
        if run.reason != "done":
            items += _explain_cause(run)
        if run.stopped:
            items.append(labelled("  ended", f"by us: {format_ranks(run.stopped)}"))
    return [*items, *last]


def _list_warnings(run: RunOutcome) -> list[RenderableType]:
    """What stands above how a run ended: what is wrong with it however it ended, and its restarts."""
    items: list[RenderableType] = []
    if run.separate:
        items.append(Line(text(("! ", WARN), (run.separate.text, STRONG)), 2))
        items += [part for cause in run.separate.causes for part in sentences(cause, 2)]
    if run.lost_loss:
        items.append(Line(text(("! ", WARN), (run.lost_loss.text, STRONG)), 2))
    if run.slow_host:
        items += [labelled("" if index else "  slow", line) for index, line in enumerate(run.slow_host.lines)]
    return [*items, *(labelled(f"  restart {number}", why) for number, why in enumerate(run.restarts, 1))]


def _explain_cause(run: RunOutcome) -> list[RenderableType]:
    if not run.diagnosis:
        return []
    why = [labelled("", run.diagnosis.why)] if run.diagnosis.why else []
    return [labelled("  known", (run.diagnosis.title, STRONG)), *why]


def _list_consequences(run: RunOutcome, after: str, stopper: str) -> list[RenderableType]:
    """What followed the first failure."""
    words = []
    if run.followers:
        words.append(f"failed too: {locate_ranks(run.followers, run)}")
    if run.reason == "stopped":
        words.append(f"{name_end(run)}{after}{stopper}")
    if run.stopped:
        words.append(f"ended by us: {pluralize(len(run.stopped), 'rank')}")
    return [labelled("  then", each) for each in words]


def _list_last_items(run: RunOutcome) -> list[RenderableType]:
    """What stands below how a run ended: ends that nobody observed, another backend, its checkpoint, the cleanup."""
    items: list[RenderableType] = []
    gone = [rank.rank for rank in run.ranks if rank.state == "lost" or (run.reason and rank.state == "running")]
    if gone:
        items.append(Line(text(("  ! ", WARN), f"end not observed: {locate_ranks(gone, run)}"), 4))
    if run.backend != run.planned_backend:
        items.append(labelled("  backend", phrases.format_backend(run.backend, run.planned_backend)))
    if run.resume:
        items.append(labelled("  resume", run.resume, copied=True))
    return [*items, *format_cleanup_proof(run)]


_REASONS = {
    "done": "the run ended with failures", "rank": "the run ended because a rank failed,",
    "stopped": "the run was stopped", "lost": "the run ended because a part of it was lost,",
    "limit": "the run reached its limit", "launch": "the launch failed",
}  # fmt: skip


def name_end(run: RunOutcome) -> str:
    """How a run ended that did not end well, as the beginning of a headline."""
    if run.reason == "lost" and run.lost_hosts:
        verb = "was" if len(run.lost_hosts) == 1 else "were"
        return f"the run ended because {join_names(run.lost_hosts, 3)} {verb} lost,"
    return "the run was ended because it stalled," if run.stalled else _REASONS[run.reason]


def name_flaws(run: RunOutcome) -> str:
    """What is wrong with a run whose ranks ended well, as the end of a headline."""
    flaws = []
    if run.separate:
        flaws.append("did not work together")
    if run.lost_loss:
        flaws.append("the loss is no number")
    if run.uncaught:
        flaws.append(run.uncaught)
    if run.lost_hosts:
        flaws.append(f"without {join_names(run.lost_hosts, 3)}, which got lost (exit code {Exit.LOST.value})")
    return "".join(f", but {flaw}" for flaw in flaws)


def count_ranks(run: RunOutcome) -> str:
    """``8 ranks on 2 hosts``."""
    return f"{pluralize(len(run.ranks), 'rank')} on {pluralize(len({rank.host for rank in run.ranks}), 'host')}"


_TRACEBACK = "Traceback (most recent call last):"
_OTHER_STACKS = re.compile(r"^(?:Thread 0x.*\n(?:  .*\n){,1000}\n?|Extension modules: .*)", re.MULTILINE)  # of a crash
_OUR_FRAME = r'.*/hooks/\w+\.py", line \d+ in answer\n'  # of a thread that our hooks start
_OUR_STACKS = re.compile(rf"^Thread 0x.*\n(?:  .*\n){{,1000}}?{_OUR_FRAME}(?:  .*\n){{,1000}}\n?", re.MULTILINE)
_OUR_FILE = r'^ +File ".*/hooks/(?:sitecustomize|_ipexctl_\w+)\.py"'
_OUR_CALL = re.compile(rf"{_OUR_FILE}, line \d+,? in .*\n?(?: {{4}}.*\n?){{,2}}", re.MULTILINE)  # with its source


def get_last_output(rank: RankOutcome) -> str:
    """The end of what a failed rank wrote, without harmless lines before and after it, or why it failed. Of a crash,
    the stack of the thread that crashed, below the words with which native code aborts; above the exception for a
    command that failed, what that wrote."""
    output = strip_colours((rank.traceback or _drop_harmless_ends(rank.tail)).strip("\n") or rank.error)
    if rank.traceback.startswith("Fatal Python error: Aborted"):
        _, thrown, what = rank.tail.rpartition("terminate called ")
        lines = (thrown + what).splitlines()[:2] if thrown else _drop_harmless_ends(rank.tail).splitlines()[-1:]
        output = "\n".join([*map(strip_colours, lines), output])
    if "CalledProcessError: Command " in rank.traceback and (count := rank.traceback.count(_TRACEBACK)):
        before, *tracebacks = rank.tail.rsplit(_TRACEBACK, count)
        if len(tracebacks) == count:  # else its beginning is lost
            lines = _drop_harmless_ends(before.rpartition("\n")[0]).splitlines()[-3:]  # the command's own, mostly
            output = "\n".join([*map(strip_colours, lines), output])
    if "\nCurrent thread 0x" in output and "<no Python frame>" not in output:
        output = _OTHER_STACKS.sub("", output)
    return _OUR_CALL.sub("", _OUR_STACKS.sub("", output)).strip("\n")


def _drop_harmless_ends(output: str) -> str:
    lines = output.split("\n")
    telling = [number for number, line in enumerate(lines) if line.strip() and find_harmless(line) is None]
    return "\n".join(lines[telling[0] : telling[-1] + 1]) if telling else ""


def _first_failure(rank: RankOutcome, run: RunOutcome, below: Sequence[RenderableType]) -> list[RenderableType]:
    """The rank that failed first, and its last words, which leave room for what is ``below`` them."""
    after = f" after {phrases.format_duration(rank.at - run.started)}" if run.started else ""
    first = f" (first of {len(run.followers) + 1} that failed)" if run.followers else ""
    who = f"rank {rank.rank} on {rank.host} {describe_rank_end(rank)}"
    items: list[RenderableType] = [outcome(False, (who, STRONG), f"{after}{first}")]
    output = get_last_output(rank)
    if output:
        exception = escape_lines(strip_colours(rank.error))[0]
        items.append(_LastWords(escape_lines(output), "" if rank.where else rank.line, below, exception))
    if rank.where:
        items.append(labelled("  line", (rank.where, STRONG), "  shortly before"))
    error = rank.error if rank.exit_line or not rank.traceback else ""
    plain = dict.fromkeys(map(strip_colours, [error, run.diagnosis.evidence if run.diagnosis else ""]))
    items += [_LastWords([one_line(word)]) for word in plain if word not in output and not rank.oom]
    if rank.lingered >= _LINGERING:
        items.append(text(f"  its process did not end by itself for {phrases.format_duration(rank.lingered)}"))
    if rank.kernel:
        items.append(Line(text(f"  kernel: {rank.kernel}"), 10))
    return items


LAST_WORDS = 30  # lines of a failed rank, where no screen bounds them
_LEAST_WORDS = 3  # rows of them at least
_REST = 7  # rows of a screen for who failed, options of the next command, where the run is saved, and a prompt
_LINE_ROWS = 3  # rows of a line


class _LastWords:
    """The end of what a failed rank wrote, so that who failed above it and what to do below stay on one screen: of a
    long line the middle gives way, of many lines those between the first and the last ones; then the line of its script
    is named. Of a traceback what marks a part of a line gives way first, then the calls in libraries; the exception
    itself stands above the end of a message of many lines (a tensor, traces), the last words of a failed command above
    its exception."""

    def __init__(
        self, lines: Sequence[str], line: str = "", below: Sequence[RenderableType] = (), exception: str = ""
    ) -> None:
        self._lines, self._line, self._below, self._exception = lines, line, below, exception

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = options.max_width - 2
        most, shown = LAST_WORDS * _LINE_ROWS, list(self._lines)
        if console.is_terminal:
            printed = Segment.split_lines(console.render(Group(*self._below), options))
            below = sum(-(-max(Segment.get_line_length(row), 1) // options.max_width) for row in printed)
            most = max(console.height - _REST - below, _LEAST_WORDS)
        if len(shown) > LAST_WORDS or _count_rows(shown, width) > most:
            shown = [line for line in shown if not _MARKS.match(line)]
        length = len(shown)
        if length > LAST_WORDS or _count_rows(shown, width) > most:
            shown = _drop_library_calls(shown)
        exception, first, *lines = [
            _cut_line(line, _LINE_ROWS * width) for line in (self._exception or shown[0], *shown)
        ]
        while len(lines) > 1 and (len(lines) >= LAST_WORDS or _count_rows([first, _CUT, *lines], width) > most):
            if lines[0] == exception or (lines[1] == _TRACEBACK and lines[0].strip()):
                first = lines[0]
            del lines[0]
        cut = len(lines) + 1 < length
        yield from (item for line in [first, *([_CUT] if cut else []), *lines] for item in whole(line, 2))
        if cut and self._line:
            yield labelled("  line", (self._line, STRONG))


_CUT = "…"
_BARE_EXCEPTION = re.compile(r" *(?:\w+\.)*\w+(?:Error|Exception|Iteration):? *")
_MARKS = re.compile(r"\s*[~^]+$|Extension modules: ")
_LIBRARY_CALL = re.compile(r'\s+File "(?:.*/(?:site-packages|dist-packages|lib/python3\.\d+)/|<frozen )')


def _count_rows(lines: Sequence[str], width: int) -> int:
    return sum(-(-max(phrases.count_cells(line), 1) // width) for line in lines)


def _count_indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _drop_library_calls(lines: Sequence[str]) -> list[str]:
    """The lines of a traceback without the calls in libraries: their lines and the deeper ones below. All of one that
    has no other call, as of a module of the environment; the last call where the exception has no message."""
    kept: list[str] = []
    left: list[str] = []  # the call that is left out
    for line in lines:
        if _LIBRARY_CALL.match(line):
            left = [line]
        elif left and _count_indent(line) > _count_indent(left[0]):
            left.append(line)
        else:
            kept += [*(left if _BARE_EXCEPTION.fullmatch(line) else ()), line]
            left = []
    return kept if any(line.lstrip().startswith("File ") for line in kept) else list(lines)


def _cut_line(line: str, cells: int) -> str:
    """A line without its middle, if it is longer."""
    half = cells // (2 if line.isascii() else 4) - 2
    return line if phrases.count_cells(line) <= cells else f"{line[:half]} {_CUT} {line[-half:]}"


def format_next_step(run: RunOutcome, place: Sequence[str] = ()) -> list[RenderableType]:
    """What helps, and as the last line the one command to type; nothing after a good run. ``place`` are the options by
    which it finds the run's hosts."""
    words, command = choose_next_step(run)
    if run.addresses:
        words = f"end it: {complete_hint(advise('stop', run.run), place)}; watch it:"
    command = complete_hint(command, place)
    if not words and isinstance(command, Hint) and command.words[0] == "install" and "--limit" in command.words:
        words = "on the hosts of this run; without --limit all of the hostfile have it:"
    return typeset.format_next_step(words, command)


def format_orphans_step(run: str, cleanup: Cleanup, place: Sequence[str] = ()) -> list[RenderableType]:
    """What to do about processes that are left."""
    command = advise("stop", "--orphans", *([run] if run else []))
    return typeset.format_next_step(_END_ORPHANS, complete_hint(command, place)) if cleanup.orphans else []


_END_ORPHANS = "this looks for the processes again and ends those that can be ended"


def choose_next_step(run: RunOutcome) -> tuple[str, str]:
    """Words about what helps, and a command; empty where there is nothing to say."""
    first = next((rank for rank in run.ranks if rank.rank == run.first), None)
    if run.orphans:
        return _END_ORPHANS, advise("stop", "--orphans", run.run)
    if run.good and run.lost_loss and run.lost_loss.command:
        return "this ends such a run at its first loss that is no number:", run.lost_loss.command
    if run.good or not run.ranks:
        return "", ""
    if not run.reason:
        return "", advise("attach", run.run)
    if known := run.diagnosis:
        command = known.command or advise("logs", run.run, *(["--rank", str(first.rank)] if first else []))
        return known.fix if known.fix != command else "", command
    if first and first.status == 127:
        return "a command or a library was not found", advise("doctor")
    if first:
        return f"all that rank {first.rank} wrote:", advise("logs", run.run, "--rank", str(first.rank))
    if run.stall and (not run.places or any(place.line or place.call for place in run.places)):  # else: no stacks
        what = "where the ranks stood:"
        if not run.stalled:
            what = f"--stall kill ends such a run by itself; {what}"
        return what, advise("logs", run.run, "--stacks")
    if run.reason in ("lost", "launch"):
        return "whether the hosts and the network between them are well:", advise("doctor")
    return "", advise("logs", run.run)


_LINGERING = 5.0  # seconds for which a Python that ends takes leave of MPI and its threads


def describe_rank_end(rank: RankOutcome) -> str:
    """``exited with code 3``, ``was killed by SIGSEGV (signal 11)``, ``called MPI_Abort(7)``."""
    if rank.abort is not None:
        return f"called MPI_Abort({rank.abort})"
    if rank.oom and rank.signal:
        return f"was killed ({rank.oom})"
    if number := rank.signal:
        name = phrases.format_signal(number)
        return f"was killed by {name} (signal {number})" if name != f"signal {number}" else f"was killed by {name}"
    by = f" by sys.exit at {rank.exit_line}" if rank.exit_line else ""
    return f"exited with code {rank.status}{by}" if rank.lingered < _LINGERING else f"failed{by}"


def locate_ranks(numbers: Sequence[int], run: RunOutcome) -> str:
    """``ranks 0-3 on node1``."""
    wanted = {*numbers}
    where = phrases.format_hosts(rank.host for rank in run.ranks if rank.rank in wanted)
    return f"{format_ranks(numbers)} on {where}"


_LISTED_RANKS = 16  # ranks, or hosts, that have a line each
_END = "exit 0"
_MIN_CELLS = 8  # of a last line or a host's name


def _draw_ranks(width: int, ranks: Sequence[RankOutcome]) -> Iterator[RenderableType]:
    """A line per rank with its last words; of many, a line per host. A long last line gives way, then the host's name;
    rank and exit never do."""
    by_host = group_pairs((rank.host, rank) for rank in ranks)
    groups = [[rank] for rank in ranks] if len(ranks) <= _LISTED_RANKS else list(by_host.values())
    rows = [(format_ranks([rank.rank for rank in group]), group[0]) for group in groups[:_LISTED_RANKS]]
    size = max((phrases.count_cells(numbers) for numbers, _ in rows), default=0)
    room = width - size - len(_END) - 6
    longest = max((phrases.count_cells(escape(rank.host)) for _, rank in rows), default=0)
    hosts = min(longest, max(room, _MIN_CELLS))
    for numbers, rank in rows:
        parts: list[Part] = [f"  {fill_cells(numbers, size)}  {fill_cells(escape(rank.host), hosts)}  {_END}"]
        free = room - hosts - 2
        if free >= _MIN_CELLS:
            parts.append(("  " + _get_last_line(rank, free), QUIET))
        yield make_row(*parts)
    if len(groups) > len(rows):
        yield make_row(f"  … and {pluralize(len(groups) - len(rows), 'more host')}: {_END}")


def _get_last_line(rank: RankOutcome, room: int) -> str:
    """The last line of the rank's output that tells something, cut between words: half a number is another one."""
    line = escape(strip_colours(_drop_harmless_ends(rank.tail).rpartition("\n")[2]))
    if phrases.count_cells(line) <= room:
        return line
    words = line[: room - 1].rpartition(" ")[0].rstrip()
    return f"{words} …" if words else line


def format_cleanup_proof(cleanup: Cleanup) -> list[RenderableType]:
    """Whether processes of a run are left on its hosts."""
    items: list[RenderableType] = []
    for host, pids in cleanup.orphans.items():
        left = f"{pluralize(len(pids), 'process')} left on {host}: "
        items.append(outcome(False, (left, STRONG), " ".join(map(str, pids))))
    if cleanup.clean and not cleanup.orphans:
        items.append(text(f"0 processes left on {pluralize(len(cleanup.clean), 'host')}"))
    if cleanup.unchecked:
        items.append(Line(text(("! ", WARN), f"could not look: {phrases.format_hosts(cleanup.unchecked)}"), 2))
    return items
