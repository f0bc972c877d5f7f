"""What a script certainly imports, and nothing else: a false alarm would be worse than none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ipexctl.act.inputs import read_script
from ipexctl.data import read_data
from ipexctl.decide.script_imports import FIND_MISSING, ImportTable, describe_missing_modules, find_doubtful_imports
from ipexctl.model.toml import parse_toml

TABLE = ImportTable(**parse_toml(read_data("imports.toml")))
PACKAGES = ("torch", "numpy", "intel-extension-for-pytorch", "pyyaml", "accelerate")


def doubtful(text: str, *neighbours: str) -> dict[str, int]:
    return find_doubtful_imports(text, neighbours, PACKAGES, TABLE)


def test_what_is_imported_whatever_happens_is_found_with_its_line() -> None:
    text = """\
import os, json, tomllib
import torch, intel_extension_for_pytorch as ipex, yaml, numpy as np
from tabulate import tabulate
import timm.models
with open("x") as file:
    import seqeval
try:
    import wandb
finally:
    print("done")
if __name__ == "__main__":
    import evaluate
"""
    assert doubtful(text) == {"tabulate": 3, "timm": 4, "seqeval": 6, "wandb": 8, "evaluate": 12}


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import x\nexcept ImportError:\n    x = None\n",
        "try:\n    import x\nexcept Exception:\n    x = None\n",
        "from contextlib import suppress\nwith suppress(ImportError):\n    import x\n",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import x\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import x\n",
        "import os\nif os.environ.get('X'):\n    import x\nelse:\n    import y\n",
        "def f():\n    import x\n",
        "class C:\n    def f(self):\n        import x\n",
        "for name in ():\n    import x\n",
        "import sys\nsys.path.insert(0, '/opt/lib')\nimport x\n",
        "import sys\nsys.modules['x'] = sys\nimport x\n",
        "import site\nsite.addsitedir('/opt')\nimport x\n",
        "import os\nos.system('pip install x')\nimport x\n",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', 'x'])\nimport x\n",
        "import sys\nif len(sys.argv) < 2:\n    sys.exit('usage')\nimport x\n",
        "raise SystemExit\nimport x\n",
        "from . import x\nfrom .x import y\n",
        "import helper, pkg.deep\nfrom space import thing\n",
        "def broken(",
        "\x00",
    ],
)
def test_what_may_not_be_needed_or_may_be_found_elsewhere_is_not_said(text: str) -> None:
    assert doubtful(text, "helper", "pkg", "space") == {}


def test_what_lies_beside_a_script_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import a, b, c, d\n")
    (tmp_path / "a.py").touch()
    (tmp_path / "b").mkdir()  # a namespace package
    (tmp_path / "c.cpython-311-x86_64-linux-gnu.so").touch()
    text, beside = read_script(tmp_path / "train.py")
    assert doubtful(text, *beside) == {"d": 1}
    assert read_script(tmp_path / "gone.py") == ("", set())


def test_the_interpreter_is_asked_and_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "space").mkdir()
    (tmp_path / "loud.py").write_text("raise SystemExit('imported')")
    names = ("space", "loud", "json", "sys", "nowhere_to_be_found")
    words = [sys.executable, "-c", FIND_MISSING, str(tmp_path), *names]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["nowhere_to_be_found"]


def test_the_warning_holds_the_command_that_helps() -> None:
    def told(*names: str, ipex: bool = False) -> str:
        lines = {name: at for at, name in enumerate(names, 1)}
        return "".join(map(str, describe_missing_modules(lines, "train.py", TABLE, "ipexctl install", ipex)))

    assert told("sklearn") == (
        "train.py imports sklearn (line 1), not in the environment: ipexctl install --with scikit-learn"
    )
    assert told("transformers", ipex=True).endswith("ipexctl install --with transformers==4.52.4")
    assert told("oneccl_bindings_for_pytorch").endswith("ipexctl install --backend ccl")
    assert told("odd_one").endswith("ipexctl install --with PACKAGE (PACKAGE: what brings odd_one)")
    assert told() == ""


def test_the_table_names_modules_and_distributions() -> None:
    for name, package in TABLE.distributions.items():
        assert name.isidentifier()
        assert re.fullmatch(r"[A-Za-z][\w-]*", package)
