"""Wheels and locks: exact files with their hashes. Whatever is wrong in form cannot become one of them."""

import hashlib
import math
import posixpath
import re
from dataclasses import replace
from itertools import chain
from typing import Any, Literal, get_args
from urllib.parse import unquote, urlsplit

from msgspec.structs import force_setattr
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from ipexctl.model.json_values import Record
from ipexctl.model.stack import DIALECT_CHOICES, Arch
from ipexctl.model.text import printable, strip_credentials

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{,250}\.whl")  # no separator, no character that needs an escape
_TAGS = 256  # of a wheel: a short file name can stand for 40,000, which take seconds
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PLATFORM = re.compile(rf"any|(?:many)?linux\w*_({'|'.join(get_args(Arch))})")  # of the hosts
_HOSTS_MPI = re.compile(rf"({DIALECT_CHOICES}) /[^\x00-\x1f\x7f]+")


def parse_wheel_name(text: str) -> tuple[NormalizedName, Version, frozenset[Tag]]:
    """Returns the package, the version and the tags in a wheel's file name. Raises `ValueError` for any other name,
    also for one that would lead out of a directory."""
    if not _FILE_NAME.fullmatch(text):
        raise ValueError(f"{printable(text)!r} is not the file name of a wheel")
    if math.prod(part.count(".") + 1 for part in text[:-4].split("-")[-3:]) > _TAGS:
        raise ValueError(f"it is for more than {_TAGS} tags")
    name, version, _, tags = parse_wheel_filename(text)
    return name, version, tags


class Wheel(Record):
    """One file of a lock: which, from where (``https:``, ``http:`` or ``file:``), and what it must be. ``size`` 0: not
    known. Name and version are normalised, and those of the file name in the URL. Raises `ValueError` with what is
    wrong."""

    name: str
    version: str
    url: str
    sha256: str
    size: int = 0

    def __post_init__(self) -> None:
        try:
            _validate_url(self.url)
            name, version, _ = parse_wheel_name(self.filename)
            if canonicalize_name(self.name) != name or Version(self.version) != version:
                raise ValueError(f"the file is {self.filename}")
            if not _SHA256.fullmatch(self.sha256):
                raise ValueError("its sha256 is not 64 digits of 0-9a-f")
            if not 0 <= self.size < 1 << 63:
                raise ValueError("its size is none that a file has")
        except ValueError as error:
            what = printable(f"{self.name} {self.version}", 200) + " is not a wheel to trust"
            raise ValueError(f"{what}: {strip_credentials(printable(str(error), 300))}") from None
        record: Any = self
        force_setattr(record, "name", name)
        force_setattr(record, "version", str(Version(self.version)))

    @property
    def filename(self) -> str:
        return unquote(urlsplit(self.url).path.rpartition("/")[2])

    @property
    def tags(self) -> frozenset[Tag]:
        """Interpreters, ABIs and platforms that it is for."""
        return parse_wheel_name(self.filename)[2]

    @property
    def archs(self) -> frozenset[str]:
        """Architectures that it is for."""
        names = {match[1] for tag in self.tags if (match := _PLATFORM.fullmatch(tag.platform))}
        return frozenset(get_args(Arch) if None in names else names)

    @property
    def local(self) -> bool:
        """It lies on the controller; hosts cannot fetch it by themselves."""
        return self.url.startswith("file:")


def _validate_url(url: str) -> None:
    """Raises `ValueError` for what is no URL of a file that can be downloaded, or that lies on this machine."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("its URL has characters that no URL has")
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme in {"http", "https"}:
        if not parts.hostname or (parts.port or 1) < 0:  # reading the port checks it
            raise ValueError("its URL names no host")
    elif parts.scheme != "file" or parts.netloc not in {"", "localhost"} or not path.startswith("/"):
        raise ValueError("its URL is neither http: nor https: nor that of a file of this machine")
    elif posixpath.normpath(path) != path or not path.isprintable():
        raise ValueError("its URL is not a plain absolute path")


class Lock(Record):
    """Exactly what is installed: one wheel a package on each architecture. ``inputs`` is the hash of the question,
    ``id`` of the answer. ``mpi``: which MPI of the hosts starts the ranks (``openmpi /usr/bin/mpirun``), empty for that
    of the wheels. ``requested``: the requirements beside the release. Raises `ValueError` for values that are not of
    this form, and for wheels that do not fit ``python`` ("3.11")."""

    wheels: tuple[Wheel, ...]
    python: str
    inputs: str
    notes: tuple[str, ...] = ()
    mpi: str = ""
    ipexctl: Literal["lock"] = "lock"  # the format of the file
    requested: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"3\.[0-9]{1,2}", self.python) or not re.fullmatch(r"[0-9a-z]{,64}", self.inputs):
            raise ValueError("its python or its inputs are malformed")
        if (self.mpi and not _HOSTS_MPI.fullmatch(self.mpi)) or not all(
            map(str.isprintable, (*self.notes, *self.requested))
        ):
            raise ValueError("its mpi, its notes or its requirements are malformed")
        for arch in get_args(Arch):
            names = [wheel.name for wheel in self.wheels if arch in wheel.archs]
            if len(names) != len({*names}):
                raise ValueError("it has two wheels of a package")
        version, short = tuple(map(int, self.python.split("."))), f"cp{self.python.replace('.', '')}"
        tags = chain(cpython_tags(version, [short, f"{short}m"], ["any"]), compatible_tags(version, short, ["any"]))
        supported = {(tag.interpreter, tag.abi) for tag in tags}
        for wheel in self.wheels:
            if not any((tag.interpreter, tag.abi) in supported and _PLATFORM.fullmatch(tag.platform)
                       for tag in wheel.tags):  # fmt: skip
                raise ValueError(f"{wheel.filename} is not for Python {self.python} on Linux x86-64 or aarch64")

    def select(self, arch: Arch) -> "Lock":
        """Returns what one architecture gets of it."""
        return replace(self, wheels=tuple(wheel for wheel in self.wheels if arch in wheel.archs))

    @property
    def id(self) -> str:
        """Names the environment: equal for equal files under an equal Python, on every host and at any time."""
        lines = [f"python {self.python}", *sorted(f"{w.name} {w.version} {w.sha256}" for w in self.wheels)]
        if self.mpi:
            lines.append(f"mpi {self.mpi}")
        torch = self.packages.get("torch", "")
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:10]
        return f"torch{torch.replace('+', '-')}-{digest}" if torch else digest

    @property
    def size(self) -> int:
        """Bytes of all wheels as far as their sizes are known."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def packages(self) -> dict[str, str]:
        return {wheel.name: wheel.version for wheel in self.wheels}
