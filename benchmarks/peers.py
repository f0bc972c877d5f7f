"""Makes an environment with the tools ipexctl is measured against: ``python peers.py DIRECTORY [--slow] [--stack]``.

Libraries come from the package index into a virtual environment, pdsh from Debian's archive (unpacked there, not
installed). ``--stack`` makes another environment in it, DIRECTORY/stack: torch, Intel MPI, impi_torch and Accelerate.
Wheels of torch in a directory that PIP_FIND_LINKS names come before those of the index. Nothing outside of the
directory changes; remove it when done.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from uv import find_uv_bin

LIBRARIES = ("paramiko>=4,<6", "fabric>=3.2,<4", "asyncssh>=2.20", "ClusterShell>=1.9")
SLOW = ("ansible-core>=2.17", "pyinfra>=3")
STACK = (
    "torch==2.13.0",
    "impi-rt==2021.18.1",
    "numpy",
    "accelerate>=1.13",
    str(Path(__file__).parents[1] / "impi_torch"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--slow", action="store_true", help="also Ansible and pyinfra")
    parser.add_argument("--stack", action="store_true", help="also an environment to train with")
    given = parser.parse_args()
    place: Path = given.directory.absolute()
    install(place, [*LIBRARIES, *(SLOW if given.slow else ())])
    if given.stack:
        install(place / "stack", STACK)
    if shutil.which("pdsh") is None and shutil.which("apt-get"):
        pdsh(place)


def install(place: Path, wanted: Sequence[str]) -> None:
    """An environment with these packages."""
    uv, links = find_uv_bin(), os.environ.get("PIP_FIND_LINKS")
    subprocess.run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, place], check=True)
    words = [uv, "pip", "install", "--quiet", "--python", str(place / "bin/python")]
    subprocess.run([*words, *(["--find-links", links] if links else ()), *wanted], check=True)


def pdsh(place: Path) -> None:
    """Debian's package, unpacked. Its modules must be in /usr/lib: a mount that nobody else sees shows them there."""
    for package in ("pdsh", "libgenders0"):
        subprocess.run(["apt-get", "download", "-qq", package], cwd=place, check=True)
    for archive in place.glob("*.deb"):
        subprocess.run(["dpkg", "-x", archive, place], check=True)
        archive.unlink()
    (place / "pdsh").mkdir()
    (place / "pdsh/pdsh").symlink_to("../usr/bin/pdsh.bin")
    [modules] = place.glob("usr/lib/*/pdsh")
    there = f"/{modules.parent.relative_to(place)}"
    seen = f"mount -t overlay -o lowerdir={modules.parent}:{there} overlay {there}"
    wrapper = place / "bin/pdsh"
    wrapper.write_text(f'#!/bin/sh\nexec unshare -m sh -c \'{seen} && exec "$0" "$@"\' {place}/pdsh/pdsh "$@"\n')
    wrapper.chmod(0o755)


if __name__ == "__main__":
    main()
