"""What a rank does with ``--profile``: the steps of a script that knows nothing of it, with a torch of nothing but an
optimizer and a profiler that notes when it was started and stopped."""

import gzip
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act import agent
from ipexctl.protocol import hooks

NEW = """
hooks = []
def register_optimizer_step_post_hook(hook): hooks.append(hook)
class Optimizer:
    def step(self):
        for hook in hooks: hook(self, (), {})
"""
OLD = """
class Optimizer:
    def __init__(self): pass
    def step(self): pass
class Adam(Optimizer): pass
"""
PROFILER = """
import json
class ProfilerActivity: CPU = 0
class profile:
    def __init__(self, activities, record_shapes): pass
    def start(self): print("profiler starts", flush=True)
    def stop(self): print("profiler stops", flush=True)
    def export_chrome_trace(self, path):
        with open(path, "w") as out: json.dump({"traceEvents": [1]}, out)
"""
VERBOSE = """
class verbose:
    def __init__(self, level): self.level = level
    def __enter__(self): print("verbose", self.level, flush=True)
    def __exit__(self, *_): print("verbose 0", flush=True)
"""
TRAIN = """
import sys
from torch.optim.optimizer import Optimizer
one = Optimizer()
for step in range(1, int(sys.argv[1]) + 1):
    one.step()
    print("step", step, flush=True)
"""


def run_script(place: Path, script: str, *words: str, optimizer: str = NEW, steps: str = "3:4", **env: str) -> str:
    """What the script writes; its rank is 2, its run's directory ``place/run``."""
    for name, text in {
        "__init__": "", "optim/__init__": "", "optim/optimizer": optimizer, "profiler": PROFILER,
        "backends/__init__": "", "backends/mkldnn": VERBOSE,
    }.items():  # fmt: skip
        path = place / f"torch/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (place / "run/ranks").mkdir(parents=True, exist_ok=True)
    for name, data in agent.read_hooks(profile=True).items():
        (place / name).write_bytes(data)
    known = {"PYTHONPATH": str(place), "IPEXCTL_DIR": str(place / "run"), "IPEXCTL_RANK": "2", hooks.PROFILE_ENV: steps}
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, env={**os.environ, **known, **env}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def read_steps(place: Path) -> dict[str, Any]:
    (record,) = (place / "run" / hooks.PROFILE).glob(f"2.*{hooks.STEPS}")
    value = json.loads(record.read_text())
    assert isinstance(value, dict)
    return value


def read_trace(place: Path) -> object:
    return json.loads(gzip.decompress((place / "run" / hooks.PROFILE / f"2{hooks.TRACE}").read_bytes()))


def test_the_profile_begins_and_ends_with_the_ends_of_steps(tmp_path: Path) -> None:
    output = run_script(tmp_path, TRAIN, "6").splitlines()
    begun = ["step 1", "verbose 1", "profiler starts", "step 2", "step 3"]
    assert output == [*begun, "profiler stops", "verbose 0", "step 4", "step 5", "step 6"]
    record = read_steps(tmp_path)
    assert (record["first"], record["steps"], record["traced"], len(record["ends"])) == (3, 4, True, 3)
    assert read_trace(tmp_path) == {"traceEvents": [1]}


def test_a_script_that_ends_before_the_last_step_leaves_what_there_is(tmp_path: Path) -> None:
    assert run_script(tmp_path, TRAIN, "3").endswith("step 3\nprofiler stops\nverbose 0\n")
    record = read_steps(tmp_path)
    assert (record["traced"], len(record["ends"])) == (True, 2)


def test_a_script_that_ends_before_the_first_step_says_how_far_it_came(tmp_path: Path) -> None:
    assert run_script(tmp_path, TRAIN, "1") == "step 1\n"
    record = read_steps(tmp_path)
    assert record["traced"] is False
    assert record["why"] == "the script made 1 optimizer step; the profile begins at step 3"


def test_a_torch_without_hooks_is_said_to_have_none(tmp_path: Path) -> None:
    """Before torch 2.0."""
    run_script(tmp_path, "from torch.optim.optimizer import Adam\nAdam().step()\n", optimizer=OLD)
    record = read_steps(tmp_path)
    assert (record["traced"], record["why"]) == (False, "torch before 2.0 does not report the steps of its optimizers")


def test_two_optimizers_that_take_turns_make_one_step_together(tmp_path: Path) -> None:
    """As generator and discriminator; and an inner one of a wrapper is not counted twice."""
    script = """
from torch.optim.optimizer import Optimizer
first, second = Optimizer(), Optimizer()
for step in range(1, 6):
    first.step()
    second.step()
    print("step", step, flush=True)
"""
    output = run_script(tmp_path, script).splitlines()
    assert output.index("profiler starts") == output.index("step 1") + 2
    assert output.index("profiler stops") == output.index("step 3") + 1


def test_impi_records_its_collectives_while_the_profile_goes_on(tmp_path: Path) -> None:
    (tmp_path / "impi_torch.py").write_text(
        "wants = []\ndef record_works(record):\n    wants.append(record)\n    return wants.clear\n"
    )
    script = """
import impi_torch
from torch.optim.optimizer import Optimizer
one = Optimizer()
for step in range(1, 7):
    for record in impi_torch.wants: record(("allreduce", step, step + 1))
    one.step()
"""
    run_script(tmp_path, script)
    assert read_steps(tmp_path)["works"] == [["allreduce", 3, 4], ["allreduce", 4, 5]]


def test_a_users_own_wish_for_onednns_lines_is_left_alone(tmp_path: Path) -> None:
    assert "verbose" not in run_script(tmp_path, TRAIN, "6", ONEDNN_VERBOSE="1")


def test_a_profiler_that_fails_does_not_hurt_the_script(tmp_path: Path) -> None:
    script = f"import torch.profiler\ndel torch.profiler.profile.stop\n{TRAIN}"
    assert run_script(tmp_path, script, "6").endswith("step 6\n")
    record = read_steps(tmp_path)
    assert record["traced"] is False
    assert record["why"].startswith("AttributeError")


@pytest.mark.parametrize("child", ["import os, sys\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n", ""])
def test_one_process_of_a_rank_is_profiled(tmp_path: Path, child: str) -> None:
    """A forked child goes on with the parent's modules, and a second process of the rank comes too late."""
    output = run_script(tmp_path, child + TRAIN, "6")
    assert output.count("profiler starts") == 1
    if not child:
        assert "profiler starts" not in run_script(tmp_path, TRAIN, "6")
    assert read_trace(tmp_path) == {"traceEvents": [1]}


def test_a_variable_of_that_name_alone_changes_nothing(tmp_path: Path) -> None:
    """Where the profiler was not shipped, the other hooks do their work."""
    (tmp_path / "run/ranks").mkdir(parents=True)
    for name, data in agent.read_hooks().items():
        (tmp_path / name).write_bytes(data)
    known = {"PYTHONPATH": str(tmp_path), "IPEXCTL_DIR": str(tmp_path / "run"), "IPEXCTL_RANK": "2"}
    script = "import atexit; print(atexit._ncallbacks())"
    done = [
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, **known, **more}, capture_output=True, timeout=60
        )
        for more in ({}, {hooks.PROFILE_ENV: "3:4"})
    ]
    assert done[0].stdout == done[1].stdout
    assert int(done[0].stdout) >= 2


def test_without_the_option_nothing_of_it_is_there(tmp_path: Path) -> None:
    assert not {*agent.read_hooks()} & {"_ipexctl_profile.py"}
    with zipfile.ZipFile(io.BytesIO(agent.build_archive())) as archive:
        assert not [name for name in archive.namelist() if "profile_steps" in name]
