"""A wheelhouse in one file (a tar or zip of wheels, as it is carried to where no index is reached): written, and
opened once."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Literal

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ipexctl.model.errors import Exit, UsageError

_CHUNK = 1 << 20
_KINDS: dict[str, Literal["w", "w:gz"]] = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz"}
_YEAR = (1980, 1, 1, 0, 0, 0)  # of every member, so that the same wheels are the same bytes

Tell = Callable[[int, int, str], None]  # (bytes done, bytes in all, file name)


def unpack_wheelhouse(archive: Path, cache: Path, tell: Tell = lambda *_: None) -> Path:
    """The directory below ``cache`` with the wheels of ``archive``; unpacked once.

    Only wheels are taken, each under its own name whatever directory it lay in, and only plain files. Raises
    `UsageError`: exit 2 for what is no archive of wheels, exit 4 where there is no room for it.
    """
    info = archive.stat()
    place = cache / "houses" / _short(str(archive.absolute()))
    house = place / _short(f"{info.st_size} {info.st_mtime_ns}")
    if house.is_dir():
        return house
    place.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=place, prefix=".part-"))
    try:
        with _members(archive) as members:
            _check(archive, members, shutil.disk_usage(place).free)
            done, total = 0, sum(size for _, size, _ in members)
            for name, size, read in members:
                with read() as source, (part / name).open("xb") as target:
                    shutil.copyfileobj(source, target, _CHUNK)
                if (part / name).stat().st_size != size:
                    raise EOFError
                done += size
                tell(done, total, name)
        try:
            part.rename(house)
        except OSError:  # another ipexctl was quicker
            if not house.is_dir():
                raise
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError):
        raise UsageError(f"the wheelhouse {archive} is damaged or no archive", hint="--wheels DIRECTORY") from None
    except (zlib.error, lzma.LZMAError):
        raise UsageError(f"the wheelhouse {archive} is damaged") from None
    except OSError as error:
        if error.errno is None:  # what gzip and bz2 say of damaged data
            raise UsageError(f"the wheelhouse {archive} is damaged") from None
        raise UsageError(
            f"the wheelhouse {archive} cannot be opened: {error.strerror or error}", exit=Exit.STEP
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    for old in place.iterdir():  # what an earlier archive of this name held; not what somebody is opening now
        if old != house and not old.name.startswith(".part-"):
            shutil.rmtree(old, ignore_errors=True)
    return house


def is_archive(name: str) -> bool:
    """Whether a wheelhouse of this name is one file, and not a directory."""
    return name.endswith((*_KINDS, ".zip"))


def hash_wheels(archive: Path) -> dict[str, str]:
    """The wheels of an archive that `pack_wheels` wrote: file name → SHA-256; empty where there is none.

    Raises `UsageError` for what is no archive of wheels.
    """
    if not archive.exists():
        return {}
    hashes: dict[str, str] = {}
    try:
        with _members(archive) as members:
            for name, _, read in members:
                with read() as file:
                    hashed = hashlib.sha256()
                    while piece := file.read(_CHUNK):
                        hashed.update(piece)
                    hashes[name] = hashed.hexdigest()
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError) as error:
        why = getattr(error, "strerror", None) or "damaged or no archive"
        raise UsageError(f"the wheelhouse {archive} cannot be read: {why}", hint="another name, or remove it") from None
    return hashes


def pack_wheels(archive: Path, wheels: Mapping[str, Path], tell: Tell = lambda *_: None) -> None:
    """Writes ``wheels`` (file name → file) into an archive of the kind that its name says, beside those it has already.

    The old archive or the whole new one, nothing between. Raises `UsageError` (exit 4) where it cannot be written.
    """
    try:
        done, total = 0, sum(path.stat().st_size for path in wheels.values())
        archive.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=archive.parent, prefix=".house-"))
            part = Path(folder) / archive.name
            old = stack.enter_context(_members(archive)) if archive.exists() else []
            sizes = {name: size for name, size, _ in old} | {name: path.stat().st_size for name, path in wheels.items()}
            opens: dict[str, Callable[[], IO[bytes]]] = {name: read for name, _, read in old}
            opens |= {name: partial(_read, path) for name, path in wheels.items()}
            with _writer(part) as add:
                for name in sorted(opens):
                    with opens[name]() as file:
                        add(name, sizes[name], file)
                    if name in wheels:
                        done += sizes[name]
                        tell(done, total, name)
            part.replace(archive)
    except OSError as error:
        what = f"the wheelhouse {archive} cannot be written: {error.strerror or error}"
        raise UsageError(what, exit=Exit.STEP) from None


def _read(path: Path) -> IO[bytes]:
    return path.open("rb")


@contextmanager
def _writer(archive: Path) -> Iterator[Callable[[str, int, IO[bytes]], None]]:
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as zipped:  # wheels are packed already

            def into_zip(name: str, size: int, file: IO[bytes]) -> None:
                member = zipfile.ZipInfo(name, _YEAR)
                member.external_attr, member.file_size = (stat.S_IFREG | 0o644) << 16, size
                with zipped.open(member, "w") as target:
                    shutil.copyfileobj(file, target, _CHUNK)

            yield into_zip
        return
    mode = next(kind for ending, kind in _KINDS.items() if archive.name.endswith(ending))
    with archive.open("wb") as raw, _plain_or_gzip(raw, mode) as out, tarfile.open(fileobj=out, mode="w") as tarred:

        def into_tar(name: str, size: int, file: IO[bytes]) -> None:
            member = tarfile.TarInfo(name)
            member.size, member.mode = size, 0o644
            tarred.addfile(member, file)

        yield into_tar


@contextmanager
def _plain_or_gzip(raw: IO[bytes], mode: str) -> Iterator[IO[bytes]]:
    if mode == "w":
        yield raw
        return
    with gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as out:
        yield out  # type: ignore[misc]


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


Member = tuple[str, int, Callable[[], IO[bytes]]]  # name, bytes, how to read it


@contextmanager
def _members(archive: Path) -> Iterator[list[Member]]:
    """The wheels of an archive. Raises `UsageError` for a wheel that is no plain file or would lie outside."""
    if tarfile.is_tarfile(archive):  # asked first: a tar that ends with a wheel looks like a zip, too
        with tarfile.open(archive) as tarred:
            entries = [entry for entry in tarred if entry.name.endswith(".whl")]
            _plain(archive, [entry.name for entry in entries if not entry.isreg()], [entry.name for entry in entries])

            def read(entry: tarfile.TarInfo) -> IO[bytes]:
                file = tarred.extractfile(entry)
                if file is None:
                    raise ValueError(entry.name)
                return file

            yield [(Path(entry.name).name, entry.size, partial(read, entry)) for entry in entries]
        return
    with zipfile.ZipFile(archive) as zipped:
        infos = [info for info in zipped.infolist() if info.filename.endswith(".whl")]
        kinds = {info.filename: stat.S_IFMT(info.external_attr >> 16) for info in infos}
        _plain(archive, [name for name, kind in kinds.items() if kind not in {0, stat.S_IFREG}], kinds)
        yield [(Path(info.filename).name, info.file_size, partial(zipped.open, info)) for info in infos]


def _plain(archive: Path, special: Iterable[str], names: Iterable[str]) -> None:
    outside = [name for name in names if name.startswith("/") or ".." in name.split("/")]
    reasons = [f"{name!r} is no plain file" for name in special] + [f"{name!r} leads outside" for name in outside]
    if reasons:
        raise UsageError(f"the wheelhouse {archive} is not one to trust", reasons=reasons[:5])


def _is_wheel_name(name: str) -> bool:
    try:
        parse_wheel_filename(name)
    except InvalidWheelFilename:
        return False
    return name.isascii() and not name.startswith(".")


def _check(archive: Path, members: list[Member], free: int) -> None:
    names = [name for name, _, _ in members]
    reasons = [f"{name!r} is not the name of a wheel" for name in names if not _is_wheel_name(name)]
    reasons += [f"{name} is in it twice" for name in sorted({name for name in names if names.count(name) > 1})]
    if not names:
        reasons.append("there are no wheels in it")
    if reasons:
        raise UsageError(f"the wheelhouse {archive} cannot be used", reasons=reasons[:5])
    if (need := sum(size for _, size, _ in members)) > free:
        raise UsageError(
            f"no space left for the wheelhouse {archive}: need {need >> 20} MiB, {free >> 20} MiB free",
            hint="unpack it where there is room: --wheels DIRECTORY",
            exit=Exit.STEP,
        )
