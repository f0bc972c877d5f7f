"""A wrong value of a flag is told in our words: what the flag takes, and what it was given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ipexctl.cli import app
from ipexctl.cli.flags import Dialect, Emit, task
from ipexctl.decide.launching import emit
from ipexctl.decide.reading.dialects import DIALECTS
from ipexctl.model.errors import Refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--node-lease", "1"), "must be greater than or equal to 5"),
        (("--port", "abc"), "'--port': must be a whole number"),
        (("--grace", "long"), "'--grace': must be a number"),
        (("--stall", "maybe"), "'maybe' is not one of 'report', 'kill'"),
    ],
)
def test_a_wrong_value_says_what_the_flag_takes(tmp_path: Path, words: tuple[str, str], said: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    told = CliRunner().invoke(app, ["run", *words, str(script)])
    assert told.exit_code == 2
    assert said in " ".join(told.output.split())
    assert "Input should" not in told.output
    assert "Value error" not in told.output


def test_a_pattern_is_told_as_the_words_it_stands_for() -> None:
    with pytest.raises(Refused) as refused:
        task("Run", {"script": "train.py", "mpi": "mvapich", "env_file": ()})
    assert refused.value.reasons == (
        "--mpi must be auto, impi, mpich, openmpi or a path that begins with /, not 'mvapich'",
    )


def test_ctrl_c_while_the_modules_are_read_is_no_error_to_tell_of(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")  # as Python does then
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "ipexctl", "--help"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_only_what_can_be_written_is_offered() -> None:
    assert {one.value for one in Dialect} <= set(DIALECTS)
    assert {one.value for one in Emit} == set(emit.FORMS)
