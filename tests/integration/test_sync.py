"""Carrying directories: over real processes on this machine, and over SSH where the link matters."""

import contextlib
import hashlib
import json
import math
import os
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ipexctl.act.context import Context
from ipexctl.act.ssh import Links
from ipexctl.act.transfer.send import send_file
from ipexctl.model.errors import Exit, Failure, Kind, UsageError
from ipexctl.model.events import Ended, Event, HostFailed, Message, Planned, Progress, StepEnded
from ipexctl.model.hosts import Host, Inventory, LinkError, Opener
from ipexctl.model.tasks import Sync
from ipexctl.protocol.paths import MANIFEST
from ipexctl.verbs.files.project import find_project
from ipexctl.verbs.files.sync import sync
from tests.contract.sshd import Server, sshd
from tests.fakes import FakeOpener
from tests.waiting import wait

MARK = ".ipexctl-sync.json"
Mount = Callable[[Path, str], None]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of the local host, as a login finds it: through the environment."""
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    return place


@pytest.fixture
def source(tmp_path: Path) -> Path:
    place = tmp_path / "proj"
    (place / "pkg").mkdir(parents=True)
    (place / "train.py").write_text("print('hello')\n")
    (place / "pkg" / "data.bin").write_bytes(os.urandom(300_000))
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / "empty").mkdir()
    (place / ".git").mkdir()
    (place / ".git" / "config").write_text("secret")
    (place / "latest").symlink_to("pkg/data.bin")
    return place


@pytest.fixture
def target(home: Path, source: Path) -> Path:
    """Where the source lies on the local host."""
    return home / "ipexctl" / find_project(source, None).name


def local(*names: str, **wheres: str) -> Inventory:
    return Inventory(
        tuple(Host(name, "localhost", vars={"workdir": wheres[name]} if name in wheres else {}) for name in names)
    )


def carried(
    task: Sync, inventory: Inventory, links: Opener | None = None, *, dry: bool = False, own: Path = Path()
) -> tuple[dict[str, str | Failure], list[Event]]:
    links = links or Links(config=None)
    events: list[Event] = []
    story = sync(task, inventory, Context(links, own / "state", own / "cache"), dry=dry)
    try:
        while True:
            events.append(next(story))
    except StopIteration as end:
        links.close()
        return end.value, events


def output(events: list[Event]) -> dict[str, tuple[str, str]]:
    return {e.host: (e.outcome, e.detail) for e in events if isinstance(e, StepEnded) and e.step == "sync"}


def picture(place: Path) -> dict[bytes, tuple[str, str]]:
    """Every path below a place with its kind and contents, but for what syncs leave out or leave behind."""
    result: dict[bytes, tuple[str, str]] = {}
    top = os.fsencode(place)
    for directory, directories, files in os.walk(top):
        directories[:] = [name for name in directories if name != b".git"]
        for name in directories + files:
            path = os.path.join(directory, name)
            if name == MARK.encode():
                continue
            relative = os.path.relpath(path, top)
            if os.path.islink(path):
                result[relative] = ("l", os.fsdecode(os.readlink(path)))
            elif os.path.isdir(path):
                result[relative] = ("d", "")
            else:
                result[relative] = ("f", hashlib.sha256(Path(os.fsdecode(path)).read_bytes()).hexdigest())
    return result


def list_parts(place: Path) -> list[Path]:
    return list(place.rglob(".ipexctl-part-*"))


# -- the ordinary ------------------------------------------------------------------------------------------------------


def test_a_tree_arrives_byte_for_byte_and_private(home: Path, source: Path, target: Path) -> None:
    old = os.umask(0)
    try:
        done, events = carried(Sync(source=str(source)), local("n1"))
    finally:
        os.umask(old)
    assert done == {"n1": str(target)}
    assert picture(target) == picture(source)
    assert output(events) == {"n1": ("changed", "4 files, 293 KiB")}
    for path in (target.parent, target, *target.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if not path.is_symlink():
            assert mode == (0o700 if path.is_dir() or path.name == "run.sh" else 0o600), path
    assert list_parts(home) == []
    assert events[-1] == Ended("sync", Exit.OK)


def test_hosts_with_one_home_directory_get_a_large_tree_once(home: Path, source: Path, target: Path) -> None:
    (source / "large").write_bytes(os.urandom(65 << 20))
    done, events = carried(Sync(source=str(source)), local("n1", "n2"), own=home / "own")
    assert done == {"n1": str(target), "n2": str(target)}
    assert picture(target) == picture(source)
    assert {name: outcome for name, (outcome, _) in output(events).items()} == {"n1": "changed", "n2": "changed"}
    sent = [event.detail for event in events if isinstance(event, StepEnded) and event.step == "send"]
    assert len(sent) == 1
    assert list_parts(home) == []


def test_files_that_are_pointers_of_git_lfs_are_named_when_they_are_sent(source: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 12345\n"
    (source / "x.npy").write_text(pointer)
    (source / "notes.txt").write_text(pointer.replace("version", "Version"))
    _, events = carried(Sync(source=str(source)), local("n1"))
    [warning] = [event.text for event in events if isinstance(event, Message) and event.level == "warning"]
    assert warning == "without its data, a pointer of Git LFS: x.npy; git lfs pull gets it"
    _, events = carried(Sync(source=str(source)), local("n1"))
    assert not [event for event in events if isinstance(event, Message) and event.level == "warning"]


def test_a_second_sync_sends_nothing_and_touches_nothing(source: Path, target: Path) -> None:
    carried(Sync(source=str(source)), local("n1"))
    paths = (target, *target.rglob("*"))
    before = [_read_state(path) for path in paths]
    _, events = carried(Sync(source=str(source)), local("n1"))
    assert output(events) == {"n1": ("ok", "nothing to do")}
    assert [_read_state(path) for path in paths] == before


def _read_state(path: Path) -> tuple[int, ...]:
    """All that a change of a file would show; its time of access is not among it: files may be read."""
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_nlink, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def test_the_dry_run_says_what_the_real_one_does_and_changes_nothing(home: Path, source: Path) -> None:
    _, dry = carried(Sync(source=str(source)), local("n1", "n2", n2=str(home / "other")), dry=True)
    assert list(home.iterdir()) == []
    _, real = carried(Sync(source=str(source)), local("n1", "n2", n2=str(home / "other")))
    plans = [[event.text for event in events if isinstance(event, Planned)] for events in (dry, real)]
    assert plans[0] == plans[1]
    assert "send train.py (15 B)" in plans[0][0]


def test_progress_is_reported_and_ends_at_its_total(home: Path, source: Path) -> None:
    (source / "big").write_bytes(os.urandom(5 << 20))
    _, events = carried(Sync(source=str(source)), local("n1"))
    steps = [event for event in events if isinstance(event, Progress)]
    assert steps[-1].done == steps[-1].total > 5 << 20
    assert [step.done for step in steps] == sorted(step.done for step in steps)


def test_what_ipexctl_itself_stores_in_the_tree_is_never_sent(source: Path, target: Path) -> None:
    for name in ("state", "cache"):
        (source / "pkg" / name).mkdir()
        (source / "pkg" / name / "debug.log").write_text("x")
    task = Sync(source=str(source), exclude=("!state/",))
    _, dry = carried(task, local("n1"), dry=True, own=source / "pkg")
    [plan] = [event.text for event in dry if isinstance(event, Planned)]
    lines = [f"not sent: pkg/{name}/, where ipexctl itself stores files" for name in ("state", "cache")]
    assert plan.splitlines()[-2:] == lines
    carried(task, local("n1"), own=source / "pkg")
    assert {path.name for path in (target / "pkg").iterdir()} == {"data.bin"}


# -- what is in the way ------------------------------------------------------------------------------------------------


@pytest.mark.fault("E3")
@pytest.mark.parametrize(
    ("name", "target"),
    [("abs", "/etc/passwd"), ("up", "../../secret"), ("sub/up", "../../x"), ("around", "../proj/train.py")],
)
def test_links_that_leave_the_tree_stop_all_before_any_contact(source: Path, name: str, target: str) -> None:
    (source / "sub").mkdir()
    (source / name).symlink_to(target)
    opener = FakeOpener({})
    with pytest.raises(UsageError) as caught:
        carried(Sync(source=str(source)), local("n1"), opener)
    assert f"{name} → {target}" in str(caught.value)
    assert opener.links == {}


@pytest.mark.fault("E3")
def test_links_inside_the_tree_are_carried_as_links_even_where_they_lead_nowhere(source: Path, target: Path) -> None:
    (source / "dir").symlink_to("pkg")
    (source / "dangling").symlink_to("pkg/none")
    (source / "pkg" / "loop").symlink_to("../pkg/loop")
    carried(Sync(source=str(source)), local("n1"))
    assert picture(target) == picture(source)


def test_a_link_that_leaves_through_a_directory_link_is_found(source: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (source / "a").mkdir()
    (source / "a" / "b").symlink_to("../pkg")
    (source / "c").symlink_to("a/b/../../outside")
    (source / "my data").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="links that leave it") as caught:
        carried(Sync(source=str(source)), local("n1"), FakeOpener({}))
    assert caught.value.hint == (
        "leave them out (sync c copies what it leads to, if scripts need that): --exclude c --exclude 'my data'"
    )


@pytest.mark.fault("E4")
@pytest.mark.parametrize("what", ["destination", "ipexctl", "directory", "file"])
@pytest.mark.parametrize("delete", [False, True])
def test_links_planted_in_the_destination_are_refused_and_their_victims_untouched(
    source: Path, tmp_path: Path, what: str, delete: bool, target: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("keep")
    if what in {"directory", "file"}:
        carried(Sync(source=str(source)), local("n1"))
        if what == "directory":
            (target / "empty").rmdir()
            (target / "empty").symlink_to(victim)
        else:
            (target / "train.py").unlink()
            (target / "train.py").symlink_to(victim / "precious")
        (source / "train.py").write_text("new")
        (source / "empty" / "new").write_text("new")
    elif what == "destination":
        target.parent.mkdir(mode=0o700)
        target.symlink_to(victim)
    else:
        target.parent.symlink_to(victim)
    before = [(path, path.lstat()) for path in (victim, *victim.rglob("*"))]
    done, events = carried(Sync(source=str(source), delete=delete), local("n1"))
    failed = done["n1"]
    assert isinstance(failed, Failure)
    assert failed.kind is Kind.STEP
    assert "is a symbolic link" in failed.what
    assert [(path, path.lstat()) for path in (victim, *victim.rglob("*"))] == before
    assert events[-1] == Ended("sync", Exit.STEP)


@pytest.mark.fault("E2")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory to somebody else")
def test_a_directory_of_somebody_else_is_refused(home: Path, source: Path) -> None:
    there = home / "w"
    there.mkdir()
    os.chown(there, 12345, 12345)
    done, _ = carried(Sync(source=str(source), workdir="w"), local("n1"))
    failed = done["n1"]
    assert isinstance(failed, Failure)
    assert failed.what == f"{there} belongs to another user"
    assert list(there.iterdir()) == []


@pytest.mark.fault("E2")
def test_a_read_only_place_is_reported_with_its_reason(home: Path, source: Path, mount: Mount) -> None:
    place = home / "w"
    place.mkdir()
    mount(place, "ro,mode=0700")
    done, _ = carried(Sync(source=str(source)), local("n1", "n2", n1=str(place), n2=str(home / "fine")))
    failed = done["n1"]
    assert isinstance(failed, Failure)
    assert failed.what == f"cannot write to {place}: read-only"
    assert picture(home / "fine") == picture(source)


def test_a_full_disk_is_reported_and_the_old_files_stay(home: Path, source: Path, mount: Mount) -> None:
    place = home / "w"
    place.mkdir()
    mount(place, "size=2m,mode=0700")
    carried(Sync(source=str(source), workdir="w"), local("n1"))
    before = picture(place)
    (source / "big").write_bytes(os.urandom(4 << 20))
    (source / "train.py").write_text("new")
    done, _ = carried(Sync(source=str(source), workdir="w"), local("n1"))
    assert picture(place) == before
    assert list_parts(place) == []
    failed = done["n1"]
    assert isinstance(failed, Failure)
    assert failed.code == "no-space"
    assert (failed.hint or "").endswith("\nipexctl du")


@pytest.mark.fault("E5")
def test_deleting_removes_what_is_gone_and_never_what_is_left_out(source: Path, target: Path) -> None:
    carried(Sync(source=str(source)), local("n1"))
    (target / ".venv").mkdir()
    (target / ".venv" / "python").write_text("x")
    (target / "checkpoint.pt").write_text("x")
    (source / "run.sh").unlink()
    carried(Sync(source=str(source)), local("n1"))
    assert (target / "run.sh").exists()
    _, events = carried(Sync(source=str(source), delete=True), local("n1"))
    assert output(events) == {"n1": ("changed", "2 removed")}
    assert (target / ".venv" / "python").exists()
    (target / ".venv" / "python").unlink()
    (target / ".venv").rmdir()
    assert picture(target) == picture(source)


def test_hosts_with_one_home_directory_may_all_place_there_at_once(home: Path, source: Path) -> None:
    for number in range(60):
        (source / f"d{number}" / "e").mkdir(parents=True)
        (source / f"d{number}" / "e" / "f").write_text(str(number))
    for turn in range(3):
        done, _ = carried(Sync(source=str(source), workdir=f"ipexctl/t{turn}"), local("n1", "n2", "n3", "n4"))
        assert all(isinstance(where, str) for where in done.values()), done
        assert picture(home / "ipexctl" / f"t{turn}") == picture(source)


@pytest.mark.fault("E5")
def test_deleting_with_an_empty_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UsageError, match="is empty"):
        carried(Sync(source=str(tmp_path / "nothing"), delete=True), local("n1"), FakeOpener({}))


def test_the_home_directory_itself_is_no_destination_however_it_is_written(home: Path, source: Path) -> None:
    (home / "keep").write_text("x")
    done, _ = carried(Sync(source=str(source), workdir=str(home), delete=True), local("n1"))
    failed = done["n1"]
    assert isinstance(failed, Failure)
    assert failed.what == "the destination is the home directory"
    assert [path.name for path in home.iterdir()] == ["keep"]


def test_a_whole_home_directory_is_not_carried_by_accident(home: Path) -> None:
    (home / "train.py").write_text("x")
    with pytest.raises(UsageError, match="would be copied to every host"):
        carried(Sync(source=str(home / "train.py")), local("n1"), FakeOpener({}))


@pytest.mark.fault("E7")
def test_hard_names_arrive_and_nothing_is_executed(home: Path, source: Path, target: Path) -> None:
    names = [
        b"two words", b"new\nline", b"-rf", b";touch pwned", b"$(touch pwned)", b"`touch pwned`", b"'", b'"', b"\\",
        b"\xff\xfe not utf-8", "漢字".encode(), b"x" * 255, b"*", b"~", b"{}", b"!", b"%s", b"tree", b"mark", b"whole",
    ]  # fmt: skip
    for name in names:
        path = os.fsencode(source) + b"/" + name
        with open(path, "wb") as file:
            file.write(name)
        if len(name) < 200:
            os.mkdir(os.fsencode(source) + b"/d" + name)
            with open(os.fsencode(source) + b"/d" + name + b"/" + name, "wb") as file:
                file.write(name)
    deep = source / "/".join(["deep"] * 60)
    deep.mkdir(parents=True)
    (deep / "bottom").write_text("x")
    done, _ = carried(Sync(source=str(source)), local("n1"))
    assert done == {"n1": str(target)}
    assert picture(target) == picture(source)
    assert not list(home.rglob("pwned"))
    _, events = carried(Sync(source=str(source)), local("n1"))
    assert output(events) == {"n1": ("ok", "nothing to do")}
    for name in names:
        os.unlink(os.fsencode(source) + b"/" + name)
    carried(Sync(source=str(source), delete=True), local("n1"))
    assert picture(target) == picture(source)


def test_a_small_tree_takes_one_login_and_a_large_one_another(source: Path, tmp_path: Path) -> None:
    logins = tmp_path / "logins"
    (tmp_path / "sshd").mkdir()
    with sshd(tmp_path / "sshd", startup=f"echo login >> {logins}\n") as server:
        inventory = Inventory((over_ssh(server, server.port, tmp_path / "there"),))

        def count_logins() -> int:
            before = logins.read_text().count("\n") if logins.exists() else 0
            links = Links(known_hosts=server.place / "known_hosts", config=None)
            assert not isinstance(carried(Sync(source=str(source)), inventory, links)[0][server.host().name], Failure)
            assert picture(tmp_path / "there") == picture(source)
            return logins.read_text().count("\n") - before

        assert count_logins() == 1
        assert count_logins() == 1, "nothing has changed"
        (source / "big").write_bytes(os.urandom(3 << 20))
        assert count_logins() == 2


@pytest.mark.fault("E7")
def test_two_thousand_small_files_arrive(source: Path, target: Path) -> None:
    for number in range(2000):
        (source / f"d{number % 20}").mkdir(exist_ok=True)
        (source / f"d{number % 20}" / f"f{number}").write_text(str(number))
    with (source / "sparse").open("wb") as file:
        file.truncate(32 << 20)
        file.seek(16 << 20)
        file.write(b"in the middle")
    carried(Sync(source=str(source)), local("n1"))
    assert picture(target) == picture(source)


# -- while it goes on --------------------------------------------------------------------------------------------------


@pytest.mark.fault("E6")
@pytest.mark.parametrize("change", ["grow", "shrink", "replace", "vanish", "rewrite small", "rename directory"])
def test_a_source_that_changes_while_it_is_sent_is_named(home: Path, source: Path, change: str, target: Path) -> None:
    carried(Sync(source=str(source)), local("n1"))
    before = picture(target)
    (source / "train.py").write_text("new")
    big = source / "big"
    big.write_bytes(b"x" * (4 << 20))
    links = Links(config=None)
    story = sync(Sync(source=str(source)), local("n1"), Context(links, Path("s"), Path("c")))
    events = []
    for event in story:
        events.append(event)
        if isinstance(event, Planned):
            if change == "grow":
                big.write_bytes(b"x" * (5 << 20))
            elif change == "shrink":
                os.truncate(big, 1 << 20)
            elif change == "replace":
                (source / "other").write_bytes(b"y" * (4 << 20))
                (source / "other").rename(big)
            elif change == "vanish":
                big.unlink()
            elif change == "rewrite small":
                (source / "train.py").write_text("old")
            else:
                (source / "train.py").rename(source / "elsewhere.py")
    links.close()
    failures = [event.failure for event in events if isinstance(event, HostFailed)]
    assert [failure.code for failure in failures] == ["source-changed"]
    assert ("train.py" if change in {"rewrite small", "rename directory"} else "big") in failures[0].what
    assert picture(target) == before
    assert list_parts(home) == []
    assert events[-1] == Ended("sync", Exit.STEP)


@dataclass
class Cable:
    """Leads to a port; with ``cut`` set, nothing passes any more, which it also sets itself when it has carried
    ``length`` bytes towards the server. ``up`` counts them, ``pause`` is the time between two pieces in seconds."""

    port: int
    pause: float = 0.0
    length: float = math.inf
    cut: threading.Event = field(default_factory=threading.Event)
    up: int = 0


@contextlib.contextmanager
def relay(port: int) -> Iterator[Cable]:
    sockets: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        cable = Cable(listener.getsockname()[1])

        def pump(a: socket.socket, b: socket.socket, *, up: bool) -> None:
            with contextlib.suppress(OSError):
                while data := a.recv(65536):
                    if cable.cut.is_set():
                        return  # swallowed; the connection stays, as behind a pulled cable
                    time.sleep(cable.pause)
                    cable.up += len(data) if up else 0
                    b.sendall(data)
                    if cable.up > cable.length:
                        cable.cut.set()
                if not cable.cut.is_set():
                    b.shutdown(socket.SHUT_WR)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    a, _ = listener.accept()
                    b = socket.create_connection(("127.0.0.1", port))
                    sockets.extend((a, b))
                    threading.Thread(target=pump, args=(a, b), kwargs={"up": True}, daemon=True).start()
                    threading.Thread(target=pump, args=(b, a), kwargs={"up": False}, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield cable
        listener.shutdown(socket.SHUT_RDWR)
    for one in sockets:
        with contextlib.suppress(OSError):  # the other side has closed it
            one.shutdown(socket.SHUT_RDWR)  # close alone tells the server nothing while a thread waits in recv
        one.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def over_ssh(server: Server, port: int, where: Path) -> Host:
    return server.host(port=port, vars={"workdir": str(where)})


def known(server: Server, port: int, tmp_path: Path) -> Path:
    path = tmp_path / "known_hosts"
    path.write_text(f"[127.0.0.1]:{port} {server.public()}\n[127.0.0.1]:{server.port} {server.public()}\n")
    return path


@pytest.mark.fault("E1")
@pytest.mark.parametrize("how", ["cut", "closed"])
def test_a_broken_sync_keeps_the_old_file(server: Server, source: Path, tmp_path: Path, how: str) -> None:
    there = tmp_path / "there"
    big = source / "big"
    big.write_bytes(b"old")
    links = Links(known_hosts=known(server, server.port, tmp_path), config=None)
    carried(Sync(source=str(source)), Inventory((over_ssh(server, server.port, there),)), links)
    big.write_bytes(os.urandom(40 << 20))
    with relay(server.port) as cable:
        cable.pause = 0.005  # all of it takes seconds, however busy the machine is
        links = Links(known_hosts=known(server, cable.port, tmp_path), config=None)
        inventory = Inventory((over_ssh(server, cable.port, there),))
        story = sync(Sync(source=str(source)), inventory, Context(links, Path("s"), Path("c")))
        for event in story:
            if isinstance(event, Progress) and event.done > 5 << 20:
                assert (there / "big").read_bytes() == b"old"
                if how == "cut":
                    wait(lambda: list_parts(there))  # what was sent may still be on its way
                    cable.cut.set()
                story.close()
                break
        links.close()
        assert (there / "big").read_bytes() == b"old"
        if how == "cut":
            assert len(list_parts(there)) == 1, "the host has not noticed: its side still waits"
        links = Links(known_hosts=known(server, server.port, tmp_path), config=None)
        carried(Sync(source=str(source)), Inventory((over_ssh(server, server.port, there),)), links)
        assert picture(there) == picture(source)
        wait(lambda: not list_parts(there))


def test_what_a_killed_push_of_this_tree_left_goes_also_where_nothing_is_to_be_sent(source: Path, target: Path) -> None:
    carried(Sync(source=str(source)), local("n1"))
    sender = hashlib.sha256(os.fsencode(json.loads((target / MANIFEST).read_text())["from"])).hexdigest()[:12]
    ended = subprocess.Popen(["true"])
    ended.wait()
    (target / f".ipexctl-part-{sender}-{ended.pid}-1" / "tree").mkdir(parents=True)
    carried(Sync(source=str(source)), local("n1"))
    assert not list_parts(target)


def test_a_push_of_another_controller_that_goes_on_is_left_alone(source: Path, target: Path) -> None:
    target.mkdir(parents=True, mode=0o700)
    target.chmod(0o700)
    target.parent.chmod(0o700)
    foreign = target / ".ipexctl-part-0123456789ab-1-1"
    foreign.mkdir()
    carried(Sync(source=str(source)), local("n1"))
    assert foreign.exists()


def is_open(path: Path) -> bool:
    """Whether a process has this file open."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if any(link.readlink() == path for link in (process / "fd").iterdir()):
                return True
    return False


# -- single files ------------------------------------------------------------------------------------------------------


def test_a_big_file_goes_on_after_a_cut(server: Server, home: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "torch.whl"
    wheel.write_bytes(os.urandom(20 << 20))
    target = tmp_path / "cache" / "torch.whl"
    events: list[Event] = []
    with relay(server.port) as cable:
        links = Links(known_hosts=known(server, cable.port, tmp_path), config=None)
        link = links.open(server.host(port=cable.port))

        def give_up() -> None:
            cable.cut.wait(60)
            time.sleep(0.1)
            links.close()

        cable.length = 8 << 20
        threading.Thread(target=give_up, daemon=True).start()
        with pytest.raises(LinkError) as caught:
            send_file(link, wheel, str(target), lambda event: None, "upload")
        assert caught.value.failure.code == "lost"
    assert not target.exists()
    links = Links(known_hosts=known(server, server.port, tmp_path), config=None)
    link = links.open(server.host())
    [part] = list_parts(target.parent)
    wait(lambda: not is_open(part))  # the host still writes what it had received
    assert send_file(link, wheel, str(target), events.append, "upload")
    assert target.read_bytes() == wheel.read_bytes()
    first = next(event for event in events if isinstance(event, Progress))
    assert first.done > 1 << 20, "it went on where it was cut"
    assert not send_file(link, wheel, str(target), events.append, "upload")
    assert list_parts(tmp_path / "cache") == []
    links.close()


def test_a_big_file_whose_beginning_is_damaged_there_is_sent_again(home: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    wheel.write_bytes(os.urandom(3 << 20))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (home / "c").mkdir(mode=0o700)
    (home / "c" / f".ipexctl-part-{digest}").write_bytes(b"\0" * (1 << 20))
    link = Links(config=None).open(Host("n1", "localhost"))
    assert send_file(link, wheel, "c/w.whl", lambda event: None, "upload")
    assert (home / "c" / "w.whl").read_bytes() == wheel.read_bytes()
