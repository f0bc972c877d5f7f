"""What our sitecustomize does in a rank, with a torch.distributed of nothing but a rendezvous."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path

import pytest

SCRIPT = """
import sys, threading, time
import torch.distributed
if sys.argv[1] == "connected":
    torch.distributed.init_process_group()
begun = threading.Event()
def late():  # as a thread of torch: it wants Python's lock when the script has come to its end
    begun.set()
    time.sleep(0.5)
    print("let go", flush=True)
threading.Thread(target=late, daemon=True).start()
begun.wait()
"""


@pytest.mark.parametrize("stage", ["connected", "alone"])
def test_who_was_connected_gives_other_threads_a_moment_at_the_end(tmp_path: Path, stage: str) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").touch()
    (torch / "distributed.py").write_text("def init_process_group(): pass\n")
    (tmp_path / "run/ranks").mkdir(parents=True)
    with as_file(files("ipexctl.remote").joinpath("sitecustomize.py")) as hooks:
        text = hooks.read_text("utf-8")
    assert "MOMENT = 0.05" in text
    (tmp_path / "sitecustomize.py").write_text(text.replace("MOMENT = 0.05", "MOMENT = 2.0"))  # for a busy machine
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "IPEXCTL_DIR": str(tmp_path / "run"), "IPEXCTL_RANK": "3"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, stage], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (done.stdout == "let go\n") == (stage == "connected")
    assert (tmp_path / "run/ranks/3.connected.json").exists() == (stage == "connected")
