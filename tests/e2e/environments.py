"""Real environments, kept in the user's cache from one session to the next under the id of their lock.

Hosts get the same files by hard links, so that 7 GB are unpacked once. Whoever puts a kept one on hosts lets `install`
judge it afterwards: what differs from today's lock, it makes anew.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tests.cluster import Cluster
from tests.waiting import hold_lock

PLACE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ipexctl-tests/environments"
# As XDG_CACHE_HOME of an install: hosts see its wheels as on a shared file system, so that none copies 4 GB of them.
SHARED_CACHE = "/var/cache/ipexctl-tests"
# bytes: the stack on three hosts (21 GB), a row on two more (14), all rows' wheels (12), and what other tests write
ROOM = 60 << 30


@dataclass(frozen=True)
class KeptEnvironment:
    """What is kept of the environment at ``venv``, a path in the home of hosts, under a ``name`` of the tests."""

    name: str
    venv: str

    @property
    def folder(self) -> Path:
        """Holds one directory, named after the lock's id."""
        return PLACE / f"{self.name}-python{sys.version_info.major}.{sys.version_info.minor}"

    def put_on_hosts(self, cluster: Cluster, names: Sequence[str]) -> bool:
        """Whether there is a whole one; it is on these hosts then."""
        with hold_lock(self.folder / ".lock"):
            for summary in self.folder.glob("*.sum"):
                tree = summary.with_suffix("")
                if summary.read_text() == _summarize(tree) and _has_hashes(tree):
                    for name in names:
                        _link_files(tree / "env", self._on_host(cluster, name))
                    return True
                summary.unlink()  # a host has changed a file in place, or an ipexctl of before the hashes has made it
        return False

    def keep(self, cluster: Cluster, name: str) -> None:
        """What is installed on this host is what the next session begins with."""
        venv = self._on_host(cluster, name)
        lock = _find_active(venv)
        with hold_lock(self.folder / ".lock"):
            if (self.folder / f"{lock}.sum").exists():
                return
            for other in [path for path in self.folder.iterdir() if path.name != ".lock"]:
                shutil.rmtree(other) if other.is_dir() else other.unlink()
            _link_files(venv, self.folder / lock / "env")
            (self.folder / f"{lock}.sum").write_text(_summarize(self.folder / lock))

    def _on_host(self, cluster: Cluster, name: str) -> Path:
        return cluster.home(name) / Path(self.venv).relative_to("/root")


def unpacking() -> AbstractContextManager[None]:
    """Held by whoever unpacks a stack of 7 GB on each of several hosts: at once, on workers of their own, such tests
    need more disk than there may be."""
    return hold_lock(PLACE / ".unpacking")


def room_is_short() -> bool:
    """Whether the disk of hosts has less free than `ROOM`."""
    return shutil.disk_usage(os.environ.get("IPEXCTL_TEST_DISK", "/var/tmp")).free < ROOM


def _find_active(venv: Path) -> str:
    """The id of the lock by which the environment that is in use was made."""
    return Path(os.readlink(venv)).name


def _link_files(source: Path, target: Path) -> None:
    """The active environment of ``source`` at ``target``, which has none; copies where these are two file systems. The
    locks and tokens of hosts beside it are not for others."""
    store, theirs = source.with_name(f"{source.name}.d"), target.with_name(f"{target.name}.d")
    theirs.mkdir(parents=True, exist_ok=True)
    parts = [path for path in (store / _find_active(source), store / "bin") if path.exists()]
    if subprocess.run(["cp", "-al", *parts, theirs], stderr=subprocess.DEVNULL).returncode:
        subprocess.run(["cp", "-a", "--reflink=auto", "--remove-destination", *parts, theirs], check=True)
    target.symlink_to(os.readlink(source))


def _has_hashes(tree: Path) -> bool:
    """Whether the marker says which wheels it was made of: only such an environment can be added to."""
    return any(json.loads(path.read_text()).get("wheels") for path in tree.glob("env.d/*/ipexctl.json"))


def _summarize(tree: Path) -> str:
    """The names, sizes and times of all files, as one number: the same by whichever path the tree is reached."""
    summary = sha256()
    for folder, folders, files in os.walk(tree):
        folders.sort()
        for name in sorted(files):
            if not name.endswith(".pyc"):  # made by whoever imports first
                status = os.lstat(os.path.join(folder, name))
                summary.update(
                    f"{os.path.relpath(folder, tree)}/{name} {status.st_size} {status.st_mtime_ns}\n".encode()
                )
    return summary.hexdigest()
