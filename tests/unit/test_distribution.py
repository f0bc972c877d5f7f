"""What is shipped: the metadata of pyproject.toml, the man page, and the import graph of impi_torch."""

import ast
import os
import re
import subprocess
import sys
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ipexctl.model.toml import parse_toml

ROOT = Path(__file__).resolve().parents[2]
IMPI_TORCH = ROOT / "impi_torch/src/impi_torch"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    metadata: dict[str, Any] = parse_toml(text)["project"]
    return metadata


def test_the_metadata_names_authors_and_the_python_versions_from_the_oldest(project: dict[str, Any]) -> None:
    assert project["authors"]
    prefix = "Programming Language :: Python :: 3."
    versions = [line for line in project["classifiers"] if line.startswith(prefix)]
    assert versions[0] == prefix + project["requires-python"].removeprefix(">=3.")
    assert versions == sorted(versions)


def test_a_typed_package_says_so(project: dict[str, Any]) -> None:
    assert "Typing :: Typed" in project["classifiers"]
    assert (ROOT / "ipexctl/py.typed").exists()


def test_the_man_page_is_made_from_the_help() -> None:
    check = subprocess.run([sys.executable, ROOT / "tools/man.py", "--check"], check=False, timeout=60)
    assert check.returncode == 0, "write it again: python tools/cli.py"


def imports_within_impi_torch(path: Path) -> set[str]:
    """Names of the modules beside a file that it imports, wherever in the file the import stands."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    relative = [node for node in nodes if node.level == 1]
    return {node.module or alias.name for node in relative for alias in node.names}


def test_the_modules_of_impi_torch_import_each_other_in_one_direction() -> None:
    graph = {path.stem: imports_within_impi_torch(path) for path in IMPI_TORCH.glob("*.py")}
    assert graph["_group"] >= {"_engine", "_collectives"}
    assert list(TopologicalSorter(graph).static_order())[-1] == "__init__", "a cycle raises CycleError"


def read_lock(name: str) -> set[str]:
    """The names of a lock file, each with hashes and without an index."""
    text = (ROOT / name).read_text("utf-8")
    assert "://" not in text
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if entry.strip()]
    assert all(re.search(r"^[a-z0-9._-]+==\S+", entry) and "--hash=sha256:" in entry for entry in entries)
    return {canonicalize_name(entry.partition("==")[0]) for entry in entries}


def test_our_own_dependencies_are_locked_with_hashes_and_name_no_index(project: dict[str, Any]) -> None:
    """`make lock` writes both; uv checks the hashes of a constraint."""
    assert {"pip-audit", "cyclonedx-bom"} <= read_lock("requirements-tools.lock")
    locked = read_lock("requirements.lock")
    groups = parse_toml((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    wanted = [*project["dependencies"], *(word for group in groups.values() for word in group if isinstance(word, str))]
    assert {canonicalize_name(Requirement(word).name) for word in wanted} <= locked


@pytest.mark.parametrize("forged", [False, True])
def test_uv_itself_is_the_locked_one_or_none(tmp_path: Path, forged: bool) -> None:
    """pip gets a wheel of the locked name and version that is another file, or none."""
    version = re.search(r"^uv==(\S+)", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    assert version
    if forged:
        with zipfile.ZipFile(tmp_path / f"uv-{version[1]}-py3-none-any.whl", "w") as wheel:
            info = f"uv-{version[1]}.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {version[1]}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    sources = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    words = ["sh", str(ROOT / "tools/venv.sh"), str(tmp_path / "venv")]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": sys.executable, **sources}
    made = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 1
    assert f"uv=={version[1]} of requirements.lock cannot be installed" in made.stderr
    assert ("DO NOT MATCH THE HASHES" in made.stderr) is forged
    assert not list((tmp_path / "venv").glob("lib/*/site-packages/uv-*"))
