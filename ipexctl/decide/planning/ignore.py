"""Which files are left out: patterns as in .gitignore."""

import re
from collections.abc import Callable, Iterable

# Nobody trains on these. ``!.git`` as a pattern takes one back in.
DEFAULT = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.py[co]", ".venv/", "venv/", "node_modules/", ".mypy_cache/",
    ".pytest_cache/", ".ruff_cache/", ".tox/", ".nox/", ".ipynb_checkpoints/", ".DS_Store", "*.swp", ".ipexctl-*",
)  # fmt: skip

_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_TOKEN = re.compile(r"\*\*/|\*\*\Z|[*?]|\[(!?)(\]?[^\]]*)\]|\\?(.)", re.DOTALL)

Ignored = Callable[[str, bool], bool]


def compile_ignore(patterns: Iterable[str]) -> Ignored:
    """Returns a test of (relative path, is a directory). The last pattern that matches decides; ``!`` takes back in. A
    pattern with a slash in it counts from the top; one that ends in a slash is only for directories."""
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
        text = _TOKEN.sub(_translate_token, pattern.lstrip("/"))
        rules.append((re.compile(text if anchored else f"(?:.*/)?{text}", re.DOTALL), taken_in, only_directories))

    def ignored(path: str, directory: bool) -> bool:
        for rule, taken_in, only_directories in reversed(rules):
            if (directory or not only_directories) and rule.fullmatch(path):
                return not taken_in
        return False

    return ignored


def _translate_token(token: re.Match[str]) -> str:
    """Returns a wildcard, a set of characters or a character as a regular expression."""
    if token[0] in _WILDCARDS:
        return _WILDCARDS[token[0]]
    if token[3] is not None:
        return re.escape(token[3])
    inside = token[2].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
    return f"[{'^' if token[1] else ''}{inside}]"
