"""Which files are left out: patterns as in .gitignore."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

# Nobody trains on these. ``!.git`` as a pattern takes one back in.
DEFAULT = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.py[co]", ".venv/", "venv/", "node_modules/", ".mypy_cache/",
    ".pytest_cache/", ".ruff_cache/", ".tox/", ".nox/", ".ipynb_checkpoints/", ".DS_Store", "*.swp", ".ipexctl-*",
)  # fmt: skip

Ignored = Callable[[str, bool], bool]


def compile_ignore(patterns: Iterable[str]) -> Ignored:
    """A test of (relative path, is a directory). The last pattern that matches decides; ``!`` takes back in.

    A pattern with a slash in it counts from the top; one that ends in a slash is only for directories.
    """
    rules: list[tuple[re.Pattern[str], bool, bool]] = []
    for line in patterns:
        pattern = line.rstrip("\n")
        if not pattern.endswith("\\ "):
            pattern = pattern.rstrip(" ")
        if not pattern or pattern.startswith("#"):
            continue
        taken_in = pattern.startswith("!")
        pattern = pattern[1:] if taken_in else pattern.removeprefix("\\")
        only_directories = pattern.endswith("/")
        pattern = pattern.rstrip("/")
        anchored = "/" in pattern
        text = _regex(pattern.lstrip("/"))
        rules.append((re.compile(text if anchored else f"(?:.*/)?{text}", re.DOTALL), taken_in, only_directories))

    def ignored(path: str, directory: bool) -> bool:
        for rule, taken_in, only_directories in reversed(rules):
            if (directory or not only_directories) and rule.fullmatch(path):
                return not taken_in
        return False

    return ignored


def _regex(pattern: str) -> str:
    out: list[str] = []
    at = 0
    while at < len(pattern):
        remainder = pattern[at:]
        if remainder.startswith("**/"):
            out.append("(?:.*/)?")
            at += 3
        elif remainder == "**":
            out.append(".*")
            at += 2
        elif remainder[0] == "*":
            out.append("[^/]*")
            at += 1
        elif remainder[0] == "?":
            out.append("[^/]")
            at += 1
        elif match := re.match(r"\[(!?)(\]?[^\]]*)\]", remainder):
            inside = match[2].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
            out.append(f"[{'^' if match[1] else ''}{inside}]")
            at += match.end()
        elif remainder[0] == "\\" and len(remainder) > 1:
            out.append(re.escape(remainder[1]))
            at += 2
        else:
            out.append(re.escape(remainder[0]))
            at += 1
    return "".join(out)
