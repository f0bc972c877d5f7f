"""The remote side of a run as one file: `ipexctl.remote.agent` and `ipexctl.protocol` in an executable zip archive; and
the parts of it that hosts get as single files."""

import io
import marshal
import zipfile
from functools import cache
from importlib.resources import files
from importlib.util import MAGIC_NUMBER, find_spec
from typing import Any

from ipexctl.protocol import paths

_PACKAGES = ("ipexctl", "ipexctl.remote", "ipexctl.remote.agent", "ipexctl.protocol")
_NOT_IN_IT = {"__init__.py", "__main__.py", "sitecustomize.py", "profile_steps.py"}  # the last two are of ranks
_COMPILED = MAGIC_NUMBER + (1).to_bytes(12, "little")  # header of code that is not compared with its text (PEP 552)


def read_source(module: str) -> str:
    """The text of a module of ours ("remote.agent.procs")."""
    package, _, name = f"ipexctl.{module}".rpartition(".")
    return files(package).joinpath(f"{name}.py").read_text("utf-8")


def list_modules(package: str) -> tuple[str, ...]:
    """The modules of a package ("protocol"), as `source` takes them."""
    names = sorted(entry.name for entry in files(f"ipexctl.{package}").iterdir() if entry.name.endswith(".py"))
    return tuple(f"{package}.{name[:-3]}" for name in names if name not in _NOT_IN_IT)


@cache
def build_archive() -> bytes:
    """The archive. Each module is in it compiled, which halves the start where a host's Python is the controller's, and
    as text, which zipimport takes where it is not."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:

        def add(name: str, data: str | bytes) -> None:
            packed.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED, 1)

        for package in _PACKAGES:
            add(f"{package.replace('.', '/')}/__init__.py", "")
        for module in ("remote.agent.__main__", *list_modules("protocol"), *list_modules("remote.agent")):
            place = "__main__" if module.endswith("__main__") else f"ipexctl/{module.replace('.', '/')}"
            loader: Any = find_spec(f"ipexctl.{module}").loader  # type: ignore[union-attr]
            add(f"{place}.pyc", _COMPILED + marshal.dumps(loader.get_code(f"ipexctl.{module}")))
            add(f"{place}.py", read_source(module))
    return out.getvalue()


def read_hooks(*, profile: bool = False) -> dict[str, bytes]:
    """The files that every rank's Python finds on its path, by name."""
    hooks = paths.HOOK_FILES | (paths.PROFILE_HOOK_FILES if profile else {})
    return {name: read_source(module).encode() for name, module in hooks.items()}


@cache
def build_program(module: str, *others: str) -> str:
    """A module as one program, with the protocol and ``others`` in it, for an interpreter that gets it as text."""
    texts = {f"ipexctl.{name}": read_source(name) for name in (*list_modules("protocol"), *others)}
    packages = (*_PACKAGES, "ipexctl.remote.session")
    template = files("ipexctl.remote").joinpath("program.txt").read_text("utf-8")
    return template.format(packages=packages, texts=texts, source=read_source(module), module=module)
