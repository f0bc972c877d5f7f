"""Which directory tree of this machine a path belongs to, and what of it is left out."""

import functools
import hashlib
import os
import re
import subprocess
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile

from ipexctl.act.inputs import expand_home, find_modules, is_writable_by_all, read_script_text
from ipexctl.decide.planning.ignore import Ignored, compile_tree_ignore
from ipexctl.decide.script_imports import Module
from ipexctl.model.errors import UsageError
from ipexctl.model.json_values import Record
from ipexctl.model.text import printable
from ipexctl.store.private_files import open_regular_file

_OWN_IGNORE = ".ipexctlignore"  # patterns of the project itself, at its root
_IGNORE_LIMIT = 1 << 20  # bytes of a file of patterns
_PATTERN_LIMIT = 10_000  # lines of it: each is tried on each file
_CODE_LIMIT = 2 << 20  # characters of all modules of a script, which are parsed: a million takes 10 s at worst
_GIT_TIMEOUT = 20.0  # seconds
# KiB of memory, and 512 bytes of output: an index packs long names into a few bytes each.
_LIMITED = 'ulimit -v 4194304; ulimit -f 131072; exec "$0" "$@"'
_SIGNS = (".git", "pyproject.toml", _OWN_IGNORE)  # what the root of a project has


class Project(Record):
    """A tree that has a directory of its own on hosts. ``part`` is where relative paths start in it: the directory that
    was named, or for a script the one where its ranks work. ``is_marked``: the tree is more than a script's directory.
    """

    root: Path
    part: str = ""
    is_marked: bool = False

    @property
    def name(self) -> str:
        """Returns what its directory on hosts is called: two trees never share one."""
        return f"{self.root.name}-{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:8]}"

    def list_import_paths(self) -> list[str]:
        """Returns the directories of modules, relative to the root: it, and ``src`` of a project with that layout."""
        if not self.is_marked:
            return []
        src = self.root / "src"
        has_src = (self.root / "pyproject.toml").is_file() and src.is_dir() and not (src / "__init__.py").exists()
        return ["", "src"] if has_src else [""]


def find_project(source: str | Path, root: str | None, exclude: Iterable[str] = ()) -> Project:
    """Returns the tree of a directory or a script: that of ``root``, else of the nearest directory upwards that looks
    like a project, else the script's own; a directory without scripts below the current one is part of that. Ranks work
    in the current directory if the tree sends it, else in the script's. Raises `UsageError`."""
    path, current = follow_script(source), Path.cwd()
    directory = path if path.is_dir() else path.parent
    if root is not None:
        top = make_absolute(root)
        if not directory.resolve().is_relative_to(top.resolve()):
            what = f"{printable(str(source), 300)} is not below --project {printable(root, 300)}"
            raise UsageError(what, hint="name a directory that holds it")
    else:
        top = _find_root(directory)
        ignored = compile_project_ignore(top, exclude)
        if path != directory and is_left_out(path.resolve(), top.resolve(), ignored):
            top = directory  # as of a script in .venv: the project does not send it
        if top == directory and not _is_root(top):
            place = path.resolve() if current in path.resolve().parents else path
            below = path == directory and current in place.parents
            shared = is_home_or_root(current) or is_writable_by_all(current)
            if below and not shared and not any(path.glob("*.py")):  # with scripts it is what they would run in
                return Project(current, place.relative_to(current).as_posix())
            return Project(top)
    real = top.resolve()
    works = directory.resolve()
    if not works.is_relative_to(real):  # data, by a link out of the project: it goes to the link's place
        works = real / directory.relative_to(top)
    ignored = compile_project_ignore(top, exclude)
    if path != directory and current.is_relative_to(real) and not is_left_out(current, real, ignored):
        works = current
    return Project(top, "" if works == real else works.relative_to(real).as_posix(), True)


def make_finder(beside: Path, project: Project) -> Callable[[str], list[Module]]:
    """Returns what finds the files of a module beside the script or in the project; empty ones after `_CODE_LIMIT`."""
    directories = [beside, *(project.root / path for path in project.list_import_paths())]
    left = _CODE_LIMIT

    @functools.cache
    def read(file: Path) -> str:
        nonlocal left
        code = read_script_text(file) if left > 0 else ""
        left -= len(code)
        return code

    def find(name: str) -> list[Module]:
        files = find_modules(name, directories)
        return [Module(os.path.relpath(file, project.root), of, read(file)) for file, of in files]

    return find


def follow_script(path: str | Path) -> Path:
    """Returns the absolute path; of a script behind a link out of its project the one that the link leads to, whose
    project is its own: beside that Python looks for modules, too."""
    script = make_absolute(path)
    real = script.resolve()
    return script if script.is_dir() or real.is_relative_to(_find_root(script.parent).resolve()) else real


def make_absolute(path: str | Path) -> Path:
    """Returns the path with links as they are written. Raises `UsageError` for an unknown user's home."""
    return Path(os.path.abspath(expand_home(str(path))))  # noqa: PTH100


def compile_project_ignore(root: Path, exclude: Iterable[str]) -> Ignored:
    """Returns the test of what of a tree is left out: by ``exclude``, its .ipexctlignore and its .gitignore files."""
    lines = size = 0  # of all that was read

    def read_gitignore(directory: str) -> str:
        nonlocal lines, size
        text = "\n".join([*_list_environments(root / directory), _read_text(root / directory / ".gitignore")])
        text = text if directory else f"{_read_text(root / '.git/info/exclude')}\n{text}"
        lines, size = lines + text.count("\n"), size + len(text)
        if lines > 2 * _PATTERN_LIMIT or size > 2 * _IGNORE_LIMIT:  # each takes up to 5 KiB here
            limits = f"{2 * _PATTERN_LIMIT} lines or {2 * _IGNORE_LIMIT >> 20} MiB of patterns"
            raise UsageError(f"the .gitignore files of {printable(str(root), 300)} have more than {limits}")
        return text

    patterns = [*_read_text(root / _OWN_IGNORE).split("\n"), *chain.from_iterable(map(_take_in_files, exclude))]
    return compile_tree_ignore(patterns, read_gitignore, _list_tracked(root))


def _list_environments(directory: Path) -> list[str]:
    """Returns patterns of the virtual environments of a directory, of links to them, and of what lies beside ours.
    Raises `UsageError` for more than would do as patterns of a file."""
    names = []
    with suppress(OSError), os.scandir(directory) as items:
        for item in items:
            if any(os.path.lexists(f"{item.path}/{mark}") for mark in ("pyvenv.cfg", "conda-meta")):
                names += [item.name, *([f"{item.name}.d"] if item.is_symlink() else [])]
    if len(names) > _PATTERN_LIMIT:
        raise UsageError(f"{printable(str(directory), 300)} has more than {_PATTERN_LIMIT} virtual environments")
    return ["/" + re.sub(r"[*?\\\[\s]", "?", name) for name in names]


def _take_in_files(pattern: str) -> tuple[str, ...]:
    """A directory that is taken back in is so with its files, which patterns for files may leave out."""
    if not pattern.startswith("!") or not pattern.endswith("/"):
        return (pattern,)
    above = "" if "/" in pattern[:-1] else "**/"
    return pattern, f"!{above}{pattern[1:]}**"


class _Tracked:
    """The files that git tracks although its patterns match them, and the directories that hold these."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = sorted(f"{file}/" for file in files if file)

    def __contains__(self, path: object) -> bool:
        at = bisect_left(self._files, f"{path}/")
        return at < len(self._files) and self._files[at].startswith(f"{path}/")


def _list_tracked(root: Path) -> _Tracked:
    words = ["git", "-c", "core.fsmonitor=false", "ls-files", "-z", "--cached", "--ignored", "--exclude-standard"]
    env = {**os.environ, "GIT_ALLOW_PROTOCOL": "none"}  # what is missing of a partial clone is fetched by its programs
    try:
        with TemporaryFile() as out:
            subprocess.run(
                ["/bin/sh", "-c", _LIMITED, *words],
                cwd=root, env=env, stdout=out, stderr=subprocess.DEVNULL, timeout=_GIT_TIMEOUT, check=True,
            )  # fmt: skip
            out.seek(0)
            return _Tracked(os.fsdecode(out.read()).split("\0"))
    except (OSError, subprocess.SubprocessError):  # no git here, no repository, or one of somebody else
        return _Tracked([])


def _read_text(path: Path) -> str:
    """Returns the text of a file of patterns; "" without one. Raises `UsageError` for one that would take too long, of
    which a part alone would send what is to stay."""
    if not path.is_file():
        return ""
    try:
        with open_regular_file(path, follow=True) as file:
            data = file.read(_IGNORE_LIMIT + 1)
    except OSError:
        return ""
    if len(data) > _IGNORE_LIMIT or data.count(b"\n") > _PATTERN_LIMIT:
        limits = f"{_PATTERN_LIMIT} lines or {_IGNORE_LIMIT >> 20} MiB of patterns"
        raise UsageError(f"{printable(str(path), 300)} has more than {limits}")
    return data.decode("utf-8-sig", "surrogateescape")


def _find_root(directory: Path) -> Path:
    """Returns the nearest directory upwards that looks like a project's root, else the directory itself."""
    for each in (directory, *directory.parents):
        if is_home_or_root(each):
            break
        if _is_root(each):
            return each
    return directory


def is_home_or_root(directory: Path) -> bool:
    return directory.resolve() in {Path.home().resolve(), Path("/")}


def _is_root(directory: Path) -> bool:
    return any((directory / sign).exists() for sign in _SIGNS) and not is_writable_by_all(directory)


def is_left_out(path: Path, root: Path, ignored: Ignored) -> bool:
    """Returns whether a path below ``root``, or a directory on the way to it, is left out."""
    parts = path.relative_to(root).parts
    paths = ("/".join(parts[:number]) for number in range(1, len(parts) + 1))
    return any(ignored(each, (root / each).is_dir()) for each in paths)
