"""What a host does with a tar stream that arrives, under each shell of this machine: few programs, and old or new."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from ipexctl.act.bundled_files import read_script
from ipexctl.act.transfer.send import build_tar_directory, build_tar_file, build_tar_header

SCRIPT = read_script("target_directory.sh") + read_script("receive_tree.sh")
SHELLS = [name for name in ("dash", "bash", "busybox") if shutil.which(name)]
PROGRAMS = ("awk", "cat", "df", "find", "grep", "head", "ls", "mkdir", "mv", "rm", "sync", "tar", "wc", "xargs")
PART = ".ipexctl-part-"
END = build_tar_file("whole", b"", 0o600)


def pack(tree: Mapping[str, str | None], stored: bytes = b"") -> bytes:
    """A stream with these files; a path that ends with "/" is a directory, and one without contents a link to "x"."""
    stream = build_tar_directory("tree")
    for path, text in tree.items():
        if path.endswith("/"):
            stream += build_tar_directory(f"tree/{path[:-1]}")
        elif text is None:
            stream += build_tar_header(f"tree/{path}", link="x")
        else:
            stream += build_tar_file(f"tree/{path}", text.encode(), 0o600)
    stream += build_tar_file("stored", stored, 0o600) if stored else b""
    return stream + build_tar_file("mark", b"{}", 0o600) + END + bytes(1024)


def read(place: Path) -> dict[str, str | None]:
    """The files below a place, as `pack` takes them, but for the mark."""
    result: dict[str, str | None] = {}
    for path in place.rglob("*"):
        name = str(path.relative_to(place))
        if path.is_symlink():
            result[name] = None
        elif path.is_dir():
            result[name + "/"] = ""
        elif name != ".ipexctl-sync.json":
            result[name] = path.read_text()
    return result


class Shell:
    """The script under one shell, with programs that record that they were started."""

    def __init__(self, name: str, place: Path) -> None:
        self.argv = ["busybox", "sh"] if name == "busybox" else [name]
        self.script = SCRIPT
        self.settings: dict[str, str] = {}  # of the account
        self.there, self.log, self._bin = place / "home/there", place / "log", place / "bin"
        self.log.touch()
        self._bin.mkdir(parents=True)
        self.there.parent.mkdir(mode=0o700)
        for program in PROGRAMS:
            real = f"busybox {program}" if name == "busybox" else program
            self.replace(program, f'PATH={os.environ["PATH"]} exec {real} "$@"')

    def replace(self, program: str, text: str) -> None:
        (self._bin / program).write_text(f"#!/bin/sh\necho {program} >>{self.log}\n{text}\n")
        (self._bin / program).chmod(0o755)

    def place(self, stream: bytes, *old: str) -> tuple[int, str]:
        """The status of the script and its error output."""
        with self.start(PART + "put", "-", *old) as process:
            _, err = process.communicate(stream, timeout=60)
        return process.returncode, err.decode()

    def start(self, *words: str, under: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """The script in a session of its own, as a child of the program ``under``."""
        argv = [*under, *self.argv, "-c", self.script, "receive", str(self.there), "place", *words]
        env = {**self.settings, "PATH": f"{self._bin}:{os.environ['PATH']}", "HOME": str(self.there.parent)}
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    def started(self) -> list[str]:
        """The programs that were started since the last call; not sync, which depends on what others write."""
        programs = self.log.read_text().split()
        self.log.write_text("")
        return sorted(program for program in programs if program != "sync")


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    return Shell(request.param, tmp_path)


def test_a_new_tree_costs_the_same_programs_whatever_is_in_it(shell: Shell) -> None:
    small: dict[str, str | None] = {"a/": "", "a/file": "1"}
    large: dict[str, str | None] = dict.fromkeys(("b/", "b/c/", ".d/"), "")
    large |= {f"{directory}{number}": "1" for directory in tuple(large) for number in range(300)}
    assert shell.place(pack(small)) == (0, "")
    few = shell.started()
    shutil.rmtree(shell.there)
    assert shell.place(pack(large)) == (0, "")
    assert shell.started() == few
    assert read(shell.there) == large


def test_options_that_the_account_gives_each_tar_leave_no_file_out(shell: Shell) -> None:
    """A startup file exported TAR_OPTIONS: `sync` ended well, and a module was not on that host."""
    shell.settings = {"TAR_OPTIONS": "--exclude=*.py -v"}
    assert shell.place(pack({"a.py": "1", "b": "2"})) == (0, "")
    assert read(shell.there) == {"a.py": "1", "b": "2"}


def test_what_came_from_another_host_goes_into_place_with_its_mode_and_time(shell: Shell) -> None:
    """The archive lies in the store, and beside it the large files, which are empty in the archive."""
    store = shell.there / f"{PART}0123456789ab-1-0"
    store.mkdir(mode=0o700, parents=True)
    shell.there.chmod(0o700)
    (store / "big").write_text("much")
    (store / "tree.tar").write_bytes(pack({"a/": "", "a/it's: 1": "", "small": "1"}, stored=b"big\0./a/it's: 1\0"))
    with shell.start(PART + "put", store.name) as process:
        _, err = process.communicate(b"", timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert (shell.there / "a/it's: 1").read_text() == "much"
    assert (shell.there / "a/it's: 1").stat().st_mtime == (shell.there / "small").stat().st_mtime


def test_directories_that_are_there_keep_what_is_not_sent(shell: Shell) -> None:
    old: dict[str, str | None] = {
        "a/": "",
        "a/b/": "",
        "a/b/old": "1",
        "a/b/both": "1",
        "a/b/link": "1",
        ".h/": "",
        ".h/..x": "1",
    }
    new = {
        "a/": "", "a/b/": "", "a/b/both": "2", "a/b/link": None, "a/b/new/": "", "a/b/new/file": "2",
        ".h/": "", ".h/..x": "2", "..d/": "", "..d/*": "2", "-f": "2", "two\nlines/": "", "two\nlines/[a]": "2",
    }  # fmt: skip
    assert shell.place(pack(old)) == (0, "")
    assert shell.place(pack(new)) == (0, "")
    assert read(shell.there) == {**old, **new}
    assert (shell.there / "a/b/new").stat().st_mode & 0o777 == 0o700


def test_more_files_than_one_mv_takes_replace_older_ones(shell: Shell) -> None:
    tree: dict[str, str | None] = {"a/": "", **{f"a/{number}": "1" for number in range(450)}}
    assert shell.place(pack(tree)) == (0, "")
    tree = {path: text and "2" for path, text in tree.items()}
    assert shell.place(pack(tree)) == (0, "")
    assert read(shell.there) == tree


def test_a_directory_that_another_host_creates_meanwhile_is_entered(shell: Shell) -> None:
    """The first mv finds a directory there that was not there when the tree was checked."""
    theirs = shell.there / "a"
    real = "busybox mv" if "busybox" in shell.argv else "mv"
    quicker = f"mkdir {theirs} 2>/dev/null && echo theirs | tee {theirs}/both >{theirs}/x"
    shell.replace("mv", f'PATH={os.environ["PATH"]}\n{quicker}\nexec {real} "$@"')
    assert shell.place(pack({"a/": "", "a/both": "ours", "a/sub/": "", "a/sub/file": "1"}))[0] == 0
    assert read(shell.there) == {"a/": "", "a/both": "ours", "a/x": "theirs\n", "a/sub/": "", "a/sub/file": "1"}


def test_a_directory_that_another_host_creates_between_two_looks_is_no_obstacle(shell: Shell) -> None:
    look = 'elif [ -e "$dir/$sub" ]'
    shell.script = SCRIPT.replace(look, f'elif mkdir "$dir/$sub"; {look.removeprefix("elif ")}')
    assert shell.script != SCRIPT
    assert shell.place(pack({"a/": "", "a/file": "1"})) == (0, "")
    assert read(shell.there) == {"a/": "", "a/file": "1"}


def test_files_that_cannot_be_moved_end_the_transfer(shell: Shell) -> None:
    shell.replace("mv", "echo mv: cannot move >&2; exit 1")
    status, words = shell.place(pack({"a/": "", "a/file": "1", "b": "1"}))
    assert (status, words.strip()) == (3, f"2 files did not get into {shell.there}: cannot move")
    assert shell.started().count("mv") == 2


@pytest.mark.parametrize("length", [1, 600, 1200, -1500])
def test_a_stream_that_is_cut_changes_nothing(shell: Shell, length: int) -> None:
    assert shell.place(pack({"a/": "", "a/file": "1"})) == (0, "")
    before = read(shell.there)
    assert shell.place(pack({"a/": "", "a/file": "2", "b/": ""})[:length])[0] == 3
    assert read(shell.there) == before


def test_an_earlier_transfer_that_still_waits_is_ended_with_its_session(shell: Shell) -> None:
    """In a shared shell the script does not lead its process group, and its tar waits for what never comes."""
    with shell.start(PART + "0123456789ab-1", "-", under=["sh", "-c", '"$@"; true', "shared"]) as earlier:
        until = time.monotonic() + 60
        while not (parts := list(shell.there.glob(PART + "*"))) or "tar" not in shell.log.read_text().split():
            assert time.monotonic() < until
            time.sleep(0.02)
        assert shell.place(pack({"a": "1"}), parts[0].name) == (0, "")
        assert earlier.wait(60) != 0
    assert read(shell.there) == {"a": "1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a process of another account")
def test_a_process_of_another_user_is_no_earlier_transfer(shell: Shell) -> None:
    words = ["sleep", "300", PART + "0123456789ab-1"]
    with subprocess.Popen(["sh", "-c", "sleep 300; true", *words], user=4242, start_new_session=True) as other:
        try:
            assert shell.place(pack({"a": "1"}), f"{words[-1]}-{other.pid}") == (0, "")
            assert other.poll() is None
        finally:
            os.killpg(other.pid, signal.SIGKILL)


@pytest.mark.parametrize("gone", ["my data", "my data/the\\one", "other"])
def test_what_is_mounted_is_not_emptied_by_a_removal(
    shell: Shell, mount: Callable[[Path, str], None], gone: str
) -> None:
    """`sync --delete` emptied the data set that was mounted in the project on the host."""
    data = shell.there / "my data/the\\one"
    data.mkdir(parents=True)
    (shell.there / "other").touch()
    for path in (shell.there, *shell.there.rglob("*")):
        path.chmod(0o700)
    mount(data, "mode=0755")
    (data / "keep").touch()
    stream = pack({"new": "1"}).removesuffix(END + bytes(1024))
    status, err = shell.place(stream + build_tar_file("to_delete", f"./{gone}\0".encode(), 0o600) + END + bytes(1024))
    assert (data / "keep").exists()
    assert (status, (shell.there / "other").exists()) == ((0, False) if gone == "other" else (3, True)), err
    assert ("something is mounted at" in err) == (gone != "other")


@pytest.mark.parametrize(("program", "gone"), [("xargs", "data/old"), ("mv", "other")])
def test_a_link_that_takes_the_place_of_a_directory_after_the_look_is_not_followed(
    shell: Shell, program: str, gone: str
) -> None:
    """Who may write a directory of the project chose by it which file of the account was removed or replaced."""
    data, outside = shell.there / "data", shell.there.parent / "outside"
    for directory in (data, outside):
        directory.mkdir(parents=True)
        for name in ("old", "file"):
            (directory / name).write_text("precious")
    (shell.there / "other").touch()
    for path in (shell.there, *shell.there.rglob("*")):
        path.chmod(0o700)
    real = f"busybox {program}" if "busybox" in shell.argv else program
    swap = f"[ -e {data}.moved ] || {{ mv {data} {data}.moved && ln -s {outside} {data}; }}"
    shell.replace(program, f'PATH={os.environ["PATH"]}\n{swap}\nexec {real} "$@"')
    stream = pack({"data/": "", "data/file": "new", "top": "1"}).removesuffix(END + bytes(1024))
    status, err = shell.place(stream + build_tar_file("to_delete", f"./{gone}\0".encode(), 0o600) + END + bytes(1024))
    assert read(outside) == {"old": "precious", "file": "precious"}
    assert (status, "data is a symbolic link" in err) == (3, True), err


@pytest.mark.parametrize("length", [600, None])
def test_the_end_of_a_transfer_removes_nothing_where_another_user_has_put_a_link(
    shell: Shell, length: int | None
) -> None:
    """Who may write above the project led the removal of what had come to a directory of the account."""
    shell.there.mkdir(mode=0o700)
    mine, above = shell.there.with_name("mine"), shell.there.parent
    mine.mkdir()
    (mine / "text").write_text("precious")
    real = "busybox tar" if "busybox" in shell.argv else "tar"
    swap = f"cd {above}\nname=$(ls -A there)\nmv there aside && mv mine $name && ln -s {above} there"
    shell.replace("tar", f'PATH={os.environ["PATH"]}\n({swap})\nexec {real} "$@"')
    assert shell.place(pack({"file": "new"})[:length])[0] == 3
    assert [path.read_text() for path in above.glob(f"{PART}*/text")] == ["precious"]
    assert [*(above / "aside").iterdir()] == []


def test_the_end_of_a_transfer_writes_nothing_where_another_user_has_put_a_link(shell: Shell) -> None:
    """It wrote which project this is into another one."""
    outside = shell.there.with_name("outside")
    for directory in (shell.there, outside):
        directory.mkdir(mode=0o700)
    real = "busybox mv" if "busybox" in shell.argv else "mv"
    swap = f"mv {shell.there} {shell.there}.aside && ln -s {outside} {shell.there}"
    shell.replace("mv", f'PATH={os.environ["PATH"]}\ncase $* in *../mark*) {swap} ;; esac\nexec {real} "$@"')
    assert shell.place(pack({"file": "new"})) == (0, "")
    assert [*outside.iterdir()] == []


def test_paths_are_removed_in_many_directories_and_only_they(shell: Shell) -> None:
    names = ["a", " b", "c\n", "-d", ".e"]
    doomed = [f"{up}{name}{number}" for up in ("", "x y/", "x y/\n/") for name in names for number in range(60)]
    tree: dict[str, str | None] = {"x y/": "", "x y/\n/": "", "x y/\n/keep": "1", **dict.fromkeys(doomed, "1")}
    assert shell.place(pack({**tree, "gone/": "", "gone/deep/": "", "gone/deep/file": "1"})) == (0, "")
    paths = "".join(f"./{path}\0" for path in (*doomed, "gone/deep/file", "gone", "gone/deep/not", "not/there"))
    stream = pack({"new": "1"}).removesuffix(END + bytes(1024))
    stream += build_tar_file("to_delete", paths.encode(), 0o600)
    assert shell.place(stream + END + bytes(1024)) == (0, "")
    assert read(shell.there) == {"x y/": "", "x y/\n/": "", "x y/\n/keep": "1", "new": "1"}
