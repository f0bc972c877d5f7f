"""What a script certainly imports, and nothing else: a false alarm would be worse than none."""

import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ipexctl.act.inputs import find_modules, read_script
from ipexctl.data import read_data
from ipexctl.decide.script_imports import (
    FIND_MISSING,
    Module,
    describe_emptiness,
    describe_hiding_modules,
    describe_local_modules,
    describe_missing_modules,
    find_doubtful_imports,
    parse_import_table,
    parse_python,
    parse_script,
    select_missing,
)
from tests.tables import read_table

TABLE = parse_import_table(read_data("imports.toml"))
PACKAGES = ("torch", "numpy", "intel-extension-for-pytorch", "pyyaml", "accelerate")


def doubtful(text: str, *neighbours: str) -> dict[str, int]:
    places = find_doubtful_imports(Module("", "", text), neighbours, PACKAGES, TABLE)
    return {name: int(place.removeprefix("line ")) for name, place in places.items()}


def find_missing(path: str, *names: str) -> list[str]:
    """Returns the modules that an interpreter with this path does not find."""
    return subprocess.check_output([sys.executable, "-c", FIND_MISSING, path, *names], text=True, timeout=60).split()


def test_nothing_that_python_warns_of_in_a_script_is_printed() -> None:
    """From Python 3.12 on it was, beside the screen, with the character: an escape for the terminal."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse_script('x = "\\d\\\x1b"').body


@pytest.mark.parametrize("text", ["1" + "+1" * 200_000, "a" + ".b" * 200_000, "return 1\na" + "()" * 200_000])
def test_an_expression_of_any_depth_does_not_end_the_process(text: str) -> None:
    """Python 3.10 ended with a segmentation fault."""
    assert not parse_script(text).body


def test_of_a_script_whose_functions_call_each_other_too_deeply_nothing_is_certain() -> None:
    for depth, expected in ((3, {"timm": 1, "peft": 9}), (2000, {})):
        chain = "".join(f"def f{number}():\n    f{number + 1}()\n" for number in range(depth))
        assert doubtful(f"import timm\n{chain}def f{depth}():\n    import peft\nf0()\n") == expected


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
def main():
    import peft
main()
"""
    assert doubtful(text) == {"tabulate": 3, "timm": 4, "seqeval": 6, "wandb": 8, "evaluate": 12, "peft": 14}
    deep = "x = " + "+".join(["1"] * 3000) + "\nimport timm\n"
    assert doubtful(deep) in ({"timm": 2}, {}), "Python of some versions cannot read it"


def test_a_script_whose_fields_are_read_in_the_square_of_their_number_is_not_read() -> None:
    """1 MiB of them took more than a minute, for each module of a project."""
    assert len(parse_script('x = f"' + "{a}" * 11_000 + '"').body) == (sys.version_info >= (3, 12))


def test_a_script_that_fills_the_memory_of_the_parser_is_not_read() -> None:
    """1 MiB of it took 2.2 GiB."""
    assert len(parse_script("a;" * 90_000).body) == 90_000
    assert not parse_script("a;" * 110_000).body


def test_a_comment_or_docstring_on_how_to_install_changes_nothing() -> None:
    text = '"""Needs: pip install timm"""\n# pip install x, then sys.path\nimport timm\n'
    assert doubtful(text) == {"timm": 3}


def test_what_a_script_imports_before_it_changes_the_path_is_certain() -> None:
    assert doubtful("import sys\nimport timm\nsys.path.append('..')\nimport utils\n") == {"timm": 2}


@pytest.mark.parametrize(
    "message",
    [
        'require_version("datasets>=1.8", "To fix: pip install -r requirements.txt")',
        'raise ImportError(f"{name} is missing: pip install it")',
        'parser.add_argument("--x", help="needs pip install x")',
    ],
)
def test_a_message_on_how_to_install_changes_nothing(message: str) -> None:
    assert doubtful(f"import timm\n\ndef main():\n    {message}\n") == {"timm": 1}
    assert doubtful('import os\nos.system("pip install timm")\nimport timm\n') == {}


@pytest.mark.parametrize("text", read_table("script_imports/unneeded_imports"))
def test_what_may_not_be_needed_or_may_be_found_elsewhere_is_not_reported(text: str) -> None:
    assert doubtful(text, "helper", "pkg", "space") == {}


def test_a_module_that_a_script_makes_itself_makes_no_other_uncertain() -> None:
    text = "import sys\nsys.modules['optim.x'] = sys\nhere = sys.modules[__name__]\nimport optim.x\nimport timm\n"
    assert doubtful(text) == {"timm": 5}
    assert doubtful("import sys\nsys.modules[name] = sys\nimport timm\n") == {}


def test_what_a_class_needs_is_known_from_its_import() -> None:
    assert doubtful("from transformers import Trainer, TrainingArguments\n") == {"transformers": 1}
    without = [package for package in PACKAGES if package != "accelerate"]
    text = "import os\nfrom transformers import TrainingArguments as Settings\n"
    script = Module("", "", text)
    assert find_doubtful_imports(script, (), [*without, "transformers"], TABLE) == {"accelerate": "line 2"}


def test_what_lies_beside_a_script_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import a, b, c, d\n")
    (tmp_path / "a.py").touch()
    (tmp_path / "b").mkdir()  # a namespace package
    (tmp_path / "c.cpython-311-x86_64-linux-gnu.so").touch()
    text, beside = read_script(tmp_path / "train.py")
    assert doubtful(text, *beside) == {"d": 1}
    assert read_script(tmp_path / "gone.py")[0] == ""


def test_a_module_of_the_project_is_its_own_and_one_of_the_current_directory_is_no_package(tmp_path: Path) -> None:
    for name in ("scripts/train.py", "mypkg/__init__.py", "src/other.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import mypkg, other, third\n")
    text, own = read_script(tmp_path / "scripts/train.py", tmp_path, tmp_path / "src")
    assert doubtful(text, *own) == {"third": 1}
    (note,) = describe_local_modules({"mypkg": "line 3"}, "train.py")
    assert str(note) == "train.py imports mypkg (line 3) of the current directory, which is not sent: add --project ."
    assert find_missing(f"{tmp_path}:{tmp_path / 'src'}", "mypkg", "other", "third") == ["third"]


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def make_finder(root: Path, *paths: str) -> Callable[[str], list[Module]]:
    """Finds modules in the project and the script's directory."""

    def find(name: str) -> list[Module]:
        files = find_modules(name, [root, *(root / path for path in paths)])
        return [Module(str(file.relative_to(root)), package, file.read_text()) for file, package in files]

    return find


def test_what_modules_of_the_project_import_counts_with_their_files(tmp_path: Path) -> None:
    files = {
        "train.py": "from pkg import model\nimport pkg.data.text\nimport helper, wandb\n",
        "helper.py": "import train\nif __name__ == '__main__':\n    import pytest\n",
        "pkg/__init__.py": "from .base import Base\nfrom . import version\n",
        "pkg/base.py": "import timm\ntry:\n    import apex\nexcept ImportError:\n    apex = None\n",
        "pkg/version.py": "import wandb\ndef of():\n    import git\n",
        "pkg/model.py": "from einops import rearrange\nfrom ..outside import nothing\n",
        "pkg/data/__init__.py": "import sys\ndef add():\n    sys.path.insert(0, 'x')\nimport vendored\n",
        "pkg/data/text.py": "from ..unused_name import x\nfrom .sub.deep import y\nimport tiktoken\n",
        "pkg/data/sub/deep.py": "import datasets\n",
        "pkg/unused.py": "import sklearn\n",
    }
    write_files(tmp_path, files)
    find = make_finder(tmp_path)
    text, own = read_script(tmp_path / "train.py")
    assert find_doubtful_imports(Module("", "", text), own, PACKAGES, TABLE, find) == {
        "wandb": "line 3",
        "timm": "pkg/base.py line 1",
        "einops": "pkg/model.py line 1",
        "tiktoken": "pkg/data/text.py line 3",
        "datasets": "pkg/data/sub/deep.py line 1",
    }
    module = Module("", "pkg.data", files["pkg/data/text.py"])  # python -m pkg.data.text
    assert find_doubtful_imports(module, {"pkg"}, PACKAGES, TABLE, find).keys() == {
        "tiktoken",
        "datasets",
        "timm",
        "wandb",
    }


def test_only_the_file_that_python_takes_for_a_module_is_read(tmp_path: Path) -> None:
    files = {
        "train.py": "\ufeffimport both, twice, space.deep\n",
        "both/__init__.py": "import timm\n",
        "both.py": "import unread\n",
        "twice.py": "import einops\n",
        "src/twice/__init__.py": "import unread\n",
        "src/space/deep.py": "import tiktoken\n",
    }
    write_files(tmp_path, files)
    text, own = read_script(tmp_path / "train.py", tmp_path / "src")
    places = find_doubtful_imports(Module("", "", text), own, PACKAGES, TABLE, make_finder(tmp_path, "src"))
    assert places.keys() == {"timm", "einops", "tiktoken"}
    assert not [*find_modules(f"both.{'x' * 300}", [tmp_path])][1:], "a name that no file has"


def test_nothing_is_certain_once_a_module_of_the_project_changes_where_modules_lie(tmp_path: Path) -> None:
    adds = "import sys\ndef add(path):\n    if path not in sys.path:\n        sys.path.insert(0, path)\n"
    write_files(tmp_path, {"train.py": "import _init_paths, models\n", "_init_paths.py": f"{adds}add('lib')\n"})
    text, own = read_script(tmp_path / "train.py")
    assert find_doubtful_imports(Module("", "", text), own, PACKAGES, TABLE, make_finder(tmp_path)) == {}
    (tmp_path / "_init_paths.py").write_text(adds)
    places = find_doubtful_imports(Module("", "", text), own, PACKAGES, TABLE, make_finder(tmp_path))
    assert places == {"models": "line 1"}


def test_what_takes_long_to_follow_is_followed_once(tmp_path: Path) -> None:
    """A generated script of 400 functions, each of which calls all before it; a module that is imported 5,000 times."""
    calls = "\n".join(
        f"def f{number}():\n    {'; '.join(f'f{each}()' for each in range(number)) or 1}" for number in range(150)
    )
    write_files(tmp_path, {"train.py": f"{calls}\n" + "f149()\nimport a\n" * 3000 + "import timm\n", "a.py": "\n"})
    asked = []

    def find(name: str) -> list[Module]:
        asked.append(name)
        return make_finder(tmp_path)(name)

    text, own = read_script(tmp_path / "train.py")
    assert find_doubtful_imports(Module("", "", text), own, PACKAGES, TABLE, find) == {"timm": "line 6301"}
    assert asked == ["a"]


def test_a_file_of_comments_alone_is_said() -> None:
    (note,) = describe_emptiness("# License\n\n  # This file has moved\n", "dpo.py")
    assert str(note) == "dpo.py holds comments alone: its ranks end at once"
    for text in ("# a\nimport x\n", "  \n\tprint(1)", '"""A text."""\n', "", "\0", "#" * 10_000):
        assert describe_emptiness(text, "dpo.py") == ()


def test_the_interpreter_is_asked_and_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "space").mkdir()
    (tmp_path / "loud.py").write_text("raise SystemExit('imported')")
    names = ("space", "loud", "json", "sys", "nowhere_to_be_found")
    assert find_missing(str(tmp_path), *names) == ["nowhere_to_be_found"]


def test_files_of_the_project_that_hide_modules_of_python_are_named() -> None:
    (note,) = describe_hiding_modules(["train.py", "types.py", "queue.py"])
    assert str(note).startswith("queue.py, types.py in the project's root hide Python's own module of that name: ")
    assert describe_hiding_modules(["train.py", "kinds.py"]) == ()


def test_the_warning_holds_the_command_that_helps() -> None:
    def reported(*names: str, ipex: bool = False) -> str:
        places = {name: f"line {at}" for at, name in enumerate(names, 1)}
        return "".join(map(str, describe_missing_modules(places, "train.py", TABLE, "n1", ipex)))

    assert reported("sklearn") == (
        "train.py imports sklearn (line 1), not in the environment:\nipexctl install --with scikit-learn"
    )
    assert reported("transformers", ipex=True).endswith("\nipexctl install --with transformers==4.52.4")
    assert reported("oneccl_bindings_for_pytorch").endswith("\nipexctl install --backend ccl --like n1")
    assert reported("odd_one").endswith("not in the environment: install --with and the name of its package")
    both = "not in the environment (add --with and the package of odd_one):\nipexctl install --with einops"
    assert reported("odd_one", "einops").endswith(both)
    assert reported() == ""


@pytest.mark.parametrize(
    "text",
    [
        "# " + "pip " * 200_000,
        "from torch." + "a" * 400_000 + " import " + ",".join(f"b{number}" for number in range(60_000)),
    ],
    ids=["comment", "names"],
)
def test_a_long_script_takes_no_more_than_its_length(text: str) -> None:
    """The first took hours, the second 24 GB, before `run` had asked any host."""
    assert not find_doubtful_imports(Module("", "", text), (), (), TABLE)


@pytest.mark.parametrize("begin", ["import sys, ", "if 1: from "])
@pytest.mark.parametrize("dot", [".", " .\f", ".\\\n", "\\\r\n."])
def test_a_name_of_many_parts_is_not_parsed(begin: str, dot: str) -> None:
    """Of 95,000 parts it took Python's parser more than 9 GB, in `run` and in `migrate`."""
    with pytest.raises(SyntaxError, match="100 parts"):
        parse_python(begin + dot.join(["a"] * 2000) + " import b" * ("from" in begin) + "\n")
    assert parse_python("import b\nx = y" + ".a" * 900)


def test_what_an_interpreter_prints_beside_the_names_is_no_module() -> None:
    """A directory of that name here ended `run` with an internal error."""
    assert select_missing({"einops": "line 1", "tests": "line 2"}, "loading src . einops\n") == {"einops": "line 1"}


def test_the_table_names_modules_and_distributions() -> None:
    for name, package in TABLE.distributions.items():
        assert name.isidentifier()
        assert re.fullmatch(r"[A-Za-z][\w-]*", package)
