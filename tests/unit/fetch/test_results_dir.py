"""Where fetched files are put: whole or not at all, and nowhere else."""

import os
import re
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ipexctl.act.transfer import receive
from ipexctl.act.transfer.receive import ResultsDir, UnsafePathError, is_case_insensitive, stat_local_file
from ipexctl.protocol.paths import PART
from ipexctl.store.private_files import sync_file_system


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_the_note_of_the_last_run_is_a_file_of_its_own(tmp_path: Path, kind: str) -> None:
    """Results in an archive of somebody else had a link to /dev/zero there: `fetch` took all memory."""
    receive.note_fetched_run(tmp_path, "train-1")
    assert receive.read_fetched_run(tmp_path) == "train-1"
    note = tmp_path / ".ipexctl-run"
    note.rename(tmp_path / "other")
    if kind == "link":
        note.symlink_to("other")
    else:
        os.mkfifo(note)

        def feed() -> None:
            with suppress(BrokenPipeError):  # who looks need not read
                note.write_text("train-1")

        threading.Thread(target=feed, daemon=True).start()
    assert receive.read_fetched_run(tmp_path) == ""


def put(results: ResultsDir, local: str, data: bytes = b"new", *, executable: bool = False) -> int:
    return results.write_file(local, iter([data[:1], data[1:]]), mtime=1_000_000, executable=executable)


def test_a_link_on_the_way_is_followed_unless_another_user_may_have_put_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write above exchanged the directory for a link while files came: they went where that leads."""
    (tmp_path / "disk/deep").mkdir(parents=True)
    links = (tmp_path / "whole", tmp_path / "part")
    links[0].symlink_to(tmp_path / "disk")
    links[1].symlink_to("whole/../disk/./deep")
    for link in links:
        with ResultsDir(link, "n0") as results:
            put(results, "x")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("x")} == {"disk/n0/x", "disk/deep/n0/x"}
    if os.geteuid() == 0:
        os.chown(links[0], 4242, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    for link in links:
        with pytest.raises(UnsafePathError, match="a part of the local path is a symbolic link"):
            ResultsDir(link, "n1")
        receive.note_fetched_run(link, "train-1")
    assert not [*tmp_path.rglob("n1"), *tmp_path.rglob(".ipexctl-run")]


def test_a_file_lands_below_its_host_with_its_time_and_for_us_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with ResultsDir(tmp_path / "a" / "b", "n0") as results:
            assert put(results, "out/deep/x.pt") == 3
            put(results, "run.sh", executable=True)
    finally:
        os.umask(old)
    place = tmp_path / "a/b/n0"
    assert (place / "out/deep/x.pt").read_bytes() == b"new"
    assert {path.name: stat.S_IMODE(path.lstat().st_mode) for path in place.rglob("*")} == {
        "out": 0o700, "deep": 0o700, "x.pt": 0o600, "run.sh": 0o700
    }  # fmt: skip
    assert [stat.S_IMODE((tmp_path / each).lstat().st_mode) for each in ("a", "a/b", "a/b/n0")] == [0o700] * 3
    assert stat_local_file(place, "out/deep/x.pt") == (3, 1_000_000)
    assert stat_local_file(place, "out") is None
    assert stat_local_file(place, "none") is None


def test_what_an_older_run_left_is_kept_once(tmp_path: Path) -> None:
    for older, text in (("", b"one"), ("a1", b"two"), ("a1", b"three"), ("b2", b"four")):
        with ResultsDir(tmp_path, "n0", older) as results:
            put(results, "out/x.pt", text)
        assert results.kept == (text in (b"two", b"four"))
    files = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*.pt")}
    assert files == {"n0/out/x.pt": b"four", "a1/n0/out/x.pt": b"one", "b2/n0/out/x.pt": b"three"}


def test_what_was_received_is_put_on_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, list[str]]] = []

    def note_and_sync(number: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{number}"), sorted(os.listdir(number))[1:]))
        sync_file_system(number)

    monkeypatch.setattr(receive, "sync_file_system", note_and_sync)
    with ResultsDir(tmp_path, "n0") as results:
        put(results, "x")
        put(results, "y")
        results.sync()
    assert synced == [(str(tmp_path / "n0"), ["x", "y"])]
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_file_system(-1)


def test_a_link_here_is_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.pt").write_bytes(b"mine")
    place = tmp_path / "fetched/n0"
    place.mkdir(parents=True)
    (place / "out").symlink_to(outside)
    (place / "file").symlink_to(outside / "x.pt")
    with ResultsDir(tmp_path / "fetched", "n0") as results:
        with pytest.raises(UnsafePathError, match=r"out/x\.pt: a part of the local path is"):
            put(results, "out/x.pt")
        put(results, "file")  # the link itself is replaced
    assert (outside / "x.pt").read_bytes() == b"mine"
    assert not (place / "file").is_symlink()
    (tmp_path / "fetched/n1").symlink_to(outside)
    with pytest.raises(UnsafePathError, match="a part of the local path is"):
        ResultsDir(tmp_path / "fetched", "n1")
    assert sorted(path.name for path in outside.iterdir()) == ["x.pt"]


def test_a_link_in_place_of_what_is_being_received_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the host's directory can put one there at any moment: root wrote files elsewhere."""
    outside = tmp_path / "outside"
    outside.mkdir()
    with ResultsDir(tmp_path, "n0") as results:
        part = next((tmp_path / "n0").iterdir())
        part.rename(tmp_path / "n0/aside")
        part.symlink_to(outside)
        assert put(results, "x.pt") == 3
    assert (tmp_path / "n0/x.pt").read_bytes() == b"new"
    (outside / "mine").write_text("mine")

    def make_and_lose(into: Path) -> None:
        into.mkdir()
        (into / ".gitignore").symlink_to(outside / "mine")

    monkeypatch.setattr("ipexctl.act.transfer.receive.make_private_directories", make_and_lose)
    receive.make_results_directory(tmp_path / "results")
    assert [path.read_text() for path in outside.iterdir()] == ["mine"]


def test_what_is_something_else_here_stays(tmp_path: Path) -> None:
    place = tmp_path / "n0"
    (place / "dir/inner").mkdir(parents=True)
    (place / "file").write_text("old")
    with ResultsDir(tmp_path, "n0") as results:
        with pytest.raises(UnsafePathError, match="dir: the local path is a directory"):
            put(results, "dir")
        with pytest.raises(UnsafePathError, match="file/x: a part of the local path is not a directory"):
            put(results, "file/x")
    assert (place / "file").read_text() == "old"
    assert (place / "dir/inner").is_dir()


def test_a_file_that_is_cut_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    def cut() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionError("gone")

    with ResultsDir(tmp_path, "n0") as results:
        put(results, "x", b"old")
        with pytest.raises(ConnectionError):
            results.write_file("x", cut(), mtime=1, executable=False)
        assert (tmp_path / "n0/x").read_bytes() == b"old"
        (staging,) = (tmp_path / "n0").glob(f"{PART}*")
        assert [*staging.iterdir()] == []
    assert [path.name for path in (tmp_path / "n0").iterdir()] == ["x"]


def test_what_an_earlier_fetch_left_is_removed_but_not_that_of_one_that_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "n0"
    host = re.sub("[^A-Za-z0-9.]", "_", socket.gethostname())
    dead, alive, other = (place / f"{PART}{name}" for name in (f"{host}-999999999-ab", f"{host}-{os.getpid()}-ab", "x"))
    elsewhere = place / f"{PART}another.host-999999999-ab"  # the directory may be shared: its process may live there
    for directory in (dead, alive, other, elsewhere):
        (directory / "deep").mkdir(parents=True)
        (directory / "deep/half").write_text("x")
        (directory / "link").symlink_to(tmp_path)
    ResultsDir(tmp_path, "n0").close()
    assert not dead.exists()
    assert alive.exists()
    assert other.exists()
    assert elsewhere.exists()
    assert tmp_path.exists()


def test_what_is_mounted_in_what_an_earlier_fetch_left_stays(
    tmp_path: Path, mount: Callable[[Path, str], None]
) -> None:
    host = re.sub("[^A-Za-z0-9.]", "_", socket.gethostname())
    data = tmp_path / f"n0/{PART}{host}-999999999-ab/data"
    data.mkdir(parents=True)
    mount(data, "mode=0755")
    (data / "keep").touch()
    loop = data.parent.with_name(f"{PART}{host}-999999999-cd")
    loop.symlink_to(loop)
    ResultsDir(tmp_path, "n0").close()
    assert (data / "keep").exists()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_directory_of_ours_that_others_give_the_name_of_an_earlier_fetch_stays(tmp_path: Path, when: str) -> None:
    """Who may write the host's directory could have one removed that he may only rename."""
    place, host = tmp_path / "n0", re.sub("[^A-Za-z0-9.]", "_", socket.gethostname())
    (place / "mine").mkdir(parents=True)
    (place / "mine/data").write_text("mine")
    place.chmod(0o777)
    name = place / f"{PART}{host}-999999999-ab"
    if when == "before":
        (place / "mine").rename(name)
    with ResultsDir(tmp_path, "n0"):
        if when == "meanwhile":
            (name,) = place.glob(f"{PART}*")
            name.rename(place / "aside")
            (place / "mine").rename(name)
    assert (name / "data").read_text() == "mine"


def test_whether_case_counts_is_tried_and_leaves_nothing(tmp_path: Path) -> None:
    assert is_case_insensitive(tmp_path / "not/there/yet") is False  # of the file systems of Linux that tests run on
    assert [*tmp_path.iterdir()] == []


def test_whether_case_counts_may_be_tried_where_another_user_removes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exists(_: Path) -> bool:
        for path in tmp_path.iterdir():
            path.unlink()
        return False

    monkeypatch.setattr(Path, "exists", exists)
    assert is_case_insensitive(tmp_path) is False
