"""A wheelhouse in one file (a tar or zip of wheels, as it is carried to where no index is reached): written, and
opened once."""

import gzip
import hashlib
import json
import lzma
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from io import FileIO
from pathlib import Path
from typing import IO, cast

from ipexctl.act.packages.download import Tell
from ipexctl.act.private_files import create_private_file, make_private_directories, sync_path, write_private_file
from ipexctl.act.transfer.send import hash_stream
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.json_values import Record
from ipexctl.model.wheels import parse_wheel_name

_CHUNK = 1 << 20
_YEAR = (1980, 1, 1, 0, 0, 0)  # of every member, so that the same wheels are the same bytes


class Member(Record):
    """A wheel in an archive: its path there, its bytes, whether it is a regular file, and how to read it."""

    path: str
    size: int
    regular: bool
    read: Callable[[], IO[bytes]]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def unpack_wheelhouse(archive: Path, cache: Path, tell: Tell = lambda *_: None) -> Path:
    """The directory below ``cache`` with the wheels of ``archive``; unpacked once.

    Only wheels are taken, each under its own name whatever directory it lay in, and only plain files. Raises
    `UsageError`: exit 2 for what is no archive of wheels, exit 4 where there is no room for it."""
    info = archive.stat()
    place = cache / "houses" / _compute_short_hash(str(archive.absolute()))
    house = place / _compute_short_hash(f"{info.st_size} {info.st_mtime_ns}")
    manifest = house.with_suffix(".json")
    if _is_whole(house, manifest):
        return house
    make_private_directories(place)
    part = Path(tempfile.mkdtemp(dir=place, prefix=".part-"))
    try:
        with _list_wheels(archive) as members:
            done, total = 0, sum(member.size for member in members)
            if not members:
                reasons = ["there are no wheels in it"]
                raise UsageError(f"the wheelhouse {archive} cannot be used", reasons=reasons)
            if total > (free := shutil.disk_usage(place).free):
                what = f"no space left for the wheelhouse {archive}: need {total >> 20} MiB, {free >> 20} MiB free"
                raise UsageError(what, hint="unpack it where there is room: --wheels DIRECTORY", exit=Exit.STEP)
            for member in members:
                with member.read() as source, create_private_file(part / member.name) as target:
                    shutil.copyfileobj(source, target, _CHUNK)
                sync_path(part / member.name)
                if (part / member.name).stat().st_size != member.size:
                    raise EOFError
                done += member.size
                tell(done, total, member.name)
        _put_in_place(part, house, manifest)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError):
        raise UsageError(f"the wheelhouse {archive} is damaged or no archive", hint="--wheels DIRECTORY") from None
    except (zlib.error, lzma.LZMAError, OSError) as error:
        if not isinstance(error, OSError) or error.errno is None:  # what gzip and bz2 say of damaged data
            raise UsageError(f"the wheelhouse {archive} is damaged") from None
        what = f"the wheelhouse {archive} cannot be opened: {error.strerror or error}"
        raise UsageError(what, exit=Exit.STEP) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    for old in place.iterdir():  # what an earlier archive of this name held; not what somebody is opening now
        if old not in (house, manifest) and not old.name.startswith("."):
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    return house


def _put_in_place(part: Path, house: Path, manifest: Path) -> None:
    """Gives the directory ``part``, whose files are on the disk, its name. Raises `OSError`."""
    sync_path(part)
    if not _is_whole(house, manifest):
        shutil.rmtree(house, ignore_errors=True)
        write_private_file(manifest, json.dumps(_measure_files(part)).encode())
        try:
            part.rename(house)
        except OSError:  # another ipexctl was quicker
            if not _is_whole(house, manifest):
                raise
        sync_path(house.parent)


def _is_whole(house: Path, manifest: Path) -> bool:
    """Whether a house has the files of its manifest, each of its size: a disk may have lost some, and each later
    installation would lock what remains."""
    try:
        return bool(json.loads(manifest.read_bytes()) == _measure_files(house))
    except (OSError, ValueError):
        return False


def _measure_files(directory: Path) -> dict[str, int]:
    """The size of each file in a directory. Raises `OSError`."""
    return {path.name: path.lstat().st_size for path in directory.iterdir()}


def is_archive(name: str) -> bool:
    """Whether a wheelhouse of this name is one file, and not a directory."""
    return name.endswith((".tar", ".tar.gz", ".tgz", ".zip"))


def hash_wheels(archive: Path) -> dict[str, str]:
    """The wheels of an archive that `pack_wheels` wrote: file name → SHA-256; empty where there is none.

    Raises `UsageError` for what is no archive of wheels."""
    if not archive.exists():
        return {}
    hashes: dict[str, str] = {}
    try:
        with _list_wheels(archive) as members:
            for member in members:
                with member.read() as file:
                    hashes[member.name] = hash_stream(file)
        return hashes
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError) as error:
        why = getattr(error, "strerror", None) or "damaged or no archive"
        raise UsageError(f"the wheelhouse {archive} cannot be read: {why}", hint="another name, or remove it") from None


def pack_wheels(archive: Path, wheels: Mapping[str, Path], tell: Tell = lambda *_: None) -> None:
    """Writes ``wheels`` (file name → file) into an archive of the kind that its name says, beside those it has already.

    The old archive or the whole new one, nothing between. Raises `UsageError` (exit 4) where it cannot be written."""
    try:
        done, total = 0, sum(path.stat().st_size for path in wheels.values())
        archive.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=archive.parent, prefix=".house-"))
            part = Path(folder) / archive.name
            old = stack.enter_context(_list_wheels(archive)) if archive.exists() else []
            members = {member.name: member for member in old}
            for name, path in wheels.items():
                members[name] = Member(name, path.stat().st_size, True, partial(FileIO, path))
            with _open_archive_writer(part) as add:
                for name, member in sorted(members.items()):
                    with member.read() as file:
                        add(name, member.size, file)
                    if name in wheels:
                        done += member.size
                        tell(done, total, name)
            sync_path(part)
            part.replace(archive)
            sync_path(archive.parent)
    except OSError as error:
        what = f"the wheelhouse {archive} cannot be written: {error.strerror or error}"
        raise UsageError(what, exit=Exit.STEP) from None


@contextmanager
def _open_archive_writer(archive: Path) -> Iterator[Callable[[str, int, IO[bytes]], None]]:
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as zipped:  # wheels are packed already

            def into_zip(name: str, size: int, file: IO[bytes]) -> None:
                member = zipfile.ZipInfo(name, _YEAR)
                member.external_attr, member.file_size = (stat.S_IFREG | 0o644) << 16, size
                with zipped.open(member, "w") as target:
                    shutil.copyfileobj(file, target, _CHUNK)

            yield into_zip
        return
    with ExitStack() as stack:
        out: IO[bytes] = stack.enter_context(archive.open("wb"))
        if not archive.name.endswith(".tar"):
            zipped_out = gzip.GzipFile("", "wb", compresslevel=1, fileobj=out, mtime=0)
            out = cast("IO[bytes]", stack.enter_context(zipped_out))
        tarred = stack.enter_context(tarfile.open(fileobj=out, mode="w"))

        def into_tar(name: str, size: int, file: IO[bytes]) -> None:
            member = tarfile.TarInfo(name)
            member.size, member.mode = size, 0o644
            tarred.addfile(member, file)

        yield into_tar


def _compute_short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


@contextmanager
def _list_wheels(archive: Path) -> Iterator[list[Member]]:
    """The wheels of an archive. Raises `UsageError` for what is not a wheel in name, no plain file, or there twice."""
    with ExitStack() as stack:
        if tarfile.is_tarfile(archive):  # asked first: a tar that ends with a wheel looks like a zip, too
            tarred = stack.enter_context(tarfile.open(archive))
            read = cast("Callable[[tarfile.TarInfo], IO[bytes]]", tarred.extractfile)  # no regular file gives None
            members = [Member(entry.name, entry.size, entry.isreg(), partial(read, entry)) for entry in tarred]
        else:
            zipped = stack.enter_context(zipfile.ZipFile(archive))
            members = [
                Member(info.filename, info.file_size, kind in {0, stat.S_IFREG}, partial(zipped.open, info))
                for info in zipped.infolist()
                for kind in [stat.S_IFMT(info.external_attr >> 16)]
            ]
        wheels = [member for member in members if member.path.endswith(".whl")]
        _validate_members(archive, wheels)
        yield wheels


def _validate_members(archive: Path, members: list[Member]) -> None:
    reasons = [f"{member.path!r} is no plain file" for member in members if not member.regular]
    paths = [member.path for member in members]
    reasons += [f"{path!r} leads outside" for path in paths if path[0] == "/" or ".." in path.split("/")]
    if reasons:
        raise UsageError(f"the wheelhouse {archive} is not one to trust", reasons=reasons[:5])
    count = Counter(member.name for member in members)
    for name in count:
        try:
            parse_wheel_name(name)
        except ValueError as error:
            reasons.append(str(error))
    reasons += [f"{name} is in it twice" for name in sorted(count) if count[name] > 1]
    if reasons:
        raise UsageError(f"the wheelhouse {archive} cannot be used", reasons=reasons[:5])
