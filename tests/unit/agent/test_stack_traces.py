"""Ranks are asked for their stacks by a signal; those that get little of a core have time to answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ipexctl.protocol.hooks import RANKS, STACKS, STACKS_SIGNAL
from ipexctl.remote.agent import procs
from ipexctl.remote.agent.stack_traces import collect_stacks
from tests.unit.agent.runs import SPEC

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
            spec = SPEC._replace(timings=SPEC.timings._replace(stacks=0.01))
            [result] = [stack for stack in collect_stacks(str(tmp_path), {0: wrapper}, spec) if stack.pid == rank.pid]
            assert result.text == "the stacks"
        finally:
            rank.kill()
