"""Reading the user's files: hostfiles, their variable files, playbooks. Never blocks, never reads without a limit."""

from __future__ import annotations

import errno
import itertools
import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ipexctl.model.errors import UsageError
from ipexctl.model.json_values import Record
from ipexctl.model.secrets import looks_secret
from ipexctl.model.text import printable

if TYPE_CHECKING:
    from ipexctl.model.tasks import Task


AnyTask = TypeVar("AnyTask", bound="Task")

LIMIT = 1 << 20
STDIN_LIMIT = 1 << 26  # bytes
_COMPARED = 1000  # names of files that a missing one is compared with
_REASONS = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "does not exist: a part of the path is not a directory",
    errno.EACCES: "cannot be read: permission denied",
    errno.EPERM: "cannot be read: permission denied",
    errno.ELOOP: "cannot be read: too many symbolic links",
    errno.ENAMETOOLONG: "does not exist: the name is too long",
}


class Input(Record):
    """A file's text (without a byte order mark), warnings about the file, and its mode."""

    path: Path
    text: str
    warnings: tuple[str, ...] = ()
    mode: int = 0


def read_input(path: str | Path, *, cwd: Path | None = None, hint: str | None = None, limit: int = LIMIT) -> Input:
    """The text of a regular UTF-8 file of at most ``limit`` bytes. Raises `UsageError`, naming the path as given. A
    relative path is one below ``cwd`` (default: the process's). ``hint`` is added if the file does not exist."""
    shown = printable(os.fspath(path), 300)
    if not os.fspath(path):
        raise UsageError("the path of a file is empty", hint=hint)
    full = (cwd or Path()) / path
    try:
        data, mode = read_limited(full, limit)
    except ValueError as error:  # a NUL in the path
        raise UsageError(f"{shown} does not exist: {error}") from None
    except OSError as error:
        reason = _REASONS.get(error.errno or 0) or f"cannot be read: {(error.strerror or str(error)).lower()}"
        if error.errno != errno.ENOENT:
            raise UsageError(f"{shown} {reason}") from None
        meant, question = suggest_file(full, Path(path))
        raise UsageError(f"{shown} {reason}{question}", hint=hint, meant=meant) from None
    if isinstance(data, str):
        raise UsageError(f"{shown} {data}")
    if len(data) > limit:
        raise UsageError(f"{shown} is larger than {limit >> 20} MiB")
    return Input(full, _decode_utf8(data, shown), _warn_about_mode(full, mode, shown), mode)


def suggest_file(full: Path, path: Path) -> tuple[tuple[str, str] | None, str]:
    """Returns ``path``, of a missing file, with that of the file of the most similar names, and the question
    `` (did you mean …?)``; None and an empty text where none is similar."""
    from difflib import get_close_matches

    directory, missing, similar = full.parent, [full.name], list[str]()
    while not directory.is_dir() and directory.name:
        missing.insert(0, directory.name)
        directory = directory.parent
    for number, name in enumerate(missing, 1):
        is_kind = Path.is_file if number == len(missing) else Path.is_dir
        try:
            names = [each.name for each in islice(directory.iterdir(), _COMPARED) if is_kind(each)]
        except OSError:
            return None, ""
        stem, ending = Path(name).stem, Path(name).suffix  # an ending that both have is no likeness: new.py and z.py
        names = [each for each in names if Path(each).suffix != ending or get_close_matches(stem, [Path(each).stem])]
        close = get_close_matches(name, names, n=1)
        if not close:
            return None, ""
        similar += close
        directory /= close[0]
    meant = str(Path(*path.parts[: -len(missing)], *similar))
    return (str(path), meant), f" (did you mean {printable(meant, 200)}?)"


def expand_home(path: str, place: str = "") -> Path:
    """Returns a path that the user or a file wrote, with ``~`` and ``~user`` replaced. ``place`` is where it was
    written. Raises `UsageError` if there is no such user: no directory of that name is meant."""
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError):  # a name that cannot be a user's is refused as another exception
        user = printable(path[1:].partition("/")[0], 80)
        why = f"there is no user {user}" if user else "the home directory of this account is not known"
        shown = printable(path, 300)
        raise UsageError(
            f"{place}: {shown} cannot be found: {why}" if place else f"{shown} cannot be found: {why}"
        ) from None


def expand_local_paths(task: AnyTask, place: str = "") -> AnyTask:
    """The task with ``~`` and ``~user`` replaced in its paths on this machine: a shell does it for a word of its own
    only, not in ``--requirements=~/list.txt`` and not in a playbook. Raises `UsageError` as `expand_home` does."""
    from ipexctl.model.tasks import LOCAL_PATHS

    def expand(path: str) -> str:
        return str(expand_home(path, place)) if path.startswith("~") else path

    changes: dict[str, str | tuple[str, ...]] = {}
    for name in LOCAL_PATHS:
        value = getattr(task, name, None)
        if isinstance(value, str):
            changes[name] = expand(value)
        elif value:
            changes[name] = tuple(map(expand, value))
    return replace(task, **changes) if changes else task


def read_env_file(path: str) -> str:
    """Returns the text of a file of variables. Raises `UsageError` also where others may read a secret in it."""
    file = read_input(path)
    names = [line.partition("=")[0] for line in file.text.splitlines() if not line.lstrip().startswith("#")]
    if file.mode & (stat.S_IRWXG | stat.S_IRWXO) and any(map(looks_secret, names)):
        what = f"{printable(path, 300)} holds secrets and is open to others (mode {stat.S_IMODE(file.mode):04o})"
        raise UsageError(what, hint=f"chmod 600 {shlex.quote(printable(path, 300))}")
    return file.text


def read_stdin(path: str | None) -> bytes:
    """Returns what a rank is to read: the bytes of a file, a pipe, or for ``-`` of our own standard input, to their
    end; none for None. Raises `UsageError` where they cannot be read or are more than `STDIN_LIMIT`."""
    try:
        with open(0 if path == "-" else path or os.devnull, "rb", closefd=path != "-") as file:
            data = file.read(STDIN_LIMIT + 1)
    except (OSError, ValueError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise UsageError(f"--stdin {printable(path or '', 300)} cannot be read: {why}") from None
    if len(data) > STDIN_LIMIT:
        hint = "put it into the script's directory and open it in the script"
        raise UsageError(f"--stdin {printable(path or '', 300)} is larger than {STDIN_LIMIT >> 20} MiB", hint=hint)
    return data


def is_writable_by_all(directory: Path) -> bool:
    """Returns whether anybody may put files there: what is found in such a directory is nobody's configuration."""
    try:
        return bool(directory.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def refuse_planted(path: Path) -> None:
    """Refuses what another user has put where everybody may: whoever named it in one word may have meant something
    else of that name. Raises `UsageError`."""
    if is_writable_by_all(path.parent) and path.lstat().st_uid not in {0, os.geteuid()}:
        what = f"{printable(str(path), 300)} is another user's, in a directory that everyone can write to"
        raise UsageError(what, hint="work in a directory of your own")


def read_limited(path: Path, limit: int) -> tuple[bytes | str, int]:
    """Returns the bytes (up to one more than the limit) or the reason, and the mode. Looks before it opens, which can
    have effects; then again at what was opened, which O_NONBLOCK keeps from waiting for a writer."""
    status = path.stat()
    if why := _explain_irregular_file(status.st_mode):
        return why, status.st_mode
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if why := _explain_irregular_file(status.st_mode):
            return why, status.st_mode
        return file.read(limit + 1), status.st_mode


def _explain_irregular_file(mode: int) -> str | None:
    if stat.S_ISREG(mode):
        return None
    return "is a directory" if stat.S_ISDIR(mode) else "is not a regular file"


def _decode_utf8(data: bytes, shown: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data[:2] in {b"\xff\xfe", b"\xfe\xff"}:
            raise UsageError(f"{shown} is UTF-16 text, not UTF-8") from None
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{shown} is not UTF-8 text: byte \\x{data[error.start]:02x} in line {line}") from None


def _warn_about_mode(path: Path, mode: int, shown: str) -> tuple[str, ...]:
    warnings = []
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        warnings.append(
            f"{shown} can be written by others (mode {stat.S_IMODE(mode):04o}): chmod go-w {shlex.quote(shown)}"
        )
    if is_writable_by_all(path.parent):
        warnings.append(f"{shown} lies in a directory that everyone can write to")
    return tuple(warnings)


def read_script(path: Path, *directories: Path) -> tuple[str, set[str]]:
    """A script's text, and the names of what lies beside it or in ``directories`` and could be a module; empty if it
    cannot be read."""
    names = set[str]()
    for folder in (path.parent, *directories):
        with suppress(OSError):
            names |= {file.name.partition(".")[0] for file in folder.iterdir()}
    return read_script_text(path), names


def read_script_text(path: Path) -> str:
    """As far as it is no longer than a file that a person writes; "" if it cannot be read."""
    with suppress(OSError):
        data, _ = read_limited(path, LIMIT)
        return data.decode("utf-8-sig", "replace") if isinstance(data, bytes) else ""
    return ""


def find_modules(name: str, directories: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yields the files that Python reads when it imports a module from these directories, those of its packages first,
    each with the package whose relative imports it may write."""
    parts, folders = name.split("."), [*directories]
    for end, part in enumerate(parts, 1):
        file = _find_module(part, folders)
        if file is None:  # a namespace package has no file
            folders = [folder / part for folder in folders]
        elif file.name == "__init__.py":
            yield file, ".".join(parts[:end])
            folders = [file.parent]
        else:
            yield file, ".".join(parts[: end - 1])
            return


def _find_module(name: str, directories: Iterable[Path]) -> Path | None:
    """Returns the file that Python takes: of the first directory that has one, the package before the module."""
    for directory in directories:
        for file in (directory / name / "__init__.py", directory / f"{name}.py"):
            with suppress(OSError):  # a name that is too long, a closed directory
                if file.is_file():
                    return file
    return None


_ENDINGS = (".yml", ".yaml", ".json")
_DEPTH_LIMIT = 16  # directories in one another; links can make a circle
_PATH_LIMIT = 20_000  # files and directories, each as often as links lead to it
_SIZE_LIMIT = 16 << 20  # characters of all files, each of which may take 3 microseconds


def read_variable_files(folder: Path, names: Iterable[str], cwd: Path) -> Iterator[tuple[str, str, Input]]:
    """Yields the files for these groups or hosts, each with its name and path: ``NAME``, else ``NAME.yml``, ``.yaml``
    or ``.json``; of a directory all in it, in the order of their names, so that the last one wins. ``folder`` is seen
    from ``cwd``. Raises `UsageError`."""
    present, paths, size = set(_list_names(folder, cwd)), itertools.count(), 0
    for name in names if present else ():
        file = next((file for file in (name, *(name + ending for ending in _ENDINGS)) if file in present), None)
        for path in _list_files(folder / file, cwd, paths) if file else ():
            found = read_input(path, cwd=cwd)
            size += len(found.text)
            if size > _SIZE_LIMIT:
                raise UsageError(f"{printable(str(folder), 300)} is larger than {_SIZE_LIMIT >> 20} MiB")
            yield name, str(path), found


def _list_files(path: Path, cwd: Path, paths: Iterator[int], depth: int = 0) -> Iterator[Path]:
    """The file itself, or those in a directory and the directories in it whose names have no ending; no backups."""
    if next(paths) > _PATH_LIMIT:
        raise UsageError(f"{printable(str(path), 300)}: more than {_PATH_LIMIT} files and directories")
    if not (cwd / path).is_dir():
        yield path
        return
    if depth > _DEPTH_LIMIT:
        raise UsageError(f"{printable(str(path), 300)}: more than {_DEPTH_LIMIT} directories in one another")
    for name in sorted(_list_names(path, cwd)):
        inner, ending = path / name, os.path.splitext(name)[1]  # noqa: PTH122 - as Ansible sees a name
        endings = ("",) if (cwd / inner).is_dir() else ("", *_ENDINGS)
        if ending in endings and not name.startswith(".") and not name.endswith("~"):
            yield from _list_files(inner, cwd, paths, depth + 1)


def _list_names(folder: Path, cwd: Path) -> list[str]:
    try:
        return [path.name for path in (cwd / folder).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"{printable(str(folder), 300)} cannot be read: {why}") from None
