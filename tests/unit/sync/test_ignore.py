"""Patterns as in .gitignore."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ipexctl.decide.planning.ignore import DEFAULT, compile_ignore
from tests.tables import read_table

CASES = read_table("ignore/cases")
PATHS = [
    "a.log", "deep/er/b.log", "deep/top.txt", "top.txt", "docs/a.html", "docs/x/b.html", "cache", "a/b/cache",
    "data/x", "data/y/z", "a/z", "a/b/c/z", "file1.txt", "filea.txt", "x.py", "xy.py", "!odd", "with space", "été.py",
    "star*", "starry", "ends  ",
]  # fmt: skip
DIRECTORIES = ["build", "deep/build"]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_pattern_leaves_out_what_it_says(case: tuple[str, ...]) -> None:
    pattern, *left_out = case
    ignored = compile_ignore([pattern])
    assert [path for path in PATHS if ignored(path, False)] + [path for path in DIRECTORIES if ignored(path, True)] == [
        path for path in PATHS + DIRECTORIES if path in left_out
    ]


@pytest.mark.parametrize("pattern", [case[0] for case in CASES])
def test_git_reads_the_pattern_the_same_way(pattern: str, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text(pattern + "\n")
    for path in DIRECTORIES:
        (tmp_path / path).mkdir(parents=True)
    words = ["git", "-C", str(tmp_path), "-c", "core.quotepath=off", "check-ignore", "--stdin", "-z", "--no-index"]
    output = subprocess.run(words, input="\0".join(PATHS + DIRECTORIES).encode(), capture_output=True).stdout.decode()
    ignored = compile_ignore([pattern])
    under = [p for p in PATHS if any(ignored(str(parent), True) for parent in Path(p).parents if str(parent) != ".")]
    ours = [path for path in PATHS if ignored(path, False) or path in under]
    ours += [path for path in DIRECTORIES if ignored(path, True)]
    assert sorted(output.split("\0")[:-1]) == sorted(ours)


def test_the_last_pattern_that_matches_decides() -> None:
    ignored = compile_ignore(["*.bin", "!keep.bin", "# comment", ""])
    assert ignored("a.bin", False)
    assert not ignored("keep.bin", False)
    assert ignored("keep.bin", False) is not compile_ignore(["!keep.bin", "*.bin"])("keep.bin", False)


def test_what_nobody_trains_on_is_left_out_and_can_be_taken_back_in() -> None:
    ignored = compile_ignore(DEFAULT)
    assert ignored(".git", True)
    assert ignored("src/__pycache__", True)
    assert ignored(".venv", True)
    assert not ignored("train.py", False)
    assert not ignored("venv.py", False)
    assert not compile_ignore([*DEFAULT, "!.git"])(".git", True)
