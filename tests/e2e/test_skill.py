"""docs/skill.md, followed by a program that reads no prose: from a script that fails to one that ends well."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import wheels
from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, ROOT, Workspace, write_hostfile
from tests.stock import remove_mpichs_files
from tests.wheels import Index, serving

pytestmark = pytest.mark.hosts
CODE = re.compile(r"^   ```sh\n   (ipexctl run .*)\n   ```$", re.MULTILINE)
SCRIPT = """\
import os
from einops import rearrange
rank = int(os.environ["RANK"])
print(rearrange(rank), flush=True)
print("finished", rnak)
"""
HANG = """\
import os, time
if os.environ["RANK"] == "1":
    time.sleep(600)  # it reads
time.sleep(600)  # they wait
"""


@pytest.fixture
def desk(hosts: Cluster, tmp_path: Path, mpich: str) -> Iterator[Workspace]:
    """Hosts with an environment that install made, and an index that has one package more."""
    hostfile = write_hostfile(hosts, tmp_path / "hosts", "/root/skill/env")
    workspace = Workspace(hosts, tmp_path / "desk", hostfile=hostfile)
    einops = wheels.wheel("einops", "0.8.2", {"einops.py": "def rearrange(x): return x\n"})
    with hosts.inside(), serving(Index([*wheels.stack(), einops]), "10.77.0.1") as index:
        workspace.env["PIP_INDEX_URL"] = index.url
        words = ("--torch", "2.8.0", "--track", "native", "--backend", "gloo", "--mpi", mpich)
        workspace.succeed("install", *words, "--python", "/usr/bin/python3")
        yield workspace
        assert workspace("uninstall").code == 0
    remove_mpichs_files(hosts)


def test_a_program_brings_a_failing_script_to_its_end_in_the_commands_of_the_page(desk: Workspace) -> None:
    script = desk.path / "train.py"
    script.write_text(SCRIPT)
    [run] = CODE.findall((ROOT / "docs/skill.md").read_text("utf-8"))
    words, commands = run.split()[1:], 0
    while True:
        assert (commands := commands + 1) <= 4
        answer = desk(*words).answer
        if answer["exit"] == 0 and words[0] == "run":
            break
        words = _follow(answer, script) or run.split()[1:]
    assert commands == 4, "run, install --with einops, run, and run after the edit"
    assert "finished 1" in desk.written(1).decode()


def _follow(answer: dict[str, Any], script: Path) -> list[str]:
    """What the page's table says for this exit code: a command, or none after the script was corrected."""
    if answer["exit"] == 5 and "package" in answer["codes"]:
        program, verb, *more = answer["next"][0]
        assert program == "ipexctl"
        return [verb, "--json", *more]
    if answer["exit"] == 5:
        assert _read_line(answer["ranks"][answer["first"]]["line"], script) == 'print("finished", rnak)'
        script.write_text(SCRIPT.replace("rnak", "rank"))
    return []


def test_a_program_finds_the_line_in_which_a_run_hangs_by_keys(workspace: Workspace) -> None:
    script = workspace.path / "train.py"
    script.write_text(HANG)
    [run] = CODE.findall((ROOT / "docs/skill.md").read_text("utf-8"))
    verb, *words = run.split()[1:]
    answer = workspace(verb, "--venv", LIGHT, "--stall-warn", "5", *words).answer
    assert (answer["exit"], answer["suspects"]) == (6, [1])
    assert "stall" in answer["codes"]
    [place] = [place for place in answer["places"] if 1 in place["ranks"]]
    assert answer["ranks"][1]["line"] == place["line"]
    assert _read_line(place["line"], script).endswith("# it reads")


def _read_line(place: str, script: Path) -> str:
    file, line = place.split(":")
    assert file == script.name
    return script.read_text().splitlines()[int(line) - 1]
