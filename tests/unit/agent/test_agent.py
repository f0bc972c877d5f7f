"""The agent, one file for all that is done on hosts, has the roles its package names."""

import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ipexctl import remote
from ipexctl.act import agent
from ipexctl.remote.agent.__main__ import PROGRAMS


def asked(path: Path, role: str) -> str:
    done = subprocess.run([sys.executable, path, role, "/none"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    return done.stderr


def test_every_role_that_is_named_is_known_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "agent.pyz"
    path.write_bytes(agent.build_archive())
    named = re.search(r"agent\.pyz ([a-z|]+)", remote.__doc__ or "")
    assert named
    assert {*named[1].split("|")} == {*PROGRAMS}
    for role in PROGRAMS:
        assert "unknown role" not in asked(path, role)
    assert asked(path, "prove") == "unknown role 'prove'\n"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda name, data: None if name.endswith(".py") else data, id="compiled"),
        pytest.param(lambda name, data: b"????" + data[4:] if name.endswith(".pyc") else data, id="text"),
    ],
)
def test_a_host_takes_the_modules_of_its_python(tmp_path: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    whole, path = tmp_path / "whole.pyz", tmp_path / "agent.pyz"
    whole.write_bytes(agent.build_archive())
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            if (data := change(name, source.read(name))) is not None:
                target.writestr(name, data)
    assert "unknown role" not in asked(path, "show")
    assert asked(path, "prove") == "unknown role 'prove'\n"


def test_programs_that_start_for_each_rank_and_host_load_nothing_that_they_may_not_need() -> None:
    """Each module is a part of the time to the first line. A name that is looked up as a text loads three."""
    program = """
import contextlib, sys
from ipexctl.remote.agent import guard, rpc, wrapper
with contextlib.suppress(OSError):
    rpc.connect("localhost", 1, "", "guard", "", 5.0)
print(*sorted({"encodings.idna", "glob", "shutil", "stringprep", "unicodedata"} & set(sys.modules)))
"""
    line, place = [sys.executable, "-E", "-s", "-S", "-c", program], Path(remote.__file__).parents[2]
    done = subprocess.run(line, cwd=place, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("\n", "")
