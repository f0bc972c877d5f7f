"""Patterns as in .gitignore."""

import subprocess
from pathlib import Path
from random import Random

import pytest

from ipexctl.decide.planning.ignore import DEFAULT, compile_ignore
from ipexctl.verbs.files.project import compile_project_ignore, is_left_out
from tests.stopwatch import Stopwatch
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


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("*a" * 30 + "*b", "a" * 250), ("**/a/" * 12 + "b", "/".join("a" * 200)), ("**/*a*a*a/" * 9 + "b", "aaaa/" * 99)],
)
def test_many_wildcards_take_no_time(pattern: str, path: str) -> None:
    """The .gitignore of a repository from elsewhere held `run` and `sync` for ever."""
    assert compile_ignore([pattern])(path, False) is None


def test_brackets_without_an_end_take_no_time() -> None:
    """The 256 lines of a file of 1 MiB took four minutes."""
    watch = Stopwatch()
    compile_ignore([piece * (4095 // len(piece)) for piece in ("[", "[!", "[:", "[a-") for _ in range(10)])
    assert watch.read() < 1


def test_blanks_at_the_end_of_a_pattern_take_no_time() -> None:
    """A line of 1 MiB of them, and something behind, held `run` and `sync` for half an hour."""
    watch = Stopwatch()
    ignored = compile_ignore([" " * (1 << 20) + "x", "a  ", "b\\  "])
    assert watch.read() < 2
    assert [ignored(name, False) for name in ("a", "b ", "b", "b\\")] == [True, True, None, None]


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


def make_tree(top: Path) -> tuple[list[str], list[str]]:
    """Files and directories of odd names, in a repository."""
    subprocess.run(["git", "init", "-q", str(top)], check=True)
    random, files = Random(1), set(PATHS)
    for _ in range(400):
        files.add("/".join(random.choice(NAMES) for _ in range(random.randint(1, 4))))
    folders = {str(parent) for path in files for parent in Path(path).parents} - {"."} | {*DIRECTORIES}
    for folder in folders:
        (top / folder).mkdir(parents=True, exist_ok=True)
    return sorted(files - folders), sorted(folders)


NAMES = (
    *("a", "b", "c", "foo", "bar", "x", "ax", "dx", "5x", "]x", "-x", "a b", "trail ", "#hash", "!bang", "*", "\\"),
    *("[a-", "f.py", "d", "t.tar.gz"),
    *("a.log", "foo$", "(foo)", "a+b", "{a,b}", ".h", " lead", "axb", "foobar", "barfoo"),
)  # fmt: skip
NESTED = [
    {"": [pattern]} for pattern in (
        r"a\ b", r"trail\ ", "trail  ", r"\#hash", r"\!bang", "!bang", "[a-c]x", "[!a-c]x", "[^a-c]x", "[]]x", "[!]]x",
        "[[:digit:]]x", r"[a\]b]x", "[a-", "[", "foo/*", "foo/**", "/foo", "foo/", "**/foo", "**foo", "foo**", "a/**/b",
        "a/***/b", "***", "*/b", "**/b/**", "/**", "/*", "/", "//", "//foo", ".*", r"\*", r"\\", "\\", "foo\\", r"f\oo",
        "./a", "*/", "**/", "a?b", "[a-c-e]x", "[-a]x", r"[\d]x", "[c-a]x", "*[!/]x", "a[/]b", "{a,b}", "a+b",
        "foo/**/", "*.tar.*", " lead", "foo\r",
    )
] + [
    {"": ["*", "!*/", "!*.py"]},
    {"": ["foo/*", "!foo/bar"]},
    {"": ["/*", "!/foo", "/foo/*", "!/foo/bar"]},
    {"": ["a/", "!a/b"]},
    {"": ["*x"], "a": ["!ax"], "foo": ["!*"]},
    {"": ["foo"], "a": ["!foo", "/b"], "a/foo": ["*.py", "!/x"]},
    {"": ["!b"], "a": ["*"], "foo": ["*", "!.gitignore"]},
    {".git/info": ["*.py", "b"], "": ["!f.py"]},
]  # fmt: skip
NESTED += [{"": [pattern]} for pattern, *_ in CASES]


def test_git_leaves_out_the_same_of_a_tree(tmp_path: Path) -> None:
    """Nested files, negation and odd patterns: each as ``git check-ignore`` says."""
    files, folders = make_tree(tmp_path)
    words = ["git", "-C", str(tmp_path), "check-ignore", "--stdin", "-z", "--no-index"]
    for rules in NESTED:
        for folder, patterns in rules.items():
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            name = "exclude" if folder == ".git/info" else ".gitignore"
            (tmp_path / folder / name).write_text("".join(f"{pattern}\n" for pattern in patterns), newline="")
        done = subprocess.run(words, input="\0".join(files + folders).encode(), capture_output=True, check=False)
        ignored = compile_project_ignore(tmp_path, [])
        outside = [path for path in [*files, *folders] if is_left_out(tmp_path / path, tmp_path, ignored)]
        assert sorted(outside) == sorted(done.stdout.decode().split("\0")[:-1]), rules
        for folder in rules:
            (tmp_path / folder / ("exclude" if folder == ".git/info" else ".gitignore")).unlink()
