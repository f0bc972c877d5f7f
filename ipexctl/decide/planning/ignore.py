"""Which files are left out: patterns as in .gitignore."""

import itertools
import posixpath
import re
from collections.abc import Callable, Container, Iterable
from functools import cache

# Nobody trains on these. ``!.git`` as a pattern takes one back in.
DEFAULT = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.py[co]", ".venv/", "venv/", "node_modules/", ".mypy_cache/",
    ".pytest_cache/", ".ruff_cache/", ".tox/", ".nox/", ".ipynb_checkpoints/", ".DS_Store", "*.swp", ".ipexctl-*",
)  # fmt: skip

_TOKEN = re.compile(
    r"(?P<between>(?:(?<=/)|\A)\*{2,}/)|(?P<below>(?:(?<=/)|\A)\*{2,}\Z)|(?P<star>\*+)|(?P<one>\?)"
    r"|\[(?P<not>[!^])?(?P<set>\]?(?:\[:\w+:\]|\\.|[^\]\\])*)\]|\\?(?P<char>.)",
    re.DOTALL,
)
_WILDCARDS = {"below": ".*", "one": "[^/]"}
_LENGTH_LIMIT = 4096  # characters of a pattern, as of a path
_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": " \t", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9", "graph": "!-~",
    "lower": "a-z", "print": " -~", "punct": "!-/:-@\\[-`{-~", "space": r"\s", "upper": "A-Z", "xdigit": "0-9A-Fa-f",
}  # fmt: skip

Ignored = Callable[[str, bool], bool | None]
"""Of a relative path, and whether it is a directory: whether it is left out; None where no pattern says."""


def compile_ignore(patterns: Iterable[str]) -> Ignored:
    """Returns the test of patterns as git reads them. The last one that matches decides; ``!`` takes back in. A pattern
    with a slash in it counts from the top; one that ends in a slash is only for directories."""
    rules: list[tuple[re.Pattern[str], bool, bool, bool]] = []
    for line in patterns:
        text = line.rstrip("\r\n")
        bare = text.rstrip(" ")
        pattern = text[: len(bare) + bare.endswith("\\")]  # a blank behind a backslash counts
        if not pattern or pattern.startswith("#"):
            continue
        taken_in = pattern.startswith("!")
        pattern = pattern.removeprefix("!")
        only_directories = pattern.endswith("/")
        pattern = pattern.removesuffix("/")
        of_name = "/" not in pattern
        if len(pattern) > _LENGTH_LIMIT:
            continue
        try:
            rule = re.compile(_translate_pattern(pattern.removeprefix("/")), re.DOTALL)
        except re.error:  # a range whose end is before its beginning
            continue
        rules.append((rule, taken_in, only_directories, of_name))

    def ignored(path: str, directory: bool) -> bool | None:
        name = path.rpartition("/")[2]
        for rule, taken_in, only_directories, of_name in reversed(rules):
            if (directory or not only_directories) and rule.fullmatch(name if of_name else path):
                return not taken_in
        return None

    return ignored


def compile_tree_ignore(
    patterns: Iterable[str], read_gitignore: Callable[[str], str], tracked: Container[str] = ()
) -> Ignored:
    """Returns the test for a tree: ``patterns`` and the default ones decide first, then the ``.gitignore`` nearest to
    the path, which leaves out nothing of ``tracked``, as in git. ``read_gitignore`` returns that of a directory."""
    first = compile_ignore([*DEFAULT, *patterns])

    @cache
    def compile_gitignore(directory: str) -> Ignored:
        return compile_ignore(read_gitignore(directory).split("\n"))

    def decide_as_git(path: str, directory: bool) -> bool | None:
        decision, parent = None, path
        while decision is None and parent:
            parent = posixpath.dirname(parent)
            decision = compile_gitignore(parent)(path[len(parent) :].removeprefix("/"), directory)
        return decision

    def ignored(path: str, directory: bool) -> bool | None:
        decision = first(path, directory)
        if decision is not None:
            return decision
        if path in tracked:
            return False
        above = posixpath.dirname(path)
        while above in tracked:  # it is sent for the sake of other files
            if first(above, True) is None and decide_as_git(above, True):
                return True
            above = posixpath.dirname(above)
        return decide_as_git(path, directory)

    return ignored


def _translate_pattern(pattern: str) -> str:
    """Returns a pattern as a regular expression that takes no more than the square of a path's length. Of several
    wildcards each but the last one stops at the first fit, for good: the next one takes what lies behind it."""
    numbers = itertools.count()
    chunks: list[list[list[str]]] = [[[""]]]  # between "**/", the parts of a path, and their texts between stars
    for token in _TOKEN.finditer(pattern):
        match token.lastgroup, token[0]:
            case "between", _:
                chunks.append([[""]])
            case "char", "[" | "\\":  # git lets a set without end, and a backslash without a character, match nothing
                return "(?!)"  # at once: to look for an end from each bracket would take the square of the length
            case "star", _:
                chunks[-1][-1].append("")
            case _, text:
                chunks[-1][-1][-1] += _translate_token(token)
                if text.endswith("/"):
                    chunks[-1].append([""])

    def stop_at_first(text: str) -> str:
        name = f"g{next(numbers)}"
        return f"(?=(?P<{name}>{text}))(?P={name})"  # what was taken is not tried again

    def join_texts(texts: list[str], shortest: str, longest: str) -> str:
        if len(texts) == 1:
            return texts[0]
        first, *middle, last = texts
        return first + "".join(stop_at_first(shortest + text) for text in middle) + longest + last

    parts = ["".join(join_texts(texts, "[^/]*?", "[^/]*") for texts in chunk) for chunk in chunks]
    return join_texts(parts, "(?:.*?/)??", "(?:.*/)?")


def _translate_token(token: re.Match[str]) -> str:
    """Returns a wildcard, a set of characters or a character as a regular expression."""
    kind = token.lastgroup or ""
    if kind in _WILDCARDS:
        return _WILDCARDS[kind]
    if kind == "char":
        return re.escape(token[kind])
    inside = re.sub(r"\[:(\w+):\]|\\(.)|([^-])", _translate_set_member, token["set"], flags=re.DOTALL)
    return f"(?!/)[{'^' if token['not'] else ''}{inside}]"


def _translate_set_member(member: re.Match[str]) -> str:
    return _CLASSES.get(member[1], "") if member[1] else re.escape(member[2] or member[3])
