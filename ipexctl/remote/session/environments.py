"""The environments of a store on the disk (see `install`)."""

import glob
import json
import os
import shutil
from typing import Any, Dict, List

from ipexctl.protocol.paths import MARKER
from ipexctl.protocol.session import SessionError
from ipexctl.remote.agent import procs
from ipexctl.remote.session import relay
from ipexctl.remote.session.places import list_directory
from ipexctl.remote.session.programs import execute

NOT_ENVIRONMENTS = ("lock", "bin", "cache", "tokens", "wheels")  # beside the environments


def list_environments(base: str) -> List[str]:
    """Complete environments: they have a marker. A link to one is none."""
    paths = [os.path.join(base, name) for name in list_directory(base) if name not in NOT_ENVIRONMENTS]
    return [os.path.basename(path) for path in paths if not os.path.islink(path) and read_marker(path) is not None]


def read_marker(directory: str) -> Any:
    try:
        with open(os.path.join(directory, MARKER), "rb") as file:
            return json.loads(file.read(1 << 20).decode())
    except (OSError, ValueError):
        return None


def list_packages(environment: str) -> Dict[str, str]:
    """Returns names and versions of what is installed, from the directories' names."""
    versions: Dict[str, str] = {}
    library = os.path.join(environment, "lib")
    for python in list_directory(library):
        for name in list_directory(os.path.join(library, python, "site-packages")):
            package, _, version = name[: -len(".dist-info")].rpartition("-")
            if name.endswith(".dist-info") and package:
                versions[package] = version
    return versions


def link_environment(source: str, target: str, tmp: str) -> None:
    """Makes an environment with the files of another: hard links, or copies where there can be none. Small files that
    name the environment itself (scripts, settings) are written anew. An installer replaces files, it changes none."""
    linked, old, new = os.path.join(tmp, "linked"), *(os.fsencode("/" + os.path.basename(p)) for p in (source, target))
    for option in ("-al", "-a"):
        relay.remove_path(linked)
        status, _, errors = execute(
            ["cp", option, source, linked], dict(os.environ), None, relay.DISK_TIMEOUT, relay.DISK_TIMEOUT
        )
        if status == 0:
            break
    else:
        raise SessionError("no-space" if "No space" in errors else "step", "cp failed", errors=errors[-4000:])
    os.unlink(os.path.join(linked, MARKER))
    for pattern in ("pyvenv.cfg", "bin/*", "lib/*/site-packages/*.pth"):
        for path in glob.glob(os.path.join(linked, pattern)):
            data = b""
            if not os.path.islink(path) and os.path.getsize(path) < 1 << 20:
                data = procs.read_file(path)
            if old in data:
                with open(path + ".new", "wb") as file:
                    file.write(data.replace(old, new))
                shutil.copymode(path, path + ".new")
                os.rename(path + ".new", path)
    os.rename(linked, target)


def fsync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
