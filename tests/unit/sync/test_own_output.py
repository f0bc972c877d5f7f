"""``ipexctl run train.py > train.log`` and ``| tee train.log`` in the project: such a log grows while it is sent."""

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ipexctl.act.transfer.send import hash_file
from ipexctl.act.transfer.source_tree import Packer, SourceChangedError, find_lfs_pointers, read_tree
from ipexctl.verbs.files.relay import make_spool


def list_files(root: Path) -> list[str]:
    return [entry.path for entry in read_tree(root, lambda path, is_directory: False).entries]


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("{} > out.log", ["data.csv", "train.py"]),
        ("{} 2>&1 | grep . | tee tee.log", ["data.csv", "out.log", "train.py"]),
        # Another command of the script is not ours, nor what it writes: that must be there on the hosts.
        ("sh -c 'while sleep 0.1; do :; done' >> data.csv & {}; kill $!", ["data.csv", "out.log", "train.py"]),
    ],
)
def test_files_that_this_command_or_its_pipeline_writes_are_left_out(
    line: str, sent: list[str], tmp_path: Path
) -> None:
    code = f"import sys; from {__name__} import list_files; from pathlib import Path; "
    code += "print(*list_files(Path()), file=open('../sent', 'w'))"
    script = line.format(f"{sys.executable} -c {shlex.quote(code)}")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    project = tmp_path / "project"
    project.mkdir()
    for name in ("train.py", "data.csv", "out.log"):
        (project / name).write_text("x\n")
    subprocess.run(["sh", "-c", script], cwd=project, env=env, check=False, timeout=60)
    assert (tmp_path / "sent").read_text().split() == sent


def test_a_tree_may_be_deeper_than_pythons_stack(tmp_path: Path) -> None:
    """It ended the command as a fault of ipexctl's own."""
    deep = f"{'a/' * 1500}x"
    subprocess.run(["sh", "-c", 'mkdir -p "${1%x}" && echo x >"$1"', "sh", deep], cwd=tmp_path, check=True)
    try:
        assert list_files(tmp_path)[-1] == deep
    finally:  # pytest's own removal is recursive
        subprocess.run(["rm", "-rf", tmp_path / "a"], check=True)


def test_a_pipe_that_another_user_puts_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    """Where he may write in the project: `sync` waited for ever, also after Ctrl-C."""
    file = tmp_path / "file"
    file.write_text("x" * 128)  # as long as a pointer of Git LFS may be
    tree = read_tree(tmp_path, lambda path, is_directory: False)
    file.unlink()
    os.mkfifo(file)
    assert find_lfs_pointers(tree, tree.entries) == []
    with pytest.raises(SourceChangedError):
        list(Packer(tree).pack(tree.entries, manifest=b"", to_delete=()))
    with pytest.raises(OSError, match="not a regular file"):
        hash_file(file)


def test_what_another_container_of_this_name_sends_is_not_removed(tmp_path: Path) -> None:
    """Its process is none that can be seen here."""
    cache = tmp_path / "cache"
    other = cache / f"sync-{socket.gethostname()}-999999999-x"
    with make_spool(cache) as spool:
        spool.rename(other)
        with make_spool(cache):
            assert other.is_dir()
        other.rename(spool)
    other.mkdir()  # of one that was killed
    with make_spool(cache):
        assert not other.exists()
