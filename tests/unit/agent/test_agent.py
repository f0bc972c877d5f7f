"""The agent, one file for all that is done on hosts, has the roles its package names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ipexctl import remote
from ipexctl.act import agent
from ipexctl.remote.agent.__main__ import PROGRAMS


def asked(path: Path, role: str) -> str:
    done = subprocess.run([sys.executable, path, role, "/none"], capture_output=True, text=True, timeout=20)
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
