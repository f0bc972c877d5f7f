"""Makes an environment with the tools ipexctl is measured against: ``python peers.py DIRECTORY [--slow]``.

Libraries come from the package index into a virtual environment, pdsh from Debian's archive (unpacked there, not
installed). Nothing outside of the directory changes; remove it when done.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

LIBRARIES = ("paramiko>=4,<6", "fabric>=3.2,<4", "asyncssh>=2.20", "ClusterShell>=1.9")
SLOW = ("ansible-core>=2.17", "pyinfra>=3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--slow", action="store_true", help="also Ansible and pyinfra")
    given = parser.parse_args()
    place: Path = given.directory.absolute()
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    wanted = [*LIBRARIES, *(SLOW if given.slow else ())]
    subprocess.run([place / "bin/python", "-m", "pip", "install", "-q", *wanted], check=True)
    if shutil.which("pdsh") is None and shutil.which("apt-get"):
        pdsh(place)


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
