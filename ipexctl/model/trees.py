"""A directory as it was at one moment, to be carried somewhere else."""

from pathlib import Path
from typing import Literal

from ipexctl.model.json_values import Record


class TreeEntry(Record):
    """One thing in a tree. ``path`` is relative, with "/"; bytes that are not UTF-8 are surrogates. ``stamp`` changes
    whenever the file does: (size, mtime in ns, ctime in ns, inode)."""

    path: str
    kind: Literal["f", "d", "l"]
    size: int = 0
    stamp: tuple[int, int, int, int] = (0, 0, 0, 0)
    executable: bool = False
    target: str = ""  # of a link

    @property
    def mtime(self) -> int:
        """Whole seconds, as it is set on the hosts."""
        return max(0, self.stamp[1] // 10**9)


class FileTree(Record):
    """``origin`` names the source across machines and runs: ``laptop:/home/ada/project``. ``skipped`` cannot be carried
    (sockets, pipes, devices). Entries are sorted by path, parents first."""

    root: Path
    origin: str
    entries: tuple[TreeEntry, ...]
    skipped: tuple[str, ...] = ()
