"""Which tree a script or a directory belongs to, where it goes on hosts, and what of it is big."""

import hashlib
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ipexctl.act.bundled_files import read_script
from ipexctl.act.context import Context
from ipexctl.act.transfer.receive import make_results_directory
from ipexctl.decide.planning.sync import SyncPlan, describe_large_transfer, describe_transfer
from ipexctl.model.errors import UsageError
from ipexctl.model.hosts import Inventory
from ipexctl.model.tasks import Sync
from ipexctl.model.trees import TreeEntry
from ipexctl.protocol.paths import MANIFEST
from ipexctl.verbs.files.project import Project, compile_project_ignore, find_project, is_left_out, make_finder
from ipexctl.verbs.files.sync import sync
from ipexctl.verbs.run.programs import find_local_module
from tests.fakes import FakeOpener


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a script, a package and what git ignores, in the home directory; the shell is elsewhere."""
    home, made = tmp_path / "home", tmp_path / "home/work/app"
    for name in ("scripts/train.py", "mypkg/__init__.py", "build/made.py", ".venv/bin/tool.py", "data/x"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).touch()
    (made / ".gitignore").write_text("build/\ndata/\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return made


@pytest.mark.parametrize("sign", [".git", "pyproject.toml", ".ipexctlignore"])
def test_the_nearest_root_upwards_is_the_projects(root: Path, sign: str) -> None:
    (root / sign).mkdir() if sign == ".git" else (root / sign).touch()
    assert find_project(root / "scripts/train.py", None) == Project(root, "scripts", True)
    assert find_project(root / "scripts", None) == Project(root, "scripts", True)
    assert find_project(root, None) == Project(root, "", True)


def test_ranks_work_where_the_user_stands_in_the_project(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / ".git").mkdir()
    for here, part in (("", ""), ("mypkg", "mypkg"), ("data", "scripts"), ("..", "scripts")):
        monkeypatch.chdir(root / here)
        assert find_project(root / "scripts/train.py", None).part == part
    monkeypatch.chdir(root)
    assert find_project("scripts/train.py", None) == Project(root, "", True)
    assert find_project("data", None) == Project(root, "data", True), "what is named goes, ignored or not"


def test_a_script_without_a_project_goes_with_its_directory(root: Path) -> None:
    script = root / "scripts/train.py"
    assert find_project(script, None) == Project(root / "scripts")
    assert Project(root / "scripts").list_import_paths() == []
    for directory in (Path.home(), root.parent):
        (directory / ".git").mkdir()
        root.parent.chmod(0o777)
        assert find_project(script, None) == Project(root / "scripts"), "home, or a directory of everybody"


def test_a_directory_below_is_part_of_what_a_run_sends(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "train.py").touch()
    monkeypatch.chdir(root)
    assert find_project("train.py", None) == Project(root)
    assert find_project("data", None) == Project(root, "data")
    assert find_project(".", None) == Project(root)
    for directory in (Path.home(), root.parent):
        monkeypatch.chdir(directory)
        root.parent.chmod(0o777)
        data = directory / "data"
        data.mkdir()
        assert find_project(data, None) == Project(data), "home, or a directory of everybody"


def test_links_out_of_a_project(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of scripts are followed, as by Python; those of data are places in the project."""
    other = tmp_path / "other"
    (other / "sub").mkdir(parents=True)
    (other / "other.py").touch()
    for name, target in (("link.py", other / "other.py"), ("code", other), ("mnt", other / "sub")):
        (root / name).symlink_to(target)
    monkeypatch.chdir(root)
    for marked in (False, True):
        (root / ".git").mkdir(exist_ok=True) if marked else None
        assert find_project("link.py", None) == Project(other)
        assert find_project("code/other.py", None).root.resolve() == other
        assert find_project("mnt", None) == Project(root, "mnt", marked)


@pytest.mark.parametrize("script", ["build/made.py", ".venv/bin/tool.py"])
def test_a_script_that_its_project_leaves_out_goes_with_its_directory(root: Path, script: str) -> None:
    (root / ".git").mkdir()
    assert find_project(root / script, None) == Project((root / script).parent)


def test_the_user_says_which_project(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "scripts/.git").mkdir()
    assert find_project(root / "scripts/train.py", str(root)) == Project(root, "scripts", True)
    monkeypatch.chdir(root)
    assert find_project("scripts/train.py", ".") == Project(root, "", True)
    with pytest.raises(UsageError, match="is not below --project"):
        find_project("scripts/train.py", "mypkg")


def test_projects_of_the_same_last_name_have_directories_of_their_own(tmp_path: Path) -> None:
    names = [Project(tmp_path / place).name for place in ("pa/src", "pb/src")]
    assert names[0] != names[1]
    assert all(name.startswith("src-") for name in names)


def test_the_root_and_a_src_layout_are_for_modules(root: Path) -> None:
    (root / "src/other").mkdir(parents=True)
    (root / ".git").mkdir()
    assert find_project(root, None).list_import_paths() == [""]
    (root / "pyproject.toml").touch()
    assert find_project(root, None).list_import_paths() == ["", "src"]
    module = root / "src/other/__main__.py"
    module.touch()
    assert find_local_module("other", find_project(root, None)) == module
    assert find_local_module("other.train", find_project(root, None)) is None
    (root / "src/__init__.py").touch()
    assert find_project(root, None).list_import_paths() == [""], "a package of that name"
    assert find_local_module("other", find_project(root, None)) is None


def test_what_the_user_says_decides_before_git(root: Path) -> None:
    ignored = compile_project_ignore(root, ["!data/", "mypkg/"])
    assert not ignored("data", True)
    assert ignored("mypkg", True)
    assert ignored("build", True)
    assert ignored(".venv", True)
    (root / ".ipexctlignore").write_text("!build/\n")
    assert not compile_project_ignore(root, [])("build", True)
    (root / "scripts/.gitignore").symlink_to("/dev/zero")
    assert not compile_project_ignore(root, [])("scripts/train.py", False)


def test_virtual_environments_of_any_name_are_left_out_unless_taken_back_in(tmp_path: Path) -> None:
    for name in ("env/pyvenv.cfg", "sub/my env[1]/pyvenv.cfg", "conda/conda-meta/history", "ours.d/torch/pyvenv.cfg"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "ours").symlink_to(tmp_path / "ours.d/torch")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "itself").symlink_to("itself")
    paths = ["env", "sub", "sub/my env[1]", "conda", "ours", "ours.d", "link", "itself", "env/x"]
    ignored = compile_project_ignore(tmp_path, [])
    left_out = [path for path in paths if ignored(path, (tmp_path / path).is_dir())]
    assert left_out == ["env", "sub/my env[1]", "conda", "ours", "ours.d"]
    assert not compile_project_ignore(tmp_path, ["!env"])("env", True)


def test_what_git_tracks_is_sent_although_its_patterns_match_it(tmp_path: Path) -> None:
    (tmp_path / "pkg/data/more").mkdir(parents=True)
    for name in ("pkg/data/input.txt", "pkg/data/huge.bin", "pkg/data/more/x", "pkg/x.log", "pkg/y.log"):
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("data\n*.log\n")
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "--force", "pkg/data/input.txt", "pkg/x.log"], check=True)

    def list_sent(*exclude: str) -> set[str]:
        ignored = compile_project_ignore(tmp_path, exclude)
        files = (path for path in tmp_path.rglob("*") if path.is_file() and ".git" not in path.parts[-2:])
        return {path.name for path in files if not is_left_out(path, tmp_path, ignored)} - {".gitignore"}

    assert list_sent() == {"input.txt", "x.log"}
    assert list_sent("data") == {"x.log"}
    assert list_sent("!data") == {"input.txt", "huge.bin", "x", "x.log"}
    assert list_sent("!pkg/") == {"input.txt", "huge.bin", "x", "x.log", "y.log"}, (
        "with files that other patterns match"
    )


def test_no_program_of_a_repository_is_started(tmp_path: Path) -> None:
    """A partial clone of somebody else lacked a file of patterns: git fetched it, by the command of its settings."""
    made = tmp_path / "made"
    settings = {"extensions.partialClone": "origin", "remote.origin.promisor": "true", "remote.origin.url": "ssh://x/y"}
    settings |= {"core.repositoryformatversion": "1", "core.sshCommand": f"touch {made};"}

    def git(*words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True).stdout

    git("init", "-q")
    (tmp_path / ".gitignore").write_text("*.bin\n")
    git("add", ".")
    blob = git("rev-parse", ":.gitignore").decode().strip()
    git("update-index", "--skip-worktree", ".gitignore")
    (tmp_path / ".gitignore").unlink()
    (tmp_path / ".git/objects" / blob[:2] / blob[2:]).unlink()
    for name, value in settings.items():
        git("config", name, value)
    compile_project_ignore(tmp_path, ())
    assert not made.exists()


def test_more_environments_than_anybody_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 took 18 s, each tried on each."""
    monkeypatch.setattr("ipexctl.verbs.files.project._PATTERN_LIMIT", 2)
    for name in "abc":
        (tmp_path / name / "conda-meta").mkdir(parents=True)
    with pytest.raises(UsageError, match="has more than 2 virtual environments"):
        compile_project_ignore(tmp_path, [])("train.py", False)


@pytest.mark.parametrize("text", ["x\n" * 10_001, "x" * (1 << 20) + "\n"])
def test_more_patterns_than_anybody_writes_are_refused(text: str, tmp_path: Path) -> None:
    """150,000 took 15 ms of each file, and what was behind 1 MiB was not left out."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/.gitignore").write_text(text)
    with pytest.raises(UsageError, match="has more than 10000 lines or 1 MiB of patterns"):
        compile_project_ignore(tmp_path, [])("pkg/a.py", False)


@pytest.mark.parametrize("text", ["x\n" * 9_000, "x" * 1_000_000])
def test_more_patterns_than_anybody_writes_are_refused_of_all_directories(text: str, tmp_path: Path) -> None:
    """20 files of 9,900 lines took a minute and 900 MB."""
    ignored = compile_project_ignore(tmp_path, [])
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / ".gitignore").write_text(text)
    assert not any(ignored(name, False) for name in ("a/a.py", "b/a.py", "a/b.py"))
    with pytest.raises(UsageError, match="have more than 20000 lines or 2 MiB of patterns"):
        ignored("c/a.py", False)


def test_an_index_that_names_gigabytes_takes_none_of_memory(tmp_path: Path) -> None:
    """Its names share what they begin with: 420 KB of it were 200 MB, twice."""
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    (tmp_path / ".gitignore").write_text("*.bin\n")
    index, previous, directory = b"DIRC" + struct.pack(">II", 4, 2000), b"", b"d/" * 20_000
    for name in [b"a.bin", *(b"%s%04d.bin" % (directory, number) for number in range(1999))]:
        shared = len(directory) if previous.startswith(directory) else 0
        dropped = len(previous) - shared
        assert dropped < 128
        index += struct.pack(">10I20sH", *[0] * 6, 0o100644, 0, 0, 0, b"1" * 20, min(len(name), 4095)) + bytes(
            [dropped]
        )
        index, previous = index + name[shared:] + b"\0", name
    (tmp_path / ".git/index").write_bytes(index + hashlib.sha1(index).digest())
    assert compile_project_ignore(tmp_path, [])("a.bin", False)  # git names all of it or nothing


def test_results_are_left_out_of_the_next_sync_and_of_git(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for into in (tmp_path / "fetched", old):
        make_results_directory(into)
    ignored = compile_project_ignore(tmp_path, [])
    assert ignored("fetched/node0", True)
    assert ignored("fetched/.gitignore", False)
    assert [*old.iterdir()] == []


def file(path: str, size: int) -> TreeEntry:
    return TreeEntry(path, "f", size)


def test_what_is_big_is_named_with_the_option_that_leaves_it_out() -> None:
    plan = SyncPlan("/w", send=(file("data/a", 90 << 20), file("data/b", 30 << 20), file("w[1].pt", 9), file("x", 1)))
    assert describe_large_transfer({"n0": plan, "n1": SyncPlan("/w")}) == (
        "120 MiB for each host, most of it data/ (120 MiB); to leave out the first: --exclude /data/"
    )
    assert describe_large_transfer({"n0": SyncPlan("/w", send=(file("x", 100 << 20),))}) == ""
    assert describe_large_transfer({}) == ""
    odd = describe_large_transfer({"n0": SyncPlan("/w", send=(file("a [1]*", 101 << 20),))})
    assert odd.endswith("--exclude '/a \\[1\\]\\*'")


def test_two_lines_say_what_was_sent_and_left_out() -> None:
    plans = {"n0": SyncPlan("/w", send=(file("x", 1),)), "n1": SyncPlan("/w")}
    assert describe_transfer(plans, "/home/app", ["a/b/c.pt", "data/", "a/x", "wandb/"]) == [
        "/home/app to 2 hosts: 1 file, 1 B",
        "left out: data/, wandb/, a/x, a/b/c.pt (.gitignore, .ipexctlignore, --exclude)",
    ]
    assert len(describe_transfer(plans, "/home/app", [])) == 1
    assert describe_transfer({"n1": SyncPlan("/w")}, "/home/app", ["data/"]) == []


def test_a_source_that_is_a_link_to_itself_does_not_exist(root: Path) -> None:
    """It ended with 70."""
    (root / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match=r"the source \S+/loop does not exist"):
        list(sync(Sync(source=str(root / "loop")), Inventory(()), Context(FakeOpener({}), root, root)))


@pytest.mark.parametrize("dry", ["dry", ""])
def test_a_project_in_which_something_is_mounted_stays_with_all_that_is_there(
    tmp_path: Path, mount: Callable[[Path, str], None], dry: str
) -> None:
    """`du --prune` emptied the data set that was mounted there."""
    data = tmp_path / "my project" / "data"
    data.mkdir(parents=True)
    (data.parent / MANIFEST).touch()
    mount(data, "mode=0755")
    (data / "keep").touch()
    script = read_script("target_directory.sh") + read_script("remove_project.sh")
    words = ["sh", "-c", script, "sh", str(data.parent), MANIFEST, "none", str(data.parent), dry]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("something is mounted at ")
    assert (data / "keep").exists()


def test_a_link_above_a_project_that_goes_leads_the_removal_nowhere_else(tmp_path: Path) -> None:
    """Another user, who may write above, puts it there once all was looked at: a directory of that name went."""
    for name in ("top/p", "theirs/p/data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "top/p" / MANIFEST).touch()
    swap = "".join(
        f'{name}() {{ mv {tmp_path}/top {tmp_path}/away && ln -s theirs {tmp_path}/top; command {name} "$@"; }}\n'
        for name in ("find", "rm")
    )
    script = swap + read_script("target_directory.sh") + read_script("remove_project.sh")
    words = ["sh", "-c", script, "sh", str(tmp_path / "top/p"), MANIFEST, "none", str(tmp_path / "top/p"), ""]
    subprocess.run(words, capture_output=True, text=True, check=False)
    assert (tmp_path / "theirs/p/data").exists()
    assert not [*(tmp_path / "away/p").iterdir()]


def test_of_the_modules_of_a_script_no_more_is_read_than_can_be_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 modules, each as large as a script may be, held `migrate` for minutes."""
    monkeypatch.setattr("ipexctl.verbs.files.project._CODE_LIMIT", 5)
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.py").write_text("x=1\n")
    find = make_finder(tmp_path, Project(tmp_path))
    assert [find(name)[0].code for name in ("a", "a", "b", "c")] == ["x=1\n", "x=1\n", "x=1\n", ""]
