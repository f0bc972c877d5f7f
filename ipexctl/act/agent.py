"""The remote side of a run as one file: the package ``ipexctl.remote.agent`` in an executable zip archive."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from importlib.resources import files

_MODULES = (
    "procs",
    "rpc",
    "files",
    "progress_monitor",
    "stack_traces",
    "spool",
    "oom_report",
    "guard",
    "keeper",
    "wrapper",
    "client",
)


@cache
def archive() -> bytes:
    """The archive, the same bytes for the same code (no times inside)."""
    agent = files("ipexctl.remote.agent")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as packed:

        def add(name: str, text: str) -> None:
            packed.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text)

        add("__main__.py", agent.joinpath("__main__.py").read_text("utf-8"))
        add("ipexctl/__init__.py", "")
        add("ipexctl/remote/__init__.py", "")
        add("ipexctl/remote/agent/__init__.py", "")
        for module in _MODULES:
            add(f"ipexctl/remote/agent/{module}.py", agent.joinpath(f"{module}.py").read_text("utf-8"))
    return out.getvalue()


def hook() -> bytes:
    """The sitecustomize that every rank's Python loads."""
    return files("ipexctl.remote.agent").joinpath("sitecustomize.py").read_bytes()


def script(name: str) -> str:
    """A file of the remote side, as text."""
    return files("ipexctl.remote.agent").joinpath(name).read_text("utf-8")
