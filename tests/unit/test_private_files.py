"""What ipexctl keeps for itself on the controller is for nobody else, whatever the umask."""

import os
import pwd
import stat
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from getpass import getuser
from pathlib import Path

import pytest

from ipexctl import loop
from ipexctl.act.bundled_files import pack_impi_torch, read_script
from ipexctl.act.context import Context
from ipexctl.act.lab import create_lab, find_openssh_tools, lock_lab_directory
from ipexctl.act.packages.resolve import Tool, WheelTarget, find_newest_versions, save_lock
from ipexctl.act.packages.sources import Sources
from ipexctl.act.root_home import switch_to_root_home
from ipexctl.act.ssh.hostkeys import KnownHosts
from ipexctl.act.transfer.receive import ResultsDir
from ipexctl.cli import main as start_command_line
from ipexctl.model.answers.doctor import DoctorAnswer, NetworkCheck
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Ended, Event, Started
from ipexctl.model.facts import Facts
from ipexctl.model.tasks import Run
from ipexctl.model.wheels import Lock
from ipexctl.protocol.messages import RunRow
from ipexctl.store.masking import Masker
from ipexctl.store.private_files import (
    claim_private_directory,
    make_private_directories,
    measure_tree,
    remove_directories,
    replace_file,
    write_private_file,
)
from ipexctl.verbs.common.pages import save_doctor_record
from ipexctl.verbs.files.sync import _find_own_paths
from ipexctl.verbs.run.prepare import describe_shared_files, find_start_notes
from ipexctl.verbs.run.run_discovery import DiscoveredRun
from tests.fakes import FakeOpener


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (directory, *directory.rglob("*"))}


def workflow(_: object) -> Generator[Event, None, None]:
    yield Started("install", "", ())
    yield Ended("install", Exit.OK)


def run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Exit:
    monkeypatch.setattr(loop, "get_state_directory", lambda: cache.with_name("state"))
    monkeypatch.setattr(loop, "get_cache_directory", lambda: cache)
    return loop.run_command(workflow, loop.OutputOptions(output="plain"), acting=True)


@pytest.mark.usefixtures("open_umask")
def test_the_cache_is_for_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "home/.cache/ipexctl"
    assert run(cache, monkeypatch) is Exit.OK
    save_lock(cache, Lock((), "3.11", "inputs"))
    pack_impi_torch(cache)
    assert modes(cache)["ipexctl"] == 0o700
    assert {mode for name, mode in modes(cache).items() if name.endswith((".json", ".whl"))} == {0o600}


def run_fake_uv(home: Path) -> None:
    """A uv that makes its cache, as the real one does."""
    home.mkdir(mode=0o700)
    uv = home / "uv"
    uv.write_text('#!/bin/sh\nmkdir -p "$HOME/.cache/uv"\necho >"$HOME/.cache/uv/file"\necho torch==2.8.0\n')
    uv.chmod(0o700)
    environ = {"HOME": str(home), "PATH": os.environ["PATH"]}
    tool = Tool(str(uv), "0.13.9", 1, "")
    assert find_newest_versions(tool, ["torch"], WheelTarget("3.11", "2.36"), Sources(environ=environ)) == {
        "torch": "2.8.0"
    }


def save_probe(home: Path) -> None:
    answer = DoctorAnswer((), (), None, (), NetworkCheck(0, (), None, None, None, (), {}))
    save_doctor_record(home / ".local/state/ipexctl", answer, 0.0, Masker({}))
    assert list(home.rglob("doctor/*.json"))


def fill_lab(home: Path) -> None:
    directory = home / ".local/state/ipexctl/lab"
    with lock_lab_directory(directory):
        create_lab(directory, 1, find_openssh_tools())


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize(
    "make",
    [
        run_fake_uv,
        save_probe,
        fill_lab,
        lambda home: save_lock(home / ".cache/ipexctl", Lock((), "3.11", "inputs")),
        lambda home: ResultsDir(home / ".local/state/ipexctl/runs/one/profile", "node0").close(),
        lambda home: KnownHosts([home / ".ssh/known_hosts"]).record_key("node0", "ssh-ed25519", b"key"),
    ],
    ids=["uv", "doctor", "lab", "lock", "results", "known_hosts"],
)
def test_whoever_comes_first_makes_what_is_missing(tmp_path: Path, make: Callable[[Path], object]) -> None:
    tmp_path.chmod(0o700)
    make(tmp_path / "home")
    assert not [path for path in tmp_path.rglob("*") if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def test_a_cache_of_before_becomes_private_and_one_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o755)
    assert run(cache, monkeypatch) is Exit.OK
    assert modes(cache) == {"cache": 0o700}
    cache.chmod(0o777)
    assert run(cache, monkeypatch) is Exit.STEP
    assert "is writable by others (mode 0777)" in (err := capsys.readouterr().err)
    assert f"mv {cache} {cache}.untrusted" in err  # what others have put there is used no more
    cache.chmod(0o700)
    tmp_path.chmod(0o1777)
    assert run(cache, monkeypatch) is Exit.OK
    tmp_path.chmod(0o777)  # another can be put in its place at any time after this look
    assert run(cache, monkeypatch) is Exit.STEP
    assert f"chmod +t {tmp_path}" in capsys.readouterr().err  # with it others may still write there


@pytest.mark.parametrize("place", ["theirs", "link", "mine"])
def test_a_cache_is_refused_where_a_stranger_made_a_directory_on_the_way_or_can_exchange_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The first one to make it in one like /tmp owns it, and had what he liked executed as the uv of arm64 hosts."""
    (shared := tmp_path / "shared").mkdir()
    (cache := tmp_path / "home/cache").mkdir(parents=True)
    if place == "link":
        (shared / "way").symlink_to(cache)
    else:
        (shared / "way").mkdir()
    shared.chmod(0o777 if place == "link" else 0o1777)
    stranger = os.stat_result((stat.S_IFDIR | 0o755, 0, 0, 1, os.geteuid() + 1, *[0] * 5))
    real = Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda path: stranger if (place, path.name) == ("theirs", "way") else real(path))
    if place == "mine":
        claim_private_directory(shared / "way/ipexctl")
        return
    with pytest.raises(UsageError, match="where others can exchange it"):
        claim_private_directory(shared / "way/ipexctl")


def test_a_link_to_itself_is_refused_as_any_other(tmp_path: Path) -> None:
    """Whoever may write ~/.cache or ~/.local/state ended every command with an exception by one, and `install`."""
    (loop := tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="is not a directory"):
        claim_private_directory(loop)
    with pytest.raises(OSError, match="symbolic link"):
        remove_directories([loop])
    context = Context(FakeOpener({}), loop, tmp_path)
    assert _find_own_paths(tmp_path, context) == ()
    (uv := tmp_path / "uv").write_text("#!/bin/sh\necho torch==2.8.0\n")
    uv.chmod(0o700)
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "UV_CACHE_DIR": str(loop)}
    target, sources = WheelTarget("3.11", "2.36"), Sources(environ=environ)
    assert find_newest_versions(Tool(str(uv), "0.13.9", 1, ""), ["torch"], target, sources) == {"torch": "2.8.0"}


def test_a_link_in_place_of_a_new_directory_makes_no_other_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user puts it there at once, where he may: root changed the mode of any directory."""
    (tmp_path / "theirs").mkdir(mode=0o755)
    monkeypatch.setattr(Path, "mkdir", lambda self, **_: self.symlink_to(tmp_path / "theirs"))
    with pytest.raises(OSError, match="new"):
        make_private_directories(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "theirs").stat().st_mode) == 0o755


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    write_private_file(tmp_path / "file", b"old")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory/kept").touch()
    with pytest.raises(OSError, match="directory"):
        write_private_file(tmp_path / "directory", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "file"]
    write_private_file(tmp_path / "file", b"new", 0o700)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert modes(tmp_path)["file"] == 0o700


def test_a_link_in_place_of_the_directory_meanwhile_leads_no_file_elsewhere(tmp_path: Path) -> None:
    """Another user exchanges it, where he may: files of root's were replaced, and parts stayed, in what he chose."""
    for end in ("well", "with an error"):
        theirs, place, aside = (tmp_path / f"{end} {name}" for name in ("theirs", "place", "aside"))
        theirs.mkdir()
        place.mkdir()
        (theirs / "file").write_bytes(b"kept")
        with suppress(ZeroDivisionError), replace_file(place / "file") as file:
            place.rename(aside)
            place.symlink_to(theirs)
            file.write(b"new")
            assert end == "well" or 1 / 0
        assert [path.name for path in theirs.iterdir()] == ["file"]
        assert (theirs / "file").read_bytes() == b"kept"
        assert [path.read_bytes() for path in aside.iterdir()] == ([b"new"] if end == "well" else [])


def test_a_tree_is_measured_however_deep_it_is(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "/".join("b" * 1200)
    subprocess.run(["mkdir", "-p", deep], check=True)
    try:
        (deep / "file").write_bytes(bytes(7))
        assert measure_tree(tmp_path)[0] == 7
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "a"], check=True)


def test_a_file_of_the_cache_and_an_environment_counts_for_the_cache(tmp_path: Path) -> None:
    cache, env = tmp_path / ".cache/uv", tmp_path / "env.d/torch"
    for directory in (cache, env):
        directory.mkdir(parents=True)
    (cache / "wheel").write_bytes(bytes(1 << 20))
    (env / "wheel").hardlink_to(cache / "wheel")
    (env / "own").write_bytes(bytes(64 << 10))
    counted = set[tuple[int, int]]()
    assert [measure_tree(path, counted)[0] for path in (cache, tmp_path)] == [1 << 20, 64 << 10]
    assert measure_tree(env)[0] == (1 << 20) + (64 << 10)
    words = ("state", str(tmp_path / "env"), "")
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", "-c", read_script("list_usage.sh"), "x", *words], env=environ, capture_output=True)
    sizes = {field.split()[0]: int(field.split()[1]) for field in done.stdout.decode().split("\0")[:-1:2]}
    assert sizes["wheels"] >= 1024 > sizes["environment"] >= 64


def test_under_sudo_nothing_is_kept_in_the_home_of_the_user(tmp_path: Path) -> None:
    if os.getuid() == 0:
        os.chown(tmp_path, 12345, 12345)
    kept = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": "/var/cache/us"}
    environ = {**kept, "SUDO_UID": "12345"}
    root = switch_to_root_home(environ, 0)
    assert root == environ["HOME"] != str(tmp_path)
    assert environ.keys() == {"HOME", "XDG_CACHE_HOME", "SUDO_UID"}
    assert switch_to_root_home(environ, 0) == "", "it is root's own already"
    for others, uid in ((kept, 0), ({**kept, "SUDO_UID": "12345"}, 12345)):  # no sudo; sudo -u
        assert (switch_to_root_home(others, uid), others["HOME"]) == ("", str(tmp_path))


def test_an_account_without_a_name_is_called_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that was started with --user: ``run`` ended with an internal error."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("pwd.getpwuid", {0: pwd.getpwuid(0)}.__getitem__)
    monkeypatch.setattr("os.getuid", lambda: 12345)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    monkeypatch.setitem(start_command_line.__globals__, "app", lambda **_: None)
    start_command_line()
    assert getuser() == os.environ["USER"] == "uid12345"


def test_ranks_that_sudo_makes_root_are_reported_once_in_the_plan() -> None:
    facts = {"node0": Facts(user="root"), "node1": Facts(user="root"), "node2": Facts(user="ada")}
    task, sudo = Run(script="train.py"), {"SUDO_UID": "1000"}
    (note,) = find_start_notes(task, sudo, facts)
    assert str(note) == "under sudo the login is root, and so are the ranks, on node0, node1"
    assert find_start_notes(task, {}, facts) == find_start_notes(task, sudo, {"node2": facts["node2"]}) == ()


def test_a_plan_names_what_other_users_compute_on_its_hosts() -> None:
    facts = {"node0": Facts(user="ada", busy=("ada python (99 %)", "ann python (93 %)")), "node1": Facts(user="ada")}
    (note,) = find_start_notes(Run(script="train.py"), {}, facts)
    assert str(note) == "other users compute on node0, and the ranks share cores with them: ann python (93 %)"
    own = {"node0": Facts(user="ann", busy=("ann python (93 %)",))}
    assert find_start_notes(Run(script="train.py"), {}, own) == ()


def test_only_runs_of_the_same_project_get_the_files_that_are_sent_now() -> None:
    def going(run: str, head: str, workdir: str) -> DiscoveredRun:
        return DiscoveredRun(head, RunRow(run, "t", "ann@pc", 1.0, 2, "running", [head], "/d", workdir=workdir))

    places = {"a": "/home/ann/ipexctl/gpt-1a2b", "b": "/data/gpt"}
    others = [going("r1", "a", "/home/ann/ipexctl/gpt-1a2b3c"), going("r2", "b", "/home/ann/ipexctl/gpt-1a2b")]
    assert not describe_shared_files(others, places)
    same = [going("r3", "a", "/home/ann/ipexctl/gpt-1a2b/src"), going("r4", "b", "/data/gpt")]
    text = describe_shared_files([*others, *same], places)
    assert text.startswith("the project on these hosts is in use by run r3 of ann@pc, run r4 of ann@pc: ")


def test_a_plan_says_that_it_does_not_read_standard_input() -> None:
    (note,) = find_start_notes(Run(script="train.py", stdin="-"), {}, {}, dry=True)
    assert str(note) == "rank 0 reads -, which is not looked at before the start"
