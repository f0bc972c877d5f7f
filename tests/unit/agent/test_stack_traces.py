"""Ranks are asked for their stacks by a signal; those that get little of a core have time to answer."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from ipexctl.act import agent
from ipexctl.decide.diagnosis.stack_traces import parse_main_thread
from ipexctl.protocol.hooks import COLLECTIVES, DIRECTORY_ENV, RANK_ENV, RANKS, STACKS, STACKS_SIGNAL
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


def test_a_process_that_waits_for_a_core_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / RANKS).mkdir()
    words = [sys.executable, "-c", RANK, str(tmp_path / RANKS / f"0{STACKS}"), str(int(STACKS_SIGNAL))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as rank:
        try:
            assert rank.stdout
            assert rank.stdout.readline() == "ready\n"
            wrapper = procs.find_process(os.getpid())
            assert wrapper
            spec = SPEC._replace(timings=SPEC.timings._replace(stacks=0.01, node_lease=600.0))
            stacks = collect_stacks(str(tmp_path), {0: wrapper}, spec, time.monotonic())
            [result] = [stack for stack in stacks if stack.pid == rank.pid]
            assert result.text == "the stacks"
        finally:
            rank.kill()


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
    (tmp_path / RANKS).mkdir()
    words = [sys.executable, "-c", ENDS, str(tmp_path / RANKS / f"0{STACKS}"), str(int(STACKS_SIGNAL))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout
        assert rank.stdout.readline() == "ready\n"
        wait(lambda: (process := procs.find_process(rank.pid)) and process.state == "S")  # where it can be asked
        threading.Thread(target=rank.wait).start()  # as the wrapper, which leaves nothing of its number
        wrapper = procs.find_process(os.getpid())
        assert wrapper
        spec = SPEC._replace(timings=SPEC.timings._replace(stacks=3.0, node_lease=600.0))
        stacks = collect_stacks(str(tmp_path), {0: wrapper}, spec, time.monotonic())
        assert [stack.state for stack in stacks if stack.pid == rank.pid] == ["X"]


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
c10d.get_rank = lambda: 1
entry = dict(process_group=["0", "default_pg"], is_p2p=False, input_sizes=[[8, 2], []], input_dtypes=["Float", "Long"])
entries = [dict(entry, collective_seq_id=n, profiling_name="gloo:all_reduce", retired=n < 5) for n in (4, 5, 6)]
recorder._dump_fr_trace_json = lambda *_: json.dumps({"entries": entries})
"""


def test_a_rank_that_has_joined_others_tells_its_last_collectives_when_asked(tmp_path: Path) -> None:
    """The first that has not ended, of Gloo's; before the stacks, which are written by themselves."""
    (tmp_path / RANKS).mkdir()
    for name, data in agent.read_hooks().items():
        (tmp_path / name).write_bytes(data)
    script = tmp_path / "rank.py"
    joins = f"import _ipexctl_worlds\n_ipexctl_worlds.Worlds({str(tmp_path)!r}, '0', 'node0 1 1').answer_requests()"
    script.write_text(f"import json, time\n{TORCH}\n{joins}\nprint('ready', flush=True)\ntime.sleep(1000)\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), DIRECTORY_ENV: str(tmp_path), RANK_ENV: "0"}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=env) as rank:
        try:
            assert rank.stdout
            assert rank.stdout.readline() == "ready\n"
            wrapper = procs.find_process(os.getpid())
            assert wrapper
            spec = SPEC._replace(timings=SPEC.timings._replace(stacks=30.0, node_lease=600.0))
            texts: list[str] = []

            def answers() -> bool:  # its thread waits a moment after it was started
                found = collect_stacks(str(tmp_path), {0: wrapper}, spec, time.monotonic())
                texts[:] = [stack.text for stack in found if stack.pid == rank.pid]
                return texts[0].startswith(COLLECTIVES)

            wait(answers)
            line, _, stacks = texts[0].partition("\n")
            assert json.loads(line.removeprefix(COLLECTIVES)) == [
                {
                    "number": 5,
                    "kind": "all_reduce",
                    "size": 72,
                    "done": False,
                    "group": "0",
                    "ranks": [0, 1],
                    "rank": 1,
                },
                {"number": 3, "kind": "barrier", "size": 0, "done": True, "group": "1", "ranks": [1], "rank": 1},
            ]
            assert parse_main_thread(stacks)[0].function == "<module>"
        finally:
            rank.kill()


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
    (tmp_path / RANKS).mkdir()
    for name, data in agent.read_hooks().items():
        (tmp_path / name).write_bytes(data)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), DIRECTORY_ENV: str(tmp_path), RANK_ENV: "0"}
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE, text=True, env=env) as rank:
        assert rank.stdout
        assert rank.stdout.readline() == "ready\n"
        wrapper = procs.find_process(os.getpid())
        assert wrapper

        def ask() -> dict[int, str]:
            found = collect_stacks(str(tmp_path), {0: wrapper}, SPEC, time.monotonic())
            return {stack.pid: stack.text for stack in found}

        text = ask()[rank.pid]
        assert parse_main_thread(text)[0].line == 5, text
        assert rank.stdout.readline() == "forked\n"
        forked = ask()
        assert len([text for pid, text in forked.items() if pid != rank.pid and parse_main_thread(text)]) == 1
        assert rank.stdout.readline() == "0 1\n", "the whole 3 s; in the child the signal came"
