"""Checkpoints in a directory, and their way from one host to another."""

import json
import os
import shutil
import socket
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ipexctl.protocol import paths
from ipexctl.protocol.messages import (
    KINDS,
    CheckpointPart,
    CheckpointsFound,
    CheckpointSource,
    CheckpointTaken,
    FileBytes,
    Message,
    SendFile,
    TakeCheckpoint,
)
from ipexctl.protocol.run_spec import KeepSpec
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import checkpoints, rpc
from ipexctl.remote.agent.carrier import Carrier, move_file
from tests.tables import read_table
from tests.unit.agent.runs import SPEC

KEEP = KeepSpec("", 1, True, False, [], {"a": "127.0.0.1", "b": "127.0.0.1"}, [0, 0])


class Host:
    """A carrier that gives, and says to the test what it would say to its guard."""

    def __init__(
        self, folder: Path, name: str, *, token: str = SPEC.token, fresh: bool = True, leaf: str = "ckpt"
    ) -> None:
        self.folder = folder / name
        self.folder.mkdir(exist_ok=True)
        keep = KEEP._replace(path=str(self.folder / leaf), fresh=fresh)
        timings = Timings(quiet_file=0.0, carry=5.0)
        self.carrier = Carrier(
            SPEC._replace(host=name, token=token, keep=keep, timings=timings), rpc.Wire(socket.socketpair()[0])
        )
        self.sent: list[Message] = []
        self.carrier.send = self.sent.append  # type: ignore[method-assign, assignment]
        self.carrier.prepare_store()
        listener = rpc.listen_on_free_port("127.0.0.1", [0, 0])
        self.carrier.port = listener.getsockname()[1]
        threading.Thread(target=self.carrier.serve, args=(listener,), daemon=True).start()

    def write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def save(self, name: str, text: str = "weights") -> Path:
        """As torch.save does."""
        path = self.write(name, b"")
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("data", text)
        return path

    def look(self, *, quiet: bool = False) -> dict[str, CheckpointPart]:
        return {part.name: part for part in self.carrier.list_own(quiet)}

    def give(self, name: str) -> tuple[CheckpointPart, CheckpointSource]:
        self.look()
        part = self.look()[name]
        assert part.settled
        return part, CheckpointSource(self.carrier.spec.host, "127.0.0.1", self.carrier.port, part.files)

    def take(self, order: TakeCheckpoint) -> CheckpointTaken:
        self.carrier.take(order)
        taken = self.sent[-1]
        assert isinstance(taken, CheckpointTaken)
        return taken


def check(folder: Path, name: str, *paths: str) -> tuple[list[str], bool | None]:
    return checkpoints.check_files(str(folder), name, checkpoints.read_files(str(folder), [*paths]))


def find(folder: Path, *names: str) -> list[str]:
    for name in names:
        path = folder / "ckpt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return sorted(checkpoints.find_checkpoints(str(folder), "ckpt"))


@pytest.mark.parametrize(("names", "found"), read_table("carrier/checkpoints_of_each_form_are_found"))
def test_checkpoints_of_each_form_are_found(tmp_path: Path, names: list[str], found: list[str]) -> None:
    assert find(tmp_path, *names) == [f"ckpt/{name}" for name in found]


def test_the_directory_may_be_a_checkpoint_itself_or_a_file(tmp_path: Path) -> None:
    assert find(tmp_path, ".metadata", "__0_0.distcp") == ["ckpt"]
    assert checkpoints.find_checkpoints(str(tmp_path), "ckpt/.metadata") == {"ckpt/.metadata": ["ckpt/.metadata"]}


def test_metadata_names_the_shards_that_are_needed(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/.metadata").write_bytes(b"\x80\x04X\x0d\x00\x00\x00__0_0.distcpX__12_3.distcp")
    (tmp_path / "c/__1_0.distcp").write_bytes(b"shard")
    assert check(tmp_path, "c", "c/.metadata") == (["c/__0_0.distcp", "c/__12_3.distcp"], True)
    assert check(tmp_path, "c", "c/__1_0.distcp") == (["c/.metadata"], True)
    assert check(tmp_path, "c", "c/.metadata", "c/__1_0.distcp")[1] is False  # the shard is newer


def test_what_was_cut_off_is_not_whole(tmp_path: Path) -> None:
    host = Host(tmp_path, "a")
    whole = host.save("ckpt/step_1.pt")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    tensors = host.write("ckpt/m.safetensors", len(header).to_bytes(8, "little") + header + b"1234")
    text = host.write("ckpt/state.json", b'{"a": 1}')
    for path in (whole, tensors, text):
        name = str(path.relative_to(host.folder))
        assert check(host.folder, name, name) == ([], True)
        path.write_bytes(path.read_bytes()[:-1])
        assert check(host.folder, name, name) == ([], False)
    with zipfile.ZipFile(whole, "w") as archive:  # as torch.save's: torch.load compares no checksum
        archive.writestr("step_1/data.pkl", b"torch._utils._rebuild_tensor_v2")
    assert check(host.folder, "ckpt/step_1.pt", "ckpt/step_1.pt") == ([], True)
    whole.write_bytes(whole.read_bytes().replace(b"_rebuild", b"XXXXXXXX"))
    assert check(host.folder, "ckpt/step_1.pt", "ckpt/step_1.pt") == ([], False)
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("step_1/data.pkl", b"weights" * 100)
    for at, byte in ((70, 0), (6, 1)):  # in the packed bytes; and that they are encrypted
        packed = bytearray(whole.read_bytes())
        packed[at] = packed[packed.index(b"PK\1\2") + 8] = byte
        whole.write_bytes(packed)
        assert check(host.folder, "ckpt/step_1.pt", "ckpt/step_1.pt") == ([], False)
    host.write("ckpt/x.pkl", b"some pickle")
    assert check(host.folder, "ckpt/x.pkl", "ckpt/x.pkl") == ([], None)


def test_a_file_is_settled_when_two_looks_are_equal_and_it_is_whole(tmp_path: Path) -> None:
    host = Host(tmp_path, "a")
    path = host.save("ckpt/step_1.pt")
    assert [host.look()["ckpt/step_1.pt"].settled for _ in range(3)] == [False, True, True]
    path.write_bytes(path.read_bytes()[:-1])
    assert [host.look()["ckpt/step_1.pt"].settled for _ in range(3)] == [False, False, False]


def test_of_an_unknown_form_only_what_stood_still_while_ranks_ran_is_settled(tmp_path: Path) -> None:
    host = Host(tmp_path, "a")
    host.write("ckpt/one.pkl", b"x")
    assert [host.look()["ckpt/one.pkl"].settled for _ in range(2)] == [False, True]
    host.write("ckpt/two.pkl", b"x")
    again = Host(tmp_path, "a", fresh=False)
    assert [(part.name, part.settled) for part in again.look(quiet=True).values()] == [
        ("ckpt/one.pkl", True), ("ckpt/two.pkl", False),
    ]  # fmt: skip
    assert [*again.look(), *again.look(), *again.look()] == ["ckpt/one.pkl"] * 3  # though it stands still now


def test_what_was_there_before_the_run_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "a/ckpt").mkdir(parents=True)
    (tmp_path / "a/ckpt/step_9.pkl").write_bytes(b"old")
    host = Host(tmp_path, "a")
    assert host.look() == {}
    assert Host(tmp_path, "a", fresh=False).look() == {}
    host.write("ckpt/step_9.pkl", b"newer")
    assert list(host.look()) == ["ckpt/step_9.pkl"]


def test_files_of_an_earlier_run_in_a_directory_of_this_one_are_none_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a/ckpt/step_1").mkdir(parents=True)
    (tmp_path / "a/ckpt/step_1/__1_0.distcp").write_bytes(b"old")
    host = Host(tmp_path, "a")
    host.write("ckpt/step_1/__0_0.distcp", b"new")
    assert list(host.look()["ckpt/step_1"].files) == ["ckpt/step_1/__0_0.distcp"]


def test_a_copy_is_whole_has_its_times_and_stays(tmp_path: Path) -> None:
    a, b = Host(tmp_path, "a"), Host(tmp_path, "b")
    for step in range(1, 4):
        path = a.save(f"ckpt/step_{step}/model.pt", "x" * 3_000_000)
        part, source = a.give(f"ckpt/step_{step}")
        copy = part._replace(owner="a", marks={"a": part.mark})
        taken = b.take(TakeCheckpoint(step, part.name, [source], copy))
        assert (taken.why, taken.size) == ("", path.stat().st_size)
    kept = Host(tmp_path, "b", fresh=False).carrier.list_copies()
    assert [each.name for each in kept] == ["ckpt/step_2", "ckpt/step_3"]  # two are enough
    file = b.folder / ".ipexctl-keep-ckpt/a" / kept[1].mark / "ckpt/step_3/model.pt"
    assert file.read_bytes() == path.read_bytes()
    assert file.stat().st_mtime_ns == path.stat().st_mtime_ns
    assert not (b.folder / "ckpt").exists()


def test_a_copy_that_is_there_already_is_no_failure(tmp_path: Path) -> None:
    """The keeper asks again for what it has not heard of yet."""
    a, b = Host(tmp_path, "a"), Host(tmp_path, "b")
    a.save("ckpt/last.pt")
    part, source = a.give("ckpt/last.pt")
    copy = part._replace(owner="a", marks={"a": part.mark})
    assert [b.take(TakeCheckpoint(number, part.name, [source], copy)).why for number in (1, 2)] == ["", ""]
    assert [each.mark for each in b.carrier.list_copies()] == [part.mark]
    assert not list((b.folder / ".ipexctl-keep-ckpt").glob(".incoming/*"))


def test_a_look_that_began_before_a_copy_came_is_not_reported_after_it(tmp_path: Path) -> None:
    a, b = Host(tmp_path, "a"), Host(tmp_path, "b")
    a.save("ckpt/last.pt")
    part, source = a.give("ckpt/last.pt")
    order = TakeCheckpoint(1, part.name, [source], part._replace(owner="a", marks={"a": part.mark}))
    list_copies, taker = b.carrier.list_copies, threading.Thread(target=b.carrier.take, args=(order,))

    def list_and_wait() -> list[CheckpointPart]:
        parts = list_copies()
        if taker.ident is None:
            taker.start()
            taker.join(0.5)
        return parts

    b.carrier.list_copies = list_and_wait  # type: ignore[method-assign]
    b.carrier.report(7)
    taker.join(10)
    assert [type(message) for message in b.sent] == [CheckpointsFound, CheckpointTaken]


def test_a_file_that_changes_or_goes_is_not_taken(tmp_path: Path) -> None:
    a, b = Host(tmp_path, "a"), Host(tmp_path, "b")
    path = a.save("ckpt/step_1/model.pt")
    part, source = a.give("ckpt/step_1")
    order = TakeCheckpoint(1, part.name, [source], part._replace(owner="a", marks={"a": part.mark}))
    changes: list[Callable[[], object]] = [
        lambda: os.utime(path),
        lambda: a.save("ckpt/step_1/model.pt", "y"),
        path.unlink,
    ]
    for change in changes:
        change()
        assert "another file by now" in b.take(order).why
        assert b.carrier.list_copies() == []
        assert not list((b.folder / ".ipexctl-keep-ckpt").glob(".incoming/*"))


def test_a_full_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Host(tmp_path, "a"), Host(tmp_path, "b")
    a.save("ckpt/step_1/model.pt")
    part, source = a.give("ckpt/step_1")
    size = sum(size for size, _ in part.files.values())
    monkeypatch.setattr(os, "statvfs", lambda _: type("Room", (), {"f_bavail": 2 * size - 1, "f_frsize": 1}))
    taken = b.take(TakeCheckpoint(1, part.name, [source], part._replace(owner="a")))
    assert "no space left in" in taken.why
    assert b.carrier.list_copies() == []
    assert b.take(TakeCheckpoint(2, part.name, [source])).why == ""  # what the run needs may take the last


def test_a_checkpoint_is_put_in_its_place_and_newer_ones_aside(tmp_path: Path) -> None:
    a, b = Host(tmp_path, "a"), Host(tmp_path, "b")
    path = a.save("ckpt/step_1/model.pt")
    part, source = a.give("ckpt/step_1")
    b.write("ckpt/step_2/model.pt", b"torn")
    taken = b.take(TakeCheckpoint(1, part.name, [source], None, ["ckpt/step_2"]))
    assert taken.why == ""
    assert (b.folder / "ckpt/step_1/model.pt").read_bytes() == path.read_bytes()
    assert not (b.folder / "ckpt/step_2").exists()
    assert (b.folder / ".ipexctl-keep-ckpt/.aside/ckpt/step_2/model.pt").read_bytes() == b"torn"


def test_what_a_host_has_already_does_not_travel(tmp_path: Path) -> None:
    a, b = Host(tmp_path, "a"), Host(tmp_path, "b")
    path = a.save("ckpt/model.pt")
    b.write("ckpt/model.pt", path.read_bytes())
    part, source = a.give("ckpt/model.pt")
    assert b.take(TakeCheckpoint(1, part.name, [source], part._replace(owner="a"))).size == 0
    assert len(b.carrier.list_copies()) == 1


def test_nothing_but_checkpoints_is_given(tmp_path: Path) -> None:
    path = "ckpt/link"
    a, b = Host(tmp_path, "a"), Host(tmp_path, "b")
    stat = a.write("secret", b"key").stat()
    (a.folder / "ckpt").mkdir()
    (a.folder / "ckpt/link").symlink_to("../secret")
    source = CheckpointSource("a", "127.0.0.1", a.carrier.port, {path: [stat.st_size, stat.st_mtime_ns]})
    incoming = tmp_path / "incoming"
    with pytest.raises(OSError, match="another file by now"):
        b.carrier.take_from(source._replace(files={path: source.files[path]}), str(incoming), [0], None)
    assert not any(file.read_bytes() for file in incoming.rglob("*") if file.is_file())


@pytest.mark.parametrize("path", ["secret", "ckpt/../secret", "{tmp}/victim", "../victim", "ckpt"])
def test_no_file_outside_of_the_directory_is_given_or_written(tmp_path: Path, path: str) -> None:
    """The name of the other side is refused before anything is opened: one that was absolute was emptied."""
    a, b = Host(tmp_path, "a"), Host(tmp_path, "b")
    (tmp_path / "victim").write_text("as before")
    path = path.format(tmp=tmp_path)
    a.write("secret", b"key")
    assert a.carrier.is_ours(path) is (path == "ckpt")
    if path != "ckpt":
        source = CheckpointSource("a", "127.0.0.1", a.carrier.port, {path: [3, 0]})
        why = f"{path} is no file of a checkpoint"
        assert b.take(TakeCheckpoint(1, "ckpt", [source], None)).why == why
        assert b.take(TakeCheckpoint(1, "ckpt", [], None, [path])).why == why
    assert (tmp_path / "victim").read_text() == "as before"


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "/".join("a" * 1500)], ids=["NUL", "half a character", "deep"])
def test_a_name_that_no_file_has_is_answered(tmp_path: Path, name: str) -> None:
    """Without an answer the keeper would wait, and no rank start."""
    b = Host(tmp_path, "b")
    source = CheckpointSource("b", "127.0.0.1", 1, {f"ckpt/{name}": [1, 0]})
    assert b.take(TakeCheckpoint(1, "ckpt", [source], None)).why
    assert b.take(TakeCheckpoint(1, "ckpt", [], CheckpointPart("ckpt", name, {}, 0.0, owner="a"))).why


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_lead_nowhere_and_a_pipe_holds_nobody(tmp_path: Path, kind: str) -> None:
    a, b = Host(tmp_path, "a"), Host(tmp_path, "b")
    (tmp_path / "other").mkdir()
    victim = tmp_path / "other/model.pt"
    if kind == "pipe":
        (a.folder / "ckpt/sub").mkdir(parents=True)
        os.mkfifo(a.folder / "ckpt/sub/model.pt")
    else:
        victim.write_text("as before")
        for host in (a, b):
            host.write("ckpt/old.pt", b"x")
            (host.folder / "ckpt/sub").symlink_to(tmp_path / "other")
    source = CheckpointSource("a", "127.0.0.1", a.carrier.port, {"ckpt/sub/model.pt": [9, 0]})
    began = time.monotonic()
    assert not a.carrier.is_ours("ckpt/sub/model.pt") or kind == "pipe"
    taken = b.take(TakeCheckpoint(1, "ckpt", [source], None))
    assert (
        taken.why
        == {
            "link": "ckpt/sub/model.pt is no file of a checkpoint",
            "pipe": "ckpt/sub/model.pt of a is another file by now, or arrived damaged",
        }[kind]
    )
    assert time.monotonic() < began + 4.0
    assert kind == "pipe" or victim.read_text() == "as before"


@pytest.mark.parametrize("file", [[], [1], [-1, 0], [1, 10**30], [1, 2, 3]])
def test_sizes_and_times_that_no_file_has_are_refused(tmp_path: Path, file: list[int]) -> None:
    """An exception would have ended the thread, and the keeper waited for its answer."""
    b = Host(tmp_path, "b")
    source = CheckpointSource("a", "127.0.0.1", 1, {"ckpt/model.pt": file})
    assert b.take(TakeCheckpoint(1, "ckpt", [source], None)).why == "ckpt/model.pt is no file of a checkpoint"


def test_no_more_comes_of_a_file_than_was_said(tmp_path: Path) -> None:
    a, b = Host(tmp_path, "a"), Host(tmp_path, "b")
    a.save("ckpt/model.pt")
    part, source = a.give("ckpt/model.pt")
    size = part.files["ckpt/model.pt"][0]

    def send_more(wire: rpc.Wire, _: object) -> str:
        wire.send(FileBytes())
        wire.outbox += b"x" * (size + 1)
        a.carrier.flush(wire)
        return "0" * 64

    a.carrier.send_file = send_more  # type: ignore[method-assign, assignment]
    assert b.take(TakeCheckpoint(1, part.name, [source], None)).why == "the connection ended"


@pytest.mark.parametrize("planted", ["link", "owner"])
def test_a_store_of_another_user_is_not_touched(tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below /tmp anybody may make it first: its records named directories to remove."""
    host, store = Host(tmp_path, "a"), tmp_path / "a/.ipexctl-keep-ckpt"
    assert host.carrier.find_fault() == ""
    if planted == "link":
        shutil.rmtree(store)
        (tmp_path / "elsewhere").mkdir()
        store.symlink_to(tmp_path / "elsewhere")
    else:
        monkeypatch.setattr(os, "geteuid", lambda: store.stat().st_uid + 1)
    host.carrier.run()
    why = f"{store} is no directory, or belongs to another user"
    assert host.sent == [CheckpointTaken(0, why, 0, 0.0)]
    assert planted == "owner" or not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("fresh", [True, False])
def test_a_directory_of_ours_that_another_user_gives_the_name_of_the_store_stays(tmp_path: Path, fresh: bool) -> None:
    """Who may write the directory of the checkpoints could have one removed that he may only rename."""
    store = tmp_path / "a/.ipexctl-keep-ckpt"
    store.mkdir(parents=True)
    (store / "data").write_text("mine")
    host = Host(tmp_path, "a", fresh=fresh)
    (store / "state.json").unlink()
    assert host.carrier.find_fault() == f"{store} has no copies: move it away"
    host.carrier.prepare_store()
    assert (store / "data").read_text() == "mine"


def test_nothing_is_removed_where_another_user_has_put_a_link_meanwhile(tmp_path: Path) -> None:
    carrier = Host(tmp_path, "a").carrier
    carrier.prepare_store()
    store, mine = Path(carrier.store), tmp_path / "shared/.incoming"
    (store / ".incoming/1").mkdir(parents=True)
    carrier.remove(".incoming")
    assert not (store / ".incoming").exists()
    (mine / "1").mkdir(parents=True)
    store.rename(store.with_name("aside"))
    store.symlink_to(mine.parent)
    for names in ((".incoming",), (".incoming", "1")):
        carrier.remove(*names)
    assert (mine / "1").exists()


def test_a_store_of_an_earlier_run_is_emptied(tmp_path: Path) -> None:
    store = Path(Host(tmp_path, "a").carrier.store)
    (store / "b/mark").mkdir(parents=True)
    (store / "b/mark.json").write_text("{}")
    assert Host(tmp_path, "a", fresh=False).carrier.find_fault() == ""
    assert (store / "b/mark.json").exists()
    Host(tmp_path, "a")
    assert [path.name for path in store.iterdir()] == ["state.json"]


def test_what_a_rank_nests_or_how_many_files_it_makes_ends_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path, "a")
    host.write("ckpt/step_1/state.json", b"[" * 100_000)
    host.write("ckpt/step_1/m.safetensors", (100_000).to_bytes(8, "little") + b"[" * 100_000)
    assert host.look()["ckpt/step_1"].settled is False
    deep = host.folder / "ckpt/step_2"
    for _ in range(500):
        deep /= "d"
    deep.mkdir(parents=True)
    host.write("ckpt/step_2/model.pt", b"x")
    assert list(host.look()["ckpt/step_2"].files) == ["ckpt/step_2/model.pt"]
    for number in range(3_000):
        host.write(f"ckpt/step_3/{'n' * 200}{number}", b"")
    host.carrier.report(0)
    host.write("ckpt/step_3/another", b"")
    host.carrier.report(0)
    assert host.sent == [CheckpointTaken(0, "3003 files are too many to be carried", 0, 0.0)]
    host.carrier.report(7)
    assert len(host.sent) == 2


@pytest.mark.parametrize("name", ["../victim", "..", "", "/victim"])
def test_a_copy_has_a_name_of_its_own(tmp_path: Path, name: str) -> None:
    a, b = Host(tmp_path, "a"), Host(tmp_path, "b")
    a.save("ckpt/model.pt")
    part, source = a.give("ckpt/model.pt")
    for wrong in (part._replace(owner=name, mark="m"), part._replace(owner="a", mark=name)):
        assert b.take(TakeCheckpoint(1, part.name, [source], wrong)).why == f"{name} is no name of a copy"
    assert not b.carrier.list_copies()


def test_a_stranger_gets_nothing(tmp_path: Path) -> None:
    a, b = Host(tmp_path, "a"), Host(tmp_path, "b", token="other")
    a.save("ckpt/model.pt")
    part, source = a.give("ckpt/model.pt")
    order = TakeCheckpoint(1, part.name, [source], part._replace(owner="a"))
    assert "does not know this run's token" in b.take(order).why


def test_names_are_those_of_sync_and_fetch(tmp_path: Path) -> None:
    """Both leave out what begins so."""
    assert paths.KEEP.startswith(".ipexctl-")
    assert Host(tmp_path, "a").carrier.store.endswith("/.ipexctl-keep-ckpt")


def test_a_checkpoint_comes_to_a_directory_on_another_disk(tmp_path: Path) -> None:
    source = tmp_path / "new.pt"
    source.write_bytes(b"new")
    os.utime(source, ns=(5, 123456789))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        assert Path(other).stat().st_dev != tmp_path.stat().st_dev
        target = Path(other, "last.pt")
        target.write_bytes(b"old")
        move_file(str(source), str(target))
        assert (target.read_bytes(), target.stat().st_mtime_ns) == (b"new", 123456789)
        assert [*Path(other).iterdir()] == [target]


def test_orders_that_another_host_sends_ahead_are_not_kept_here() -> None:
    """For each one that was answered, megabytes of further ones came in: a gigabyte in three seconds."""
    ours, theirs = socket.socketpair()
    wire = rpc.Wire(ours, rpc.GREETING_LIMIT)
    theirs.setblocking(False)
    ahead, sent = memoryview((KINDS.write(SendFile("a", [1, 2], "b", "c", "")) + b"\n") * 300_000), 0
    for _ in range(20):
        with suppress(BlockingIOError):
            while True:
                sent += theirs.send(ahead[sent:])
        assert isinstance(wire.wait(10.0), SendFile)
    assert sum(map(len, wire.lines)) < 2 * rpc.PIECE
    wire.close()
    theirs.close()
