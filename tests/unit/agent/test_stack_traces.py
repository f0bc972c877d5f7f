"""Ranks are asked for their stacks by a signal; those that get little of a core have time to answer."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from types import MappingProxyType

import pytest

from ipexctl.act import agent
from ipexctl.decide.diagnosis.stack_traces import format_comparison, group_stacks, parse_main_thread, read_errors
from ipexctl.model.events import RankStack
from ipexctl.protocol import rank_records
from ipexctl.protocol.hooks import (
    COLLECTIVES,
    DIRECTORY_ENV,
    FAILED,
    OVER,
    RAISED,
    RANK_ENV,
    RANKS,
    READY,
    RECORD,
    STACKS,
    STACKS_REQUEST,
    STACKS_SIGNAL,
)
from ipexctl.remote.agent import procs
from ipexctl.remote.agent.stack_traces import collect_stacks
from tests.unit.agent.runs import SPEC
from tests.waiting import wait

RANK = """
import os, signal, sys, time
stacks = open(sys.argv[1], "w")

def answer(number, frame):
    begun = time.process_time()
    while time.process_time() < begun + 0.3:  # in place of the others that have the cores
        pass
    stacks.write("the stacks")
    stacks.flush()

signal.signal(int(sys.argv[2]), answer)
print("ready", flush=True)
while True:
    time.sleep(1000)
"""


@contextmanager
def start_rank(
    directory: Path, script: str, env: Mapping[str, str] = MappingProxyType({}), wrapper: Sequence[str] = ()
) -> Iterator[Popen[str]]:
    """A rank that runs this script and has said that it is ready. It gets the file of its stacks, and the signal."""
    (directory / RANKS).mkdir()
    words = [*wrapper, sys.executable, "-c", script, str(directory / RANKS / f"0{STACKS}"), str(int(STACKS_SIGNAL))]
    with Popen(words, stdout=PIPE, text=True, env={**os.environ, **env}) as rank:
        try:
            assert rank.stdout
            assert rank.stdout.readline() == "ready\n"
            yield rank
        finally:
            rank.kill()


def install_hooks(directory: Path) -> dict[str, str]:
    """Puts our hooks beside a rank's files; returns its variables."""
    for name, data in agent.read_hooks().items():
        (directory / name).write_bytes(data)
    return {"PYTHONPATH": str(directory), DIRECTORY_ENV: str(directory), RANK_ENV: "0"}


def collect(directory: Path, above: int = 0, **timings: float) -> dict[int, rank_records.RankStack]:
    """What is learnt of the processes of a rank, by their ids. Its wrapper is the process ``above``, or we are."""
    wrapper = procs.find_process(above or os.getpid())
    assert wrapper
    spec = SPEC._replace(timings=SPEC.timings._replace(**timings))
    return {stack.pid: stack for stack in collect_stacks(str(directory), {0: wrapper}, spec, time.monotonic())}


def test_a_process_that_waits_for_a_core_is_waited_for(tmp_path: Path) -> None:
    with start_rank(tmp_path, RANK) as rank:
        assert collect(tmp_path, stacks=0.01, node_lease=600.0)[rank.pid].text == "the stacks"


ENDS = """
import os, signal, sys
stacks = open(sys.argv[1], "w")
signal.signal(int(sys.argv[2]), print)
ask = "%s.%d.ask" % (sys.argv[1].rpartition(".")[0], os.getpid())
os.mkfifo(ask)
print("ready", flush=True)
open(ask)  # until it is asked
"""


def test_a_process_that_ends_while_it_is_asked_harms_nobody(tmp_path: Path) -> None:
    with start_rank(tmp_path, ENDS) as rank:
        wait(lambda: (process := procs.find_process(rank.pid)) and process.state == "S")  # where it can be asked
        threading.Thread(target=rank.wait).start()  # as the wrapper, which leaves nothing of its number
        assert collect(tmp_path, stacks=3.0, node_lease=600.0)[rank.pid].state == "X"


TORCH = """
import math, sys, types
class Size(tuple):
    def numel(self):
        return math.prod(self)
c10d = types.ModuleType("torch.distributed.distributed_c10d")
recorder = types.ModuleType("torch._C._distributed_c10d")
torch = types.ModuleType("torch")
torch.float, torch.long = types.SimpleNamespace(itemsize=4), types.SimpleNamespace(itemsize=8)
torch.uint8, torch.Size = types.SimpleNamespace(itemsize=1), Size
for module in (c10d, recorder, torch):
    sys.modules[module.__name__] = module

class Ours:
    def describe_collective(self):
        return dict(number=3, kind="barrier", size=0, done=True)

group, ours = object(), Ours()
c10d._world = types.SimpleNamespace(pg_names={group: "0", ours: "1"},
                                    pg_group_ranks={group: {0: 0, 1: 1}, ours: {1: 0}})
c10d.get_rank, c10d.is_initialized = lambda: 1, lambda: bool(c10d._world.pg_names)
entry = dict(process_group=["0", "default_pg"], is_p2p=False, input_sizes=[[8, 2], []], input_dtypes=["Float", "Long"])
entries = [dict(entry, collective_seq_id=n, profiling_name="gloo:all_reduce", retired=n < 5) for n in (4, 5, 6)]
recorder._dump_fr_trace_json = lambda *_: json.dumps({"entries": entries})
"""


def ask(directory: Path, script: str, awaited: str) -> list[str]:
    """The lines of the stacks of a rank with our hooks that runs this script, once they have such a line."""
    (directory / RANKS).mkdir()
    own = directory / "own"
    own.mkdir()
    for name, data in agent.read_hooks().items():
        (own / name).write_bytes(data)
    (directory / "rank.py").write_text(f"import json, time\n{script}")
    env = {**os.environ, "PYTHONPATH": str(own), DIRECTORY_ENV: str(directory), RANK_ENV: "0"}
    words = [sys.executable, str(directory / "rank.py")]
    with Popen(words, env=env, stderr=DEVNULL) as rank:
        try:
            wrapper = procs.find_process(os.getpid())
            assert wrapper
            spec = SPEC._replace(timings=SPEC.timings._replace(stacks=10.0, node_lease=600.0))
            lines: list[str] = []
            seen: list[object] = []

            def answers() -> bool:
                asked = list(collect_stacks(str(directory), {0: wrapper}, spec, time.monotonic()))
                seen.append((time.monotonic(), rank.poll(), asked))
                lines[:] = [line for stack in asked if stack.pid == rank.pid for line in stack.text.splitlines()]
                return any(line.startswith(awaited) for line in lines)

            wait(answers, otherwise=lambda: f"{len(seen)} looks, the last ones: {seen[-3:]}")
            return lines
        finally:
            rank.kill()


JOINS = "import _ipexctl_worlds\n_ipexctl_worlds.Worlds(sys.path[0], '0', 'node0 1 1').answer_requests()\n"


def test_a_rank_that_has_joined_others_tells_its_last_collectives_when_asked(tmp_path: Path) -> None:
    """The first that has not ended, of Gloo's; before the stacks, which are written by themselves."""
    line, *stacks = ask(tmp_path, f"{TORCH}\n{JOINS}\ntime.sleep(1000)\n", COLLECTIVES)
    assert json.loads(line.removeprefix(COLLECTIVES)) == [
        {"number": 5, "kind": "all_reduce", "size": 72, "done": False, "group": "0", "ranks": [0, 1], "rank": 1},
        {"number": 3, "kind": "barrier", "size": 0, "done": True, "group": "1", "ranks": [1], "rank": 1},
    ]
    assert parse_main_thread("\n".join(stacks))[0].function == "<module>"


def test_the_last_collectives_of_many_ranks_are_those_that_an_answer_has_room_for(tmp_path: Path) -> None:
    """A line of 32 KiB and more was cut, and nothing of it was known."""
    many = "c10d._world.pg_group_ranks[ours] = dict.fromkeys(range(10000))"
    line, *_ = ask(tmp_path, f"{TORCH}\n{many}\n{JOINS}\ntime.sleep(1000)\n", COLLECTIVES)
    assert [group["group"] for group in json.loads(line.removeprefix(COLLECTIVES))] == ["0"]


def test_a_rank_that_has_left_its_groups_says_so(tmp_path: Path) -> None:
    script = f"{TORCH}\nc10d._world.pg_names.clear()\n{JOINS}time.sleep(1000)\n"
    assert f"{COLLECTIVES}null" in ask(tmp_path, script, COLLECTIVES)


HOLDS = """
import os
os.mkfifo(f"{sys.argv[1].rpartition('.')[0]}.{os.getpid()}.ask")
asked = os.open(f"{sys.argv[1].rpartition('.')[0]}.{os.getpid()}.ask", os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
while True:
    pass
"""


def test_a_rank_that_holds_pythons_lock_is_seen(tmp_path: Path) -> None:
    """As in a regular expression: it tells of no collectives, and is given the time for its stacks all the same."""
    with start_rank(tmp_path, RANK.partition('print("ready"')[0] + HOLDS) as rank:
        assert collect(tmp_path, stacks=0.01, node_lease=300.0)[rank.pid].text == "the stacks"


FINALIZES = """
import ctypes
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it ends with its wrapper
ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).pause)  # as mpi4py does with MPI_Finalize
print("ready", flush=True)
"""


def test_a_process_whose_python_has_ended_says_so(tmp_path: Path) -> None:
    """It was said to compute, or to wait in MPI, while its script had long ended."""
    # Its file is closed by then: of our own children that of another test may be taken for it.
    with start_rank(tmp_path, FINALIZES, install_hooks(tmp_path), ["sh", "-c", '"$@"; :', "sh"]) as wrapper:
        wait(lambda: [stack.state for stack in collect(tmp_path, wrapper.pid).values()] == [OVER])
    assert format_comparison(group_stacks([RankStack(0, "a", 1, OVER, "", "")]), 1)[0].startswith(
        "  rank 0  the script has ended"
    )


THREAD = """
import threading
def producer():
    raise ValueError("the producer is broken")
threading.Thread(target=producer).start()
"""
RAISES = """
import threading
threading.Thread(target=time.sleep, args=(1000,)).start()
raise ValueError("the end")
"""
CLEANS = """
def train():
    try:
        raise ValueError("the step is broken")
    finally:
        time.sleep(1000)
train()
"""


KILLED = """
import multiprocessing, os
killed = multiprocessing.Process(target=lambda: os.kill(os.getpid(), 9), name="reader")
killed.start()
killed.join()
ended = multiprocessing.Process(target=time.sleep, args=(1000,), name="ended")
ended.start()
ended.terminate()
ended.join()
"""


QUEUE = """
import multiprocessing, os, signal
forked = multiprocessing.get_context("fork")
ended, killed = (forked.Process(target=time.sleep, args=(1000,)) for _ in range(2))
ended.start()
killed.start()
ended.terminate()
killed.kill()
forked.Queue().get()
"""


@pytest.mark.parametrize(
    ("script", "error", "line", "word"),
    [
        (QUEUE, "ChildProcessError: killed by signal 9", "", "process "),
        (f"{KILLED}time.sleep(1000)\n", "ChildProcessError: killed by signal 9", "", "reader"),
        (f"{THREAD}time.sleep(1000)\n", "ValueError: the producer is broken", "rank.py:5", "Thread-1 (producer)"),
        (RAISES, "ValueError: the end", "rank.py:5", ""),
        (f"{TORCH}\n{JOINS}{CLEANS}", "ValueError: the step is broken", "train", "handled"),
    ],
)
def test_an_exception_of_a_process_that_lives_on_comes_with_its_stacks(
    tmp_path: Path, script: str, error: str, line: str, word: str
) -> None:
    [record] = [line for line in ask(tmp_path, script, RAISED) if line.startswith(RAISED)]
    report = json.loads(record.removeprefix(RAISED))
    assert report["error"] == error
    assert line.rpartition(":")[0] in report.get("traceback", "")
    assert word in " ".join((report.get("thread", ""), *report))
    assert "argv" not in report, "it may hold what is nobody's business"


EXITS = """
import sitecustomize, sys, threading
sitecustomize.Hooks(sys.path[0], '0').hook_exit()
threading.Thread(target=time.sleep, args=(1000,)).start()
sys.exit(bool(sys.argv))
"""


def test_a_script_that_ends_with_a_truth_value_has_a_status(tmp_path: Path) -> None:
    """As in ``sys.exit(not ok)``."""
    text = "\n".join(ask(tmp_path, EXITS, RAISED))
    [error] = read_errors(RankStack(0, "node0", 1, "S", "", text))
    assert error.status == 1


@pytest.mark.parametrize(("sign", "noted"), [("", False), (f"0.{READY}{RECORD}", True)])
def test_a_program_whose_script_fails_is_up_no_more_though_a_thread_of_it_goes_on(
    tmp_path: Path, sign: str, noted: bool
) -> None:
    made = f"open(sys.path[0] + '/{RANKS}/{sign}', 'w').close()\n" if sign else ""
    ask(tmp_path, "import os, sys\nos.setsid()\n" + made + EXITS, RAISED)
    assert (tmp_path / RANKS / f"0.{FAILED}{RECORD}").exists() is noted


DEEP = """
import threading
def even(depth):
    if not depth:
        raise ValueError("in the depth")
    odd(depth - 1)
def odd(depth):
    even(depth - 1)
for _ in range(90):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
def train():
    try:
        even(300)
    finally:
        time.sleep(1000)
train()
"""


def test_the_main_thread_is_in_stacks_that_are_cut(tmp_path: Path) -> None:
    """It is the last one of many, behind a long traceback."""
    lines = ask(tmp_path, f"{TORCH}\n{JOINS}{DEEP}", RAISED)
    assert [frame.function for frame in parse_main_thread("\n".join(lines))] == ["train", "<module>"]
    assert any(line.startswith(COLLECTIVES) for line in lines)


BUSY = """
import json, sys
def count(depth):
    if depth:
        return count(depth - 1) + sum(number for number in range(3))
    return len(json.dumps([1]))
print("ready", flush=True)
while True:
    count(30)
"""


def test_a_rank_that_computes_survives_many_requests(tmp_path: Path) -> None:
    """Read by another thread without Python's lock its stacks are freed memory: one of 250 looks was its end."""
    with start_rank(tmp_path, BUSY, install_hooks(tmp_path)) as rank:
        [stack] = collect(tmp_path).values()
        assert parse_main_thread(stack.text), "the gentle way is the one that is taken"
        size = os.path.getsize(tmp_path / RANKS / f"0{STACKS}")
        for _ in range(1500):
            os.kill(rank.pid, STACKS_REQUEST)
            time.sleep(0.001)
        wait(lambda: os.path.getsize(tmp_path / RANKS / f"0{STACKS}") > 100 * size)
        assert rank.poll() is None


SLEEPS = """
import ctypes, os, sys
libc = ctypes.PyDLL(None)  # keeps Python's lock
print("ready", flush=True)
left = libc.sleep(3)
child = os.fork()
if not child:
    print("forked", flush=True)
    left = libc.sleep(60)  # no thread gets it here: the only one does
    os._exit(int(0 < left <= 60))
print(left, os.waitpid(child, 0)[1] >> 8, flush=True)
"""


def test_a_rank_is_not_changed_by_being_asked(tmp_path: Path) -> None:
    """A C function that sleeps, poll()s or connects would end at the signal, with Python's lock held or without it."""
    with start_rank(tmp_path, SLEEPS, install_hooks(tmp_path)) as rank:
        assert rank.stdout

        def ask() -> dict[int, str]:
            return {pid: stack.text for pid, stack in collect(tmp_path).items()}

        text = ask()[rank.pid]
        while parse_main_thread(text)[0].line == 4:  # it still prints
            text = ask()[rank.pid]
        assert parse_main_thread(text)[0].line == 5, text
        assert rank.stdout.readline() == "forked\n"
        forked = ask()
        assert len([text for pid, text in forked.items() if pid != rank.pid and parse_main_thread(text)]) == 1
        assert rank.stdout.readline() == "0 1\n", "the whole 3 s; in the child the signal came"
