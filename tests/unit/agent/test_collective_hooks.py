"""What notes the first collective of a rank is out of the way afterwards: the second costs nothing."""

import subprocess
import sys
from pathlib import Path

from ipexctl.act import agent

SCRIPT = """
import sys, types
sys.path.insert(0, sys.argv[1])
import sitecustomize
hooks = object.__new__(next(kind for kind in vars(sitecustomize).values() if hasattr(kind, "wrap_collectives")))
stages = []
hooks.load_worlds = lambda: None
hooks.record_stage = stages.append
hooks.record_libraries = lambda: stages.append("libraries")
module = types.SimpleNamespace(barrier=lambda: "b", all_reduce=lambda: "r", broadcast=lambda: "c")
own = dict(vars(module))
hooks.wrap_collectives(module)
assert module.barrier is not own["barrier"]
assert module.barrier() == "b" and module.all_reduce is not own["all_reduce"], "a barrier moves no data"
mine = module.broadcast = lambda: "of the script"
assert module.all_reduce() == "r"
assert (module.all_reduce, module.barrier, module.broadcast) == (own["all_reduce"], own["barrier"], mine)
assert stages.count("libraries") == 1, stages
"""


def test_collectives_are_unwrapped_after_the_first_that_moves_data(tmp_path: Path) -> None:
    for name, data in agent.read_hooks(profile=False).items():
        (tmp_path / name).write_bytes(data)
    words = [sys.executable, "-S", "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
