"""Projects on separate hosts: their own modules, data, and directories."""

from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.workspace import LIGHT, Workspace, find_place

pytestmark = pytest.mark.hosts

RUN = ("run", "--venv", LIGHT, "--ppn", "1", "--limit", "node[0-1]")
TRAIN = """\
import os, sys
from mypkg import NAME
from other import NUMBER
[open(name).close() for name in sys.argv[1:]]
os.makedirs("out", exist_ok=True)
open("out/result.txt", "w").write(open("conf.txt").read())
print("trained", NAME, NUMBER, os.getcwd(), os.path.exists("data"))
"""


def make_project(root: Path, name: str) -> Path:
    """A project of a package, a script beside it, and data that git ignores."""
    for folder in ("scripts", "mypkg", "src/other", "data"):
        (root / folder).mkdir(parents=True)
    (root / "pyproject.toml").write_text("[project]\n")
    (root / ".gitignore").write_text("data/\n")
    (root / "conf.txt").write_text(name)
    (root / "data/big.bin").write_bytes(bytes(1000))
    (root / "mypkg/__init__.py").write_text(f"NAME = {name!r}\n")
    (root / "src/other/__init__.py").write_text("NUMBER = 7\n")
    (root / "scripts/train.py").write_text(TRAIN)
    return root


def test_a_script_finds_the_modules_of_its_project_and_nothing_of_another(hosts: Cluster, tmp_path: Path) -> None:
    root = make_project(tmp_path / "pa/app", "first")
    other = make_project(tmp_path / "pb/app", "second")
    workspace, beside = Workspace(hosts, tmp_path / "desk"), Workspace(hosts, tmp_path / "desk")
    workspace.path, beside.path = root, other
    place = find_place(root)
    result = workspace.succeed(*RUN, "scripts/train.py")
    assert result.out.count(f"│trained first 7 {place} False") == 2
    assert "left out: data/ (.gitignore, .ipexctlignore, --exclude)" in result.err
    lacks = workspace(*RUN, "scripts/train.py", "data/big.bin")
    assert lacks.code == 5, lacks
    assert f"ipexctl sync data -f {hosts.hostfile} --limit 'node[0-1]'" in lacks.out
    elsewhere = beside(*RUN, "--dry-run", "scripts/train.py")
    assert f"in {find_place(other)}," in elsewhere.out
    result = beside(*RUN, "scripts/train.py")
    assert f"trained second 7 {find_place(other)} False" in result.out, result

    assert workspace("fetch", "out", "--from", "rank:1").code == 0
    assert (root / "fetched/node1/out/result.txt").read_text() == "first"
    assert workspace("sync", "data", "--limit", "node[0-1]").code == 0
    result = workspace(*RUN, "--no-sync", "scripts/train.py")
    assert result.out.count(f"│trained first 7 {place} True") == 2, result
    assert workspace("sync", "--delete", "--limit", "node[0-1]").code == 0
    listed = hosts.exec("node1", ["ls", "-A", place]).stdout.split()
    assert "data" in listed, "what is left out is not removed"
    assert not hosts.exec("node1", ["ls", "-A", f"{place}/fetched"]).stdout, "results are not sent back"
