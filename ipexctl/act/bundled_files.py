"""Files that come with ipexctl: playbooks, examples and impi_torch, in the wheel or in a checkout; shell scripts."""

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from ipexctl.store.private_files import refuse_os_errors, write_private_file

_TAG = "py3-none-any"
Kind = Literal["playbooks", "examples"]


def find_bundled_file(kind: Kind, name: str) -> Path:
    """Returns a ready-made playbook or example. Raises FileNotFoundError if this ipexctl came without it."""
    folder = _find_folder(kind)
    if folder is None or not (folder / name).is_file():
        raise FileNotFoundError(name)
    return folder / name


def _find_folder(kind: Kind) -> Path | None:
    package = Path(__file__).resolve().parent.parent
    return next((folder for folder in (package / "share" / kind, package.parent / kind) if folder.is_dir()), None)


def list_bundled_files(*kinds: Kind) -> tuple[Path, ...]:
    """Returns the playbooks and examples that come with ipexctl, those that explain themselves in their first line."""
    folders = [folder for kind in kinds if (folder := _find_folder(kind))]
    files = [path for folder in folders for path in sorted(folder.iterdir(), key=lambda path: path.stem)]
    return tuple(path for path in files if path.is_file() and path.suffix != ".md" and path.name[0] != ".")


def find_by_name(name: str, *kinds: Kind) -> Path | None:
    """Returns the playbook or example of this name, with or without its ending."""
    return next((path for path in list_bundled_files(*kinds) if name in (path.name, path.stem)), None)


def pack_impi_torch(cache: Path) -> Path:
    """Returns the wheel of impi_torch below ``cache``, packed from its sources: the same bytes for the same sources, so
    that a lock made by one controller holds on another. Raises FileNotFoundError if this ipexctl came without them."""
    package = Path(__file__).resolve().parent.parent
    folders = (package / "share" / "impi_torch", package.parent / "impi_torch" / "src" / "impi_torch")
    source = next((folder for folder in folders if (folder / "__init__.py").is_file()), None)
    if source is None:
        raise FileNotFoundError("impi_torch")
    name, data = _pack_wheel({path.name: path.read_bytes() for path in sorted(source.glob("*.py"))})
    place = cache / "own" / hashlib.sha256(data).hexdigest()[:16] / name
    if not place.is_file() or place.read_bytes() != data:
        with refuse_os_errors(place, "cannot be written"):
            write_private_file(place, data)
    return place


def _pack_wheel(modules: Mapping[str, bytes]) -> tuple[str, bytes]:
    """File name and bytes of the wheel with these modules. Its metadata are those of impi_torch/pyproject.toml; a test
    holds the two equal."""
    found = re.search(rb'^__version__ = "([^"]+)"', modules["__init__.py"], re.MULTILINE)
    if found is None:
        raise FileNotFoundError("impi_torch/__init__.py has no version")
    version = found[1].decode()
    info = f"impi_torch-{version}.dist-info"
    metadata = files("ipexctl.data").joinpath("impi_torch_metadata").read_text("utf-8").format(version=version)
    contents = {f"impi_torch/{name}": text for name, text in sorted(modules.items())} | {
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: ipexctl\nRoot-Is-Purelib: true\nTag: {_TAG}\n".encode(),
        f"{info}/entry_points.txt": b"[torch.backends]\nimpi_torch = impi_torch:register\n",
    }
    record = [f"{path},sha256={_format_record_hash(text)},{len(text)}" for path, text in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as wheel:
        for path, text in contents.items():
            member = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            member.external_attr = 0o644 << 16
            wheel.writestr(member, text)
    return f"impi_torch-{version}-{_TAG}.whl", out.getvalue()


def _format_record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@cache
def read_script(name: str) -> str:
    """Returns the text of a shell script of `ipexctl.remote`, without the lines that are comments: no shell need read
    them."""
    lines = files("ipexctl.remote").joinpath(name).read_text("utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("#"))
