"""A fault of ours in a program on a host ends the command with 70, one sentence, and a log with the traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# `ipexctl` with a session program whose command raises what no command may raise.
FAULTY = """\
import sys
from ipexctl.act import agent
from ipexctl.cli import main

sound = agent.read_source
broken = "def {command}(**_):\\n    raise LookupError('planted \\x1b[2J')\\n\\n\\ndef sound_"
agent.read_source = lambda module: sound(module).replace("def {command}", broken)
agent._read_code = lambda module: compile(agent.read_source(module), module, "exec")
main()
"""


def test_a_fault_in_a_session_ends_with_70_one_sentence_and_a_log(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node0 ansible_connection=local\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", FAULTY.format(command="compute"), "doctor", "--bench", "--hostfile", "hosts"]
    ended = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 70, ended.stderr
    log = tmp_path / ".local/state/ipexctl/debug.log"
    sentence = r"error: internal error in doctor: SessionProgramError: compute: LookupError: planted \x1b[2J"
    assert ended.stderr.splitlines()[-2:] == [sentence, f"  hint: the traceback is in {log}"]
    assert 'File "remote.session.bench"' in log.read_text()
