"""The remote side of a run as one file: `ipexctl.remote.agent` and `ipexctl.protocol` in an executable zip archive; and
the parts of it that hosts get as single files."""

import hashlib
import io
import marshal
import zipfile
from functools import cache
from importlib.resources import files
from importlib.util import MAGIC_NUMBER, find_spec
from typing import Any

from ipexctl.protocol import paths

_PACKAGES = ("ipexctl", "ipexctl.remote", "ipexctl.remote.agent", "ipexctl.protocol")
_NOT_IN_IT = {
    "__init__.py",
    "__main__.py",
    "sitecustomize.py",
    "worlds.py",
    "profile_steps.py",
}  # the last are of ranks
_COMPILED = MAGIC_NUMBER + (1).to_bytes(12, "little")  # header of code that is not compared with its text (PEP 552)


@cache
def read_source(module: str) -> str:
    """Returns the text of a module of ours ("remote.agent.procs")."""
    package, _, name = f"ipexctl.{module}".rpartition(".")
    return files(package).joinpath(f"{name}.py").read_text("utf-8")


def list_modules(package: str) -> tuple[str, ...]:
    """Returns the modules of a package ("protocol"), as `source` takes them."""
    names = sorted(entry.name for entry in files(f"ipexctl.{package}").iterdir() if entry.name.endswith(".py"))
    return tuple(f"{package}.{name[:-3]}" for name in names if name not in _NOT_IN_IT)


@cache
def build_archive() -> bytes:
    """Returns the archive. Each module is in it compiled, which halves the start where a host's Python is the
    controller's, and as text, which zipimport takes where it is not."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:

        def add(name: str, data: str | bytes, method: int = zipfile.ZIP_DEFLATED) -> None:
            packed.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, method, 1)

        for package in _PACKAGES:
            add(f"{package.replace('.', '/')}/__init__.py", "", zipfile.ZIP_STORED)
        for module in ("remote.agent.__main__", *list_modules("protocol"), *list_modules("remote.agent")):
            place = "__main__" if module.endswith("__main__") else f"ipexctl/{module.replace('.', '/')}"
            loader: Any = find_spec(f"ipexctl.{module}").loader  # type: ignore[union-attr]  # out of Python's own cache
            # As it is: each of a run's programs on a host would load zlib, and inflate it anew.
            add(f"{place}.pyc", _COMPILED + marshal.dumps(loader.get_code(f"ipexctl.{module}")), zipfile.ZIP_STORED)
            add(f"{place}.py", read_source(module))
    return out.getvalue()


@cache
def compute_agent_id() -> str:
    """Returns the SHA-256 of the archive, by which a host that has it knows that it is this one."""
    return hashlib.sha256(build_archive()).hexdigest()


def read_hooks(*, profile: bool = False) -> dict[str, bytes]:
    """Returns the files that every rank's Python finds on its path, by name."""
    hooks = paths.HOOK_FILES | (paths.PROFILE_HOOK_FILES if profile else {})
    return {name: read_source(module).encode() for name, module in hooks.items()}


@cache
def build_program(module: str, *others: str) -> str:
    """A module as one program, with the protocol and ``others`` in it, for an interpreter that gets it as text."""
    modules = {f"ipexctl.{name}": read_source(name) for name in (*list_modules("protocol"), *others)}
    parts = (*_PACKAGES, "ipexctl.remote.session"), modules, read_source(module), module
    return f"parts = {parts!r}\n{files('ipexctl.remote').joinpath('program.txt').read_text('utf-8')}"
