"""Stacks of stalled ranks: parsed, grouped and compared."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile

from ipexctl.decide.diagnosis.evidence import collect_evidence
from ipexctl.decide.diagnosis.known_errors import KnownErrors, fill_command, make_diagnosis, match_evidence
from ipexctl.model.answers.manage import StackPlace
from ipexctl.model.errors import Hint
from ipexctl.model.events import RankStack, Stalled
from ipexctl.model.json_values import Record, parse_json
from ipexctl.model.reports import RankOutcome
from ipexctl.model.text import format_all_ranks, format_ranks, group_pairs, join_names, printable
from ipexctl.protocol.hooks import OVER, RAISED
from ipexctl.protocol.paths import HOOK_FILES, PROFILE_HOOK_FILES

_FAULT = re.compile(r"(?:Current t|T)hread 0x[0-9a-f].*\(most recent call first\):")
_FAULT_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d{1,9}) in (?P<function>.*)')
_CRASHED = re.compile(r"^Current thread 0x.*\n(?:  File .*\n?){,1000}", re.MULTILINE)  # faulthandler's last words
_RAISED = re.compile(r'^  File "(.*)", line (\d{1,9})(?:, in (.*))?$', re.MULTILINE)  # of an exception, innermost last
_REMOTE = re.compile(r'RemoteTraceback: *\n"""\n(.*?)\n"""', re.DOTALL)  # where a function of a pool raised
_NOBODY = {
    "recv": ", and no rank sends",
    "send": ", and no rank receives",
    "new_group": "; all ranks must call new_group as often and in one order, those that are no members too",
    "": "",
}
_REPORTED_ERROR = re.compile(rf"^{RAISED}(\{{.*\}})$", re.MULTILINE)
_ERROR_LENGTH = 300  # letters shown of an exception
_LIBRARY = re.compile(r"/(?:site|dist)-packages/(?P<package>.*)")
_STANDARD = re.compile(  # also the programs of an environment, as bin/torchrun, and modules that libraries generate
    r"/lib/python3\.\d+/(?P<module>.*)|^<frozen (?P<frozen>.*)>|^<string>$|/bin/(?P<program>[\w-]+)$"
    r"|^<dynamic-code>$"  # what cloudpickle carries to another process, as joblib's
    r"|/torchinductor_[^/]+/|/tmp/\w+\.[\w.]+_[a-z0-9_]{8}\.py$"  # torch_geometric: torch_geometric/template.py
)
_HOOKS = frozenset((*HOOK_FILES, *PROFILE_HOOK_FILES))
# What talks to other ranks: the functions that a script calls, what is below them, and frameworks of torch.distributed.
_CALLS = re.compile(r"(?:^|/)torch/distributed/(?:distributed_c10d|rendezvous|_functional_collectives|utils)\.py$")
_BACKENDS = re.compile(r"(?:^|/)(?:impi_torch|oneccl_bindings_for_pytorch|torch_ccl|horovod)/")
_FRAMEWORKS = re.compile(r"(?:^|/)torch/distributed/(?:fsdp|_composable|_tools|algorithms|pipelining)/")
_BETWEEN = re.compile(
    r"(?:^|/)torch/(?:distributed/c10d_logger|_ops|utils/_contextlib|_dynamo/eval_frame)\.py$|^\w+\.py$"
)
_CHILD = "multiprocessing/process.py", "_bootstrap"  # where a process of multiprocessing begins
_QUEUES = re.compile(r"(?:^|/)multiprocessing/(?:queues|connection|managers)\.py$")  # where such a process is idle
_FORK = re.compile(r"/multiprocessing/popen_fork\.py\", line \d+ in _launch$", re.MULTILINE)  # below those of the child
_TRACKERS = re.compile(r"(?:^|/)(?:resource_tracker|forkserver)\.py$")
_CHILDREN_AWAITED = re.compile(  # where a rank waits for processes of multiprocessing
    r"(?:^|/)(?:multiprocessing|torch/distributed/elastic|concurrent/futures)/"
    r"|(?:^|/)(?:torch/utils/data/dataloader|joblib/parallel)\.py$"
)
_BACKWARD = "_engine_run_backward"  # of torch/autograd
_EXTENSION_LOCK = "torch/utils/file_baton.py"
_COMPILER = re.compile(r"(?:^|/)torch/_inductor/(?:async_compile|cpp_builder)\.py$")
_THREADS_END = "threading.py", "_shutdown"  # where the end of Python waits for threads
_BOTTOM = ("<module>", "_run_module_as_main")  # functions in which a script begins
_TWINS_LIMIT = 100  # stacks at one place of which the callers are compared
_DEPTH_LIMIT = 90  # frames of a stack that may be longer than faulthandler writes (100)
_OWN_GROUP = "a group of its own, process_group=torch.distributed.new_group(),"
_LOCK_PLACES = "~/.cache/torch_extensions/*/*/lock, or */lock in TORCH_EXTENSIONS_DIR"

_STATES = {
    "T": "stopped by a signal (SIGSTOP); SIGCONT lets it go on",
    "t": "stopped by a debugger",
    "D": "stuck in the kernel, as on a disk or a network file system that does not answer",
    "R": "no stack: computes, or waits in MPI (which uses the processor)",
    "S": "no stack: sleeps",
    OVER: "the script has ended, and its process is in C code, as MPI_Finalize, which waits for the other ranks",
    "X": "has ended",
    "Z": "has ended",
}


class StackFrame(Record):
    """A line of a program: `file` is its path in the library that it belongs to, or, where `own`, in the user's code
    below the directory of the script."""

    file: str
    line: int
    function: str
    own: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


Stack = tuple[StackFrame, ...]  # innermost first


class RaisedError(Record):
    """An exception of a process that lives on: nobody caught it, in the main thread or in the one named ``thread``; or
    the main thread has `handled` it so far, as in ``finally``. ``status``: the script called ``sys.exit``, there."""

    error: str = ""
    traceback: str = ""
    thread: str = ""
    handled: bool = False
    status: int | None = None
    exit_line: str = ""

    def describe(self) -> str:
        """Returns what came of it, without the rank."""
        if self.status is not None:
            text = f" ({printable(self.error, _ERROR_LENGTH)})" if self.error else ""
            place = self.exit_line.rpartition("/")[2]
            place = f" at {printable(place, 200)}" if place else ""
            return f"the script called sys.exit with code {self.status}{text}{place}, and its process does not end"
        line = find_script_line(self.traceback, "")
        error = printable(" ".join(self.error.split()), _ERROR_LENGTH) + (f" ({line})" if line else "")
        if self.thread:
            return f"{printable(self.thread, 100)} ended with {error}"
        if self.handled:
            return f"handles {error}: what it does in finally or except does not end"
        return f"the script has ended with {error}, and its process does not end"


class StackGroup(Record):
    """Ranks whose main threads are at the same place; ``where`` describes it in one line."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    where: str
    line: str = ""  # of the user's own code: "train.py:41"
    function: str = ""  # what they are in
    waits: bool = False  # for other ranks
    notes: tuple[str, ...] = ()  # what keeps them there, where the place alone does not say it
    ended: bool = False  # their scripts have ended, and their processes wait for threads


def parse_main_thread(text: str) -> Stack:
    """Returns the stack of the main thread; empty without one."""
    # faulthandler writes the newest thread first: the main thread is the last one.
    return next(iter(_parse_threads(text)[::-1]), ())


def _parse_threads(text: str) -> list[Stack]:
    threads: list[list[tuple[str, str, str]]] = []
    for line in text.splitlines():
        if _FAULT.match(line) or line == "...":  # behind 100 threads: the main one is not written then
            threads.append([])
        elif threads and (frame := _FAULT_FRAME.match(line)):
            threads[-1].append((frame["file"], frame["line"], frame["function"]))
    return [_make_stack(thread) for thread in threads]


def read_errors(stack: RankStack) -> list[RaisedError]:
    """Returns the exceptions that the process has reported with its stacks, less an exit that is no failure."""
    errors: list[RaisedError] = []
    for text in _REPORTED_ERROR.findall(stack.text):
        with suppress(ValueError):  # the script's own words, or half a line
            errors.append(parse_json(RaisedError, text))
    return [error for error in errors if error.status != 0]


def describe_errors(stacks: Sequence[RankStack]) -> list[str]:
    """Returns a line for each exception of processes that live on, with their ranks; none of what all handle."""
    everyone = {stack.rank for stack in stacks}
    pairs = (((error.handled, error.describe()), stack) for stack in stacks for error in read_errors(stack))
    lines = []
    for (handled, text), members in group_pairs(pairs).items():
        ranks, hosts = {stack.rank for stack in members}, dict.fromkeys(stack.host for stack in members)
        if not (handled and len(everyone) > 1 and ranks == everyone):
            lines.append(f"{format_ranks(sorted(ranks))} on {join_names(list(hosts), 4)}: {text}")
    return lines


def describe_stall_cause(known: Callable[[], KnownErrors], stacks: Sequence[RankStack], run: str, script: str) -> str:
    """Returns what an exception that nobody caught, of ranks that live on with these stacks, is known as, and what
    helps; empty without one."""
    raised = [(stack.host, error) for stack in stacks for error in read_errors(stack) if not error.handled]
    for host, error in raised:
        rank = RankOutcome(0, host, "failed", error=error.error, traceback=error.traceback)
        if match := match_evidence(known(), collect_evidence(rank)):
            diagnosis = make_diagnosis(match, host)
            fix, command = fill_command(match.known.fix and diagnosis.fix, diagnosis.command, run, script)
            text = f"{diagnosis.title}: {diagnosis.why} {fix}".rstrip()
            return Hint(command.words, text) if isinstance(command, Hint) else text
    return ""


def have_raised(stacks: Sequence[RankStack]) -> bool:
    """Returns whether scripts have ended by an exception or by ``sys.exit`` whose processes have not."""
    return any(not error.thread and not error.handled for stack in stacks for error in read_errors(stack))


def _make_stack(frames: Iterable[tuple[str, str, str]]) -> Stack:
    """Returns the frames but those of our hooks, with names that are the same on all hosts: the home of the user, the
    directory of the script and the environment may be others on each."""
    placed = [
        (find_path_in_library(file), file, line, function)
        for file, line, function in frames
        if file.rpartition("/")[2] not in _HOOKS
    ]
    script = next((file for path, file, _, _ in reversed(placed) if not path), "")
    directory = script[: script.rfind("/") + 1]
    stack = []
    for path, file, line, function in placed:
        own = file.removeprefix(directory) if file.startswith(directory) else "/".join(file.rsplit("/", 2)[-2:])
        if path == _CHILD[0] and function == _CHILD[1]:
            break  # what is below was its parent's, when it was forked
        stack.append(StackFrame(path or own, int(line or 0), function, not path))
    return tuple(stack)


def find_path_in_library(file: str) -> str:
    """Returns the file's name in the library it belongs to; "" for the user's own code."""
    match = _LIBRARY.search(file) or _STANDARD.search(file)
    return next(filter(None, match.groups()), file) if match else ""


def group_stacks(stacks: Sequence[RankStack]) -> tuple[StackGroup, ...]:
    """Ranks at the same place together, the smallest group first, each by one of its processes (`_choose_process`)."""
    members: dict[tuple[str, Stack, bool], list[RankStack]] = {}
    shown: list[Stack] = []  # of the first rank of each group
    for stack, frames in _choose_processes(stacks).values():
        call = _find_waiting_call(frames, stack.state)
        frames = frames[call or 0 :]  # how the backend waits is of no interest, nor is the line inside of the call
        place = frames if call is None else (replace(frames[0], line=0), *frames[1:])
        key = "" if frames else _describe_state(stack), place, call is not None
        shown += [] if key in members else [frames]
        members.setdefault(key, []).append(stack)
    groups = []
    for ((state, _, waits), ranks), frames, position in zip(
        members.items(), shown, _describe_positions(shown), strict=True
    ):
        function = frames[0].function if frames else ""
        groups.append(
            StackGroup(
                tuple(sorted(stack.rank for stack in ranks)),
                tuple(dict.fromkeys(stack.host for stack in ranks)),
                state or position,
                _format_own_line(frames),
                "backward" if waits and function == _BACKWARD else function,
                waits,
                tuple(_explain_place(frames, ranks[0].text, ranks[0].wchan)),
                frames[-1:] != () and _get_place(frames[-1]) == _THREADS_END,
            )
        )
    return tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks)))


def _choose_processes(stacks: Sequence[RankStack]) -> dict[int, tuple[RankStack, Stack]]:
    of_rank = group_pairs((stack.rank, (stack, parse_main_thread(stack.text))) for stack in stacks)
    return {rank: _choose_process(processes) for rank, processes in of_rank.items()}


def _choose_process(processes: Sequence[tuple[RankStack, Stack]]) -> tuple[RankStack, Stack]:
    """Of a rank with several processes the one that is deepest in the user's work counts, as a launcher's child: the
    one with the longest stack. One of multiprocessing, as a worker of a data loader or of a pool, counts where the rank
    waits for it, and is at work; with the rank's own place below it if it is in no line of the user."""
    programs = [each for each in processes if not any(_TRACKERS.search(frame.file) for frame in each[1])]
    children = [each for each in programs if each[1] and each[1][-1].file == _CHILD[0]]
    others = [each for each in programs if each not in children] or children or list(processes)
    chosen = max(others, key=lambda each: len(each[1]))
    if any(_CHILDREN_AWAITED.search(frame.file) for frame in _get_inner_frames(chosen[1])):
        busy = [each for each in children if _find_own_frame(each[1]) or not _is_idle(each[1])]
        if busy:
            worker = max(busy, key=lambda each: (not _is_idle(each[1]), bool(_find_own_frame(each[1])), len(each[1])))
            return worker if _find_own_frame(worker[1]) else (worker[0], worker[1] + chosen[1])
    return chosen


def _is_idle(frames: Stack) -> bool:
    """Returns whether a process of multiprocessing waits for something to do."""
    return any(_QUEUES.search(frame.file) for frame in _get_inner_frames(frames))


def _get_inner_frames(frames: Stack) -> Stack:
    """Returns what the user's innermost line has called."""
    return tuple(takewhile(lambda frame: not frame.own, frames))


def _find_waiting_call(frames: Stack, state: str) -> int | None:
    """Returns the frame of the call in which a rank talks to others; None of one that does something else. The backward
    pass of `DistributedDataParallel` waits for them below Python: its process sleeps then."""
    call = 0 if state == "S" and frames and frames[0].function == _BACKWARD else None
    for number, frame in enumerate(frames):
        if _CALLS.search(frame.file) or _BACKENDS.search(frame.file):
            call = number
        elif _FRAMEWORKS.search(frame.file):
            return number if call is None else call
        elif frame.own or not _BETWEEN.search(frame.file):
            break
    return call


def describe_places(stacks: Sequence[RankStack]) -> tuple[StackPlace, ...]:
    """Returns the groups of `group_stacks`, the largest first, each with the stack of its first rank."""
    chosen = _choose_processes(stacks)
    return tuple(
        StackPlace(group.ranks, group.hosts, group.where, tuple(map(str, chosen[group.ranks[0]][1])))
        for group in reversed(group_stacks(stacks))
    )


def find_script_line(traceback: str, stacks: str) -> str:
    """Returns the user's own line, ``train.py:41``, in which this exception was raised, or a signal ended this thread;
    without one, that of the main thread of these stacks. Empty without both."""
    remote, raised = (
        _make_stack(_RAISED.findall(text)[::-1]) for text in ("".join(_REMOTE.findall(traceback)), traceback)
    )
    crashed = "".join(_CRASHED.findall(traceback)[:1])
    found = (remote, raised, *map(parse_main_thread, (crashed, traceback, stacks)))
    return next(filter(None, map(_format_own_line, found)), "")


def _format_own_line(frames: Stack) -> str:
    own = _find_own_frame(frames)
    return f"{own.file.rpartition('/')[2]}:{own.line}" if own else ""


def _find_own_frame(frames: Stack) -> StackFrame | None:
    """Returns the innermost frame of the user's own code; the first of ``frames`` is the innermost of all."""
    return next((frame for frame in frames if frame.own), None)


def _describe_positions(stacks: Sequence[Stack]) -> list[str]:
    """`describe_position` of each; where two are the same, with the callers in which they differ."""
    names = [describe_position(frames) for frames in stacks]
    groups, described = group_pairs(zip(names, stacks, strict=True)), []
    for frames, name in zip(stacks, names, strict=True):
        twins = [other for other in groups[name][:_TWINS_LIMIT] if other != frames]
        pairs = [zip(frames, twin, strict=False) for twin in twins]
        callers = dict.fromkeys(str(next((mine for mine, other in pair if mine != other), "")) for pair in pairs)
        described.append(" ← ".join([name, *filter(None, callers)]))
    return described


def describe_position(frames: Stack) -> str:
    """``torch/distributed/distributed_c10d.py:2810 all_reduce ← train.py:88 step``: innermost, and the user's."""
    own, first = _find_own_frame(frames), frames[0] if frames else None
    return " ← ".join(map(str, filter(None, [first, own if own != first else None])))


def _describe_state(stack: RankStack) -> str:
    description = _STATES.get(stack.state, f"state {stack.state}")
    if stack.wchan and stack.state in ("D", "S"):
        return f"{description} (in {stack.wchan})"
    return description


def describe_stall(stalled: Stalled, hosts: Sequence[str], *, hopeless: bool = False, ended: Sequence[int] = ()) -> str:
    """Returns the line of the warning. ``hosts`` maps ranks to hosts; ``hopeless``: they wait where others cannot come,
    and may write; ``ended``: these have ended well, and may be what the others wait for."""
    seconds = f"{stalled.seconds:.0f} s"
    if stalled.kind == "stragglers":
        done = len(hosts) - len(stalled.ranks)
        return f"{done} of {len(hosts)} ranks done for {seconds}, still running: {_locate_ranks(stalled.ranks, hosts)}"
    states = Counter(stalled.states.values())
    counts = ", ".join(f"{count} in state {state}" for state, count in states.most_common())
    odd = {state: re.split("[;,]", _STATES[state])[0] for state in states if state in ("T", "t", "D")}
    odd_text = "; ".join(
        f"{_locate_ranks([int(rank) for rank, state in stalled.states.items() if state == letter], hosts)} {text}"
        for letter, text in odd.items()
    )
    if stalled.kind == "all":
        use = "uses" if len(stalled.ranks) == 1 else "all use"
        what = odd_text or (f"{use} the processor" if states.keys() == {"R"} else f"processes: {counts}")
        if ended:
            what += f"; {_locate_ranks(ended, hosts)} ended with code 0"
        if len(stalled.ranks) == 1:
            return f"no progress for {seconds}: {_locate_ranks(stalled.ranks, hosts)} is silent ({what})"
        where = f"{format_all_ranks(len(stalled.ranks))} on {_format_hosts(stalled.ranks, hosts)}"
        return f"no progress for {seconds}: {where} {'wait in the rendezvous' if hopeless else f'are silent ({what})'}"
    verb = "is" if len(stalled.ranks) == 1 else "are"
    where = _locate_ranks(stalled.ranks, hosts)
    return f"no progress for {seconds}: {where} {verb} silent and idle ({odd_text or counts})"


def describe_missing(missing: Sequence[int], stalled: Sequence[int], hosts: Sequence[str], joined: bool) -> str:
    """Returns the same of ranks that wait for others that have ended, in their rendezvous or, if these had ``joined``,
    in a collective; empty without such."""
    if not missing:
        return ""
    it, waits = ("it" if len(missing) == 1 else "them"), ("waits" if len(stalled) == 1 else "wait")
    how, place = ("", "a collective") if joined else (" without joining", "the rendezvous")
    ended = f"{_locate_ranks(missing, hosts)} ended with code 0{how}"
    return f"{ended}: {_locate_ranks(stalled, hosts)} {waits} for {it} in {place}"


def format_comparison(groups: Sequence[StackGroup], size: int) -> list[str]:
    """Compare the stacks, in lines: which ranks are where, and which one differs."""
    if not groups:
        return []
    few, most = _separate_odd_groups(groups)
    lines = []
    if odd := find_odd_ranks(groups):
        names = ", ".join(dict.fromkeys(host for group in few for host in group.hosts))
        does, be = ("does", "is") if len(odd) == 1 else ("do", "are")
        others, wait = f"{len(most.ranks)} of {size} ranks", "waits" if len(most.ranks) == 1 else "wait"
        who = f"{format_ranks(odd)} on {names}"
        called = f"{others} {wait} in {most.function}, {who} {does} not"
        lines.append(called if most.function else f"{who} {be} elsewhere than {others}")
    elif few and any(group.function for group in groups):
        verb = "wait" if all(group.waits for group in groups) else "are"
        lines.append(f"the ranks {verb} at {len(groups)} different places{_NOBODY[_find_lacking(groups)]}")
    elif len(most.ranks) > 1 and most.function:
        lines.append(f"{format_all_ranks(len(most.ranks))} are at the same place{_NOBODY[_find_lacking(groups)]}")
    labels = [format_ranks(group.ranks) for group in groups]
    if few and not odd:
        labels = [f"{label} on {join_names(group.hosts, 4)}" for label, group in zip(labels, groups, strict=True)]
    width = max(map(len, labels))
    lines += [f"  {label:<{width}}  {group.where}" for label, group in zip(labels[::-1], groups[::-1], strict=True)]
    for group in groups:
        who = f"{format_ranks(group.ranks)} on {join_names(group.hosts, 4)}: "
        lines += [f"  {note}" if number else f"{who}{note}" for number, note in enumerate(group.notes)]
    return lines


def _explain_place(frames: Stack, stacks: str, wchan: str) -> Iterator[str]:
    """Yields lines about what keeps a rank at a place that does not say it. ``stacks``: those of all threads."""
    if not frames:
        return
    if frames[0].file == _EXTENSION_LOCK:
        yield "waiting for the lock of an extension of torch, which another process compiles"
        yield f"if none does, a killed one left it behind: remove {_LOCK_PLACES}"
    elif frames[0].file.startswith("filelock/"):
        yield "waiting for a file lock, which another process holds while it compiles, downloads or prepares data"
    elif any(_COMPILER.search(frame.file) for frame in frames):
        yield "torch.compile compiles, which takes minutes where cores are few"
    elif "futex" in wchan and _FORK.search(stacks) and (frames[0].own or frames[0].file.startswith("torch/")):
        yield "a forked process: its wait for a lock or threads of its parent, as torch's of OpenMP, never ends"
        yield "in the script: multiprocessing_context= or get_context('spawn'), or torch.set_num_threads(1) in it"
    elif beside := _find_collective_beside(frames, stacks):
        yield f"another of its threads is in a collective, too: {describe_position(beside)}"
        yield f"ranks take those of one group in different orders so: {_OWN_GROUP} for the thread"
    elif _has_ended(frames):
        awaited = "a function of atexit"
        if _get_place(frames[-1]) == _THREADS_END:
            own = [_find_own_frame(thread) for thread in _parse_threads(stacks)[:-1]]
            places = join_names(list(dict.fromkeys(map(str, filter(None, own)))), 4)
            awaited = "a thread that is no daemon" + (f": {places}" if places else "")
        yield f"the script has ended, and its process waits for {awaited}"


def _find_collective_beside(frames: Stack, stacks: str) -> Stack:
    """Returns the stack, from that call on, of a thread that is in a collective while the main thread waits in one, as
    the thread that writes a checkpoint beside the training. Empty without one."""
    if _find_waiting_call(frames, "S") is None:
        return ()
    calls = ((thread, _find_waiting_call(thread, "")) for thread in _parse_threads(stacks)[:-1])
    inside = (thread[call:] for thread, call in calls if call is not None)
    return next((thread for thread in inside if _CALLS.search(thread[0].file)), ())


def _get_place(frame: StackFrame) -> tuple[str, str]:
    return frame.file, frame.function


def _has_ended(frames: Stack) -> bool:
    """Returns whether the main thread is past the script."""
    if not frames or len(frames) >= _DEPTH_LIMIT:
        return False
    bottom = frames[-1]
    return not bottom.own and bottom.function not in _BOTTOM and bottom.file != _CHILD[0]


def find_odd_ranks(groups: Sequence[StackGroup]) -> tuple[int, ...]:
    """The ranks that are elsewhere than most, or than those that wait for them; empty where that is not clear."""
    few, most = _separate_odd_groups(groups) if groups else ([], None)
    if not few or most is None or few[-1].waits:
        return ()
    clear = most.waits or len(most.ranks) > sum(len(group.ranks) for group in few)
    return tuple(rank for group in few for rank in group.ranks) if clear else ()


def show_stall(groups: Sequence[StackGroup], stacks: Sequence[RankStack]) -> bool:
    """Returns whether ranks wait for others that do nothing, or all of them for threads when their scripts have ended,
    or for messages that no rank sends, or takes: of a `send` and a `recv` one may wait for the network."""
    if groups and all(group.ended for group in groups):
        return True
    odd = find_odd_ranks(groups)
    if _find_lone_call(groups):
        return True
    return any(group.waits for group in groups) and bool(odd) and not {"R"} & {s.state for s in stacks if s.rank in odd}


def _find_lone_call(groups: Sequence[StackGroup]) -> str:
    """Returns ``recv`` where all ranks wait, some in it, and none of them sends; ``send`` likewise; else nothing."""
    messages = {group.function for group in groups} & {"send", "recv"}
    return messages.pop() if all(group.waits for group in groups) and len(messages) == 1 else ""


def _find_lacking(groups: Sequence[StackGroup]) -> str:
    """Returns the same, and ``new_group`` where all ranks wait, some in it: the others make another group, or none; or
    the network is slow."""
    if call := _find_lone_call(groups):
        return call
    all_wait = all(group.waits for group in groups)
    return "new_group" if all_wait and any(group.function == "new_group" for group in groups) else ""


def _separate_odd_groups(groups: Sequence[StackGroup]) -> tuple[list[StackGroup], StackGroup]:
    """Returns the groups that are elsewhere, and those they are compared with as one."""
    waiting = [group for group in groups if group.waits]
    if not 0 < len(waiting) < len(groups):
        return list(groups[:-1]), groups[-1]
    # Ranks in a collective wait for the other ranks.
    ranks = tuple(rank for group in waiting for rank in group.ranks)
    calls = " or ".join(dict.fromkeys(group.function for group in reversed(waiting)))
    most = StackGroup(ranks, (), "", function=calls, waits=True)
    return [group for group in groups if not group.waits], most


def _format_hosts(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    names = list(dict.fromkeys(hosts[rank] for rank in ranks if rank < len(hosts)))
    return join_names(names, 4) + (" hosts" if len(names) > 4 else "")


def _locate_ranks(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    return f"{format_ranks(ranks)} on {_format_hosts(ranks, hosts)}"
