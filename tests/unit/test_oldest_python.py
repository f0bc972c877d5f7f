"""One number for the oldest Python on hosts: the constant, what runs there, and the documentation agree."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ipexctl
from ipexctl.model.facts import OLDEST_PYTHON

PACKAGE = Path(ipexctl.__file__).parent
ROOT = PACKAGE.parent
HOOKS = ("sitecustomize.py", "worlds.py", "profile_steps.py")  # a rank's Python imports them beside each other
SHIPPED = sorted([*PACKAGE.glob("remote/**/*.py"), *PACKAGE.glob("protocol/**/*.py")])
# Imports every module but those that are programs, without the package ipexctl itself, which is the controller's.
IMPORT_ALL = """
import importlib, sys, types
package = types.ModuleType("ipexctl")
package.__path__ = [sys.argv[1]]
sys.modules["ipexctl"] = package
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("path", SHIPPED, ids=module)
def test_annotations_need_no_newer_python(path: Path) -> None:
    assert "from __future__ import annotations" not in path.read_text("utf-8"), (
        f"Python {OLDEST_PYTHON} does not know it"
    )


def interpreters() -> list[str]:
    """This Python, and the oldest one where the machine has it."""
    candidates = [
        shutil.which(f"python{OLDEST_PYTHON}"),
        *Path.home().glob(f".pyenv/versions/{OLDEST_PYTHON}.*/bin/python"),
    ]
    working = [sys.executable]
    for candidate in filter(None, map(str, filter(None, candidates))):
        ask = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip() == OLDEST_PYTHON:
            working.append(candidate)
    return working[:2]


@pytest.mark.parametrize("python", interpreters())
def test_every_module_that_runs_on_hosts_can_be_imported(python: str) -> None:
    modules = [
        module(path).removesuffix(".__init__")
        for path in SHIPPED
        if path.name not in ("__main__.py", *HOOKS) and "\nif __name__" not in path.read_text("utf-8")
    ]
    words = [python, "-B", "-c", IMPORT_ALL, str(PACKAGE), *modules]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_the_documentation_names_the_same_number(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert f"Python {OLDEST_PYTHON}" in text


def test_the_code_names_no_other_number() -> None:
    for path in SHIPPED:
        for number in re.findall(r"Python (3\.\d+)(?: (?:and|or) later|,| only|[.;])", path.read_text("utf-8")):
            assert number == OLDEST_PYTHON, module(path)
