"""The remote side of a run as one file: the package ``ipexctl.remote`` in an executable zip archive."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from importlib.resources import files

_MODULES = ("procs", "wire", "files", "pulse", "stacks", "spool", "autopsy", "guard", "keeper", "wrapper", "client")


@cache
def archive() -> bytes:
    """The archive, the same bytes for the same code (no times inside)."""
    remote = files("ipexctl.remote")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as packed:

        def add(name: str, text: str) -> None:
            packed.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text)

        add("__main__.py", remote.joinpath("__main__.py").read_text("utf-8"))
        add("ipexctl/__init__.py", "")
        add("ipexctl/remote/__init__.py", "")
        for module in _MODULES:
            add(f"ipexctl/remote/{module}.py", remote.joinpath(f"{module}.py").read_text("utf-8"))
    return out.getvalue()


def hook() -> bytes:
    """The sitecustomize that every rank's Python loads."""
    return files("ipexctl.remote").joinpath("sitecustomize.py").read_bytes()


def script(name: str) -> str:
    """A file of the remote side, as text."""
    return files("ipexctl.remote").joinpath(name).read_text("utf-8")
