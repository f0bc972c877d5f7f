"""Stacks of stalled ranks: parsed, grouped and compared."""

import re
from collections import Counter
from collections.abc import Sequence

from ipexctl.model.answers.manage import StackPlace
from ipexctl.model.events import RankStack, Stalled
from ipexctl.model.facts import format_cpus
from ipexctl.model.json_values import Record
from ipexctl.model.text import join_names

_FAULT = re.compile(r"(?:Current t|T)hread 0x[0-9a-f]+.*\(most recent call first\):")
_FAULT_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_RAISED = re.compile(r'^  File "(.*)", line (\d+), in (.*)$', re.MULTILINE)  # of an exception, innermost last
_SPY = re.compile(r'Thread [^"]*\([^)]*\)(?:: "(?P<name>.*)")?$')
_SPY_FRAME = re.compile(r"    (?P<function>.+) \((?P<file>.+?)(?::(?P<line>\d+))?\)$")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/(?P<package>.*)")
_STANDARD = re.compile(r"/lib/python3\.\d+/(?P<module>.*)|^<frozen (?P<frozen>.*)>")

_STATES = {
    "T": "stopped by a signal (SIGSTOP); SIGCONT lets it go on",
    "t": "stopped by a debugger",
    "D": "stuck in the kernel, as on a disk or a network file system that does not answer",
    "R": "computes",
    "S": "sleeps",
    "X": "has ended",
    "Z": "has ended",
}


class Frame(Record):
    file: str
    line: int
    function: str

    @property
    def path_in_library(self) -> str:
        """The file's name in the library it belongs to; "" for the user's own code."""
        match = _LIBRARY.search(self.file) or _STANDARD.search(self.file)
        return next(filter(None, match.groups()), self.file) if match else ""

    def __str__(self) -> str:
        return f"{self.path_in_library or self.file.rpartition('/')[2]}:{self.line} {self.function}"


Stack = tuple[Frame, ...]  # innermost first


class StackGroup(Record):
    """Ranks whose main threads are at the same place; ``where`` describes it in one line."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    where: str
    line: str = ""  # of the user's own code: "train.py:41"
    function: str = ""  # what they are in
    waits: bool = False  # for other ranks: in a call of torch.distributed


def parse_main_thread(text: str) -> Stack:
    """The stack of the main thread; empty without one."""
    threads: list[tuple[str, list[Frame]]] = []
    spied = False
    for line in text.splitlines():
        if _FAULT.match(line):
            threads.append(("", []))
        elif (spy := _SPY.match(line)) is not None:
            spied = True
            threads.append((spy.group("name") or "", []))
        elif threads and (frame := _FAULT_FRAME.match(line) or _SPY_FRAME.match(line)):
            number = int(frame.group("line") or 0)
            threads[-1][1].append(Frame(frame.group("file"), number, frame.group("function")))
    if not threads:
        return ()
    named = [frames for name, frames in threads if name == "MainThread"]
    # faulthandler writes the newest thread first: the main thread is the last one. py-spy begins with it.
    return tuple(named[0] if named else threads[0][1] if spied else threads[-1][1])


def group_stacks(stacks: Sequence[RankStack]) -> tuple[StackGroup, ...]:
    """Ranks at the same place together, the smallest group first. Of a rank with several processes the one that is
    deepest in the user's work counts: the one with the longest stack."""
    of_rank: dict[int, tuple[RankStack, Stack]] = {}
    for stack in stacks:
        frames = parse_main_thread(stack.text)
        if stack.rank not in of_rank or len(frames) > len(of_rank[stack.rank][1]):
            of_rank[stack.rank] = stack, frames
    members_by_place: dict[tuple[str, Stack], list[tuple[RankStack, Stack]]] = {}
    for stack, frames in of_rank.values():
        place = "" if frames else _describe_state(stack), _remove_script_directory(frames)
        members_by_place.setdefault(place, []).append((stack, frames))
    groups = []
    for (state, _), members in members_by_place.items():
        frames = members[0][1]
        groups.append(
            StackGroup(
                tuple(sorted(stack.rank for stack, _ in members)),
                tuple(dict.fromkeys(stack.host for stack, _ in members)),
                state or _describe_position(frames),
                _format_own_line(frames),
                frames[0].function if frames else "",
                any("/torch/distributed/" in f"/{frame.file}" for frame in frames[:4]),
            )
        )
    return tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks)))


def _remove_script_directory(frames: Stack) -> Stack:
    """The stack with paths as they are in libraries, and below the directory of the script, the outermost frame that is
    in none: the home of the user may be another one on each host."""
    script = next((frame.file for frame in reversed(frames) if not frame.path_in_library), "")
    directory = script[: script.rfind("/") + 1]
    names = (frame.path_in_library or frame.file.removeprefix(directory) for frame in frames)
    return tuple(Frame(name, frame.line, frame.function) for name, frame in zip(names, frames, strict=True))


def describe_places(stacks: Sequence[RankStack]) -> tuple[StackPlace, ...]:
    """The groups of `group_stacks`, the largest first, each with the stack of its first rank."""
    texts: dict[int, Stack] = {}
    for stack in stacks:
        texts[stack.rank] = max(texts.get(stack.rank, ()), parse_main_thread(stack.text), key=len)
    return tuple(
        StackPlace(group.ranks, group.hosts, group.where, tuple(map(str, texts[group.ranks[0]])))
        for group in reversed(group_stacks(stacks))
    )


def describe_position(text: str) -> str:
    """Where the main thread of these stacks is, in one line; empty without one."""
    frames = parse_main_thread(text)
    return _describe_position(frames) if frames else ""


def find_script_line(traceback: str, stacks: str) -> str:
    """The user's own line, ``train.py:41``, in which this exception was raised; without one, that of the main thread of
    these stacks. Empty without both."""
    raised = [Frame(file, int(line), function) for file, line, function in _RAISED.findall(traceback)]
    return _format_own_line(raised[::-1]) or _format_own_line(parse_main_thread(stacks))


def _format_own_line(frames: Sequence[Frame]) -> str:
    own = _find_own_frame(frames)
    return f"{own.file.rpartition('/')[2]}:{own.line}" if own else ""


def _find_own_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's own code; the first of ``frames`` is the innermost of all."""
    return next((frame for frame in frames if not frame.path_in_library), None)


def _describe_position(frames: Stack) -> str:
    """``torch/distributed/distributed_c10d.py:2810 all_reduce ← train.py:88 step``: innermost, and the user's."""
    own, first = _find_own_frame(frames), frames[0]
    return str(first) if own in (None, first) else f"{first} ← {own}"


def _describe_state(stack: RankStack) -> str:
    description = _STATES.get(stack.state, f"state {stack.state}")
    return f"{description} (in {stack.wchan})" if stack.wchan and stack.state in ("D", "S") else description


def describe_stall(stalled: Stalled, hosts: Sequence[str]) -> str:
    """The line of the warning. ``hosts`` maps ranks to hosts."""
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
        what = odd_text or ("all compute" if states.keys() == {"R"} else f"processes: {counts}")
        if len(stalled.ranks) == 1:
            return f"no progress for {seconds}: {_locate_ranks(stalled.ranks, hosts)} is silent ({what})"
        where = f"all {len(stalled.ranks)} ranks on {_format_hosts(stalled.ranks, hosts)}"
        return f"no progress for {seconds}: {where} are silent ({what})"
    verb = "is" if len(stalled.ranks) == 1 else "are"
    where = _locate_ranks(stalled.ranks, hosts)
    return f"no progress for {seconds}: {where} {verb} silent and idle ({odd_text or counts})"


def format_comparison(groups: Sequence[StackGroup], size: int) -> list[str]:
    """Compare the stacks, in lines: which ranks are where, and which one differs."""
    if not groups:
        return []
    few, most = _separate_odd_groups(groups)
    lines = []
    if odd := find_odd_ranks(groups):
        names = ", ".join(dict.fromkeys(host for group in few for host in group.hosts))
        does, one = "does" if len(odd) == 1 else "do", len(most.ranks) == 1
        wait, are = ("waits", "is") if one else ("wait", "are")
        where = f"{wait} in {most.function}" if most.function else f"{are} elsewhere"
        lines.append(f"{len(most.ranks)} of {size} ranks {where}, {_format_ranks(odd)} on {names} {does} not")
    elif few:
        lines.append(f"the ranks are at {len(groups)} different places")
    elif len(most.ranks) > 1:
        lines.append(f"all {len(most.ranks)} ranks are at the same place")
    width = max(len(_format_ranks(group.ranks)) for group in groups)
    lines += [f"  {_format_ranks(group.ranks):<{width}}  {group.where}" for group in reversed(groups)]
    return lines


def find_odd_ranks(groups: Sequence[StackGroup]) -> tuple[int, ...]:
    """The ranks that are elsewhere than most, or than those that wait for them; empty where that is not clear."""
    few, most = _separate_odd_groups(groups) if groups else ([], None)
    if not few or most is None or few[-1].waits:
        return ()
    clear = most.waits or len(most.ranks) > sum(len(group.ranks) for group in few)
    return tuple(rank for group in few for rank in group.ranks) if clear else ()


def _separate_odd_groups(groups: Sequence[StackGroup]) -> tuple[list[StackGroup], StackGroup]:
    """The groups that are elsewhere, and those they are compared with as one."""
    waiting = [group for group in groups if group.waits]
    if not 0 < len(waiting) < len(groups):
        return list(groups[:-1]), groups[-1]
    # Ranks in a collective wait for the other ranks.
    ranks = tuple(rank for group in waiting for rank in group.ranks)
    most = StackGroup(ranks, (), "", function=waiting[-1].function, waits=True)
    return [group for group in groups if not group.waits], most


def _format_ranks(numbers: Sequence[int]) -> str:
    return f"rank{'' if len(numbers) == 1 else 's'} {format_cpus(numbers)}"


def _format_hosts(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    names = list(dict.fromkeys(hosts[rank] for rank in ranks if rank < len(hosts)))
    return join_names(names, 4) + (" hosts" if len(names) > 4 else "")


def _locate_ranks(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    return f"{_format_ranks(ranks)} on {_format_hosts(ranks, hosts)}"
