"""A fault of ours in the middle of a watched run on a lab's hosts: exit 70, one sentence, a log that is enough to find
it, and a run that is not lost: the sentence names it, and the command that is printed ends it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ipexctl.remote.agent import procs
from tests import mpi
from tests.e2e.workspace import marker

ROOT = Path(__file__).parents[2]
ACTOR = ROOT / "tests/integration/ranks/actor.py"
# `ipexctl` with one function that raises when an argument shows the word: where faults come from is no matter.
FAULTY = """\
import sys
from importlib import import_module
from ipexctl.cli import main

module, name, word = sys.argv[1:4]
owner = import_module(module)
*classes, function = name.split(".")
for each in classes:
    owner = getattr(owner, each)
sound = getattr(owner, function)

def planted(*args, **named):
    if any(word in repr(arg) for arg in args):
        raise LookupError("planted \\x1b[2J")
    return sound(*args, **named)

setattr(owner, function, planted)
sys.argv[1:4] = []
main()
"""


@dataclass(frozen=True)
class Controller:
    """A user's `ipexctl` with a lab of two hosts, on which an environment has nothing but Intel MPI."""

    home: Path
    venv: Path

    @property
    def state(self) -> Path:
        return self.home / ".local/state/ipexctl"

    def __call__(self, *words: str, fault: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        program = ("-c", FAULTY, *fault) if fault else ("-m", "ipexctl")
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        hostfile = {"IPEXCTL_HOSTFILE": str(self.state / "lab/hostfile")}
        argv = [sys.executable, *program, *words]
        return subprocess.run(argv, env=env | hostfile, cwd=self.home, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    if not shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin"):
        pytest.skip("openssh-server is not installed")
    place = tmp_path_factory.mktemp("faults")
    venv = mpi.make(place / "env")
    (venv / "ipexctl.json").write_text(marker(str(venv), {}))
    home = place / "home"
    home.mkdir(mode=0o700)
    user = Controller(home, venv)
    up = user("lab", "up")
    assert up.returncode == 0, up.stderr
    yield user
    down = user("lab", "down")
    assert down.returncode == 0, down.stderr


@pytest.mark.parametrize(
    "fault",
    [("ipexctl.decide.run.lines", "Demux.feed", "tick 3"), ("ipexctl.protocol.frames", "unpack_frame", "tick 3")],
    ids=["decision", "reader thread"],
)
def test_after_a_fault_in_a_watched_run_it_can_be_ended(controller: Controller, fault: tuple[str, str, str]) -> None:
    before = {*(controller.state / "runs").glob("*")}
    words = ("run", "--venv", str(controller.venv), "--backend", "gloo", str(ACTOR), "count", "3000")
    ended = controller(*words, fault=fault)
    run = re.search(r"ipexctl attach (\S+)", ended.stderr)
    assert run, ended.stderr
    assert procs.find_marked(procs.format_run_mark(run[1])), "the run goes on"
    stopped = controller("stop", run[1])
    assert stopped.returncode == 0, stopped.stderr
    assert not procs.find_marked(procs.format_run_mark(run[1]))
    (saved,) = {*(controller.state / "runs").iterdir()} - before
    assert ended.returncode == 70, ended.stderr
    sentence = r"error: internal error in run: LookupError: planted \x1b[2J"
    goes_on = f"  hint: run {run[1]} may still be running; this watches it, and Ctrl-C there ends it:"
    log = saved / "debug.log"
    *_, first, where, hint, command = ended.stderr.splitlines()
    assert [first, where, hint] == [sentence, f"  the traceback is in {log}", goes_on]
    assert command.strip().startswith(f"ipexctl attach {run[1]} ")
    text = log.read_text()
    assert "Traceback (most recent call last)" in text
    assert "in planted" in text
    assert json.loads((saved / "report.json").read_bytes())["exit"] == 70
