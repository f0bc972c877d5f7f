"""The files of ``group_vars/`` and ``host_vars/`` beside an inventory, found as Ansible finds them."""

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ipexctl.act.inputs import Input, read_input
from ipexctl.model.errors import UsageError
from ipexctl.model.text import printable

_ENDINGS = (".yml", ".yaml", ".json")
_DEPTH_LIMIT = 16  # directories in one another; links can make a circle
_PATH_LIMIT = 20_000  # files and directories, each as often as links lead to it
_SIZE_LIMIT = 64 << 20  # characters of all files


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
