"""A wheelhouse in one file: only wheels come out of it, into one place, whole or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from ipexctl.act.packages.wheelhouse import hash_wheels, is_archive, pack_wheels, unpack_wheelhouse
from ipexctl.model.errors import UsageError
from tests import wheels

NAME = "torch-2.8.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
OTHER = "numpy-1.26.4-py3-none-any.whl"
FILES = {f"house/{NAME}": b"torch" * 100, f"house/sub/{OTHER}": b"numpy", "house/README.txt": b"not a wheel"}


def packed(path: Path, files: Mapping[str, bytes], special: tuple[tarfile.TarInfo, ...] = ()) -> Path:
    """An archive of the kind that its name says."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, data in files.items():
                zipped.writestr(name, data)
        return path
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tarred:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tarred.addfile(entry, io.BytesIO(data))
        for entry in special:
            tarred.addfile(entry)
    return path


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["house.tar", "house.tar.gz", "house.zip"])
def test_an_archive_is_opened_once_and_holds_its_wheels_side_by_side(tmp_path: Path, name: str) -> None:
    cache, told = tmp_path / "cache", []
    archive = packed(tmp_path / name, FILES)
    house = unpack_wheelhouse(archive, cache, lambda done, total, name: told.append((done, total)))
    assert {path.name: path.read_bytes() for path in house.iterdir()} == {NAME: b"torch" * 100, OTHER: b"numpy"}
    assert told[-1] == (505, 505)
    assert unpack_wheelhouse(archive, cache, lambda *_: pytest.fail("opened again")) == house


@pytest.mark.parametrize("name", ["house.tar", "house.tar.gz", "house.zip"])
def test_real_wheels_are_zips_themselves_and_confuse_nobody(tmp_path: Path, name: str) -> None:
    built = wheels.numpy()
    house = unpack_wheelhouse(packed(tmp_path / name, {f"house/{built.filename}": built.data}), tmp_path / "cache")
    assert (house / built.filename).read_bytes() == built.data


def test_another_archive_of_the_same_name_takes_the_place_of_the_first(tmp_path: Path) -> None:
    cache, archive = tmp_path / "cache", tmp_path / "house.tar"
    first = unpack_wheelhouse(packed(archive, FILES), cache)
    second = unpack_wheelhouse(packed(archive, {OTHER: b"another one"}), cache)
    assert not first.exists()
    assert left(cache) == sorted([OTHER, f"{second.name}.json"])
    assert (second / OTHER).read_bytes() == b"another one"


def test_what_is_opened_is_for_nobody_else_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        unpack_wheelhouse(packed(tmp_path / "house.tar", FILES), tmp_path / "home/.cache/ipexctl")
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in (tmp_path / "home").rglob("*")}
    assert {path.name for path in modes} >= {".cache", "ipexctl", "houses", NAME, OTHER}
    assert {path: mode for path, mode in modes.items() if mode & 0o077} == {}


@pytest.mark.parametrize("damage", ["empty", "cut", "missing", "one more", "no manifest"])
def test_a_house_that_does_not_fit_is_opened_again(tmp_path: Path, damage: str) -> None:
    archive, cache = packed(tmp_path / "house.tar", FILES), tmp_path / "cache"
    house = unpack_wheelhouse(archive, cache)
    if damage in ("empty", "cut"):
        os.truncate(house / NAME, {"empty": 0, "cut": 499}[damage])
    elif damage == "missing":
        (house / NAME).unlink()
    elif damage == "one more":
        (house / f"new-{NAME}").touch()
    else:
        house.with_suffix(".json").unlink()
    told: list[int] = []
    assert unpack_wheelhouse(archive, cache, lambda done, *_: told.append(done)) == house
    assert {path.name: path.read_bytes() for path in house.iterdir()} == {NAME: b"torch" * 100, OTHER: b"numpy"}
    assert told
    assert unpack_wheelhouse(archive, cache, lambda *_: pytest.fail("opened again")) == house
    assert sorted(path.name for path in house.parent.iterdir()) == [house.name, f"{house.name}.json"]


def test_wheels_are_on_the_disk_before_they_get_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    real = os.fsync

    def note_and_sync(number: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{number}")))
        real(number)

    monkeypatch.setattr(os, "fsync", note_and_sync)
    house = unpack_wheelhouse(packed(tmp_path / "house.tar", FILES), tmp_path / "cache")
    parts = [path.name for path in synced if path.parent.name.startswith(".part-")]
    assert sorted(parts) == sorted([NAME, OTHER])
    assert [path.name.startswith(".part-") for path in synced if path.is_dir() or not path.exists()].count(True) == 1
    assert synced[-1] == house.parent
    synced.clear()
    pack_wheels(tmp_path / "new.tar", {OTHER: house / OTHER})
    assert [(path.name, path.parent == tmp_path) for path in synced] == [("new.tar", False), (tmp_path.name, False)]


def link(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry


@pytest.mark.parametrize(
    ("files", "special", "said"),
    [
        ({f"../{NAME}": b"x"}, (), "leads outside"),
        ({f"/{NAME}": b"x"}, (), "leads outside"),
        ({OTHER: b"x"}, (link(NAME, "/etc/passwd"),), "is no plain file"),
        ({f"a/{OTHER}": b"x", f"b/{OTHER}": b"y"}, (), "is in it twice"),
        ({"house/.whl": b"x"}, (), "is not the file name of a wheel"),
        ({"README": b"x"}, (), "there are no wheels in it"),
    ],
)
def test_an_archive_with_something_odd_in_it_is_refused_and_leaves_nothing(
    tmp_path: Path, files: Mapping[str, bytes], special: tuple[tarfile.TarInfo, ...], said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        unpack_wheelhouse(packed(tmp_path / "house.tar", files, special), tmp_path / "cache")
    assert any(said in reason for reason in refused.value.reasons), refused.value.reasons
    assert left(tmp_path) == ["house.tar"]


def test_names_that_lead_outside_are_refused_in_a_zip_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not one to trust"):
        unpack_wheelhouse(packed(tmp_path / "house.zip", {f"a/../../{NAME}": b"x"}), tmp_path / "cache")


@pytest.mark.parametrize("name", ["house.tar", "house.tar.gz", "house.zip"])
@pytest.mark.parametrize("part", [0.0, 0.4, 0.7])
def test_an_archive_that_is_cut_off_is_refused_and_leaves_nothing(tmp_path: Path, name: str, part: float) -> None:
    archive = packed(tmp_path / name, {NAME: bytes(range(256)) * 4000, OTHER: b"numpy"})
    data = archive.read_bytes()
    archive.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(UsageError):
        unpack_wheelhouse(archive, tmp_path / "cache")
    assert left(tmp_path) == [name]


def test_an_archive_that_would_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    archive = tmp_path / "house.tar"
    entry = tarfile.TarInfo(NAME)
    entry.size = 1 << 40
    archive.write_bytes(entry.tobuf(tarfile.GNU_FORMAT))
    with archive.open("r+b") as file:
        file.truncate(512 + entry.size + 1024)  # a hole: it takes no room itself
    with pytest.raises(UsageError, match="no space left"):
        unpack_wheelhouse(archive, tmp_path / "cache")
    assert left(tmp_path) == ["house.tar"]


@pytest.mark.parametrize("name", ["house.tar", "house.tar.gz", "house.tgz", "house.zip"])
def test_what_is_packed_is_what_is_opened_and_the_same_wheels_are_the_same_bytes(tmp_path: Path, name: str) -> None:
    assert is_archive(name)
    files = {built.filename: built.data for built in (wheels.numpy(), wheels.torch())}
    for filename, data in files.items():
        (tmp_path / filename).write_bytes(data)
    archive = tmp_path / name
    pack_wheels(archive, {wheels.numpy().filename: tmp_path / wheels.numpy().filename})
    pack_wheels(archive, {wheels.torch().filename: tmp_path / wheels.torch().filename})  # beside what is in it
    assert hash_wheels(archive) == {filename: hashlib.sha256(data).hexdigest() for filename, data in files.items()}
    house = unpack_wheelhouse(archive, tmp_path / "cache")
    assert {path.name: path.read_bytes() for path in house.iterdir()} == files
    (tmp_path / "again").mkdir()
    pack_wheels(tmp_path / "again" / name, {filename: tmp_path / filename for filename in files})
    assert (tmp_path / "again" / name).read_bytes() == archive.read_bytes()


def test_an_archive_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / OTHER).write_bytes(b"numpy")
    archive = tmp_path / "house.zip"
    pack_wheels(archive, {OTHER: tmp_path / OTHER})
    before = archive.read_bytes()
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        pack_wheels(archive, {OTHER: tmp_path / OTHER, NAME: tmp_path / "gone"})
    assert archive.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["house.zip", OTHER]


def test_a_file_that_is_no_archive_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "house.tar").write_text("my notes")
    with pytest.raises(UsageError, match="cannot be read"):
        hash_wheels(tmp_path / "house.tar")
    assert hash_wheels(tmp_path / "none.zip") == {}
